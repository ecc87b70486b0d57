// SPDX-License-Identifier: Apache-2.0
//! Ledgers cut into one-second buckets: from the sums that the kernel side keeps per thread to what each
//! second adds.
//!
//! Pure. The kernel side keeps, per thread, the sum of all closed time, and a copy of it at the last second's
//! end that the thread passed with an event. What a thread has been doing since its last event is added here.
//! Where threads are read less often than once a second, the kernel side sends each second that a thread
//! closes, and the rows are the same.

use std::collections::{BTreeMap, HashMap, HashSet};

use wallprof_model::event::LedgerDelta;
use wallprof_model::{EpochSecond, Event, MonoNs, ThreadKey};
use wallprof_probe::bpf::{constants as c, ledger, second_record, thread_record};

use crate::counters::Candidate;

/// The newest record of a thread, and how far it is emitted.
struct Account {
    is_unsampled: bool,
    record: thread_record,
    /// Seconds that the thread closed and that are not emitted yet, in the order of arrival: each CPU has its
    /// own ring.
    closed: Vec<second_record>,
    /// The sums of which all is emitted.
    emitted: ledger,
    /// Time in later sums that an earlier delta has already counted, in another state. The next deltas are
    /// shorter by that.
    counted: u64,
    /// A pause has ended, and the thread was not read since.
    paused: bool,
    /// The time from which the next delta counts.
    upto: u64,
    /// The end of the last delta. `None` before the first one.
    last_end: Option<u64>,
}

/// All threads that have not ended.
#[derive(Default)]
pub struct Accounts {
    /// No samples divide running time.
    is_unsampled: bool,
    by_key: HashMap<u32, Account>,
    /// Seconds of threads whose first record has not arrived yet.
    early: HashMap<u32, Vec<second_record>>,
    /// Threads that did not exist at the last [`Accounts::end_unseen`]: their last records are on the way, or
    /// lost.
    missing: HashSet<u32>,
    /// Threads that were no longer listed after a pause. They ended in it, or right after it: then their last
    /// records are on the way.
    left: HashMap<u32, Account>,
}

/// The state of a thread since its last event.
struct Open {
    activity: u8,
    reason: u8,
    since: u64,
    woken_at: Option<u64>,
}

/// At most this many seconds without an event are emitted one by one. When this program was stopped for
/// longer, the older seconds are one row.
const MAX_SECONDS: u64 = 60;
const SECOND_NS: u64 = 1_000_000_000;

impl Accounts {
    /// Running time of threads from now on is not divided by samples.
    pub fn set_unsampled(&mut self, is_unsampled: bool) {
        self.is_unsampled = is_unsampled;
    }

    /// Takes the newest record of a thread. True when it is the thread's first.
    pub fn update(&mut self, record: &thread_record) -> bool {
        match self.by_key.get_mut(&record.key) {
            Some(account) => {
                account.end_pause(record);
                account.record = *record;
                false
            }
            None => {
                let account = Account {
                    is_unsampled: self.is_unsampled,
                    record: *record,
                    closed: self.early.remove(&record.key).unwrap_or_default(),
                    emitted: ledger::default(),
                    counted: 0,
                    paused: false,
                    upto: record.observed_from,
                    last_end: None,
                };
                self.by_key.insert(record.key, account);
                true
            }
        }
    }

    /// Takes a second that a thread has closed.
    pub fn close_second(&mut self, record: &second_record) {
        match self.by_key.get_mut(&record.key) {
            Some(account) => account.closed.push(*record),
            None => self.early.entry(record.key).or_default().push(*record),
        }
    }

    /// The processes whose threads have not ended, without kernel threads.
    pub fn processes(&self) -> Vec<Candidate> {
        let mut by_pid: BTreeMap<u32, Candidate> = BTreeMap::new();
        for Account { record, .. } in self.by_key.values().filter(|account| account.record.kernel_thread == 0)
        {
            let thread = ThreadKey(record.key);
            let candidate =
                by_pid.entry(record.tgid).or_insert(Candidate { pid: record.tgid, thread, on_cpu_ns: 0 });
            candidate.on_cpu_ns = candidate.on_cpu_ns.saturating_add(record.ledger.on_cpu);
            if record.tid == record.tgid {
                candidate.thread = thread;
            }
        }
        by_pid.into_values().collect()
    }

    /// How many threads have not ended.
    pub fn count(&self) -> usize {
        self.by_key.len()
    }

    /// The time of a thread's last event: the start of its wait, if it waits.
    pub fn since(&self, key: u32) -> Option<u64> {
        self.by_key.get(&key).map(|account| account.record.since)
    }

    /// Emits what every thread did up to `until`, which is the end of a second or of the recording.
    pub fn flush(&mut self, until: u64, epoch_offset: u64, emit: &mut dyn FnMut(Event)) {
        for account in self.by_key.values_mut() {
            account.flush(until, epoch_offset, emit);
        }
        for (key, account) in self.left.drain() {
            if let Some(end) = account.last_end {
                emit(Event::ThreadEnd { thread: ThreadKey(key), at: MonoNs(end) });
            }
        }
        // A thread that closed a second before `until` is known by now, or its record is lost.
        self.early.retain(|_, seconds| seconds.iter().any(|second| second.boundary > until));
    }

    /// Nothing was counted up to `at`. The next deltas start from the sums as they are now.
    pub fn resume(&mut self, at: u64) {
        for account in self.by_key.values_mut() {
            (account.emitted, account.upto) = (account.record.ledger, at);
            (account.counted, account.paused) = (0, true);
            account.closed.clear();
        }
        self.early.clear();
    }

    /// After a pause, only these threads are listed. The others get their ends at the next flush: where the last
    /// record says that arrives until then, else where their last delta ended.
    pub fn keep(&mut self, listed: &HashSet<u32>) {
        self.left.extend(self.by_key.extract_if(|key, _| !listed.contains(key)));
    }

    /// Ends the threads that existed neither at the last call nor now: their last records found a full ring.
    /// Each ends where its last delta ended. Returns them.
    pub fn end_unseen(&mut self, exists: &dyn Fn(u32) -> bool, emit: &mut dyn FnMut(Event)) -> Vec<u32> {
        let mut newest: HashMap<u32, u64> = HashMap::new();
        for Account { record, .. } in self.by_key.values() {
            let start = newest.entry(record.tid).or_default();
            *start = record.start_boottime.max(*start);
        }
        // A tid may have been used again.
        let is_gone = |record: &thread_record| {
            newest.get(&record.tid).is_some_and(|start| *start > record.start_boottime) || !exists(record.tid)
        };
        let gone = self.by_key.values().filter(|account| is_gone(&account.record));
        let gone: HashSet<u32> = gone.map(|account| account.record.key).collect();
        let (ended, missing): (HashSet<u32>, HashSet<u32>) =
            gone.into_iter().partition(|key| self.missing.contains(key));
        self.missing = missing;
        let mut ended: Vec<u32> = ended.into_iter().collect();
        ended.sort_unstable();
        for key in &ended {
            let account = self.by_key.remove(key);
            if let Some(end) = account.and_then(|account| account.last_end) {
                emit(Event::ThreadEnd { thread: ThreadKey(*key), at: MonoNs(end) });
            }
        }
        ended
    }

    /// Emits the rest of a thread that ended, and forgets it. `record` is its last one.
    pub fn end(&mut self, record: &thread_record, epoch_offset: u64, emit: &mut dyn FnMut(Event)) {
        if let Some(account) = self.left.remove(&record.key) {
            self.by_key.insert(record.key, account);
        }
        self.update(record);
        let Some(mut account) = self.by_key.remove(&record.key) else { return };
        account.flush(record.since, epoch_offset, emit);
        if account.last_end.is_some() {
            emit(Event::ThreadEnd { thread: ThreadKey(record.key), at: MonoNs(record.since) });
        }
    }
}

impl Account {
    /// `record` is the first one after a pause. What the sums had before the pause, and the last record before it
    /// had not, is part of the time that was counted up to the pause: a switch was still being counted on another
    /// CPU while that record was read.
    fn end_pause(&mut self, record: &thread_record) {
        if std::mem::take(&mut self.paused) {
            let since_pause = record.since.saturating_sub(self.upto);
            let before = wall_of(&record.ledger).saturating_sub(since_pause);
            self.counted = before.saturating_sub(wall_of(&self.record.ledger));
        }
    }

    fn flush(&mut self, until: u64, epoch_offset: u64, emit: &mut dyn FnMut(Event)) {
        let mut closed = std::mem::take(&mut self.closed);
        if self.record.on_mask == 0 {
            return;
        }
        closed.sort_unstable_by_key(|second| second.boundary);
        for second in closed {
            let open = Open::in_second(&second);
            let at_since = open.subtracted_from(&second.ledger, second.boundary);
            self.emit_seconds(&at_since, &open, second.boundary, epoch_offset, emit);
            self.emit_delta(second.boundary, &second.ledger, epoch_offset, emit);
        }
        let record = self.record;
        self.emit_delta(record.boundary, &record.at_boundary, epoch_offset, emit);
        // The sums of a thread that has gone on past `until` are known exactly only at the end of a second
        // that it closed: of a later one, or of an earlier one when the wall clock was stepped in between.
        if record.boundary >= until || record.since > until {
            return;
        }
        let open = Open::in_record(&record);
        self.emit_seconds(&record.ledger, &open, until, epoch_offset, emit);
        self.emit_delta(until, &open.added_to(&record.ledger, until), epoch_offset, emit);
    }

    /// Emits the seconds that end before `until` and in which the thread only went on with what it was doing.
    /// `sums` are those from the time when it started with that.
    fn emit_seconds(
        &mut self,
        sums: &ledger,
        open: &Open,
        until: u64,
        epoch_offset: u64,
        emit: &mut dyn FnMut(Event),
    ) {
        let from =
            self.upto.max(open.since.saturating_sub(1)).max(until.saturating_sub(MAX_SECONDS * SECOND_NS));
        let mut end = end_after(from, epoch_offset);
        while end < until {
            self.emit_delta(end, &open.added_to(sums, end), epoch_offset, emit);
            end += SECOND_NS;
        }
    }

    /// Emits what the thread did since the last delta. Its sums are `total` at `until`.
    fn emit_delta(&mut self, until: u64, total: &ledger, epoch_offset: u64, emit: &mut dyn FnMut(Event)) {
        if until <= self.upto {
            return;
        }
        let thread = ThreadKey(self.record.key);
        if self.last_end.is_none() {
            emit(Event::ThreadSeen { thread, from: MonoNs(self.upto) });
        }
        let second = EpochSecond(((until - 1 + epoch_offset) / SECOND_NS) as u32);
        let mut delta = delta(thread, second, until - self.upto, &self.emitted, total);
        self.counted += moved(&self.emitted, total);
        self.counted -= shorten(&mut delta, self.counted);
        if self.is_unsampled {
            delta.cpu_ns = delta.on_cpu_ns.saturating_sub(delta.irq_ns).saturating_sub(delta.fault_on_cpu_ns);
        }
        emit(Event::Ledger(delta));
        self.emitted = *total;
        (self.upto, self.last_end) = (until, Some(until));
    }
}

/// The first second's end after `at`, by the wall clock.
fn end_after(at: u64, epoch_offset: u64) -> u64 {
    at + SECOND_NS - (at + epoch_offset) % SECOND_NS
}

impl Open {
    fn in_record(record: &thread_record) -> Self {
        Open {
            activity: record.activity,
            reason: record.reason,
            since: record.since,
            woken_at: (record.wake_ns > record.run_ns).then_some(record.wake_ns),
        }
    }

    fn in_second(record: &second_record) -> Self {
        Open {
            activity: record.activity,
            reason: record.reason,
            since: record.since,
            woken_at: (record.wake_ns > record.run_ns).then_some(record.wake_ns),
        }
    }

    /// `sums` plus what the thread did up to `until`.
    fn added_to(&self, sums: &ledger, until: u64) -> ledger {
        self.change(sums, until, u64::saturating_add)
    }

    /// `sums` less what the thread did up to `until`.
    fn subtracted_from(&self, sums: &ledger, until: u64) -> ledger {
        self.change(sums, until, u64::saturating_sub)
    }

    fn change(&self, sums: &ledger, until: u64, by: fn(u64, u64) -> u64) -> ledger {
        let mut sums = *sums;
        let ns = until.saturating_sub(self.since);
        match u64::from(self.activity) {
            c::ACTIVITY_RUNNING => sums.on_cpu = by(sums.on_cpu, ns),
            c::ACTIVITY_PREEMPTED => sums.preempted = by(sums.preempted, ns),
            c::ACTIVITY_NEW => sums.runnable = by(sums.runnable, ns),
            c::ACTIVITY_BLOCKED => {
                let woken_at = self.woken_at.unwrap_or(until).clamp(self.since, until.max(self.since));
                let blocked = woken_at - self.since;
                if let Some(reason) = sums.blocked.get_mut(usize::from(self.reason)) {
                    *reason = by(*reason, blocked);
                }
                sums.runnable = by(sums.runnable, ns - blocked.min(ns));
            }
            _ => {}
        }
        sums
    }
}

/// What `total` has more than `emitted`, field by field.
fn delta(
    thread: ThreadKey,
    second: EpochSecond,
    wall_ns: u64,
    emitted: &ledger,
    total: &ledger,
) -> LedgerDelta {
    let mut delta = LedgerDelta::new(thread, second);
    delta.wall_ns = wall_ns;
    delta.on_cpu_ns = total.on_cpu.saturating_sub(emitted.on_cpu);
    delta.irq_ns = total.irq.saturating_sub(emitted.irq);
    delta.runnable_ns = total.runnable.saturating_sub(emitted.runnable);
    delta.preempted_ns = total.preempted.saturating_sub(emitted.preempted);
    delta.fault_on_cpu_ns = total.fault_on_cpu.saturating_sub(emitted.fault_on_cpu);
    let slept = |index: usize| total.blocked[index].saturating_sub(emitted.blocked[index]);
    for (index, blocked) in delta.blocked_ns.iter_mut().enumerate() {
        *blocked = slept(index);
    }
    delta.fault_minor_ns = slept(c::SLEEP_FAULT_MINOR as usize);
    delta.fault_major_ns = slept(c::SLEEP_FAULT_MAJOR as usize);
    let ended = |end: u64| total.faults[end as usize].saturating_sub(emitted.faults[end as usize]);
    delta.minor_faults = ended(c::FAULT_MINOR);
    delta.major_faults = ended(c::FAULT_MAJOR);
    delta.failed_faults = ended(c::FAULT_FAILED);
    delta.voluntary_switches = total.voluntary.saturating_sub(emitted.voluntary);
    delta.involuntary_switches = total.involuntary.saturating_sub(emitted.involuntary);
    delta.user_samples = total.user_samples.saturating_sub(emitted.user_samples);
    delta.kernel_samples = total.kernel_samples.saturating_sub(emitted.kernel_samples);
    delta
}

/// The wall time in these sums. Time on the CPU in page faults is in two of them.
fn wall_of(sums: &ledger) -> u64 {
    let others: u64 = sums.blocked.iter().sum();
    (sums.on_cpu + sums.runnable + sums.preempted + others).saturating_sub(sums.fault_on_cpu)
}

/// What `total` has less than `emitted`: time that moved to another state after it was emitted. The kernel side
/// learns at a thread's switch-out how much of the wait before it the thread was running (`charge_running`), and
/// at the end of a page fault whether it was major.
fn moved(emitted: &ledger, total: &ledger) -> u64 {
    let sleeps: u64 = emitted.blocked.iter().zip(total.blocked).map(|(was, is)| was.saturating_sub(is)).sum();
    emitted.on_cpu.saturating_sub(total.on_cpu)
        + emitted.runnable.saturating_sub(total.runnable)
        + emitted.preempted.saturating_sub(total.preempted)
        + sleeps
}

/// Takes up to `ns` out of the states of a delta, and returns how much: running time first, to which time moves.
fn shorten(delta: &mut LedgerDelta, ns: u64) -> u64 {
    let mut left = ns;
    let mut take = |state: &mut u64, at_most: u64| {
        let taken = left.min(at_most);
        *state -= taken;
        left -= taken;
    };
    let elsewhere = delta.irq_ns.saturating_add(delta.fault_on_cpu_ns);
    let running = delta.on_cpu_ns.saturating_sub(elsewhere);
    take(&mut delta.on_cpu_ns, running);
    let fault_minor = delta.fault_minor_ns.saturating_sub(delta.fault_on_cpu_ns);
    let fault_major = delta.fault_major_ns.saturating_sub(delta.fault_on_cpu_ns);
    take(&mut delta.fault_major_ns, fault_major);
    take(&mut delta.fault_minor_ns, fault_minor);
    for state in delta.blocked_ns.iter_mut().chain([&mut delta.runnable_ns, &mut delta.preempted_ns]) {
        let whole = *state;
        take(state, whole);
    }
    ns - left
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wallprof_model::Reason;

    use super::*;

    const START: u64 = 10 * SECOND_NS;

    fn record(activity: u64, since: u64) -> thread_record {
        thread_record {
            key: 1,
            observed_from: START,
            since,
            run_ns: START,
            activity: activity as u8,
            on_mask: 1,
            ..thread_record::default()
        }
    }

    fn deltas(accounts: &mut Accounts, until: u64) -> Vec<LedgerDelta> {
        let mut out = Vec::new();
        accounts.flush(until, 0, &mut |event| {
            if let Event::Ledger(delta) = event {
                out.push(delta);
            }
        });
        out
    }

    #[test]
    fn sleeper_without_events_sleeps_in_every_second() {
        let mut accounts = Accounts::default();
        let mut sleeper = record(c::ACTIVITY_BLOCKED, START);
        sleeper.reason = Reason::Poll.code();
        assert!(accounts.update(&sleeper));
        for second in 1..4 {
            let emitted = deltas(&mut accounts, START + second * SECOND_NS);
            assert_eq!(emitted.len(), 1);
            assert_eq!(emitted[0].wall_ns, SECOND_NS);
            assert_eq!(emitted[0].blocked_ns[usize::from(Reason::Poll.code())], SECOND_NS);
            assert_eq!(emitted[0].second, EpochSecond(10 + second as u32 - 1));
        }
    }

    #[test]
    fn woken_thread_is_runnable_from_its_wakeup() {
        let mut accounts = Accounts::default();
        let mut woken = record(c::ACTIVITY_BLOCKED, START + 100);
        woken.ledger.on_cpu = 100;
        woken.wake_ns = START + 400;
        accounts.update(&woken);
        let emitted = deltas(&mut accounts, START + 1_000);
        assert_eq!(emitted[0].on_cpu_ns, 100);
        assert_eq!(emitted[0].blocked_ns[0], 300);
        assert_eq!(emitted[0].runnable_ns, 600);
        assert_eq!(emitted[0].wall_ns, 1_000);
    }

    #[test]
    fn events_after_the_second_s_end_belong_to_the_next_one() {
        let mut accounts = Accounts::default();
        let end = START + SECOND_NS;
        let mut busy = record(c::ACTIVITY_RUNNING, end + 50);
        busy.boundary = end;
        busy.at_boundary.on_cpu = SECOND_NS;
        busy.ledger.on_cpu = SECOND_NS + 20;
        busy.ledger.preempted = 30;
        accounts.update(&busy);
        assert_eq!(deltas(&mut accounts, end)[0].on_cpu_ns, SECOND_NS);
        let rest = deltas(&mut accounts, end + 100);
        assert_eq!((rest[0].on_cpu_ns, rest[0].preempted_ns, rest[0].wall_ns), (70, 30, 100));
    }

    #[test]
    fn second_that_was_closed_early_ends_where_it_was_closed() {
        let mut accounts = Accounts::default();
        let end = START + SECOND_NS;
        let mut busy = record(c::ACTIVITY_RUNNING, end + 50);
        busy.boundary = end - 7;
        busy.at_boundary.on_cpu = SECOND_NS - 7;
        busy.ledger.on_cpu = SECOND_NS + 50;
        accounts.update(&busy);
        let emitted = deltas(&mut accounts, end);
        assert_eq!((emitted[0].on_cpu_ns, emitted[0].wall_ns), (SECOND_NS - 7, SECOND_NS - 7));
        assert_eq!(deltas(&mut accounts, end + 100)[0].on_cpu_ns, 107);
    }

    #[test]
    fn ended_thread_is_emitted_up_to_its_end() {
        let mut accounts = Accounts::default();
        let mut dead = record(c::ACTIVITY_DEAD, START + 500);
        dead.ledger.on_cpu = 500;
        let mut events = Vec::new();
        accounts.end(&dead, 0, &mut |event| events.push(event));
        assert!(matches!(&events[0], Event::ThreadSeen { from, .. } if from.0 == START));
        assert!(matches!(&events[1], Event::Ledger(delta) if delta.on_cpu_ns == 500 && delta.wall_ns == 500));
        assert!(matches!(&events[2], Event::ThreadEnd { at, .. } if at.0 == START + 500));
        assert!(deltas(&mut accounts, START + SECOND_NS).is_empty());
    }

    #[test]
    fn pause_counts_for_no_state() {
        let mut accounts = Accounts::default();
        let mut busy = record(c::ACTIVITY_RUNNING, START + 400);
        busy.ledger.on_cpu = 400;
        accounts.update(&busy);
        assert_eq!(deltas(&mut accounts, START + 1_000)[0].on_cpu_ns, 1_000, "to the pause");
        accounts.resume(START + 9_000);
        (busy.observed_from, busy.since) = (START + 9_000, START + 9_000);
        assert!(!accounts.update(&busy));
        let emitted = deltas(&mut accounts, START + 9_500);
        assert_eq!((emitted[0].on_cpu_ns, emitted[0].wall_ns), (500, 500));
    }

    /// The states of a delta.
    fn states(delta: &LedgerDelta) -> u64 {
        let sleeps = delta.blocked_ns.iter().sum::<u64>() + delta.fault_minor_ns + delta.fault_major_ns;
        delta.on_cpu_ns - delta.fault_on_cpu_ns + delta.runnable_ns + delta.preempted_ns + sleeps
    }

    #[test]
    fn time_that_moves_to_running_after_it_was_emitted_counts_once() {
        let mut accounts = Accounts::default();
        let mut woken = record(c::ACTIVITY_RUNNING, START + 8_000);
        woken.ledger.blocked[0] = 8_000;
        accounts.update(&woken);
        let first = deltas(&mut accounts, START + 8_100);
        assert_eq!((first[0].blocked_ns[0], first[0].on_cpu_ns), (8_000, 100));
        // Of the wait, the thread ran the last 7,900 ns by the scheduler's sum.
        let mut left = record(c::ACTIVITY_BLOCKED, START + 9_000);
        (left.ledger.blocked[0], left.ledger.on_cpu) = (100, 1_000 + 7_900);
        accounts.update(&left);
        let second = deltas(&mut accounts, START + 9_000);
        assert_eq!((second[0].wall_ns, states(&second[0]), second[0].on_cpu_ns), (900, 900, 900));
        let third = deltas(&mut accounts, START + 9_500);
        assert_eq!((third[0].blocked_ns[0], states(&third[0])), (500, 500), "later waits count whole");
    }

    #[test]
    fn more_time_than_a_delta_has_is_taken_from_the_next_ones() {
        let mut accounts = Accounts::default();
        let mut woken = record(c::ACTIVITY_RUNNING, START + 8_000);
        woken.ledger.preempted = 8_000;
        accounts.update(&woken);
        deltas(&mut accounts, START + 8_000);
        // The sums lack 300 ns at the first reading.
        let mut left = record(c::ACTIVITY_BLOCKED, START + 8_100);
        (left.ledger.preempted, left.ledger.on_cpu) = (7_600, 200);
        accounts.update(&left);
        let all: Vec<_> =
            [8_100, 8_500].iter().flat_map(|until| deltas(&mut accounts, START + until)).collect();
        assert_eq!(all.iter().map(states).collect::<Vec<_>>(), [0, 200]);
    }

    #[test]
    fn switch_that_is_counted_after_the_last_look_before_a_pause_counts_once() {
        let mut accounts = Accounts::default();
        accounts.update(&record(c::ACTIVITY_RUNNING, START));
        assert_eq!(deltas(&mut accounts, START + 1_000)[0].on_cpu_ns, 1_000, "to the pause");
        accounts.resume(START + 9_000);
        // It had run for 900 ns, and then slept. It was woken after the pause, and runs.
        let mut woken = record(c::ACTIVITY_RUNNING, START + 9_300);
        (woken.ledger.on_cpu, woken.ledger.blocked[2]) = (900, 300);
        accounts.update(&woken);
        let emitted = deltas(&mut accounts, START + 11_000);
        assert_eq!((emitted[0].wall_ns, states(&emitted[0])), (2_000, 2_000));
        assert_eq!((emitted[0].blocked_ns[2], emitted[0].on_cpu_ns), (300, 1_700));
    }

    #[test]
    fn thread_that_ended_in_a_pause_gets_an_end() {
        let mut accounts = Accounts::default();
        accounts.update(&record(c::ACTIVITY_RUNNING, START + 400));
        deltas(&mut accounts, START + 1_000);
        accounts.resume(START + 9_000);
        accounts.keep(&HashSet::new());
        let mut events = Vec::new();
        accounts.flush(START + 9_500, 0, &mut |event| events.push(event));
        let end = MonoNs(START + 1_000);
        assert!(matches!(events[..], [Event::ThreadEnd { thread: ThreadKey(1), at }] if at == end));
        assert!(deltas(&mut accounts, START + 9_600).is_empty());
    }

    #[test]
    fn thread_that_ends_right_after_a_pause_counts_from_the_pause_on() {
        let mut accounts = Accounts::default();
        let mut busy = record(c::ACTIVITY_RUNNING, START + 400);
        busy.ledger.on_cpu = 400;
        accounts.update(&busy);
        deltas(&mut accounts, START + 1_000);
        accounts.resume(START + 9_000);
        accounts.keep(&HashSet::new());
        let mut dead = record(c::ACTIVITY_DEAD, START + 9_050);
        (dead.observed_from, dead.ledger.on_cpu) = (START + 9_000, 450);
        let mut events = Vec::new();
        accounts.end(&dead, 0, &mut |event| events.push(event));
        assert!(matches!(&events[0], Event::Ledger(delta) if delta.on_cpu_ns == 50 && delta.wall_ns == 50));
        assert!(matches!(&events[1..], [Event::ThreadEnd { at, .. }] if at.0 == START + 9_050));
        assert!(deltas(&mut accounts, START + 9_500).is_empty());
    }

    #[test]
    fn thread_whose_end_was_lost_ends_at_the_second_look() {
        let mut accounts = Accounts::default();
        let thread = |key, tid, start_boottime| thread_record {
            key,
            tid,
            start_boottime,
            ..record(c::ACTIVITY_RUNNING, START)
        };
        // The tid of thread 3 was used again by thread 4.
        for record in [thread(1, 7, 0), thread(2, 8, 0), thread(3, 9, 0), thread(4, 9, 5)] {
            accounts.update(&record);
        }
        deltas(&mut accounts, START + 1_000);
        let look = |accounts: &mut Accounts, living: &[u32]| {
            let mut events = Vec::new();
            let ended = accounts.end_unseen(&|tid| living.contains(&tid), &mut |event| events.push(event));
            assert_eq!(events.len(), ended.len());
            ended
        };
        assert_eq!(look(&mut accounts, &[7, 9]), [0; 0], "their records may be on the way");
        // The record of thread 2 was.
        accounts.end(&thread(2, 8, 0), 0, &mut |_| {});
        assert_eq!(look(&mut accounts, &[9]), [3]);
        assert_eq!(look(&mut accounts, &[9]), [1]);
        assert_eq!((look(&mut accounts, &[9]), accounts.count()), (vec![], 1));
    }

    #[test]
    fn process_has_its_first_thread_and_the_time_of_all_threads() {
        let mut accounts = Accounts::default();
        let thread = |key, tid, on_cpu| {
            let mut thread = thread_record { key, tid, tgid: 7, ..record(c::ACTIVITY_RUNNING, START) };
            thread.ledger.on_cpu = on_cpu;
            thread
        };
        let kernel_thread = thread_record { tgid: 2, kernel_thread: 1, ..thread(9, 2, 5) };
        for record in [thread(1, 8, 10), thread(2, 7, 20), thread(3, 9, 30), kernel_thread] {
            accounts.update(&record);
        }
        assert_eq!(accounts.processes(), [Candidate { pid: 7, thread: ThreadKey(2), on_cpu_ns: 60 }]);
        assert_eq!(accounts.count(), 4);
    }

    #[test]
    fn thread_that_ran_on_no_recorded_cpu_is_not_emitted() {
        let mut accounts = Accounts::default();
        let mut elsewhere = record(c::ACTIVITY_RUNNING, START);
        elsewhere.on_mask = 0;
        accounts.update(&elsewhere);
        assert!(deltas(&mut accounts, START + SECOND_NS).is_empty());
        elsewhere.on_mask = 1;
        accounts.update(&elsewhere);
        let emitted = deltas(&mut accounts, START + 2 * SECOND_NS);
        assert_eq!(emitted.iter().map(|delta| delta.wall_ns).sum::<u64>(), 2 * SECOND_NS);
    }

    #[test]
    fn reads_every_few_seconds_emit_each_second() {
        let mut accounts = Accounts::default();
        let mut sleeper = record(c::ACTIVITY_BLOCKED, START + 400);
        sleeper.ledger.on_cpu = 400;
        sleeper.wake_ns = START + 2 * SECOND_NS + 7;
        accounts.update(&sleeper);
        let emitted = deltas(&mut accounts, START + 3 * SECOND_NS);
        let seconds: Vec<_> = emitted.iter().map(|delta| (delta.second.0, delta.wall_ns)).collect();
        assert_eq!(seconds, [(10, SECOND_NS), (11, SECOND_NS), (12, SECOND_NS)]);
        assert_eq!((emitted[0].on_cpu_ns, emitted[0].blocked_ns[0]), (400, SECOND_NS - 400));
        assert_eq!((emitted[2].blocked_ns[0], emitted[2].runnable_ns), (7, SECOND_NS - 7));
    }

    #[test]
    fn closed_second_waits_for_the_record_of_its_thread() {
        let mut accounts = Accounts::default();
        let mut second = second_record { key: 1, boundary: START + SECOND_NS, ..second_record::default() };
        (second.since, second.activity) = (START, c::ACTIVITY_RUNNING as u8);
        second.ledger.on_cpu = SECOND_NS;
        accounts.close_second(&second);
        assert!(deltas(&mut accounts, START).is_empty());
        accounts.update(&record(c::ACTIVITY_RUNNING, START + 2 * SECOND_NS + 1));
        let emitted = deltas(&mut accounts, START + 2 * SECOND_NS);
        assert_eq!(emitted.iter().map(|delta| delta.on_cpu_ns).collect::<Vec<_>>(), [SECOND_NS]);
        assert!(accounts.early.is_empty());
        accounts.close_second(&second_record { key: 9, ..second });
        deltas(&mut accounts, START + 3 * SECOND_NS);
        assert!(accounts.early.is_empty(), "its thread is never known");
    }

    #[test]
    fn last_minute_of_a_long_silence_is_emitted_by_seconds() {
        let mut accounts = Accounts::default();
        accounts.update(&record(c::ACTIVITY_BLOCKED, START));
        let emitted = deltas(&mut accounts, START + 10_000 * SECOND_NS);
        assert_eq!(emitted.len() as u64, MAX_SECONDS);
        assert_eq!(emitted[0].wall_ns, (10_001 - MAX_SECONDS) * SECOND_NS);
        assert_eq!(emitted.iter().map(|delta| delta.wall_ns).sum::<u64>(), 10_000 * SECOND_NS);
    }

    proptest! {
        /// The deltas of a thread add up to its wall time exactly.
        #[test]
        fn deltas_partition_wall_time(
            lengths in proptest::collection::vec((1u64..700_000_000, 0u64..4), 1..40)
        ) {
            let mut accounts = Accounts::default();
            let mut sums = ledger::default();
            let (mut now, mut boundary, mut at_boundary) = (START, 0, ledger::default());
            let mut emitted = 0;
            let mut wall = 0;
            for (length, activity) in lengths {
                let mut from = now;
                now += length;
                // The kernel side closes a second at the first event after its end.
                let end = now - now % SECOND_NS;
                if end > from {
                    add(&mut sums, activity, end - from);
                    (boundary, at_boundary, from) = (end, sums, end);
                }
                add(&mut sums, activity, now - from);
                let mut current = record(c::ACTIVITY_RUNNING, now);
                (current.ledger, current.boundary, current.at_boundary) = (sums, boundary, at_boundary);
                accounts.update(&current);
                for delta in deltas(&mut accounts, now - now % SECOND_NS) {
                    wall += delta.wall_ns;
                    emitted += delta.on_cpu_ns + delta.runnable_ns + delta.preempted_ns + delta.blocked_ns.iter().sum::<u64>();
                }
                prop_assert_eq!(emitted, wall);
            }
            for delta in deltas(&mut accounts, now) {
                wall += delta.wall_ns;
                emitted += delta.on_cpu_ns + delta.runnable_ns + delta.preempted_ns + delta.blocked_ns.iter().sum::<u64>();
            }
            prop_assert_eq!(wall, now - START);
            prop_assert_eq!(emitted, wall);
        }
    }

    /// A thread's record as the kernel side keeps it.
    struct Kept {
        now: thread_record,
        sent: Vec<second_record>,
    }

    impl Kept {
        /// Goes on to `at` with its activity. Closes the second if `at` lies in a later one.
        fn event(&mut self, at: u64, then: u64, woken_at: u64) {
            let end = at - at % SECOND_NS;
            if end > self.now.since {
                let record = self.now;
                let ledger = Open::in_record(&record).added_to(&record.ledger, end);
                let second = second_record {
                    key: record.key,
                    boundary: end,
                    since: record.since,
                    run_ns: record.run_ns,
                    wake_ns: record.wake_ns,
                    activity: record.activity,
                    reason: record.reason,
                    ledger,
                    ..second_record::default()
                };
                self.sent.push(second);
                (self.now.ledger, self.now.at_boundary, self.now.boundary, self.now.since) =
                    (ledger, ledger, end, end);
            }
            self.now.ledger = Open::in_record(&self.now).added_to(&self.now.ledger, at);
            (self.now.since, self.now.run_ns, self.now.activity) = (at, at, then as u8);
            self.now.wake_ns = woken_at;
            self.now.reason = (at % 3) as u8;
        }
    }

    /// The deltas of these intervals (length, activity, wakeup) when the thread is read at the seconds for
    /// which `reads` is true, and at the last one.
    fn emitted_by_reads(
        intervals: &[(u64, u64, u64)],
        with_seconds: bool,
        reads: impl Fn(u64) -> bool,
    ) -> Vec<LedgerDelta> {
        let mut accounts = Accounts::default();
        let mut kept = Kept { now: record(c::ACTIVITY_RUNNING, START), sent: Vec::new() };
        let (mut now, mut second, mut out) = (START, 11, Vec::new());
        let last = (START + intervals.iter().map(|interval| interval.0).sum::<u64>()) / SECOND_NS;
        for &(length, then, woken) in intervals {
            // Reads come a little after the end of a second, before the next event or after it.
            while now + length > second * SECOND_NS + SETTLED_NS {
                if second == last || reads(second) {
                    read(&mut accounts, &mut kept, with_seconds);
                    out.extend(deltas(&mut accounts, second * SECOND_NS));
                }
                second += 1;
            }
            now += length;
            kept.event(now, then, now + woken);
        }
        read(&mut accounts, &mut kept, with_seconds);
        out.extend(deltas(&mut accounts, last * SECOND_NS));
        out
    }

    const SETTLED_NS: u64 = 20_000_000;

    fn read(accounts: &mut Accounts, kept: &mut Kept, with_seconds: bool) {
        // In reverse order: a thread that migrates closes its seconds in other CPUs' rings.
        for second in std::mem::take(&mut kept.sent).into_iter().rev() {
            if with_seconds {
                accounts.close_second(&second);
            }
        }
        accounts.update(&kept.now);
    }

    proptest! {
        /// With the seconds that a thread closed, rare reads emit the same deltas as frequent ones.
        #[test]
        fn rare_reads_emit_the_same_as_one_a_second(
            intervals in proptest::collection::vec((1u64..3_500_000_000, 1u64..5, 1u64..3_500_000_000), 1..40),
            every in 2u64..7,
        ) {
            let each = emitted_by_reads(&intervals, false, |_| true);
            prop_assert_eq!(&emitted_by_reads(&intervals, true, |_| true), &each);
            prop_assert_eq!(&emitted_by_reads(&intervals, true, |second| second.is_multiple_of(every)), &each);
            let alone = emitted_by_reads(&intervals, false, |second| second.is_multiple_of(every));
            let wall = |deltas: &[LedgerDelta]| deltas.iter().map(|delta| delta.wall_ns).sum::<u64>();
            prop_assert_eq!(wall(&alone), wall(&each), "no time is lost without them");
        }
    }

    fn add(sums: &mut ledger, activity: u64, ns: u64) {
        match activity {
            0 => sums.on_cpu += ns,
            1 => sums.preempted += ns,
            2 => sums.runnable += ns,
            _ => sums.blocked[3] += ns,
        }
    }
}
