// SPDX-License-Identifier: Apache-2.0
//! `holder-preempted`: threads waited for a lock whose holder had no CPU meanwhile. Reports where the holder
//! lost it, and which threads had it.
//!
//! Half of the time in which the holder is known must have passed so.
//!
//! False positives: a machine that is too small for its load: then every thread waits for a CPU, and
//! `cpu-saturated` says so.

use super::case::Case;
use super::conclusion::Conclusion;
use super::evidence::Evidence;
use super::holding::Holding;
use super::lock_wait::by_lock;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{lock, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "holder-preempted",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Machine,
    evidence: EvidenceKind::Stalls,
    find,
};

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    by_lock(evidence, reported, |cases| conclude(cases, evidence))
}

fn conclude<'e>(cases: Vec<&'e Case>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let holding = Holding::of(&cases, evidence);
    let held = holding.without_cpu().filter(|_| holding.is_without_cpu())?;
    let what = lock::what(&cases);
    let (problem, waited) = lock::waited(cases, evidence, &what, "")?;
    let title = format!("{waited}: {held}.");
    let others = match holding.ran().as_slice() {
        [] => "other threads".to_owned(),
        ran => wording::list(ran),
    };
    let advice = format!(
        "Keep {others} off the CPUs of the threads that hold the lock, or give these a higher priority: \
         while a holder has no CPU, all others wait."
    );
    Some(problem.conclude(title, advice))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, at, case, lock_case, untracked};
    use super::*;
    use wallprof_model::StallReason;
    use wallprof_model::profile::StallRecord;

    const MS: u64 = 1_000_000;

    fn wait() -> StallRecord {
        at(0, lock_case(1, 1, 2, 4 * MS))
    }

    fn preempted(ms: u64) -> StallRecord {
        let ran_instead = vec![(untracked("batch"), ms * MS)];
        StallRecord { ran_instead, ..at(0, case(2, 2, StallReason::Preempted, ms * MS)) }
    }

    #[test]
    fn thread_that_had_the_cpu_is_named() {
        let found = Fixture::findings([wait(), preempted(4)]);
        let found = found.iter().find(|found| found.rule == RULE.name).expect("a finding");
        assert!(
            found
                .title
                .ends_with("for 4.00 ms: held by thread-2 in work, which had no CPU: batch 900 had it."),
            "{}",
            found.title
        );
        assert!(found.advice.starts_with("Keep batch 900 off"), "{}", found.advice);
    }

    #[test]
    fn thread_that_hardly_had_the_cpu_is_not_named() {
        let ran_instead = vec![(untracked("batch"), 3_800_000), (untracked("cron"), 200_000)];
        let lost = StallRecord { ran_instead, ..at(0, case(2, 2, StallReason::Preempted, 4 * MS)) };
        let found = Fixture::findings([wait(), lost]);
        let found = found.iter().find(|found| found.rule == RULE.name).expect("a finding");
        assert!(found.title.ends_with("which had no CPU: batch 900 had it."), "{}", found.title);
        assert!(found.advice.starts_with("Keep batch 900 off"), "{}", found.advice);
    }

    #[test]
    fn holder_that_had_a_cpu_for_most_of_the_time_is_a_lock_wait() {
        assert_eq!(Fixture::only_finding([wait(), preempted(1)]).rule, "lock-wait");
    }
}
