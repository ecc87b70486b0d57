// SPDX-License-Identifier: Apache-2.0
//! `memory-reclaim`: threads that asked for memory had to free some first, during a page fault or a system
//! call (direct reclaim): the kernel's own threads did not keep up, or a cgroup reached its limit.
//!
//! One finding a program. Only the time of the reclaim counts, in the stalls in which it lies.
//!
//! False positives: a cgroup that is meant to stay at its limit.

use wallprof_model::event::DelayKind;

use super::case::Case;
use super::conclusion::Conclusion;
use super::evidence::Evidence;
use super::kernel_delay::DelayRule;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "memory-reclaim",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

const DELAY: DelayRule = DelayRule {
    kind: DelayKind::Reclaim,
    phrase: "had to free memory for the kernel (direct reclaim)",
    advice: "Leave more memory free: a higher memory.max or memory.high where a cgroup's limit was reached, else \
        a higher vm.watermark_scale_factor or vm.min_free_kbytes; give back the page cache that big writes fill \
        (posix_fadvise, O_DIRECT); mlock(2) keeps what this thread needs.",
    cause: full_group,
};

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    DELAY.find(evidence, reported)
}

fn full_group(case: &Case, evidence: &Evidence) -> String {
    evidence.full_memory_group(case).map(|group| format!(": {group}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, delay_in, fault, memory_group};
    use super::*;
    use wallprof_model::profile::Finding;

    const MS: u64 = 1_000_000;

    fn found(count: u64, ns: u64) -> Vec<Finding> {
        let mut fixture = Fixture::new();
        for id in 1..=count {
            let stall = fault(id, 1, false, 9 * MS);
            fixture.kernel_delays.push(delay_in(&stall, DelayKind::Reclaim, MS, MS + ns));
            fixture.stall(stall);
        }
        findings(&fixture.evidence())
    }

    #[test]
    fn title_names_the_thread_the_place_and_the_time_of_reclaim() {
        let found = found(6, 4 * MS);
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].title,
            "thread-1 of app had to free memory for the kernel (direct reclaim) in work (called by main) 6 times, 24.0 ms \
             in all, up to 4.00 ms."
        );
        assert_eq!((found[0].rule.as_str(), found[0].stalls.len()), (RULE.name, 6));
    }

    #[test]
    fn control_group_at_its_limit_is_named() {
        let title = |used_mib| {
            let mut fixture = Fixture::new();
            fixture.process_counters = memory_group("/shop/api", &[(0, used_mib)], 64);
            for id in 1..=6 {
                let stall = fault(id, 1, false, 9 * MS);
                fixture.kernel_delays.push(delay_in(&stall, DelayKind::Reclaim, MS, 5 * MS));
                fixture.stall(stall);
            }
            findings(&fixture.evidence()).remove(0).title
        };
        let full = ": its control group /shop/api used 63.0 MiB of its limit of 64.0 MiB.";
        assert!(title(63).ends_with(full), "{}", title(63));
        assert!(!title(40).contains("control group"), "{}", title(40));
    }

    #[test]
    fn a_little_now_and_then_is_none() {
        assert_eq!(found(4, MS / 2), []);
        assert_eq!(found(0, 0), []);
    }

    #[test]
    fn major_fault_that_had_to_free_memory_is_reported_once() {
        let mut fixture = Fixture::new();
        let stall = fault(1, 1, true, 9 * MS);
        fixture.kernel_delays.push(delay_in(&stall, DelayKind::Reclaim, 0, 8 * MS));
        fixture.stall(stall);
        let rules: Vec<String> = findings(&fixture.evidence()).into_iter().map(|found| found.rule).collect();
        assert_eq!(rules, [RULE.name]);
    }
}
