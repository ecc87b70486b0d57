// SPDX-License-Identifier: Apache-2.0
//! The lock scenario, recorded three times: twice as it is, once with the lock held twice as long.
//!
//! Other tests use the CPUs meanwhile, more in one run than in the next. So the engine's waits for a CPU, its
//! running and its sleeps differ, and a diff may report that. Only the time for which the lock blocks it
//! depends on the holder, and is judged. It is never named where the lock is held as long. It is named where
//! the lock is held twice as long, in one of several recordings, since noise of the machine may hide it in
//! one.

use serde_json::Value;

use wallprof_testkit::recorder::{Recorder, RecordingFile};
use wallprof_testkit::scenario::program;
use wallprof_testkit::stored;

use crate::program::json;

const SECONDS: &str = "9";
const TRIES: usize = 3;

/// The time of a state, ns, that may have no stack: the kernel side gives it to a stack when it passes this.
const UNSTACKED_NS: f64 = 1e6;

/// A recording, and the time that the engine spent at the lock, not running, by its own clock, ns.
struct Run {
    recording: RecordingFile,
    at_lock_ns: f64,
}

#[test]
fn lock_held_twice_as_long_is_named_and_one_held_as_long_is_not() {
    let test = "lock_held_twice_as_long_is_named_and_one_held_as_long_is_not";
    let Some(_run) = stored::run(test) else { return };
    let (first, second) = (record("1"), record("1"));
    let equal = json(&first.recording.path(), &second.recording.path());
    assert_eq!(lock_state(&equal)["news"], false, "{}", lock_state(&equal));
    assert!(waits(&equal).all(|stack| stack["rank"].is_null()), "{equal}");
    let is_named = (0..TRIES).any(|_| {
        let doubled = record("2");
        let found = json(&second.recording.path(), &doubled.recording.path());
        assert_right(&found, &second, &doubled);
        names_the_lock(&found)
    });
    assert!(is_named, "in none of {TRIES} tries");
}

/// Whether the engine's lock is reported as different. Then it is the first of all waits that are named, and
/// longer.
fn names_the_lock(found: &Value) -> bool {
    if lock_state(found)["news"] == false {
        return false;
    }
    let stacks = found["stacks"].as_array().expect("stacks").iter();
    let blocked =
        stacks.filter(|stack| names(stack).last().is_some_and(|leaf| leaf.starts_with("[blocked:")));
    let ranked = blocked.filter(|stack| !stack["rank"].is_null());
    let first = ranked.min_by_key(|stack| stack["rank"].as_u64());
    let first = first.expect("a wait is named");
    assert_eq!(first["thread"], "engine", "{first}");
    assert!(is_at_lock(first) && names(first).last() == Some(&"[blocked:lock]"), "{first}");
    assert!(first["difference_ns"].as_i64() > Some(0), "{first}");
    true
}

/// The difference in off-CPU time of the function that takes the lock is the scenario's, within 5 % and the
/// time without a stack of both states on both sides.
fn assert_right(found: &Value, a: &Run, b: &Run) {
    let per_second = |ns: f64, side: &str| ns * 1e9 / found[side]["wall_ns"].as_f64().expect("a length");
    let truth = per_second(b.at_lock_ns, "b") - per_second(a.at_lock_ns, "a");
    let measured: f64 = waits(found).map(|stack| stack["difference_ns"].as_f64().expect("a number")).sum();
    let unstacked = 2.0 * (per_second(UNSTACKED_NS, "a") + per_second(UNSTACKED_NS, "b"));
    assert!(
        (measured - truth).abs() <= 0.05 * truth.abs() + unstacked,
        "{measured} ns/s measured, {truth} by the scenario's log"
    );
}

/// The engine's off-CPU time in the function that takes the lock, by state. States that are left out take
/// less than the floor on both sides together.
fn waits(found: &Value) -> impl Iterator<Item = &Value> {
    let stacks = found["stacks"].as_array().expect("stacks").iter();
    let off_cpu = |stack: &&Value| {
        let leaf = names(stack).last().copied().unwrap_or_default();
        stack["leaf"] == true && !["[user]", "[kernel]"].contains(&leaf)
    };
    stacks.filter(|stack| stack["thread"] == "engine" && is_at_lock(stack)).filter(off_cpu)
}

fn lock_state(found: &Value) -> &Value {
    let mut states = found["states"].as_array().expect("states").iter();
    states.find(|state| state["thread"] == "engine" && state["state"] == "blocked:lock").expect("the state")
}

fn is_at_lock(stack: &Value) -> bool {
    names(stack).contains(&"take_registry_lock")
}

fn names(stack: &Value) -> Vec<&str> {
    stack["stack"].as_array().expect("a path").iter().filter_map(Value::as_str).collect()
}

/// One tick in ten is malformed and takes the lock.
fn record(held: &str) -> Run {
    let scenario = program("lock");
    let command = [scenario.to_str().expect("a UTF-8 path"), "-d", SECONDS, "-n", "10", "-k", held];
    // A diff is about sums: single waits would only make the stored run larger.
    let (status, recording) = Recorder::armed(&["--min-stall", "100ms"], &command).wait();
    assert!(status.success(), "{status}");
    let lines = recording.command_output();
    let events = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("a truth line"));
    let slow = events.filter(|event| event["event"] == "slow");
    Run { at_lock_ns: slow.map(|slow| off_cpu_ns(&slow)).sum(), recording }
}

fn off_cpu_ns(slow: &Value) -> f64 {
    let [start, end, cpu] =
        ["start_ns", "end_ns", "cpu_ns"].map(|name| slow[name].as_u64().expect("a number"));
    (end - start) as f64 - cpu as f64
}
