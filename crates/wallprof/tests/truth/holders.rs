// SPDX-License-Identifier: Apache-2.0
//! What the holder of a lock does while others wait for it, and whom the waiting costs.

use serde::Deserialize;
use serde_json::Value;

use wallprof_testkit::contract::{Owner, Stall};
use wallprof_testkit::program::run;
use wallprof_testkit::recorder::{Recorder, RecordingFile};
use wallprof_testkit::scenario::{Scenario, Truth};
use wallprof_testkit::{excuse, machine, stored};

const FILE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/truth-holders");

/// What the holder does, its function for that, and the state that it has meanwhile.
const KINDS: [(&str, &str, &str); 5] = [
    ("compute", "compute", "running"),
    ("sleep", "sleep_a_while", "blocked:sleep"),
    ("disk", "write_journal", "blocked:disk"),
    ("fault", "read_index", "fault:major"),
    ("preempted", "compute_for_long", "preempted"),
];

/// Holdings in which the holder waited for the disk for a millisecond or more. In one or two of them, no other
/// thread may have waited for the lock.
const LEAST_BLOCKED: u64 = 5;

#[derive(Debug, Deserialize)]
struct Total {
    count: u64,
    total_ns: u64,
}

fn record(kind: &str) -> (Truth, RecordingFile) {
    record_with(kind, "100")
}

/// With this percentage of each holding.
fn record_with(kind: &str, percent: &str) -> (Truth, RecordingFile) {
    let mut scenario = Scenario::ready("holders", &["-d", "1", "-w", kind, "-f", FILE, "-x", percent]);
    let recorder = Recorder::armed(&["-p", &scenario.pid()], &[]);
    let truth = scenario.run();
    (truth, recorder.stop())
}

fn is_for_the_housekeepers_lock(stall: &&Stall) -> bool {
    let owner = stall.lock.as_ref().and_then(|lock| lock.owner.as_ref());
    stall.comm == "engine" && owner.is_some_and(|owner| owner.comm == "housekeeper")
}

fn owner(stall: &Stall) -> &Owner {
    stall.lock.as_ref().and_then(|lock| lock.owner.as_ref()).expect("an owner")
}

#[test]
fn holder_is_in_the_function_that_holds_the_lock() {
    let test = "holder_is_in_the_function_that_holds_the_lock";
    let Some(_run) = stored::run(test) else { return };
    for (kind, function, state) in KINDS {
        let (truth, recording) = record(kind);
        let stalls = recording.stalls(&["--all"]);
        let waits: Vec<&Stall> = stalls.iter().filter(is_for_the_housekeepers_lock).collect();
        // How often the lock is waited for depends on the disk's speed, in two of the kinds.
        let waited = truth.one::<Total>("waited");
        assert!(
            waits.len() as u64 * 2 >= waited.count,
            "{kind}: {} of {waited:?} have an owner",
            waits.len()
        );
        if waits.len() < 10 {
            excuse(test, kind, &format!("{} waits are too few to judge by", waits.len()));
            continue;
        }
        let holds = waits.iter().filter(|wait| owner(wait).user_stack_has("sweep_registry")).count();
        assert!(holds * 20 >= waits.len() * 19, "{kind}: {holds} of {} are in the lock", waits.len());
        // A stack that is not that of the release is of the function inside.
        let is_inside = |wait: &&&Stall| matches!(owner(wait).from.as_deref(), Some("wait" | "sample"));
        let inside: Vec<&&Stall> = waits.iter().filter(is_inside).collect();
        let named = inside.iter().filter(|wait| owner(wait).user_stack_has(function)).count();
        // The holder can lose its CPU just before it calls the function: one wait, where there are few.
        let elsewhere = inside.len() - named;
        assert!(
            elsewhere * 20 <= inside.len().max(20),
            "{kind}: {elsewhere} of {} are not in {function}",
            inside.len()
        );
        let blocked = truth.one::<Total>("blocked");
        if matches!(kind, "disk" | "fault") && blocked.count < LEAST_BLOCKED {
            excuse(test, kind, &format!("the disk was too fast: {blocked:?}"));
            continue;
        }
        let in_state = waits.iter().filter(|wait| owner(wait).state.as_deref() == Some(state)).count();
        assert!(in_state > 0, "{kind}: none of {} is {state}: {:#?}", waits.len(), owner(waits[0]));
        let findings = recording.report().findings;
        let first = findings.iter().find(|found| found.title.contains("waited for a lock"));
        let first = first.unwrap_or_else(|| panic!("{kind}: a finding about the lock in {findings:#?}"));
        assert!(first.title.contains("housekeeper"), "{kind}: {}", first.title);
        assert!(first.title.contains(" in sweep_registry"), "{kind}: {}", first.title);
    }
    if !stored::is_replayed() {
        std::fs::remove_file(FILE).expect("the scenario's file");
    }
}

/// Kind, the thread that waits, the owner of its lock, and the function in which that one holds it.
const QUEUES: [(&str, &str, &str, &str); 4] = [
    ("convoy", "worker", "worker", "update_book"),
    ("chain", "front", "second", "take_orders"),
    ("chain", "second", "third", "take_prices"),
    ("chain", "third", "fourth", "hold_prices"),
];

#[test]
fn holders_in_a_queue_and_along_a_chain_are_in_the_function_that_holds_the_lock() {
    let test = "holders_in_a_queue_and_along_a_chain_are_in_the_function_that_holds_the_lock";
    let Some(_run) = stored::run(test) else { return };
    let [convoy, chain] = ["convoy", "chain"].map(|kind| record(kind).1.stalls(&["--all"]));
    for (kind, waiter, holder, function) in QUEUES {
        let stalls = if kind == "convoy" { &convoy } else { &chain };
        let is_wait = |stall: &&Stall| {
            let owner = stall.lock.as_ref().and_then(|lock| lock.owner.as_ref());
            stall.comm == waiter && owner.is_some_and(|owner| owner.comm == holder && owner.from.is_some())
        };
        let waits: Vec<&Stall> = stalls.iter().filter(is_wait).collect();
        assert!(waits.len() >= 10, "{kind}: {} waits of {waiter} have an owner with a stack", waits.len());
        let holds = waits.iter().filter(|wait| owner(wait).user_stack_has(function)).count();
        assert!(
            holds * 20 >= waits.len() * 19,
            "{kind}: {holder} is in {function} in {holds} of {} waits",
            waits.len()
        );
    }
}

#[test]
fn waiting_along_a_chain_is_charged_to_its_last_thread() {
    let Some(_run) = stored::run("waiting_along_a_chain_is_charged_to_its_last_thread") else {
        return;
    };
    let (truth, recording) = record("chain");
    let held = truth.one::<Total>("held");
    assert!(held.count >= 20, "{held:?}: too few to judge by");
    let path = recording.path();
    let halved = "lock:hold_prices=-50%";
    let path = path.to_str().expect("a UTF-8 path");
    let output = run(&["blame", path, "--thread", "front", "--json", "--what-if", halved]);
    let blame: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    // Where others had the CPU of the last thread, these are the culprits: that is part of its holding.
    let is_last = |edge: &&Value| {
        edge["culprit"]["thread"] == "fourth" || edge["last"]["thread"].as_str() == Some("fourth")
    };
    let edges = blame["edges"].as_array().expect("edges");
    let charged_ns: u64 = edges.iter().filter(is_last).filter_map(|edge| edge["ns"].as_u64()).sum();
    let off = charged_ns.abs_diff(held.total_ns);
    assert!(off * 20 <= held.total_ns, "{charged_ns} of {} ns: {edges:#?}", held.total_ns);
    let waiting = &blame["what_if"]["waiting_ns"];
    let ns = |name: &str| waiting[name].as_u64().expect("ns");
    assert!(ns("low") <= ns("after") && ns("after") <= ns("high"), "{waiting:#?}");
    assert!(ns("high") < ns("before"), "it waits for this lock alone: {waiting:#?}");
}

/// Waiting of `waiter` for each holding, and the mean of the holdings, by the scenario's clock; and the share of
/// the waiting that was for a CPU, by the recording.
struct Costs {
    wait_ns: f64,
    held_ns: f64,
    without_cpu: f64,
}

impl Costs {
    fn of(truth: &Truth, recording: &RecordingFile, waiter: &str) -> Self {
        let (waited, held) = (truth.one::<Total>("waited"), truth.one::<Total>("held"));
        let stalls = recording.stalls(&["--all", "--thread", waiter]);
        let waits = stalls.iter().filter(|stall| stall.reason == "lock");
        let (ns, runnable_ns) = waits
            .fold((0, 0), |(ns, runnable), stall| (ns + stall.duration_ns, runnable + stall.runnable_ns));
        Costs {
            wait_ns: waited.total_ns as f64 / held.count.max(1) as f64,
            held_ns: held.total_ns as f64 / held.count.max(1) as f64,
            without_cpu: runnable_ns as f64 / ns.max(1) as f64,
        }
    }

    /// The planted change is all that differs.
    fn is_as_planted(&self, held_ns: f64) -> bool {
        (self.held_ns - held_ns).abs() < held_ns / 10.0 && self.without_cpu < 0.05
    }
}

/// Kind, the change, who waits, and how long the lock is held.
const CHANGES: [(&str, &str, &str, f64); 3] = [
    ("compute", "lock:sweep_registry=-50%", "engine", 4e6),
    ("sleep", "lock:sweep_registry=-50%", "engine", 10e6),
    ("chain", "lock:hold_prices=-50%", "front", 5e6),
];

#[test]
fn what_if_predicts_the_effect_of_the_real_change() {
    let test = "what_if_predicts_the_effect_of_the_real_change";
    let Some(_run) = stored::run(test) else { return };
    // On one CPU the waiter asks for the lock only where the holder's time slice ends within the lock, which is
    // hardly ever so in the shorter one.
    if !machine::may_use_two_cpus() {
        return wallprof_testkit::skip(test, "its threads may use one CPU");
    }
    for (kind, change, waiter, held_ns) in CHANGES {
        let (truth, recording) = record(kind);
        let whole = Costs::of(&truth, &recording, waiter);
        let path = recording.path();
        let path = path.to_str().expect("a UTF-8 path");
        let output = run(&["blame", path, "--thread", waiter, "--json", "--what-if", change]);
        let blame: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let (truth, recording) = record_with(kind, "50");
        let half = Costs::of(&truth, &recording, waiter);
        if !whole.is_as_planted(held_ns) || !half.is_as_planted(held_ns / 2.0) {
            let why = "the machine was busy: holdings of";
            excuse(test, kind, &format!("{why} {} and {} ns", whole.held_ns, half.held_ns));
            continue;
        }
        let ns = |name: &str| blame["what_if"]["waiting_ns"][name].as_f64().expect("ns");
        let part = |name: &str| ns(name) / ns("before");
        let real = half.wait_ns / whole.wait_ns;
        let off = (part("after") - real).abs();
        let is_near = off <= 0.2 * (1.0 - real);
        let is_inside = part("low") <= real && real <= part("high");
        let is_narrow = part("high") - part("low") <= 0.6 * part("after");
        assert!(
            is_near || (is_inside && is_narrow),
            "{kind}: {:.3} ({:.3} to {:.3}) of the waiting was to be left, and {real:.3} was",
            part("after"),
            part("low"),
            part("high")
        );
    }
}
