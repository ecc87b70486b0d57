// SPDX-License-Identifier: Apache-2.0
//! A slow path that waits for the disk.

use serde::Deserialize;
use wallprof_testkit::contract::Stall;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::stored;

use crate::ledger::{assert_adds_up, thread};

const EDGE_NS: u64 = 50_000;
const MIN_WAIT_NS: u64 = 100_000;

#[derive(Debug, Deserialize)]
struct Sync {
    start_ns: u64,
    end_ns: u64,
    off_ns: u64,
    blocked_ns: u64,
}

#[test]
fn a_slow_path_waits_for_the_disk() {
    let Some(_run) = stored::run("a_slow_path_waits_for_the_disk") else { return };
    // In the build folder: a temporary folder may be in memory, where fsync waits for nothing.
    let journal = concat!(env!("CARGO_TARGET_TMPDIR"), "/fsync-journal");
    let mut scenario = Scenario::ready("fsync", &["-d", "4", "-f", journal]);
    let pid = scenario.pid();
    let recorder = Recorder::armed(&["-p", &pid, "--min-stall", "10us"], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    let stalls = recording.stalls(&["--thread", "writer"]);
    let all: Vec<Sync> = truth.all("fsync");
    let syncs: Vec<&Sync> = all.iter().filter(|sync| sync.blocked_ns > MIN_WAIT_NS).collect();
    if syncs.len() < 10 {
        return wallprof_testkit::skip("a_slow_path_waits_for_the_disk", "fsync does not wait here");
    }

    let mut apart = Vec::new();
    for sync in &syncs {
        let (start, end) = (truth.epoch_from_mono(sync.start_ns), truth.epoch_from_mono(sync.end_ns));
        let inside: Vec<_> = stalls.iter().filter(|stall| stall.overlaps(start, end)).collect();
        let off_cpu_ns: u64 = inside.iter().map(|stall| stall.duration_ns).sum();
        if off_cpu_ns.abs_diff(sync.off_ns) > EDGE_NS {
            apart.push(format!("{off_cpu_ns} ns in {sync:?}: {inside:#?}"));
        }
        // On a busy machine the CPU may come later than the disk.
        let is_disk = |stall: &&&Stall| stall.reason == "disk" || stall.runnable_ns > stall.blocked_ns;
        let mut in_fsync = inside.iter().filter(|stall| stall.syscall.as_deref() == Some("fsync"));
        let disk = in_fsync.find(is_disk);
        let disk = disk.unwrap_or_else(|| panic!("{sync:?}: a stall for the disk in {inside:#?}"));
        assert!(disk.user_stack_has("commit_records"), "{disk:#?}");
        assert!(disk.kernel_stack.as_ref().is_some_and(|stack| !stack.is_empty()), "{disk:#?}");
    }

    // A hypervisor or an interrupt may come between the two records of one switch.
    assert!(apart.len() <= 1 + syncs.len() / 20, "{} of {}: {apart:#?}", apart.len(), syncs.len());

    let report = recording.report();
    let writer = thread(&report, truth.start.tid("writer"), "writer");
    assert_adds_up(writer);
    let truth_ns: u64 = syncs.iter().map(|sync| sync.off_ns).sum();
    let recorded_ns = writer.states.blocked["disk"] + writer.run_queue_ns;
    assert!(recorded_ns * 10 >= truth_ns * 9, "{recorded_ns} ns for the disk, the writer says {truth_ns}");
}
