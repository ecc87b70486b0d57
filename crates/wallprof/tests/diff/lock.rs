//! The lock scenario, recorded three times: twice as it is, once with the lock held twice as long.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program::{json, text, wallprof};

const SECONDS: &str = "9";
/// Where others use the machine, its noise may hide the difference: then nothing is named, and nothing wrong either.
const TRIES: usize = 3;

/// A recording, and the seconds that the engine says it spent at the lock.
struct Run {
    file: PathBuf,
    at_lock_s: f64,
}

#[test]
#[ignore = "compares the machine with itself: run it on a quiet one with `cargo test --test diff -- --ignored`"]
fn a_lock_held_twice_as_long_is_named_first_and_equal_runs_are_no_news() {
    let folder = tempfile::tempdir().unwrap();
    if let Some(refusal) = bpf_refusal(folder.path()) {
        let required = std::env::var_os("WALLPROF_REQUIRE_BPF").is_some_and(|value| value == "1");
        assert!(!required, "WALLPROF_REQUIRE_BPF=1, but this machine cannot record: {refusal}");
        let _ = writeln!(std::io::stderr(), "skipped the diff of lock runs: {refusal}");
        return;
    }
    let scenario = lock_scenario();
    let run = |name: &str, held: &str| record(&scenario, &folder.path().join(name), held);
    let (first, second) = (run("first.db", "1"), run("second.db", "1"));
    assert_equal(&first, &second);
    let mut before = second;
    let is_named = (0..TRIES).any(|_| {
        let doubled = run("doubled.db", "2");
        let is_named = names_the_lock(&before, &doubled);
        if !is_named {
            before = run("first.db", "1");
        }
        is_named
    });
    assert!(is_named, "in none of {TRIES} tries");
}

fn assert_equal(a: &Run, b: &Run) {
    let shown = text(&a.file, &b.file, &[]);
    assert!(shown.contains("No difference beyond noise."), "{shown}");
}

/// Whether the wait for the lock is named first. That the difference is right holds whether or not it is named.
fn names_the_lock(a: &Run, b: &Run) -> bool {
    let found = json(&a.file, &b.file);
    let at_lock = stack(&found, |stack| names(stack).last() == Some(&"take_registry_lock"));
    let measured = at_lock.expect("the function")["difference_ns"].as_f64().unwrap();
    let rate = |run: &Run, side: &str| run.at_lock_s * 1e18 / found[side]["wall_ns"].as_f64().unwrap();
    let truth = rate(b, "b") - rate(a, "a");
    assert!(
        (measured - truth).abs() <= 0.05 * truth,
        "{measured} ns/s measured, {truth} by the scenario's log"
    );
    let first = stack(&found, |stack| stack["rank"] == 1);
    let is_named = first.is_some_and(|first| names(first).contains(&"take_registry_lock"));
    assert!(!is_named || first.and_then(|first| first["difference_ns"].as_i64()) > Some(0));
    is_named
}

/// A stack of the engine.
fn stack(found: &Value, wanted: impl Fn(&Value) -> bool) -> Option<&Value> {
    let mut stacks = found["stacks"].as_array().expect("stacks").iter();
    stacks.find(|stack| stack["thread"] == "engine" && wanted(stack))
}

fn names(stack: &Value) -> Vec<&str> {
    stack["stack"].as_array().expect("a path").iter().filter_map(Value::as_str).collect()
}

/// One tick in ten is malformed and takes the lock.
fn record(scenario: &Path, file: &Path, held: &str) -> Run {
    let log = file.with_extension("log");
    let status = wallprof()
        .args(["record", "-o"])
        .arg(file)
        .arg("--")
        .arg(scenario)
        .args(["-d", SECONDS, "-n", "10", "-k", held])
        .stdout(File::create(&log).unwrap())
        .stderr(Stdio::null())
        .status()
        .expect("the binary runs");
    assert!(status.success(), "{status}");
    let lines = fs::read_to_string(log).unwrap();
    let events = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("a truth line"));
    let slow = events.filter(|event| event["event"] == "slow");
    let at_lock_ns: u64 = slow
        .map(|slow| slow["end_ns"].as_u64().expect("an end") - slow["start_ns"].as_u64().expect("a start"))
        .sum();
    Run { file: file.to_owned(), at_lock_s: at_lock_ns as f64 / 1e9 }
}

/// Exit code 3 is the recorder's "not permitted, or not offered by this kernel"; any other failure is no reason to skip.
fn bpf_refusal(folder: &Path) -> Option<String> {
    let output = wallprof()
        .args(["record", "-a", "-d", "100ms", "-o"])
        .arg(folder.join("probe.db"))
        .output()
        .expect("the binary runs");
    (output.status.code() == Some(3)).then(|| String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

fn lock_scenario() -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scenarios");
    let mut make = Command::new("make");
    make.args(["-s", "-C"]).arg(&sources).arg(format!("OUT={}", folder.display())).stdin(Stdio::null());
    assert!(
        make.status().expect("make runs").success(),
        "the scenarios in {} do not build",
        sources.display()
    );
    folder.join("lock")
}
