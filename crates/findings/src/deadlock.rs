// SPDX-License-Identifier: Apache-2.0
//! `deadlock`: threads wait in a circle for locks that the others hold, and had not returned when the
//! recording ended. A thread that waits for a lock that it holds itself is the smallest circle.
//!
//! Threads that wait behind a circle, directly or not, belong to its finding: their waits end when the
//! circle does. Circles of one program, of threads of equal names at equal places, are one finding.
//!
//! False positives: the owners are those that the lock named when the wait started. A lock with a timeout
//! (`pthread_mutex_timedlock`) is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wallprof_meaning::site::Site;
use wallprof_model::ThreadKey;

use super::case::Case;
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::Evidence;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{lock, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "deadlock",
    topic: Some(Topic::Waits),
    excludes: &[],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

const ADVICE: &str = "Take these locks in the same order everywhere, or all of them at once; the stacks of the \
    open stalls show where each is wanted.";

/// The open wait of each thread.
type Waits<'e> = BTreeMap<ThreadKey, &'e Case>;

/// A circle of waits.
struct Circle<'e> {
    /// Each is followed by the wait of the thread it waits for.
    members: Vec<&'e Case>,
    /// The waits that end with it, those of its members among them.
    cases: Vec<&'e Case>,
}

/// What circles have in common that one mistake caused: the program, the threads' names and their places.
type Likeness = (Arc<str>, Vec<(Arc<str>, Option<Arc<Site>>)>);

fn find<'e>(evidence: &'e Evidence, _reported: &Reported) -> Vec<Conclusion<'e>> {
    let open = evidence.cases().filter(|case| case.open && case.asked_ns.is_none() && lock::is_wait(case));
    let waits: Waits<'_> = open.map(|case| (case.thread, case)).collect();
    let mut behind: BTreeMap<BTreeSet<ThreadKey>, Vec<&Case>> = BTreeMap::new();
    for (&thread, case) in &waits {
        if let Some(circle) = circle_behind(thread, &waits) {
            behind.entry(circle).or_default().push(case);
        }
    }
    let mut alike: BTreeMap<Likeness, Vec<Circle<'e>>> = BTreeMap::new();
    for (threads, cases) in behind {
        let circle = Circle { members: in_order(&threads, &waits), cases };
        alike.entry(likeness(&circle, evidence)).or_default().push(circle);
    }
    alike.into_iter().map(|((program, _), circles)| conclude(&program, circles)).collect()
}

fn likeness(circle: &Circle<'_>, evidence: &Evidence) -> Likeness {
    let program = evidence.thread(circle.members[0].thread).map(|thread| thread.process.clone());
    let mut members: Vec<(Arc<str>, Option<Arc<Site>>)> =
        circle.members.iter().map(|case| (case.comm.clone(), case.site.clone())).collect();
    members.sort();
    (program.unwrap_or_default(), members)
}

/// The threads of the circle to which the waits lead from `thread` on.
fn circle_behind(thread: ThreadKey, waits: &Waits<'_>) -> Option<BTreeSet<ThreadKey>> {
    let mut path = vec![thread];
    loop {
        let next = owner(waits.get(path.last()?)?)?;
        if let Some(at) = path.iter().position(|&seen| seen == next) {
            return Some(path[at..].iter().copied().collect());
        }
        path.push(next);
    }
}

fn owner(case: &Case) -> Option<ThreadKey> {
    case.lock.as_ref()?.owner.as_ref()?.key
}

/// One finding about circles that are alike. The first one's steps stand for all.
fn conclude<'e>(program: &str, circles: Vec<Circle<'e>>) -> Conclusion<'e> {
    let members = || circles.iter().flat_map(|circle| &circle.members);
    let steps: Vec<String> = circles[0].members.iter().map(|case| step(case)).collect();
    let processes: BTreeSet<u32> = members().map(|case| case.pid).collect();
    let of = match (program, processes.len()) {
        ("", _) => String::new(),
        (_, 1) => format!(" of {}", wording::shown(program)),
        (_, count) => format!(" in each of {count} {} processes", wording::shown(program)),
    };
    let like_it = match circles.len() - 1 {
        0 => String::new(),
        1 => "; another circle is like it".to_owned(),
        count => format!("; {count} other circles are like it"),
    };
    let time = wording::time(members().map(|case| case.duration_ns()).min().unwrap_or(0));
    let in_circles = members().count();
    let cases: Vec<&Case> = circles.into_iter().flat_map(|circle| circle.cases).collect();
    let others = match cases.len() - in_circles {
        0 => String::new(),
        1 => "; another thread waits behind them".to_owned(),
        count => format!("; {count} other threads wait behind them"),
    };
    let title = format!("Deadlock{of} for {time}: {}{like_it}{others}.", steps.join(", "));
    Problem::new(Charged::over(cases, Case::duration_ns)).conclude(title, ADVICE)
}

/// The waits of a circle, each followed by that of the thread it waits for.
fn in_order<'e>(circle: &BTreeSet<ThreadKey>, waits: &Waits<'e>) -> Vec<&'e Case> {
    let mut members = Vec::with_capacity(circle.len());
    let mut next = circle.first().copied();
    while let Some(case) = next.and_then(|thread| waits.get(&thread)) {
        if members.len() == circle.len() {
            break;
        }
        members.push(*case);
        next = owner(case);
    }
    members
}

/// `left waits in settle for a lock that right holds`.
fn step(case: &Case) -> String {
    let (name, place) = (wording::shown(&case.comm), wording::place(case.site.as_ref()));
    match &case.lock.as_ref().and_then(|lock| lock.owner.as_ref()) {
        Some(owner) if owner.key == Some(case.thread) => {
            format!("{name} waits{place} for a lock that it holds itself")
        }
        Some(owner) => format!("{name} waits{place} for a lock that {} holds", wording::other(owner, case)),
        None => format!("{name} waits{place}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, lock_case, open};
    use super::*;
    use wallprof_model::profile::{Finding, StallRecord};

    const SECOND: u64 = 1_000_000_000;

    fn stuck(pairs: &[(u32, u32)]) -> Vec<Finding> {
        let stall = |(at, &(thread, owner)): (usize, &(u32, u32))| {
            open(lock_case(at as u64 + 1, thread, owner, 3 * SECOND + at as u64))
        };
        Fixture::findings(pairs.iter().enumerate().map(stall))
    }

    #[test]
    fn two_threads_that_wait_for_each_other() {
        let found = &stuck(&[(1, 2), (2, 1)])[0];
        assert_eq!(
            found.title,
            "Deadlock of app for 3.00 s: thread-1 waits in take_order (called by handle_tick) for a lock that \
             thread-2 holds, thread-2 waits in take_order (called by handle_tick) for a lock that thread-1 holds."
        );
        assert_eq!((found.rule.as_str(), found.stalls.as_slice()), (RULE.name, &[1, 2][..]));
    }

    #[test]
    fn a_thread_alone_a_longer_circle_and_those_behind() {
        assert!(stuck(&[(1, 1)])[0].title.contains("that it holds itself"));
        let found = stuck(&[(1, 2), (2, 3), (3, 1), (4, 2), (5, 4)]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].count, found[0].threads.len()), (5, 5));
        assert!(
            found[0].title.ends_with("thread-1 holds; 2 other threads wait behind them."),
            "{}",
            found[0].title
        );
    }

    #[test]
    fn circles_of_equal_threads_at_equal_places_are_one_finding() {
        let stall = |id: u64, thread: u32, owner: u32, pid: u32| StallRecord {
            pid,
            comm: ["right", "left"][id as usize % 2].into(),
            ..open(lock_case(id, thread, owner, 3 * SECOND))
        };
        let circles = |pids: [u32; 3]| {
            let stalls = (0..3u32).flat_map(|at| {
                let (id, left, pid) = (u64::from(at) * 2 + 1, at * 2 + 1, pids[at as usize]);
                [stall(id, left, left + 1, pid), stall(id + 1, left + 1, left, pid)]
            });
            Fixture::findings(stalls)
        };
        let [found] = &circles([100, 101, 102])[..] else { panic!("one finding") };
        assert!(found.title.starts_with("Deadlock in each of 3 app processes for 3.00 s: left"), "{found:?}");
        assert!(found.title.ends_with("; 2 other circles are like it."), "{}", found.title);
        assert_eq!((found.count, found.stalls.len()), (6, 6));
        assert!(circles([100; 3])[0].title.starts_with("Deadlock of app for"));
    }

    #[test]
    fn two_circles_are_two_findings() {
        let found = stuck(&[(1, 2), (2, 1), (3, 4), (4, 3)]);
        assert_eq!(found.iter().filter(|found| found.rule == RULE.name).count(), 2);
    }

    #[test]
    fn no_circle_is_no_deadlock() {
        for pairs in [&[(1, 2)][..], &[(1, 2), (2, 3)], &[]] {
            assert!(stuck(pairs).iter().all(|found| found.rule != RULE.name), "{pairs:?}");
        }
    }

    #[test]
    fn waits_that_ended_or_will_give_up_are_none() {
        let pair = |change: fn(StallRecord) -> StallRecord| {
            let stalls = [change(lock_case(1, 1, 2, 5_000_000)), change(lock_case(2, 2, 1, 5_000_000))];
            Fixture::findings(stalls).into_iter().filter(|found| found.rule == RULE.name).count()
        };
        assert_eq!(pair(open), 1);
        assert_eq!(pair(|stall| stall), 0);
        assert_eq!(pair(|stall| StallRecord { asked_ns: Some(1), ..open(stall) }), 0);
    }
}
