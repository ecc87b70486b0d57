// SPDX-License-Identifier: Apache-2.0
//! Events beside the clock: counted where they happened, with their own stacks.

use std::process::Output;

use wallprof_testkit::machine;
use wallprof_testkit::recorder::{Recorder, wallprof};
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::stored;

use crate::ledger::thread;

fn refused(event: &str) -> Output {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("recording.db");
    let output = wallprof()
        .args(["record", "-a", "-d", "1", "-e", event, "-o"])
        .arg(&file)
        .output()
        .expect("the wallprof binary runs");
    assert!(!file.exists(), "nothing is created");
    output
}

/// The weights of the folded stacks of an event in the thread `name`.
fn count_of(folded: &str, name: &str) -> u64 {
    let stacks = folded.lines().filter_map(|line| line.rsplit_once(' '));
    let of_thread = stacks.filter(|(stack, _)| stack.split(';').next() == Some(name));
    of_thread.map(|(_, count)| count.parse::<u64>().expect("a count")).sum()
}

/// The scheduler's tracepoint and its counter, both of which the kernel counts a second time as the threads'
/// context switches.
#[test]
fn a_tracepoint_and_a_software_event() {
    let Some(_run) = stored::run("a_tracepoint_and_a_software_event") else { return };
    let events = ["sched:sched_switch", "context-switches"];
    let mut scenario = Scenario::ready("pingpong", &["-d", "1", "-c", "0"]);
    let pid = scenario.pid();
    let recorder = Recorder::armed(&["-p", &pid, "-e", events[0], "-e", events[1]], &[]);
    scenario.run();
    let recording = recorder.stop();
    let report = recording.report();
    for event in events {
        let view = format!("event:{event}");
        let folded = recording.read("export", &["--to", "folded", "--view", &view, "-o", "-"]);
        for worker in scenario.start.workers() {
            let recorded = thread(&report, worker.tid, &worker.name);
            let switches = recorded.switches.voluntary + recorded.switches.involuntary;
            let counted = count_of(&folded, &worker.name);
            assert!(
                switches > 1_000 && counted.abs_diff(switches) * 100 <= switches,
                "{event}: {counted} of {switches}"
            );
        }
    }
}

#[test]
fn an_event_that_this_machine_has_not() {
    if !machine::may_record("an_event_that_this_machine_has_not") {
        return;
    }
    // A type of hardware event exists exactly if the kernel lists a PMU of that name.
    let devices = std::path::Path::new("/sys/bus/event_source/devices");
    if ["cpu", "cpu_core"].iter().any(|pmu| devices.join(pmu).exists()) {
        return wallprof_testkit::skip("an_event_that_this_machine_has_not", "this machine has a PMU");
    }
    for event in ["cycles", "cache-misses", "dTLB-load-misses"] {
        let output = refused(event);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{event}: {complaint}");
        assert_eq!(complaint.trim_end().lines().count(), 1, "one sentence: {complaint}");
        for offered in [event, "cpu-clock", "page-faults", "sched:sched_switch"] {
            assert!(complaint.contains(offered), "{event}: {complaint}");
        }
    }
}

#[test]
fn unknown_event() {
    if !machine::may_record("unknown_event") {
        return;
    }
    for event in ["sched:no_such_tracepoint", "cyclse"] {
        let output = refused(event);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(2 | 3)), "{event}: {complaint}");
        assert_eq!(complaint.trim_end().lines().count(), 1, "one sentence: {complaint}");
        assert!(complaint.contains(event), "{complaint}");
    }
}
