//! `kernel-lock`: threads waited for a lock inside the kernel, other than that of their memory map: a file's, a
//! directory's, a file system's.
//!
//! One finding a program and place in the kernel; counts the waiting for the lock alone, in the stalls in which it
//! lies.
//!
//! False positives: threads whose work is to write to one file, and that nobody waits for.

use wallprof_model::event::WorkKind;

use super::case::{Case, mostly};
use super::conclusion::{Conclusion, Problem};
use super::evidence::Evidence;
use super::kernel_work::Worked;
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
    let worked = Worked::find(evidence, WorkKind::KernelLock, reported, place);
    worked.into_iter().filter_map(|worked| conclude(worked, evidence)).collect()
}

fn conclude<'e>(worked: Worked<'e>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let problem = Problem::heavy(worked.cases, worked.toll, evidence)?;
    let cases = &problem.cases;
    let call = mostly(cases, |case| case.syscall.clone()).map(|call| format!("{call}, "));
    let place = mostly(cases, |case| case.kernel_place.clone());
    let title = format!(
        "{} waited for a lock of the kernel ({}{}){} {}{}.",
        wording::who(cases, evidence),
        call.unwrap_or_default(),
        place.as_deref().unwrap_or("function unknown"),
        wording::place(problem.site().as_ref()),
        wording::toll(&problem.toll),
        lock::holder(cases, evidence)
    );
    Some(problem.conclude(title, ADVICE))
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Play, case, kernel_stack, woken_by, work_in};
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
        let mut play = Play::new();
        for id in 1..=count {
            play.works.push(work_in(&writing(id), WorkKind::KernelLock, 0, 8 * MS));
            play.stall(writing(id));
        }
        findings(&play.evidence())
    }

    #[test]
    fn names_the_kernel_s_function_that_wanted_the_lock() {
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
    fn what_every_program_meets_is_none() {
        assert!(found(10).iter().all(|found| found.rule != RULE.name));
    }
}
