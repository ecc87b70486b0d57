//! Programs that start in every possible way while the machine is recorded.

use serde::Deserialize;

use crate::expected::{Expected, NEW_CODE, assert_as_expected, assert_complete};
use crate::taken::user_stacks;
use wallprof_testkit::machine;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::{Scenario, Truth};

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

#[test]
fn programs_of_every_origin_on_the_whole_machine() {
    let Some(_guard) = machine::reserve("programs_of_every_origin_on_the_whole_machine") else { return };
    let mut scenario = Scenario::ready("images", &["-d", "5"]);
    let recorder = Recorder::armed(&["-a", "-F", "999"], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    note_refusals(&truth);
    let stacks = user_stacks(&recording.path());
    assert_as_expected(&truth.all("stack"), &stacks, NEW_CODE);
    // The programs are half over when their code is known. Not all 200 short processes are unknown.
    assert_complete("true", &stacks, NEW_CODE);
}

/// The recorder knows nothing of the program before it starts.
#[test]
fn a_command_and_all_that_it_starts() {
    let Some(_guard) = machine::reserve("a_command_and_all_that_it_starts") else { return };
    let program = wallprof_testkit::scenario::program("images").display().to_string();
    let recorder = Recorder::armed(&["-F", "999"], &[&program, "-d", "5", "-n", "20"]);
    let (status, recording) = recorder.wait();
    assert!(status.success());
    let truth = Truth::from_output(&recording.command_output());
    note_refusals(&truth);
    let expected: Vec<Expected> = truth.all("stack");
    assert_as_expected(&expected, &user_stacks(&recording.path()), NEW_CODE);
}
