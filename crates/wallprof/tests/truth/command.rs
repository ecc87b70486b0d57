// SPDX-License-Identifier: Apache-2.0
//! `record` as a command: targets, exit codes, and the child's own status.

use std::fs;
use std::path::PathBuf;
use std::process::{ExitStatus, Output};

use wallprof_testkit::machine;
use wallprof_testkit::recorder::{Recorder, wallprof};
use wallprof_testkit::scenario::Truth;
use wallprof_testkit::scenario::program;

use crate::ledger::assert_adds_up;

/// `record ARGS` into a file of its own, to its end.
fn record(args: &[&str]) -> (Output, PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("recording.db");
    let output =
        wallprof().args(["record", "-o"]).arg(&file).args(args).output().expect("the wallprof binary runs");
    (output, file, folder)
}

fn assert_one_sentence(output: &Output) {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(complaint.trim_end().lines().count(), 1, "one sentence: {complaint}");
    assert!(complaint.starts_with("wallprof: "), "{complaint}");
}

fn code(status: ExitStatus) -> Option<i32> {
    status.code()
}

#[test]
fn a_recording_needs_a_target() {
    let (output, file, _folder) = record(&[]);
    assert_eq!(code(output.status), Some(2));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("-p") && complaint.contains("-a"), "says what to give: {complaint}");
    assert!(!file.exists());
}

#[test]
fn a_process_that_does_not_exist() {
    // Above the largest pid of all kernels.
    let (output, file, _folder) = record(&["-p", "4194305", "-d", "1"]);
    assert_eq!(code(output.status), Some(1));
    assert_one_sentence(&output);
    assert!(String::from_utf8_lossy(&output.stderr).contains("4194305"));
    assert!(!file.exists(), "nothing is created");
}

#[test]
fn the_childs_status_passes_through() {
    let Some(_guard) = machine::reserve("the_childs_status_passes_through") else { return };
    for (script, expected) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 128 + 15)] {
        let (output, file, _folder) = record(&["--", "sh", "-c", script]);
        assert_eq!(code(output.status), Some(expected), "{script}: {output:?}");
        assert!(file.exists());
    }
}

#[test]
fn a_command_that_does_not_exist() {
    if !machine::may_record("a_command_that_does_not_exist") {
        return;
    }
    let (output, _, _folder) = record(&["--", "/nonexistent/program"]);
    assert_ne!(code(output.status), Some(0));
    assert_one_sentence(&output);
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent/program"));
}

#[test]
fn the_childs_output_is_its_own() {
    let Some(_guard) = machine::reserve("the_childs_output_is_its_own") else { return };
    let (output, _, _folder) = record(&["--", "echo", "hello"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\n");
}

/// A command is recorded from its first instruction, with its threads and its children.
#[test]
fn a_command_with_its_whole_family() {
    let Some(_guard) = machine::reserve("a_command_with_its_whole_family") else { return };
    let script = format!("'{}' -d 1; true", program("spin").display());
    let (status, recording) = Recorder::armed(&[], &["sh", "-c", &script]).wait();
    assert!(status.success());
    let truth = Truth::from_output(&recording.command_output());
    let report = recording.report();
    let stalls = recording.stalls(&["--all"]);
    let waits_in = |name: &str| stalls.iter().any(|stall| stall.syscall.as_deref() == Some(name));
    assert!(waits_in("wait4") && !waits_in("recvmsg"), "its wait to be let go is not its own: {stalls:#?}");
    let shell = report.threads.iter().find(|thread| thread.comm == "sh").expect("the command itself");
    assert_adds_up(shell);
    for life in truth.lives() {
        let thread =
            report.threads.iter().find(|thread| thread.tid == life.tid).expect("a thread of the child");
        assert_eq!((&thread.comm, thread.pid), (&life.name, truth.start.pid));
        assert_adds_up(thread);
        // The thread's CPU clock ends shortly before the thread does.
        assert!(thread.on_cpu_ns >= life.cpu_ns * 99 / 100, "{life:?}: {thread:#?}");
    }
}

#[test]
fn an_unwritable_output() {
    if !machine::may_record("an_unwritable_output") {
        return;
    }
    let output = wallprof()
        .args(["record", "-a", "-d", "1", "-o", "/nonexistent/folder/file.db"])
        .output()
        .expect("the wallprof binary runs");
    assert_eq!(code(output.status), Some(1));
    assert_one_sentence(&output);
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent/folder"));
}

/// A cgroup that stays empty: there was nothing to record.
#[test]
fn nothing_was_recorded() {
    let Some(_guard) = machine::reserve("nothing_was_recorded") else { return };
    let Some(group) = EmptyGroup::new() else {
        return wallprof_testkit::skip("nothing_was_recorded", "no cgroup can be made here");
    };
    let (output, _, _folder) = record(&["--cgroup", &group.path.display().to_string(), "-d", "200ms"]);
    assert_eq!(code(output.status), Some(4), "{output:?}");
}

/// A cgroup of the test's own, removed when dropped.
struct EmptyGroup {
    path: PathBuf,
}

impl EmptyGroup {
    fn new() -> Option<Self> {
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup"];
        let name = format!("wallprof-truth-{}", std::process::id());
        let made = roots
            .iter()
            .map(|root| PathBuf::from(root).join(&name))
            .find(|path| fs::create_dir(path).is_ok());
        made.map(|path| EmptyGroup { path })
    }
}

impl Drop for EmptyGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}
