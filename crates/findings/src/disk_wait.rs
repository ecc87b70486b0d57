// SPDX-License-Identifier: Apache-2.0
//! `disk-wait`: threads wait for a disk. Reports the system call, the file, and the function of the program.
//!
//! One finding a process and waiting function, where the waits took a hundredth of the threads' time, or one
//! took 20 ms.
//!
//! False positives: threads whose task is to write to a disk and that no other thread waits for.

use super::case::{Case, across_processes, grouped, mostly};
use super::conclusion::{Charged, Conclusion, Problem};
use super::disk_limit;
use super::evidence::Evidence;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::wording;

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "disk-wait",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let is_disk = |case: &&Case| case.is_for_a_disk() && !case.voluntary && !reported.has(case);
    let places = grouped(evidence.cases().filter(is_disk), |case| {
        (case.pid, case.comm.clone(), case.syscall.clone(), case.site.clone())
    });
    let key = |cases: &[&Case]| {
        let case = cases[0];
        (evidence.program(case), case.comm.clone(), case.syscall.clone(), case.site.clone())
    };
    let is_problem = |cases: &[&'e Case]| conclude(cases.to_vec(), evidence).is_some();
    let places = across_processes(places.into_values(), key, is_problem);
    places.into_iter().filter_map(|cases| conclude(cases, evidence)).collect()
}

fn conclude<'e>(cases: Vec<&'e Case>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let problem = Problem::heavy_or_frequent(Charged::over(cases, Case::duration_ns), evidence)?;
    let delays = problem.delays;
    let syscall = mostly(&problem.cases, |case| case.syscall.clone());
    let said = mostly(&problem.cases, |case| case.said().map(str::to_owned));
    let words: Vec<&str> = said.iter().map(String::as_str).chain(syscall.as_deref()).collect();
    let call = if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) };
    let limit = disk_limit::of_most(&problem.cases, evidence);
    let title = format!(
        "{} waited for a disk{call}{}{} {}{}.",
        wording::who(&problem.cases, evidence),
        wording::files(&problem.cases),
        wording::place(problem.site().as_ref()),
        wording::delays(&delays),
        limit.as_ref().map(|limit| format!(": {limit}")).unwrap_or_default()
    );
    let advice = match limit {
        Some(_) => disk_limit::ADVICE,
        None => advice(syscall.as_deref().unwrap_or_default()),
    };
    Some(problem.conclude(title, advice))
}

pub(super) fn advice(syscall: &str) -> &'static str {
    match syscall {
        "fsync" | "fdatasync" | "sync" | "syncfs" | "sync_file_range" | "msync" => {
            "Let another thread sync, or sync several commits at once."
        }
        "read" | "pread64" | "readv" | "preadv" | "preadv2" | "sendfile" | "getdents64" => {
            "Read ahead of the need (readahead, posix_fadvise, io_uring), or keep the data in memory."
        }
        "io_uring_enter" | "io_getevents" | "io_pgetevents" => {
            "Submit requests sooner, so that they are done when the thread asks for them, or a faster disk."
        }
        _ => "Let another thread do this (or io_uring), or a faster disk.",
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, case, delay_in, disk_limit, stack};
    use super::*;
    use std::sync::Arc;

    use wallprof_model::counter::CounterTrack;
    use wallprof_model::{Meaning, MeaningSource, Reason, StallReason};

    use wallprof_model::event::{DelayKind, WaitedFile};
    use wallprof_model::profile::StallRecord;

    fn sync(id: u64, ns: u64) -> StallRecord {
        StallRecord {
            syscall: Some("fsync".into()),
            user: Some(stack(&["fsync", "commit_records", "write_records"])),
            ..case(id, 1, StallReason::Blocked(Reason::Disk), ns)
        }
    }

    #[test]
    fn what_the_software_calls_it_is_in_the_title() {
        let meaning = Meaning {
            name: "WAL flush".into(),
            software: Some("postgresql".into()),
            idle: false,
            holder: false,
            source: MeaningSource::Stack,
        };
        let flush = |id| StallRecord { meaning: Some(Arc::new(meaning.clone())), ..sync(id, 4_000_000) };
        let found = Fixture::only_finding((1..=30).map(flush));
        assert_eq!(found.rule, RULE.name);
        assert!(found.title.contains("waited for a disk (WAL flush, fsync) in"), "{}", found.title);
    }

    #[test]
    fn poll_that_a_disk_ends_is_one() {
        let source = MeaningSource::Wakers;
        let disk =
            Arc::new(Meaning { name: "disk".into(), software: None, idle: false, holder: false, source });
        let poll = |id| StallRecord {
            reason: StallReason::Blocked(Reason::Poll),
            syscall: Some("io_uring_enter".into()),
            meaning: Some(disk.clone()),
            ..sync(id, 4_000_000)
        };
        let found = Fixture::only_finding((1..=30).map(poll));
        assert_eq!(found.rule, RULE.name);
        assert!(found.title.contains("waited for a disk (io_uring_enter) in"), "{}", found.title);
        assert!(!found.advice.contains("io_uring"), "{}", found.advice);
    }

    #[test]
    fn title_names_the_call_and_its_place() {
        let found = Fixture::only_finding((1..=30).map(|id| sync(id, 4_000_000)));
        assert_eq!(
            found.title,
            "thread-1 of app waited for a disk (fsync) in commit_records (called by write_records) \
             30 times, 120 ms in all, up to 4.00 ms."
        );
        assert!(found.advice.contains("another thread sync"), "{}", found.advice);
        assert_eq!(found.rule, RULE.name);
    }

    #[test]
    fn names_the_file_that_was_waited_for_most() {
        let on = |id: u64, name: &str| {
            let file = WaitedFile { path: format!("/data/{name}"), offset: None };
            StallRecord { file: Some(file), ..sync(id, 4_000_000) }
        };
        let mut stalls: Vec<StallRecord> = (1..=30).map(|id| on(id, "journal")).collect();
        let title = |stalls: &[StallRecord]| Fixture::only_finding(stalls.iter().cloned()).title;
        assert!(title(&stalls).contains("a disk (fsync) on journal in commit_records"), "{}", title(&stalls));
        stalls.extend((31..=35).map(|id| on(id, "index")));
        assert!(title(&stalls).contains(" on journal and another file in"), "{}", title(&stalls));
        stalls.push(on(36, "x"));
        assert!(title(&stalls).contains(" on journal and 2 other files in"), "{}", title(&stalls));
    }

    #[test]
    fn limit_of_the_control_group_is_named() {
        let title = |counters: Vec<CounterTrack>| {
            let mut fixture = Fixture::new();
            (1..=30).for_each(|id| fixture.stall(sync(id, 4_000_000)));
            fixture.process_counters = counters;
            findings(&fixture.evidence()).remove(0).title
        };
        assert!(title(Vec::new()).ends_with("up to 4.00 ms."));
        let written: Vec<(u64, u64)> = (0..200).map(|tenth| (tenth * 100, tenth)).collect();
        let limit = ": its control group /shop may write 10.0 MiB a second to the disk 7:0, and did.";
        let held_back = title(disk_limit("/shop", &written, 10));
        assert!(held_back.ends_with(limit), "{held_back}");
        let free = title(disk_limit("/shop", &written, 20));
        assert!(free.ends_with("up to 4.00 ms."), "{free}");
    }

    #[test]
    fn disk_waits_of_direct_reclaim_are_reported_once() {
        let mut fixture = Fixture::new();
        for id in 1..=30 {
            fixture.kernel_delays.push(delay_in(&sync(id, 4_000_000), DelayKind::Reclaim, 0, 4_000_000));
            fixture.stall(sync(id, 4_000_000));
        }
        let rules: Vec<String> = findings(&fixture.evidence()).into_iter().map(|found| found.rule).collect();
        assert_eq!(rules, ["memory-reclaim"]);
    }

    #[test]
    fn each_call_has_an_advice_and_a_few_waits_are_none() {
        assert!(advice("pread64").contains("ahead"));
        assert!(advice("openat").contains("io_uring"));
        assert_eq!(Fixture::findings((1..=20).map(|id| sync(id, 4_000_000))), []);
        assert_eq!(Fixture::only_finding([sync(1, 20_000_000)]).rule, RULE.name);
    }
}
