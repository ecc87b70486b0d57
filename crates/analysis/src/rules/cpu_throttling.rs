//! `cpu-throttling`: threads could not run because their control group had used up its CPU quota.
//!
//! While a group is throttled its threads look preempted, or woken and not let in, and others may have their CPU. So waits
//! for a CPU count in those seconds in which the group was throttled for at least half as long as the process's threads
//! waited; of them no more than it was throttled. A wait during which nobody had the CPU for half of it counts whenever the
//! group was throttled at all: a group that goes with its last process takes its last numbers along. One finding a program
//! and thread name. Without a quota there is none.
//!
//! False positives: a quota that is meant to hold the program back.

use std::collections::{BTreeMap, HashSet};

use wallprof_model::profile::ThrottledRow;

use super::case::{Case, grouped};
use super::conclusion::{Conclusion, Problem};
use super::evidence::Evidence;
use super::limits::Toll;
use super::wording;

pub(super) const RULE: &str = "cpu-throttling";

const ADVICE: &str = "Raise the group's quota (cpu.max, cpu.cfs_quota_us; a container's CPU limit), use fewer threads at once, or \
    give it weight instead of a quota (cpu.weight); a longer period or a burst (cpu.max.burst) forgives short peaks.";

pub(super) fn find(evidence: &Evidence) -> Vec<Conclusion<'_>> {
    let explaining = explaining(evidence);
    let throttled: HashSet<u32> = evidence.throttled().iter().map(|row| row.pid).collect();
    let is_held_back = |case: &&Case| {
        waits_for_cpu(case, evidence)
            && (rows_of(case, evidence).any(|(at, _)| explaining.contains(&at))
                || (throttled.contains(&case.pid) && nobody_ran_instead(case)))
    };
    let names = grouped(evidence.cases().iter().filter(is_held_back), |case| {
        (evidence.program(case), case.comm.clone())
    });
    names.into_values().filter_map(|cases| conclude(cases, evidence)).collect()
}

fn waits_for_cpu(case: &Case, evidence: &Evidence) -> bool {
    case.runnable_ns >= evidence.unit_ns()
}

fn nobody_ran_instead(case: &Case) -> bool {
    let ran_ns = case.ran_instead.iter().fold(0u64, |sum, (_, ns)| sum.saturating_add(*ns));
    ran_ns < case.runnable_ns / 2
}

/// The quotas that were used up while a stall lasted, by their places.
fn rows_of<'e>(
    case: &'e Case,
    evidence: &'e Evidence,
) -> impl Iterator<Item = (usize, &'e ThrottledRow)> + use<'e> {
    let rows = evidence.throttled();
    let begun = rows.partition_point(|row| row.from < case.end);
    // One look follows the other: they end in the order in which they begin.
    let under_way = rows[..begun].iter().enumerate().rev().take_while(|(_, row)| row.to > case.start);
    under_way.filter(|(_, row)| row.pid == case.pid)
}

/// The quotas that a stall is laid to: those used up meanwhile, else the last one before it.
fn blamed<'e>(case: &'e Case, evidence: &'e Evidence) -> Vec<(usize, &'e ThrottledRow)> {
    let meanwhile: Vec<_> = rows_of(case, evidence).collect();
    if !meanwhile.is_empty() {
        return meanwhile;
    }
    let before = evidence.throttled().iter().enumerate().rev();
    before.filter(|(_, row)| row.pid == case.pid && row.to <= case.start).take(1).collect()
}

/// Places of those that explain at least half of what their process waited for a CPU meanwhile.
fn explaining(evidence: &Evidence) -> HashSet<usize> {
    let mut waited_ns = vec![0u64; evidence.throttled().len()];
    for case in evidence.cases().iter().filter(|case| waits_for_cpu(case, evidence)) {
        for (at, row) in rows_of(case, evidence) {
            let ns = case.overlap_ns(row.from, row.to).min(case.runnable_ns);
            waited_ns[at] = waited_ns[at].saturating_add(ns);
        }
    }
    let rows = evidence.throttled().iter().zip(waited_ns).enumerate();
    rows.filter(|(_, (row, waited_ns))| row.total_ns >= waited_ns / 2).map(|(at, _)| at).collect()
}

fn conclude<'e>(cases: Vec<&'e Case>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let mut rows: BTreeMap<usize, &ThrottledRow> = BTreeMap::new();
    rows.extend(cases.iter().flat_map(|case| blamed(case, evidence)));
    let throttled_ns = rows.values().fold(0u64, |sum, row| sum.saturating_add(row.total_ns));
    let mut toll = Toll::over(&cases, |case| case.runnable_ns);
    toll.total_ns = toll.total_ns.min(throttled_ns);
    toll.max_ns = toll.max_ns.min(toll.total_ns);
    let problem = Problem::heavy(cases, toll, evidence)?;
    let quota = rows.into_values().max_by_key(|row| row.total_ns)?;
    let title = format!(
        "{} could not run because its control group {} had used up its CPU quota ({}) {}.",
        wording::who(&problem.cases, evidence),
        quota.cgroup,
        wording::percent(quota.quota_ns, quota.period_ns),
        wording::toll(&toll)
    );
    Some(problem.conclude(RULE, title, ADVICE))
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
        let lost = |id| StallRecord { ran_instead: vec![(stranger("build"), 70 * MS)], ..held_back(id) };
        for rows in [vec![], vec![throttled(101)], vec![ThrottledRow { to: MonoNs(5), ..throttled(100) }]] {
            let rules: Vec<String> =
                found(rows, (1..=5).map(lost)).into_iter().map(|found| found.rule).collect();
            assert_eq!(rules, ["preempted"]);
        }
    }

    #[test]
    fn the_last_waits_of_a_group_that_is_gone_count_where_nobody_ran_instead() {
        let early = ThrottledRow { to: MonoNs(5), ..throttled(100) };
        let found = found(vec![early], (1..=5).map(held_back));
        assert_eq!(found.iter().map(|found| found.rule.as_str()).collect::<Vec<_>>(), [RULE]);
    }

    #[test]
    fn others_may_have_the_cpu_meanwhile_but_not_for_longer_than_it_was_throttled() {
        let lost = |id| StallRecord { ran_instead: vec![(stranger("build"), 70 * MS)], ..held_back(id) };
        let rule = |total_ns| {
            let found = found(vec![ThrottledRow { total_ns, ..throttled(100) }], (1..=5).map(lost));
            (found.len(), found[0].rule.clone(), found[0].total_ns)
        };
        assert_eq!(rule(200 * MS), (1, RULE.to_owned(), 200 * MS));
        assert_eq!(rule(199 * MS), (1, "preempted".to_owned(), 400 * MS));
    }
}
