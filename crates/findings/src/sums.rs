// SPDX-License-Identifier: Apache-2.0
//! Shared code of the rules about what takes no time once but much in all: the sums of threads by place, and the
//! conclusion about a place.

use std::collections::BTreeMap;
use std::sync::Arc;

use wallprof_model::ThreadKey;

use super::case::{Case, without_number};
use super::conclusion::{self, Conclusion};
use super::evidence::{Evidence, Loss, Sum};
use super::limits::{Delays, is_share};
use super::wording;

/// Whether a thread that lost `ns` to page faults, or to calls of sched_yield, may have a finding: a tenth of its time.
pub fn is_much(ns: u64, wall_ns: u64) -> bool {
    is_share(ns, 10, wall_ns)
}

/// The program, the thread's name without its number, what it lost time to, and the program's function.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    program: Arc<str>,
    comm: String,
    pub what: String,
    function: Option<Arc<str>>,
}

impl Place {
    /// The stalls of a thread in the place's function.
    pub fn stalls_of<'e>(
        &self,
        thread: ThreadKey,
        evidence: &'e Evidence,
    ) -> impl Iterator<Item = &'e Case> + use<'e, '_> {
        evidence.cases_of(thread).filter(|case| case.function() == self.function.as_ref())
    }
}

/// The sums at a place, of the threads for which they are a problem.
pub(super) struct Problem<'e> {
    pub place: Place,
    sums: Vec<&'e Sum>,
    /// What each thread lost, ns.
    by_thread: BTreeMap<ThreadKey, u64>,
}

/// The sums that `what` names by place. `counted` says what counts of what a thread lost there, by that and by its wall time,
/// ns; `None`: it is no problem.
pub(super) fn problems<'e>(
    evidence: &'e Evidence,
    what: impl Fn(&Loss) -> Option<String>,
    counted: impl Fn(&Place, ThreadKey, u64, u64) -> Option<u64>,
) -> Vec<Problem<'e>> {
    let mut places: BTreeMap<(Place, ThreadKey), Vec<&Sum>> = BTreeMap::new();
    for sum in evidence.sums() {
        if let (Some(what), Some(thread)) = (what(&sum.loss), evidence.thread(sum.thread)) {
            let function = sum.site.as_ref().and_then(|site| site.functions.first().cloned());
            let (program, comm) = (thread.process.clone(), without_number(&thread.comm));
            places.entry((Place { program, comm, what, function }, sum.thread)).or_default().push(sum);
        }
    }
    let mut problems: Vec<Problem<'_>> = Vec::new();
    for ((place, thread), sums) in places {
        let wall_ns = evidence.thread(thread).map_or(u64::MAX, |thread| thread.wall_ns);
        let lost_ns = sums.iter().fold(0u64, |all, sum| all.saturating_add(sum.ns));
        let Some(ns) = counted(&place, thread, lost_ns, wall_ns) else { continue };
        match problems.last_mut().filter(|last| last.place == place) {
            Some(last) => {
                last.sums.extend(sums);
                last.by_thread.insert(thread, ns);
            }
            None => problems.push(Problem { place, sums, by_thread: BTreeMap::from([(thread, ns)]) }),
        }
    }
    problems
}

impl Problem<'_> {
    pub fn longest(&self) -> Option<&Sum> {
        self.sums.iter().copied().max_by_key(|sum| sum.ns)
    }

    /// `worker and 2 other threads of app`.
    pub fn who(&self, evidence: &Evidence) -> String {
        let totals: Vec<_> = self.by_thread.keys().filter_map(|key| evidence.thread(*key)).collect();
        wording::threads(&totals)
    }

    /// `667 ms`.
    pub fn time(&self) -> String {
        wording::time(self.total_ns())
    }

    fn total_ns(&self) -> u64 {
        self.by_thread.values().fold(0, |all, ns| all.saturating_add(*ns))
    }

    /// The longest of the place's stalls that are `of_kind` is the longest of all.
    pub fn conclude<'e>(
        self,
        title: String,
        advice: String,
        evidence: &Evidence,
        of_kind: impl Fn(&Case) -> bool,
    ) -> Conclusion<'e> {
        let kept = self.by_thread.keys().flat_map(|key| self.place.stalls_of(*key, evidence));
        let longest = kept.filter(|case| of_kind(case)).map(Case::duration_ns).max();
        let delays = Delays {
            count: self.sums.iter().fold(0, |all, sum| all.saturating_add(sum.count)),
            total_ns: self.total_ns(),
            max_ns: longest.unwrap_or(evidence.min_stall_ns()),
        };
        conclusion::Problem::of_threads(self.by_thread, delays).conclude(title, advice)
    }
}
