// SPDX-License-Identifier: Apache-2.0
//! Identity of threads while threads and processes start, rename themselves, exec and end.

use serde::Deserialize;
use wallprof_testkit::contract::{Report, Thread};
use wallprof_testkit::machine;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Truth;
use wallprof_testkit::scenario::program;

use crate::ledger::assert_adds_up;

/// A thread's running time before its first and after its last reading of the clock: its creation, its exit,
/// for a process also copying and freeing its memory.
const AROUND_LIFE_NS: u64 = 8_000_000;

#[derive(Debug, Deserialize)]
struct Life {
    pid: u32,
    tid: u32,
    name: String,
    start_ns: u64,
    end_ns: u64,
    cpu_ns: u64,
}

fn record() -> (Report, Vec<Life>, String) {
    let lifecycle = program("lifecycle");
    let lifecycle = lifecycle.to_str().expect("a UTF-8 path");
    let (status, recording) = Recorder::armed(&[], &[lifecycle]).wait();
    assert!(status.success());
    let truth = Truth::from_output(&recording.command_output());
    let mut lives: Vec<Life> = truth.all("life");
    for life in &mut lives {
        life.start_ns = truth.epoch_from_mono(life.start_ns);
        life.end_ns = truth.epoch_from_mono(life.end_ns);
    }
    (recording.report(), lives, recording.read("report", &[]))
}

/// A pid that was used twice has two threads in the report. The one that lived at that time counts.
fn threads_of<'a>(report: &'a Report, life: &Life) -> Vec<&'a Thread> {
    let lived_then = |thread: &&Thread| thread.start_ns < life.end_ns && life.start_ns < thread.end_ns;
    report.threads.iter().filter(|thread| thread.tid == life.tid).filter(lived_then).collect()
}

fn assert_is_reported(report: &Report, life: &Life) {
    let threads = threads_of(report, life);
    let [thread] = threads[..] else { panic!("{life:?} is one thread, not {threads:#?}") };
    assert_eq!((thread.pid, thread.comm.as_str()), (life.pid, life.name.as_str()));
    assert_adds_up(thread);
    let most_ns = life.cpu_ns + life.cpu_ns / 100 + AROUND_LIFE_NS;
    assert!((life.cpu_ns * 99 / 100..=most_ns).contains(&thread.on_cpu_ns), "{life:?}: {thread:#?}");
    let life_ns = life.end_ns - life.start_ns;
    assert!(thread.wall_ns >= life_ns * 99 / 100, "{life:?}: {thread:#?}");
}

#[test]
fn every_thread_is_itself() {
    let Some(_guard) = machine::reserve("every_thread_is_itself") else { return };
    let (report, lives, text) = record();
    assert!(lives.iter().filter(|life| life.name == "brief").count() == 20);
    for name in ["butterfly", "child", "grandchild", "first"] {
        assert!(lives.iter().any(|life| life.name == name), "{name} logged its life");
    }
    // exec gives one life the identity of another: those are compared below.
    for life in lives.iter().filter(|life| !["swapper", "reborn"].contains(&life.name.as_str())) {
        assert_is_reported(&report, life);
    }
    assert_exec_keeps_the_process(&report, &lives);
    assert!(report.threads.iter().all(|thread| thread.tid != 0), "the idle task is no thread");
    let control = text.chars().find(|character| character.is_control() && *character != '\n');
    assert_eq!(control, None, "a hostile name reaches the terminal in {text:?}");
}

/// After exec by another thread than the first, that thread continues under the process' pid, and the first
/// one is gone.
fn assert_exec_keeps_the_process(report: &Report, lives: &[Life]) {
    let reborn = lives.iter().find(|life| life.name == "reborn").expect("a life after exec");
    let is_reborn = |thread: &&Thread| thread.tid == reborn.tid && thread.comm == "reborn";
    let threads: Vec<_> = report.threads.iter().filter(is_reborn).collect();
    let [thread] = threads[..] else { panic!("{reborn:?} is one thread, not {threads:#?}") };
    assert_eq!((thread.pid, thread.process.as_str()), (reborn.pid, "reborn"));
    assert_adds_up(thread);
    // Its CPU clock continues through exec, and so does its ledger.
    let most_ns = reborn.cpu_ns + reborn.cpu_ns / 100 + AROUND_LIFE_NS;
    assert!((reborn.cpu_ns * 99 / 100..=most_ns).contains(&thread.on_cpu_ns), "{reborn:?}: {thread:#?}");
    let first = report.threads.iter().find(|thread| thread.tid == reborn.tid && thread.comm != "reborn");
    assert!(first.is_none_or(|first| first.end_ns <= reborn.start_ns), "the first thread ended: {first:#?}");
}

/// A process, killed when dropped.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Records a scenario that is there already, when `is_ready` says so of its pid: its only thread `worker` sleeps in
/// doze, called by work, and all of these sleeps have both.
fn assert_stacks_of(scenario: &str, is_ready: impl Fn(u32) -> bool) {
    let child = Child(std::process::Command::new(program(scenario)).spawn().expect("the scenario starts"));
    let pid = child.0.id();
    while !is_ready(pid) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let recorder = Recorder::armed(&["-p", &pid.to_string(), "--min-stall", "10ms"], &[]);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let recording = recorder.stop();
    let threads: Vec<String> = recording.report().threads.into_iter().map(|thread| thread.comm).collect();
    assert_eq!(threads, ["worker"]);
    let stalls = recording.stalls(&["--all", "--thread", "worker"]);
    assert!(stalls.len() > 10, "{} sleeps", stalls.len());
    let whole = stalls.iter().filter(|stall| {
        let frames = stall.user_stack.iter().flatten();
        frames.filter(|frame| matches!(frame.symbol.as_deref(), Some("doze" | "work"))).count() == 2
    });
    assert_eq!(whole.count(), stalls.len(), "sleeps with the functions of the scenario: {stalls:#?}");
}

/// Of a process whose first thread has ended `/proc/PID` shows neither mappings nor the program.
#[test]
fn a_process_without_its_first_thread_has_stacks_and_no_dead_thread() {
    let test = "a_process_without_its_first_thread_has_stacks_and_no_dead_thread";
    let Some(_guard) = machine::reserve(test) else { return };
    assert_stacks_of("headless", |pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_err());
}

#[test]
fn text_that_was_moved_to_anonymous_memory_has_stacks() {
    let Some(_guard) = machine::reserve("text_that_was_moved_to_anonymous_memory_has_stacks") else { return };
    let comm = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    assert_stacks_of("moved", |pid| comm(pid) == "worker\n");
}
