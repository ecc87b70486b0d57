// SPDX-License-Identifier: Apache-2.0
//! Very many very short waits, on one CPU and across CPUs: no stall among them, and all of them in the
//! ledger.

use serde::Deserialize;
use wallprof_testkit::machine;
use wallprof_testkit::proc::{STEAL_TICK_NS, steal_ns};
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::stored;

use crate::ledger::{assert_adds_up, thread};

#[derive(Debug, Deserialize)]
struct Rounds {
    tid: u32,
    name: String,
    rounds: u64,
    migrations: u64,
    waited_ns: u64,
}

/// Records a run of `args` and compares each thread's ledger with its own clock.
fn assert_play_is_accounted(args: &[&str]) -> Vec<Rounds> {
    let mut scenario = Scenario::ready("pingpong", args);
    let pid = scenario.pid();
    let recorder = Recorder::armed(&["-p", &pid], &[]);
    let steal_before = steal_ns();
    let truth = scenario.run();
    let stolen_ns = steal_ns() - steal_before + STEAL_TICK_NS;
    let report = recorder.stop().report();
    let players: Vec<Rounds> = truth.all("rounds");
    for player in &players {
        let thread = thread(&report, player.tid, &player.name);
        let life = truth.lives().into_iter().find(|life| life.tid == player.tid).expect("a life");
        let life_ns = life.end_ns - life.start_ns;
        assert_adds_up(thread);
        assert!(player.rounds > 1_000, "{player:?}");
        // Time on the CPU by the thread's own CPU clock, which starts and ends within the recording. The
        // thread's first and last steps, at the gates, are outside of it and below 1 ms.
        let on_cpu_tolerance_ns = life.cpu_ns / 100 + 1_000_000 + stolen_ns;
        assert!(thread.on_cpu_ns.abs_diff(life.cpu_ns) <= on_cpu_tolerance_ns, "{life:?}, {thread:#?}");
        // The thread's clock around read sees the wait, the wait for a CPU, and the system call itself.
        let pipe_ns = thread.states.blocked["pipe"];
        let beside_ns = thread.run_queue_ns + thread.on_cpu_ns + life_ns / 1_000;
        assert!(pipe_ns <= player.waited_ns + life_ns / 1_000, "{pipe_ns} ns in pipes: {player:?}");
        assert!(pipe_ns + beside_ns >= player.waited_ns, "{pipe_ns} + {beside_ns} ns: {player:?}");
    }
    players
}

#[test]
fn on_one_cpu() {
    let Some(_guard) = machine::reserve("on_one_cpu") else { return };
    let players = assert_play_is_accounted(&["-d", "2", "-c", "0"]);
    assert!(players.iter().all(|player| player.migrations == 0));
}

#[test]
fn across_cpus() {
    let Some(_run) = stored::run("across_cpus") else { return };
    let players = assert_play_is_accounted(&["-d", "2", "-m", "10", "-w", "5"]);
    assert!(players.iter().all(|player| player.migrations > 100));
}
