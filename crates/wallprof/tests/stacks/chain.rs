// SPDX-License-Identifier: Apache-2.0
//! Sixty functions without frame pointers, and one in 120 frames.

use wallprof_testkit::machine;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::stored;

use crate::expected::assert_as_expected;
use crate::taken::user_stacks;

/// Each leaf runs or sleeps for 3 ms at a time, a sixth of the time: at 999 Hz some hundred samples of each
/// in a second.
const RATE: &str = "999";

#[test]
fn sixty_functions_and_120_frames_of_one() {
    sixty_functions("sixty_functions_and_120_frames_of_one", "chain");
}

/// The program has no unwind entries.
#[test]
fn sixty_functions_found_by_their_instructions() {
    sixty_functions("sixty_functions_found_by_their_instructions", "chain-bare");
}

fn sixty_functions(test: &str, program: &str) {
    let Some(_run) = stored::run(test) else { return };
    let mut scenario = Scenario::ready(program, &["-d", "2"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid(), "-F", RATE], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    assert_as_expected(&truth.all("stack"), &user_stacks(&recording.path()), 0);
}

/// A sampler at 10 kHz interrupts the walks at switches, and its own.
#[test]
fn walks_that_interrupt_each_other_stay_right() {
    let Some(_guard) = machine::reserve("walks_that_interrupt_each_other_stay_right") else { return };
    let mut scenario = Scenario::ready("chain", &["-d", "2"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid(), "-F", "10000"], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    assert_as_expected(&truth.all("stack"), &user_stacks(&recording.path()), 0);
}
