//! Inside a pid namespace, as containers have one, a process has other pids, and its locks contain those of
//! their owners.

use std::process::Command;

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
