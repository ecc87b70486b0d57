// SPDX-License-Identifier: Apache-2.0
//! Frames of every shape, and stacks inside signal handlers.

use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::stored;

use crate::expected::assert_as_expected;
use crate::taken::user_stacks;

/// While the kernel returns from a handler it replaces the registers one by one. A sample that hits it there,
/// once in some thousand, has no right stack.
const RETURNING: u64 = 2;

#[test]
fn odd_frames_and_signal_handlers() {
    let Some(_run) = stored::run("odd_frames_and_signal_handlers") else { return };
    let mut scenario = Scenario::ready("shapes", &["-d", "3"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid(), "-F", "999"], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    assert_as_expected(&truth.all("stack"), &user_stacks(&recording.path()), RETURNING);
}
