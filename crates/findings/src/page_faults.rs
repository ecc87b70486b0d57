// SPDX-License-Identifier: Apache-2.0
//! `page-faults`: a thread lost much of its time to page faults that read nothing: it touches memory for the first time,
//! again and again, or writes to memory that a fork has shared. Each takes a microsecond or less, so that no stall shows
//! them. The sums of their time by stack do, of which every fault is a part.
//!
//! One finding a program and function, where that took a tenth of a thread's time without the faults that are stalls, and
//! without the time in which memory was freed for the thread first (`memory-reclaim`).
//! The sum is an estimate: of short faults one in many has its stack taken, for the time of those since the last one.
//!
//! False positives: programs that have just started, and fill their memory once.

use std::collections::BTreeMap;
use std::sync::Arc;

use wallprof_model::event::DelayKind;
use wallprof_model::{StallReason, ThreadKey};

use super::case::{Case, without_number};
use super::conclusion::Conclusion;
use super::evidence::{Evidence, FaultSum};
use super::limits::{Delays, frequent_ns, is_share};
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec};
use super::wording;

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "page-faults",
    topic: None,
    excludes: &[],
    cause: Cause::Program,
    evidence: EvidenceKind::Sums,
    find,
};

/// The part of a thread's time that such faults take.
const PART: u64 = 10;

const ADVICE: &str = "Touch the memory before it is needed (MAP_POPULATE, MADV_POPULATE_WRITE, mlockall), keep it instead \
    of giving it back (mallopt: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD; the decay times of jemalloc), or use huge pages, \
    which need one fault in 512. After a fork the first write to each page copies it.";

/// The program, the thread's name without its number, and the program's function.
type Place = (Arc<str>, String, Option<Arc<str>>);

fn find<'e>(evidence: &'e Evidence, _: &Reported) -> Vec<Conclusion<'e>> {
    let mut places: BTreeMap<Place, BTreeMap<ThreadKey, Vec<&FaultSum>>> = BTreeMap::new();
    for sum in evidence.fault_sums() {
        if let Some(thread) = evidence.thread(sum.thread) {
            let function = sum.site.as_ref().and_then(|site| site.functions.first().cloned());
            let place = (thread.process.clone(), without_number(&thread.comm), function);
            places.entry(place).or_default().entry(sum.thread).or_default().push(sum);
        }
    }
    let conclusions = places.into_iter().filter_map(|(place, mut threads)| {
        threads.retain(|thread, sums| is_problem(*thread, sums, &place, evidence));
        conclude(&place, &threads, evidence)
    });
    conclusions.collect()
}

/// Whether a thread that lost `ns` may have a finding.
pub fn is_enough_faulted(ns: u64, wall_ns: u64) -> bool {
    is_share(ns, PART, wall_ns)
}

fn is_problem(thread: ThreadKey, sums: &[&FaultSum], place: &Place, evidence: &Evidence) -> bool {
    let stalled_ns =
        stalls_of(thread, place, evidence).fold(0u64, |all, case| all.saturating_add(case.duration_ns()));
    let other_ns = stalled_ns.saturating_add(reclaimed_ns(thread, evidence));
    let ns = sum(sums.iter().copied()).saturating_sub(other_ns);
    let wall_ns = evidence.thread(thread).map_or(u64::MAX, |thread| thread.wall_ns);
    ns >= frequent_ns(evidence) && is_enough_faulted(ns, wall_ns)
}

fn sum<'s>(sums: impl Iterator<Item = &'s FaultSum>) -> u64 {
    sums.fold(0, |all, sum| all.saturating_add(sum.ns))
}

/// The time in which a thread had to free memory, for its page faults among others.
fn reclaimed_ns(thread: ThreadKey, evidence: &Evidence) -> u64 {
    let own = evidence
        .kernel_delays()
        .iter()
        .filter(|delay| delay.thread == thread && delay.kind == DelayKind::Reclaim);
    own.fold(0, |all, delay| all.saturating_add(delay.end.0.saturating_sub(delay.start.0)))
}

/// The page faults without I/O of a thread in the place's function that are stalls.
fn stalls_of<'e>(thread: ThreadKey, place: &Place, evidence: &'e Evidence) -> impl Iterator<Item = &'e Case> {
    let is_one = |case: &&Case| case.reason == StallReason::Minor && case.function() == place.2.as_ref();
    evidence.cases_of(thread).filter(is_one)
}

fn conclude<'e>(
    place: &Place,
    threads: &BTreeMap<ThreadKey, Vec<&FaultSum>>,
    evidence: &Evidence,
) -> Option<Conclusion<'e>> {
    let sums = || threads.values().flatten().copied();
    let longest = sums().max_by_key(|sum| sum.ns)?;
    let total_ns = sum(sums());
    let keys: Vec<ThreadKey> = threads.keys().copied().collect();
    let totals: Vec<_> = keys.iter().filter_map(|key| evidence.thread(*key)).collect();
    let title = format!(
        "{} lost some {} to page faults{} that read nothing: memory that was touched for the first time, or written to after \
         a fork.",
        wording::threads(&totals),
        wording::time(total_ns),
        wording::place(longest.site.as_ref()),
    );
    let kept = keys.iter().flat_map(|key| stalls_of(*key, place, evidence));
    let delays = Delays {
        count: sums().fold(0, |all, sum| all.saturating_add(sum.count)),
        total_ns,
        max_ns: kept.map(Case::duration_ns).max().unwrap_or(evidence.min_stall_ns()),
    };
    let advice = ADVICE.to_owned();
    Some(Conclusion { title, advice, threads: keys, delays, cases: Vec::new(), interrupts: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::super::evidence::FaultRow;
    use super::super::findings;
    use super::super::fixture::{Fixture, WALL_NS, at, fault, stack};
    use super::*;
    use wallprof_model::profile::{Finding, StallRecord};

    const MS: u64 = 1_000_000;

    fn row(thread: u32, ns: u64) -> FaultRow {
        let user = Some(stack(&["fill_block", "serve"]));
        FaultRow { thread: ThreadKey(thread), user, ns, count: 50 }
    }

    fn found(rows: &[FaultRow], stalls: impl IntoIterator<Item = StallRecord>) -> Vec<Finding> {
        let mut fixture = Fixture::new();
        fixture.faults = rows.to_vec();
        stalls.into_iter().for_each(|stall| fixture.stall(stall));
        findings(&fixture.evidence())
    }

    #[test]
    fn faults_that_take_a_tenth_of_the_time_are_one_finding_a_function() {
        let found = found(&[row(1, WALL_NS / 16), row(1, WALL_NS / 16)], []);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(
            found[0].title,
            "thread-1 of app lost some 1.25 s to page faults in fill_block (called by serve) that read nothing: memory that \
             was touched for the first time, or written to after a fork."
        );
        assert!(found[0].advice.contains("MADV_POPULATE_WRITE"), "{}", found[0].advice);
        assert_eq!((found[0].rule.as_str(), found[0].count, found[0].max_ns), (RULE.name, 100, 100_000));
    }

    #[test]
    fn threads_of_a_pool_are_one_finding() {
        let found = found(&[1, 2, 3].map(|thread| row(thread, WALL_NS / 5)), []);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(found[0].threads, [1, 2, 3].map(ThreadKey));
    }

    #[test]
    fn less_than_a_tenth_is_none() {
        assert_eq!(found(&[row(1, WALL_NS / 10 - 1), row(2, WALL_NS / 11)], []), []);
    }

    #[test]
    fn faults_that_are_stalls_do_not_count() {
        let slow = |id: u64| {
            let user = Some(stack(&["fill_block", "serve"]));
            at(id * 200 * MS, StallRecord { user, ..fault(id, 1, false, 50 * MS) })
        };
        let found = found(&[row(1, WALL_NS / 8)], (1..=20).map(slow));
        assert!(found.iter().all(|finding| finding.rule != RULE.name), "{found:#?}");
    }
}
