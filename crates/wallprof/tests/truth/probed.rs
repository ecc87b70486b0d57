// SPDX-License-Identifier: Apache-2.0
//! Spans of `--span` where they could be lost or counted twice: calls of a function by itself, calls without an end,
//! tail calls, threads and images that end in a call; and functions that are called too often for probes.

use std::collections::BTreeMap;

use serde::Deserialize;

use wallprof_testkit::assert_always;
use wallprof_testkit::machine;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::{Scenario, program};
use wallprof_testkit::stored;

#[derive(Deserialize)]
struct Calls {
    function: String,
    count: u64,
    ended: u64,
}

#[test]
fn each_outer_call_that_returns_is_a_span() {
    let Some(_run) = stored::run("each_outer_call_that_returns_is_a_span") else { return };
    let file = program("calls").display().to_string();
    let spans = ["descend", "escape", "hand_over"].map(|function| format!("--span=uprobe:{file}:{function}"));
    let mut scenario = Scenario::ready("calls", &[]);
    let pid = scenario.pid();
    let options: Vec<&str> =
        ["-p", &pid, "--children"].into_iter().chain(spans.iter().map(String::as_str)).collect();
    let recorder = Recorder::armed(&options, &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    let logged: Vec<Calls> = truth.all("calls");
    let expected: BTreeMap<String, u64> =
        logged.iter().map(|calls| (calls.function.clone(), calls.ended)).collect();
    let found = recording.span_counts("uprobe");
    assert_always!(found == expected, "{found:?} instead of {expected:?}");
    let losses = recording.report().losses;
    // Each call of escape() that jumped out, but the last, which no other one follows.
    let jumped: u64 =
        logged.iter().filter(|calls| calls.function == "escape").map(|calls| calls.count - calls.ended).sum();
    assert_eq!(losses.get("probed_spans_without_end"), Some(&(jumped - 1)), "{losses:?}");
    assert_eq!(losses.get("probed_spans_lost"), None, "{losses:?}");
}

#[test]
fn probes_of_a_function_that_is_called_too_often_are_removed() {
    let test = "probes_of_a_function_that_is_called_too_often_are_removed";
    let Some(_guard) = machine::reserve(test) else { return };
    let file = program("calls").display().to_string();
    let mut scenario = Scenario::ready("calls", &["-k", "busy", "-d", "2"]);
    let spans = [format!("--span=uprobe:{file}:often"), format!("--span=uprobe:{file}:descend")];
    let recorder = Recorder::armed(&["-p", &scenario.pid(), &spans[0], &spans[1]], &[]);
    scenario.run();
    let recording = recorder.stop();
    let report = recording.report();
    assert_eq!(report.losses.get("span_probes_removed"), Some(&1), "{:?}", report.losses);
    // A hit takes a microsecond or more: most calls came after the probes were gone.
    let spans = recording.span_counts("uprobe").get("often").copied().unwrap_or(0);
    assert!((1..1_000_000).contains(&spans), "{spans}");
}
