// SPDX-License-Identifier: Apache-2.0
//! A recorder that is recorded by another one: this is how wallprof is profiled (docs/benchmarks.md).

use wallprof_testkit::machine;
use wallprof_testkit::recorder::{Recorder, wallprof};
use wallprof_testkit::scenario::Scenario;

#[test]
fn recorder_is_recorded_by_another_recorder() {
    let Some(_guard) = machine::reserve("recorder_is_recorded_by_another_recorder") else { return };
    let mut scenario = Scenario::ready("pingpong", &["-d", "2"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid()], &[]);
    let pid = recorder.pid();
    let observer = Recorder::armed(&["-p", &pid.to_string(), "-F", "999"], &[]);
    scenario.run();
    // The observer ends first, since the end of a recording is not what is observed.
    let report = observer.stop().report();
    // The observation does not change the results of the observed one: `report` adds its ledgers up.
    recorder.stop().report();

    assert!(
        !report.threads.is_empty() && report.threads.iter().all(|thread| thread.pid == pid),
        "{report:#?}"
    );
    let on_cpu_ns: u64 = report.threads.iter().map(|thread| thread.on_cpu_ns).sum();
    assert!(on_cpu_ns > 0, "a recorder of two seconds has run: {report:#?}");
}

/// The thread of a process with this name.
fn tid_of(pid: &str, name: &str) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let found = tasks.flatten().find(|task| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    });
    found.unwrap_or_else(|| panic!("no thread {name}")).file_name().into_string().expect("a number")
}

/// The running time of all threads of a process so far, by proc_pid_schedstat(5).
fn on_cpu_ns(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let texts =
        tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok());
    texts.filter_map(|text| text.split(' ').next()?.parse::<u64>().ok()).sum()
}

/// The hog never gives up its CPU, which is the only one of the recorder: it waits for all of the recorder's
/// CPU time.
#[test]
fn waiting_behind_the_recorder_is_counted() {
    let Some(_guard) = machine::reserve("waiting_behind_the_recorder_is_counted") else { return };
    let mut scenario = Scenario::ready("runqueue", &["-d", "4"]);
    let hog = tid_of(&scenario.pid(), "hog");
    let recorder = Recorder::armed_through(&["taskset", "-c", "0"], &["-t", &hog], &[]);
    let before = on_cpu_ns(recorder.pid());
    scenario.run();
    let own = on_cpu_ns(recorder.pid()) - before;
    let report = recorder.stop().read("report", &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let behind = report["overhead"]["behind_ns"].as_u64().expect("nanoseconds");
    let waited = report["threads"][0]["run_queue_ns"].as_u64().expect("nanoseconds");
    // It was armed a little before `before`, and threads that have ended are not in `own`.
    assert!(own > 1_000_000 && behind > own * 9 / 10 && behind < own * 2, "{behind} of {own} ns");
    assert!(behind <= waited, "{behind} of {waited} ns");
}

/// Instructions that the verifier may walk in one program, and in all of them: it takes 4 to 5 µs for each on a slow
/// machine, before the first event. Kernels differ by some per cent.
const VERIFIED_IN_ONE: u64 = 40_000;
const VERIFIED_IN_ALL: u64 = 150_000;

/// The verifier walks through a function for each path to each call of it, unless the function is global. Without
/// that it walked 475,000 instructions.
#[test]
fn the_verifier_walks_few_instructions() {
    let Some(_guard) = machine::reserve("the_verifier_walks_few_instructions") else { return };
    let output = wallprof().args(["doctor", "--programs"]).output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let rows = text.lines().filter_map(|line| line.split_once(' '));
    let counts: Vec<u64> = rows.filter_map(|(_, count)| count.parse().ok()).collect();
    let (most, all) = (counts.iter().max().copied().unwrap_or(0), counts.iter().sum::<u64>());
    assert!(counts.len() > 30, "{text}");
    assert!(most <= VERIFIED_IN_ONE && all <= VERIFIED_IN_ALL, "{all} in all:\n{text}");
}
