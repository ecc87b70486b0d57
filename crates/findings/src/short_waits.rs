// SPDX-License-Identifier: Apache-2.0
//! `short-waits`: a thread lost much of its time to waits of one kind at one place, each of which is too short to be kept
//! one by one: a lock for 40 µs, a disk that answers in 60 µs, space in a queue. No stall shows them. The sums of blocked
//! time by stack do, of which every wait is a part.
//!
//! One finding a program, kind of wait and function, where that took a twentieth of a thread's time, and stalls at the same
//! place are less than half of it. The sum is an estimate: of short waits one in many has its stack taken, for the time of
//! those since the last one.
//!
//! False positives: threads whose task is to wait for a disk or for space.

use std::collections::BTreeMap;
use std::sync::Arc;

use wallprof_model::{Meaning, Reason, ThreadKey};

use super::case::{Case, is_for_a_result, without_number};
use super::conclusion::Conclusion;
use super::evidence::{Evidence, WaitSum};
use super::limits::{Delays, frequent_ns, is_frequent_part};
use super::lock_wait;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{disk_wait, lock, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "short-waits",
    topic: None,
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Sums,
    find,
};

/// The program, the thread's name without its number, what it waited for, and the program's function.
type Place = (Arc<str>, String, String, Option<Arc<str>>);

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let mut places: BTreeMap<Place, BTreeMap<ThreadKey, Vec<&WaitSum>>> = BTreeMap::new();
    for sum in evidence.wait_sums() {
        let what = what(sum.reason, sum.meaning.as_deref());
        if let (Some(what), Some(thread)) = (what, evidence.thread(sum.thread)) {
            let function = sum.site.as_ref().and_then(|site| site.functions.first().cloned());
            let place = (thread.process.clone(), without_number(&thread.comm), what, function);
            places.entry(place).or_default().entry(sum.thread).or_default().push(sum);
        }
    }
    let conclusions = places.into_iter().filter_map(|(place, mut threads)| {
        threads.retain(|thread, sums| is_problem(*thread, sums, &place, evidence, reported));
        conclude(&place, &threads, evidence)
    });
    conclusions.collect()
}

/// `a disk`, `a lock`, `space in a ring`; `None`: a wait of another kind. One for the other end of a connection is as long as
/// the way there, and one for another thread's result as the way to that thread.
fn what(reason: Reason, meaning: Option<&Meaning>) -> Option<String> {
    match (reason, meaning) {
        (Reason::Disk, _) => Some("a disk".to_owned()),
        (_, Some(meaning)) if meaning.is_for_the_other_end() || meaning.idle => None,
        (_, Some(meaning)) if is_for_a_result(meaning) => None,
        (_, Some(meaning)) => Some(lock::named(&meaning.name)),
        (Reason::Lock, None) => Some("a lock".to_owned()),
        _ => None,
    }
}

/// Whether the rule is about waits with this reason and meaning.
pub fn reads_wait(reason: Reason, meaning: Option<&Meaning>) -> bool {
    what(reason, meaning).is_some()
}

/// Whether a thread that lost `ns` may have a finding.
pub fn is_enough_lost(ns: u64, wall_ns: u64) -> bool {
    is_frequent_part(ns, wall_ns)
}

fn is_problem(
    thread: ThreadKey,
    sums: &[&WaitSum],
    place: &Place,
    evidence: &Evidence,
    reported: &Reported,
) -> bool {
    let ns = sums.iter().fold(0u64, |all, sum| all.saturating_add(sum.ns));
    let wall_ns = evidence.thread(thread).map_or(u64::MAX, |thread| thread.wall_ns);
    if !is_enough_lost(ns, wall_ns) || ns < frequent_ns(evidence) {
        return false;
    }
    let stalls = || stalls_of(thread, place, evidence);
    let long_ns = stalls().fold(0u64, |all, case| all.saturating_add(case.without_run_queue_ns()));
    long_ns < ns / 2 && !stalls().any(|case| reported.has(case))
}

/// The stalls of a thread in the place's function.
fn stalls_of<'e>(thread: ThreadKey, place: &Place, evidence: &'e Evidence) -> impl Iterator<Item = &'e Case> {
    evidence.cases_of(thread).filter(|case| case.function() == place.3.as_ref())
}

fn conclude<'e>(
    place: &Place,
    threads: &BTreeMap<ThreadKey, Vec<&WaitSum>>,
    evidence: &Evidence,
) -> Option<Conclusion<'e>> {
    let sums = || threads.values().flatten();
    let longest = sums().max_by_key(|sum| sum.ns)?;
    let total_ns = sums().fold(0u64, |all, sum| all.saturating_add(sum.ns));
    let keys: Vec<ThreadKey> = threads.keys().copied().collect();
    let totals: Vec<_> = keys.iter().filter_map(|key| evidence.thread(*key)).collect();
    let kept = keys.iter().flat_map(|key| stalls_of(*key, place, evidence));
    let shortest = wording::time(evidence.min_stall_ns());
    let title = format!(
        "{} waited for {}{} for some {} in all, nearly always for less than {shortest} at a time.",
        wording::threads(&totals),
        place.2,
        wording::place(longest.site.as_ref()),
        wording::time(total_ns),
    );
    let advice = format!(
        "{} `record --min-stall` with less than {shortest} shows each wait, and who ended it.",
        advice(longest)
    );
    let delays = Delays {
        count: sums().fold(0, |all, sum| all.saturating_add(sum.count)),
        total_ns,
        max_ns: kept.map(Case::duration_ns).max().unwrap_or(evidence.min_stall_ns()),
    };
    Some(Conclusion { title, advice, threads: keys, delays, cases: Vec::new(), interrupts: Vec::new() })
}

fn advice(sum: &WaitSum) -> &'static str {
    match (sum.reason, sum.meaning.as_deref()) {
        (Reason::Disk, _) => disk_wait::advice(sum.call.as_deref().unwrap_or_default()),
        (_, Some(meaning)) if meaning.name.starts_with(lock::FULL) => lock_wait::SPACE_ADVICE,
        _ => "Take the lock less often, or split it: threads meet at it all the time.",
    }
}

#[cfg(test)]
mod tests {
    use super::super::evidence::WaitRow;
    use super::super::findings;
    use super::super::fixture::{Fixture, WALL_NS, case, kernel_stack, stack};
    use super::*;
    use wallprof_model::profile::{Finding, StallRecord};
    use wallprof_model::{MeaningSource, StallReason};

    const SYNC: [&str; 4] = ["schedule", "io_schedule", "ext4_sync_file", "__x64_sys_fdatasync"];

    fn row(thread: u32, reason: Reason, ns: u64) -> WaitRow {
        WaitRow {
            thread: ThreadKey(thread),
            reason,
            meaning: None,
            user: Some(stack(&["fdatasync", "flush_log", "serve"])),
            kernel: Some(kernel_stack(&SYNC)),
            ns,
            count: 50,
        }
    }

    fn said(name: &str, idle: bool, ns: u64) -> WaitRow {
        let (software, source) = (Some("ring".into()), MeaningSource::Stack);
        let meaning = Meaning { name: name.into(), software, idle, holder: false, source };
        WaitRow { meaning: Some(meaning.into()), ..row(1, Reason::Wait, ns) }
    }

    fn found(rows: &[WaitRow], stalls: impl IntoIterator<Item = StallRecord>) -> Vec<Finding> {
        let mut fixture = Fixture::new();
        fixture.waits = rows.to_vec();
        stalls.into_iter().for_each(|stall| fixture.stall(stall));
        findings(&fixture.evidence())
    }

    #[test]
    fn many_waits_that_are_no_stalls_are_one_finding_a_place() {
        let halves = [row(1, Reason::Disk, WALL_NS / 30), row(1, Reason::Disk, WALL_NS / 30)];
        let found = found(&halves, []);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(
            found[0].title,
            "thread-1 of app waited for a disk in flush_log (called by serve) for some 667 ms in all, nearly always for less \
             than 100 µs at a time."
        );
        assert!(found[0].advice.contains("another thread sync"), "{}", found[0].advice);
        assert!(found[0].advice.contains("record --min-stall"), "{}", found[0].advice);
        assert_eq!((found[0].rule.as_str(), found[0].count, found[0].max_ns), (RULE.name, 100, 100_000));
        assert_eq!((found[0].threads.as_slice(), found[0].stalls.len()), (&[ThreadKey(1)][..], 0));
    }

    #[test]
    fn threads_of_a_pool_are_one_finding() {
        let found = found(&[1, 2, 3].map(|thread| row(thread, Reason::Disk, WALL_NS / 10)), []);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(
            found[0].title.starts_with("thread-1 and 2 other threads of app waited for a disk in"),
            "{found:#?}"
        );
        assert_eq!(found[0].threads, [1, 2, 3].map(ThreadKey));
    }

    #[test]
    fn what_it_waits_for_is_in_the_rules_words() {
        let title = |row: WaitRow| found(&[row], []).remove(0).title;
        assert!(
            title(said("full ring", false, WALL_NS / 2)).contains(" waited for space in a ring in flush_log")
        );
        assert!(title(row(1, Reason::Lock, WALL_NS / 2)).contains(" waited for a lock in flush_log"));
    }

    #[test]
    fn little_time_idle_waits_and_other_reasons_are_none() {
        for row in [
            row(1, Reason::Disk, WALL_NS / 20 - 1),
            said("items", true, WALL_NS),
            row(1, Reason::Wait, WALL_NS),
            row(1, Reason::Network, WALL_NS),
            row(1, Reason::Sleep, WALL_NS),
        ] {
            assert_eq!(found(std::slice::from_ref(&row), []), [], "{row:?}");
        }
    }

    #[test]
    fn place_whose_stalls_say_it_is_none() {
        let sync = |id: u64, ns: u64| StallRecord {
            user: Some(stack(&["fdatasync", "flush_log", "serve"])),
            ..case(id, 1, StallReason::Blocked(Reason::Disk), ns)
        };
        let waits = [row(1, Reason::Disk, WALL_NS / 10)];
        let rules = |stalls: Vec<StallRecord>| {
            found(&waits, stalls).into_iter().map(|found| found.rule).collect::<Vec<_>>()
        };
        assert_eq!(rules(vec![sync(1, 200_000)]), [RULE.name]);
        assert_eq!(rules((1..=30).map(|id| sync(id, WALL_NS / 600)).collect()), ["disk-wait"]);
        assert_eq!(rules(vec![sync(1, 25_000_000)]), ["disk-wait"], "of a reported place");
    }
}
