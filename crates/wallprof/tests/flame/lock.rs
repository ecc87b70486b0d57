// SPDX-License-Identifier: Apache-2.0
//! The lock scenario, recorded for real: running and waiting in one picture that adds up to the threads' wall
//! time.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use wallprof_testkit::assert_always;
use wallprof_testkit::machine;
use wallprof_testkit::program::wallprof;
use wallprof_testkit::scenario::program;

/// Records the scenario for two seconds.
fn record(file: &Path) {
    let output = wallprof(&["record", "-o", file.to_str().unwrap(), "--"])
        .arg(program("lock"))
        .args(["-d", "2"])
        .stdout(Stdio::null())
        .output()
        .unwrap();
    assert_always!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn stdout(arguments: &[&str]) -> String {
    let output = wallprof(arguments).output().unwrap();
    assert_always!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn running_and_waiting_add_up_to_wall_time() {
    let Some(_guard) = machine::reserve("running_and_waiting_add_up_to_wall_time") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lock.db");
    record(&path);
    let file = path.to_str().unwrap();
    let report: serde_json::Value = serde_json::from_str(&stdout(&["report", "--json", file])).unwrap();
    let mut wall: BTreeMap<String, u64> = BTreeMap::new();
    for thread in report["threads"].as_array().unwrap() {
        *wall.entry(thread["comm"].as_str().unwrap().into()).or_default() +=
            thread["wall_ns"].as_u64().unwrap();
    }
    let folded = stdout(&["export", "--to", "folded", file, "-o", "-"]);
    let mut drawn: BTreeMap<String, u64> = BTreeMap::new();
    for line in folded.lines() {
        let (stack, weight) = line.rsplit_once(' ').unwrap();
        let comm = stack.split(';').next().unwrap();
        *drawn.entry(comm.into()).or_default() += weight.parse::<u64>().unwrap();
    }
    assert_eq!(drawn, wall);
    let has = |parts: &[&str]| folded.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(
        has(&["engine;", ";handle_tick;", ";take_registry_lock;", "_[k];", ";[blocked:lock] "]),
        "{folded}"
    );
    assert!(has(&["housekeeper;", ";[user] "]), "{folded}");
    let wakers = stdout(&["export", "--to", "folded", "--view", "wakers", file, "-o", "-"]);
    let released = |line: &str| line.contains("take_registry_lock;") && line.contains(";release_registry;");
    assert!(wakers.lines().any(released), "the holder of the lock is above the waiter: {wakers}");
}
