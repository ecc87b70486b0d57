// SPDX-License-Identifier: Apache-2.0
//! A kernel side without a kernel: runs threads by timelines and keeps their ledgers as `bpf/ledger.h` does.
//!
//! A timeline has one line a thread, `name: RRLLwR..`, and one character a tick of 100 ms: `R` runs, `P` is
//! preempted, `L` waits for a lock, `p` waits in poll, `c` waits on a condition variable, `w` has been woken
//! and waits for a CPU, `.` does not exist. `db.a<2: RccR` is a thread `a` of the program `db`, whose waits on
//! condition variables the second thread ends; with `<*` it is the thread with `<*` that ran before. Those waits
//! alone have stacks and places.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use wallprof_model::{ClockAnchor, EpochNs, MonoNs, Reason};
use wallprof_probe::bpf::{
    constants as c, cross_call_key, cross_call_value, interrupt_key, latency_key, latency_value, ledger,
    noise_counts, noise_key, sample_key, sample_value, second_record, span_key, span_value, stack_record,
    stall_record, thread_record,
};
use wallprof_probe::{Inbox, KernelCounts, MarkSlot, ProbeError, RunQueue};

use crate::kernel_side::{KernelSide, TakeRow};
use crate::places::SentVerdict;

pub const TICK_NS: u64 = 100_000_000;
pub const SECOND_NS: u64 = 1_000_000_000;
/// CLOCK_MONOTONIC when a timeline starts.
pub const START: u64 = 50 * SECOND_NS;
/// The distance of the wall clock from CLOCK_MONOTONIC when a timeline starts.
pub const EPOCH_OFFSET: u64 = 1_000_000 * SECOND_NS;
/// No thread has such a number (`PID_MAX_LIMIT` in linux/threads.h), so that nothing of this machine is read
/// for it.
const FIRST_TID: u32 = 5_000_000;

/// The machine that the fake kernel runs, shared by a test and its session.
pub struct World {
    pub now: u64,
    pub epoch_offset: u64,
    /// CPUs that come online and were not reported yet.
    pub new_cpus: usize,
    /// While this is true, records for the rings are lost and counted.
    pub rings_are_full: bool,
    pub counts: KernelCounts,
    threads: Vec<Thread>,
    inbox: Inbox,
    /// Shorter waits on condition variables are emitted only if their place says so.
    pub voluntary_ns: u64,
    pub first_waits_left: u32,
    verdicts: HashMap<u64, SentVerdict>,
    /// Sites of waits that are for no lock.
    pub no_locks: Vec<u64>,
    /// Waits that were emitted because their place is unknown.
    sent: HashMap<u64, u64>,
    samples: RefCell<Vec<(sample_key, sample_value)>>,
    /// The offset of the start of seconds that the kernel side was given.
    second_offset: u64,
    armed: bool,
    sends_seconds: bool,
    last_snapshot: u64,
    /// The next snapshot reaches the threads only then, in ms after the start of the timelines.
    pub late_snapshot_ms: Option<u64>,
}

struct Thread {
    /// The thread that ends its waits on condition variables.
    waker: Option<FakeWaker>,
    timeline: Vec<u8>,
    doing: u8,
    record: thread_record,
    /// The start of the wait it is in.
    wait_start: u64,
    /// That wait was passed by `open_waits`.
    shown: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FakeWaker {
    Number(u32),
    RanBefore,
}

/// The kernel side of a session over a [`World`].
pub struct FakeKernel(pub Rc<RefCell<World>>);

impl World {
    pub fn new(timelines: &str) -> Rc<RefCell<Self>> {
        let lines = timelines.lines().map(str::trim).filter(|line| !line.is_empty());
        let threads = lines.enumerate().map(|(index, line)| Thread::new(index as u32, line)).collect();
        Rc::new(RefCell::new(World {
            now: START,
            epoch_offset: EPOCH_OFFSET,
            new_cpus: 0,
            rings_are_full: false,
            counts: KernelCounts::default(),
            threads,
            inbox: Inbox::default(),
            voluntary_ns: 0,
            first_waits_left: 0,
            verdicts: HashMap::new(),
            no_locks: Vec::new(),
            sent: HashMap::new(),
            samples: RefCell::default(),
            second_offset: EPOCH_OFFSET,
            armed: false,
            sends_seconds: false,
            last_snapshot: 0,
            late_snapshot_ms: None,
        }))
    }

    fn exists(&self, tid: u32) -> bool {
        let mut threads = self.threads.iter().map(|thread| &thread.record);
        threads.any(|record| record.tid == tid && u64::from(record.activity) != c::ACTIVITY_DEAD)
    }

    /// Lets time pass up to `ms` after the start of the timelines.
    pub fn run_until(&mut self, ms: u64) {
        let until = START + ms * 1_000_000;
        // The tick that starts at `now` has happened already, except the first one.
        let first = if self.now == START { 0 } else { (self.now - START) / TICK_NS + 1 };
        for tick in first..=(until - START) / TICK_NS {
            self.now = START + tick * TICK_NS;
            for index in 0..self.threads.len() {
                let next = self.threads[index].timeline.get(tick as usize).copied().unwrap_or(b'.');
                if next != self.threads[index].doing {
                    self.change(index, next);
                }
            }
        }
        self.now = until;
    }

    fn change(&mut self, index: usize, next: u8) {
        let (now, offset, armed) = (self.now, self.second_offset, self.armed);
        self.counts.probe_runs += 1;
        let thread = &mut self.threads[index];
        let mut closed = None;
        if armed && thread.doing != b'.' {
            closed = thread.close_second(now, offset);
            thread.charge(now);
        }
        let before = std::mem::replace(&mut thread.doing, next);
        let record = &mut thread.record;
        let waited = (before != b'R' && before != b'.').then_some(thread.wait_start);
        if before == b'.' {
            (record.observed_from, record.run_ns, record.wake_ns) = (now, now, 0);
        }
        match next {
            b'w' => record.wake_ns = now,
            b'L' | b'p' | b'c' | b'P' => {
                (thread.wait_start, thread.shown) = (now, false);
                record.activity =
                    if next == b'P' { c::ACTIVITY_PREEMPTED } else { c::ACTIVITY_BLOCKED } as u8;
                record.reason = match next {
                    b'p' => Reason::Poll,
                    b'c' => Reason::Wait,
                    _ => Reason::Lock,
                }
                .code();
            }
            b'R' => {
                record.activity = c::ACTIVITY_RUNNING as u8;
            }
            _ => record.activity = c::ACTIVITY_DEAD as u8,
        }
        if next != b'w' {
            record.since = now;
        }
        let stall = waited.filter(|_| next == b'R').map(|start| thread.stall(start, now));
        let stall = stall.map(|stall| self.with_waker(index, stall));
        let thread = &mut self.threads[index];
        if next == b'R' {
            thread.record.run_ns = now;
        }
        let ended = (next == b'.').then_some(thread.record);
        let stall = stall.filter(|stall| !armed || self.counts_and_emits(index, stall));
        if armed {
            self.send(closed, stall, ended);
        }
    }

    /// The number of the thread that ends the wait of another one now.
    fn waker(&self, index: usize) -> Option<u32> {
        let before = ((self.now - START) / TICK_NS).checked_sub(1)? as usize;
        match self.threads[index].waker? {
            FakeWaker::Number(number) => Some(number),
            FakeWaker::RanBefore => {
                let ran = |thread: &Thread| thread.timeline.get(before) == Some(&b'R');
                let hands_on = |thread: &Thread| thread.waker == Some(FakeWaker::RanBefore) && ran(thread);
                self.threads.iter().position(hands_on).map(|at| at as u32 + 1)
            }
        }
    }

    fn with_waker(&self, index: usize, mut stall: stall_record) -> stall_record {
        if let Some(number) = self.waker(index).filter(|_| stall.place != 0) {
            stall.flags |= c::STALL_WOKEN as u16;
            stall.waker.tid = FIRST_TID + number - 1;
            stall.waker.tgid = stall.waker.tid;
        }
        stall
    }

    /// Counts a wait on a condition variable in the samples. Whether it is emitted by itself, as `is_emitted`
    /// of bpf/switch_in.h decides.
    fn counts_and_emits(&mut self, index: usize, stall: &stall_record) -> bool {
        if stall.place == 0 {
            return true;
        }
        let waker = self.waker(index);
        let key = sample_key {
            key: stall.key,
            second: ((stall.end + self.second_offset) / SECOND_NS) as u32,
            user_stack: stall.user_stack,
            what: c::SAMPLE_BLOCKED as u8 + stall.reason,
            woken: waker.is_some().into(),
            waker_tid: waker.map_or(0, |number| FIRST_TID + number - 1),
            ..Default::default()
        };
        self.samples.get_mut().push((key, sample_value { weight: stall.blocked_ns, count: 1 }));
        if stall.end - stall.start >= self.voluntary_ns {
            return true;
        }
        let sent = self.sent.entry(stall.place).or_default();
        match self.verdicts.get(&stall.place).copied().unwrap_or_default() {
            SentVerdict::NotIdle => true,
            SentVerdict::Unknown | SentVerdict::IdleAsked
                if *sent < c::FIRST_WAITS && self.first_waits_left > 0 =>
            {
                *sent += 1;
                self.first_waits_left -= 1;
                true
            }
            _ => false,
        }
    }

    fn send(
        &mut self,
        second: Option<second_record>,
        stall: Option<stall_record>,
        ended: Option<thread_record>,
    ) {
        let second = second.filter(|_| self.sends_seconds);
        if self.rings_are_full {
            let lost = second.is_some() as u64 + stall.is_some() as u64;
            self.counts.losses[c::LOSS_RING_FULL as usize] += lost;
        } else {
            self.inbox.seconds.extend(second);
            self.inbox.stalls.extend(stall);
        }
        // A thread's last record is also passed by the task iterator until its task is freed; here it is
        // never lost.
        self.inbox.ended.extend(ended);
    }
}

impl Thread {
    fn new(index: u32, line: &str) -> Self {
        let (name, timeline) = line.split_once(':').expect("name: timeline");
        let (name, waker) = match name.split_once('<') {
            Some((name, "*")) => (name, Some(FakeWaker::RanBefore)),
            Some((name, waker)) => {
                (name, Some(FakeWaker::Number(waker.parse().expect("the number of a thread"))))
            }
            None => (name, None),
        };
        let (process, comm) = name.split_once('.').unwrap_or((name, name));
        let tid = FIRST_TID + index;
        let mut record = thread_record {
            key: index + 1,
            tid,
            tgid: tid,
            ns_tid: tid,
            ns_tgid: tid,
            on_mask: 1,
            ..Default::default()
        };
        for (field, name) in [(&mut record.comm, comm), (&mut record.process, process)] {
            field[..name.len()].copy_from_slice(name.as_bytes());
        }
        let timeline = timeline.trim().bytes().collect();
        Thread { waker, timeline, doing: b'.', record, wait_start: 0, shown: false }
    }

    /// Closes the last whole second before `now`, if the thread has not passed its end yet.
    fn close_second(&mut self, now: u64, epoch_offset: u64) -> Option<second_record> {
        let end = now - (now + epoch_offset) % SECOND_NS;
        if end <= self.record.since {
            return None;
        }
        let before = self.record;
        self.charge(end);
        (self.record.boundary, self.record.at_boundary, self.record.since) = (end, self.record.ledger, end);
        Some(second_record {
            key: before.key,
            boundary: end,
            since: before.since,
            run_ns: before.run_ns,
            wake_ns: before.wake_ns,
            activity: before.activity,
            reason: before.reason,
            ledger: self.record.ledger,
            ..Default::default()
        })
    }

    /// Charges the time up to `until` to what the thread did.
    fn charge(&mut self, until: u64) {
        let thread_record { since, wake_ns, reason, .. } = self.record;
        let (ledger, ns): (&mut ledger, u64) = (&mut self.record.ledger, until - since);
        match self.doing {
            b'R' => ledger.on_cpu += ns,
            b'P' => ledger.preempted += ns,
            b'w' => {
                let blocked = wake_ns.saturating_sub(since).min(ns);
                ledger.blocked[usize::from(reason)] += blocked;
                ledger.runnable += ns - blocked;
            }
            _ => ledger.blocked[usize::from(reason)] += ns,
        }
        self.record.since = until;
    }

    /// The off-CPU interval from `start` to `end`.
    fn stall(&self, start: u64, end: u64) -> stall_record {
        let record = &self.record;
        let preempted = u64::from(record.activity) == c::ACTIVITY_PREEMPTED;
        let woken = record.wake_ns > record.run_ns;
        let runnable = match (preempted, woken) {
            (true, _) => end - start,
            (_, true) => end - record.wake_ns.max(start),
            _ => 0,
        };
        let flags = if preempted { c::STALL_PREEMPTED } else { 0 };
        let in_condvar = !preempted && record.reason == Reason::Wait.code();
        let number = if in_condvar { u64::from(record.key) } else { 0 };
        stall_record {
            r#type: c::RECORD_STALL as u32,
            key: record.key,
            start,
            end,
            runnable_ns: runnable,
            blocked_ns: end - start - runnable,
            reason: record.reason,
            flags: flags as u16,
            syscall: -1,
            user_stack: number,
            place: number,
            ..Default::default()
        }
    }

    fn waits(&self) -> bool {
        !matches!(self.doing, b'R' | b'.')
    }
}

impl KernelSide for FakeKernel {
    fn now(&self) -> MonoNs {
        MonoNs(self.0.borrow().now)
    }

    fn clock(&self) -> ClockAnchor {
        let world = self.0.borrow();
        ClockAnchor { mono: MonoNs(world.now), epoch: EpochNs(world.now + world.epoch_offset) }
    }

    fn own_cpu_ns(&self) -> u64 {
        0
    }

    fn arm(&mut self, epoch_offset: u64) -> MonoNs {
        let mut world = self.0.borrow_mut();
        (world.armed, world.second_offset, world.last_snapshot) = (true, epoch_offset, 0);
        let now = world.now;
        for thread in &mut world.threads {
            (thread.record.since, thread.record.observed_from) = (now, now);
            thread.wait_start = thread.wait_start.max(now);
            thread.shown = false;
        }
        MonoNs(now)
    }

    fn disarm(&mut self) -> MonoNs {
        let mut world = self.0.borrow_mut();
        world.armed = false;
        MonoNs(world.now)
    }

    fn ending_threads(&self) -> u32 {
        0
    }

    fn thread_exists(&self, tid: u32) -> bool {
        self.0.borrow().exists(tid)
    }

    fn set_epoch_offset(&mut self, epoch_offset: u64) {
        self.0.borrow_mut().second_offset = epoch_offset;
    }

    fn set_thresholds(&mut self, _: u64, _: u64) {}

    fn set_place_verdicts(&mut self, verdicts: &[(u64, SentVerdict)]) {
        let mut world = self.0.borrow_mut();
        for (key, verdict) in verdicts {
            world.verdicts.insert(*key, *verdict);
            let is_asked = matches!(verdict, SentVerdict::Unknown | SentVerdict::IdleAsked);
            world.sent.insert(*key, if is_asked { 0 } else { c::FIRST_WAITS });
        }
    }

    fn set_no_locks(&mut self, sites: &[u64]) {
        self.0.borrow_mut().no_locks.extend(sites);
    }

    fn forget_places(&mut self, keys: &[u64]) {
        self.0.borrow_mut().verdicts.retain(|key, _| !keys.contains(key));
    }

    fn set_mark_slots(&mut self, _: &[MarkSlot]) {}

    fn span_probe_hits(&self) -> Result<Vec<u64>, ProbeError> {
        Ok(Vec::new())
    }

    fn remove_span_probes(&mut self, _: usize) {}

    fn allow_first_waits(&mut self, waits: u32) {
        self.0.borrow_mut().first_waits_left = waits;
    }

    fn allow_holder_waits(&mut self, _: u32) {}

    fn set_min_stall(&mut self, _: u64) {}

    fn set_pace(&mut self, _: u32, _: u64) {}

    fn send_seconds(&mut self, wanted: bool) {
        self.0.borrow_mut().sends_seconds = wanted;
    }

    fn set_sites(&mut self, _: &[(u64, u64, u8)]) {}

    fn set_task_softirqs(&mut self, _: &[(u64, u64)]) {}
    fn set_register_writers(&mut self, _: &[(u64, u64)]) {}

    fn follow_processes(&mut self) -> Result<(), ProbeError> {
        Ok(())
    }

    fn follow_cpus(&mut self) -> Result<usize, ProbeError> {
        Ok(std::mem::take(&mut self.0.borrow_mut().new_cpus))
    }

    fn drain_rings(&mut self, inbox: &mut Inbox) -> Result<(), ProbeError> {
        let received = std::mem::take(&mut self.0.borrow_mut().inbox);
        inbox.ended.extend(received.ended);
        inbox.stalls.extend(received.stalls);
        inbox.delays.extend(received.delays);
        inbox.seconds.extend(received.seconds);
        inbox.holder_samples.extend(received.holder_samples);
        inbox.spans.extend(received.spans);
        inbox.late.extend(received.late);
        inbox.unknown += received.unknown;
        Ok(())
    }

    fn snapshot(&mut self, take: &mut dyn FnMut(&thread_record)) -> Result<(), ProbeError> {
        let mut world = self.0.borrow_mut();
        if let Some(ms) = world.late_snapshot_ms.take() {
            world.run_until(ms);
        }
        let last = world.last_snapshot;
        for thread in world.threads.iter().filter(|thread| thread.doing != b'.') {
            let record = &thread.record;
            if last == 0 || record.since.max(record.wake_ns) >= last {
                take(record);
            }
        }
        world.last_snapshot = world.now;
        Ok(())
    }

    fn open_waits(
        &mut self,
        older_than_ns: u64,
        take: &mut dyn FnMut(&stall_record),
    ) -> Result<(), ProbeError> {
        let mut world = self.0.borrow_mut();
        let (now, armed) = (world.now, world.armed);
        for thread in &mut world.threads {
            if thread.waits() && !thread.shown && now - thread.wait_start >= older_than_ns {
                thread.shown = older_than_ns > 0;
                let record = thread.stall(thread.wait_start, now);
                let user_stack = if armed { record.user_stack } else { 0 };
                take(&stall_record { r#type: c::RECORD_OPEN as u32, user_stack, ..record });
            }
        }
        Ok(())
    }

    fn drain_samples(&self, take: TakeRow<'_, sample_key, sample_value>) -> Result<(), ProbeError> {
        self.0.borrow().samples.borrow_mut().retain(|(key, value)| !take(key, value));
        Ok(())
    }

    fn drain_latency(&self, _: TakeRow<'_, latency_key, latency_value>) -> Result<(), ProbeError> {
        Ok(())
    }

    fn drain_spans(&self, _: TakeRow<'_, span_key, span_value>) -> Result<(), ProbeError> {
        Ok(())
    }

    fn drain_interrupts(&self, _: TakeRow<'_, interrupt_key, latency_value>) -> Result<(), ProbeError> {
        Ok(())
    }

    fn drain_cross_calls(&self, _: TakeRow<'_, cross_call_key, cross_call_value>) -> Result<(), ProbeError> {
        Ok(())
    }

    fn drain_noise(&self, _: TakeRow<'_, noise_key, noise_counts>) -> Result<(), ProbeError> {
        Ok(())
    }

    /// One for each thread that waits on condition variables, all of them with the same function.
    fn drain_stacks(&self, take: &mut dyn FnMut(u64, &stack_record)) -> Result<(), ProbeError> {
        for thread in self.0.borrow().threads.iter().filter(|thread| thread.timeline.contains(&b'c')) {
            let tgid = thread.record.tgid;
            let mut stack = stack_record { tgid, exec_id: 1, frames: 1, ..Default::default() };
            stack.address[0] = 0x1000;
            take(thread.record.key.into(), &stack);
        }
        Ok(())
    }

    fn runs(&self) -> Result<u64, ProbeError> {
        Ok(self.0.borrow().counts.probe_runs)
    }

    fn runs_by_cpu(&self) -> Result<Vec<(u64, u64)>, ProbeError> {
        Ok(vec![(self.0.borrow().counts.probe_runs, 0)])
    }

    fn run_queues(&self) -> Vec<RunQueue> {
        Vec::new()
    }

    fn counts(&self) -> Result<KernelCounts, ProbeError> {
        Ok(self.0.borrow().counts)
    }
}
