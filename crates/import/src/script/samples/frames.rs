// SPDX-License-Identifier: Apache-2.0
//! The frames of printed stacks, each emitted once with its names.
//!
//! Functions are named by the text alone. No file of this machine is read for them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use wallprof_model::{Event, Frame, FrameId, FrameKind, Module, ModuleId, SymbolLine};
use wallprof_symbols::readable_name;

use super::line::PrintedFrame;

/// The limit of distinct frames. A text of a large machine has some hundred thousand.
const MAX_FRAMES: usize = 1 << 20;

/// The limit of bytes of all names.
const MAX_BYTES: usize = 512 << 20;

/// All frames of an import.
#[derive(Default)]
pub(crate) struct Frames {
    bytes: usize,
    known: HashMap<PrintedCode, FrameId>,
    modules: HashMap<Vec<u8>, ModuleId>,
    /// Addresses that have a frame already.
    taken: HashSet<(FrameKind, Option<ModuleId>, u64)>,
    /// Frames beyond the limit.
    pub refused: u64,
    pub out: Vec<Event>,
}

/// One place of code: functions that were inlined there, the innermost first, and the function around them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct PrintedCode {
    address: u64,
    module: Vec<u8>,
    functions: Vec<Function>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Function {
    symbol: Vec<u8>,
    offset: Option<u64>,
    source: Option<(Vec<u8>, u32)>,
    is_inlined: bool,
}

impl PrintedCode {
    /// Adds the next printed frame. Gives it back if it is another place.
    pub(super) fn add<'a>(&mut self, frame: PrintedFrame<'a>) -> Result<(), PrintedFrame<'a>> {
        let is_open = self.functions.last().is_none_or(|last| last.is_inlined);
        if !is_open || !self.functions.is_empty() && self.address != frame.address {
            return Err(frame);
        }
        self.address = frame.address;
        self.module = frame.module.to_vec();
        let PrintedFrame { symbol, offset, is_inlined, .. } = frame;
        self.functions.push(Function { symbol: symbol.to_vec(), offset, source: None, is_inlined });
        Ok(())
    }

    pub(super) fn add_source(&mut self, file: &[u8], line: u32) {
        if let Some(function) = self.functions.last_mut() {
            function.source = Some((file.to_vec(), line));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    fn size(&self) -> usize {
        let source = |function: &Function| function.source.as_ref().map_or(0, |(file, _)| file.len());
        let functions = self.functions.iter().map(|function| function.symbol.len() + source(function));
        functions.sum::<usize>() + self.module.len()
    }

    /// Whether it is code of the kernel: by its address, or by its file where that is an offset.
    fn is_kernel(&self) -> bool {
        const OF_PROCESSES: [&[u8]; 5] = [b"[vdso", b"[vsyscall", b"[heap", b"[stack", b"[anon"];
        let name = self.module.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let is_module = [&b".ko"[..], b".ko.gz", b".ko.xz", b".ko.zst"].iter().any(|end| name.ends_with(end));
        let is_bracketed =
            name.starts_with(b"[") && !OF_PROCESSES.iter().any(|start| name.starts_with(start));
        self.address >> 63 != 0 || is_module || is_bracketed || name.starts_with(b"vmlinux")
    }

    /// perf prints code that a compiler described in `/tmp/perf-PID.map` with that file.
    fn kind(&self) -> FrameKind {
        let name = self.module.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        match name.strip_prefix(b"perf-").and_then(|name| name.strip_suffix(b".map")) {
            Some(pid) if pid.iter().all(u8::is_ascii_digit) => FrameKind::Jit,
            _ if self.is_kernel() => FrameKind::Kernel,
            _ => FrameKind::Native,
        }
    }
}

/// A stack in two parts, each leaf first. Without any frame a part is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrintedStack {
    pub kernel: Vec<FrameId>,
    pub user: Vec<FrameId>,
    /// A line of it could not be read, or a frame was beyond the limit.
    pub is_incomplete: bool,
}

impl PrintedStack {
    pub(super) fn is_empty(&self) -> bool {
        self.kernel.is_empty() && self.user.is_empty()
    }

    /// The kernel's frames come first.
    pub(super) fn push(&mut self, code: PrintedCode, frames: &mut Frames) {
        let is_kernel = self.user.is_empty() && code.kind() == FrameKind::Kernel;
        match frames.id(code) {
            Some(id) if is_kernel => self.kernel.push(id),
            Some(id) => self.user.push(id),
            None => self.is_incomplete = true,
        }
    }
}

impl Frames {
    fn id(&mut self, code: PrintedCode) -> Option<FrameId> {
        let (next, size) = (self.known.len(), self.bytes + code.size());
        let kind = code.kind();
        let (mut address, lines) = (code.address, lines(&code));
        let module = self.module(&code.module, kind);
        let new = match self.known.entry(code) {
            Entry::Occupied(known) => return Some(*known.get()),
            Entry::Vacant(_) if next >= MAX_FRAMES || size > MAX_BYTES => {
                self.refused += 1;
                return None;
            }
            Entry::Vacant(new) => new,
        };
        self.bytes = size;
        // Programs may have different functions at one address. The text distinguishes them by name.
        while !self.taken.insert((kind, module, address)) {
            address = address.wrapping_add(1);
        }
        let id = *new.insert(FrameId(next as u32));
        self.out.push(Event::Frame { id, frame: Frame { kind, module, address } });
        if lines.iter().any(|line| line.symbol.is_some()) {
            self.out.push(Event::Symbol { frame: id, lines });
        }
        Some(id)
    }

    fn module(&mut self, path: &[u8], kind: FrameKind) -> Option<ModuleId> {
        if path.is_empty() || kind != FrameKind::Native {
            return None;
        }
        if let Some(known) = self.modules.get(path) {
            return Some(*known);
        }
        let id = ModuleId(self.modules.len() as u32);
        self.modules.insert(path.to_vec(), id);
        let path = String::from_utf8_lossy(path).into_owned();
        self.out.push(Event::Module { id, module: Module { path, build_id: None } });
        Some(id)
    }
}

/// The last function is the one around the others, whatever perf printed of it.
fn lines(code: &PrintedCode) -> Vec<SymbolLine> {
    let last = code.functions.len().saturating_sub(1);
    let line = |(at, function): (usize, &Function)| SymbolLine {
        symbol: readable_name(&String::from_utf8_lossy(&function.symbol)),
        offset: function.offset.filter(|_| at == last),
        file: function.source.as_ref().map(|(file, _)| String::from_utf8_lossy(file).into_owned()),
        line: function.source.as_ref().map(|(_, line)| *line),
        inlined: at < last,
    };
    code.functions.iter().enumerate().map(line).collect()
}
