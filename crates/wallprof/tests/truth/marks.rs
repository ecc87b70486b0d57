// SPDX-License-Identifier: Apache-2.0
//! Marked spans where they could be lost: bursts, threads and children that end, many kinds, several recorders,
//! recorders that were killed, and processes that lie about themselves.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use serde::Deserialize;

use wallprof_testkit::assert_always;
use wallprof_testkit::machine;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::{Scenario, Truth};

#[derive(Deserialize)]
struct Spans {
    kind: String,
    count: u64,
}

#[derive(Deserialize)]
struct Burst {
    ns: u64,
}

#[derive(Debug, Deserialize)]
struct Steady {
    from_ns: u64,
    marked: bool,
}

/// By kind.
type Counts = BTreeMap<String, u64>;

fn logged(truth: &Truth) -> Counts {
    truth.all::<Spans>("spans").into_iter().map(|spans| (spans.kind, spans.count)).collect()
}

#[test]
fn no_marked_span_is_lost() {
    let Some(_guard) = machine::reserve("no_marked_span_is_lost") else { return };
    let mut scenario = Scenario::ready("marks", &[]);
    let recorder = Recorder::armed(&["-p", &scenario.pid(), "--children"], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    let (found, logged) = (recording.span_counts("code"), logged(&truth));
    assert_always!(found == logged, "{found:?} instead of {logged:?}");
    let losses = recording.report().losses;
    let overwritten = losses.get("marks_overwritten").copied().unwrap_or(0);
    // The ring is read ten times a second, and holds 2,048 of the 20,000.
    let burst: Burst = truth.one("burst");
    assert!(overwritten > 0 || burst.ns > 400_000_000, "{losses:?}");
    assert_eq!(losses.get("marks_left_out"), None, "{losses:?}");
}

#[test]
fn garbage_in_the_slots_of_one_process_changes_no_other() {
    let Some(_guard) = machine::reserve("garbage_in_the_slots_of_one_process_changes_no_other") else {
        return;
    };
    let mut scenario = Scenario::ready("marks", &["-k", "garbage"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid(), "--children"], &[]);
    let truth = scenario.run();
    let counts = recorder.stop().span_counts("code");
    for (kind, count) in logged(&truth) {
        let found = counts.get(&kind).copied().unwrap_or(0);
        // The child may have written over its own first span before it was read.
        let least = count - u64::from(kind == "start");
        assert!((least..=count).contains(&found), "{kind}: {found} of {count}: {counts:?}");
    }
}

/// Both clocks are slewed alike.
fn mono_now() -> u64 {
    wallprof_probe::clock::mono_now().0
}

#[test]
fn marks_are_on_while_any_recorder_lives_and_off_two_seconds_later() {
    let test = "marks_are_on_while_any_recorder_lives_and_off_two_seconds_later";
    let Some(_guard) = machine::reserve(test) else { return };
    let mut scenario = Scenario::ready("marks", &["-k", "steady", "-d", "60"]);
    let first = Recorder::armed(&["-p", &scenario.pid()], &[]);
    scenario.open_gate();
    let comm = format!("/proc/{}/task/{}/comm", scenario.pid(), scenario.start.tid("steady"));
    while std::fs::read_to_string(&comm).expect("a name") != "marked\n" {
        sleep(Duration::from_millis(20));
    }
    let second = Recorder::armed(&["-p", &scenario.pid()], &[]);
    let stop_from = mono_now();
    let recording = first.stop();
    let stop_to = mono_now();
    sleep(Duration::from_secs(4));
    let of_second = second.kill();
    let killed = mono_now();
    sleep(Duration::from_secs(3));
    let spans: Vec<Steady> = scenario.end().all("steady");

    let marked = |from: u64, to: u64| {
        spans.iter().filter(|span| span.marked && (from..to).contains(&span.from_ns)).count() as u64
    };
    let found = recording.span_counts("code")["steady"];
    // A span that was logged before may end after the recording's.
    assert!(
        (marked(0, stop_from) - 1..=marked(0, stop_to)).contains(&found),
        "{found}: {stop_from} {stop_to}"
    );
    assert!(of_second.span_counts("code")["steady"] > 0, "the second recorder counts, too");
    assert!(marked(stop_to + 2_000_000_000, killed) > 0, "one recorder is enough");
    let off = killed + 2_000_000_000;
    assert!(spans.iter().any(|span| span.from_ns > off), "the program runs on");
    // The clock of the marks may differ from the log's by a little.
    assert_eq!(marked(off + 10_000_000, u64::MAX), 0, "{killed}");
}
