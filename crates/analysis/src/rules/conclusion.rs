//! The conclusions of a rule, with the stalls as evidence. Cases of one cause are a problem when they cost
//! enough. A problem with a title and an advice is a conclusion.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use wallprof_model::ThreadKey;
use wallprof_model::profile::Finding;

use super::case::{Case, mostly};
use super::evidence::Evidence;
use super::limits::Delays;
use crate::site::Site;

/// Stalls that a finding lists; `count` says how many there were.
const MOST_STALLS: usize = 1_000;

/// A finding before its evidence is reduced to ids.
#[derive(Debug)]
pub(super) struct Conclusion<'e> {
    pub title: String,
    pub advice: String,
    pub threads: Vec<ThreadKey>,
    pub delays: Delays,
    pub cases: Vec<&'e Case>,
}

/// Cases of one cause that are worth a finding.
#[derive(Debug)]
pub(super) struct Problem<'e> {
    pub threads: Vec<ThreadKey>,
    pub delays: Delays,
    pub cases: Vec<&'e Case>,
}

impl<'e> Problem<'e> {
    pub fn new(cases: Vec<&'e Case>, delays: Delays) -> Self {
        let threads: BTreeSet<ThreadKey> = cases.iter().map(|case| case.thread).collect();
        Problem { threads: threads.into_iter().collect(), delays, cases }
    }

    /// For causes that should be very rare. `delays` is the part of the cases that the cause took.
    pub fn unusual(cases: Vec<&'e Case>, delays: Delays, evidence: &Evidence) -> Option<Self> {
        let problem = Problem::new(cases, delays);
        (delays.is_unusual(evidence) && problem.is_significant(evidence)).then_some(problem)
    }

    /// For causes that every program meets at times.
    pub fn heavy(cases: Vec<&'e Case>, delays: Delays, evidence: &Evidence) -> Option<Self> {
        let problem = Problem::new(cases, delays);
        (delays.is_heavy(evidence, &problem.threads) && problem.is_significant(evidence)).then_some(problem)
    }

    fn is_significant(&self, evidence: &Evidence) -> bool {
        !self.delays.is_negligible(evidence, &self.threads)
    }

    /// The place of most of the delays.
    pub fn site(&self) -> Option<Arc<Site>> {
        mostly(&self.cases, |case| case.site.clone())
    }

    pub fn conclude(self, title: String, advice: impl Into<String>) -> Conclusion<'e> {
        let Problem { threads, delays, cases } = self;
        Conclusion { title, advice: advice.into(), threads, delays, cases }
    }
}

impl Conclusion<'_> {
    /// The finding of the rule with this name.
    pub fn into_finding(mut self, rule: &str) -> Finding {
        self.cases.sort_by_key(|case| (Reverse(case.late_ns()), case.id));
        let mut stalls: Vec<u64> = self.cases.iter().take(MOST_STALLS).map(|case| case.id).collect();
        stalls.sort_unstable();
        Finding {
            rule: rule.into(),
            title: self.title,
            advice: self.advice,
            threads: self.threads,
            count: self.delays.count,
            total_ns: self.delays.total_ns,
            max_ns: self.delays.max_ns,
            stalls,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, lock_case};
    use super::*;

    #[test]
    fn of_very_many_stalls_the_longest_are_listed() {
        let mut fixture = Fixture::new();
        for id in 1..=1_200 {
            fixture.stall(lock_case(id, 1, 2, id * 1_000));
        }
        let evidence = fixture.evidence();
        let cases: Vec<&Case> = evidence.cases().collect();
        let delays = Delays::over(&cases, Case::duration_ns);
        let problem = Problem::unusual(cases, delays, &evidence).expect("a problem");
        let finding = problem.conclude("t".into(), "a").into_finding("r");
        assert_eq!((finding.count, finding.stalls.len()), (1_200, MOST_STALLS));
        assert_eq!((finding.stalls.first(), finding.stalls.last()), (Some(&201), Some(&1_200)));
        assert_eq!(finding.threads, [ThreadKey(1)]);
    }
}
