// SPDX-License-Identifier: Apache-2.0
//! `wallprof stacks` on programs that say themselves who waits for whom.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::Value;

use wallprof_testkit::machine;
use wallprof_testkit::program::{refused, run};
use wallprof_testkit::scenario::{Scenario, Truth};

/// An interval of the scenario's clock starts before the switch, by the way into the kernel on a busy machine.
const EDGE_NS: u64 = 50_000_000;

#[derive(Debug, Deserialize)]
struct Stuck {
    tid: u32,
    wants: String,
    owner: u32,
    since_ns: u64,
}

fn threads(arguments: &[&str]) -> HashMap<u32, Value> {
    let output = run(&[&["stacks", "--json"], arguments].concat());
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let threads = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object"));
    threads.map(|thread| (thread["tid"].as_u64().expect("a tid") as u32, thread)).collect()
}

fn functions(stack: &Value) -> Vec<&str> {
    stack.as_array().expect("a stack").iter().filter_map(|frame| frame["symbol"].as_str()).collect()
}

fn text(arguments: &[&str]) -> String {
    String::from_utf8(run(arguments).stdout).expect("UTF-8")
}

fn epoch_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
    now.as_nanos() as u64
}

fn switches(pid: u32, tid: u32) -> Vec<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).expect("a thread");
    status.lines().filter(|line| line.contains("ctxt_switches")).map(str::to_owned).collect()
}

#[test]
fn a_deadlock_is_seen_without_a_recording() {
    let Some(_guard) = machine::reserve("a_deadlock_is_seen_without_a_recording") else { return };
    let mut scenario = Scenario::ready("deadlock", &[]);
    let truth: Truth = scenario.run();
    let pid = scenario.pid();
    let stuck = truth.all::<Stuck>("stuck");
    let before: Vec<_> = stuck.iter().map(|stuck| switches(scenario.start.pid, stuck.tid)).collect();
    let earliest = epoch_ns();
    let seen = threads(&["-p", &pid]);
    let latest = epoch_ns();
    assert_eq!(seen.len(), scenario.start.threads.len());
    for stuck in &stuck {
        let thread = &seen[&stuck.tid];
        assert_eq!((&thread["state"], &thread["reason"]), (&"blocked".into(), &"lock".into()), "{thread:#}");
        assert_eq!((&thread["complete"], &thread["moved"]), (&true.into(), &false.into()), "{thread:#}");
        assert!(functions(&thread["user_stack"]).contains(&"take_second_lock"), "{thread:#}");
        let kernel = functions(&thread["kernel_stack"]);
        assert!(kernel.iter().any(|name| name.contains("futex")), "{thread:#}");
        let lock = &thread["lock"];
        assert_eq!(lock["address"].as_str(), Some(stuck.wants.as_str()));
        assert_eq!(lock["owner"]["tid"].as_u64(), Some(stuck.owner.into()));
        assert_eq!((&lock["owner"]["state"], &lock["owner"]["reason"]), (&"blocked".into(), &"lock".into()));
        assert!(functions(&lock["owner"]["user_stack"]).contains(&"take_second_lock"), "{lock:#}");
        // Exact, or a lower bound where interrupts or the hypervisor took part of its last run.
        let since = truth.epoch_from_mono(stuck.since_ns);
        let since_ns = thread["since_ns"].as_u64();
        let at_least_ns = since_ns.or(thread["since_at_least_ns"].as_u64()).expect("a time");
        assert!(at_least_ns <= latest - since, "{thread:#} {stuck:?} {latest}");
        if let Some(since_ns) = since_ns {
            assert!(since_ns + EDGE_NS >= earliest - since, "{thread:#} {stuck:?} {earliest}");
        }
    }
    let after: Vec<_> = stuck.iter().map(|stuck| switches(scenario.start.pid, stuck.tid)).collect();
    assert_eq!(before, after, "no thread was stopped or woken");
    let tree = text(&["stacks", "--waits-for", "-p", &pid]);
    for stuck in &stuck {
        assert!(tree.contains(&format!("[deadlock: waits for {}]", stuck.owner)), "{tree}");
    }
    let groups = text(&["stacks", "-p", &pid]);
    assert!(groups.contains("deadlock: ") && groups.contains(" wait for each other in a circle"), "{groups}");
    // One thread alone still has its holder, with the holder's stack.
    let one = threads(&["-t", &stuck[0].tid.to_string()]);
    assert_eq!(one.len(), 1);
    let owner = &one[&stuck[0].tid]["lock"]["owner"];
    assert!(functions(&owner["user_stack"]).contains(&"take_second_lock"), "{owner:#}");
}

#[test]
fn a_thread_that_runs_has_the_stack_of_a_sample_or_none() {
    let Some(_guard) = machine::reserve("a_thread_that_runs_has_the_stack_of_a_sample_or_none") else {
        return;
    };
    let mut scenario = Scenario::ready("spin", &["-d", "60"]);
    scenario.open_gate();
    let spinners: Vec<u32> = scenario.start.workers().iter().map(|thread| thread.tid).collect();
    let seen = threads(&["-p", &scenario.pid()]);
    for tid in spinners {
        let thread = &seen[&tid];
        assert!(thread["reason"].is_null() || thread["state"] == "blocked", "{thread:#}");
        if thread["state"] == "runnable" {
            assert!(!functions(&thread["user_stack"]).is_empty(), "it has saved registers: {thread:#}");
        }
    }
}

#[test]
fn targets_that_are_not_there_are_named() {
    if !machine::may_record("targets_that_are_not_there_are_named") {
        return;
    }
    let sentence = refused(&["stacks", "--name", "no-such-thread"], 4);
    assert!(sentence.contains("no process or thread is named no-such-thread now"), "{sentence}");
    assert!(refused(&["stacks", "-p", "2147483647"], 1).contains("there is no process 2147483647"));
    assert!(refused(&["stacks"], 2).contains("no target was given"));
}
