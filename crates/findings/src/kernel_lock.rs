// SPDX-License-Identifier: Apache-2.0
//! `kernel-lock`: threads waited for a lock inside the kernel other than that of their memory map: the lock
//! of a file, a directory, a file system.
//!
//! One finding a program and place in the kernel. Only the wait for the lock counts, in the stalls in which
//! it lies.
//!
//! False positives: threads whose task is to write to one file and that no other thread waits for.

use wallprof_model::event::DelayKind;

use super::case::{Case, mostly};
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::Evidence;
use super::kernel_delay::delayed_stalls;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{lock, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "kernel-lock",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

const ADVICE: &str = "Keep threads out of each other's way in the kernel: one file or directory for each, fewer calls that \
    change it, or one thread that does them all.";

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let place = |case: &Case| (evidence.program(case), case.syscall.clone(), case.kernel_place.clone());
    let delayed = delayed_stalls(evidence, DelayKind::KernelLock, reported, place);
    delayed.into_iter().filter_map(|delayed| conclude(delayed, evidence)).collect()
}

fn conclude<'e>(delayed: Charged<'e>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let problem = Problem::heavy_or_frequent(delayed, evidence)?;
    let cases = &problem.cases;
    let call = mostly(cases, |case| case.syscall.clone()).map(|call| format!("{call}, "));
    let place = mostly(cases, |case| case.kernel_place.clone());
    let title = format!(
        "{} waited for a lock of the kernel ({}{}){} {}{}.",
        wording::who(cases, evidence),
        call.unwrap_or_default(),
        place.as_deref().unwrap_or("function unknown"),
        wording::place(problem.site().as_ref()),
        wording::delays(&problem.delays),
        lock::holder(cases, evidence, None)
    );
    Some(problem.conclude(title, ADVICE))
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, case, delay_in, kernel_stack, woken_by};
    use super::*;
    use wallprof_model::profile::StallRecord;
    use wallprof_model::{Reason, StallReason};

    const MS: u64 = 1_000_000;

    fn writing(id: u64) -> StallRecord {
        let functions =
            ["schedule", "rwsem_down_write_slowpath", "down_write", "ext4_buffered_write_iter", "vfs_write"];
        StallRecord {
            syscall: Some("write".into()),
            kernel: Some(kernel_stack(&functions)),
            waker: Some(woken_by(2, "append")),
            ..case(id, 1, StallReason::Blocked(Reason::Lock), 8 * MS)
        }
    }

    fn found(count: u64) -> Vec<wallprof_model::profile::Finding> {
        let mut fixture = Fixture::new();
        for id in 1..=count {
            fixture.kernel_delays.push(delay_in(&writing(id), DelayKind::KernelLock, 0, 8 * MS));
            fixture.stall(writing(id));
        }
        findings(&fixture.evidence())
    }

    #[test]
    fn kernel_function_that_asked_for_the_lock_is_named() {
        let found = found(20);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(
            found[0].title,
            "thread-1 of app waited for a lock of the kernel (write, ext4_buffered_write_iter) in work (called by main) 20 \
             times, 160 ms in all, up to 8.00 ms: thread-2 released it in append."
        );
        assert_eq!(found[0].rule, RULE.name);
    }

    #[test]
    fn common_waits_are_none() {
        assert!(found(10).iter().all(|found| found.rule != RULE.name));
    }
}
