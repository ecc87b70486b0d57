// SPDX-License-Identifier: Apache-2.0
//! JIT-compiled code, with the names that the compiler writes.

use std::io::ErrorKind;
use std::process::{Child, Command, Stdio};

use wallprof_model::FrameKind;
use wallprof_testkit::lines::Lines;
use wallprof_testkit::machine;
use wallprof_testkit::recorder::Recorder;

use crate::taken::{Doing, Place, Taken, user_stacks};

const SOURCE: &str = r#"
    function inner(n) { let s = 0; for (let i = 0; i < n; i++) s = (s * 31 + i) | 0; return s; }
    function outer(n) { let s = 0; for (let i = 0; i < n; i++) s ^= inner(100000); return s; }
    let sum = outer(100);
    console.log('ready');
    for (;;) sum ^= outer(10);
"#;

/// Killed when dropped; its map is removed.
struct Node(Child);

impl Node {
    /// `None` where node is not installed. `folder` takes its log.
    fn start(folder: &std::path::Path) -> Option<Self> {
        let spawned = Command::new("node")
            .args(["--perf-basic-prof", "--no-turbo-inlining", "-e", SOURCE])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut node = match spawned {
            Ok(child) => Node(child),
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => panic!("node does not start: {error}"),
        };
        let mut lines = Lines::from_pipe("node", node.0.stdout.take().expect("a pipe"));
        assert!(lines.find(|line| line == "ready").is_some(), "node ended early");
        Some(node)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_file(format!("/tmp/perf-{}.map", self.0.id()));
    }
}

fn is_jit(frame: &Place, name: &str) -> bool {
    frame.kind == FrameKind::Jit && frame.symbol.as_deref().is_some_and(|symbol| symbol.contains(name))
}

#[test]
fn functions_of_javascript_have_names() {
    let Some(_guard) = machine::reserve("functions_of_javascript_have_names") else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let Some(node) = Node::start(folder.path()) else {
        return wallprof_testkit::skip("functions_of_javascript_have_names", "node is not installed");
    };
    let recorder = Recorder::armed(&["-p", &node.0.id().to_string(), "-F", "999", "-d", "2"], &[]);
    let (status, recording) = recorder.wait();
    assert!(status.success());
    let stacks = user_stacks(&recording.path());
    let running: Vec<&Taken> =
        stacks.iter().filter(|stack| stack.thread == "node" && stack.doing == Doing::Running).collect();
    let count = |is_one: &dyn Fn(&Taken) -> bool| -> u64 {
        running.iter().filter(|stack| is_one(stack)).map(|stack| stack.count).sum()
    };
    let compiled = count(&|stack| stack.frames[0].kind == FrameKind::Jit);
    let named = count(&|stack| is_jit(&stack.frames[0], "inner "));
    assert!(compiled >= 100 && named * 100 >= compiled * 98, "{named} of {compiled}");
    // Through the compiled code back into node's own, and to its start.
    let complete = count(&|stack| is_jit(&stack.frames[0], "inner ") && stack.is_complete());
    assert!(complete * 100 >= named * 98, "{complete} of {named}");
    // The caller is compiled sooner or later, too.
    let called = count(
        &|stack| matches!(&stack.frames[..], [inner, outer, ..] if is_jit(inner, "inner ") && is_jit(outer, "outer ")),
    );
    assert!(called > 0, "none of {named}");
}
