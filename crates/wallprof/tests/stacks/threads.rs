// SPDX-License-Identifier: Apache-2.0
//! The starts of threads other than a process' first one.

use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::{Scenario, ScenarioThread};
use wallprof_testkit::stored;

use crate::taken::{Taken, user_stacks};

/// libc's start of a thread, and the system call's stub that started it. They have names only where debug
/// symbols are installed.
fn begins_in_libc(stack: &Taken) -> bool {
    let outermost: Vec<_> = stack.frames.iter().rev().take(3).collect();
    matches!(outermost[..], [stub, start, life] if stub.module.starts_with("libc.")
        && start.module.starts_with("libc.") && life.is("runner_life"))
}

#[test]
fn threads_begin_in_libc() {
    let Some(_run) = stored::run("threads_begin_in_libc") else { return };
    let mut scenario = Scenario::ready("lock", &["-d", "2"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid(), "-F", "999"], &[]);
    let truth = scenario.run();
    let stacks = user_stacks(&recorder.stop().path());
    for ScenarioThread { name, .. } in truth.start.workers() {
        let own: Vec<_> = stacks.iter().filter(|stack| stack.thread == *name).collect();
        assert!(!own.is_empty(), "stacks of {name}");
        for stack in own {
            assert!(stack.is_complete() && begins_in_libc(stack), "{stack}");
        }
    }
}
