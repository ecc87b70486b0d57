// SPDX-License-Identifier: Apache-2.0
//! More than a machine usually does: thousands of forks, a ring that is not read, little memory. What is
//! recorded adds up, and what is not is counted.

use rustix::process::Signal;
use serde::Deserialize;
use wallprof_testkit::assert_always;
use wallprof_testkit::contract::{Report, Thread};
use wallprof_testkit::machine;
use wallprof_testkit::recorder::{Recorder, report_from, wallprof};
use wallprof_testkit::scenario::program;
use wallprof_testkit::scenario::{Scenario, Truth};

use crate::ledger::thread;
use crate::memory_group::MemoryGroup;

/// Threads of a machine at its limits: tens of thousands where `pid_max` allows.
const ALL_THREADS: &str = "100000";

/// The memory of a recorder of one process, its maps in the kernel included.
const ENOUGH_MIB: u64 = 128;

/// The scenario's own figures (scenarios/storm.c).
#[derive(Debug, Deserialize)]
struct Storm {
    born: u64,
    start_ns: u64,
    end_ns: u64,
    cpu_ns: u64,
}

/// Records `storm ARGS` with all its children: the report, the truth, and the first thread's tid.
fn record(args: &[&str]) -> (Report, Storm, u32) {
    let storm = program("storm");
    let command = [&[storm.to_str().expect("a UTF-8 path")], args].concat();
    let (status, recording) = Recorder::armed(&[], &command).wait();
    assert!(status.success(), "{status}");
    let truth = Truth::from_output(&recording.command_output());
    (recording.report(), truth.one("storm"), truth.start.pid)
}

/// Threads for which the kernel had no memory are in no report: they are counted. One whose end is lost may be
/// in the report or not.
fn assert_all_are_reported(report: &Report, born: u64) {
    let followed = report.threads.iter().filter(|thread| thread.comm == "storm").count() as u64 - 1;
    let lost = |loss: &str| report.losses.get(loss).copied().unwrap_or(0);
    let without_memory = lost("threads_no_memory");
    let possible = born - lost("thread_ends_ring_full")..=born;
    let seen = followed + without_memory;
    assert_always!(possible.contains(&seen), "{followed} of {born} threads: {:?}", report.losses);
}

#[test]
fn a_thousand_forks_a_second() {
    let Some(_guard) = machine::reserve("a_thousand_forks_a_second") else { return };
    let (report, storm, _) = record(&["-n", "2000", "-r", "1000", "forks"]);
    assert_eq!(storm.born, 2000, "the machine forked");
    assert_all_are_reported(&report, storm.born);
}

/// One thread, one life: every program of it belongs to the same ledger.
#[test]
fn a_process_that_execs_all_the_time() {
    let Some(_guard) = machine::reserve("a_process_that_execs_all_the_time") else { return };
    let (report, storm, tid) = record(&["-n", "1000", "execs"]);
    let threads: Vec<&Thread> = report.threads.iter().filter(|thread| thread.tid == tid).collect();
    let [thread] = threads[..] else { panic!("one thread: {threads:#?}") };
    assert!(thread.wall_ns >= storm.end_ns - storm.start_ns, "{storm:?}: {thread:#?}");
    // The clock of the thread's CPU time does not stop in interrupts.
    assert!(thread.on_cpu_ns + thread.states.irq >= storm.cpu_ns / 100 * 99, "{storm:?}: {thread:#?}");
}

#[test]
fn thousands_of_threads_at_once() {
    let Some(_guard) = machine::reserve("thousands_of_threads_at_once") else { return };
    let (report, storm, _) = record(&["-n", "4000", "threads"]);
    assert!(storm.born > 0, "the machine started threads");
    assert_all_are_reported(&report, storm.born);
}

/// They come and go while nobody reads the rings, which their stalls fill.
#[test]
fn thousands_of_threads_while_the_recorder_is_stopped() {
    let name = "thousands_of_threads_while_the_recorder_is_stopped";
    let Some(_guard) = machine::reserve(name) else { return };
    let mut scenario = Scenario::ready("storm", &["-n", "8000", "threads"]);
    let recorder = Recorder::armed(&["--min-stall", "1us", "-p", &scenario.pid()], &[]);
    recorder.signal(Signal::STOP);
    let storm: Storm = scenario.run().one("storm");
    recorder.signal(Signal::CONT);
    let report = recorder.stop().report();
    assert!(report.losses.get("stalls_ring_full").is_some_and(|&lost| lost > 0), "{:?}", report.losses);
    assert_all_are_reported(&report, storm.born);
}

#[test]
#[ignore = "takes all the threads that the machine has: see docs/reliability.md"]
fn as_many_threads_as_the_machine_has() {
    let Some(_guard) = machine::reserve("as_many_threads_as_the_machine_has") else { return };
    let (report, storm, _) = record(&["-n", ALL_THREADS, "threads"]);
    wallprof_testkit::note(&format!("{} threads at once, lost: {:?}", storm.born, report.losses));
    assert_all_are_reported(&report, storm.born);
}

/// The rings are not read while the recorder is stopped. What does not fit is counted, and the ledger misses
/// nothing.
#[test]
fn a_recorder_that_is_stopped_for_a_while() {
    let Some(_guard) = machine::reserve("a_recorder_that_is_stopped_for_a_while") else { return };
    let mut scenario = Scenario::ready("pingpong", &["-d", "1", "-c", "0"]);
    let recorder = Recorder::armed(&["--min-stall", "1us", "-p", &scenario.pid()], &[]);
    recorder.signal(Signal::STOP);
    let truth = scenario.run();
    recorder.signal(Signal::CONT);
    let report = recorder.stop().report();
    for life in truth.lives() {
        let thread = thread(&report, life.tid, &life.name);
        assert!(thread.wall_ns >= life.end_ns - life.start_ns, "{life:?}: {thread:#?}");
        let missing_ns = life.cpu_ns.saturating_sub(thread.on_cpu_ns);
        assert!(missing_ns * 100 <= life.cpu_ns, "{life:?}: {thread:#?}");
    }
    assert!(report.losses.get("stalls_ring_full").is_some_and(|&lost| lost > 0), "{:?}", report.losses);
}

/// `record` in a control group with this much memory, which includes its maps in the kernel.
fn record_within(mib: u64) -> Option<(std::process::Output, tempfile::TempDir)> {
    let group = MemoryGroup::limited_to(mib)?;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut recorder = wallprof();
    recorder.args(["record", "-o"]).arg(folder.path().join("recording.db")).arg("--").arg(program("lock"));
    let output = group.run(recorder.args(["-d", "1"]));
    Some((output, folder))
}

#[test]
fn a_recorder_with_little_memory() {
    let Some(_guard) = machine::reserve("a_recorder_with_little_memory") else { return };
    let Some((output, folder)) = record_within(ENOUGH_MIB) else {
        return wallprof_testkit::skip(
            "a_recorder_with_little_memory",
            "there is no control group of memory to make one in",
        );
    };
    assert!(output.status.success(), "{output:?}");
    let report = report_from(&folder.path().join("recording.db"));
    assert!(report.threads.iter().any(|thread| thread.comm == "lock"), "{:#?}", report.threads);
}
