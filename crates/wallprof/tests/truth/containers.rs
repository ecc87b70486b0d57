// SPDX-License-Identifier: Apache-2.0
//! Inside a pid namespace, as containers have one, a process has other pids, and its locks contain those of
//! their owners.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use wallprof_testkit::lines::TIMEOUT;
use wallprof_testkit::machine;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Truth;
use wallprof_testkit::scenario::program;

fn may_unshare() -> bool {
    let status = Command::new("unshare").args(["--pid", "--fork", "true"]).status();
    status.is_ok_and(|status| status.success())
}

#[test]
fn the_owner_of_a_lock_is_known_by_its_number_inside() {
    let test = "the_owner_of_a_lock_is_known_by_its_number_inside";
    let Some(_guard) = machine::reserve(test) else { return };
    if !may_unshare() {
        return wallprof_testkit::skip(test, "there are no pid namespaces, or none for this user");
    }
    let lock = program("lock");
    let lock = lock.to_str().expect("a UTF-8 path");
    let recorder = Recorder::armed(&[], &["unshare", "--pid", "--fork", lock, "-d", "1", "-n", "20"]);
    let (status, recording) = recorder.wait();
    assert!(status.success(), "{status}");
    let truth = Truth::from_output(&recording.command_output());
    assert_eq!(truth.start.pid, 1, "the first process of its namespace");
    let report = recording.report();
    let inside: Vec<_> = report.threads.iter().filter(|thread| thread.process == "lock").collect();
    assert_eq!(inside.len(), truth.start.threads.len());
    assert!(inside.iter().all(|thread| thread.ns_pid == 1 && thread.pid > 1), "{inside:#?}");
    let holder = inside.iter().find(|thread| thread.comm == "housekeeper").expect("the holder's thread");
    let waits = recording.stalls(&["--thread", "engine", "--reason", "lock"]);
    let owners = waits.iter().filter_map(|wait| wait.lock.as_ref()?.owner.as_ref());
    let held = owners.filter(|owner| owner.comm == "housekeeper" && owner.tid == holder.tid).count();
    assert!(held > 0, "{waits:#?}");
}

/// A program in namespaces of its own. Killed when dropped.
struct Inside {
    unshare: Child,
}

impl Inside {
    /// Returns when the program is asleep.
    fn start(args: &[&str]) -> Self {
        let unshare = Command::new("unshare").args(args).stdout(Stdio::null()).spawn().expect("unshare runs");
        let inside = Inside { unshare };
        let deadline = Instant::now() + TIMEOUT;
        while inside.program().is_none() {
            assert!(Instant::now() < deadline, "unshare starts no {args:?}");
            std::thread::yield_now();
        }
        inside
    }

    /// The program's pid, once it sleeps.
    fn program(&self) -> Option<u32> {
        let unshare = self.unshare.id();
        let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).ok()?;
        let pid = children.split_whitespace().next()?.parse().ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.contains("(shared) S").then_some(pid)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

/// Two containers with one mutex in shared memory: its holder is thread 1 of another namespace. Seen: the waiter,
/// which is thread 1 of its own, waited for itself in a deadlock.
#[test]
fn number_of_another_namespace_is_no_owner() {
    let test = "number_of_another_namespace_is_no_owner";
    let Some(_guard) = machine::reserve(test) else { return };
    if !may_unshare() {
        return wallprof_testkit::skip(test, "there are no pid namespaces, or none for this user");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (shared, file) = (program("shared"), folder.path().join("mutex"));
    let [shared, file] = [&shared, &file].map(|path| path.to_str().expect("a UTF-8 path"));
    let inside = ["--pid", "--fork", "--kill-child", shared, "-f", file];
    let holding = Inside::start(&[&inside[..], &["-k", "-d", "60"]].concat());
    let recorder = Recorder::armed(&["--name", "shared"], &[]);
    let waiting = Inside::start(&inside);
    let recording = recorder.stop();
    drop((holding, waiting));
    let waits = recording.stalls(&["--all", "--reason", "lock"]);
    let wait = waits.iter().find(|wait| wait.comm == "shared").unwrap_or_else(|| panic!("{waits:#?}"));
    assert!(wait.open && wait.user_stack_has("wait_for_mutex"), "{wait:#?}");
    assert!(wait.lock.as_ref().is_some_and(|lock| lock.owner.is_none()), "{wait:#?}");
    let findings = recording.report().findings;
    assert!(findings.iter().all(|finding| finding.rule != "deadlock"), "{findings:#?}");
}
