// SPDX-License-Identifier: Apache-2.0
//! For what part of the waiting time it is known who held what threads waited for, or who ended their waits. A thread
//! is named where that part is most of the time. Else the words say how much is not known: a few short waits say
//! nothing about the long ones.

use std::sync::Arc;

use wallprof_analysis::tally::Tally;
use wallprof_model::{FastMap, MonoNs, ThreadKey};

use super::case::{Case, Party};
use super::limits::is_share;
use super::wording;

/// A thread is named where one of this many parts of the waiting time says who it was.
const MOST: u64 = 2;

/// Waits that had not ended are said where they have one of this many parts of the time.
const WORTH_SAYING: u64 = 10;

/// A thread that goes on to wait does so within this time, ns: PostgreSQL's, after a look for deadlocks that found none.
const WAITS_ON_NS: u64 = 1_000_000;

/// The locks of PostgreSQL's lock manager, which alone its timers end.
const HEAVY_LOCKS: [&str; 7] = [
    "row lock",
    "unique key",
    "transaction lock",
    "table lock",
    "relation extension lock",
    "advisory lock",
    "heavyweight lock",
];

/// A transaction that is rolled back lets go of its locks within this time, ns.
const ROLLBACK_NS: u64 = 50_000_000;

/// Waits for locks of PostgreSQL that a timer of the waiting process ended, and those that ended with them.
pub(super) struct RolledBack {
    timers: usize,
    others: usize,
    ns: u64,
    whole_ns: u64,
}

impl RolledBack {
    /// `None` where they have less than half of the time. Interrupts end waits of PostgreSQL's lock manager
    /// by the timers of the waiting processes alone. Where such a process does not wait on, it rolls back, which ends the
    /// waits for its locks; or it finds that another one has just done so.
    pub fn of(cases: &[&Case]) -> Option<Self> {
        let is_of_postgresql = |case: &&Case| {
            case.meaning.as_ref().is_some_and(|meaning| {
                meaning.software.as_deref() == Some("postgresql") && HEAVY_LOCKS.contains(&&*meaning.name)
            })
        };
        let mut starts: FastMap<ThreadKey, Vec<MonoNs>> = FastMap::default();
        cases.iter().for_each(|case| starts.entry(case.thread).or_default().push(case.start));
        let waits_on = |case: &Case| {
            let of_thread = starts.get(&case.thread).map_or(&[][..], Vec::as_slice);
            of_thread.iter().any(|start| *start >= case.end && start.0 - case.end.0 <= WAITS_ON_NS)
        };
        let by_timer = |case: &Case| case.waker.as_ref().is_some_and(|waker| waker.by.is_none());
        let is_ended = |case: &&Case| is_of_postgresql(case) && !case.open && by_timer(case);
        let timers: Vec<&Case> =
            cases.iter().copied().filter(is_ended).filter(|case| !waits_on(case)).collect();
        let mut ends: FastMap<ThreadKey, Vec<MonoNs>> = FastMap::default();
        timers.iter().for_each(|case| ends.entry(case.thread).or_default().push(case.woken()));
        let is_freed = |case: &&Case| {
            let of_waker = case.waker_key().and_then(|by| ends.get(&by)).map_or(&[][..], Vec::as_slice);
            of_waker
                .iter()
                .any(|end| case.start < *end && case.woken() >= *end && case.woken().0 - end.0 <= ROLLBACK_NS)
        };
        let others: Vec<&Case> = cases.iter().copied().filter(is_freed).collect();
        let (ns, whole_ns) = (waited_ns(&timers) + waited_ns(&others), waited_ns(cases));
        let rolled_back = RolledBack { timers: timers.len(), others: others.len(), ns, whole_ns };
        is_most(ns, whole_ns).then_some(rolled_back)
    }

    /// `: timers of the waiting processes ended 4 of these waits, and 4 others ended at once after that, for 84 % of that
    /// time`.
    pub fn words(&self) -> String {
        let others = match self.others {
            0 => String::new(),
            1 => ", and another one ended at once after that".to_owned(),
            count => format!(", and {count} others ended at once after that"),
        };
        let share = wording::percent(self.ns, self.whole_ns);
        let timers = self.timers;
        format!(
            ": timers of the waiting processes ended {timers} of these waits{others}, for {share} of that time"
        )
    }
}

/// The time of waits until they were ended, ns. A holder is to blame for no later wait for a CPU.
pub(super) fn waited_ns(cases: &[&Case]) -> u64 {
    cases.iter().fold(0u64, |sum, case| sum.saturating_add(case.without_run_queue_ns()))
}

/// The part of it that has waits which are `wanted`, ns.
pub(super) fn part_ns(cases: &[&Case], wanted: impl Fn(&Case) -> bool) -> u64 {
    let wanted: Vec<&Case> = cases.iter().copied().filter(|case| wanted(case)).collect();
    waited_ns(&wanted)
}

/// Whether `part_ns` is at least half of the waits' time: a thread that is known of so much is named.
pub(super) fn is_most(part_ns: u64, whole_ns: u64) -> bool {
    part_ns > 0 && is_share(part_ns, MOST, whole_ns)
}

/// Whether interrupts ended waits of most of the time: of waits for a lock only timers do.
pub(super) fn is_interrupted(cases: &[&Case]) -> bool {
    is_most(interrupted_ns(cases), waited_ns(cases))
}

fn interrupted_ns(cases: &[&Case]) -> u64 {
    part_ns(cases, |case| case.waker.as_ref().is_some_and(|waker| waker.by.is_none()))
}

/// `: the holder is not known for 68 % of that time`: where it is known of `known_ns` of the waits. Nothing where nothing
/// at all is known about the ends of the waits.
pub(super) fn no_holder(cases: &[&Case], known_ns: u64) -> String {
    let whole_ns = waited_ns(cases);
    let unknown = wording::percent(whole_ns.saturating_sub(known_ns), whole_ns);
    match (is_interrupted(cases), known_ns) {
        (true, _) => {
            format!(": the holder is not known for {unknown} of that time, as timers ended most of it")
        }
        (false, 0) => String::new(),
        (false, _) => format!(": the holder is not known for {unknown} of that time"),
    }
}

/// `: interrupts ended it for 74 % of that time`, of waits for what nobody holds; `: timers` where the thread had asked
/// for no more time.
pub(super) fn no_end(cases: &[&Case], known_ns: u64) -> String {
    let whole_ns = waited_ns(cases);
    let of = |ns: u64| wording::percent(ns, whole_ns);
    let timed_out_ns = part_ns(cases, Case::timed_out);
    match (is_interrupted(cases), known_ns) {
        (true, _) if is_most(timed_out_ns, whole_ns) => {
            format!(": timers ended it for {} of that time", of(timed_out_ns))
        }
        (true, _) => format!(": interrupts ended it for {} of that time", of(interrupted_ns(cases))),
        (false, 0) => String::new(),
        (false, _) => {
            format!(
                ": no thread is known that ended it for {} of that time",
                of(whole_ns.saturating_sub(known_ns))
            )
        }
    }
}

/// The name that the threads of most of the waiting time share, where no one of them has that much: the processes that run
/// one after the other, the workers of a pool.
pub(super) fn namesakes(times: &Tally<Party>, whole_ns: u64) -> Option<Arc<str>> {
    name_of_most(times, whole_ns, |party| Arc::clone(&party.comm))
}

/// The same; or the name with a star for each number, which the threads of a pool share.
pub(super) fn of_one_name(times: &Tally<Party>, whole_ns: u64) -> Option<Arc<str>> {
    let of_pool = || name_of_most(times, whole_ns, |party| with_stars(&party.comm).into());
    namesakes(times, whole_ns).or_else(of_pool)
}

/// The name that `name_of` gives to the threads of most of the waiting time.
fn name_of_most(
    times: &Tally<Party>,
    whole_ns: u64,
    name_of: impl Fn(&Party) -> Arc<str>,
) -> Option<Arc<str>> {
    let mut names: Tally<Arc<str>> = Tally::default();
    times.ranked().into_iter().for_each(|(party, ns)| names.add(name_of(party), ns));
    names.top().filter(|(_, ns)| is_most(*ns, whole_ns)).map(|(name, _)| Arc::clone(name))
}

/// Whether a thread has a name, or the one with stars.
pub(super) fn has_name(party: &Party, name: &str) -> bool {
    *party.comm == *name || with_stars(&party.comm) == name
}

/// `pool-*-thread-*`.
pub(super) fn with_stars(comm: &str) -> String {
    let mut name = String::new();
    for letter in comm.chars() {
        match letter.is_ascii_digit() {
            false => name.push(letter),
            true if !name.ends_with('*') => name.push('*'),
            true => {}
        }
    }
    name
}

/// `several threads named worker`.
pub(super) fn several(name: &str) -> String {
    format!("several threads named {}", wording::shown(name))
}

/// ` for the largest part of that time (40 %)`, of one among several threads.
pub(super) fn largest_part(ns: u64, whole_ns: u64) -> String {
    format!(" for the largest part of that time ({})", wording::percent(ns, whole_ns))
}

/// ` 2 of them had not ended: 8.02 s.`; nothing where such waits have little of the time.
pub(super) fn not_ended(cases: &[&Case]) -> String {
    let open: Vec<&Case> = cases.iter().copied().filter(|case| case.open).collect();
    let sum = |cases: &[&Case]| cases.iter().fold(0u64, |sum, case| sum.saturating_add(case.duration_ns()));
    let (open_ns, whole_ns) = (sum(&open), sum(cases));
    match (open.len(), cases.len()) {
        (0, _) => String::new(),
        _ if !is_share(open_ns, WORTH_SAYING, whole_ns) => String::new(),
        (1, 1) => " It had not ended.".to_owned(),
        (count, all) if count == all => " None of them had ended.".to_owned(),
        (1, _) => format!(" One of them had not ended: {}.", wording::time(open_ns)),
        (count, _) => format!(" {count} of them had not ended: {}.", wording::time(open_ns)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::fixture::{Fixture, at, case, lock_case, open, untracked, woken_by};
    use wallprof_model::profile::{Finding, StallRecord, WakerRecord};
    use wallprof_model::{Meaning, MeaningSource, Reason, StallReason};

    use super::super::spec::Cause;

    const MS: u64 = 1_000_000;

    /// A wait of thread `thread` that thread 2 ended, as a rule names it.
    fn wait(id: u64, thread: u32, name: &str, holder: bool, ns: u64) -> StallRecord {
        let (name, software) = (name.into(), Some("engine".into()));
        let meaning = Meaning { name, software, idle: false, holder, source: MeaningSource::Stack };
        let reason = StallReason::Blocked(Reason::Poll);
        let wait = StallRecord { reason, lock: None, ..lock_case(id, thread, 2, ns) };
        at(id * 200 * MS, StallRecord { meaning: Some(Arc::new(meaning)), ..wait })
    }

    fn by_interrupt(wait: StallRecord) -> StallRecord {
        StallRecord { waker: Some(WakerRecord { thread: None, ..woken_by(2, "") }), ..wait }
    }

    fn title(stalls: impl IntoIterator<Item = StallRecord>) -> String {
        Fixture::only_finding(stalls).title
    }

    #[test]
    fn holder_of_short_waits_is_not_that_of_long_ones_that_had_not_ended() {
        let waits = |open_ms: u64| {
            let short = (1..=3).map(|id| wait(id, 1, "row lock", true, 40 * MS));
            let long = [(10, 3), (11, 4)];
            short.chain(long.map(|(id, thread)| open(wait(id, thread, "row lock", true, open_ms * MS))))
        };
        let found = title(waits(4_000));
        let end = " 5 times, 8.12 s in all, up to 4.00 s: the holder is not known for 99 % of that time. 2 of them had \
            not ended: 8.00 s.";
        assert!(found.ends_with(end), "{found}");
        let advice = Fixture::only_finding(waits(4_000)).advice;
        assert!(!advice.contains("release_order"), "{advice}");
        let found = title(waits(6));
        assert!(
            found.ends_with("up to 40.0 ms: thread-2 held it and released it in release_order."),
            "{found}"
        );
    }

    /// Two sessions wait for each other's row. The timer of the first one ends its wait after a second, and its transaction,
    /// for which the second one waited.
    #[test]
    fn timer_that_rolls_back_a_transaction_of_postgresql_is_said() {
        let of_postgresql = |mut wait: StallRecord| {
            let meaning = Meaning {
                name: "row lock".into(),
                software: Some("postgresql".into()),
                idle: false,
                holder: true,
                source: MeaningSource::Stack,
            };
            wait.meaning = Some(Arc::new(meaning));
            wait
        };
        let pair = |turn: u64| {
            let first =
                at(turn * 2_000 * MS, by_interrupt(wait(turn * 2 + 1, 2, "row lock", true, 1_000 * MS)));
            let second = at(turn * 2_000 * MS, wait(turn * 2 + 2, 1, "row lock", true, 1_000 * MS + 300_000));
            [of_postgresql(first), of_postgresql(second)]
        };
        let found = Fixture::only_finding((0..3).flat_map(pair));
        let end = ": timers of the waiting processes ended 3 of these waits, and 3 others ended at once after that, for \
            100 % of that time.";
        assert!(found.title.ends_with(end), "{}", found.title);
        assert!(found.advice.contains("deadlock_timeout"), "{}", found.advice);
        let lightweight = (0..3).flat_map(pair).map(|wait| {
            let meaning =
                wait.meaning.as_deref().cloned().map(|of| Meaning { name: "lightweight lock".into(), ..of });
            StallRecord { meaning: meaning.map(Arc::new), ..wait }
        });
        assert!(!title(lightweight).contains("timers of the waiting"));
        let looks = (0..3).map(|turn| {
            let goes_on = by_interrupt(wait(turn + 1, 2, "row lock", true, 1_000 * MS));
            of_postgresql(at(turn * 1_000 * MS, goes_on))
        });
        let last = of_postgresql(at(3_000 * MS, wait(9, 2, "row lock", true, 1_900 * MS)));
        let found = Fixture::findings(looks.chain([last]));
        assert!(found.iter().all(|found| !found.title.contains("timers of the waiting")), "{found:#?}");
    }

    #[test]
    fn timeouts_that_ended_waits_are_timers() {
        let slept = |id| StallRecord {
            asked_ns: Some(40 * MS),
            ..by_interrupt(wait(id, 1, "write stall", false, 40 * MS))
        };
        let found = title((1..=3).map(slept));
        assert!(found.ends_with("up to 40.0 ms: timers ended it for 100 % of that time."), "{found}");
    }

    #[test]
    fn waits_that_had_not_ended_are_said_where_the_holder_is_known_too() {
        let found =
            title([wait(1, 1, "row lock", true, 60 * MS), open(wait(2, 1, "row lock", true, 40 * MS))]);
        let end = "released it in release_order. One of them had not ended: 40.0 ms.";
        assert!(found.ends_with(end), "{found}");
        let found = title([open(lock_case(1, 1, 2, 40 * MS))]);
        assert!(found.ends_with("for 40.0 ms: thread-2 held it. It had not ended."), "{found}");
    }

    #[test]
    fn thread_that_ended_a_moment_of_the_waits_did_not_end_them() {
        let dns = |by_timers: bool| {
            let long = move |id| match by_timers {
                true => by_interrupt(wait(id, 1, "DNS", false, 148 * MS)),
                false => wait(id, 1, "DNS", false, 148 * MS),
            };
            let short = (1..=2).map(|id| wait(id, 1, "DNS", false, MS));
            let open = open(wait(9, 1, "DNS", false, 50 * MS));
            short.chain((3..=5).map(long)).chain([open])
        };
        let found = title(dns(true));
        let end = " 6 times, 496 ms in all, up to 148 ms: interrupts ended it for 90 % of that time. One of them had not \
            ended: 50.0 ms.";
        assert!(found.ends_with(end), "{found}");
        let found = title(dns(false));
        assert!(found.contains("up to 148 ms: thread-2 ended it in release_order. One of them"), "{found}");
    }

    #[test]
    fn one_of_several_threads_that_ended_waits_is_said_to_be_one() {
        let by = |id, thread: u32| StallRecord {
            waker: Some(woken_by(thread, "answer")),
            ..wait(id, 1, "DNS", false, 30 * MS)
        };
        let by_worker = |id, thread: u32| {
            let mut wait = by(id, thread);
            let waker = wait.waker.as_mut().and_then(|waker| waker.thread.as_mut());
            waker.expect("a thread").comm = "worker".into();
            wait
        };
        let found = title([by(1, 2), by(2, 2), by(3, 4), by(4, 5), by(5, 6)]);
        let end =
            ": of several threads thread-2 ended it in answer for the largest part of that time (40 %).";
        assert!(found.contains(end), "{found}");
        let found = title([by(1, 2), by(2, 2), by(3, 2), by(4, 5), by(5, 6)]);
        assert!(found.contains(": thread-2 ended it in answer."), "{found}");
        let found = title([by(1, 2), by(2, 2), by_worker(3, 4), by_worker(4, 5), by_worker(5, 6)]);
        assert!(found.contains(": several threads named worker ended it in answer."), "{found}");
    }

    /// Four waits of which timers ended some. Thread 2, which ended the others, had no CPU meanwhile.
    fn timed_out(by_timers: u64) -> Finding {
        let waits = (1..=4).map(|id| match id <= by_timers {
            true => by_interrupt(wait(id, 1, "row lock", true, 100 * MS)),
            false => wait(id, 1, "row lock", true, 100 * MS),
        });
        let queued = (1..=4).map(|id| {
            let ran_instead = vec![(untracked("batch"), 98 * MS)];
            let queued = case(10 + id, 2, StallReason::Preempted, 98 * MS);
            at(id * 200 * MS + MS, StallRecord { ran_instead, ..queued })
        });
        let mut found = Fixture::findings(waits.chain(queued));
        found.retain(|found| found.rule == "lock-wait");
        found.remove(0)
    }

    #[test]
    fn what_holders_of_few_waits_did_is_neither_said_nor_the_cause() {
        let found = timed_out(3);
        let end = ": the holder is not known for 75 % of that time, as timers ended most of it.";
        assert!(found.title.contains(end), "{}", found.title);
        assert_eq!(found.cause, Cause::Program);
        let found = timed_out(0);
        assert!(
            found.title.contains("itself off the CPU for 98 % of that time (preempted)"),
            "{}",
            found.title
        );
        assert_eq!(found.cause, Cause::Machine);
    }

    #[test]
    fn owner_of_few_waits_without_a_cpu_is_no_preempted_holder() {
        let rules = |without_owner: u64| -> Vec<String> {
            let waits = (1..=4).map(|id| {
                let wait = at(id * 200 * MS, lock_case(id, 1, 2, 100 * MS));
                match id <= without_owner {
                    true => by_interrupt(StallRecord { lock: None, ..wait }),
                    false => StallRecord { lock: wait.lock.clone(), ..wait },
                }
            });
            let same = waits.map(|wait| StallRecord { meaning: gil(), ..wait });
            let queued =
                (1..=4).map(|id| at(id * 200 * MS, case(10 + id, 2, StallReason::Preempted, 98 * MS)));
            Fixture::findings(same.chain(queued)).into_iter().map(|found| found.rule).collect()
        };
        assert!(!rules(3).contains(&"holder-preempted".to_owned()), "{:?}", rules(3));
        assert!(rules(0).contains(&"holder-preempted".to_owned()), "{:?}", rules(0));
    }

    fn gil() -> Option<Arc<Meaning>> {
        let (name, software) = ("GIL".into(), Some("cpython".into()));
        Some(Arc::new(Meaning { name, software, idle: false, holder: true, source: MeaningSource::Stack }))
    }
}
