// SPDX-License-Identifier: Apache-2.0
//! `barrier-wait`: threads waited at a barrier for others that had not come yet. Names the one that came last, and what
//! it did meanwhile. With OpenMP these are also the end of a parallel region, and waits for its tasks.
//!
//! One finding a program and function, where the waits took a tenth of the threads' time, and one thread came last for
//! most of it. Where now this thread is late, now that one, rules about their own delays say why.
//!
//! A thread that gets its work at a barrier waits there for as long as there is none. Where the thread that came last
//! was idle itself for half of the time, nothing is said.
//!
//! False positives: work that cannot be divided evenly.

use wallprof_analysis::tally::Tally;
use wallprof_meaning::waits::BARRIER;
use wallprof_model::ThreadKey;

use super::case::{Case, grouped, mostly};
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::Evidence;
use super::limits::{is_share, wall_ns};
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{lock, other_end, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "barrier-wait",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

const ADVICE: &str = "Give each thread as much to do: divide the work into smaller parts that threads take when they \
    are ready (OpenMP: schedule(dynamic)), and keep what only one of them does, or waits for, out of the step.";

/// The part of the threads' time that waits take which are worth a finding: work is seldom divided better.
const LEAST_PART: u64 = 10;

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let is_one = |case: &&Case| case.is_at_a_barrier() && !reported.has(case);
    let places = grouped(evidence.cases().filter(is_one), |case| (evidence.program(case), case.site.clone()));
    places.into_values().filter_map(|cases| conclude(cases, evidence)).collect()
}

fn conclude<'e>(cases: Vec<&'e Case>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let problem = Problem::heavy(Charged::over(cases, Case::without_run_queue_ns), evidence)?;
    let delays = problem.delays;
    let is_part = is_share(delays.total_ns, LEAST_PART, wall_ns(evidence, &problem.threads));
    if !is_part {
        return None;
    }
    let ended: Vec<Case> = problem.cases.iter().map(|case| ended_by_the_last(case, evidence)).collect();
    let ended: Vec<&Case> = ended.iter().collect();
    if !has_a_last_one(&ended) || was_idle(&ended, evidence) {
        return None;
    }
    let is_barrier = mostly(&problem.cases, |case| Some(case.said()? == BARRIER)) == Some(true);
    let (at, last) = match is_barrier {
        true => ("at a barrier", other_end::ended_by(&ended, evidence, |_| "came last".into())),
        false => ("of an OpenMP team", other_end::ended(&ended, evidence)),
    };
    let title = format!(
        "{} waited for the other threads {at}{} {}{last}.",
        wording::who(&problem.cases, evidence),
        wording::place(problem.site().as_ref()),
        wording::delays(&delays)
    );
    Some(problem.conclude(title, ADVICE))
}

/// The wait, with the last thread at the barrier as its waker. Java's `CyclicBarrier` hands its lock on, so that a thread
/// that waited, too, may have ended the wait. The last thread is the thread that did not wait at the barrier for half of
/// the wait or more.
fn ended_by_the_last(case: &Case, evidence: &Evidence) -> Case {
    let is_own = |wait: &Case| wait.is_at_a_barrier() && wait.pid == case.pid;
    let handed_on = lock::handed_on(case, evidence, is_own);
    let last = handed_on.iter().find(|held| is_share(held.ns(), 2, case.without_run_queue_ns()));
    let waker = last.map_or(&case.waker, |last| &last.ended.waker);
    Case { waker: waker.clone(), ..case.clone() }
}

/// Whether one thread came last for two thirds of the time. Of two threads that come last by chance, each does so for
/// half of it.
fn has_a_last_one(cases: &[&Case]) -> bool {
    let mut last: Tally<ThreadKey> = Tally::default();
    for case in cases {
        if let Some(waker) = case.waker_key() {
            last.add(waker, case.late_ns());
        }
    }
    let most_ns = last.top().map_or(0, |(_, ns)| ns);
    most_ns > 0 && u128::from(most_ns) * 3 >= u128::from(last.total()) * 2
}

/// Whether the threads that came last waited for work meanwhile. A sleep may be a part of the work.
fn was_idle(cases: &[&Case], evidence: &Evidence) -> bool {
    let is_idle = |absence: &&Case| absence.voluntary && !absence.is_asleep();
    let (mut whole_ns, mut idle_ns) = (0u64, 0u64);
    for case in cases {
        let Some(last) = case.waker_key().filter(|last| *last != case.thread) else { continue };
        let (start, woken) = (case.start, case.woken());
        whole_ns = whole_ns.saturating_add(woken.0.saturating_sub(start.0));
        let idle = evidence.during(last, start, woken).filter(is_idle);
        idle_ns = idle.fold(idle_ns, |sum, absence| sum.saturating_add(absence.overlap_ns(start, woken)));
    }
    whole_ns > 0 && is_share(idle_ns, 2, whole_ns)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::fixture::{Fixture, at, case, stack, woken_by};
    use super::*;
    use wallprof_meaning::waits::TEAM;
    use wallprof_model::profile::{Finding, LockRecord, StallRecord};
    use wallprof_model::{Meaning, MeaningSource, Reason, StallReason};

    const MS: u64 = 1_000_000;

    fn wait(id: u64, thread: u32, last: u32, name: &str, ns: u64) -> StallRecord {
        let (software, source) = (Some("pthread".into()), MeaningSource::Stack);
        let meaning = Meaning { name: name.into(), software, idle: false, holder: false, source };
        StallRecord {
            voluntary: false,
            meaning: Some(Arc::new(meaning)),
            user: Some(stack(&["pthread_barrier_wait", "step", "solve"])),
            lock: Some(LockRecord { address: 0x1000, owner: None }),
            waker: Some(woken_by(last, "pthread_barrier_wait")),
            ..case(id, thread, StallReason::Blocked(Reason::Wait), ns)
        }
    }

    /// The waits of two threads for a third one, and what that one did for most of the time.
    fn found(name: &str, reason: Reason, voluntary: bool) -> Vec<Finding> {
        let other = case(3, 3, StallReason::Blocked(reason), 1_800 * MS);
        let other = StallRecord { voluntary, ..other };
        let stalls = [wait(1, 1, 3, name, 2_000 * MS), wait(2, 2, 3, name, 2_000 * MS), other];
        Fixture::findings(stalls.map(|stall| at(0, stall)))
            .into_iter()
            .filter(|found| found.rule == RULE.name)
            .collect()
    }

    #[test]
    fn the_last_one_and_what_it_did_are_named() {
        let [found] = &found(BARRIER, Reason::Disk, false)[..] else { panic!("one finding") };
        assert_eq!(
            found.title,
            "thread-1 and another thread of app waited for the other threads at a barrier in step (called by solve) \
             2 times, 4.00 s in all, up to 2.00 s: thread-3 came last, while thread-3 was mostly in disk in work."
        );
        assert!(found.advice.contains("schedule(dynamic)"), "{}", found.advice);
    }

    #[test]
    fn a_team_may_wait_for_more_than_a_barrier() {
        let [found] = &found(TEAM, Reason::Sleep, true)[..] else { panic!("one finding") };
        let team = "for the other threads of an OpenMP team in step (called by solve) 2 times";
        let ended = ": thread-3 ended it in run, while thread-3 was mostly in sleep in work.";
        assert!(found.title.contains(team) && found.title.ends_with(ended), "{}", found.title);
    }

    #[test]
    fn threads_that_get_their_work_at_a_barrier_are_none_while_there_is_none() {
        assert_eq!(found(BARRIER, Reason::Poll, true), []);
    }

    #[test]
    fn last_one_is_followed_through_those_that_waited_too() {
        let until = |id, end_ms: u64, thread, last| {
            at(400 * MS, wait(id, thread, last, BARRIER, (end_ms - 400) * MS))
        };
        // Thread 3 wakes thread 1, and that one thread 2, which had come before.
        let [found] = &Fixture::findings([until(1, 2_000, 1, 3), until(2, 2_001, 2, 1)])[..] else {
            panic!("one finding")
        };
        assert!(found.title.contains(": thread-3 came last"), "{}", found.title);
    }

    #[test]
    fn short_waits_and_a_last_one_by_chance_are_none() {
        assert_eq!(Fixture::findings((1..=50).map(|id| wait(id, 1, 3, BARRIER, 10 * MS))), []);
        let by_chance = |(id, (thread, last))| at(id * 500 * MS, wait(id, thread, last, BARRIER, 500 * MS));
        let waits = |pairs: [(u32, u32); 6]| Fixture::findings((1..).zip(pairs).map(by_chance));
        assert_eq!(waits([(1, 3), (1, 2), (2, 3), (2, 1), (3, 1), (3, 2)]), []);
        assert_eq!(waits([(1, 3), (2, 3), (1, 3), (2, 3), (3, 1), (3, 2)]).len(), 1);
    }
}
