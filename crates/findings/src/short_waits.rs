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

use wallprof_model::{Meaning, Reason};

use super::case::is_for_a_result;
use super::conclusion::Conclusion;
use super::evidence::{Evidence, Loss, Sum};
use super::limits::{frequent_ns, is_frequent_part};
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::sums::{self, Place, Problem};
use super::{disk_wait, lock, lock_wait, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "short-waits",
    topic: None,
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Sums,
    find,
};

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let what = |loss: &Loss| match loss {
        Loss::Waits(reason, meaning) => what(*reason, meaning.as_deref()),
        _ => None,
    };
    let counted = |place: &Place, thread, ns, wall_ns| {
        if !is_enough_lost(ns, wall_ns) || ns < frequent_ns(evidence) {
            return None;
        }
        let stalls = || place.stalls_of(thread, evidence);
        let long_ns = stalls().fold(0u64, |all, case| all.saturating_add(case.without_run_queue_ns()));
        (long_ns < ns / 2 && !stalls().any(|case| reported.has(case))).then_some(ns)
    };
    let problems = sums::problems(evidence, what, counted);
    problems.into_iter().filter_map(|problem| conclude(problem, evidence)).collect()
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

fn conclude<'e>(problem: Problem<'_>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let longest = problem.longest()?;
    let shortest = wording::time(evidence.min_stall_ns());
    let (length, how) = match evidence.has_folded() {
        true => (
            "; waits of the recording are in its sums alone, since there were too many to keep each"
                .to_owned(),
            "A recording of fewer threads (`-t`, `--name`)".to_owned(),
        ),
        false => (
            format!(", nearly always for less than {shortest} at a time"),
            format!("`record --min-stall` with less than {shortest}"),
        ),
    };
    let title = format!(
        "{} waited for {}{} for some {} in all{length}.",
        problem.who(evidence),
        problem.place.what,
        wording::place(longest.site.as_ref()),
        problem.time(),
    );
    let advice = format!("{} {how} shows each wait, and who ended it.", advice(longest));
    Some(problem.conclude(title, advice, evidence, |_| true))
}

fn advice(sum: &Sum) -> &'static str {
    match &sum.loss {
        Loss::Waits(Reason::Disk, _) => disk_wait::advice(sum.call.as_deref().unwrap_or_default()),
        Loss::Waits(_, Some(meaning)) if meaning.name.starts_with(lock::FULL) => lock_wait::SPACE_ADVICE,
        _ => "Take the lock less often, or split it: threads meet at it all the time.",
    }
}

#[cfg(test)]
mod tests {
    use super::super::evidence::SumRow;
    use super::super::findings;
    use super::super::fixture::{Fixture, WALL_NS, case, kernel_stack, stack};
    use super::*;
    use wallprof_model::profile::{Finding, StallRecord};
    use wallprof_model::{MeaningSource, StallReason, ThreadKey};

    const SYNC: [&str; 4] = ["schedule", "io_schedule", "ext4_sync_file", "__x64_sys_fdatasync"];

    fn row(thread: u32, reason: Reason, ns: u64) -> SumRow {
        SumRow {
            thread: ThreadKey(thread),
            loss: Loss::Waits(reason, None),
            user: Some(stack(&["fdatasync", "flush_log", "serve"])),
            kernel: Some(kernel_stack(&SYNC)),
            ns,
            count: 50,
        }
    }

    fn said(name: &str, idle: bool, ns: u64) -> SumRow {
        let (software, source) = (Some("ring".into()), MeaningSource::Stack);
        let meaning = Meaning { name: name.into(), software, idle, holder: false, source };
        SumRow { loss: Loss::Waits(Reason::Wait, Some(meaning.into())), ..row(1, Reason::Wait, ns) }
    }

    fn found(rows: &[SumRow], stalls: impl IntoIterator<Item = StallRecord>) -> Vec<Finding> {
        let mut fixture = Fixture::new();
        fixture.sums = rows.to_vec();
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
    fn where_waits_were_only_added_up_they_may_be_long() {
        let mut fixture = Fixture::new();
        fixture.info.losses.insert("waits_folded".into(), 7);
        fixture.sums = vec![row(1, Reason::Disk, WALL_NS / 15)];
        let found = findings(&fixture.evidence()).remove(0);
        let end =
            " in all; waits of the recording are in its sums alone, since there were too many to keep each.";
        assert!(found.title.ends_with(end), "{}", found.title);
        assert!(
            found.advice.ends_with("(`-t`, `--name`) shows each wait, and who ended it."),
            "{}",
            found.advice
        );
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
        let title = |row: SumRow| found(&[row], []).remove(0).title;
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
