// SPDX-License-Identifier: Apache-2.0
//! Voluntary waits are in the ledger, and are stalls only with `--all`.

use serde::Deserialize;
use wallprof_testkit::contract::Stall;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::stored;

use crate::ledger::{assert_adds_up, thread};

/// The difference of the clocks at the two waits at the scenario's gates.
const GATES_NS: u64 = 100_000;
const VOLUNTARY: [&str; 4] = ["wait", "poll", "sleep", "child"];

#[derive(Debug, Deserialize)]
struct Waits {
    tid: u32,
    name: String,
    count: u64,
    total_ns: u64,
    asked_ns: u64,
}

fn reason_of(name: &str) -> &'static str {
    match name {
        "sleeper" | "dispatcher" | "short" => "sleep",
        "poller" => "poll",
        _ => "wait",
    }
}

/// A sleep that lasted longer than requested is involuntary: it may be a stall.
fn overslept(stall: &Stall, waits: &[Waits]) -> bool {
    let of_thread = waits.iter().find(|waits| waits.name == stall.comm);
    of_thread.is_some_and(|waits| waits.asked_ns != 0 && stall.duration_ns > waits.asked_ns)
}

/// A broadcast that waits for the threads of the one before it, which have no CPU yet: nobody wants that.
fn is_for_woken_waiters(stall: &Stall) -> bool {
    stall.meaning.as_ref().is_some_and(|meaning| meaning.name == "woken waiters")
}

#[test]
fn voluntary_waits_are_no_stalls() {
    let Some(_run) = stored::run("voluntary_waits_are_no_stalls") else { return };
    let mut scenario = Scenario::ready("sleepers", &["-d", "3"]);
    let pid = scenario.pid();
    let recorder = Recorder::armed(&["-p", &pid], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    let waits: Vec<Waits> = truth.all("waits");

    let chosen_stalls: Vec<Stall> = recording
        .stalls(&[])
        .into_iter()
        .filter(|stall| VOLUNTARY.contains(&stall.reason.as_str()) && !overslept(stall, &waits))
        .filter(|stall| !is_for_woken_waiters(stall))
        .collect();
    assert!(chosen_stalls.is_empty(), "{chosen_stalls:#?}");

    let all = recording.stalls(&["--all"]);
    for Waits { tid, name, count, .. } in &waits {
        let of_thread = |stall: &&Stall| stall.comm == *name && (*tid == 0 || stall.tid == *tid);
        // Woken, and then longer without a CPU than it had waited: its reason is the CPU, and the wait
        // remains voluntary.
        let is_chosen = |stall: &&Stall| stall.reason == "runnable" && stall.blocked_ns > 0;
        let is_reported = |stall: &&Stall| {
            is_chosen(stall)
                || (stall.reason == reason_of(name) && (stall.voluntary || overslept(stall, &waits)))
        };
        let voluntary = all.iter().filter(of_thread).filter(is_reported).count() as u64;
        // The parked thread's waits at the scenario's gates come on top.
        assert!(voluntary >= *count, "{name} waited {count} times, {voluntary} are recorded");
    }
}

#[test]
fn voluntary_waits_are_in_the_ledger() {
    let Some(_run) = stored::run("voluntary_waits_are_in_the_ledger") else { return };
    let mut scenario = Scenario::ready("sleepers", &["-d", "3"]);
    let pid = scenario.pid();
    let recorder = Recorder::armed(&["-p", &pid], &[]);
    let truth = scenario.run();
    let report = recorder.stop().report();
    for waits in truth.all::<Waits>("waits").into_iter().filter(|waits| waits.tid != 0) {
        let thread = thread(&report, waits.tid, &waits.name);
        assert_adds_up(thread);
        let life = truth.lives().into_iter().find(|life| life.tid == waits.tid).expect("a life");
        let gates_ns = thread.wall_ns - (life.end_ns - life.start_ns);
        let mut blocked_ns = thread.states.blocked[reason_of(&waits.name)];
        if reason_of(&waits.name) == "wait" {
            blocked_ns = blocked_ns.saturating_sub(gates_ns);
        }
        // The thread's own clock sees the wait, the wait for a CPU, and the system call around both.
        let beside_ns = thread.run_queue_ns + thread.on_cpu_ns;
        let least_ns = waits.total_ns.saturating_sub(beside_ns + GATES_NS);
        assert!(
            (least_ns..=waits.total_ns + GATES_NS).contains(&blocked_ns),
            "{blocked_ns} ns recorded: {waits:?}, {thread:#?}"
        );
    }
}
