//! Where threads other than a process' first one begin.

use crate::recorder::Recorder;
use crate::scenario::{Actor, Scenario};
use crate::stage;
use crate::taken::{Taken, user_stacks};

/// libc's start of a thread, and the system call's stub that began it: named only where debug symbols are installed.
fn begins_in_libc(stack: &Taken) -> bool {
    let outermost: Vec<_> = stack.frames.iter().rev().take(3).collect();
    matches!(outermost[..], [stub, start, life] if stub.module.starts_with("libc.")
        && start.module.starts_with("libc.") && life.is("actor_life"))
}

#[test]
fn threads_begin_in_libc() {
    let Some(_stage) = stage::enter("threads_begin_in_libc") else { return };
    let mut scenario = Scenario::ready("lock", &["-d", "2"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid(), "-F", "999"], &[]);
    let truth = scenario.perform();
    let stacks = user_stacks(&recorder.stop().path());
    for Actor { name, .. } in truth.start.actors() {
        let own: Vec<_> = stacks.iter().filter(|stack| stack.thread == *name).collect();
        assert!(!own.is_empty(), "stacks of {name}");
        for stack in own {
            assert!(stack.is_complete() && begins_in_libc(stack), "{stack}");
        }
    }
}
