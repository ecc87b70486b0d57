// SPDX-License-Identifier: Apache-2.0
//! Two threads, or a ring of three, that never come back: open stalls, with everything known about them.

use serde::Deserialize;

use wallprof_testkit::contract::{Report, Stall};
use wallprof_testkit::recorder::{Recorder, RecordingFile};
use wallprof_testkit::scenario::{Scenario, Truth};
use wallprof_testkit::stored;

const EDGE_NS: u64 = 50_000;

#[derive(Debug, Deserialize)]
struct Stuck {
    tid: u32,
    name: String,
    wants: String,
    owner: u32,
    since_ns: u64,
}

fn assert_names_the_deadlock(stall: &Stall, stuck: &Stuck) {
    assert!(stall.open, "{stall:#?}");
    assert_eq!((stall.kind.as_str(), stall.reason.as_str()), ("off-cpu", "lock"));
    assert_eq!(stall.comm, stuck.name);
    assert!(stall.user_stack_has("take_second_lock"), "{stall:#?}");
    let kernel = stall.kernel_stack.as_deref().unwrap_or_default();
    let in_futex =
        kernel.iter().filter_map(|frame| frame.symbol.as_deref()).any(|name| name.contains("futex"));
    assert!(in_futex, "{stall:#?}");
    let lock = stall.lock.as_ref().unwrap_or_else(|| panic!("a lock in {stall:#?}"));
    assert_eq!(lock.address.as_deref(), Some(stuck.wants.as_str()));
    assert_eq!(lock.owner.as_ref().map(|owner| owner.tid), Some(stuck.owner));
    assert!(stall.waker.is_none(), "no thread woke {stall:#?}");
}

/// One open stall a thread, in the order of the truth's lines.
fn open_stalls(recording: &RecordingFile, truth: &Truth) -> Vec<(Stuck, Stall)> {
    let stalls = recording.stalls(&[]);
    let pairs = truth.all::<Stuck>("stuck").into_iter().map(|stuck| {
        let mut of_thread = stalls.iter().filter(|stall| stall.tid == stuck.tid && stall.reason == "lock");
        let stall = of_thread.next().unwrap_or_else(|| panic!("{stuck:?} has a stall among {stalls:#?}"));
        assert!(of_thread.next().is_none(), "{stuck:?} has one stall");
        (stuck, stall.clone())
    });
    pairs.collect()
}

fn assert_lasts_to_the_end(stall: &Stall, report: &Report) {
    let missing_ns = report.recording.end_ns.abs_diff(stall.end_ns);
    // An open stall ends when its thread was last read. The recording's end was read in the same pass, give
    // or take its duration.
    assert!(missing_ns <= 100_000_000, "{stall:#?} of {:#?}", report.recording);
}

#[test]
fn a_deadlock_that_was_there_before() {
    let Some(_run) = stored::run("a_deadlock_that_was_there_before") else { return };
    let mut scenario = Scenario::ready("deadlock", &[]);
    let truth = scenario.run();
    let pid = scenario.pid();
    let recorder = Recorder::armed(&["-p", &pid, "-d", "1.5"], &[]);
    let (status, recording) = recorder.wait();
    assert!(status.success());
    let report = recording.report();
    let pairs = open_stalls(&recording, &truth);
    assert_eq!(pairs.len(), 2);
    for (stuck, stall) in pairs {
        assert_names_the_deadlock(&stall, &stuck);
        // The start of the wait is not known, only that it lies before that of the recording.
        let since = truth.epoch_from_mono(stuck.since_ns);
        assert!(
            (since - EDGE_NS..=report.recording.start_ns + EDGE_NS).contains(&stall.start_ns),
            "{stall:#?}"
        );
        assert_lasts_to_the_end(&stall, &report);
    }
}

#[test]
fn a_ring_of_three_that_forms_meanwhile() {
    let Some(_run) = stored::run("a_ring_of_three_that_forms_meanwhile") else { return };
    let mut scenario = Scenario::ready("deadlock", &["-n", "3"]);
    let pid = scenario.pid();
    let recorder = Recorder::armed(&["-p", &pid], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    let report = recording.report();
    let pairs = open_stalls(&recording, &truth);
    assert_eq!(pairs.len(), 3);
    for (stuck, stall) in pairs {
        assert_names_the_deadlock(&stall, &stuck);
        let since = truth.epoch_from_mono(stuck.since_ns);
        assert!(stall.start_ns.abs_diff(since) <= EDGE_NS, "{since}: {stall:#?}");
        assert_lasts_to_the_end(&stall, &report);
    }
    let found = report.findings.iter().find(|found| found.rule == "deadlock");
    let title = &found.unwrap_or_else(|| panic!("a deadlock in {:#?}", report.findings)).title;
    assert!(["left", "right", "third"].iter().all(|name| title.contains(name)), "{title}");
}
