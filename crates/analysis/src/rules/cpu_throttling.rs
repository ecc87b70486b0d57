//! `cpu-throttling`: threads could not run because their control group had used up its CPU quota.
//!
//! While a group is throttled its threads look preempted, or woken and not let in, and nobody need have their CPU: counted
//! are waits for a CPU during which nobody else had it for half of the time, in a second in which the group was
//! throttled. One finding a program and thread name. Without a quota there is no finding.
//!
//! False positives: a quota that is meant to hold the program back.

use wallprof_model::profile::ThrottledRow;

use super::case::{Case, grouped};
use super::conclusion::{Conclusion, threads_of};
use super::evidence::Evidence;
use super::limits::Toll;
use super::wording;

pub(super) const RULE: &str = "cpu-throttling";

const ADVICE: &str = "Raise the group's quota (cpu.max, cpu.cfs_quota_us; a container's CPU limit), use fewer threads at once, or \
    give it weight instead of a quota (cpu.weight); a longer period or a burst (cpu.max.burst) forgives short peaks.";

pub(super) fn find(evidence: &Evidence) -> Vec<Conclusion<'_>> {
    let is_held_back = |case: &&Case| {
        case.runnable_ns >= evidence.unit_ns() && nobody_ran(case) && quota_of(case, evidence).is_some()
    };
    let names = grouped(evidence.cases().iter().filter(is_held_back), |case| {
        (evidence.program(case), case.comm.clone())
    });
    names.into_values().filter_map(|cases| conclude(cases, evidence)).collect()
}

fn nobody_ran(case: &Case) -> bool {
    let ran_ns = case.ran_instead.iter().fold(0u64, |sum, (_, ns)| sum.saturating_add(*ns));
    ran_ns <= case.runnable_ns / 2
}

/// The quota that was used up while a stall lasted.
fn quota_of<'e>(case: &Case, evidence: &'e Evidence) -> Option<&'e ThrottledRow> {
    let rows = evidence.throttled().iter().filter(|row| row.pid == case.pid);
    rows.filter(|row| case.overlap_ns(row.from, row.to) > 0).max_by_key(|row| row.total_ns)
}

fn conclude<'e>(cases: Vec<&'e Case>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let threads = threads_of(&cases);
    let toll = Toll::of(cases.iter().map(|case| case.runnable_ns));
    if !toll.is_heavy(evidence, &threads) || toll.is_beside_the_point(evidence, &threads) {
        return None;
    }
    let quota = cases.iter().filter_map(|case| quota_of(case, evidence)).max_by_key(|row| row.total_ns)?;
    let title = format!(
        "{} could not run because its control group {} had used up its CPU quota ({}) {}.",
        wording::who(&cases, evidence),
        quota.cgroup,
        wording::percent(quota.quota_ns, quota.period_ns),
        wording::toll(&toll)
    );
    Some(Conclusion { rule: RULE, title, advice: ADVICE.into(), threads, toll, cases })
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Play, case, stranger};
    use super::*;
    use wallprof_model::profile::{Finding, StallRecord};
    use wallprof_model::{MonoNs, StallReason};

    const MS: u64 = 1_000_000;

    fn throttled(pid: u32) -> ThrottledRow {
        ThrottledRow {
            pid,
            cgroup: "/shop/api".into(),
            quota_ns: 20 * MS,
            period_ns: 100 * MS,
            from: MonoNs(0),
            to: MonoNs(u64::MAX),
            count: 9,
            total_ns: 700 * MS,
        }
    }

    fn held_back(id: u64) -> StallRecord {
        case(id, 1, StallReason::Preempted, 80 * MS)
    }

    fn found(rows: Vec<ThrottledRow>, stalls: impl Iterator<Item = StallRecord>) -> Vec<Finding> {
        let mut play = Play::new();
        play.throttled = rows;
        stalls.for_each(|stall| play.stall(stall));
        findings(&play.evidence())
    }

    #[test]
    fn names_the_group_and_its_quota_once() {
        let found = found(vec![throttled(100)], (1..=5).map(held_back));
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(
            found[0].title,
            "thread-1 of app could not run because its control group /shop/api had used up its CPU quota (20 %) 5 times, 400 \
             ms in all, up to 80.0 ms."
        );
        assert_eq!((found[0].rule.as_str(), found[0].stalls.len()), (RULE, 5));
    }

    #[test]
    fn without_a_quota_it_is_preemption() {
        for rows in [vec![], vec![throttled(101)], vec![ThrottledRow { to: MonoNs(5), ..throttled(100) }]] {
            let rules: Vec<String> =
                found(rows, (1..=5).map(held_back)).into_iter().map(|found| found.rule).collect();
            assert_eq!(rules, ["preempted"]);
        }
    }

    #[test]
    fn who_lost_the_cpu_to_somebody_was_not_throttled() {
        let lost = |id| StallRecord { ran_instead: vec![(stranger("build"), 70 * MS)], ..held_back(id) };
        let found = found(vec![throttled(100)], (1..=5).map(lost));
        assert_eq!((found.len(), found[0].rule.as_str()), (1, "preempted"));
    }
}
