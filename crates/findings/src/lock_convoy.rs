// SPDX-License-Identifier: Apache-2.0
//! `lock-convoy`: many threads wait in a queue for a lock that each of them holds for a short time. Each wait
//! is as long as the queue, not as long as a holding.
//!
//! At least [`LEAST_WAITERS`] threads waited, and [`LEAST_QUEUE`] of them at a time on average.
//!
//! False positives: a pool of threads that is meant to take turns.

use std::collections::{BTreeMap, BTreeSet};

use super::case::{Case, mostly};
use super::conclusion::Conclusion;
use super::evidence::Evidence;
use super::lock_wait::by_lock;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{known, lock, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "lock-convoy",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

/// Fewer threads make a lock that is shared, not a queue.
const LEAST_WAITERS: usize = 8;
/// Threads that waited at one time, on average.
const LEAST_QUEUE: u64 = 4;

/// The queue for a lock; that of several locks is each of them after the other.
#[derive(Default)]
struct Queue {
    /// The time in which any thread waited.
    busy_ns: u64,
    waited_ns: u64,
    /// Waits that ended.
    passed: u64,
}

impl Queue {
    fn of(cases: &[&Case]) -> Self {
        let mut queue = Queue::default();
        let mut locks: BTreeMap<_, Vec<(u64, u64)>> = BTreeMap::new();
        for case in cases {
            let lock = (case.pid, case.lock.as_ref().map(|lock| lock.address));
            locks.entry(lock).or_default().push((case.start.0, case.woken().0));
        }
        locks.into_values().for_each(|waits| queue.add(waits));
        queue.passed = cases.iter().filter(|case| !case.open).count() as u64;
        queue
    }

    /// The waits for one lock, from when to when.
    fn add(&mut self, mut intervals: Vec<(u64, u64)>) {
        intervals.retain(|(start, end)| end > start);
        intervals.sort_unstable();
        let mut busy_to = 0;
        for (start, end) in intervals {
            self.waited_ns = self.waited_ns.saturating_add(end - start);
            self.busy_ns = self.busy_ns.saturating_add(end.saturating_sub(start.max(busy_to)));
            busy_to = end.max(busy_to);
        }
    }

    fn is_long(&self) -> bool {
        self.busy_ns > 0 && self.waited_ns / LEAST_QUEUE >= self.busy_ns
    }

    /// `9.3 of them at a time on average, and one got it every 310 µs`.
    fn words(&self) -> String {
        let length = self.waited_ns as f64 / self.busy_ns.max(1) as f64;
        let each_ns = self.busy_ns / self.passed.max(1);
        format!("{length:.1} of them at a time on average, and one got it every {}", wording::time(each_ns))
    }
}

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    by_lock(evidence, reported, |cases| conclude(cases, evidence))
}

fn conclude<'e>(cases: Vec<&'e Case>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let is_one_lock = cases.iter().all(|case| case.lock.as_ref().is_some_and(|lock| lock.address != 0));
    let waiters: BTreeSet<_> = cases.iter().map(|case| case.thread).collect();
    let queue = Queue::of(&cases);
    if !is_one_lock || waiters.len() < LEAST_WAITERS || !queue.is_long() {
        return None;
    }
    let what = lock::what(&cases);
    let known_ns = known::part_ns(&cases, |case| case.release().is_some());
    let is_known = known::is_most(known_ns, known::waited_ns(&cases));
    let release = mostly(&cases, |case| case.release().filter(|_| is_known).cloned());
    let released = match wording::place(release.as_ref()).as_str() {
        "" => String::new(),
        place => format!(". It was released{place}"),
    };
    let (problem, waited) = lock::waited(cases, evidence, &what, "")?;
    let title = format!("{waited}: {}{released}.", queue.words());
    let advice = "Take the lock less often, for more at a time, or split it: with such a queue, each thread waits \
                  for all others, and faster code outside of the lock gains nothing.";
    Some(problem.conclude(title, advice))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, at, lock_case};
    use super::*;
    use wallprof_model::profile::{Finding, StallRecord};

    const MS: u64 = 1_000_000;

    /// Each of `threads` waits for the lock at the same time, and they get it one after the other.
    fn queued(threads: u32) -> Vec<Finding> {
        let wait = |thread: u32| {
            let before = (thread + threads - 2) % threads + 1;
            at(0, lock_case(u64::from(thread), thread, before, u64::from(thread) * MS))
        };
        Fixture::findings((1..=threads).map(wait).collect::<Vec<StallRecord>>())
    }

    #[test]
    fn length_of_the_queue_is_said() {
        let found = queued(9);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!((found[0].rule.as_str(), found[0].count), (RULE.name, 9));
        let expected = "9 times, 45.0 ms in all, up to 9.00 ms: 5.0 of them at a time on average, and one got it \
                        every 1.00 ms. It was released in release_order (called by run).";
        assert!(found[0].title.ends_with(expected), "{}", found[0].title);
    }

    #[test]
    fn few_threads_share_a_lock() {
        assert_eq!(queued(7)[0].rule, "lock-wait");
    }

    #[test]
    fn threads_that_wait_one_after_the_other_are_no_queue() {
        let alone =
            |thread: u32| at(u64::from(thread) * 5 * MS, lock_case(u64::from(thread), thread, 9, 2 * MS));
        let found = Fixture::findings((1..=8).map(alone));
        assert!(found.iter().all(|found| found.rule == "lock-wait"), "{found:#?}");
    }
}
