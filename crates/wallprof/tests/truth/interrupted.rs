// SPDX-License-Identifier: Apache-2.0
//! Waits that another process stops, and that go on afterwards as `restart_syscall`.

use serde::Deserialize;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::stored;

use crate::ledger::assert_adds_up;

const MS: u64 = 1_000_000;
/// What each wait was asked to last, in the scenario.
const ASKED_NS: u64 = 450 * MS;

#[derive(Debug, Deserialize)]
struct Stops {
    count: u64,
}

/// Each part of a wait has the reason, the system call, and what is left of the timeout of the whole.
#[test]
fn parts_of_a_stopped_wait_are_what_the_first_was() {
    let test = "parts_of_a_stopped_wait_are_what_the_first_was";
    let Some(_run) = stored::run(test) else { return };
    let mut scenario = Scenario::ready("stops", &["-l", "-d", "2.5"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid()], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    let stops: Vec<Stops> = truth.all("stops");
    assert!(stops[0].count >= 10, "{stops:?}");
    let report = recording.report();
    for (name, reason, syscall) in [
        ("sleeper", "sleep", "clock_nanosleep"),
        ("long-poller", "poll", "poll"),
        ("locker", "lock", "futex"),
    ] {
        let thread = report.threads.iter().find(|thread| thread.comm == name).expect("the thread");
        assert_adds_up(thread);
        let blocked = &thread.states.blocked;
        let ns = |reason: &str| blocked.get(reason).copied().unwrap_or(0);
        // Three fifths are stops. Before it is stopped and after it the thread may wait for a CPU.
        assert!(ns("stopped") >= 500 * MS && ns(reason) >= 400 * MS, "{name}: {blocked:?}");
        let others: u64 =
            ["sleep", "poll", "lock"].into_iter().filter(|other| *other != reason).map(ns).sum();
        assert!(others <= MS, "{name}: {blocked:?}");
        let mut parts = recording.stalls(&["--all", "--thread", name]);
        parts.retain(|stall| stall.reason == reason && stall.duration_ns >= MS);
        assert!(parts.len() >= 10, "{name}: {parts:#?}");
        assert!(parts.iter().all(|stall| stall.syscall.as_deref() == Some(syscall)), "{name}: {parts:#?}");
        let asked: Vec<u64> = parts.iter().filter_map(|stall| stall.asked_ns).collect();
        // What is left shrinks with each part: a stop and what was waited before it take a tenth of a second.
        assert!(asked.iter().all(|ns| *ns <= ASKED_NS + MS), "{name}: {asked:?}");
        let later = asked.windows(2).filter(|pair| pair[1] + 50 * MS <= pair[0]).count();
        assert!(later * 2 >= parts.len(), "{name}: {asked:?}");
    }
}
