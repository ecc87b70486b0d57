// SPDX-License-Identifier: Apache-2.0
//! One live recording: from loaded probes to the last event.
//!
//! Owns when events are emitted: once a second, or once for several seconds, everything that belongs to past
//! seconds. Owns the order, too, since each event may only refer to earlier ones: processes, threads, stacks,
//! and then the rest.

mod aggregates;
mod cost;
#[cfg(test)]
mod fake;
mod flush;
mod spans;
#[cfg(test)]
mod timelines;
mod waits;

pub(crate) use spans::states_from;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use wallprof_meaning::waits::{Rules, by_peer, is_learned, lock_by_wakers};
use wallprof_model::event::PlaceVerdict;
use wallprof_model::{
    ClockAnchor, Event, Forgotten, Meaning, MonoNs, Reason, SpanBudgets, StackId, StallReason, ThreadRef,
    WordRules, WordSource,
};
use wallprof_probe::bpf::{constants as c, other_thread, stall_record};
use wallprof_probe::facts::files::HostFiles;
use wallprof_probe::{Inbox, KernelCounts, ProbeError, ProbeOptions, Probes, Targets, reasons};
use wallprof_symbols::{DebugFileServer, KernelRange, KernelSymbols};

use self::flush::Flush;
use crate::accounts::Accounts;
use crate::counters::Counters;
use crate::fault_files::FaultFiles;
use crate::file_locks::FileLocks;
use crate::follower::Follower;
use crate::guard::Guard;
use crate::interrupts::InterruptNames;
use crate::kernel_side::KernelSide;
use crate::known::KnownProcesses;
use crate::marks::Marks;
use crate::owner_samples::OwnerSamples;
use crate::peers::{Peers, peer_from_record};
use crate::places::{Places, Spot};
use crate::probed::{Probed, SpanKind};
use crate::quotas::Quotas;
use crate::stacks::Stacks;
use crate::stalls::{Lookup, latest_ns, timed_out};
use crate::threads::Threads;
use crate::thresholds::Controller;
use crate::titles::Titles;
use crate::waited_files::WaitedFiles;
use crate::words::{ReadWords, WordSources, Words};

const SECOND_NS: u64 = 1_000_000_000;
/// A second is flushed this long after its end: by then events that were under way on other CPUs have been
/// counted.
const SETTLE_NS: u64 = 20_000_000;
/// A larger step of the wall clock gets an anchor of its own. Less is drift, which the anchors at both ends
/// cover.
const CLOCK_STEP_NS: u64 = 1_000_000;
/// When this many stalls, or spans of `--span`, are pending, they are flushed before the second ends.
const FLUSH_EARLY_RECORDS: usize = 20_000;
/// At the end of a recording, threads that have started to end get this long.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);

/// Why no recording could be made.
pub type SessionError = ProbeError;

/// Records that have arrived and are not emitted yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Whole seconds that are over.
    pub seconds: u64,
    pub stalls: u64,
    /// How late a thread was by the worst of the stalls in which it was not idle, ns.
    pub late_ns: u64,
    /// Runs of the probes.
    pub runs: u64,
}

/// What may stay pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deferred {
    /// Complete seconds.
    Seconds,
    /// Of complete seconds, the sums that the kernel side keeps in maps; and the seconds, too, while nobody is later than
    /// [`LITTLE_NS`].
    Sums,
}

const LITTLE_NS: u64 = 1_000_000;

/// A flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flushed {
    /// The time up to which the ledgers and stalls are emitted.
    pub until: MonoNs,
    /// Seconds since the flush before.
    pub seconds: u64,
    /// Whether the sums of the kernel side's maps are emitted up to there, too.
    pub sums: bool,
}

/// The worst lateness of the first pending stalls. Others are appended until a flush takes all. The meaning of
/// a wait changes only during a flush, so that the lateness of a stall stays what it was.
#[derive(Default)]
struct Latest {
    stalls: usize,
    ns: u64,
}

/// Armed probes and everything that is known so far.
pub struct Session<K: KernelSide = Probes> {
    kernel: K,
    min_stall_ns: u64,
    start: MonoNs,
    /// The process that becomes the recorded command.
    held: Option<u32>,
    clock: ClockAnchor,
    /// CLOCK_MONOTONIC, ns: all seconds up to here are emitted.
    flushed_until: u64,
    accounts: Accounts,
    threads: Threads,
    stacks: Stacks,
    follower: Follower,
    names: InterruptNames,
    fault_files: FaultFiles,
    waited_files: WaitedFiles,
    owner_samples: OwnerSamples,
    peers: Peers,
    file_locks: FileLocks,
    titles: Option<Titles>,
    places: Places,
    marks: Marks,
    probed: Probed,
    budgets: SpanBudgets,
    words: ReadWords,
    quotas: Quotas<HostFiles>,
    controller: Controller,
    guard: Guard,
    /// The time slice of guarded CPUs up to which noise is emitted.
    noise_slice: u64,
    counters: Option<Counters>,
    /// Records that have arrived and are not emitted yet.
    pending: Inbox,
    /// How late threads were by the pending stalls.
    latest: Latest,
    /// The time from which the kernel side sends each second of a thread, if it does.
    seconds_from: Option<u64>,
    /// The meaning of waits for what their own waiters hand on.
    lock: Arc<Meaning>,
    /// Sites of waits that seemed to be for a lock, and are for none: the kernel side does not know that yet.
    no_locks: Vec<u64>,
    /// Waits that were emitted while they were open, by thread.
    open: HashMap<u32, stall_record>,
    counts: KernelCounts,
    cpu_ns: u64,
    paused: bool,
}

impl Session<Probes> {
    /// Loads and attaches everything, and reads the mappings of the recorded processes. Nothing is counted
    /// yet. Files that are `expected` to be mapped soon are read, too.
    /// `rules` say which words in memory are read with the waits.
    pub fn load(
        options: &ProbeOptions,
        expected: Vec<PathBuf>,
        rules: Arc<dyn WordRules>,
    ) -> Result<Self, SessionError> {
        let (mut probes, code) = Probes::load(options)?;
        let mut known = KnownProcesses::default();
        known.charge_nothing();
        if !options.targets.names().is_empty() {
            known.keep_untracked();
        }
        probes.snapshot(|record| {
            // By any thread: the first one may have ended.
            if record.kernel_thread == 0 {
                known.process(record.tgid, record.exec_id);
            }
        })?;
        known.start_charging();
        let sources = Arc::new(WordSources::default());
        let words = Words::new(Arc::clone(&rules), Arc::clone(&sources));
        let held = match options.targets {
            Targets::Command(pid) => Some(pid),
            _ => None,
        };
        let follower = Follower::start(code, known, expected, words, held)
            .map_err(|error| ProbeError::Reading { what: "news about mappings", error })?;
        let guard = Guard::new(&options.guarded);
        let mut session = Session::new(probes, follower, guard, options.min_stall_ns);
        session.accounts.set_unsampled(options.sample_hz == 0);
        let words = ReadWords { rules: Some(rules), sources };
        Ok(Session { held, counters: Some(Counters::new()), titles: Titles::start(), words, ..session })
    }

    /// Names kernel frames, and gives the kernel side the functions whose sleepers have a reason. Before
    /// arming. Without symbols kernel frames have no names.
    pub fn set_kernel_symbols(&mut self, symbols: Arc<KernelSymbols>) {
        self.kernel.set_sites(&sites(&symbols));
        self.kernel.set_task_softirqs(&kernel_text(&symbols, reasons::TASK_SOFTIRQS));
        self.kernel.set_register_writers(&kernel_text(&symbols, reasons::REGISTER_WRITERS));
        self.guard.set_kernel_symbols(Arc::clone(&symbols));
        self.stacks.set_kernel_symbols(symbols);
    }
}

impl<K: KernelSide> Session<K> {
    fn new(kernel: K, follower: Follower, guard: Guard, min_stall_ns: u64) -> Self {
        let clock = kernel.clock();
        Session {
            kernel,
            min_stall_ns,
            start: clock.mono,
            held: None,
            clock,
            flushed_until: clock.mono.0,
            accounts: Accounts::default(),
            threads: Threads::default(),
            stacks: Stacks::default(),
            follower,
            names: InterruptNames::default(),
            fault_files: FaultFiles::default(),
            waited_files: WaitedFiles::default(),
            owner_samples: OwnerSamples::default(),
            peers: Peers::default(),
            file_locks: FileLocks::default(),
            titles: None,
            places: Places::default(),
            marks: Marks::default(),
            probed: Probed::default(),
            budgets: SpanBudgets::new(),
            words: ReadWords::default(),
            quotas: Quotas::new(HostFiles, clock.mono),
            controller: Controller::new(min_stall_ns),
            guard,
            noise_slice: 0,
            counters: None,
            pending: Inbox::default(),
            latest: Latest::default(),
            seconds_from: None,
            lock: lock_by_wakers(),
            no_locks: Vec::new(),
            open: HashMap::new(),
            counts: KernelCounts::default(),
            cpu_ns: 0,
            paused: false,
        }
    }

    /// Rules about waits, which go before what is learned of them. Before arming.
    pub fn set_rules(&mut self, rules: Arc<Rules>) {
        self.stacks.waits_mut().set_rules(rules);
    }

    /// Spans that last longer than the budget of their kind are emitted one by one. Before arming.
    pub fn set_budgets(&mut self, budgets: SpanBudgets) {
        self.budgets = budgets;
    }

    /// What the spans of each `--span` are. Before arming.
    pub fn set_span_kinds(&mut self, kinds: Vec<SpanKind>) {
        self.probed.set_kinds(kinds);
    }

    /// Numbers of `--span` whose probes were removed since the last call, because they were hit too often, with their
    /// hits a second.
    pub fn take_removed_spans(&mut self) -> Vec<(usize, u64)> {
        self.probed.take_removed()
    }

    /// Debug files that are not on this machine are downloaded, if they arrive in time.
    pub fn set_debug_server(&mut self, server: Arc<dyn DebugFileServer>) {
        self.stacks.set_debug_server(server);
    }

    /// While this is true no file is read for names.
    pub fn stop_naming_when(&mut self, stop: Arc<AtomicBool>) {
        self.stacks.stop_naming_when(stop);
    }

    /// Sets which threads may run on the guarded CPUs, by name. Before arming.
    pub fn allow(&mut self, allowed: Box<dyn Fn(&str) -> bool + Send>) {
        self.guard.allow(allowed);
    }

    /// Starts the recording and returns its start.
    pub fn arm(&mut self) -> MonoNs {
        self.clock = self.kernel.clock();
        self.start = self.kernel.arm(self.epoch_offset());
        self.flushed_until = self.start.0;
        self.start
    }

    /// Both clocks when the probes were loaded.
    pub fn clock(&self) -> ClockAnchor {
        self.clock
    }

    /// Emits the threads that exist at the start.
    pub fn emit_threads(&mut self, emit: &mut dyn FnMut(Event)) -> Result<(), SessionError> {
        emit(Event::Clock(self.clock));
        self.take_snapshot(emit)?;
        self.meet_sleepers(emit)?;
        self.follow_counters(emit);
        self.follow_marks();
        Ok(())
    }

    /// Reads the marks of programs, and tells the kernel side where threads have theirs.
    fn follow_marks(&mut self) {
        for (pid, exec_id) in self.follower.take_candidates() {
            self.marks.look_at(pid, exec_id);
        }
        self.marks.take(std::mem::take(&mut self.pending.marked));
        let changes = self.marks.follow(self.kernel.now().0);
        if !changes.is_empty() {
            self.kernel.set_mark_slots(&changes);
        }
    }

    /// Reads what has arrived. At the end of a second, emits everything that belongs to past seconds if
    /// `is_due` says so. Returns the time up to which everything is emitted, or `None` when nothing was
    /// flushed.
    ///
    /// Seconds that wait are emitted later exactly as they would have been emitted now. For that they wait
    /// only while the kernel side sends each second ([`Self::send_seconds`]), and never past a step of the
    /// wall clock, which gives them their numbers.
    pub fn drain(
        &mut self,
        is_due: &dyn Fn(&Pending) -> bool,
        emit: &mut dyn FnMut(Event),
    ) -> Result<Option<MonoNs>, SessionError> {
        Ok(self.drain_and_defer(Deferred::Seconds, is_due, emit)?.map(|flushed| flushed.until))
    }

    /// As [`Self::drain`], but emits ledgers and stalls of each second at its end, or of several at once while seconds may
    /// wait and nobody is late. Until `is_due`, the other sums of the kernel side (samples, latencies, interrupts, calls on other
    /// CPUs, busy periods) stay in its maps, which must have capacity for them: to walk their buckets takes as long as the
    /// rest of a flush.
    pub fn drain_ledgers(
        &mut self,
        is_due: &dyn Fn(&Pending) -> bool,
        emit: &mut dyn FnMut(Event),
    ) -> Result<Option<Flushed>, SessionError> {
        self.drain_and_defer(Deferred::Sums, is_due, emit)
    }

    fn drain_and_defer(
        &mut self,
        deferred: Deferred,
        is_due: &dyn Fn(&Pending) -> bool,
        emit: &mut dyn FnMut(Event),
    ) -> Result<Option<Flushed>, SessionError> {
        self.kernel.drain_rings(&mut self.pending)?;
        if self.paused {
            self.latest = Latest::default();
            self.pending.stalls.clear();
            self.pending.seconds.clear();
            self.pending.holder_samples.clear();
            self.pending.marked.clear();
            self.pending.probed.clear();
            return Ok(None);
        }
        self.kernel.follow_processes()?;
        self.follow_marks();
        self.follow_span_probes(emit)?;
        self.read_counters(emit);
        let now = self.kernel.now().0;
        let settled = now.saturating_sub(SETTLE_NS);
        self.emit_noise((settled + self.epoch_offset()) / c::GUARD_INTERVAL_NS, emit)?;
        let boundary = second_end(settled, self.epoch_offset());
        let has_many = self.pending.stalls.len().max(self.pending.probed.len()) >= FLUSH_EARLY_RECORDS;
        if boundary <= self.flushed_until && !has_many {
            return Ok(None);
        }
        let may_stay = !has_many
            && match deferred {
                Deferred::Seconds => self.may_wait(),
                // Sums of a thread come before its end.
                Deferred::Sums => self.pending.ended.is_empty() && self.clock_step().is_none(),
            };
        let pending = if may_stay { Some(self.pending(boundary)?) } else { None };
        let staying = pending.filter(|pending| !is_due(pending));
        let wait = |pending: &Pending| match deferred {
            Deferred::Seconds => true,
            Deferred::Sums => self.may_wait() && pending.late_ns < LITTLE_NS,
        };
        if staying.as_ref().is_some_and(wait) {
            return Ok(None);
        }
        let stays = staying.is_some();
        let seconds = self.seconds_until(boundary);
        let flush = Flush { sums: !stays, open_waits: true };
        self.flush(boundary.max(self.flushed_until), now, flush, emit)?;
        let file_of = &mut |id| self.follower.known().processes.module_file(id);
        if self.stacks.name_when_due(seconds, file_of, emit) {
            let unnamed = self.stacks.unnamed_modules();
            self.follower.known().processes.set_unnamed_modules(unnamed);
            self.emit_jit_names(emit);
        }
        Ok(Some(Flushed { until: MonoNs(self.flushed_until), seconds, sums: flush.sums }))
    }

    /// Emits the sums that [`Self::drain_ledgers`] has left in the kernel side's maps.
    pub fn emit_sums(&mut self, emit: &mut dyn FnMut(Event)) -> Result<(), SessionError> {
        if self.paused {
            return Ok(());
        }
        let second = ((self.flushed_until + self.epoch_offset()) / SECOND_NS) as u32;
        let now = self.kernel.now().0;
        self.emit_stacks(emit)?;
        let waits = self.emit_samples(second, now, emit)?;
        self.judge_waits(&waits, now);
        self.emit_aggregates(second, emit)?;
        self.emit_spans(second, emit)
    }

    /// Makes the kernel side send each second of a thread when it is over, so that seconds can wait; or ends
    /// that.
    pub fn send_seconds(&mut self, wanted: bool) {
        if wanted != self.seconds_from.is_some() {
            self.kernel.send_seconds(wanted);
            self.seconds_from = wanted.then(|| self.kernel.now().0);
        }
    }

    /// Whether the kernel side sent seconds already when the first pending second ended.
    fn may_wait(&self) -> bool {
        self.seconds_from.is_some_and(|from| from < self.flushed_until + SECOND_NS)
            && self.clock_step().is_none()
    }

    /// Seconds up to `boundary` that are not emitted yet.
    fn seconds_until(&self, boundary: u64) -> u64 {
        boundary.saturating_sub(self.flushed_until).div_ceil(SECOND_NS)
    }

    fn pending(&mut self, boundary: u64) -> Result<Pending, SessionError> {
        let (stalls, before) = (&self.pending.stalls, &self.latest);
        let late_ns = stalls[before.stalls..]
            .iter()
            .map(|record| latest_ns(record, self.min_stall_ns, self.meaning(record)))
            .fold(before.ns, u64::max);
        let stalls = stalls.len();
        self.latest = Latest { stalls, ns: late_ns };
        Ok(Pending {
            seconds: self.seconds_until(boundary),
            stalls: stalls as u64,
            late_ns,
            runs: self.kernel.runs()?.saturating_sub(self.counts.probe_runs),
        })
    }

    /// Recorded threads that have not ended, as of the last flush.
    pub fn living_threads(&self) -> usize {
        self.accounts.count()
    }

    /// Ends the recording, emits the rest and returns the recording's end.
    pub fn finish(mut self, emit: &mut dyn FnMut(Event)) -> Result<MonoNs, SessionError> {
        let end = if self.paused { MonoNs(self.flushed_until) } else { self.pause(emit)? };
        self.stacks.name_all(&mut |id| self.follower.known().processes.module_file(id), emit);
        self.follower.await_names();
        self.emit_jit_names(emit);
        emit(Event::Clock(self.kernel.clock()));
        self.emit_cost(emit)?;
        Ok(end)
    }

    /// Stops counting, and emits everything up to then. The probes stay attached. Returns the end.
    pub fn pause(&mut self, emit: &mut dyn FnMut(Event)) -> Result<MonoNs, SessionError> {
        self.await_exits();
        let mut open = Vec::new();
        self.kernel.open_waits(0, &mut |record| open.push(*record))?;
        let end = self.kernel.disarm();
        self.kernel.drain_rings(&mut self.pending)?;
        let boundary = second_end(end.0, self.epoch_offset());
        self.flush(boundary.max(self.flushed_until), end.0, Flush { sums: true, open_waits: false }, emit)?;
        self.flush_rest(open, end, emit)?;
        (self.paused, self.flushed_until) = (true, end.0);
        Ok(end)
    }

    /// Counts again after a pause and returns the start. Of the pause, only the ends of threads are emitted.
    pub fn resume(&mut self, emit: &mut dyn FnMut(Event)) -> Result<MonoNs, SessionError> {
        self.clock = self.kernel.clock();
        self.marks.pass_over();
        let start = self.kernel.arm(self.epoch_offset());
        self.marks.add_pause(self.flushed_until, start.0);
        emit(Event::Clock(self.clock));
        (self.paused, self.flushed_until) = (false, start.0);
        let offset = self.epoch_offset();
        for record in std::mem::take(&mut self.pending.ended) {
            self.accounts.end(&record, offset, emit);
        }
        self.accounts.resume(start.0);
        let mut living = HashSet::new();
        let mut seen = |key| {
            living.insert(key);
        };
        self.take_snapshot_of(&mut seen, emit)?;
        self.accounts.keep(&living);
        self.meet_sleepers(emit)?;
        Ok(start)
    }

    /// From now on the consumer may forget what was emitted. Old stacks are emitted again when they are used
    /// again.
    pub fn emit_again(&mut self) {
        self.stacks.emit_again();
    }

    /// The consumer has forgotten these: they are emitted again when they are used again.
    pub fn forget(&mut self, forgotten: &Forgotten) {
        self.threads.forget(&forgotten.threads);
        self.stacks.forget(&forgotten.stacks, &forgotten.frames, &forgotten.modules);
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// From now on waits and faults this long are stalls.
    pub fn set_min_stall(&mut self, min_stall_ns: u64) {
        self.min_stall_ns = min_stall_ns;
        self.latest = Latest::default();
        self.controller = Controller::new(min_stall_ns);
        self.kernel.set_min_stall(min_stall_ns);
        self.kernel.set_thresholds(min_stall_ns, min_stall_ns);
    }

    /// Where in which program a thread waits; `None` without a user stack, and before it has names.
    fn spot(&mut self, thread: u32, reason: Reason, user_stack: u64) -> Option<Spot> {
        let stack = self.stacks.waits_mut().place(user_stack)?;
        Some(Spot::new(self.threads.program_of(thread)?, reason, stack))
    }

    /// What a wait means by its word, or by the rule about its stacks; the user's rules go before words.
    fn by_word_or_rule(&self, record: &stall_record, ruled: Option<&Arc<Meaning>>) -> Option<Arc<Meaning>> {
        match self.words.of_stall(record) {
            Some(word) => Some(word.beside(ruled).clone()),
            None => ruled.cloned(),
        }
    }

    /// From now on one sample in `stride` takes its stacks, and each wait from `stack_ns` on.
    pub fn set_pace(&mut self, stride: u32, stack_ns: u64) {
        self.kernel.set_pace(stride, stack_ns);
    }

    /// On a busy machine a process can be gone while one of its threads still waits for a CPU to exit on.
    /// Without its last record, the thread would seem to do for ever what it did last.
    fn await_exits(&self) {
        let deadline = Instant::now() + EXIT_TIMEOUT;
        while self.kernel.ending_threads() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn epoch_offset(&self) -> u64 {
        self.clock.epoch.0.saturating_sub(self.clock.mono.0)
    }

    fn clock_step(&self) -> Option<ClockAnchor> {
        let anchor = self.kernel.clock();
        let offset = anchor.epoch.0.saturating_sub(anchor.mono.0);
        (offset.abs_diff(self.epoch_offset()) > CLOCK_STEP_NS).then_some(anchor)
    }
}

impl<K: KernelSide> Lookup for Session<K> {
    fn stack(&self, id: u64) -> Option<StackId> {
        self.stacks.id(id)
    }

    fn is_interrupt(&self, id: u64) -> bool {
        self.stacks.is_interrupt(id)
    }

    fn reference(&self, other: &other_thread) -> ThreadRef {
        self.threads.reference(other)
    }

    fn owner(&self, waiting: u32, ns_tid: u32) -> Option<ThreadRef> {
        self.threads.owner(self.threads.pid_of(waiting)?, ns_tid)
    }

    fn meaning(&self, record: &stall_record) -> Option<Arc<Meaning>> {
        let waits = self.stacks.waits();
        let ruled = waits.meaning(record.user_stack, record.kernel_stack);
        if let Some(meaning) = self.by_word_or_rule(record, ruled) {
            return Some(meaning);
        }
        let blocked = Reason::from_code(record.reason).map(StallReason::Blocked);
        if let Some(meaning) = blocked
            .zip(peer_from_record(record))
            .and_then(|(why, peer)| by_peer(why, &peer, timed_out(record)))
        {
            return Some(meaning);
        }
        let reason = learned_reason(record)?;
        let stack = waits.known_place(record.user_stack)?;
        let spot = Spot::new(self.threads.program_of(record.key)?, reason, stack);
        (self.places.verdict_of(spot) == PlaceVerdict::NotIdle).then(|| Arc::clone(&self.lock))
    }

    fn word_source(&self, definition: u32) -> Option<Arc<WordSource>> {
        self.words.sources.get(definition)
    }
}

/// The reason of a wait that can be for a lock which the kernel does not know, or for work.
fn learned_reason(record: &stall_record) -> Option<Reason> {
    let blocked = u64::from(record.flags) & (c::STALL_PREEMPTED | c::STALL_FAULT) == 0;
    Reason::from_code(record.reason).filter(|reason| blocked && is_learned(*reason))
}

/// The end of the last whole second, by the wall clock, that is not after `now`.
fn second_end(now: u64, epoch_offset: u64) -> u64 {
    let epoch = now.saturating_add(epoch_offset);
    (epoch - epoch % SECOND_NS).saturating_sub(epoch_offset)
}

/// Kernel text whose sleepers have a reason, by address. A function that two patterns match has the reason of the
/// first.
pub(crate) fn sites(symbols: &KernelSymbols) -> Vec<(u64, u64, u8)> {
    let patterns = reasons::KERNEL_SITES.map(|(pattern, _)| pattern);
    let mut ranges = symbols.text_ranges(&patterns);
    // Two names of one function are two of these, and the last patterns are left out where there are too many.
    ranges.sort_by_key(|(number, range)| (range.start, *number));
    ranges.dedup_by_key(|(_, range)| range.start);
    ranges.sort_by_key(|(number, _)| *number);
    ranges.truncate(c::MAX_SITES as usize);
    ranges.sort_by_key(|(_, range)| range.start);
    let site = |(number, range): (usize, KernelRange)| {
        (range.start, range.end, reasons::KERNEL_SITES[number].1.code())
    };
    ranges.into_iter().map(site).collect()
}

/// The text of these kernel functions, ascending. Adjacent functions are one range: the probes have room for few.
fn kernel_text(symbols: &KernelSymbols, patterns: &[&str]) -> Vec<(u64, u64)> {
    let ranges = symbols.text_ranges(patterns).into_iter().map(|(_, range)| (range.start, range.end));
    joined(ranges.collect())
}

fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match joined.last_mut() {
            Some((_, last)) if start <= *last => *last = end.max(*last),
            _ => joined.push((start, end)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_end_by_the_wall_clock() {
        assert_eq!(second_end(5_300_000_000, 0), 5_000_000_000);
        assert_eq!(second_end(5_300_000_000, 800_000_000), 5_200_000_000);
    }

    #[test]
    fn adjacent_functions_are_one_range() {
        let ranges = vec![(70, 80), (10, 20), (20, 35), (20, 35), (40, 50), (45, 48)];
        assert_eq!(joined(ranges), [(10, 35), (40, 50), (70, 80)]);
    }
}
