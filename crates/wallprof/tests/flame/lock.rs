//! The lock scenario, recorded for real: running and waiting in one picture that adds up to the threads' wall time.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::program::wallprof;

/// Exit code of a recorder that may not record, or cannot on this kernel.
const UNAVAILABLE: i32 = 3;

/// Records the scenario for two seconds; `None` where BPF is not permitted and may be missing.
fn recorded(file: &Path) -> Option<Output> {
    let output = wallprof(&["record", "-o", file.to_str().unwrap(), "--"])
        .arg(scenario())
        .args(["-d", "2"])
        .stdout(Stdio::null())
        .output()
        .unwrap();
    if output.status.code() != Some(UNAVAILABLE) {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return Some(output);
    }
    let refusal = String::from_utf8_lossy(&output.stderr);
    let required = std::env::var_os("WALLPROF_REQUIRE_BPF").is_some_and(|value| value == "1");
    assert!(!required, "WALLPROF_REQUIRE_BPF=1, but this machine cannot record: {refusal}");
    let _ = writeln!(std::io::stderr(), "skipped the lock scenario's flame graph: {refusal}");
    None
}

fn scenario() -> std::path::PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scenarios-of-flame");
    let out = format!("OUT={}", folder.display());
    let status = Command::new("make").args(["-s", "-C"]).arg(&sources).arg(out).status().unwrap();
    assert!(status.success(), "the scenarios in {} do not build", sources.display());
    folder.join("lock")
}

fn stdout(arguments: &[&str]) -> String {
    let output = wallprof(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn running_and_waiting_add_up_to_wall_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lock.db");
    if recorded(&path).is_none() {
        return;
    }
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
    assert!(wakers.lines().any(released), "who held the lock stands above who waited: {wakers}");
}
