// SPDX-License-Identifier: Apache-2.0
//! Lists and comparisons of runs, their picture, and Bencher's format.

use wallprof_analysis::diff::Group;
use wallprof_analysis::runs::{FoundInRun, Run, RunGroup, Sum, ThreadTime, What, compare_groups};
use wallprof_model::profile::Cause;
use wallprof_model::{EpochNs, Reason, State};
use wallprof_views::{
    ComparedGroup, ComparedRuns, FoundRun, Style, bmf_json, compared_json, compared_text, runs_json,
    runs_text, trend_svg,
};

const HOSTILE: &str = "<b>\x1b[31m&\u{202e}";

/// Ten seconds with this time in waits for a lock.
fn run(version: &str, lock_ms: u64) -> Run {
    let states =
        [(What::Cpu, 2_500_000_000), (What::State(State::Blocked(Reason::Lock)), lock_ms * 1_000_000)];
    let waits = [(Reason::Lock, Sum { count: 1_000, ns: lock_ms * 1_000_000 })];
    let time = ThreadTime { threads: 2, states: states.into(), waits: waits.into() };
    let group = Group { process: "app".into(), thread: HOSTILE.into() };
    Run {
        labels: [("version".into(), version.into())].into(),
        start: Some(EpochNs(1_795_248_000_000_000_000)),
        duration_ns: 10_000_000_000,
        threads: [(group, time)].into(),
        findings: vec![FoundInRun {
            rule: "lock-wait".into(),
            cause: Cause::Program,
            title: HOSTILE.into(),
            total_ns: 5,
        }],
        ..Run::default()
    }
}

fn runs() -> Vec<FoundRun> {
    let run =
        |version: &str, at: usize, ms| FoundRun { file: format!("{version}-{at}.db"), run: run(version, ms) };
    (0..3)
        .map(|at| run("1.3", at, 100 + at as u64))
        .chain((0..3).map(|at| run(HOSTILE, at, 200 + at as u64)))
        .collect()
}

fn groups(runs: &[FoundRun]) -> [RunGroup<'_>; 2] {
    let of = |range: std::ops::Range<usize>| range.map(|at| &runs[at].run).collect();
    [RunGroup { value: "1.3", runs: of(0..3) }, RunGroup { value: HOSTILE, runs: of(3..6) }]
}

fn text(write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> String {
    let mut out = Vec::new();
    write(&mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(!text.contains('\x1b') && !text.contains('\u{202e}'), "{text}");
    text
}

/// Runs with a thousand spans, of twice the length in the second group.
fn with_spans() -> Vec<FoundRun> {
    let mut runs = runs();
    for (at, found) in runs.iter_mut().enumerate() {
        let durations = found.run.spans.entry(format!("order {HOSTILE}")).or_default();
        let ns = 1_000_000 * (1 + at as u64 / 3);
        (0..1_000).for_each(|_| durations.record(ns));
    }
    runs
}

#[test]
fn percentiles_of_spans_are_of_no_thread() {
    let runs = with_spans();
    let [first, second] = groups(&runs);
    let comparison = compare_groups(&first.runs, &second.runs);
    let others = vec![ComparedGroup { group: &second, comparison }];
    let compared = ComparedRuns { key: "version", first: &first, others, left_out: 0 };
    let shown = text(|out| compared_text(out, &compared, &Style::plain()));
    assert!(shown.contains("+100 %  1.00 ms ±0 ns"), "{shown}");
    assert!(shown.contains("\n          P99 of spans order <b>"), "{shown}");
    let mut json = Vec::new();
    compared_json(&mut json, &compared).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let mut bmf = Vec::new();
    bmf_json(&mut bmf, &second).unwrap();
    let bmf: serde_json::Value = serde_json::from_slice(&bmf).unwrap();
    assert_eq!(bmf[format!("P99 of spans order {HOSTILE}")]["latency"]["value"], 2_000_000.0);
    assert!(bmf.get(format!("P99.9 of spans order {HOSTILE}")).is_none(), "of 1,000 spans it is one");
    let figures = json["groups"][0]["figures"].as_array().unwrap();
    let p50 = figures.iter().find(|figure| figure["figure"].as_str().unwrap().starts_with("P50")).unwrap();
    assert_eq!(
        (&p50["thread"], &p50["unit"], &p50["beyond_noise"]),
        (&().into(), &"ns".into(), &true.into())
    );
}

#[test]
fn list_has_labels_time_and_findings() {
    let runs = runs();
    let list = text(|out| runs_text(out, &runs, &Style::plain()));
    assert!(list.contains("6 recordings") && list.contains("1.3-0.db  version=1.3"), "{list}");
    assert!(list.contains("10.0 s from 2026-11-21 08:00:00") && list.contains("2 threads"), "{list}");
    assert!(list.contains("cpu 250 ms/s, blocked:lock 10.0 ms/s"), "{list}");
    assert!(list.contains("lock-wait: <b>"), "{list}");
    let json: serde_json::Value = serde_json::from_slice(&{
        let mut out = Vec::new();
        runs_json(&mut out, &runs).unwrap();
        out
    })
    .unwrap();
    assert_eq!(json["runs"][0]["states"]["blocked:lock"], 10_000_000);
}

#[test]
fn comparison_names_what_differs_and_what_does_not() {
    let runs = runs();
    let [first, second] = groups(&runs);
    let compared = |to: &RunGroup<'_>| {
        let comparison = compare_groups(&first.runs, &to.runs);
        let others = vec![ComparedGroup { group: to, comparison }];
        text(|out| {
            let compared = ComparedRuns { key: "version", first: &first, others, left_out: 1 };
            compared_text(out, &compared, &Style::plain())
        })
    };
    let differs = compared(&second);
    assert!(differs.contains("(3 runs) against version=1.3 (3 runs)"), "{differs}");
    assert!(differs.contains("+99 %  10.1 ms/s ±100 µs"), "{differs}");
    assert!(differs.contains("blocked:lock") && differs.contains("length of waits for lock"), "{differs}");
    assert!(differs.contains("Within the noise, the largest of 1:"), "{differs}");
    assert!(differs.contains("1 recording without the label version left out"), "{differs}");
    assert!(compared(&first).contains("no difference beyond the noise between equal runs"));
}

#[test]
fn comparison_as_json() {
    let runs = runs();
    let [first, second] = groups(&runs);
    let comparison = compare_groups(&first.runs, &second.runs);
    let others = vec![ComparedGroup { group: &second, comparison }];
    let mut out = Vec::new();
    compared_json(&mut out, &ComparedRuns { key: "version", first: &first, others, left_out: 0 }).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
    let group = &json["groups"][0];
    assert_eq!((&group["differs"], &group["judged"]), (&true.into(), &true.into()));
    let lock = group["figures"].as_array().unwrap().iter().find(|figure| figure["figure"] == "blocked:lock");
    assert_eq!(lock.unwrap()["after"], 20.1e6);
    assert_eq!(lock.unwrap()["beyond_noise"], true);
}

#[test]
fn trend_is_xml_with_a_dot_for_each_run() {
    let runs = runs();
    let picture = text(|out| trend_svg(out, HOSTILE, &groups(&runs)));
    let document = roxmltree::Document::parse(&picture).unwrap();
    let dots = document.descendants().filter(|node| node.has_tag_name("circle")).count();
    assert_eq!(dots, 12, "two states of six runs");
}

#[test]
fn bencher_gets_the_mean_and_the_range_of_the_runs() {
    let runs = runs();
    let json: serde_json::Value =
        serde_json::from_str(&text(|out| bmf_json(out, &groups(&runs)[0]))).unwrap();
    let lock = &json["blocked:lock"]["time-per-second"];
    assert_eq!((&lock["value"], &lock["lower_value"]), (&10.1e6.into(), &10.0e6.into()));
    assert_eq!(lock["upper_value"], 10.2e6);
}
