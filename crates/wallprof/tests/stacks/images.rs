// SPDX-License-Identifier: Apache-2.0
//! Programs that start in every possible way while the machine is recorded.

use serde::Deserialize;
use wallprof_testkit::machine;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::{Scenario, Truth};

use crate::expected::{Expected, assert_complete_once_known, assert_right, missing};
use crate::taken::{Taken, user_stacks};

#[derive(Debug, Deserialize)]
struct Refused {
    name: String,
    error: String,
}

fn note_refusals(truth: &Truth) {
    for refused in truth.all::<Refused>("refused") {
        wallprof_testkit::skip(&refused.name, &refused.error);
    }
}

/// The seconds of a run. Each program has a fifth. Under load its unwind table may come later than that: the
/// run is repeated, and lasts longer.
const DURATIONS: [&str; 3] = ["5", "15", "40"];

/// Runs the scenario until each expected stack was recorded, and `is_extra` holds for a complete one. From the
/// first complete stack of a program on, all are complete, in each of the runs.
fn assert_becomes_complete(record: impl Fn(&str) -> (Truth, Vec<Taken>), is_extra: impl Fn(&Taken) -> bool) {
    let mut not_seen = None;
    for seconds in DURATIONS {
        let (truth, stacks) = record(seconds);
        let expected: Vec<Expected> = truth.all("stack");
        assert_right(&expected, &stacks);
        assert_complete_once_known(&expected, &stacks);
        let has_extra = stacks.iter().any(|stack| stack.is_complete() && is_extra(stack));
        not_seen = missing(&expected, &stacks).or((!has_extra).then(|| "no other stack".to_owned()));
        if not_seen.is_none() {
            return note_refusals(&truth);
        }
    }
    panic!("in {DURATIONS:?} seconds: {}", not_seen.unwrap_or_default());
}

/// In the dynamic linker of a process that ends after a millisecond: its files were mapped before.
fn is_of_short_process(stack: &Taken) -> bool {
    stack.thread == "true" && stack.frames.iter().any(|frame| frame.module.starts_with("ld-linux"))
}

#[test]
fn programs_of_every_origin_become_complete_on_the_whole_machine() {
    let Some(_guard) = machine::reserve("programs_of_every_origin_become_complete_on_the_whole_machine")
    else {
        return;
    };
    let record = |seconds: &str| {
        let mut scenario = Scenario::ready("images", &["-d", seconds]);
        let recorder = Recorder::armed(&["-a", "-F", "999"], &[]);
        let truth = scenario.run();
        (truth, user_stacks(&recorder.stop().path()))
    };
    assert_becomes_complete(record, is_of_short_process);
}

/// The recorder knows nothing of the program before it starts.
#[test]
fn a_command_and_all_that_it_starts_become_complete() {
    let Some(_guard) = machine::reserve("a_command_and_all_that_it_starts_become_complete") else { return };
    let program = wallprof_testkit::scenario::program("images").display().to_string();
    let record = |seconds: &str| {
        let recorder = Recorder::armed(&["-F", "999"], &[&program, "-d", seconds, "-n", "20"]);
        let (status, recording) = recorder.wait();
        assert!(status.success());
        (Truth::from_output(&recording.command_output()), user_stacks(&recording.path()))
    };
    assert_becomes_complete(record, |_| true);
}
