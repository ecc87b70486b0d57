//! What the rules about the kernel's own work have in common: in which stalls it lies, how much of each it took, and the
//! finding about work that a thread did to its own price.

use std::collections::BTreeMap;

use wallprof_model::StallReason;
use wallprof_model::event::WorkKind;

use super::case::{Case, grouped};
use super::conclusion::{Conclusion, Problem};
use super::evidence::Evidence;
use super::limits::Toll;
use super::spec::Reported;
use super::wording;

/// Stalls with something in common in which the kernel did one kind of work.
pub(super) struct Worked<'e> {
    pub cases: Vec<&'e Case>,
    /// What the work alone took.
    pub toll: Toll,
}

impl<'e> Worked<'e> {
    /// By `key`, the stalls that no rule has told and whose thread did not just wait for a CPU.
    pub fn find<K: Ord>(
        evidence: &'e Evidence,
        kind: WorkKind,
        reported: &Reported,
        key: impl Fn(&Case) -> K,
    ) -> Vec<Self> {
        let mut took: BTreeMap<u64, (&Case, u64)> = BTreeMap::new();
        for work in evidence.works().iter().filter(|work| work.kind == kind) {
            let stalls = evidence.during(work.thread, work.start, work.end);
            for case in stalls.filter(|case| is_at_work(case) && !reported.has(case)) {
                let (_, ns) = took.entry(case.id).or_insert((case, 0));
                *ns = ns.saturating_add(case.overlap_ns(work.start, work.end));
            }
        }
        let ns_of = |case: &Case| took[&case.id].1.min(case.without_run_queue_ns());
        let groups = grouped(took.values().map(|(case, _)| *case), key);
        let worked = |cases: Vec<&'e Case>| {
            let toll = Toll::of(cases.iter().map(|case| ns_of(case)).filter(|&ns| ns > 0));
            Worked { cases, toll }
        };
        groups.into_values().map(worked).collect()
    }
}

/// A rule about work that threads do for the kernel in the middle of their own.
pub(super) struct Duty {
    pub kind: WorkKind,
    /// `had to …`.
    pub phrase: &'static str,
    pub advice: &'static str,
}

impl Duty {
    /// One finding a program.
    pub fn find<'e>(&self, evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
        let worked = Worked::find(evidence, self.kind, reported, |case| evidence.program(case));
        worked.into_iter().filter_map(|worked| self.conclude(worked, evidence)).collect()
    }

    fn conclude<'e>(&self, worked: Worked<'e>, evidence: &Evidence) -> Option<Conclusion<'e>> {
        let problem = Problem::unusual(worked.cases, worked.toll, evidence)?;
        let title = format!(
            "{} {}{} {}.",
            wording::who(&problem.cases, evidence),
            self.phrase,
            wording::place(problem.site().as_ref()),
            wording::toll(&problem.toll)
        );
        Some(problem.conclude(title, self.advice))
    }
}

fn is_at_work(case: &Case) -> bool {
    !case.voluntary && !matches!(case.reason, StallReason::Preempted | StallReason::Runnable)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Play, case, fault, work_in};
    use super::*;
    use wallprof_model::profile::StallRecord;

    const MS: u64 = 1_000_000;

    fn found(stalls: Vec<StallRecord>, reported: &[u64]) -> Vec<(usize, Toll)> {
        let mut play = Play::new();
        for stall in &stalls {
            play.works.push(work_in(stall, WorkKind::Reclaim, MS, 3 * MS));
            play.works.push(work_in(stall, WorkKind::Reclaim, 4 * MS, 5 * MS));
            play.works.push(work_in(stall, WorkKind::Compaction, 0, 5 * MS));
        }
        stalls.into_iter().for_each(|stall| play.stall(stall));
        let evidence = play.evidence();
        let reported = Reported::stalls(reported);
        let found = Worked::find(&evidence, WorkKind::Reclaim, &reported, |case| case.pid);
        found.iter().map(|worked| (worked.cases.len(), worked.toll)).collect()
    }

    #[test]
    fn what_the_work_took_of_a_stall_counts_and_no_more() {
        let toll = Toll { count: 2, total_ns: 6 * MS, max_ns: 3 * MS };
        assert_eq!(found(vec![fault(1, 1, false, 9 * MS), fault(2, 2, false, 9 * MS)], &[]), [(2, toll)]);
        let toll = Toll { count: 1, total_ns: 2 * MS, max_ns: 2 * MS };
        let late = StallRecord { runnable_ns: 7 * MS, ..fault(1, 1, false, 9 * MS) };
        assert_eq!(found(vec![late], &[]), [(1, toll)]);
    }

    #[test]
    fn told_stalls_and_waits_for_a_cpu_are_left_out() {
        assert_eq!(found(vec![fault(1, 1, false, 9 * MS)], &[1]), []);
        assert_eq!(found(vec![case(1, 1, StallReason::Preempted, 9 * MS)], &[]), []);
    }
}
