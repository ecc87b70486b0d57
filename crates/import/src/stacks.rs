// SPDX-License-Identifier: Apache-2.0
//! Callchains and stack dumps become modules, frames and stacks of the model, each emitted once.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ring::digest::{Context, SHA256};
use wallprof_model::{Event, Frame, FrameId, ModuleId, StackEnd, StackId};
use wallprof_symbols::{
    Batch, DebugFileServer, FileSearch, FrameTable, KernelStacks, KernelSymbols, ModuleFile, Origin,
    PendingFrames, ProcessKey, Resolver, ResolverOptions, StoredProcesses, lacks_debug_info,
    normalise_kernel,
};

/// How long an import waits for debug files that are being downloaded.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The limit of distinct stacks: 64 MiB of memory. A day of a large machine has some hundred thousand.
const MAX_STACKS: usize = 1 << 22;
/// The limit of frames of one stack.
pub(crate) const MAX_FRAMES: usize = 1024;

/// The ends of user stacks, by the number of stacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackCounts {
    pub taken: u64,
    pub complete: u64,
    /// By [`StackEnd::name`].
    pub incomplete: BTreeMap<&'static str, u64>,
}

impl StackCounts {
    fn add(&mut self, end: StackEnd) {
        self.taken += 1;
        match end {
            StackEnd::Complete => self.complete += 1,
            _ => *self.incomplete.entry(end.name()).or_default() += 1,
        }
    }
}

pub(crate) struct Stacks {
    pub processes: StoredProcesses,
    kernel: Option<KernelStacks>,
    frames: FrameTable,
    pending: PendingFrames,
    emitted: HashSet<u64>,
    refused: u64,
    counts: StackCounts,
    scratch: Vec<Frame>,
}

impl Stacks {
    pub(crate) fn new(search: FileSearch) -> Self {
        Stacks {
            processes: StoredProcesses::new(search),
            kernel: None,
            frames: FrameTable::default(),
            pending: PendingFrames::default(),
            emitted: HashSet::new(),
            refused: 0,
            counts: StackCounts::default(),
            scratch: Vec::new(),
        }
    }

    /// Without kernel symbols kernel frames stay unnamed.
    pub(crate) fn set_kernel_symbols(&mut self, symbols: Arc<KernelSymbols>) {
        self.kernel = Some(KernelStacks::new(symbols));
    }

    pub(crate) fn kernel_symbols(&self) -> Option<Arc<KernelSymbols>> {
        self.kernel.as_ref().map(|kernel| Arc::clone(kernel.symbols()))
    }

    /// The stack of a thread in user mode: its address, then return addresses.
    pub(crate) fn user(
        &mut self,
        pid: u32,
        addresses: &[u64],
        end: StackEnd,
        out: &mut Vec<Event>,
    ) -> Option<StackId> {
        if addresses.is_empty() {
            return None;
        }
        self.counts.add(end);
        self.scratch.clear();
        // A return address is replaced by the address of the call's last byte.
        let calls = addresses
            .iter()
            .enumerate()
            .map(|(depth, &address)| address.saturating_sub(u64::from(depth > 0)));
        self.scratch.extend(calls.map(|address| self.processes.frame(pid, address)));
        self.emit(ProcessKey { pid, generation: 0 }, end, out)
    }

    /// The kernel stack. `of_tracepoint`: it starts in the code of tracing.
    pub(crate) fn kernel(
        &mut self,
        addresses: &[u64],
        of_tracepoint: bool,
        out: &mut Vec<Event>,
    ) -> Option<StackId> {
        let own = match &mut self.kernel {
            Some(kernel) if of_tracepoint => kernel.trim_own_frames(addresses),
            _ => 0,
        };
        self.scratch.clear();
        normalise_kernel(&addresses[own..], &mut self.scratch);
        if self.scratch.is_empty() {
            return None;
        }
        self.emit(ProcessKey { pid: 0, generation: 0 }, StackEnd::Complete, out)
    }

    /// Whether the kernel was serving an interrupt; `None` if its functions are not known.
    pub(crate) fn is_interrupt(&mut self, kernel: &[u64]) -> Option<bool> {
        if kernel.is_empty() {
            return None;
        }
        self.kernel.as_mut().map(|symbols| symbols.is_interrupt_stack(kernel))
    }

    pub(crate) fn counts(&self) -> &StackCounts {
        &self.counts
    }

    /// Stacks and frames beyond the limits.
    pub(crate) fn refused(&self) -> (u64, u64) {
        (self.refused, self.frames.overflowed())
    }

    /// Requests the debug files of these modules that are not on this machine, and waits a bounded time.
    pub(crate) fn download(
        &self,
        server: &dyn DebugFileServer,
        modules: impl Iterator<Item = ModuleId>,
        options: &ResolverOptions,
    ) {
        for file in modules.filter_map(|id| self.file(id)) {
            if let Some(build_id) = &file.module.build_id
                && lacks_debug_info(&file, options)
            {
                server.want(build_id);
            }
        }
        server.wait(LONGEST_WAIT);
    }

    /// A module, with the recorded build id also where its file was not found.
    fn file(&self, id: ModuleId) -> Option<ModuleFile> {
        let mut file = self.processes.module_file(id)?;
        if let Some(missing) = self.processes.missing_file(id) {
            file.module.build_id = Some(missing.build_id.clone());
        }
        Some(file)
    }

    /// Emits the identities of files that were not found, of modules that were emitted.
    pub(crate) fn emit_missing_files(&self, out: &mut Vec<Event>) {
        let ids = (0..self.processes.announced() as u32).map(ModuleId);
        out.extend(ids.filter_map(|module| {
            let file = self.processes.missing_file(module)?.clone();
            Some(Event::MissingFile { module, file })
        }));
    }

    /// The modules with frames that have no names yet.
    pub(crate) fn unnamed_modules(&self) -> impl Iterator<Item = ModuleId> + '_ {
        self.pending.modules()
    }

    /// Names all frames. Returns the number of debug files that could not be read.
    pub(crate) fn name_all<E>(
        &mut self,
        options: ResolverOptions,
        mut emit: impl FnMut(Event) -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut resolver = Resolver::new(options);
        while let Some(batch) = self.pending.take_batch() {
            let lines = self.lines(&mut resolver, &batch);
            for (frame, lines) in batch.ids.iter().zip(lines) {
                emit(Event::Symbol { frame: *frame, lines })?;
            }
        }
        Ok(resolver.unreadable())
    }

    fn lines(&self, resolver: &mut Resolver, batch: &Batch) -> Vec<Vec<wallprof_model::SymbolLine>> {
        let lines = match batch.origin {
            Origin::Kernel => self.kernel.as_ref().map(|kernel| kernel.symbols().resolve(&batch.addresses)),
            Origin::Module(id) => self.file(id).map(|file| match self.processes.missing_file(id) {
                Some(missing) => resolver.resolve_offsets(&file, missing.code_offset, &batch.addresses),
                None => resolver.resolve(&file, &batch.addresses),
            }),
        };
        lines.unwrap_or_default()
    }

    /// The id of a frame, emitted when it is new.
    pub(crate) fn frame(&mut self, process: ProcessKey, frame: Frame, out: &mut Vec<Event>) -> FrameId {
        let (id, new) = self.frames.frame_id_in(process, frame);
        if let Some(frame) = new {
            out.push(Event::Frame { id, frame });
            self.pending.push(id, frame);
        }
        id
    }

    /// The stack of frames that were emitted, leaf first.
    pub(crate) fn of_frames(
        &mut self,
        ids: Vec<FrameId>,
        end: StackEnd,
        out: &mut Vec<Event>,
    ) -> Option<StackId> {
        if ids.is_empty() {
            return None;
        }
        self.counts.add(end);
        self.emit_stack(ids, end, out)
    }

    /// As [`Stacks::of_frames`], for a kernel stack.
    pub(crate) fn of_kernel_frames(&mut self, ids: Vec<FrameId>, out: &mut Vec<Event>) -> Option<StackId> {
        if ids.is_empty() { None } else { self.emit_stack(ids, StackEnd::Complete, out) }
    }

    /// Emits new modules. They precede the frames in them.
    pub(crate) fn emit_modules(&mut self, out: &mut Vec<Event>) {
        for (id, module) in self.processes.take_new_modules() {
            out.push(Event::Module { id, module });
        }
    }

    /// Emits the stack in `scratch`.
    fn emit(&mut self, process: ProcessKey, end: StackEnd, out: &mut Vec<Event>) -> Option<StackId> {
        self.emit_modules(out);
        let scratch = std::mem::take(&mut self.scratch);
        let ids = scratch.iter().map(|&frame| self.frame(process, frame, out)).collect();
        self.scratch = scratch;
        self.emit_stack(ids, end, out)
    }

    fn emit_stack(&mut self, ids: Vec<FrameId>, end: StackEnd, out: &mut Vec<Event>) -> Option<StackId> {
        let name = id_of(&ids, end);
        if !self.emitted.contains(&name) {
            if self.emitted.len() >= MAX_STACKS {
                self.refused += 1;
                return None;
            }
            self.emitted.insert(name);
            out.push(Event::Stack { id: StackId(name), frames: ids, end });
        }
        Some(StackId(name))
    }
}

/// A stack's id is a hash of its content: the first bytes of a SHA-256, as in the tables of `wallprof-tables`. It is
/// stored, so it has to stay the same when the standard library's hash changes.
fn id_of(frames: &[FrameId], end: StackEnd) -> u64 {
    let mut context = Context::new(&SHA256);
    for frame in frames {
        context.update(&frame.0.to_le_bytes());
    }
    context.update(end.name().as_bytes());
    let digest = context.finish();
    digest.as_ref().iter().take(8).rev().fold(0, |id, &byte| id << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_is_emitted_once_after_its_frames() {
        let (mut stacks, mut out) = (Stacks::new(FileSearch::default()), Vec::new());
        let first = stacks.user(7, &[0x1000, 0x2000], StackEnd::FramePointerEnd, &mut out);
        let addresses: Vec<u64> = out
            .iter()
            .filter_map(|event| match event {
                Event::Frame { frame, .. } => Some(frame.address),
                _ => None,
            })
            .collect();
        assert_eq!(addresses, [0x1000, 0x1fff], "callers have the address of their call");
        assert!(matches!(&out[2], Event::Stack { frames, .. } if frames.len() == 2));
        assert_eq!(stacks.user(7, &[0x1000, 0x2000], StackEnd::FramePointerEnd, &mut out), first);
        assert_eq!(out.len(), 3);
        assert_ne!(stacks.user(7, &[0x1000, 0x2000], StackEnd::Truncated, &mut out), first);
        assert_eq!(stacks.counts().taken, 3);
        assert_eq!(stacks.counts().incomplete["truncated"], 1);
    }

    /// Recordings of the same file, made by builds with different compilers, have the same ids.
    #[test]
    fn id_of_a_stack_never_changes() {
        let of = |frames: &[u32], end| id_of(&frames.iter().copied().map(FrameId).collect::<Vec<_>>(), end);
        assert_eq!(of(&[1, 2], StackEnd::Complete), 0x274c_62f9_7881_5724);
        assert_ne!(of(&[2, 1], StackEnd::Complete), of(&[1, 2], StackEnd::Complete));
        assert_ne!(of(&[1, 2], StackEnd::Truncated), of(&[1, 2], StackEnd::Complete));
    }

    #[test]
    fn no_frames_make_no_stack() {
        let (mut stacks, mut out) = (Stacks::new(FileSearch::default()), Vec::new());
        assert_eq!(stacks.user(7, &[], StackEnd::Complete, &mut out), None);
        assert_eq!(stacks.kernel(&[], true, &mut out), None);
        assert!(out.is_empty() && stacks.counts().taken == 0);
    }

    #[test]
    fn without_kernel_symbols_interrupts_are_unknown() {
        let mut stacks = Stacks::new(FileSearch::default());
        assert_eq!(stacks.is_interrupt(&[0xffff_ffff_8100_0000]), None);
        let text = "ffffffff81000000 T asm_common_interrupt\nffffffff81000100 T do_idle\n";
        let symbols = KernelSymbols::from_reader(text.as_bytes()).expect("symbols");
        stacks.set_kernel_symbols(Arc::new(symbols));
        assert_eq!(stacks.is_interrupt(&[0xffff_ffff_8100_0010]), Some(true));
        assert_eq!(stacks.is_interrupt(&[0xffff_ffff_8100_0110]), Some(false));
        assert_eq!(stacks.is_interrupt(&[]), None);
    }
}
