// SPDX-License-Identifier: Apache-2.0
//! `holder-blocked`: threads waited for a lock whose holder slept, faulted or did I/O meanwhile. Reports what
//! the holder did, and where.
//!
//! Four fifths of the time in which the holder is known must have passed so; with less, `lock-wait` says how
//! much it was.
//!
//! False positives: a lock that is meant to be held during the I/O that it protects.

use super::case::Case;
use super::conclusion::Conclusion;
use super::evidence::Evidence;
use super::holding::Holding;
use super::lock_wait::by_lock;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{lock, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "holder-blocked",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    by_lock(evidence, reported, |cases| conclude(cases, evidence))
}

fn conclude<'e>(cases: Vec<&'e Case>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let holding = Holding::of(&cases, evidence);
    let held = holding.blocked().filter(|_| holding.is_blocked())?;
    let what = lock::what(&cases);
    let (problem, waited) = lock::waited(cases, evidence, &what, "")?;
    let title = format!("{waited}: {held}.");
    let advice = match wording::spot(holding.blocked_in()).as_str() {
        "" => "Do not sleep or wait for I/O with the lock held: copy what it protects, and release it first."
            .to_owned(),
        spot => {
            format!("Release the lock before the wait{spot}: copy what it protects, and wait without it.")
        }
    };
    Some(problem.conclude(title, advice))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, at, case, fault, lock_case, stack};
    use super::*;
    use wallprof_model::profile::{StallRecord, WakerRecord};
    use wallprof_model::{Reason, StallReason};

    const MS: u64 = 1_000_000;

    fn wait() -> StallRecord {
        at(0, lock_case(1, 1, 2, 10 * MS))
    }

    fn away(reason: Reason, from_ms: u64, ms: u64) -> StallRecord {
        let user = Some(stack(&["fdatasync", "sweep_registry", "housekeeping"]));
        let away = case(2, 2, StallReason::Blocked(reason), ms * MS);
        StallRecord { user, voluntary: reason == Reason::Sleep, ..at(from_ms * MS, away) }
    }

    #[test]
    fn holder_and_its_wait_are_named() {
        let found = Fixture::findings([wait(), away(Reason::Disk, 0, 10)]);
        let found = found.iter().find(|found| found.rule == RULE.name).expect("a finding");
        assert!(
            found.title.ends_with(
                "waited for a lock in take_order (called by handle_tick) for 10.0 ms: held by thread-2 in \
                 sweep_registry, which was waiting for the disk in fdatasync."
            ),
            "{}",
            found.title
        );
        assert!(found.advice.contains("in sweep_registry"), "{}", found.advice);
    }

    #[test]
    fn function_that_holds_the_lock_is_that_of_its_release() {
        let release = stack(&["unlock", "sweep_registry", "housekeeping"]);
        let waker = wait().waker.map(|waker| WakerRecord { user: Some(release), ..waker });
        let inner = stack(&["nanosleep", "pause", "sweep_one", "sweep_registry"]);
        let asleep = StallRecord { user: Some(inner), ..away(Reason::Sleep, 0, 10) };
        let found = Fixture::only_finding([StallRecord { waker, ..wait() }, asleep]);
        let expected = "held by thread-2 in sweep_registry, which was asleep in pause (nanosleep).";
        assert!(found.title.ends_with(expected), "{}", found.title);
    }

    #[test]
    fn part_of_the_time_is_said() {
        let found = Fixture::only_finding([wait(), away(Reason::Sleep, 1, 8)]);
        assert_eq!(found.rule, RULE.name);
        assert!(
            found.title.contains("which was asleep in fdatasync for 80 % of the time."),
            "{}",
            found.title
        );
        assert_eq!(found.stalls, [1]);
    }

    #[test]
    fn page_fault_of_the_holder_names_its_file() {
        let found = Fixture::findings([wait(), at(0, fault(2, 2, true, 10 * MS))]);
        let found = found.iter().find(|found| found.rule == RULE.name).expect("a finding");
        assert!(
            found.title.contains("thread-2 in work, which was waiting for a page of /data/prices.idx."),
            "{}",
            found.title
        );
    }

    #[test]
    fn holder_that_ran_for_three_tenths_of_the_time_is_a_lock_wait() {
        let found = Fixture::only_finding([wait(), away(Reason::Sleep, 1, 7)]);
        assert_eq!(found.rule, "lock-wait");
    }

    #[test]
    fn sleep_after_the_release_is_not_in_the_lock() {
        // Thread 2 wakes thread 3 and sleeps then. Thread 1 goes on to wait for the next holder.
        let first = at(0, lock_case(3, 3, 2, MS));
        let queued = StallRecord { waker: lock_case(4, 1, 3, MS).waker, ..wait() };
        let found = Fixture::findings([first, queued, away(Reason::Sleep, 1, 9)]);
        assert!(found.iter().all(|found| found.rule == "lock-wait"), "{found:#?}");
        assert!(!found[0].title.contains("asleep") && !found[0].title.contains("off the CPU"), "{found:#?}");
    }

    #[test]
    fn lock_without_an_owner_is_none() {
        let ownerless = StallRecord { lock: None, ..wait() };
        let found = Fixture::findings([ownerless, away(Reason::Sleep, 0, 10)]);
        assert!(found.iter().all(|found| found.rule != RULE.name), "{found:#?}");
    }
}
