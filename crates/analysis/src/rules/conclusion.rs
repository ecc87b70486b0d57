//! What a rule concludes, with the stalls it rests on, and how it comes to that: cases of one cause are a problem when they
//! cost enough, and a problem that has its words is a conclusion.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use wallprof_model::ThreadKey;
use wallprof_model::profile::Finding;

use super::case::{Case, mostly};
use super::evidence::Evidence;
use super::limits::Toll;
use crate::site::Site;

/// Stalls that a finding lists; `count` says how many there were.
const MOST_STALLS: usize = 1_000;

/// A finding before its evidence is reduced to ids.
#[derive(Debug)]
pub(super) struct Conclusion<'e> {
    pub title: String,
    pub advice: String,
    pub threads: Vec<ThreadKey>,
    pub toll: Toll,
    pub cases: Vec<&'e Case>,
}

/// Cases of one cause that are worth a finding.
#[derive(Debug)]
pub(super) struct Problem<'e> {
    pub threads: Vec<ThreadKey>,
    pub toll: Toll,
    pub cases: Vec<&'e Case>,
}

impl<'e> Problem<'e> {
    pub fn new(cases: Vec<&'e Case>, toll: Toll) -> Self {
        let threads: BTreeSet<ThreadKey> = cases.iter().map(|case| case.thread).collect();
        Problem { threads: threads.into_iter().collect(), toll, cases }
    }

    /// Of what should hardly ever happen. `toll` is what the cause alone took of the cases.
    pub fn unusual(cases: Vec<&'e Case>, toll: Toll, evidence: &Evidence) -> Option<Self> {
        let problem = Problem::new(cases, toll);
        (toll.is_unusual(evidence) && problem.is_the_point(evidence)).then_some(problem)
    }

    /// Of what happens to every program now and then.
    pub fn heavy(cases: Vec<&'e Case>, toll: Toll, evidence: &Evidence) -> Option<Self> {
        let problem = Problem::new(cases, toll);
        (toll.is_heavy(evidence, &problem.threads) && problem.is_the_point(evidence)).then_some(problem)
    }

    fn is_the_point(&self, evidence: &Evidence) -> bool {
        !self.toll.is_beside_the_point(evidence, &self.threads)
    }

    /// Where most of it was met.
    pub fn site(&self) -> Option<Arc<Site>> {
        mostly(&self.cases, |case| case.site.clone())
    }

    pub fn conclude(self, title: String, advice: impl Into<String>) -> Conclusion<'e> {
        let Problem { threads, toll, cases } = self;
        Conclusion { title, advice: advice.into(), threads, toll, cases }
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
            count: self.toll.count,
            total_ns: self.toll.total_ns,
            max_ns: self.toll.max_ns,
            stalls,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Play, lock_case};
    use super::*;

    #[test]
    fn of_very_many_stalls_the_longest_are_listed() {
        let mut play = Play::new();
        for id in 1..=1_200 {
            play.stall(lock_case(id, 1, 2, id * 1_000));
        }
        let evidence = play.evidence();
        let cases: Vec<&Case> = evidence.cases().iter().collect();
        let toll = Toll::over(&cases, Case::duration_ns);
        let problem = Problem::unusual(cases, toll, &evidence).expect("a problem");
        let finding = problem.conclude("t".into(), "a").into_finding("r");
        assert_eq!((finding.count, finding.stalls.len()), (1_200, MOST_STALLS));
        assert_eq!((finding.stalls.first(), finding.stalls.last()), (Some(&201), Some(&1_200)));
        assert_eq!(finding.threads, [ThreadKey(1)]);
    }
}
