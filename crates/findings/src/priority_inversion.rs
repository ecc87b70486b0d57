// SPDX-License-Identifier: Apache-2.0
//! `priority-inversion`: threads waited for a lock whose holder had no CPU meanwhile, and that holder had a lower
//! priority than they: whatever ran instead ran before them, too. Reports both priorities, and the threads that
//! had the CPU.
//!
//! As for `holder-preempted`, half of the time in which the holder is known must have passed without a CPU; and
//! for half of that, the holder's priority was the lower one.
//!
//! False positives: waits that nobody minds, of a thread that has its priority for something else.

use super::case::Case;
use super::conclusion::Conclusion;
use super::evidence::Evidence;
use super::holding::Holding;
use super::lock;
use super::lock_wait::by_lock;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "priority-inversion",
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
    let (waiter, holder) = holding.inverted().filter(|_| holding.is_without_cpu())?;
    let held = holding.without_cpu()?;
    let what = lock::what(&cases);
    let (problem, waited) = lock::waited(cases, evidence, &what, &format!(" ({})", priority(waiter)))?;
    let title = format!("{waited}: {held}. The holder's priority is lower ({}).", priority(holder));
    let advice = "Let the lock pass on the priority of its waiters (PTHREAD_PRIO_INHERIT), give its holders the \
                  priority of those who wait, or keep the lock away from threads of lower priority.";
    Some(problem.conclude(title, advice))
}

/// `nice -5`, `real-time priority 50`, `deadline`: as `ps` and `chrt` show it.
fn priority(kernels: i16) -> String {
    match kernels {
        ..0 => "deadline".to_owned(),
        0..100 => format!("real-time priority {}", 99 - kernels),
        100.. => format!("nice {}", kernels - 120),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, at, case, lock_case, untracked};
    use super::*;
    use wallprof_model::StallReason;
    use wallprof_model::profile::StallRecord;

    const MS: u64 = 1_000_000;

    /// A holder of the one priority that has no CPU, and a waiter of the other.
    fn found(holder: Option<i16>, waiter: Option<i16>) -> wallprof_model::profile::Finding {
        let wait = StallRecord { priority: waiter, ..at(0, lock_case(1, 1, 2, 4 * MS)) };
        let ran_instead = vec![(untracked("batch"), 4 * MS)];
        let preempted = at(0, case(2, 2, StallReason::Preempted, 4 * MS));
        let found = Fixture::findings([wait, StallRecord { ran_instead, priority: holder, ..preempted }]);
        found.into_iter().find(|found| found.title.contains("a lock")).expect("a finding about the lock")
    }

    #[test]
    fn lower_priority_of_the_holder_is_said() {
        let found = found(Some(130), Some(49));
        assert_eq!(found.rule, RULE.name);
        assert!(
            found
                .title
                .starts_with("thread-1 of app (real-time priority 50) waited for a lock in take_order"),
            "{}",
            found.title
        );
        assert!(
            found.title.ends_with(
                "held by thread-2 in work, which had no CPU: batch 900 had it. The holder's priority is lower \
                 (nice 10)."
            ),
            "{}",
            found.title
        );
    }

    #[test]
    fn equal_higher_and_unknown_priorities_are_no_inversion() {
        for (holder, waiter) in [(120, 120), (115, 120), (49, 49)] {
            assert_eq!(found(Some(holder), Some(waiter)).rule, "holder-preempted");
        }
        assert_eq!(found(None, Some(49)).rule, "holder-preempted");
        assert_eq!(found(Some(130), None).rule, "holder-preempted");
    }

    #[test]
    fn priorities_are_named_as_users_set_them() {
        assert_eq!(
            [-1, 0, 98, 100, 139].map(priority).join(", "),
            "deadline, real-time priority 99, real-time priority 1, nice -20, nice 19"
        );
    }
}
