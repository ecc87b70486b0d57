//! `compaction`: threads that wanted a large piece of memory had to move other memory together first.
//!
//! One finding a program; counts the moving alone, in the stalls in which it lies.
//!
//! False positives: none known.

use wallprof_model::event::WorkKind;

use super::conclusion::Conclusion;
use super::evidence::Evidence;
use super::kernel_work::Duty;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "compaction",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

const DUTY: Duty = Duty {
    kind: WorkKind::Compaction,
    phrase: "had to move memory together for the kernel (compaction)",
    advice: "Huge pages at the first touch are the usual cause: write `defer` or `madvise` to \
        /sys/kernel/mm/transparent_hugepage/defrag, or reserve huge pages (vm.nr_hugepages) before they are needed; \
        a higher vm.compaction_proactiveness leaves less to do.",
};

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    DUTY.find(evidence, reported)
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Play, fault, work_in};
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_fault_that_waited_for_a_huge_page_is_one() {
        let mut play = Play::new();
        let stall = fault(1, 1, false, 9 * MS);
        play.works.push(work_in(&stall, WorkKind::Compaction, MS, 8 * MS));
        play.stall(stall);
        let found = findings(&play.evidence());
        assert_eq!((found[0].rule.as_str(), found[0].total_ns, found.len()), (RULE.name, 7 * MS, 1));
        assert!(found[0].title.contains("(compaction) in work"), "{}", found[0].title);
    }

    #[test]
    fn a_short_one_is_none() {
        let mut play = Play::new();
        let stall = fault(1, 1, false, 9 * MS);
        play.works.push(work_in(&stall, WorkKind::Compaction, 0, 900_000));
        play.stall(stall);
        assert_eq!(findings(&play.evidence()), []);
    }
}
