// SPDX-License-Identifier: Apache-2.0
//! `oversleep`: a timeout came late. A sleep, a poll or a timed wait was *woken* later than the thread had
//! asked for, beyond the slack that the kernel allows itself. A wait for a CPU after that belongs to
//! `run-queue`.
//!
//! The time from the end of the timeout to the wakeup counts, not the sleep. Less than a hundredth of the
//! threads' time is no finding, however late one wakeup came. One finding a program, thread name and system
//! call.
//!
//! False positives: a virtual machine that its hypervisor did not run, or a laptop that was suspended: the
//! clock continued, the program could not.

use super::case::{Case, grouped, mostly};
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::Evidence;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::wording;

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "oversleep",
    topic: None,
    excludes: &[Topic::CpuDenied],
    cause: Cause::Machine,
    evidence: EvidenceKind::Stalls,
    find,
};

const ADVICE: &str = "Look at what kept the timer from firing on this CPU: interrupts or kernel code that runs \
    with interrupts off, deep idle states (cpu_dma_latency), the process being stopped, or a hypervisor.";

/// The slack that the kernel gives every thread (init/init_task.c).
const TIMER_SLACK_NS: u64 = 50_000;
/// fs/select.c: MAX_SLACK.
const MOST_LEEWAY_NS: u64 = 100_000_000;

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let is_late = |case: &&Case| is_unusual(case, evidence.unit_ns()) && !reported.has(case);
    let calls = grouped(evidence.cases().filter(is_late), |case| {
        (evidence.program(case), case.comm.clone(), case.syscall.clone())
    });
    calls.into_values().filter_map(|cases| conclude(cases, evidence)).collect()
}

/// Whether the wakeup came later than the kernel's slack by the length of a stall.
fn is_unusual(case: &Case, unit_ns: u64) -> bool {
    let leeway_ns = leeway_ns(case, case.asked_ns.unwrap_or(0));
    lateness_ns(case) >= leeway_ns.saturating_add(unit_ns)
}

/// The time from the end of the timeout to the wakeup, ns; 0 where the kernel may let the wakeup come that
/// late, and for a wait that has no timeout, is still open, or is voluntary.
pub(super) fn lateness_ns(case: &Case) -> u64 {
    match (case.asked_ns, case.overslept_ns) {
        (Some(asked_ns), Some(overslept_ns)) if !case.open && !case.voluntary => {
            let late_ns = overslept_ns.saturating_sub(case.runnable_ns);
            if late_ns > leeway_ns(case, asked_ns) { late_ns } else { 0 }
        }
        _ => 0,
    }
}

/// A wait that is late because of the CPU after its wakeup may have been woken within the kernel's leeway: a
/// thread's timer slack, unless it has set another one; for poll and its kin a thousandth of the timeout if
/// that is more (fs/select.c, select_estimate_accuracy).
fn leeway_ns(case: &Case, asked_ns: u64) -> u64 {
    let coarse_ns = match case.syscall.as_deref() {
        Some("poll" | "ppoll" | "select" | "pselect6" | "epoll_wait" | "epoll_pwait" | "epoll_pwait2") => {
            (asked_ns / 1_000).min(MOST_LEEWAY_NS)
        }
        _ => 0,
    };
    coarse_ns.max(TIMER_SLACK_NS)
}

fn conclude<'e>(cases: Vec<&'e Case>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let charged = Charged::over(cases, lateness_ns);
    let delays = charged.delays;
    let often = delays.count >= 3 && delays.is_unusual(evidence);
    if !(often || delays.max_ns >= evidence.unit_ns().saturating_mul(100)) {
        return None;
    }
    let problem = Problem::new(charged);
    if !delays.is_hundredth(evidence, &problem.threads) {
        return None;
    }
    let syscall = mostly(&problem.cases, |case| case.syscall.clone());
    let call = syscall.map(|name| format!(" ({name})")).unwrap_or_default();
    let worst = problem.cases.iter().max_by_key(|case| lateness_ns(case));
    let asked = worst.and_then(|case| case.asked_ns).unwrap_or(0);
    let title = format!(
        "{} woke up late from a wait with a timeout{call}{} {}; the latest had asked for {}.",
        wording::who(&problem.cases, evidence),
        wording::place(problem.site().as_ref()),
        wording::delays(&delays),
        wording::time(asked)
    );
    Some(problem.conclude(title, ADVICE))
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, case};
    use super::*;
    use wallprof_model::profile::{Finding, StallRecord};
    use wallprof_model::{Reason, StallReason};

    /// `late_ns` after its timeout.
    fn slept(id: u64, asked_ns: u64, late_ns: u64) -> StallRecord {
        let ns = asked_ns + late_ns;
        StallRecord {
            voluntary: false,
            asked_ns: Some(asked_ns),
            syscall: Some("epoll_wait".into()),
            ..case(id, 1, StallReason::Blocked(Reason::Poll), ns)
        }
    }

    /// The findings about a thread that lived for `wall_ns`.
    fn found_in(wall_ns: u64, stalls: impl IntoIterator<Item = StallRecord>) -> Vec<Finding> {
        let mut fixture = Fixture::new();
        fixture.threads[0].ledger.wall_ns = wall_ns;
        stalls.into_iter().for_each(|stall| fixture.stall(stall));
        findings(&fixture.evidence())
    }

    fn found(stalls: impl IntoIterator<Item = StallRecord>) -> Vec<Finding> {
        found_in(500_000_000, stalls)
    }

    fn only_finding(stalls: impl IntoIterator<Item = StallRecord>) -> Finding {
        let mut found = found(stalls);
        assert_eq!(found.len(), 1, "{found:#?}");
        found.remove(0)
    }

    #[test]
    fn less_than_a_hundredth_of_the_threads_time_is_none() {
        let late = || (1..=5).map(|id| slept(id, 10_000_000, 2_000_000));
        assert_eq!(found_in(1_000_000_000, late()).len(), 1);
        assert_eq!(found_in(1_000_000_001, late()), []);
    }

    #[test]
    fn the_lateness_counts_not_the_sleep() {
        let found = only_finding((1..=3).map(|id| slept(id, 10_000_000, id * 1_000_000)));
        assert_eq!((found.rule.as_str(), found.total_ns, found.max_ns), (RULE.name, 6_000_000, 3_000_000));
        assert!(found.title.ends_with("up to 3.00 ms; the latest had asked for 10.0 ms."), "{}", found.title);
        assert!(
            found.title.contains("timeout (epoll_wait) in work (called by main) 3 times"),
            "{}",
            found.title
        );
    }

    #[test]
    fn voluntary_sleeps_are_none_however_long() {
        let voluntary = |id| StallRecord { voluntary: true, ..slept(id, 10_000_000, 9_000_000) };
        assert_eq!(found((1..=9).map(voluntary)), []);
        let untimed = |id| StallRecord { asked_ns: None, voluntary: true, ..slept(id, 0, 40_000_000) };
        assert_eq!(found((1..=9).map(untimed)), []);
    }

    #[test]
    fn a_wait_for_a_cpu_after_the_wakeup_is_not_the_timers() {
        let late = |id| {
            let sleep = slept(id, 10_000_000, 6_000_000);
            StallRecord { blocked_ns: 10_000_000, runnable_ns: 6_000_000, ..sleep }
        };
        assert!(found((1..=20).map(late)).iter().all(|found| found.rule != RULE.name));
    }

    #[test]
    fn wakeups_within_the_slack_are_not_late() {
        let poll = |id| {
            let sleep = slept(id, 500_000_000, 6_490_000);
            StallRecord { blocked_ns: 500_490_000, runnable_ns: 6_000_000, ..sleep }
        };
        assert!(found((1..=20).map(poll)).iter().all(|found| found.rule != RULE.name));
        let futex = |id| StallRecord { syscall: Some("futex".into()), ..poll(id) };
        let found = found((1..=20).map(futex));
        let late = found.iter().find(|found| found.rule == RULE.name).expect("a thousandth is for polls");
        assert_eq!(late.max_ns, 490_000);
    }

    #[test]
    fn wait_for_a_lock_with_a_timeout_is_no_sleep() {
        let lock = |id| StallRecord {
            reason: StallReason::Blocked(Reason::Lock),
            ..slept(id, 10_000_000, 9_000_000)
        };
        let found = only_finding((1..=9).map(lock));
        assert_eq!((found.rule.as_str(), found.max_ns), ("lock-wait", 19_000_000));
    }

    #[test]
    fn microseconds_are_shown_as_such() {
        let found = only_finding((1..=9).map(|id| slept(id, 50_000, 900_000)));
        assert!(found.title.ends_with("up to 900 µs; the latest had asked for 50.0 µs."), "{}", found.title);
    }

    #[test]
    fn two_late_wakeups_are_chance_unless_they_are_very_late() {
        assert_eq!(found((1..=2).map(|id| slept(id, 1_000_000, 9_000_000))), []);
        assert_eq!(only_finding([slept(1, 1_000_000, 10_000_000)]).count, 1);
    }
}
