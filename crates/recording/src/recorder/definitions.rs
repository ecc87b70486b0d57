// SPDX-License-Identifier: Apache-2.0
//! Events that define the ids of others: threads, modules, frames, symbols, stacks, and the texts in them.

use std::num::NonZeroU32;

use wallprof_model::event::Binding;
use wallprof_model::{
    Frame, FrameId, MissingFile, Module, ModuleId, StackEnd, StackId, SymbolLine, ThreadInfo, ThreadRef,
};

use super::Recorder;
use crate::intern::MAX_LINES;
use crate::pending::{BindingRow, FrameRow, LineRow, MentionRow, MissingFileRow, ModuleRow, ThreadRow};

/// A build id is a hash: 20 bytes, rarely 32.
const MAX_BUILD_ID_BYTES: usize = 64;

impl Recorder {
    pub(super) fn thread(&mut self, info: &ThreadInfo) {
        let (row, is_new) = self.ids.threads.get_or_define(info.key);
        if is_new && let Some(sums) = &mut self.file_sums {
            sums.start(row);
        }
        let names = ThreadRow {
            tid: info.tid,
            pid: info.pid,
            ns_tid: info.ns_tid,
            ns_pid: info.ns_pid,
            start_boot_ns: info.start_boot_ns,
            comm: self.text(&info.comm),
            process: self.text(&info.process),
            cgroup: self.optional_text(info.cgroup.as_deref()),
            container: self.optional_text(info.container().as_deref()),
            pod: self.optional_text(info.pod_name().as_deref()),
            kernel_thread: info.kernel_thread,
        };
        let texts = [Some(names.comm), Some(names.process), names.cgroup, names.container, names.pod];
        let texts = texts.map(|text| text.and_then(NonZeroU32::new));
        if let Some(needs) = self.ids.threads.needs_mut(row) {
            texts.iter().flatten().for_each(|text| self.texts.uses.hold(text.get()));
            let before = std::mem::replace(needs, texts);
            before.iter().flatten().for_each(|text| self.texts.uses.release(text.get()));
        }
        self.pending.threads.entry(row).or_default().names = Some(names);
    }

    pub(super) fn module(&mut self, id: ModuleId, module: Module) {
        let path = self.text(&module.path);
        let id = self.ids.modules.define(id);
        if let Some(needs) = self.ids.modules.needs_mut(id) {
            *needs = NonZeroU32::new(path);
            self.texts.uses.hold(path);
        }
        let build_id = module.build_id.map(limited);
        self.pending.modules.push(ModuleRow { id, path, build_id });
    }

    pub(super) fn missing_file(&mut self, id: ModuleId, file: MissingFile) {
        let Some(module) = self.ids.module(Some(id)) else { return };
        let (build_id, code_offset) = (limited(file.build_id), file.code_offset);
        self.pending.missing_files.push(MissingFileRow { module, build_id, code_offset });
    }

    pub(super) fn frame(&mut self, id: FrameId, frame: Frame) {
        let module = self.ids.module(frame.module);
        let id = self.ids.frames.define(id);
        if let (Some(needs), Some(module)) = (self.ids.frames.needs_mut(id), module) {
            needs.module = Some(module);
            self.ids.modules.hold(module);
        }
        self.pending.frames.push(FrameRow { id, frame, module });
    }

    /// Later lines replace earlier ones, unless only the earlier ones have a symbol.
    pub(super) fn symbol(&mut self, frame: FrameId, lines: &[SymbolLine]) {
        let Some(row) = self.ids.frame(frame) else { return };
        let lines = &lines[..lines.len().min(MAX_LINES)];
        if lines.iter().any(|line| line.symbol.is_some()) {
            self.ids.named_frames.insert(row);
        } else if self.ids.named_frames.contains(&row) {
            return;
        }
        let lines: Vec<LineRow> = lines.iter().map(|line| self.line(line)).collect();
        self.hold_lines(row, &lines);
        self.pending.lines.insert(row, lines);
    }

    pub(super) fn hold_lines(&mut self, frame: u32, lines: &[LineRow]) {
        let Some(needs) = self.ids.frames.needs_mut(frame) else { return };
        let texts: Box<[u32]> = lines.iter().flat_map(|line| [line.symbol, line.file]).flatten().collect();
        texts.iter().for_each(|&text| self.texts.uses.hold(text));
        let before = std::mem::replace(&mut needs.texts, texts);
        before.iter().for_each(|&text| self.texts.uses.release(text));
    }

    pub(super) fn line(&mut self, line: &SymbolLine) -> LineRow {
        LineRow {
            symbol: self.optional_text(line.symbol.as_deref()),
            offset: line.offset,
            file: self.optional_text(line.file.as_deref()),
            line: line.line,
            inlined: line.inlined,
        }
    }

    /// A stack with an unknown frame is unknown itself. Half of it would be a wrong stack.
    pub(super) fn stack(&mut self, id: StackId, frames: &[FrameId], end: StackEnd) {
        let rows: Option<Vec<u32>> = frames.iter().map(|&frame| self.ids.frames.get(frame)).collect();
        let Some(rows) = rows else {
            self.ids.unknown += 1;
            let before = self.ids.stacks.remove(id);
            self.release_stack(before);
            return;
        };
        let known = self.pending.nodes.len();
        let node = self.tree.intern(&rows, end, &mut self.pending.nodes);
        for fresh in &self.pending.nodes[known..] {
            self.ids.frames.hold(fresh.frame);
        }
        self.tree.uses.hold(node);
        let before = self.ids.stacks.define(id, node);
        self.release_stack(before);
        self.pending.stacks.push(node);
    }

    /// Called when an id is defined as another stack. Rows of this window may refer to the old one.
    pub(super) fn release_stack(&mut self, node: Option<u32>) {
        if let Some(node) = node {
            self.tree.uses.touch(node);
            self.tree.uses.release(node);
        }
    }

    pub(super) fn binding(&mut self, binding: &Binding) {
        let Some(stack) = self.ids.stack(Some(binding.stack)) else { return };
        let row = BindingRow {
            depth: binding.depth,
            symbol: self.optional_text(binding.symbol.as_deref()),
            library: self.optional_text(binding.library.as_deref()),
        };
        let names: Vec<u32> = [row.symbol, row.library].into_iter().flatten().collect();
        names.iter().for_each(|&text| self.texts.uses.hold(text));
        let before = self.ids.bindings.insert(stack, names).unwrap_or_default();
        before.iter().for_each(|&text| self.texts.uses.release(text));
        self.pending.bindings.insert(stack, row);
    }

    pub(super) fn mention(&mut self, thread: &ThreadRef) -> u32 {
        let mention = MentionRow {
            thread: self.ids.optional_thread(thread.key),
            pid: thread.pid,
            tid: thread.tid,
            comm: self.text(&thread.comm),
            title: thread.title.as_deref().map(|title| self.text(title)),
        };
        let (row, is_new) = self.ids.mentions.get_or_define(mention);
        if is_new {
            mention.thread.iter().for_each(|&thread| self.ids.threads.hold(thread));
            self.texts.uses.hold(mention.comm);
            mention.title.iter().for_each(|&title| self.texts.uses.hold(title));
            self.pending.mentions.push((row, mention));
        }
        row
    }

    pub(super) fn text(&mut self, text: &str) -> u32 {
        let (id, new) = self.texts.intern(text);
        if let Some(content) = new {
            self.pending.texts.push((id, content));
        }
        id
    }

    pub(super) fn optional_text(&mut self, text: Option<&str>) -> Option<u32> {
        Some(self.text(text?))
    }
}

fn limited(mut build_id: Vec<u8>) -> Vec<u8> {
    build_id.truncate(MAX_BUILD_ID_BYTES);
    build_id
}
