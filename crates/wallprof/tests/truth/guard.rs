// SPDX-License-Identifier: Apache-2.0
//! A guarded CPU: threads that run there are named, and senders of interrupts from another CPU.

use serde::Deserialize;

use wallprof_testkit::machine;
use wallprof_testkit::recorder::{Recorder, RecordingFile};
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::stored;

#[derive(Debug, Deserialize)]
struct Guard {
    guard: Vec<Row>,
    findings: Vec<Finding>,
}

#[derive(Debug, Deserialize)]
struct Row {
    cpu: u32,
    kind: String,
    what: Option<String>,
    tid: Option<u32>,
    comm: Option<String>,
    allowed: bool,
    count: u64,
    total_ns: u64,
    max_ns: u64,
}

#[derive(Debug, Deserialize)]
struct Finding {
    rule: String,
    title: String,
}

#[derive(Debug, Deserialize)]
struct Interval {
    start_ns: u64,
    end_ns: u64,
}

#[derive(Debug, Deserialize)]
struct Protected {
    count: u64,
}

fn guard_of(file: &RecordingFile) -> Guard {
    let text = file.read("report", &["--json"]);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

impl Guard {
    fn row(&self, kind: &str, comm: &str) -> &Row {
        let is_it = |row: &&Row| row.kind == kind && row.comm.as_deref() == Some(comm);
        self.guard.iter().find(is_it).unwrap_or_else(|| panic!("no {kind} of {comm}: {:#?}", self.guard))
    }
}

/// The part of a run that the neighbour's own clock cannot see: waking up and going to sleep.
const UNSEEN_A_RUN_NS: u64 = 200_000;

#[test]
fn a_neighbour_on_a_guarded_cpu_is_named() {
    let Some(_guard) = machine::reserve("a_neighbour_on_a_guarded_cpu_is_named") else { return };
    let mut scenario = Scenario::ready("preempted", &["-d", "2", "-c", "0"]);
    let pid = scenario.pid();
    let recorder = Recorder::armed(&["-p", &pid, "--guard-cpus", "0", "--allow", "work*"], &[]);
    let truth = scenario.run();
    let guard = guard_of(&recorder.stop());
    let (neighbour, worker) = (guard.row("task", "neighbour"), guard.row("task", "worker"));
    assert_eq!((neighbour.cpu, neighbour.allowed, worker.allowed), (0, false, true));
    assert_eq!(neighbour.tid, Some(truth.start.tid("neighbour")));
    let ran: Vec<Interval> = truth.all("ran");
    let ran_ns: u64 = ran.iter().map(|interval| interval.end_ns - interval.start_ns).sum();
    // Its own clock leaves out pauses between its intervals that are too short for a switch.
    let slack_ns = UNSEEN_A_RUN_NS * neighbour.count + ran_ns / 20;
    assert!(neighbour.total_ns.abs_diff(ran_ns) <= slack_ns, "{neighbour:?}, by its own clock {ran_ns} ns");
    let longest_ns = ran.iter().map(|interval| interval.end_ns - interval.start_ns).max().unwrap_or(0);
    assert!(neighbour.max_ns >= longest_ns / 2, "{neighbour:?}, the longest piece took {longest_ns} ns");
    assert!(guard.guard.iter().any(|row| row.kind == "timer"), "{:#?}", guard.guard);
    assert!(guard.guard.iter().any(|row| row.kind == "probe" && row.total_ns > 0), "{:#?}", guard.guard);
    assert!(guard.guard.iter().all(|row| row.cpu == 0), "{:#?}", guard.guard);
    assert!(guard.findings.iter().all(|finding| finding.rule != "guard-shared"), "{:#?}", guard.findings);
}

#[test]
fn two_allowed_threads_share_a_guarded_cpu() {
    let Some(_run) = stored::run("two_allowed_threads_share_a_guarded_cpu") else { return };
    let mut scenario = Scenario::ready("preempted", &["-d", "1", "-c", "0"]);
    let pid = scenario.pid();
    let allow = ["--guard-cpus", "0", "--allow", "worker", "--allow", "neighbour"];
    let recorder = Recorder::armed(&[&["-p", &pid][..], &allow].concat(), &[]);
    scenario.run();
    let guard = guard_of(&recorder.stop());
    let found: Vec<&Finding> = guard.findings.iter().filter(|found| found.rule == "guard-shared").collect();
    assert_eq!(found.len(), 1, "{:#?}", guard.findings);
    assert!(found[0].title.contains("worker") && found[0].title.contains("neighbour"), "{}", found[0].title);
}

#[test]
fn a_shootdown_on_a_guarded_cpu_names_its_sender() {
    let Some(_guard) = machine::reserve("a_shootdown_on_a_guarded_cpu_names_its_sender") else { return };
    if !machine::may_use_two_cpus() {
        return wallprof_testkit::skip(
            "a_shootdown_on_a_guarded_cpu_names_its_sender",
            "its threads may use one CPU",
        );
    }
    let mut scenario = Scenario::ready("shootdown", &["-d", "1", "-c", "0"]);
    let pid = scenario.pid();
    let recorder = Recorder::armed(&["-p", &pid, "--guard-cpus", "0", "--allow", "worker"], &[]);
    let truth = scenario.run();
    let guard = guard_of(&recorder.stop());
    // It wakes the worker by interrupts, too, and others send theirs.
    let tid = Some(truth.start.tid("mapper"));
    let is_flush = |row: &&Row| row.tid == tid && row.what.as_deref() == Some("flush_tlb_func");
    let sent = guard.guard.iter().find(is_flush);
    let sent = sent.unwrap_or_else(|| panic!("no flush of {tid:?}: {:#?}", guard.guard));
    assert_eq!((sent.kind.as_str(), sent.comm.as_deref()), ("ipi", Some("mapper")));
    let protected: u64 = truth.all::<Protected>("protected").iter().map(|line| line.count).sum();
    // While the worker is off its CPU, no interrupt need be sent, and most are sent twice at most.
    assert!(sent.count > 0 && sent.count <= protected * 2 + 2, "{sent:?}, protected {protected} times");
    // The mapper waits until each is handled, so no two of them arrive as one.
    let is_call = |row: &&Row| {
        row.kind == "vector" && row.what.as_deref().is_some_and(|what| what.starts_with("call_"))
    };
    let handled: u64 = guard.guard.iter().filter(is_call).map(|row| row.count).sum();
    assert!(handled * 10 >= sent.count * 9, "{sent:?}, but {handled} handled");
}
