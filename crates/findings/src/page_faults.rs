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

use wallprof_model::event::DelayKind;
use wallprof_model::{StallReason, ThreadKey};

use super::case::Case;
use super::conclusion::Conclusion;
use super::evidence::{Evidence, Loss};
use super::limits::frequent_ns;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec};
use super::sums::{self, Place, Problem};
use super::wording;

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "page-faults",
    topic: None,
    excludes: &[],
    cause: Cause::Program,
    evidence: EvidenceKind::Sums,
    find,
};

const ADVICE: &str = "Touch the memory before it is needed (MAP_POPULATE, MADV_POPULATE_WRITE, mlockall), keep it instead \
    of giving it back (mallopt: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD; the decay times of jemalloc), or use huge pages, \
    which need one fault in 512. After a fork the first write to each page copies it.";

fn find<'e>(evidence: &'e Evidence, _: &Reported) -> Vec<Conclusion<'e>> {
    let what = |loss: &Loss| matches!(loss, Loss::Faults).then(String::new);
    let counted = |place: &Place, thread, all_ns: u64, wall_ns| {
        let stalls = place.stalls_of(thread, evidence).filter(|case| is_one(case));
        let stalled_ns = stalls.fold(0u64, |all, case| all.saturating_add(case.duration_ns()));
        // Each place has its part of that.
        let whole_ns = faults_ns(thread, evidence).max(1);
        let reclaimed_ns =
            u128::from(reclaimed_ns(thread, evidence)) * u128::from(all_ns) / u128::from(whole_ns);
        let reclaimed_ns = u64::try_from(reclaimed_ns).unwrap_or(u64::MAX);
        let ns = all_ns.saturating_sub(stalled_ns.saturating_add(reclaimed_ns));
        (ns >= frequent_ns(evidence) && sums::is_much(ns, wall_ns)).then_some(ns)
    };
    let problems = sums::problems(evidence, what, counted);
    problems.into_iter().filter_map(|problem| conclude(problem, evidence)).collect()
}

/// Whether a stall is a page fault without I/O.
fn is_one(case: &Case) -> bool {
    case.reason == StallReason::Minor
}

/// What a thread lost to page faults, at all places.
fn faults_ns(thread: ThreadKey, evidence: &Evidence) -> u64 {
    let own = evidence.sums().filter(|sum| sum.thread == thread && matches!(sum.loss, Loss::Faults));
    own.fold(0, |all, sum| all.saturating_add(sum.ns))
}

/// The time in which a thread had to free memory, for its page faults among others.
fn reclaimed_ns(thread: ThreadKey, evidence: &Evidence) -> u64 {
    let own = evidence
        .kernel_delays()
        .iter()
        .filter(|delay| delay.thread == thread && delay.kind == DelayKind::Reclaim);
    own.fold(0, |all, delay| all.saturating_add(delay.end.0.saturating_sub(delay.start.0)))
}

fn conclude<'e>(problem: Problem<'_>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let title = format!(
        "{} lost some {} to page faults{} that read nothing: memory that was touched for the first time, or written to after \
         a fork.",
        problem.who(evidence),
        problem.time(),
        wording::place(problem.longest()?.site.as_ref()),
    );
    Some(problem.conclude(title, ADVICE.to_owned(), evidence, is_one))
}

#[cfg(test)]
mod tests {
    use super::super::evidence::SumRow;
    use super::super::findings;
    use super::super::fixture::{Fixture, WALL_NS, at, fault, stack};
    use super::*;
    use wallprof_model::profile::{Finding, StallRecord};

    const MS: u64 = 1_000_000;

    fn row(thread: u32, ns: u64) -> SumRow {
        let user = Some(stack(&["fill_block", "serve"]));
        SumRow { thread: ThreadKey(thread), loss: Loss::Faults, user, kernel: None, ns, count: 50 }
    }

    fn found(rows: &[SumRow], stalls: impl IntoIterator<Item = StallRecord>) -> Vec<Finding> {
        let mut fixture = Fixture::new();
        fixture.sums = rows.to_vec();
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
    fn printed_sum_is_without_stalls() {
        let slow = StallRecord { user: Some(stack(&["fill_block", "serve"])), ..fault(1, 1, false, 50 * MS) };
        let found = found(&[row(1, WALL_NS / 8)], [at(200 * MS, slow)]);
        let faults = found.iter().find(|finding| finding.rule == RULE.name).expect("a finding");
        assert_eq!((faults.total_ns, faults.most_late_ns), (1_200 * MS, 1_200 * MS));
        assert!(faults.title.contains("lost some 1.20 s to page faults"), "{}", faults.title);
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
