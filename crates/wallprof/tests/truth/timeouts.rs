// SPDX-License-Identifier: Apache-2.0
//! Overslept waits are late by the time after their timeouts. Waits for a lock, with a timeout too, are late
//! by all of it.

use std::process::Command;

use serde::Deserialize;
use wallprof_testkit::contract::Stall;
use wallprof_testkit::recorder::{Recorder, RecordingFile};
use wallprof_testkit::scenario::{Scenario, Truth, program};
use wallprof_testkit::stored;

use crate::ledger::thread;

const MIN_STALL_NS: u64 = 50_000;
/// What each thread waits for, in the scenario.
const WAIT_NS: u64 = 20_000_000;
/// Between the program's clock and the kernel's lie a system call and readings of other clocks.
const EDGE_NS: u64 = 100_000;

#[derive(Debug, Deserialize)]
struct Waits {
    tid: u32,
    name: String,
    count: u64,
    total_ns: u64,
    asked_ns: u64,
}

impl Waits {
    fn late_ns(&self) -> u64 {
        self.total_ns - self.count * self.asked_ns
    }
}

fn record() -> (Truth, RecordingFile) {
    let mut scenario = Scenario::ready("timeouts", &["-d", "3"]);
    let pid = scenario.pid();
    let recorder = Recorder::armed(&["-p", &pid, "--min-stall", "50us"], &[]);
    let truth = scenario.run();
    (truth, recorder.stop())
}

fn waits_of(truth: &Truth, name: &str) -> Waits {
    truth.all::<Waits>("waits").into_iter().find(|waits| waits.name == name).expect("a line about it")
}

/// The waits of a thread in its system call, voluntary ones too. A wait for a CPU after one is not among
/// them.
fn recorded(recording: &RecordingFile, name: &str, syscall: &str) -> Vec<Stall> {
    let mut stalls = recording.stalls(&["--all", "--thread", name]);
    stalls.retain(|stall| stall.syscall.as_deref() == Some(syscall) && stall.blocked_ns > 0);
    stalls
}

#[test]
fn overslept_sleep_is_late_by_the_time_after_it() {
    let Some(_run) = stored::run("overslept_sleep_is_late_by_the_time_after_it") else { return };
    let (truth, recording) = record();
    let report = recording.report();
    for name in ["ticker", "mono", "boot", "tai"] {
        let waits = waits_of(&truth, name);
        let stalls = recorded(&recording, name, "clock_nanosleep");
        let overslept = |stall: &&Stall| stall.asked_ns.is_some_and(|asked_ns| stall.blocked_ns >= asked_ns);
        let mut late_ns = 0;
        for stall in stalls.iter().filter(overslept) {
            let asked_ns = stall.asked_ns.expect("a timeout");
            assert!(asked_ns <= waits.asked_ns + EDGE_NS, "{stall:#?}");
            assert_eq!(stall.late_ns, stall.duration_ns - asked_ns, "{stall:#?}");
            assert!(stall.voluntary || stall.late_ns >= MIN_STALL_NS, "{stall:#?}");
            late_ns += stall.late_ns;
        }
        assert!(late_ns > 0 && stalls.len() as u64 <= waits.count, "{waits:?}: {stalls:#?}");
        assert!(late_ns <= waits.late_ns() + waits.count * EDGE_NS, "{late_ns} ns: {waits:?}");
        let thread = thread(&report, waits.tid, name);
        let beside_ns = thread.on_cpu_ns + thread.run_queue_ns + waits.count * EDGE_NS;
        assert!(late_ns + beside_ns >= waits.late_ns(), "{late_ns} ns, {beside_ns} ns beside: {waits:?}");
    }
    let long = recording.stalls(&["--longer-than", "15ms", "--thread", "ticker"]);
    assert!(long.iter().all(|stall| stall.late_ns >= 15_000_000), "{long:#?}");
}

#[test]
fn timed_wait_for_a_lock_is_late_by_its_duration() {
    let Some(_run) = stored::run("timed_wait_for_a_lock_is_late_by_its_duration") else { return };
    let (truth, recording) = record();
    for name in ["waiter", "pi-waiter"] {
        let waits = waits_of(&truth, name);
        let mut stalls = recorded(&recording, name, "futex");
        stalls.retain(|stall| stall.asked_ns.is_some());
        // All waits but those that found their time over before they started.
        assert!(stalls.len() as u64 * 2 > waits.count, "{waits:?}: {stalls:#?}");
        for stall in &stalls {
            assert!(
                stall.asked_ns.is_some_and(|asked_ns| asked_ns <= waits.asked_ns + EDGE_NS),
                "{stall:#?}"
            );
            assert!(stall.late_ns == stall.duration_ns && !stall.voluntary, "{stall:#?}");
        }
        let is_long = |stall: &&Stall| stall.duration_ns >= 15_000_000;
        let long = recording.stalls(&["--longer-than", "15ms", "--thread", name]);
        let timed = long.iter().filter(|stall| stall.asked_ns.is_some()).count();
        assert_eq!(timed, stalls.iter().filter(is_long).count());
    }
}

#[test]
fn cpu_time_is_no_timeout() {
    let Some(_run) = stored::run("cpu_time_is_no_timeout") else { return };
    let (truth, recording) = record();
    let waits = waits_of(&truth, "cpu-clock");
    let sleeps = recorded(&recording, "cpu-clock", "clock_nanosleep");
    assert!(waits.count > 0 && !sleeps.is_empty());
    for stall in sleeps.iter().filter(|stall| stall.reason == "sleep") {
        assert!(stall.voluntary && stall.asked_ns.is_none(), "{stall:#?}");
    }
}

fn may_shift_clocks() -> bool {
    let status = Command::new("unshare").args(["--fork", "--time", "--monotonic", "1", "true"]).status();
    status.is_ok_and(|status| status.success())
}

/// Containers that were moved from another machine have clocks of their own. A deadline is on these.
#[test]
fn deadlines_are_on_the_clock_of_the_time_namespace() {
    let test = "deadlines_are_on_the_clock_of_the_time_namespace";
    let Some(_run) = stored::run(test) else { return };
    if !may_shift_clocks() {
        return wallprof_testkit::skip(test, "there are no time namespaces, or none for this user");
    }
    let timeouts = program("timeouts");
    let timeouts = timeouts.to_str().expect("a UTF-8 path");
    for seconds in ["-10", "100000"] {
        let shifted = ["unshare", "--fork", "--time", "--monotonic", seconds, "--boottime", seconds];
        let command = [&shifted, &[timeouts, "-d", "1.5"][..]].concat();
        let (status, recording) = Recorder::armed(&["--min-stall", "50us"], &command).wait();
        assert!(status.success(), "{status}");
        for (name, syscall) in [("mono", "clock_nanosleep"), ("boot", "clock_nanosleep"), ("waiter", "futex")]
        {
            let stalls = recorded(&recording, name, syscall);
            let asked =
                |stall: &&Stall| stall.asked_ns.is_some_and(|ns| (WAIT_NS / 2..=WAIT_NS).contains(&ns));
            let right = stalls.iter().filter(asked).count();
            // A thread that loses its CPU between its two calls has less than half of the time left.
            assert!(right >= 20 && right * 10 >= stalls.len() * 9, "{name}, {seconds} s: {stalls:#?}");
        }
    }
}
