// SPDX-License-Identifier: Apache-2.0
//! Inside the dynamic linker, and in libraries that are loaded and unloaded.

use serde::Deserialize;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::stored;

use crate::expected::{Expected, assert_right, missing};
use crate::taken::{Doing, Taken, user_stacks};

#[derive(Debug, Deserialize)]
struct Bound {
    functions: usize,
}

/// Taken while a function was bound: in the linker, called by the program.
fn in_linker(stack: &Taken) -> bool {
    let inside = stack.frames.iter().take_while(|frame| frame.module.starts_with("ld-linux")).count();
    let caller = stack.frames.get(inside).and_then(|frame| frame.symbol.as_deref());
    inside >= 2 && caller.is_some_and(|name| name.starts_with("call_lazy_"))
}

/// Each call has the plugin at a new address, which the recorder learns while the call runs: a walk may end
/// there. After the call the frame belongs to no file. All other code is known when the recording begins.
fn is_of_plugin(stack: &Taken) -> bool {
    stack.frames.iter().any(|frame| frame.module == "libplugin.so" || frame.module.is_empty())
}

#[test]
fn functions_that_are_bound_and_libraries_that_come_and_go() {
    let Some(_run) = stored::run("functions_that_are_bound_and_libraries_that_come_and_go") else {
        return;
    };
    let mut scenario = Scenario::ready("loader", &["-d", "2"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid(), "-F", "999", "-e", "page-faults"], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    let stacks = user_stacks(&recording.path());
    let expected: Vec<Expected> = truth.all("stack");
    assert_right(&expected, &stacks);
    if let Some(missing) = missing(&expected, &stacks) {
        panic!("{missing}");
    }
    for stack in stacks.iter().filter(|stack| stack.thread == "loader") {
        assert!(stack.is_complete() || is_of_plugin(stack), "{stack}");
    }
    let bound = truth.one::<Bound>("bound").functions;
    if bound == 0 {
        return wallprof_testkit::skip("stacks inside _dl_fixup", "there is no userfaultfd");
    }
    // Each waited for a page of symbols, and faulted for it.
    for doing in [Doing::Blocked, Doing::Event] {
        let inside: u64 = stacks
            .iter()
            .filter(|stack| stack.doing == doing && in_linker(stack))
            .map(|stack| stack.count)
            .sum();
        assert!(inside >= bound as u64, "{doing:?}: {inside} of {bound}");
    }
}
