//! What a rule concludes, with the stalls it rests on.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use wallprof_model::ThreadKey;
use wallprof_model::profile::Finding;

use super::case::Case;
use super::limits::Toll;

/// Stalls that a finding lists; `count` says how many there were.
const MOST_STALLS: usize = 1_000;

/// A finding before its evidence is reduced to ids.
#[derive(Debug)]
pub(super) struct Conclusion<'e> {
    pub rule: &'static str,
    pub title: String,
    pub advice: String,
    pub threads: Vec<ThreadKey>,
    pub toll: Toll,
    pub cases: Vec<&'e Case>,
}

impl Conclusion<'_> {
    pub fn into_finding(mut self) -> Finding {
        self.cases.sort_by_key(|case| (Reverse(case.duration_ns()), case.id));
        let mut stalls: Vec<u64> = self.cases.iter().take(MOST_STALLS).map(|case| case.id).collect();
        stalls.sort_unstable();
        Finding {
            rule: self.rule.into(),
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

/// The threads of these cases, each once, in the order in which they were first seen.
pub(super) fn threads_of(cases: &[&Case]) -> Vec<ThreadKey> {
    cases.iter().map(|case| case.thread).collect::<BTreeSet<_>>().into_iter().collect()
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
        let toll = Toll::of(cases.iter().map(|case| case.duration_ns()));
        let threads = threads_of(&cases);
        let conclusion =
            Conclusion { rule: "r", title: "t".into(), advice: "a".into(), threads, toll, cases };
        let finding = conclusion.into_finding();
        assert_eq!((finding.count, finding.stalls.len()), (1_200, MOST_STALLS));
        assert_eq!((finding.stalls.first(), finding.stalls.last()), (Some(&201), Some(&1_200)));
        assert_eq!(finding.threads, [ThreadKey(1)]);
    }
}
