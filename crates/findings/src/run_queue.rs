// SPDX-License-Identifier: Apache-2.0
//! `run-queue`: threads that had been woken waited for a CPU.
//!
//! The time from the wakeup to the CPU counts in every interval in which it was as long as a stall, whatever
//! the thread had waited for before. One finding a program and thread name. The limits are those of
//! `preempted`.
//!
//! Waits in which no thread had the CPU are a finding of their own: a hypervisor did not run the machine.
//!
//! False positives: batch programs that are meant to yield.

use wallprof_model::StallReason;

use super::case::Case;
use super::conclusion::Conclusion;
use super::evidence::Evidence;
use super::neighbours::CpuWait;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "run-queue",
    topic: None,
    excludes: &[Topic::CpuDenied, Topic::CpuShared],
    cause: Cause::Machine,
    evidence: EvidenceKind::Stalls,
    find,
};

const WAIT: CpuWait = CpuWait {
    what: "waited for a CPU",
    when: "after waking up",
    nobody: "its host did not run it (steal that is not reported), or it woke up late from an idle state",
    ns: |case| case.runnable_ns,
};

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let is_late = |case: &&Case| {
        !evidence.is_left_out(case.thread)
            && case.reason != StallReason::Preempted
            && case.runnable_ns >= evidence.unit_ns()
            && !case.open
            && !reported.has(case)
    };
    WAIT.find(evidence.cpu_waits().filter(is_late), evidence)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, at, case, thread_ref};
    use super::*;
    use wallprof_model::Reason;
    use wallprof_model::profile::StallRecord;

    fn woken(id: u64, blocked_ns: u64, runnable_ns: u64) -> StallRecord {
        let stall = case(id, 1, StallReason::Runnable, blocked_ns + runnable_ns);
        StallRecord { blocked_ns, runnable_ns, ran_instead: vec![(thread_ref(2), runnable_ns)], ..stall }
    }

    #[test]
    fn only_the_time_from_wakeup_to_cpu_counts() {
        let found = Fixture::only_finding((1..=20).map(|id| woken(id, 2_000_000, 8_000_000)));
        assert_eq!((found.rule.as_str(), found.total_ns, found.max_ns), (RULE.name, 160_000_000, 8_000_000));
        assert!(
            found.title.contains("waited for a CPU on CPU 1 after waking up 20 times, 160 ms in all"),
            "{}",
            found.title
        );
        assert!(found.title.contains("thread-2 for 100 %"), "{}", found.title);
        assert!(found.advice.contains("process itself"), "{}", found.advice);
    }

    #[test]
    fn each_slice_of_a_wait_ends_with_a_wait_for_a_cpu() {
        let slice = |number: u64| StallRecord {
            wait_id: Some(number / 4),
            ..at(number * 10_000_000, woken(number + 1, 2_000_000, 8_000_000))
        };
        let found = Fixture::only_finding((0..80).map(slice));
        assert_eq!((found.count, found.total_ns, found.max_ns), (80, 640_000_000, 8_000_000));
        assert!(found.title.contains("thread-2 for 100 %"), "{}", found.title);
        let short = |number: u64| StallRecord {
            wait_id: Some(1),
            ..at(number * 1_000_000, woken(number + 1, 0, 55_000))
        };
        assert_eq!(Fixture::findings((0..400).map(short)), [], "22 ms in all, no one of them long");
    }

    #[test]
    fn a_late_return_from_a_wait_for_something_else_counts_too() {
        let late = |id| {
            let disk = case(id, 1, StallReason::Blocked(Reason::Other), 20_000_000);
            StallRecord { blocked_ns: 11_000_000, runnable_ns: 9_000_000, ..disk }
        };
        assert_eq!(Fixture::only_finding((1..=20).map(late)).total_ns, 180_000_000);
    }

    #[test]
    fn waits_in_which_no_thread_had_the_cpu_are_the_hosts() {
        let unexplained = |id| StallRecord { ran_instead: Vec::new(), ..woken(id, 2_000_000, 8_000_000) };
        let explained = || woken(90, 0, 200_000);
        let found = Fixture::findings((1..=20).map(unexplained).chain([explained()]));
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(
            found[0]
                .title
                .contains("160 ms in all, up to 8.00 ms: no thread of this machine had the CPU, so its host"),
            "{}",
            found[0].title
        );
        assert!(found[0].advice.contains("virtual machine"), "{}", found[0].advice);
        let beside = (1..=20).map(unexplained).chain((21..=40).map(|id| woken(id, 0, 8_000_000)));
        let found = Fixture::findings(beside);
        assert_eq!(found.len(), 2, "the neighbour's waits are apart: {found:#?}");
    }

    #[test]
    fn thread_with_a_deadline_has_used_up_its_runtime() {
        let alone =
            |id| StallRecord { ran_instead: vec![(thread_ref(2), 20_000)], ..woken(id, 0, 8_000_000) };
        let throttled = |id| StallRecord { priority: Some(-1), ..alone(id) };
        let found = Fixture::only_finding((1..=20).map(throttled));
        assert!(
            found.title.ends_with("used up its runtime and waited for its next period."),
            "{}",
            found.title
        );
        assert_eq!(found.cause, wallprof_model::profile::Cause::Program);
        let found = Fixture::only_finding((1..=20).map(alone));
        assert!(
            found.title.contains("no thread of this machine had the CPU, so its host"),
            "{}",
            found.title
        );
    }

    #[test]
    fn without_a_record_of_what_ran_nothing_is_said_about_the_host() {
        let imported = |id| StallRecord { ran_instead: Vec::new(), ..woken(id, 2_000_000, 8_000_000) };
        let found = Fixture::only_finding((1..=20).map(imported));
        assert!(found.title.ends_with("160 ms in all, up to 8.00 ms."), "{}", found.title);
    }

    #[test]
    fn short_and_rare_waits_are_none() {
        assert_eq!(Fixture::findings((1..=100).map(|id| woken(id, 0, 900_000))), []);
        assert_eq!(Fixture::findings((1..=10).map(|id| woken(id, 0, 8_000_000))), []);
    }
}
