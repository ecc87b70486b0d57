// SPDX-License-Identifier: Apache-2.0
//! Stacks as the kernel side took them → modules, frames and stacks of the model, each emitted once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use wallprof_model::{
    Event, Frame, FrameId, FrameKind, Loss, ModuleId, MonoNs, Owner, StackEnd, StackId, SymbolLine,
};
use wallprof_probe::bpf::stack_record;
use wallprof_probe::{clock, memory};
use wallprof_symbols::{
    Batch, DebugFileServer, FrameTable, KernelStacks, KernelSymbols, ModuleFile, Origin, PendingFrames,
    ProcessKey, ReadLimits, Resolver, ResolverOptions, lacks_debug_info, normalise_kernel,
};

use crate::bindings::Bindings;
use crate::cpu_accounts::{CpuAccounts, NAMING, NAMING_WAITS};
use crate::known::KnownProcesses;
use crate::wait_stacks::WaitStacks;

/// The properties of an emitted stack that later events need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Emitted {
    /// It is the stack of an interrupt. The thread on which it was taken is a bystander.
    interrupt: bool,
    /// The time when it was emitted.
    at: MonoNs,
}

/// A recording of bounded size may forget a stack that later rows still refer to. A stack that was emitted
/// longer ago than this is emitted again. Rows that refer to it follow with the next flush or the one after,
/// and flushes are at most ten seconds apart. All of that is less than the shortest retention, 30 s.
const FRESH_NS: u64 = 8_000_000_000;

/// The end of a recording waits this long for debug files that are being downloaded.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The end of a recording spends this long on files that others can write. An ordinary program takes a
/// second.
const FULL_NAMING: ReadLimits =
    ReadLimits { per_file: Duration::from_secs(5), in_all: Duration::from_secs(15), bytes: 2 << 30 };
/// The same for each time that frames are named by symbol tables while probes run.
const QUICK_NAMING: ReadLimits =
    ReadLimits { per_file: Duration::from_secs(1), in_all: Duration::from_secs(3), bytes: 512 << 20 };

/// Finds a module's file. Asked before the file is read, so that no lock is held while it is read.
pub type FileOf<'a> = dyn FnMut(ModuleId) -> Option<ModuleFile> + 'a;

#[derive(Default)]
pub struct Stacks {
    schedule: Schedule,
    frames: FrameTable,
    /// Frames without a name.
    pending: PendingFrames,
    named: PendingFrames,
    /// The CPU time of naming while probes run, by the owners of files.
    accounts: NamingAccounts,
    /// Modules whose frames wait until their file's owner has CPU time.
    deferred: HashMap<ModuleId, Owner>,
    kernel: Option<KernelStacks>,
    server: Option<Arc<dyn DebugFileServer>>,
    /// Modules whose debug files were requested, or are not needed.
    asked: HashSet<ModuleId>,
    bindings: Bindings,
    /// Of waits.
    waits: WaitStacks,
    /// The CPU time of naming their functions, in one account.
    waits_account: WaitsAccount,
    /// Modules that frames refer to.
    modules: HashSet<ModuleId>,
    emitted: HashMap<u64, Emitted>,
    /// The consumer may forget what was emitted.
    forgetful: bool,
    /// While this is true no file is read for names.
    stop: Arc<AtomicBool>,
    scratch: Vec<Frame>,
}

struct NamingAccounts(CpuAccounts);

struct WaitsAccount(CpuAccounts);

impl Default for WaitsAccount {
    fn default() -> Self {
        WaitsAccount(CpuAccounts::new(NAMING_WAITS))
    }
}

impl Default for NamingAccounts {
    fn default() -> Self {
        NamingAccounts(CpuAccounts::new(NAMING))
    }
}

impl Stacks {
    /// Without kernel symbols kernel frames have no names.
    pub fn set_kernel_symbols(&mut self, symbols: Arc<KernelSymbols>) {
        self.kernel = Some(KernelStacks::new(symbols));
    }

    /// Requests debug files that are not on this machine from now on. A forgetful consumer's recording reads
    /// and requests none.
    pub fn set_debug_server(&mut self, server: Arc<dyn DebugFileServer>) {
        self.server = Some(server);
    }

    /// While this is true no file is read for names, so that a signal is obeyed at once.
    pub fn stop_naming_when(&mut self, stop: Arc<AtomicBool>) {
        self.stop = stop;
    }

    /// The consumer may forget what was emitted. From now on old stacks are emitted again when they are used
    /// again.
    pub fn emit_again(&mut self) {
        self.forgetful = true;
    }

    /// The consumer has forgotten these. They are emitted again when they are used again.
    pub fn forget(&mut self, stacks: &[StackId], frames: &[FrameId], modules: &[ModuleId]) {
        for stack in stacks {
            self.emitted.remove(&stack.0);
        }
        self.waits.forget(stacks.iter().map(|stack| stack.0), &frames.iter().copied().collect());
        for module in modules {
            self.modules.remove(module);
        }
        if !frames.is_empty() {
            let gone: HashSet<FrameId> = frames.iter().copied().collect();
            self.frames.forget(|id| gone.contains(&id));
            self.pending.forget(|id| gone.contains(&id));
            self.named.forget(|id| gone.contains(&id));
        }
    }

    /// Emits a stack that is new, after its modules and frames.
    pub fn emit(
        &mut self,
        id: u64,
        record: &stack_record,
        now: MonoNs,
        known: &mut KnownProcesses,
        emit: &mut dyn FnMut(Event),
    ) {
        let is_fresh = |emitted: &Emitted| !self.forgetful || now.0 - emitted.at.0 < FRESH_NS;
        if self.emitted.get(&id).is_some_and(is_fresh) && !self.waits.misses(id) {
            return;
        }
        let addresses = &record.address[..usize::from(record.frames).min(record.address.len())];
        self.scratch.clear();
        let mut interrupt = false;
        let process = ProcessKey { pid: record.tgid, generation: record.exec_id };
        if record.tgid == 0 {
            let own = match self.kernel.as_mut() {
                Some(kernel) if record.from_probe != 0 => kernel.trim_own_frames(addresses),
                _ => 0,
            };
            interrupt = self.kernel.as_mut().is_some_and(|kernel| kernel.is_interrupt_stack(addresses));
            normalise_kernel(&addresses[own..], &mut self.scratch);
        } else {
            known.normalise_user(process, addresses, &mut self.scratch);
        }
        self.emitted.insert(id, Emitted { interrupt, at: now });
        let scratch = std::mem::take(&mut self.scratch);
        let mut ids = Vec::with_capacity(scratch.len());
        for &frame in &scratch {
            let (frame_id, new) = self.frames.frame_id_in(process, frame);
            if let Some(frame) = new {
                if let Some(id) = frame.module {
                    self.emit_module(id, known, emit);
                }
                emit(Event::Frame { id: frame_id, frame });
                known.processes.push_jit(process, frame_id, frame, now);
                self.pending.push(frame_id, frame);
            }
            ids.push(frame_id);
        }
        let frames: Vec<(FrameId, Frame)> = ids.iter().copied().zip(scratch.iter().copied()).collect();
        self.waits.meet(id, &frames, |module| known.processes.module(module));
        let mut end = StackEnd::from_code(record.end as u8).unwrap_or(StackEnd::ReadFailed);
        // Code made at run time has no rule that could not be expressed: none is known.
        if end == StackEnd::Unsupported && scratch.last().is_some_and(|frame| frame.kind == FrameKind::Jit) {
            end = StackEnd::Jit;
        }
        emit(Event::Stack { id: StackId(id), frames: ids, end });
        if record.tgid != 0 {
            self.bindings.meet(StackId(id), process, &scratch, &mut known.processes);
        }
        self.scratch = scratch;
    }

    /// Emits a module before the first frame that refers to it. Its file is kept until the frames have names.
    /// Most files that processes map are in no stack: those are not emitted.
    fn emit_module(&mut self, id: ModuleId, known: &mut KnownProcesses, emit: &mut dyn FnMut(Event)) {
        let Some(module) = known.processes.module(id).cloned() else { return };
        known.processes.want_names(id);
        if self.modules.insert(id) {
            emit(Event::Module { id, module });
        }
    }

    /// The modules of which frames wait for their names.
    pub fn unnamed_modules(&self) -> HashSet<ModuleId> {
        self.pending.modules().chain(self.named.modules()).collect()
    }

    /// The stack, if it was emitted. Id 0 means that none was taken. A stack that the kernel side dropped is
    /// not known.
    pub fn id(&self, id: u64) -> Option<StackId> {
        self.emitted.contains_key(&id).then_some(StackId(id))
    }

    pub fn waits(&self) -> &WaitStacks {
        &self.waits
    }

    pub fn waits_mut(&mut self) -> &mut WaitStacks {
        &mut self.waits
    }

    pub fn is_interrupt(&self, id: u64) -> bool {
        self.emitted.get(&id).is_some_and(|emitted| emitted.interrupt)
    }

    /// The kernel's function at an address. `None` without kernel symbols.
    pub fn kernel_function(&self, address: u64) -> Option<String> {
        let lines = self.kernel.as_ref()?.symbols().resolve(&[address]);
        lines.into_iter().flatten().next()?.symbol
    }

    /// Names the frames that have arrived, after 1, 2, 4 … further seconds. Only symbol tables are read:
    /// debug information costs tens of milliseconds a module, however few frames need it, and is read once at
    /// the end. True when it was due.
    pub fn name_when_due(
        &mut self,
        seconds: u64,
        files: &mut FileOf<'_>,
        emit: &mut dyn FnMut(Event),
    ) -> bool {
        let due = self.schedule.is_due(seconds);
        if due {
            self.name_by_symbols(files, emit);
            self.bindings.flush(&self.accounts.0, files, emit);
            if self.forgetful {
                memory::give_back();
            }
        }
        due
    }

    /// Names the frames that waits are known by, by symbol tables, while there is time for it.
    pub fn name_waits(&mut self, files: &mut FileOf<'_>) {
        let all = Owner::UNKNOWN;
        if !self.waits.has_unnamed() || !self.waits_account.0.may_start(all, Instant::now()) {
            return;
        }
        let cpu_before_ns = clock::thread_cpu_ns();
        let mut resolver = self.quick_resolver();
        for (origin, frames) in self.waits.take_unnamed() {
            let (ids, addresses): (Vec<FrameId>, Vec<u64>) = frames.into_iter().unzip();
            let lines = match origin {
                Origin::Kernel => self.kernel.as_ref().map(|kernel| kernel.symbols().resolve(&addresses)),
                // Without time of its owner a file is not read. Its frames may get their names later.
                Origin::Module(id) => files(id).and_then(|file| {
                    self.accounts.0.spend(file.payer(), || resolver.resolve(&file, &addresses))
                }),
            };
            let mut lines = lines.unwrap_or_default().into_iter();
            for id in ids {
                self.waits.name(id, &lines.next().unwrap_or_default());
            }
        }
        let cpu_ns = clock::thread_cpu_ns().saturating_sub(cpu_before_ns);
        self.waits_account.0.charge(all, cpu_ns, Instant::now());
    }

    fn quick_resolver(&self) -> Resolver {
        self.resolver(ResolverOptions {
            debug_dirs: Vec::new(),
            debug_limit: 0,
            read_limits: Some(QUICK_NAMING),
            ..Default::default()
        })
    }

    /// Names the frames since the last call by symbol tables.
    fn name_by_symbols(&mut self, files: &mut FileOf<'_>, emit: &mut dyn FnMut(Event)) {
        let mut resolver = self.quick_resolver();
        let (mut later, mut deferred) = (Vec::new(), HashMap::new());
        while let Some(batch) = self.pending.take_batch() {
            if let Origin::Module(id) = batch.origin {
                self.ask_for_debug_file(id, files);
                if let Err(owner) = self.emit_names_in_time(&mut resolver, id, &batch, files, emit) {
                    deferred.insert(id, owner);
                    later.push(batch);
                    continue;
                }
            } else {
                self.emit_names(&mut resolver, &batch, files, emit);
            }
            if batch.origin != Origin::Kernel && !self.forgetful {
                self.named.put_back(batch);
            }
        }
        // Other recordings read them at the end.
        if self.forgetful {
            let new = deferred.keys().filter(|id| !self.deferred.contains_key(id)).count();
            if new > 0 {
                emit(Event::loss(Loss::NamesOverBudget, new as u64));
            }
            later.into_iter().for_each(|batch| self.pending.put_back(batch));
        } else {
            later.into_iter().for_each(|batch| self.named.put_back(batch));
        }
        self.deferred = deferred;
        // Other recordings read all files again at the end, and count then.
        if self.forgetful {
            emit_unreadable(&resolver, emit);
        }
    }

    fn resolver(&self, options: ResolverOptions) -> Resolver {
        let mut resolver = Resolver::new(options);
        resolver.stop_when(Arc::clone(&self.stop));
        resolver
    }

    /// Names all frames from all sources: debug information gives inlined functions, files and lines. For a
    /// forgetful consumer, symbol tables only: a service must neither read for minutes at its end nor keep a
    /// list of what it would read.
    pub fn name_all(&mut self, files: &mut FileOf<'_>, emit: &mut dyn FnMut(Event)) {
        if self.forgetful {
            return self.name_by_symbols(files, emit);
        }
        while let Some(batch) = self.pending.take_batch() {
            self.named.put_back(batch);
        }
        let options = self.options_with_downloads(files);
        let mut resolver = self.resolver(ResolverOptions { read_limits: Some(FULL_NAMING), ..options });
        while let Some(batch) = self.named.take_batch() {
            self.emit_names(&mut resolver, &batch, files, emit);
        }
        emit_unreadable(&resolver, emit);
        self.bindings.flush(&self.accounts.0, files, emit);
    }

    /// All sources, with the debug files that arrive within a bounded time.
    fn options_with_downloads(&mut self, files: &mut FileOf<'_>) -> ResolverOptions {
        for id in self.named.modules().collect::<Vec<_>>() {
            self.ask_for_debug_file(id, files);
        }
        let Some(server) = &self.server else { return ResolverOptions::default() };
        server.wait(LONGEST_WAIT);
        ResolverOptions { download_dirs: vec![server.folder().to_owned()], ..ResolverOptions::default() }
    }

    /// Once for each module.
    fn ask_for_debug_file(&mut self, id: ModuleId, files: &mut FileOf<'_>) {
        let Some(server) = self.server.as_ref().filter(|_| !self.forgetful) else { return };
        if self.asked.insert(id)
            && let Some(file) = files(id)
            && lacks_debug_info(&file, &ResolverOptions::default())
            && let Some(build_id) = &file.module.build_id
        {
            server.want(build_id);
        }
    }

    /// Names a module's frames while probes run. The error: its file's owner has no CPU time left.
    fn emit_names_in_time(
        &mut self,
        resolver: &mut Resolver,
        id: ModuleId,
        batch: &Batch,
        files: &mut FileOf<'_>,
        emit: &mut dyn FnMut(Event),
    ) -> Result<(), Owner> {
        // A deferred file is not even opened before its time.
        let accounts = &self.accounts.0;
        let is_early = |owner: &&Owner| !accounts.may_start(**owner, Instant::now());
        if let Some(owner) = self.deferred.get(&id).filter(is_early) {
            return Err(*owner);
        }
        let Some(file) = files(id) else { return Ok(()) };
        let payer = file.payer();
        let lines = accounts.spend(payer, || resolver.resolve(&file, &batch.addresses)).ok_or(payer.owner)?;
        self.take_names(batch, lines, emit);
        Ok(())
    }

    fn emit_names(
        &mut self,
        resolver: &mut Resolver,
        batch: &Batch,
        files: &mut FileOf<'_>,
        emit: &mut dyn FnMut(Event),
    ) {
        let lines = match batch.origin {
            Origin::Kernel => self.kernel.as_ref().map(|kernel| kernel.symbols().resolve(&batch.addresses)),
            Origin::Module(id) => files(id).map(|file| resolver.resolve(&file, &batch.addresses)),
        };
        self.take_names(batch, lines.unwrap_or_default(), emit);
    }

    fn take_names(&mut self, batch: &Batch, lines: Vec<Vec<SymbolLine>>, emit: &mut dyn FnMut(Event)) {
        for (frame, lines) in batch.ids.iter().zip(lines) {
            self.waits.name(*frame, &lines);
            emit(Event::Symbol { frame: *frame, lines });
        }
    }
}

fn emit_unreadable(resolver: &Resolver, emit: &mut dyn FnMut(Event)) {
    if resolver.unreadable() > 0 {
        emit(Event::loss(Loss::DebugFilesUnreadable, resolver.unreadable()));
    }
}

/// Seconds after which frames are named: the 1st, 2nd, 4th … and then each 32nd, or at the first flush after
/// it.
#[derive(Default)]
struct Schedule {
    emitted: u64,
}

const LONGEST_INTERVAL: u64 = 32;

impl Schedule {
    fn is_due(&mut self, seconds: u64) -> bool {
        let before = self.emitted;
        self.emitted += seconds;
        // The last due second at or before this one.
        let last = |emitted: u64| match emitted {
            0 => 0,
            1..LONGEST_INTERVAL => 1 << emitted.ilog2(),
            _ => emitted - emitted % LONGEST_INTERVAL,
        };
        last(before) != last(self.emitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{FrameKind, Module};

    fn events(stacks: &mut Stacks, id: u64, record: &stack_record) -> Vec<Event> {
        events_with(stacks, &mut KnownProcesses::default(), id, record)
    }

    fn events_with(
        stacks: &mut Stacks,
        known: &mut KnownProcesses,
        id: u64,
        record: &stack_record,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        stacks.emit(id, record, MonoNs(0), known, &mut |event| events.push(event));
        events
    }

    #[test]
    fn stack_is_emitted_once_after_its_frames() {
        let mut stacks = Stacks::default();
        let mut record =
            stack_record { frames: 2, end: StackEnd::Complete as u16, ..stack_record::default() };
        record.address[..2].copy_from_slice(&[0xffff_ffff_8100_0000, 0xffff_ffff_8100_1000]);
        let emitted = events(&mut stacks, 9, &record);
        assert!(matches!(emitted[0], Event::Frame { .. }));
        assert!(matches!(&emitted[2], Event::Stack { id, frames, .. } if id.0 == 9 && frames.len() == 2));
        assert!(events(&mut stacks, 9, &record).is_empty());
        assert_eq!(stacks.id(9), Some(StackId(9)));
        assert_eq!(stacks.id(0), None);
    }

    #[test]
    fn forgotten_stack_is_emitted_again() {
        let mut stacks = Stacks::default();
        let mut record = stack_record { frames: 1, ..stack_record::default() };
        record.address[0] = 0xffff_ffff_8100_0000;
        let emitted = events(&mut stacks, 9, &record);
        let Event::Frame { id: frame, .. } = emitted[0] else { panic!("{emitted:?}") };
        stacks.forget(&[StackId(9)], &[], &[]);
        assert_eq!(stacks.id(9), None);
        assert!(matches!(events(&mut stacks, 9, &record)[..], [Event::Stack { .. }]), "its frame is known");
        stacks.forget(&[StackId(9)], &[frame], &[]);
        assert!(matches!(events(&mut stacks, 9, &record)[..], [Event::Frame { .. }, Event::Stack { .. }]));
    }

    #[test]
    fn functions_of_a_wait_are_named_while_it_is_recorded() {
        let pid = std::process::id();
        let (mut stacks, mut known) = (Stacks::default(), KnownProcesses::default());
        known.process(pid, 3);
        let (in_libc, code) = (code_of_libc(), events as fn(&mut Stacks, u64, &stack_record) -> Vec<Event>);
        let (own, other) = (code as usize as u64, code_of_libc as fn() -> u64 as usize as u64);
        for (id, addresses) in
            [(1, [in_libc, own + 4]), (2, [in_libc + 64, own + 8]), (3, [in_libc, other + 4])]
        {
            let mut record = stack_record { tgid: pid, exec_id: 3, frames: 2, ..stack_record::default() };
            record.address[..2].copy_from_slice(&addresses);
            events_with(&mut stacks, &mut known, id, &record);
            assert_eq!(stacks.waits_mut().place(id), None, "it has no names yet");
        }
        stacks.name_waits(&mut |id| known.processes.module_file(id));
        let [one, same, different] = [1, 2, 3].map(|id| stacks.waits_mut().place(id).expect("names"));
        assert_eq!(one, same, "wherever in its functions it is");
        assert_ne!(one, different);
    }

    #[test]
    fn naming_becomes_rarer() {
        let mut schedule = Schedule::default();
        let due: Vec<u32> = (1..=100).filter(|_| schedule.is_due(1)).collect();
        assert_eq!(due, [1, 2, 4, 8, 16, 32, 64, 96]);
        let mut schedule = Schedule::default();
        let due: Vec<u32> = (1..=20).filter(|_| schedule.is_due(5)).map(|turn| 5 * turn).collect();
        assert_eq!(due, [5, 10, 20, 35, 65, 100], "with several seconds in one flush");
    }

    #[test]
    fn own_code_is_named_from_its_own_mappings() {
        let pid = std::process::id();
        let (mut stacks, mut known) = (Stacks::default(), KnownProcesses::default());
        known.process(pid, 3);
        let mut record = stack_record { tgid: pid, exec_id: 3, frames: 1, ..stack_record::default() };
        record.address[0] = events as fn(&mut Stacks, u64, &stack_record) -> Vec<Event> as usize as u64;
        let emitted = events_with(&mut stacks, &mut known, 1, &record);
        assert!(matches!(emitted[0], Event::Module { .. }), "{emitted:?}");
        let mut names = Vec::new();
        stacks.name_all(&mut |id| known.processes.module_file(id), &mut |event| {
            if let Event::Symbol { lines, .. } = event {
                names.extend(lines.into_iter().filter_map(|line| line.symbol));
            }
        });
        // Debug information with lines alone has the last part of a path.
        assert!(names.iter().any(|name| name.rsplit("::").next() == Some("events")), "{names:?}");
    }

    #[test]
    fn frames_of_an_owner_without_time_are_named_later_and_those_of_others_now() {
        let folder = std::env::temp_dir().join(format!("wallprof-naming-{}", std::process::id()));
        std::fs::copy("/proc/self/exe", &folder).expect("a copy");
        let is_root = std::os::unix::fs::chown(&folder, Some(1000), None).is_ok();
        let foreign = Arc::new(std::fs::File::open(&folder).expect("a file"));
        std::fs::remove_file(&folder).expect("removed");
        if !is_root {
            let test = "frames_of_an_owner_without_time_are_named_later_and_those_of_others_now";
            return wallprof_testkit::skip(test, "giving a file to another user takes root");
        }
        let own = Arc::new(std::fs::File::open("/proc/self/exe").expect("a file"));
        let module = Module { path: "/x".into(), build_id: None };
        let mut files = |id: ModuleId| {
            let file = if id.0 == 0 { Arc::clone(&own) } else { Arc::clone(&foreign) };
            Some(ModuleFile { module: module.clone(), file: Some(file) })
        };
        let mut stacks = Stacks::default();
        stacks.emit_again();
        for id in 0..2 {
            let frame = Frame { kind: FrameKind::Native, module: Some(ModuleId(id)), address: 0x1000 };
            stacks.pending.push(FrameId(id), frame);
        }
        stacks.accounts.0.charge(Owner::User(1000), 10_000_000_000, Instant::now());
        let mut named = |stacks: &mut Stacks| {
            let (mut frames, mut losses) = (Vec::new(), Vec::new());
            stacks.name_by_symbols(&mut files, &mut |event| match event {
                Event::Symbol { frame, .. } => frames.push(frame.0),
                other => losses.push(other),
            });
            (frames, losses)
        };
        assert_eq!(named(&mut stacks), (vec![0], vec![Event::loss(Loss::NamesOverBudget, 1)]));
        assert_eq!(named(&mut stacks), (vec![], vec![]), "each file is counted once");
        assert!(stacks.unnamed_modules().contains(&ModuleId(1)), "its file is kept");
        stacks.accounts = NamingAccounts::default();
        assert_eq!(named(&mut stacks), (vec![1], vec![]));
        assert!(stacks.unnamed_modules().is_empty());
    }

    #[test]
    fn module_is_emitted_before_its_first_frame_and_again_when_it_was_forgotten() {
        let pid = std::process::id();
        let (mut stacks, mut known) = (Stacks::default(), KnownProcesses::default());
        known.process(pid, 3);
        let mut record = stack_record { tgid: pid, exec_id: 3, frames: 1, ..stack_record::default() };
        let mut emit = |stacks: &mut Stacks, id, address: u64| {
            record.address[0] = address;
            let events = events_with(stacks, &mut known, id, &record);
            let modules = events.iter().filter_map(|event| match event {
                Event::Module { id, .. } => Some(*id),
                _ => None,
            });
            modules.collect::<Vec<ModuleId>>()
        };
        let own = resident as fn() as usize as u64;
        let [module] = emit(&mut stacks, 1, own)[..] else { panic!("one module, of all that are mapped") };
        assert_eq!(stacks.unnamed_modules(), HashSet::from([module]));
        assert_eq!(emit(&mut stacks, 2, own + 1), []);
        stacks.forget(&[], &[], &[module]);
        assert_eq!(emit(&mut stacks, 3, own + 2), [module]);
    }

    #[test]
    fn names_are_emitted_once_to_a_forgetful_consumer() {
        let pid = std::process::id();
        let (mut stacks, mut known) = (Stacks::default(), KnownProcesses::default());
        stacks.emit_again();
        known.process(pid, 3);
        let mut record = stack_record { tgid: pid, exec_id: 3, frames: 1, ..stack_record::default() };
        record.address[0] = resident as fn() as usize as u64;
        events_with(&mut stacks, &mut known, 1, &record);
        let mut named = 0;
        for _ in 0..2 {
            let mut emit = |event| named += usize::from(matches!(event, Event::Symbol { .. }));
            stacks.name_all(&mut |id| known.processes.module_file(id), &mut emit);
        }
        assert_eq!((named, stacks.named.take_batch()), (1, None));
    }

    fn resident() {}

    /// An address in the code of this process's C library.
    fn code_of_libc() -> u64 {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings of this process");
        let is_code = |line: &&str| line.contains(" r-xp ") && line.contains("/libc.so");
        let line = maps.lines().find(is_code).expect("a mapping of libc");
        let start = line.split('-').next().expect("a range");
        u64::from_str_radix(start, 16).expect("an address") + 64
    }
}
