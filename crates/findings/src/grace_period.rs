// SPDX-License-Identifier: Apache-2.0
//! `grace-period`: threads waited for an RCU grace period: until every CPU has left what it was reading. That
//! takes some milliseconds to tens of them, whatever the disk does.
//!
//! One finding a program, system call and function, where the waits took a hundredth of the threads' time.
//!
//! False positives: a program that sets up namespaces, control groups or packet sockets, as its task is.

use wallprof_meaning::waits::GRACE_PERIOD;

use super::case::{Case, grouped, mostly};
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::Evidence;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::wording;

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "grace-period",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

/// A call that waits for one grace period, once, is not reported: programs that start or end make some.
const LEAST_WAITS: u64 = 3;

/// Nor is a grace period that is shorter than this many times the shortest stall: they have tens of
/// milliseconds on an idle machine.
const LONG: u64 = 1_000;

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let is_one = |case: &&Case| case.kernel_said() == Some(GRACE_PERIOD) && !reported.has(case);
    let places = grouped(evidence.cases().filter(is_one), |case| {
        (evidence.program(case), case.syscall.clone(), case.site.clone())
    });
    places.into_values().filter_map(|cases| conclude(cases, evidence)).collect()
}

fn conclude<'e>(cases: Vec<&'e Case>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let problem = Problem::heavy(Charged::over(cases, Case::without_run_queue_ns), evidence)?;
    let delays = problem.delays;
    let is_long = delays.max_ns >= evidence.unit_ns().saturating_mul(LONG);
    if delays.count < LEAST_WAITS && !is_long {
        return None;
    }
    let syscall = mostly(&problem.cases, |case| case.syscall.clone());
    let call = syscall.as_ref().map(|call| format!(" ({call})")).unwrap_or_default();
    let title = format!(
        "{} waited for an RCU grace period of the kernel{call}{}{} {}.",
        wording::who(&problem.cases, evidence),
        wording::files(&problem.cases),
        wording::place(problem.site().as_ref()),
        wording::delays(&delays)
    );
    Some(problem.conclude(title, advice(syscall.as_deref().unwrap_or_default())))
}

fn advice(syscall: &str) -> &'static str {
    match syscall {
        "membarrier" => {
            "Use MEMBARRIER_CMD_PRIVATE_EXPEDITED (after its registration): it interrupts the other CPUs instead of \
             waiting for them."
        }
        "close" => {
            "Close such files (packet sockets, BPF and perf descriptors) in another thread, or keep them open."
        }
        "write" => {
            "Write to such files of the kernel (cgroup.procs and others) in another thread, or less often."
        }
        _ => {
            "Make this call in another thread, or less often: a grace period ends when all CPUs have passed through \
              the scheduler, and no disk and no CPU of its own makes it shorter."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, case};
    use super::*;
    use std::sync::Arc;

    use wallprof_model::event::WaitedFile;
    use wallprof_model::profile::{Finding, StallRecord};
    use wallprof_model::{Meaning, MeaningSource, Reason, StallReason};

    use wallprof_meaning::waits::LINUX;

    const MS: u64 = 1_000_000;

    fn wait(id: u64, syscall: &str, ns: u64) -> StallRecord {
        let meaning = Meaning {
            name: GRACE_PERIOD.into(),
            software: Some(LINUX.into()),
            idle: false,
            holder: false,
            source: MeaningSource::Stack,
        };
        StallRecord {
            syscall: Some(syscall.into()),
            meaning: Some(Arc::new(meaning)),
            ..case(id, 1, StallReason::Blocked(Reason::Other), ns)
        }
    }

    fn found(syscall: &str) -> Finding {
        Fixture::only_finding((1..=10).map(|id| wait(id, syscall, 12 * MS)))
    }

    #[test]
    fn the_call_and_its_place_are_named() {
        let found = found("membarrier");
        assert_eq!(found.rule, RULE.name);
        assert_eq!(
            found.title,
            "thread-1 of app waited for an RCU grace period of the kernel (membarrier) in work (called by main) 10 \
             times, 120 ms in all, up to 12.0 ms."
        );
        assert!(found.advice.contains("EXPEDITED"), "{}", found.advice);
    }

    #[test]
    fn no_advice_is_a_faster_disk_and_the_file_is_named() {
        let file = Some(WaitedFile { path: "/sys/fs/cgroup/a/cgroup.procs".into(), offset: None });
        let write = |id| StallRecord { file: file.clone(), ..wait(id, "write", 24 * MS) };
        let found = Fixture::only_finding((1..=5).map(write));
        assert!(found.title.contains("(write) on cgroup.procs in work"), "{}", found.title);
        for call in ["write", "membarrier", "close", "setns"] {
            assert!(!self::found(call).advice.contains("faster disk"), "{call}");
        }
    }

    #[test]
    fn one_grace_period_is_none_and_a_long_one_is() {
        assert_eq!(Fixture::findings((1..=2).map(|id| wait(id, "write", 60 * MS))), []);
        assert_eq!(Fixture::findings((1..=60).map(|id| wait(id, "close", MS))), [], "less than a hundredth");
        assert_eq!(Fixture::only_finding([wait(1, "write", 150 * MS)]).rule, RULE.name);
    }
}
