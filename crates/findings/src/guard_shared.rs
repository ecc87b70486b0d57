// SPDX-License-Identifier: Apache-2.0
//! `guard-shared`: threads for which a CPU is reserved share it. Each is late while another runs, and no
//! intruder is the cause.
//!
//! One finding a CPU. A thread counts if it ran there for a millisecond and for a thousandth of what all of
//! them ran. One that was there only briefly when it started does not count.
//!
//! False positives: threads that take turns on purpose.

use std::cmp::Reverse;

use wallprof_model::IntrusionKind;
use wallprof_model::profile::IntrusionRow;

use super::conclusion::{Conclusion, Problem};
use super::evidence::Evidence;
use super::limits::{Delays, is_share};
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec};
use super::wording;

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "guard-shared",
    topic: None,
    excludes: &[],
    cause: Cause::Machine,
    evidence: EvidenceKind::Sums,
    find,
};

const LEAST_NS: u64 = 1_000_000;

const ADVICE: &str = "Give each of them a guarded CPU of its own (taskset, pthread_setaffinity_np, a cpuset), or allow \
                      fewer names there (--allow).";

fn find<'e>(evidence: &'e Evidence, _reported: &Reported) -> Vec<Conclusion<'e>> {
    let mut allowed: Vec<&IntrusionRow> =
        evidence.intrusions().iter().filter(|row| is_allowed_thread(row)).collect();
    allowed.sort_by_key(|row| (row.cpu, Reverse(row.total_ns)));
    allowed.chunk_by(|a, b| a.cpu == b.cpu).filter_map(conclude).collect()
}

fn is_allowed_thread(row: &IntrusionRow) -> bool {
    row.allowed && row.kind == IntrusionKind::Task && row.thread.is_some()
}

/// The allowed threads of one CPU, most time first.
fn conclude<'e>(rows: &[&IntrusionRow]) -> Option<Conclusion<'e>> {
    let whole_ns = rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.total_ns));
    let is_there = |row: &&&IntrusionRow| row.total_ns >= LEAST_NS && is_share(row.total_ns, 1_000, whole_ns);
    let rows: Vec<&IntrusionRow> = rows.iter().filter(is_there).copied().collect();
    let (first, others) = rows.split_first().filter(|(_, others)| !others.is_empty())?;
    let delays = others.iter().fold(Delays::default(), |delays, row| Delays {
        count: delays.count.saturating_add(row.count),
        total_ns: delays.total_ns.saturating_add(row.total_ns),
        max_ns: delays.max_ns.max(row.max_ns),
    });
    let title = format!("{} allowed threads share guarded CPU {}: {}.", rows.len(), first.cpu, names(&rows));
    let threads = rows.iter().filter_map(|row| row.thread.as_ref()?.key).collect();
    Some(Problem::of_all(threads, delays).conclude(title, ADVICE))
}

fn names(rows: &[&IntrusionRow]) -> String {
    let shown = rows.iter().take(4).filter_map(|row| {
        let thread = row.thread.as_ref()?;
        Some(format!("{} ({}) {}", wording::shown(&thread.comm), thread.tid, wording::time(row.total_ns)))
    });
    let mut names: Vec<String> = shown.collect();
    if rows.len() > names.len() {
        names.push(format!("{} more", rows.len() - names.len()));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, thread_ref, untracked};
    use super::*;
    use wallprof_model::ThreadKey;
    use wallprof_model::profile::Finding;

    const MS: u64 = 1_000_000;

    fn ran(cpu: u32, thread: u32, total_ns: u64) -> IntrusionRow {
        IntrusionRow {
            cpu,
            kind: IntrusionKind::Task,
            what: String::new(),
            thread: Some(thread_ref(thread)),
            allowed: true,
            count: 10,
            total_ns,
            max_ns: total_ns / 2,
        }
    }

    fn found(rows: Vec<IntrusionRow>) -> Vec<Finding> {
        let mut fixture = Fixture::new();
        fixture.intrusions = rows;
        findings(&fixture.evidence())
    }

    #[test]
    fn title_names_the_threads_and_their_cpu() {
        let findings = found(vec![ran(3, 2, 400 * MS), ran(3, 1, 9_000 * MS), ran(4, 5, 9_000 * MS)]);
        assert_eq!(findings.len(), 1);
        assert_eq!(
            findings[0].title,
            "2 allowed threads share guarded CPU 3: thread-1 (101) 9.00 s, thread-2 (102) 400 ms."
        );
        assert_eq!(findings[0].threads, [ThreadKey(1), ThreadKey(2)]);
        assert_eq!((findings[0].count, findings[0].total_ns, findings[0].max_ns), (10, 400 * MS, 200 * MS));
    }

    #[test]
    fn brief_runs_and_intruders_do_not_count() {
        assert_eq!(found(vec![ran(3, 1, 9_000 * MS), ran(3, 2, MS - 1)]), []);
        assert_eq!(found(vec![ran(3, 1, 9_000 * MS), ran(3, 2, 8 * MS)]), []);
        let intruder =
            IntrusionRow { allowed: false, thread: Some(untracked("cron")), ..ran(3, 2, 900 * MS) };
        assert_eq!(found(vec![ran(3, 1, 9_000 * MS), intruder]), []);
    }
}
