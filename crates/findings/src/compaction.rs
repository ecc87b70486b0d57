// SPDX-License-Identifier: Apache-2.0
//! `compaction`: threads that asked for a large piece of memory had to compact memory first.
//!
//! One finding a program. Only the time of the compaction counts, in the stalls in which it lies.
//!
//! False positives: none known.

use wallprof_model::event::DelayKind;

use super::conclusion::Conclusion;
use super::evidence::Evidence;
use super::kernel_delay::DelayRule;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "compaction",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

const DELAY: DelayRule = DelayRule {
    kind: DelayKind::Compaction,
    phrase: "had to compact memory for the kernel (compaction)",
    advice: "Huge pages at the first touch are the usual cause: write `defer` or `madvise` to \
        /sys/kernel/mm/transparent_hugepage/defrag, or reserve huge pages (vm.nr_hugepages) before they are needed; \
        a higher vm.compaction_proactiveness leaves less to do.",
    cause: |_, _| String::new(),
};

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    DELAY.find(evidence, reported)
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, delay_in, fault};
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_fault_that_waited_for_a_huge_page_is_one() {
        let mut fixture = Fixture::new();
        let stall = fault(1, 1, false, 9 * MS);
        fixture.kernel_delays.push(delay_in(&stall, DelayKind::Compaction, MS, 8 * MS));
        fixture.stall(stall);
        let found = findings(&fixture.evidence());
        assert_eq!((found[0].rule.as_str(), found[0].total_ns, found.len()), (RULE.name, 7 * MS, 1));
        assert!(found[0].title.contains("(compaction) in work"), "{}", found[0].title);
    }

    #[test]
    fn a_short_one_is_none() {
        let mut fixture = Fixture::new();
        let stall = fault(1, 1, false, 9 * MS);
        fixture.kernel_delays.push(delay_in(&stall, DelayKind::Compaction, 0, 900_000));
        fixture.stall(stall);
        assert_eq!(findings(&fixture.evidence()), []);
    }
}
