// SPDX-License-Identifier: Apache-2.0
//! Wakeups by interrupts, beside threads that the interrupts only happen to hit.

use rusqlite::{Connection, OpenFlags};
use serde::Deserialize;
use tempfile::NamedTempFile;

use wallprof_testkit::machine;
use wallprof_testkit::recorder::{Recorder, RecordingFile};
use wallprof_testkit::scenario::{Scenario, Start};

#[derive(Debug, Deserialize)]
struct Waits {
    name: String,
    count: u64,
}

/// Recorded wakeups of one thread by one waker.
#[derive(Debug)]
struct Wakeups {
    of: String,
    context: String,
    /// `None`: an interrupt, or an unrecorded thread.
    by: Option<String>,
    count: u64,
}

/// Waits that only interrupts, the kernel's own threads and, at the gate, the main thread end.
const WOKEN_BY_INTERRUPTS: [&str; 3] = ["sleeper", "receiver", "syncer"];
const MAIN_THREAD: &str = "bystander";
/// Fewer wakeups prove little.
const ENOUGH: u64 = 10_000;

/// The wakers in the documented view `samples`: of every wait with a stack, however short.
fn sampled(recording: &RecordingFile) -> Vec<Wakeups> {
    wakeups(recording, "samples", "sum(count)")
}

/// The wakers of single stalls.
fn stalled(recording: &RecordingFile) -> Vec<Wakeups> {
    wakeups(recording, "stalls", "count(*)")
}

fn wakeups(recording: &RecordingFile, view: &str, count: &str) -> Vec<Wakeups> {
    let file = Connection::open_with_flags(recording.path(), OpenFlags::SQLITE_OPEN_READ_ONLY)
        .expect("a recording is an SQLite file");
    let mut query = file
        .prepare(&format!(
            "SELECT comm, waker_context, waker_comm, {count} FROM {view}
             WHERE waker_context IS NOT NULL GROUP BY 1, 2, 3"
        ))
        .expect("the view has these columns");
    let rows = query.query_map([], |row| {
        Ok(Wakeups {
            of: row.get(0)?,
            context: row.get(1)?,
            by: row.get(2)?,
            count: row.get::<_, i64>(3)? as u64,
        })
    });
    rows.expect("rows").collect::<Result<_, _>>().expect("rows of these types")
}

fn count(wakeups: &[Wakeups], wanted: impl Fn(&Wakeups) -> bool) -> u64 {
    wakeups.iter().filter(|one| wanted(one)).map(|one| one.count).sum()
}

fn assert_no_bystander_is_named(wakeups: &[Wakeups], start: &Start) {
    let is_worker = |name: &str| start.workers().iter().any(|worker| worker.name == name);
    for one in wakeups.iter().filter(|one| WOKEN_BY_INTERRUPTS.contains(&one.of.as_str())) {
        assert!(!one.by.as_deref().is_some_and(is_worker), "a bystander woke a thread: {one:?}");
    }
}

/// A softirq that a thread runs itself does not count as an interrupt's. The kernel may leave it to
/// ksoftirqd, and an interrupt between the first and last instruction of local_bh_enable runs it at its own
/// exit: seen 2 times in 9,000.
fn assert_own_softirqs_are_the_threads(wakeups: &[Wakeups], rings: u64) {
    let of_listener = |one: &Wakeups| one.of == "listener";
    for one in wakeups.iter().filter(|one| of_listener(one)) {
        let by = one.by.as_deref();
        let known = by.is_none_or(|by| by == "ringer" || by == MAIN_THREAD || by.starts_with("ksoftirqd"));
        assert!(known, "another thread than the ringer woke the listener: {one:?}");
    }
    let all = count(wakeups, of_listener);
    let interrupts = count(wakeups, |one| of_listener(one) && one.context == "interrupt");
    assert!(interrupts * 100 <= all, "{interrupts} of the listener's {all} wakeups are an interrupt's");
    let by_ringer = count(wakeups, |one| of_listener(one) && one.by.as_deref() == Some("ringer"));
    assert!(by_ringer * 10 > rings, "{by_ringer} of {rings} wakeups have the ringer as their waker");
}

#[test]
fn threads_that_interrupts_hit_are_not_wakers() {
    let Some(_guard) = machine::reserve("threads_that_interrupts_hit_are_not_wakers") else { return };
    let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a file on a disk");
    let path = file.path().to_str().expect("UTF-8");
    let mut scenario = Scenario::ready("bystander", &["-d", "4", "-f", path]);
    let recorder = Recorder::armed(&["-p", &scenario.pid(), "--min-stall", "20us"], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    let waits: Vec<Waits> = truth.all("waits");
    let rings = waits.iter().find(|waits| waits.name == "ringer").expect("the truth").count;

    let samples = sampled(&recording);
    assert_no_bystander_is_named(&samples, &truth.start);
    assert_own_softirqs_are_the_threads(&samples, rings);
    let interrupts = count(&samples, |one| one.context == "interrupt");
    assert!(interrupts >= ENOUGH, "{interrupts} wakeups by interrupts are too few to judge by");

    let stalls = stalled(&recording);
    assert_no_bystander_is_named(&stalls, &truth.start);
    assert_own_softirqs_are_the_threads(&stalls, 0);
}
