// SPDX-License-Identifier: Apache-2.0
//! Shared code of the rules about kernel delays: the stalls that contain a delay, its share of each stall,
//! and the finding about delays of a thread that does the kernel's task itself.

use std::collections::BTreeMap;

use wallprof_model::StallReason;
use wallprof_model::event::DelayKind;
use wallprof_model::profile::KernelDelayRow;

use super::case::{Case, grouped};
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::Evidence;
use super::spec::Reported;
use super::wording;

/// By `key`, the stalls in which the kernel delayed the thread in one way, each with the time of these delays alone:
/// those that no earlier rule has reported and whose thread did not only wait for a CPU.
pub(super) fn delayed_stalls<'e, K: Ord>(
    evidence: &'e Evidence,
    kind: DelayKind,
    reported: &Reported,
    key: impl Fn(&Case) -> K,
) -> Vec<Charged<'e>> {
    let mut took: BTreeMap<u64, (&Case, u64)> = BTreeMap::new();
    let is_wanted = |delay: &&KernelDelayRow| delay.kind == kind && !evidence.is_left_out(delay.thread);
    for delay in evidence.kernel_delays().iter().filter(is_wanted) {
        let stalls = evidence.during(delay.thread, delay.start, delay.end);
        for case in stalls.filter(|case| is_no_cpu_wait(case) && !reported.has(case)) {
            let (_, ns) = took.entry(case.id).or_insert((case, 0));
            *ns = ns.saturating_add(case.overlap_ns(delay.start, delay.end));
        }
    }
    let ns_of = |case: &Case| took[&case.id].1.min(case.without_run_queue_ns());
    let delayed = took.values().map(|(case, _)| *case).filter(|case| ns_of(case) > 0);
    grouped(delayed, key).into_values().map(|cases| Charged::over(cases, ns_of)).collect()
}

/// A rule about tasks of the kernel that threads have to do themselves.
pub(super) struct DelayRule {
    pub kind: DelayKind,
    /// `had to …`.
    pub phrase: &'static str,
    pub advice: &'static str,
    /// The cause of the longest delay, for the end of the sentence; empty where it is not known.
    pub cause: fn(&Case, &Evidence) -> String,
}

impl DelayRule {
    /// One finding a program.
    pub fn find<'e>(&self, evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
        let delayed = delayed_stalls(evidence, self.kind, reported, |case| evidence.program(case));
        delayed.into_iter().filter_map(|delayed| self.conclude(delayed, evidence)).collect()
    }

    fn conclude<'e>(&self, delayed: Charged<'e>, evidence: &Evidence) -> Option<Conclusion<'e>> {
        let problem = Problem::unusual(delayed, evidence)?;
        let longest = problem.cases.iter().max_by_key(|case| (case.duration_ns(), case.id));
        let title = format!(
            "{} {}{} {}{}.",
            wording::who(&problem.cases, evidence),
            self.phrase,
            wording::place(problem.site().as_ref()),
            wording::delays(&problem.delays),
            longest.map(|case| (self.cause)(case, evidence)).unwrap_or_default()
        );
        Some(problem.conclude(title, self.advice))
    }
}

fn is_no_cpu_wait(case: &Case) -> bool {
    !case.voluntary && !matches!(case.reason, StallReason::Preempted | StallReason::Runnable)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, case, delay_in, fault};
    use super::super::limits::Delays;
    use super::*;
    use wallprof_model::profile::StallRecord;

    const MS: u64 = 1_000_000;

    fn found(stalls: Vec<StallRecord>, reported: &[u64]) -> Vec<(usize, Delays)> {
        let mut fixture = Fixture::new();
        for stall in &stalls {
            fixture.kernel_delays.push(delay_in(stall, DelayKind::Reclaim, MS, 3 * MS));
            fixture.kernel_delays.push(delay_in(stall, DelayKind::Reclaim, 4 * MS, 5 * MS));
            fixture.kernel_delays.push(delay_in(stall, DelayKind::Compaction, 0, 5 * MS));
        }
        stalls.into_iter().for_each(|stall| fixture.stall(stall));
        let evidence = fixture.evidence();
        let reported = Reported::stalls(reported);
        let found = delayed_stalls(&evidence, DelayKind::Reclaim, &reported, |case| case.pid);
        found.iter().map(|delayed| (delayed.cases.len(), delayed.delays)).collect()
    }

    #[test]
    fn only_the_delays_within_a_stall_count() {
        let delays = Delays { count: 2, total_ns: 6 * MS, max_ns: 3 * MS };
        assert_eq!(found(vec![fault(1, 1, false, 9 * MS), fault(2, 2, false, 9 * MS)], &[]), [(2, delays)]);
        let delays = Delays { count: 1, total_ns: 2 * MS, max_ns: 2 * MS };
        let late = StallRecord { runnable_ns: 7 * MS, ..fault(1, 1, false, 9 * MS) };
        assert_eq!(found(vec![late], &[]), [(1, delays)]);
    }

    #[test]
    fn reported_stalls_and_waits_for_a_cpu_are_left_out() {
        assert_eq!(found(vec![fault(1, 1, false, 9 * MS)], &[1]), []);
        assert_eq!(found(vec![case(1, 1, StallReason::Preempted, 9 * MS)], &[]), []);
    }
}
