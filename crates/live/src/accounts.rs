//! Ledgers cut into one-second buckets: from what the kernel side has added up per thread to what each second adds.
//!
//! Pure. The kernel side keeps, per thread, the sum of all closed time and a copy of it at the last second's end that
//! the thread passed with an event; what a thread has been doing since its last event is added here.

use std::collections::{BTreeMap, HashMap, HashSet};

use wallprof_model::event::LedgerDelta;
use wallprof_model::{EpochSecond, Event, MonoNs, ThreadKey};
use wallprof_probe::bpf::{constants as c, ledger, thread_record};

use crate::counters::Candidate;

/// A thread as last heard of, and how far it has been told.
struct Account {
    record: thread_record,
    /// What all deltas so far add up to.
    told: ledger,
    /// The time up to which they reach.
    upto: u64,
    seen: bool,
}

/// All threads that have not ended.
#[derive(Default)]
pub struct Accounts {
    by_key: HashMap<u32, Account>,
}

const SECOND_NS: u64 = 1_000_000_000;

impl Accounts {
    /// Takes the newest record of a thread. True when it is the thread's first.
    pub fn update(&mut self, record: &thread_record) -> bool {
        match self.by_key.get_mut(&record.key) {
            Some(account) => {
                account.record = *record;
                false
            }
            None => {
                let account = Account {
                    record: *record,
                    told: ledger::default(),
                    upto: record.observed_from,
                    seen: false,
                };
                self.by_key.insert(record.key, account);
                true
            }
        }
    }

    /// The processes whose threads have not ended, kernel threads left out.
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

    /// Since when a thread has been doing what it does: the start of its wait, if it waits.
    pub fn since(&self, key: u32) -> Option<u64> {
        self.by_key.get(&key).map(|account| account.record.since)
    }

    /// Tells what every thread did up to `until`, which is a second's end or the recording's.
    pub fn tell(&mut self, until: u64, epoch_offset: u64, tell: &mut dyn FnMut(Event)) {
        for account in self.by_key.values_mut() {
            account.tell(until, epoch_offset, tell);
        }
    }

    /// Nothing was counted up to `at`: what comes is added to what was added up before.
    pub fn resume(&mut self, at: u64) {
        for account in self.by_key.values_mut() {
            (account.told, account.upto) = (account.record.ledger, at);
        }
    }

    /// Tells of all threads but these that they ended, unseen, when they were last heard of; and forgets them.
    pub fn keep(&mut self, living: &HashSet<u32>, tell: &mut dyn FnMut(Event)) {
        self.by_key.retain(|key, account| {
            let lives = living.contains(key);
            if !lives && account.seen {
                let at = MonoNs(account.record.since);
                tell(Event::ThreadEnd { thread: ThreadKey(*key), at });
            }
            lives
        });
    }

    /// Tells the rest of a thread that ended, and forgets it. `record` is its last one.
    pub fn end(&mut self, record: &thread_record, epoch_offset: u64, tell: &mut dyn FnMut(Event)) {
        self.update(record);
        let Some(mut account) = self.by_key.remove(&record.key) else { return };
        if record.boundary > account.upto && record.boundary < record.since {
            account.tell(record.boundary, epoch_offset, tell);
        }
        account.tell(record.since, epoch_offset, tell);
        if account.seen {
            tell(Event::ThreadEnd { thread: ThreadKey(record.key), at: MonoNs(record.since) });
        }
    }
}

impl Account {
    fn tell(&mut self, until: u64, epoch_offset: u64, tell: &mut dyn FnMut(Event)) {
        // A thread that has gone on past `until` is known exactly only where it closed a second: at a later one's end, or
        // at an earlier one's when the wall clock was stepped in between.
        let gone_on = self.record.boundary >= until || self.record.since > until;
        let until = if gone_on { self.record.boundary } else { until };
        if until <= self.upto || self.record.on_mask == 0 {
            return;
        }
        let thread = ThreadKey(self.record.key);
        if !self.seen {
            self.seen = true;
            tell(Event::ThreadSeen { thread, from: MonoNs(self.upto) });
        }
        let total = ledger_at(&self.record, until);
        let second = EpochSecond(((until - 1 + epoch_offset) / SECOND_NS) as u32);
        tell(Event::Ledger(delta(thread, second, until - self.upto, &self.told, &total)));
        self.told = highest(&self.told, &total);
        self.upto = until;
    }
}

/// The thread's sums at `until`, which is not before its last closed second.
fn ledger_at(record: &thread_record, until: u64) -> ledger {
    if record.boundary == until {
        return record.at_boundary;
    }
    let mut sums = record.ledger;
    let open = until.saturating_sub(record.since);
    match u64::from(record.activity) {
        c::ACTIVITY_RUNNING => sums.on_cpu += open,
        c::ACTIVITY_PREEMPTED => sums.preempted += open,
        c::ACTIVITY_NEW => sums.runnable += open,
        c::ACTIVITY_BLOCKED => {
            let woken = record.wake_ns > record.run_ns;
            let wake =
                if woken { record.wake_ns.clamp(record.since, until.max(record.since)) } else { until };
            let blocked = wake.saturating_sub(record.since);
            if let Some(reason) = sums.blocked.get_mut(usize::from(record.reason)) {
                *reason += blocked;
            }
            sums.runnable += open - blocked.min(open);
        }
        _ => {}
    }
    sums
}

/// Field by field. A sum that was guessed a little too high at a second's end is made up for by the next delta.
fn delta(thread: ThreadKey, second: EpochSecond, wall_ns: u64, told: &ledger, total: &ledger) -> LedgerDelta {
    let mut delta = LedgerDelta::new(thread, second);
    delta.wall_ns = wall_ns;
    delta.on_cpu_ns = total.on_cpu.saturating_sub(told.on_cpu);
    delta.irq_ns = total.irq.saturating_sub(told.irq);
    delta.runnable_ns = total.runnable.saturating_sub(told.runnable);
    delta.preempted_ns = total.preempted.saturating_sub(told.preempted);
    delta.fault_on_cpu_ns = total.fault_on_cpu.saturating_sub(told.fault_on_cpu);
    let slept = |index: usize| total.blocked[index].saturating_sub(told.blocked[index]);
    for (index, blocked) in delta.blocked_ns.iter_mut().enumerate() {
        *blocked = slept(index);
    }
    delta.fault_minor_ns = slept(c::SLEEP_FAULT_MINOR as usize);
    delta.fault_major_ns = slept(c::SLEEP_FAULT_MAJOR as usize);
    let ended = |end: u64| total.faults[end as usize].saturating_sub(told.faults[end as usize]);
    delta.minor_faults = ended(c::FAULT_MINOR);
    delta.major_faults = ended(c::FAULT_MAJOR);
    delta.failed_faults = ended(c::FAULT_FAILED);
    delta.voluntary_switches = total.voluntary.saturating_sub(told.voluntary);
    delta.involuntary_switches = total.involuntary.saturating_sub(told.involuntary);
    delta.user_samples = total.user_samples.saturating_sub(told.user_samples);
    delta.kernel_samples = total.kernel_samples.saturating_sub(told.kernel_samples);
    delta
}

fn highest(told: &ledger, total: &ledger) -> ledger {
    let (mut blocked, mut faults) = (told.blocked, told.faults);
    for (sum, new) in blocked.iter_mut().zip(total.blocked).chain(faults.iter_mut().zip(total.faults)) {
        *sum = (*sum).max(new);
    }
    ledger {
        fault_on_cpu: told.fault_on_cpu.max(total.fault_on_cpu),
        faults,
        on_cpu: told.on_cpu.max(total.on_cpu),
        irq: told.irq.max(total.irq),
        runnable: told.runnable.max(total.runnable),
        preempted: told.preempted.max(total.preempted),
        blocked,
        voluntary: told.voluntary.max(total.voluntary),
        involuntary: told.involuntary.max(total.involuntary),
        user_samples: told.user_samples.max(total.user_samples),
        kernel_samples: told.kernel_samples.max(total.kernel_samples),
    }
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
        accounts.tell(until, 0, &mut |event| {
            if let Event::Ledger(delta) = event {
                out.push(delta);
            }
        });
        out
    }

    #[test]
    fn a_sleeper_without_events_sleeps_every_second() {
        let mut accounts = Accounts::default();
        let mut sleeper = record(c::ACTIVITY_BLOCKED, START);
        sleeper.reason = Reason::Poll.code();
        assert!(accounts.update(&sleeper));
        for second in 1..4 {
            let told = deltas(&mut accounts, START + second * SECOND_NS);
            assert_eq!(told.len(), 1);
            assert_eq!(told[0].wall_ns, SECOND_NS);
            assert_eq!(told[0].blocked_ns[usize::from(Reason::Poll.code())], SECOND_NS);
            assert_eq!(told[0].second, EpochSecond(10 + second as u32 - 1));
        }
    }

    #[test]
    fn a_woken_thread_is_runnable_from_its_wakeup() {
        let mut accounts = Accounts::default();
        let mut woken = record(c::ACTIVITY_BLOCKED, START + 100);
        woken.ledger.on_cpu = 100;
        woken.wake_ns = START + 400;
        accounts.update(&woken);
        let told = deltas(&mut accounts, START + 1_000);
        assert_eq!(told[0].on_cpu_ns, 100);
        assert_eq!(told[0].blocked_ns[0], 300);
        assert_eq!(told[0].runnable_ns, 600);
        assert_eq!(told[0].wall_ns, 1_000);
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
    fn a_second_closed_a_little_early_is_told_as_it_was_closed() {
        let mut accounts = Accounts::default();
        let end = START + SECOND_NS;
        let mut busy = record(c::ACTIVITY_RUNNING, end + 50);
        busy.boundary = end - 7;
        busy.at_boundary.on_cpu = SECOND_NS - 7;
        busy.ledger.on_cpu = SECOND_NS + 50;
        accounts.update(&busy);
        let told = deltas(&mut accounts, end);
        assert_eq!((told[0].on_cpu_ns, told[0].wall_ns), (SECOND_NS - 7, SECOND_NS - 7));
        assert_eq!(deltas(&mut accounts, end + 100)[0].on_cpu_ns, 107);
    }

    #[test]
    fn an_ended_thread_is_told_to_its_end_and_no_further() {
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
    fn a_pause_counts_for_nobody() {
        let mut accounts = Accounts::default();
        let mut busy = record(c::ACTIVITY_RUNNING, START + 400);
        busy.ledger.on_cpu = 400;
        accounts.update(&busy);
        assert_eq!(deltas(&mut accounts, START + 1_000)[0].on_cpu_ns, 1_000, "to the pause");
        accounts.resume(START + 9_000);
        (busy.observed_from, busy.since) = (START + 9_000, START + 9_000);
        assert!(!accounts.update(&busy));
        let told = deltas(&mut accounts, START + 9_500);
        assert_eq!((told[0].on_cpu_ns, told[0].wall_ns), (500, 500));
    }

    #[test]
    fn who_ended_in_a_pause_is_told_and_forgotten() {
        let mut accounts = Accounts::default();
        accounts.update(&record(c::ACTIVITY_RUNNING, START + 400));
        deltas(&mut accounts, START + 1_000);
        accounts.resume(START + 9_000);
        let mut events = Vec::new();
        accounts.keep(&HashSet::new(), &mut |event| events.push(event));
        assert!(matches!(events[..], [Event::ThreadEnd { thread: ThreadKey(1), .. }]));
        assert!(deltas(&mut accounts, START + 9_500).is_empty());
    }

    #[test]
    fn processes_go_by_their_first_thread_and_the_time_of_all() {
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
    fn a_thread_that_ran_on_no_wanted_cpu_is_not_told() {
        let mut accounts = Accounts::default();
        let mut elsewhere = record(c::ACTIVITY_RUNNING, START);
        elsewhere.on_mask = 0;
        accounts.update(&elsewhere);
        assert!(deltas(&mut accounts, START + SECOND_NS).is_empty());
        elsewhere.on_mask = 1;
        accounts.update(&elsewhere);
        assert_eq!(deltas(&mut accounts, START + 2 * SECOND_NS)[0].wall_ns, 2 * SECOND_NS);
    }

    proptest! {
        /// Whatever the intervals, the deltas of a thread add up to its wall time exactly.
        #[test]
        fn deltas_partition_wall_time(
            lengths in proptest::collection::vec((1u64..700_000_000, 0u64..4), 1..40)
        ) {
            let mut accounts = Accounts::default();
            let mut sums = ledger::default();
            let (mut now, mut boundary, mut at_boundary) = (START, 0, ledger::default());
            let mut told = 0;
            let mut wall = 0;
            for (length, activity) in lengths {
                let mut from = now;
                now += length;
                // As the kernel side closes seconds: at the first event after each end.
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
                    told += delta.on_cpu_ns + delta.runnable_ns + delta.preempted_ns + delta.blocked_ns.iter().sum::<u64>();
                }
                prop_assert_eq!(told, wall);
            }
            for delta in deltas(&mut accounts, now) {
                wall += delta.wall_ns;
                told += delta.on_cpu_ns + delta.runnable_ns + delta.preempted_ns + delta.blocked_ns.iter().sum::<u64>();
            }
            prop_assert_eq!(wall, now - START);
            prop_assert_eq!(told, wall);
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
