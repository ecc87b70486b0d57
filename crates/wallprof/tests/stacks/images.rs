//! Programs that come into being in every way, while the machine is recorded.

use serde::Deserialize;

use crate::expected::{Expected, NEW_CODE, assert_as_expected, assert_complete};
use crate::recorder::Recorder;
use crate::scenario::{Scenario, Truth};
use crate::stage;
use crate::taken::user_stacks;

#[derive(Debug, Deserialize)]
struct Refused {
    name: String,
    error: String,
}

fn note_refusals(truth: &Truth) {
    for refused in truth.all::<Refused>("refused") {
        stage::skip(&refused.name, &refused.error);
    }
}

#[test]
fn programs_of_every_origin_on_the_whole_machine() {
    let Some(_stage) = stage::enter("programs_of_every_origin_on_the_whole_machine") else { return };
    let mut scenario = Scenario::ready("images", &["-d", "5"]);
    let recorder = Recorder::armed(&["-a", "-F", "999"], &[]);
    let truth = scenario.perform();
    let recording = recorder.stop();
    note_refusals(&truth);
    let stacks = user_stacks(&recording.path());
    assert_as_expected(&truth.all("stack"), &stacks, NEW_CODE);
    // Half over when anything is known of them, 200 brief processes are not unknown altogether.
    assert_complete("true", &stacks, NEW_CODE);
}

/// The recorder knows nothing of the program before it starts.
#[test]
fn a_command_and_all_that_it_starts() {
    let Some(_stage) = stage::enter("a_command_and_all_that_it_starts") else { return };
    let program = stage::program("images").display().to_string();
    let recorder = Recorder::armed(&["-F", "999"], &[&program, "-d", "5", "-n", "20"]);
    let (status, recording) = recorder.wait();
    assert!(status.success());
    let truth = Truth::from_output(&recording.command_output());
    note_refusals(&truth);
    let expected: Vec<Expected> = truth.all("stack");
    assert_as_expected(&expected, &user_stacks(&recording.path()), NEW_CODE);
}
