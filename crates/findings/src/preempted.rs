// SPDX-License-Identifier: Apache-2.0
//! `preempted`: running threads lost their CPU to others.
//!
//! One finding a program and thread name, where it cost a hundredth of the threads' time, or 20 ms at once.
//!
//! False positives: batch programs that are meant to yield (`nice 19`, SCHED_IDLE).

use wallprof_model::StallReason;

use super::case::Case;
use super::conclusion::Conclusion;
use super::evidence::Evidence;
use super::neighbours::CpuWait;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "preempted",
    topic: None,
    excludes: &[Topic::CpuDenied, Topic::CpuShared],
    cause: Cause::Machine,
    evidence: EvidenceKind::Stalls,
    find,
};

const WAIT: CpuWait = CpuWait {
    what: "lost the CPU",
    when: "while running",
    nobody: "a CPU quota held the thread back, or the host did not run the CPU (steal that is not reported)",
    ns: Case::duration_ns,
};

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let is_preempted =
        |case: &&Case| case.reason == StallReason::Preempted && !case.yielded && !reported.has(case);
    WAIT.find(evidence.cases().filter(is_preempted), evidence)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, case, stack, untracked};
    use super::*;
    use wallprof_model::ThreadKey;
    use wallprof_model::profile::StallRecord;

    fn preempted(id: u64, ns: u64) -> StallRecord {
        let ran_instead = vec![(untracked("build"), ns)];
        StallRecord { ran_instead, ..case(id, 1, StallReason::Preempted, ns) }
    }

    #[test]
    fn cpu_and_its_new_owner_are_named() {
        let found = Fixture::only_finding((1..=40).map(|id| preempted(id, 4_000_000)));
        assert_eq!(
            found.title,
            "thread-1 of app lost the CPU on CPU 1 while running 40 times, 160 ms in all, up to 4.00 ms: the CPU \
             was with build for 100 % of that time."
        );
        assert_eq!((found.rule.as_str(), found.count), (RULE.name, 40));
    }

    #[test]
    fn thread_that_gave_its_cpu_away_did_not_lose_it() {
        let yields =
            |id| StallRecord { user: Some(stack(&["sched_yield", "serve"])), ..preempted(id, 4_000_000) };
        assert_eq!(Fixture::findings((1..=40).map(yields)), []);
    }

    #[test]
    fn processes_of_one_program_are_reported_together() {
        let worker = |id| {
            let pid = 100 + (id % 2) as u32;
            let stall = StallRecord { pid, comm: "worker".into(), ..preempted(id, 4_000_000) };
            StallRecord { thread: ThreadKey(pid - 99), ..stall }
        };
        let found = Fixture::only_finding((1..=80).map(worker));
        assert!(found.title.starts_with("2 threads named worker of 2 app processes lost"), "{}", found.title);
        assert_eq!((found.count, found.threads.len()), (80, 2));
    }

    #[test]
    fn common_preemptions_are_none() {
        assert_eq!(Fixture::findings((1..=20).map(|id| preempted(id, 4_000_000))), []);
        assert_eq!(Fixture::only_finding([preempted(1, 20_000_000)]).rule, RULE.name);
    }
}
