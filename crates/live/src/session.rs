//! One live recording: from loaded probes to the last event.
//!
//! Once a second, or once for a few of them, everything that belongs to past seconds is told, in the order in which it can
//! be understood: what happened to processes, threads, stacks, and then what refers to them.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use wallprof_model::event::{
    CrossCallDelta, InterruptDelta, KernelWork, LatencyDelta, OffCpuDelta, SampleDelta, Stall, WakerStacks,
    Weighted, WorkKind,
};
use wallprof_model::histogram::Cell;
use wallprof_model::{
    ClockAnchor, EpochSecond, Event, FrameId, Metric, MonoNs, Reason, StackId, StallReason, State, ThreadKey,
    ThreadRef,
};
use wallprof_probe::bpf::{
    constants as c, cross_call_key, cross_call_value, interrupt_key, latency_value, other_thread, sample_key,
    sample_value, second_record, stall_record, thread_record, work_record,
};
use wallprof_probe::facts::files::HostFiles;
use wallprof_probe::{KernelCounts, LOSS_NAMES, ProbeError, ProbeOptions, Probes, Targets, clock, reasons};
use wallprof_symbols::{DebugFileServer, KernelSymbols};

use crate::accounts::Accounts;
use crate::counters::Counters;
use crate::descriptors;
use crate::fault_files::FaultFiles;
use crate::follower::Follower;
use crate::guard::Guard;
use crate::interrupts::InterruptNames;
use crate::known::KnownProcesses;
use crate::quotas::Quotas;
use crate::stacks::Stacks;
use crate::stalls::{Lookup, latest_ns, stalls_from_record};
use crate::threads::Threads;
use crate::thresholds::Controller;
use crate::waited_files::WaitedFiles;

const SECOND_NS: u64 = 1_000_000_000;
/// How long after a second's end it is told: events under way on other CPUs have been counted by then.
const SETTLE_NS: u64 = 20_000_000;
/// A wait this long is told before it ends.
const OPEN_AFTER_NS: u64 = 1_000_000_000;
/// A step of the wall clock worth an anchor; less is drift, and the anchors at both ends tell that.
const CLOCK_STEP_NS: u64 = 1_000_000;
/// Stalls that arrive faster than once a second can take are told sooner.
const EARLY: usize = 20_000;

/// How long threads that have begun to end are waited for at the end of a recording.
const ENDS_TAKE: Duration = Duration::from_millis(500);

/// Why no recording could be made.
pub type SessionError = ProbeError;

/// What has come and is not told yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untold {
    /// Whole seconds that are over.
    pub seconds: u64,
    pub stalls: u64,
    /// How late a thread was by the worst of the stalls that it did not choose.
    pub late_ns: u64,
    /// Runs of the probes.
    pub runs: u64,
}

/// Armed probes and everything that was understood so far.
pub struct Session {
    probes: Probes,
    min_stall_ns: u64,
    start: MonoNs,
    /// The process that becomes the recorded command.
    held: Option<u32>,
    clock: ClockAnchor,
    told_until: u64,
    accounts: Accounts,
    threads: Threads,
    stacks: Stacks,
    follower: Follower,
    names: InterruptNames,
    fault_files: FaultFiles,
    waited_files: WaitedFiles,
    quotas: Quotas<HostFiles>,
    controller: Controller,
    guard: Guard,
    /// Up to which slice guests were told.
    guests_told: u64,
    counters: Counters,
    ended: Vec<thread_record>,
    stalls: Vec<stall_record>,
    works: Vec<work_record>,
    seconds: Vec<second_record>,
    /// Since when the kernel side sends each second of a thread, if it does.
    seconds_from: Option<u64>,
    /// Waits told as open, by thread.
    open: HashMap<u32, stall_record>,
    counts: KernelCounts,
    cpu_ns: u64,
    paused: bool,
}

impl Session {
    /// Loads and attaches everything, and reads where the code of the recorded processes lies. Nothing is counted yet.
    /// Files that are `expected` to be mapped are read, too.
    pub fn load(options: &ProbeOptions, expected: Vec<PathBuf>) -> Result<Self, SessionError> {
        let (mut probes, code) = Probes::load(options)?;
        let mut known = KnownProcesses::default();
        if !options.targets.names().is_empty() {
            known.remember_strangers();
        }
        probes.snapshot(|record| {
            if is_user_process(record) {
                known.process(record.tgid, record.exec_id);
            }
        })?;
        let follower = Follower::start(code, known, expected)
            .map_err(|error| ProbeError::Reading { what: "news about mappings", error })?;
        let min_stall_ns = options.min_stall_ns;
        let clock = clock::anchor();
        Ok(Session {
            probes,
            min_stall_ns,
            start: clock.mono,
            held: match options.targets {
                Targets::Command(pid) => Some(pid),
                _ => None,
            },
            clock,
            told_until: clock.mono.0,
            accounts: Accounts::default(),
            threads: Threads::default(),
            stacks: Stacks::default(),
            follower,
            names: InterruptNames::default(),
            fault_files: FaultFiles::default(),
            waited_files: WaitedFiles::default(),
            quotas: Quotas::new(HostFiles, clock.mono),
            controller: Controller::new(min_stall_ns),
            guard: Guard::new(&options.guarded),
            guests_told: 0,
            counters: Counters::new(),
            ended: Vec::new(),
            stalls: Vec::new(),
            works: Vec::new(),
            seconds: Vec::new(),
            seconds_from: None,
            open: HashMap::new(),
            counts: KernelCounts::default(),
            cpu_ns: 0,
            paused: false,
        })
    }

    /// Names kernel frames, and tells the kernel side what sleepers in some functions wait for. Before arming; without
    /// them kernel frames stay without names.
    pub fn set_kernel_symbols(&mut self, symbols: Arc<KernelSymbols>) {
        self.probes.set_sites(&sites(&symbols));
        self.probes.set_task_softirqs(&task_softirqs(&symbols));
        self.guard.set_kernel_symbols(Arc::clone(&symbols));
        self.stacks.set_kernel_symbols(symbols);
    }

    /// Debug files that are on no disk come from servers, if they come in time.
    pub fn set_debug_server(&mut self, server: Arc<dyn DebugFileServer>) {
        self.stacks.set_debug_server(server);
    }

    /// While this is true no file is read for names.
    pub fn stop_naming_when(&mut self, stop: Arc<AtomicBool>) {
        self.stacks.stop_naming_when(stop);
    }

    /// Says by their names which threads the guarded CPUs are kept for. Before arming.
    pub fn allow(&mut self, allowed: Box<dyn Fn(&str) -> bool + Send>) {
        self.guard.allow(allowed);
    }

    /// Starts the recording; its first moment.
    pub fn arm(&mut self) -> MonoNs {
        self.clock = clock::anchor();
        self.start = self.probes.arm(self.epoch_offset());
        self.told_until = self.start.0;
        self.start
    }

    /// Both clocks when the probes were loaded.
    pub fn clock(&self) -> ClockAnchor {
        self.clock
    }

    /// Tells the threads there are at the start.
    pub fn look_around(&mut self, tell: &mut dyn FnMut(Event)) -> Result<(), SessionError> {
        tell(Event::Clock(self.clock));
        self.take_snapshot(tell)?;
        self.follow_counters(tell);
        Ok(())
    }

    /// Takes in what has come. At a second's end, if that is due by what has come, tells what belongs to the seconds that are
    /// over; the time up to which everything is told.
    ///
    /// Seconds that wait are told later as they would have been now: they wait only since the kernel side sends what it
    /// knows of each ([`Self::send_seconds`]), and not past a step of the wall clock, by which they are named.
    pub fn take_in(
        &mut self,
        is_due: &dyn Fn(&Untold) -> bool,
        tell: &mut dyn FnMut(Event),
    ) -> Result<Option<MonoNs>, SessionError> {
        self.read_rings()?;
        if self.paused {
            self.stalls.clear();
            self.seconds.clear();
            return Ok(None);
        }
        self.probes.follow_processes()?;
        self.counters.read_when_due(&self.probes, tell);
        let now = clock::mono_now().0;
        self.tell_guests((now.saturating_sub(SETTLE_NS) + self.epoch_offset()) / c::GUARD_SLICE_NS, tell)?;
        let boundary = second_end(now.saturating_sub(SETTLE_NS), self.epoch_offset());
        let has_many = self.stalls.len() >= EARLY;
        if boundary <= self.told_until && !has_many {
            return Ok(None);
        }
        if self.may_wait() && !has_many && !is_due(&self.untold(boundary)?) {
            return Ok(None);
        }
        let seconds = self.seconds_over(boundary);
        self.tell_second(boundary.max(self.told_until), now, tell)?;
        if self.stacks.name_when_due(seconds, &mut |id| self.follower.known().processes.module_file(id), tell)
        {
            self.tell_run_time_names(tell);
        }
        Ok(Some(MonoNs(self.told_until)))
    }

    /// From now on the kernel side sends each second of a thread when it is over, so that seconds can wait to be told; or
    /// it does no longer.
    pub fn send_seconds(&mut self, wanted: bool) {
        if wanted != self.seconds_from.is_some() {
            self.probes.tell_seconds(wanted);
            self.seconds_from = wanted.then(|| clock::mono_now().0);
        }
    }

    /// Whether all seconds that are not told yet ended when the kernel side sent them already.
    fn may_wait(&self) -> bool {
        self.seconds_from.is_some_and(|from| from < self.told_until + SECOND_NS)
            && self.clock_step().is_none()
    }

    /// How many seconds up to `boundary` are not told yet.
    fn seconds_over(&self, boundary: u64) -> u64 {
        boundary.saturating_sub(self.told_until).div_ceil(SECOND_NS)
    }

    fn untold(&self, boundary: u64) -> Result<Untold, SessionError> {
        let late = self.stalls.iter().map(|record| latest_ns(record, self.min_stall_ns));
        Ok(Untold {
            seconds: self.seconds_over(boundary),
            stalls: self.stalls.len() as u64,
            late_ns: late.max().unwrap_or(0),
            runs: self.probes.runs()?.saturating_sub(self.counts.probe_runs),
        })
    }

    /// How many of the recorded threads have not ended, as far as it is known: a second behind.
    pub fn living_threads(&self) -> usize {
        self.accounts.count()
    }

    /// Ends the recording and tells the rest. Returns its last moment.
    pub fn finish(mut self, tell: &mut dyn FnMut(Event)) -> Result<MonoNs, SessionError> {
        let end = if self.paused { MonoNs(self.told_until) } else { self.pause(tell)? };
        self.stacks.name_all(&mut |id| self.follower.known().processes.module_file(id), tell);
        self.tell_run_time_names(tell);
        tell(Event::Clock(clock::anchor()));
        self.tell_cost(tell)?;
        Ok(end)
    }

    /// Stops counting, and tells everything up to then; the probes stay where they are. Returns the last moment.
    pub fn pause(&mut self, tell: &mut dyn FnMut(Event)) -> Result<MonoNs, SessionError> {
        self.await_ends();
        let end = self.probes.disarm();
        self.read_rings()?;
        let boundary = second_end(end.0, self.epoch_offset());
        self.tell_second(boundary.max(self.told_until), end.0, tell)?;
        lose_stalls(std::mem::take(&mut self.stalls).len() as u64, tell);
        self.tell_open_waits(self.min_stall_ns, tell)?;
        self.tell_waits_still_open(end, tell);
        self.tell_aggregates(u32::MAX, tell)?;
        self.tell_guests(u64::MAX, tell)?;
        self.accounts.tell(end.0, self.epoch_offset(), tell);
        (self.paused, self.told_until) = (true, end.0);
        Ok(end)
    }

    /// Counts again after a pause, of which nothing is told but who ended in it. Returns the first moment.
    pub fn resume(&mut self, tell: &mut dyn FnMut(Event)) -> Result<MonoNs, SessionError> {
        self.clock = clock::anchor();
        let start = self.probes.arm(self.epoch_offset());
        tell(Event::Clock(self.clock));
        (self.paused, self.told_until) = (false, start.0);
        let offset = self.epoch_offset();
        for record in std::mem::take(&mut self.ended) {
            self.accounts.end(&record, offset, tell);
        }
        self.accounts.resume(start.0);
        let mut living = HashSet::new();
        let mut seen = |key| {
            living.insert(key);
        };
        self.take_snapshot_of(&mut seen, tell)?;
        self.accounts.keep(&living, tell);
        Ok(start)
    }

    /// What is told may be forgotten by those who hear it.
    pub fn tell_again(&mut self) {
        self.stacks.tell_again();
    }

    /// They have forgotten these: what comes again is told again.
    pub fn forget(&mut self, threads: &[ThreadKey], stacks: &[StackId], frames: &[FrameId]) {
        self.threads.forget(threads);
        self.stacks.forget(stacks, frames);
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// From now on waits and faults this long are stalls.
    pub fn set_min_stall(&mut self, min_stall_ns: u64) {
        self.min_stall_ns = min_stall_ns;
        self.controller = Controller::new(min_stall_ns);
        self.probes.set_min_stall(min_stall_ns);
        self.probes.set_thresholds(min_stall_ns, min_stall_ns);
    }

    /// From now on one sample in `stride` takes its stacks, and waits from `stack_ns` on do one by one.
    pub fn set_pace(&mut self, stride: u32, stack_ns: u64) {
        self.probes.set_pace(stride, stack_ns);
    }

    /// On a busy machine a process can be gone while a thread of it still waits for the CPU to end on: without its last
    /// record it would seem to do for ever what it did when it was last seen.
    fn await_ends(&self) {
        let deadline = Instant::now() + ENDS_TAKE;
        while self.probes.ending_threads() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn epoch_offset(&self) -> u64 {
        self.clock.epoch.0.saturating_sub(self.clock.mono.0)
    }

    fn read_rings(&mut self) -> Result<(), SessionError> {
        let (ended, stalls, works) = (&mut self.ended, &mut self.stalls, &mut self.works);
        let seconds = &mut self.seconds;
        self.probes.poll(Duration::ZERO, |inbox| {
            ended.append(&mut inbox.ended);
            stalls.append(&mut inbox.stalls);
            works.append(&mut inbox.works);
            seconds.append(&mut inbox.seconds);
        })
    }

    fn tell_second(
        &mut self,
        boundary: u64,
        now: u64,
        tell: &mut dyn FnMut(Event),
    ) -> Result<(), SessionError> {
        self.follow_cpus(tell)?;
        let ended = std::mem::take(&mut self.ended);
        self.take_snapshot(tell)?;
        for record in &ended {
            self.threads.update(record, tell);
        }
        self.take_seconds()?;
        self.tell_stacks(tell)?;
        self.tell_stalls(tell);
        self.tell_works(tell);
        self.quotas.tell(MonoNs(now), tell);
        self.tell_open_waits(OPEN_AFTER_NS, tell)?;
        self.tell_aggregates(((boundary + self.epoch_offset()) / SECOND_NS) as u32, tell)?;
        let offset = self.epoch_offset();
        for record in &ended {
            self.accounts.end(record, offset, tell);
            self.open.remove(&record.key);
            self.threads.end(record.key, now);
        }
        self.threads.forget_ended(now);
        self.accounts.tell(boundary, offset, tell);
        self.tell_cost(tell)?;
        self.told_until = boundary.max(self.told_until).min(now);
        self.follow_clock(tell);
        self.follow_counters(tell);
        Ok(())
    }

    /// Threads may have closed seconds after the rings were read and before the snapshot came to them.
    fn take_seconds(&mut self) -> Result<(), SessionError> {
        if self.seconds_from.is_some() {
            self.read_rings()?;
        }
        for second in std::mem::take(&mut self.seconds) {
            self.accounts.close_second(&second);
        }
        Ok(())
    }

    fn follow_counters(&mut self, tell: &mut dyn FnMut(Event)) {
        self.counters.follow(self.accounts.processes(), tell);
        self.counters.read_when_due(&self.probes, tell);
    }

    /// A step of the wall clock is a row of its own, and moves the seconds: after those before it were told by their names.
    fn follow_clock(&mut self, tell: &mut dyn FnMut(Event)) {
        if let Some(anchor) = self.clock_step() {
            self.clock = anchor;
            self.probes.set_epoch_offset(self.epoch_offset());
            tell(Event::Clock(anchor));
        }
    }

    fn clock_step(&self) -> Option<ClockAnchor> {
        let anchor = clock::anchor();
        let offset = anchor.epoch.0.saturating_sub(anchor.mono.0);
        (offset.abs_diff(self.epoch_offset()) > CLOCK_STEP_NS).then_some(anchor)
    }

    /// A CPU that comes online is recorded, too; until now it was not, but for its switches.
    fn follow_cpus(&mut self, tell: &mut dyn FnMut(Event)) -> Result<(), SessionError> {
        let came = self.probes.follow_cpus()?;
        if came > 0 {
            self.follower.follow_cpus();
            tell(Event::Loss { reason: "cpus_came_online".into(), count: came as u64 });
        }
        Ok(())
    }

    fn take_snapshot(&mut self, tell: &mut dyn FnMut(Event)) -> Result<(), SessionError> {
        self.take_snapshot_of(&mut |_| {}, tell)
    }

    /// Takes the threads with news; the first snapshot after arming has all of them.
    fn take_snapshot_of(
        &mut self,
        seen: &mut dyn FnMut(u32),
        tell: &mut dyn FnMut(Event),
    ) -> Result<(), SessionError> {
        let (accounts, threads, quotas) = (&mut self.accounts, &mut self.threads, &mut self.quotas);
        let mut known = self.follower.known();
        self.probes.snapshot(|record| {
            seen(record.key);
            if accounts.update(record) && is_user_process(record) {
                known.process(record.tgid, record.exec_id);
            }
            if record.kernel_thread == 0 {
                quotas.meet(record.tgid);
            }
            threads.update(record, tell);
        })
    }

    fn tell_stacks(&mut self, tell: &mut dyn FnMut(Event)) -> Result<(), SessionError> {
        let stacks = &mut self.stacks;
        let mut known = self.follower.known();
        self.probes.drain_stacks(|id, record| stacks.tell(id, record, &mut known, tell))
    }

    fn tell_stalls(&mut self, tell: &mut dyn FnMut(Event)) {
        let (mut voluntary, mut others) = (0, 0);
        for record in std::mem::take(&mut self.stalls) {
            self.open.remove(&record.key);
            if self.threads.pid_of(record.key).is_none() {
                // A brief thread that ended after the rings were read and before the snapshot: its own record
                // comes with the next reading.
                if record.end >= self.told_until {
                    self.stalls.push(record);
                } else {
                    lose_stalls(1, tell);
                }
                continue;
            }
            for stall in self.stalls_of(&record) {
                if stall.voluntary {
                    voluntary += 1
                } else {
                    others += 1
                }
                tell(Event::Stall(Box::new(stall)));
            }
        }
        let next = self.controller.next(voluntary, others);
        self.probes.set_thresholds(next.stall_ns, next.voluntary_ns);
    }

    /// What the kernel did for recorded threads.
    fn tell_works(&mut self, tell: &mut dyn FnMut(Event)) {
        for record in std::mem::take(&mut self.works) {
            if self.threads.pid_of(record.key).is_some()
                && let Some(work) = work_from_record(&record)
            {
                tell(Event::KernelWork(work));
            }
        }
    }

    /// Waits that have not ended: told when they are a second old.
    fn tell_open_waits(
        &mut self,
        older_than_ns: u64,
        tell: &mut dyn FnMut(Event),
    ) -> Result<(), SessionError> {
        let mut records = Vec::new();
        self.probes.open_waits(older_than_ns, |record| records.push(*record))?;
        if records.is_empty() {
            return Ok(());
        }
        self.tell_stacks(tell)?;
        for record in records {
            if self.threads.pid_of(record.key).is_some() {
                self.open.insert(record.key, record);
                self.tell_stall(&record, tell);
            }
        }
        Ok(())
    }

    /// The waits that were told as open and have not ended by the end of the recording: told again, up to there.
    fn tell_waits_still_open(&mut self, end: MonoNs, tell: &mut dyn FnMut(Event)) {
        for mut record in std::mem::take(&mut self.open).into_values() {
            let since = self.accounts.since(record.key);
            if since.is_none_or(|since| since > record.end) || record.start >= end.0 {
                continue;
            }
            move_end(&mut record, end.0);
            self.tell_stall(&record, tell);
        }
    }

    fn tell_stall(&mut self, record: &stall_record, tell: &mut dyn FnMut(Event)) {
        for stall in self.stalls_of(record) {
            tell(Event::Stall(Box::new(stall)));
        }
    }

    /// A command that the recorder started waited to be let go when the recording began: no wait of its own.
    fn is_the_holding(&self, record: &stall_record) -> bool {
        record.start <= self.start.0
            && self.held.is_some_and(|held| self.threads.pid_of(record.key) == Some(held))
    }

    fn stalls_of(&mut self, record: &stall_record) -> Vec<Stall> {
        if self.is_the_holding(record) {
            return Vec::new();
        }
        let mut stalls = stalls_from_record(record, self.min_stall_ns, self);
        for stall in &mut stalls {
            if let (Some(fault), Some(pid)) = (&mut stall.fault, self.threads.pid_of(record.key)) {
                self.fault_files.complete(pid, &record.fault, fault);
            }
            if let (Some(file), Some(pid)) = (&mut stall.file, self.threads.pid_of(record.key)) {
                self.waited_files.complete(pid, &record.fault, file);
            }
        }
        stalls
    }

    /// Rows of seconds before `second`; nobody adds to them any more.
    fn tell_aggregates(&mut self, second: u32, tell: &mut dyn FnMut(Event)) -> Result<(), SessionError> {
        self.probes.drain_samples(|key, value| {
            let past = key.second < second;
            if past && let Some(sample) = sample_from_row(key, value, &self.stacks, &self.threads) {
                tell(Event::Sample(sample));
            }
            past
        })?;
        self.probes.drain_latency(|key, value| {
            let past = key.second < second;
            let (thread, bucket, cell) = (ThreadKey(key.key), key.bucket, cell_from_value(value));
            match metric_from_code(key.metric) {
                Some((metric, reason)) if past => {
                    tell(Event::Latency(LatencyDelta { thread, metric, bucket, cell }));
                    if let Some(reason) = reason {
                        tell(Event::OffCpu(OffCpuDelta { thread, reason, bucket, cell }));
                    }
                }
                _ => {}
            }
            past
        })?;
        let (stacks, threads) = (&self.stacks, &self.threads);
        self.probes.drain_cross_calls(|key, value| {
            let past = key.second < second;
            if past {
                tell(Event::CrossCalls(cross_calls_from_row(key, value, stacks, threads)));
            }
            past
        })?;
        let (names, guard) = (&mut self.names, &self.guard);
        self.probes.drain_interrupts(|key, value| {
            let past = key.second < second;
            if past {
                let interrupt = interrupt_from_row(key, value, names);
                if let Some(intrusion) = guard.of_interrupt(&interrupt) {
                    tell(Event::Intrusion(Box::new(intrusion)));
                }
                tell(Event::Interrupt(interrupt));
            }
            past
        })
    }

    /// Tells what was on guarded CPUs before this slice, once for each slice.
    fn tell_guests(&mut self, slice: u64, tell: &mut dyn FnMut(Event)) -> Result<(), SessionError> {
        if self.guard.is_empty() || slice == self.guests_told {
            return Ok(());
        }
        self.guests_told = slice;
        let (guard, threads) = (&self.guard, &self.threads);
        self.probes.drain_guests(|key, row| {
            let past = key.slice < slice;
            if past {
                tell(Event::Intrusion(Box::new(guard.of_guest(key, row, threads))));
            }
            past
        })?;
        for intrusion in self.guard.of_probes(self.probes.runs_by_cpu()?) {
            tell(Event::Intrusion(Box::new(intrusion)));
        }
        Ok(())
    }

    /// Code made at run time is named by those who made it.
    fn tell_run_time_names(&self, tell: &mut dyn FnMut(Event)) {
        for (frame, line) in self.follower.known().processes.jit_names() {
            tell(Event::Symbol { frame, lines: vec![line] });
        }
    }

    fn tell_cost(&mut self, tell: &mut dyn FnMut(Event)) -> Result<(), SessionError> {
        let counts = self.probes.counts()?;
        for (index, name) in LOSS_NAMES.iter().enumerate() {
            let count = counts.losses[index].saturating_sub(self.counts.losses[index]);
            if count > 0 {
                tell(Event::Loss { reason: (*name).to_string(), count });
            }
        }
        let full = self.follower.known().take_full();
        for (reason, count) in full.into_iter().filter(|(_, count)| *count > 0) {
            tell(Event::Loss { reason: reason.into(), count });
        }
        let mappings = self.follower.known().take_losses();
        if mappings > 0 {
            tell(Event::Loss { reason: "mappings_ring_full".into(), count: mappings });
        }
        let tables = self.follower.counts();
        for (reason, count) in [
            ("unwind_tables_refused", &tables.refused),
            ("unwind_tables_over_quota", &tables.over_quota),
            ("unwind_tables_evicted", &tables.evicted),
            ("unwind_files_unreadable", &tables.unreadable),
            ("unwind_tables_over_budget", &tables.over_budget),
        ] {
            let count = count.swap(0, Ordering::Relaxed);
            if count > 0 {
                tell(Event::Loss { reason: reason.into(), count });
            }
        }
        if descriptors::are_exhausted() {
            tell(Event::Loss { reason: descriptors::EXHAUSTED.into(), count: 1 });
        }
        let cpu_ns = clock::process_cpu_ns();
        tell(Event::Overhead {
            process_cpu_ns: cpu_ns - self.cpu_ns,
            probe_ns: counts.probe_ns.saturating_sub(self.counts.probe_ns),
            probe_runs: counts.probe_runs.saturating_sub(self.counts.probe_runs),
            table_bytes: self.follower.counts().bytes.load(Ordering::Relaxed),
        });
        (self.counts, self.cpu_ns) = (counts, cpu_ns);
        Ok(())
    }
}

impl Lookup for Session {
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
}

fn is_user_process(record: &thread_record) -> bool {
    record.kernel_thread == 0 && record.tid == record.tgid
}

/// The last whole second's end, by the wall clock, that is not after `now`.
fn second_end(now: u64, epoch_offset: u64) -> u64 {
    let epoch = now.saturating_add(epoch_offset);
    (epoch - epoch % SECOND_NS).saturating_sub(epoch_offset)
}

/// Kernel text whose sleepers have a reason.
fn sites(symbols: &KernelSymbols) -> Vec<(u64, u64, u8)> {
    let ranges = reasons::KERNEL_SITES.iter().flat_map(|(pattern, reason)| {
        symbols.text_ranges(&[*pattern]).into_iter().map(|range| (range.start, range.end, reason.code()))
    });
    let mut ranges: Vec<_> = ranges.collect();
    ranges.truncate(c::MAX_SITES as usize);
    ranges
}

/// Kernel text that runs softirqs for the current task.
fn task_softirqs(symbols: &KernelSymbols) -> Vec<(u64, u64)> {
    let ranges = symbols.text_ranges(reasons::TASK_SOFTIRQS);
    ranges.into_iter().map(|range| (range.start, range.end)).collect()
}

/// An open wait goes on to `end`, asleep or waiting for a CPU; or it was looked at after `end`.
fn move_end(record: &mut stall_record, end: u64) {
    let waits_for_cpu = u64::from(record.flags) & (c::STALL_WOKEN | c::STALL_PREEMPTED) != 0;
    let part = if waits_for_cpu { &mut record.runnable_ns } else { &mut record.blocked_ns };
    *part =
        part.saturating_add(end.saturating_sub(record.end)).saturating_sub(record.end.saturating_sub(end));
    record.end = end;
}

/// What the kernel side has added up, and of off-CPU intervals why they were.
fn metric_from_code(code: u16) -> Option<(Metric, Option<StallReason>)> {
    let off_cpu = |reason| Some((Metric::OffCpu, Some(reason)));
    match u64::from(code) {
        c::METRIC_OFF_CPU_PREEMPTED => off_cpu(StallReason::Preempted),
        c::METRIC_OFF_CPU_RUNNABLE => off_cpu(StallReason::Runnable),
        blocked if blocked >= c::METRIC_OFF_CPU_BLOCKED => {
            let reason = u8::try_from(blocked - c::METRIC_OFF_CPU_BLOCKED).ok();
            off_cpu(StallReason::Blocked(Reason::from_code(reason?)?))
        }
        other => Some((Metric::from_code(u8::try_from(other).ok()?)?, None)),
    }
}

fn cell_from_value(value: &latency_value) -> Cell {
    Cell { count: value.count, total_ns: value.total, max_ns: value.max }
}

fn lose_stalls(count: u64, tell: &mut dyn FnMut(Event)) {
    if count > 0 {
        tell(Event::Loss { reason: "stalls_of_unknown_threads".into(), count });
    }
}

fn weighted(key: &sample_key) -> Option<Weighted> {
    let what = u64::from(key.what);
    Some(match what {
        c::SAMPLE_USER => Weighted::State(State::User),
        c::SAMPLE_KERNEL => Weighted::State(State::Kernel),
        c::SAMPLE_FAULT_MINOR => Weighted::State(State::FaultMinor),
        c::SAMPLE_FAULT_MAJOR => Weighted::State(State::FaultMajor),
        c::SAMPLE_RUNNABLE => Weighted::State(State::Runnable),
        c::SAMPLE_PREEMPTED => Weighted::State(State::Preempted),
        c::SAMPLE_EVENT => Weighted::Event(key.event),
        _ => {
            Weighted::State(State::Blocked(Reason::from_code((what.checked_sub(c::SAMPLE_BLOCKED)?) as u8)?))
        }
    })
}

fn sample_from_row(
    key: &sample_key,
    value: &sample_value,
    stacks: &Stacks,
    threads: &Threads,
) -> Option<SampleDelta> {
    let waker = (key.woken != 0).then(|| {
        let interrupt = key.waker_tid == 0 || stacks.is_interrupt(key.waker_kernel_stack);
        WakerStacks {
            thread: if interrupt { None } else { threads.key_of_tid(key.waker_tid) },
            interrupt,
            user: if interrupt { None } else { stacks.id(key.waker_user_stack) },
            kernel: stacks.id(key.waker_kernel_stack),
        }
    });
    Some(SampleDelta {
        thread: ThreadKey(key.key),
        second: EpochSecond(key.second),
        what: weighted(key)?,
        user: stacks.id(key.user_stack),
        kernel: stacks.id(key.kernel_stack),
        waker,
        weight: value.weight,
        count: value.count,
    })
}

fn work_from_record(record: &work_record) -> Option<KernelWork> {
    let kind = match u64::from(record.kind) {
        c::WORK_RECLAIM => WorkKind::Reclaim,
        c::WORK_COMPACTION => WorkKind::Compaction,
        c::WORK_LOCK if record.mmap_lock != 0 => WorkKind::MmapLock,
        c::WORK_LOCK => WorkKind::KernelLock,
        _ => return None,
    };
    Some(KernelWork {
        thread: ThreadKey(record.key),
        kind,
        start: MonoNs(record.start),
        end: MonoNs(record.end),
    })
}

fn cross_calls_from_row(
    key: &cross_call_key,
    value: &cross_call_value,
    stacks: &Stacks,
    threads: &Threads,
) -> CrossCallDelta {
    let caller = other_thread { tid: key.tid, tgid: key.tgid, comm: value.comm };
    CrossCallDelta {
        caller: threads.reference(&caller),
        syscall: reasons::syscall_name(key.syscall),
        function: stacks.kernel_function(key.function),
        count: value.count,
    }
}

fn interrupt_from_row(
    key: &interrupt_key,
    value: &latency_value,
    names: &mut InterruptNames,
) -> InterruptDelta {
    let (kind, name) = names.name(key.kind, key.number);
    InterruptDelta {
        cpu: u32::from(key.cpu),
        kind,
        name,
        victim: (key.key != 0).then_some(ThreadKey(key.key)),
        count: value.count,
        total_ns: value.total,
        max_ns: value.max,
    }
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
    fn open_waits_go_on_as_they_were() {
        let mut asleep = stall_record { start: 1, end: 5, blocked_ns: 4, ..stall_record::default() };
        move_end(&mut asleep, 9);
        assert_eq!((asleep.end, asleep.blocked_ns, asleep.runnable_ns), (9, 8, 0));
        let flags = c::STALL_WOKEN as u16;
        let mut woken = stall_record { start: 1, end: 5, runnable_ns: 2, flags, ..stall_record::default() };
        move_end(&mut woken, 9);
        assert_eq!((woken.end, woken.blocked_ns, woken.runnable_ns), (9, 0, 6));
    }

    #[test]
    fn open_waits_end_with_the_recording() {
        let mut asleep = stall_record { start: 1, end: 5, blocked_ns: 4, ..stall_record::default() };
        move_end(&mut asleep, 3);
        assert_eq!((asleep.end, asleep.blocked_ns), (3, 2));
        let flags = c::STALL_PREEMPTED as u16;
        let mut waiting = stall_record { start: 1, end: 5, runnable_ns: 1, flags, ..stall_record::default() };
        move_end(&mut waiting, 2);
        assert_eq!((waiting.end, waiting.runnable_ns), (2, 0));
    }

    #[test]
    fn off_cpu_intervals_are_told_with_their_reasons() {
        let of = |code: u64| metric_from_code(code as u16);
        assert_eq!(of(c::METRIC_OFF_CPU), Some((Metric::OffCpu, None)), "within a fault");
        assert_eq!(of(c::METRIC_RUN_QUEUE), Some((Metric::RunQueue, None)));
        let blocked = |reason| Some((Metric::OffCpu, Some(reason)));
        assert_eq!(of(c::METRIC_OFF_CPU_PREEMPTED), blocked(StallReason::Preempted));
        let disk = c::METRIC_OFF_CPU_BLOCKED + c::REASON_DISK;
        assert_eq!(of(disk), blocked(StallReason::Blocked(Reason::Disk)));
        let disk = c::METRIC_BLOCKED + c::REASON_DISK;
        assert_eq!(of(disk), Some((Metric::Blocked(Reason::Disk), None)));
        assert_eq!(of(c::METRIC_OFF_CPU_BLOCKED + c::REASONS), None);
        assert_eq!(of(u64::from(u16::MAX)), None);
    }

    #[test]
    fn the_lock_of_the_memory_map_is_told_apart() {
        let record = |kind: u64, mmap_lock| work_record {
            key: 3,
            start: 5,
            end: 9,
            kind: kind as u32,
            mmap_lock,
            ..work_record::default()
        };
        let kind = |kind, mmap_lock| work_from_record(&record(kind, mmap_lock)).map(|work| work.kind);
        assert_eq!(kind(c::WORK_LOCK, 1), Some(WorkKind::MmapLock));
        assert_eq!(kind(c::WORK_LOCK, 0), Some(WorkKind::KernelLock));
        assert_eq!(kind(c::WORK_RECLAIM, 0), Some(WorkKind::Reclaim));
        assert_eq!(kind(c::WORKS, 0), None);
        let work = work_from_record(&record(c::WORK_COMPACTION, 0)).expect("compaction");
        assert_eq!((work.thread, work.start, work.end), (ThreadKey(3), MonoNs(5), MonoNs(9)));
    }

    #[test]
    fn weights_are_states_or_events() {
        let key = |what: u64| sample_key { what: what as u8, event: 3, ..sample_key::default() };
        assert_eq!(weighted(&key(c::SAMPLE_USER)), Some(Weighted::State(State::User)));
        assert_eq!(
            weighted(&key(c::SAMPLE_BLOCKED + c::REASON_DISK)),
            Some(Weighted::State(State::Blocked(Reason::Disk)))
        );
        assert_eq!(weighted(&key(c::SAMPLE_EVENT)), Some(Weighted::Event(3)));
        assert_eq!(weighted(&key(c::SAMPLE_FAULT_MAJOR)), Some(Weighted::State(State::FaultMajor)));
        assert_eq!(weighted(&key(9)), None);
    }
}
