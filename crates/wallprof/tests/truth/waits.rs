// SPDX-License-Identifier: Apache-2.0
//! What a wait means: for a lock, whatever it is made of, or nothing that anybody need know of.
//!
//! The scenarios log how long their threads waited. For each lock the first finding is about those threads, with
//! most of that time. Threads that wait for work, for a time or for each other have no findings. Both hold
//! without symbols and frame pointers, too: both builds run at the same time, in one recording. They are two
//! programs, and nothing that is learned about one says anything about the other.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use wallprof_testkit::contract::{Cause, Finding, Report, Stall};
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::{Scenario, Truth};
use wallprof_testkit::stored;
use wallprof_testkit::stripped::stripped;

const SECONDS: &str = "1.5";

/// Waits below `--min-stall`, and those that ended in a longer wait for a CPU, are no waits for a lock to the
/// recorder.
const LEAST_PERCENT: u64 = 70;
/// Both clocks see the same waits. A stall also contains the way into the kernel and back, and the mutex that
/// guards the lock's own state.
const MOST_PERCENT: u64 = 105;

/// What `record` keeps by itself.
const MIN_STALL_NS: u64 = 50_000;

/// Signals that wait for less in all are those of a libc that never waits.
const LEAST_SIGNALLED_NS: u64 = 50_000_000;

/// How long threads waited by their own clock.
#[derive(Debug, Deserialize)]
struct Waited {
    count: u64,
    total_ns: u64,
}

/// How often a wait in slices was not continued at once, or not with the lock still held by the same thread.
#[derive(Debug, Deserialize)]
struct Breaks {
    count: u64,
}

/// One run of a scenario and what was recorded of it.
struct Run {
    what: String,
    truth: Truth,
    /// Those that are about the scenario's threads.
    findings: Vec<Finding>,
    /// The ids of its threads by tid.
    threads: BTreeMap<u32, u64>,
    /// A wait for a lock is never voluntary. Printing all the others would take most of a test's time.
    stalls: Vec<Stall>,
    /// CPU time of the other build, which is in the same recording.
    twins_ns: u64,
}

/// The runs of these programs, at the same time.
fn record(programs: &[&str], kind: &str) -> Vec<Run> {
    let ready = |program: &&str| Scenario::ready(program, &["-d", SECONDS, "-w", kind]);
    let mut scenarios: Vec<Scenario> = programs.iter().map(ready).collect();
    let recorded = scenarios.iter().map(recorded_processes).collect::<Vec<_>>().join(",");
    let recorder = Recorder::armed(&["-p", &recorded], &[]);
    scenarios.iter_mut().for_each(Scenario::open_gate);
    let truths: Vec<Truth> = scenarios.iter_mut().map(Scenario::finish).collect();
    let cpu_ns = |truth: &Truth| -> u64 { truth.lives().iter().map(|life| life.cpu_ns).sum() };
    let all_ns: u64 = truths.iter().map(cpu_ns).sum();
    let recording = recorder.stop();
    let (report, stalls) = (recording.report(), recording.stalls(&[]));
    let run = |(program, truth): (&&str, Truth)| {
        let twins_ns = all_ns - cpu_ns(&truth);
        Run::new(format!("{program} -w {kind}"), truth, &report, &stalls, twins_ns)
    };
    programs.iter().zip(truths).map(run).collect()
}

/// The scenario's process; of one with backends, these without their clients.
fn recorded_processes(scenario: &Scenario) -> String {
    let threads = scenario.start.workers();
    if threads.iter().all(|thread| thread.name != "backend") {
        return scenario.pid();
    }
    threads.iter().map(|thread| thread.tid.to_string()).collect::<Vec<_>>().join(",")
}

/// Both builds of a scenario: as a developer has it, and as a distribution ships it.
fn each_build(program: &str, kind: &str, assert_holds: impl Fn(&Run)) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let shipped = stripped(&format!("{program}-bare"), folder.path());
    record(&[program, shipped.to_str().expect("a UTF-8 path")], kind).iter().for_each(assert_holds);
}

impl Run {
    fn new(what: String, truth: Truth, report: &Report, stalls: &[Stall], twins_ns: u64) -> Self {
        let tids: BTreeSet<u32> = truth.start.threads.iter().map(|thread| thread.tid).collect();
        let own = report.threads.iter().filter(|thread| tids.contains(&thread.tid));
        let threads: BTreeMap<u32, u64> = own.map(|thread| (thread.tid, thread.id)).collect();
        let ids: BTreeSet<u64> = threads.values().copied().collect();
        let is_own = |finding: &&Finding| finding.threads.iter().any(|thread| ids.contains(thread));
        Run {
            what,
            findings: report.findings.iter().filter(is_own).cloned().collect(),
            stalls: stalls.iter().filter(|stall| ids.contains(&stall.thread)).cloned().collect(),
            twins_ns,
            truth,
            threads,
        }
    }

    /// The ids of the threads that contend for the lock.
    fn contenders(&self) -> BTreeSet<u64> {
        let workers = self.truth.start.workers().iter();
        workers.filter_map(|thread| self.threads.get(&thread.tid).copied()).collect()
    }

    /// Whether the other build may explain a finding. It is recorded, so it is no cause `machine`. It keeps a
    /// thread waiting for no longer than it runs, also by leaving one CPU to it and its siblings.
    fn is_the_twins_doing(&self, finding: &Finding) -> bool {
        match finding.rule.as_str() {
            // A thread that loses its CPU while it has a mutex keeps others waiting for that; a waiter that
            // was woken and has no CPU, those that signal next.
            "lock-wait" | "wake-chain" | "holder-preempted" if self.are_for_a_mutex(finding) => {
                finding.total_ns <= self.twins_ns
            }
            "preempted" | "run-queue" | "cpu-saturated" => {
                finding.total_ns <= self.twins_ns * finding.threads.len() as u64
            }
            _ => false,
        }
    }

    /// Whether the kernel's own word for the waits of a finding is a lock, or they are inside of glibc's
    /// condition variables.
    fn are_for_a_mutex(&self, finding: &Finding) -> bool {
        let mut stalls = self.stalls.iter().filter(|stall| finding.stalls.contains(&stall.id));
        stalls.all(|stall| stall.reason == "lock" || is_for_woken_waiters(stall))
    }

    /// The findings that neither the machine nor the other build explains, in their order.
    fn own_findings(&self) -> impl Iterator<Item = &Finding> {
        let of_program = self.findings.iter().filter(|finding| finding.cause == Cause::Program);
        of_program.filter(|finding| !self.is_the_twins_doing(finding))
    }

    /// Waits for a lock that is no mutex.
    fn lock_stalls(&self) -> impl Iterator<Item = &Stall> {
        let is_lock = |stall: &&Stall| stall.meaning.as_ref().is_some_and(|meaning| meaning.name == "lock");
        self.stalls.iter().filter(|stall| stall.reason != "lock").filter(is_lock)
    }

    fn assert_covers_the_truth(&self, seen: &str, total_ns: u64) {
        let truth_ns = self.truth.one::<Waited>("waited").total_ns;
        let percent = total_ns * 100 / truth_ns;
        assert!(
            (LEAST_PERCENT..=MOST_PERCENT).contains(&percent),
            "{}: {seen} have {total_ns} ns, {percent} % of the {truth_ns} ns of the truth: {:#?}",
            self.what,
            self.findings
        );
    }

    fn assert_is_a_wait_for_a_lock(&self, stall: &Stall) {
        let meaning = stall.meaning.as_ref().expect("it has one");
        assert_eq!(
            (meaning.source.as_str(), &meaning.software, meaning.idle),
            ("wakers", &None, false),
            "{stall:#?}"
        );
        assert!(!stall.voluntary, "{}: {stall:#?}", self.what);
    }
}

fn is_for_woken_waiters(stall: &Stall) -> bool {
    stall.meaning.as_ref().is_some_and(|meaning| meaning.name == "woken waiters")
}

// --- locks ---

/// The rows of each wait, oldest first.
fn waits<'a>(stalls: impl Iterator<Item = &'a Stall>) -> BTreeMap<u64, Vec<&'a Stall>> {
    let mut waits = BTreeMap::<u64, Vec<&Stall>>::new();
    stalls.for_each(|stall| waits.entry(stall.wait_id).or_default().push(stall));
    waits
}

fn assert_is_one_wait(slices: &[&Stall]) {
    for pair in slices.windows(2) {
        assert_eq!(pair[0].thread, pair[1].thread, "{slices:#?}");
        assert!(pair[0].end_ns <= pair[1].start_ns, "{slices:#?}");
    }
}

fn assert_stalls_are_for_the_lock(run: &Run, contenders: &BTreeSet<u64>) {
    for stall in run.lock_stalls() {
        run.assert_is_a_wait_for_a_lock(stall);
        assert!(contenders.contains(&stall.thread), "{}: {stall:#?}", run.what);
    }
    waits(run.lock_stalls()).values().for_each(|slices| assert_is_one_wait(slices));
    run.assert_covers_the_truth("stalls", run.lock_stalls().map(|stall| stall.duration_ns).sum());
}

fn assert_is_the_first_finding(run: &Run, contenders: &BTreeSet<u64>) {
    let first = run.own_findings().next();
    let first = first.unwrap_or_else(|| panic!("{}: {:#?}", run.what, run.findings));
    assert_eq!(first.rule, "lock-wait", "{}: {:#?}", run.what, run.findings);
    assert_eq!(
        &first.threads.iter().copied().collect::<BTreeSet<_>>(),
        contenders,
        "{}: {first:#?}",
        run.what
    );
    run.assert_covers_the_truth("the first finding's waits", first.total_ns);
    let counted = waits(run.stalls.iter().filter(|stall| first.stalls.contains(&stall.id))).len() as u64;
    assert!(counted <= first.count, "{}: {counted} waits in {first:#?}", run.what);
    let waits = waits(run.lock_stalls()).len() as u64;
    assert!(first.count <= waits, "{}: slices counted as waits, {waits}: {first:#?}", run.what);
}

fn assert_is_a_lock(run: &Run) {
    let contenders = run.contenders();
    assert_stalls_are_for_the_lock(run, &contenders);
    assert_is_the_first_finding(run, &contenders);
}

#[test]
fn a_condition_variable_as_a_lock() {
    let Some(_run) = stored::run("a_condition_variable_as_a_lock") else { return };
    each_build("locks", "condvar", assert_is_a_lock);
}

#[test]
fn a_semaphore_as_a_lock() {
    let Some(_run) = stored::run("a_semaphore_as_a_lock") else { return };
    each_build("locks", "semaphore", assert_is_a_lock);
}

#[test]
fn a_token_in_a_pipe_as_a_lock() {
    let Some(_run) = stored::run("a_token_in_a_pipe_as_a_lock") else { return };
    each_build("locks", "pipe", assert_is_a_lock);
}

#[test]
fn a_token_in_an_eventfd_as_a_lock() {
    let Some(_run) = stored::run("a_token_in_an_eventfd_as_a_lock") else { return };
    each_build("locks", "eventfd", assert_is_a_lock);
}

#[test]
fn backends_that_poll_for_a_lock() {
    let Some(_run) = stored::run("backends_that_poll_for_a_lock") else { return };
    each_build("backends", "poll", assert_is_a_lock);
}

#[test]
fn backends_with_a_semaphore_each_for_a_lock() {
    let Some(_run) = stored::run("backends_with_a_semaphore_each_for_a_lock") else { return };
    each_build("backends", "semaphore", assert_is_a_lock);
}

/// Most waits take several slices: the lock is held for longer than one.
#[test]
fn slices_of_a_wait_for_a_lock_are_one_wait() {
    let Some(_run) = stored::run("slices_of_a_wait_for_a_lock_are_one_wait") else { return };
    each_build("locks", "slices", |run| {
        assert_is_a_lock(run);
        let waits = waits(run.lock_stalls());
        let sliced = waits.values().filter(|slices| slices.len() > 1).count();
        assert!(sliced * 2 > waits.len(), "{}: {sliced} of {} waits in slices", run.what, waits.len());
        let acquisitions = run.truth.one::<Waited>("waited").count;
        let breaks = run.truth.one::<Breaks>("breaks").count;
        assert!(
            waits.len() as u64 <= acquisitions + breaks,
            "{}: {} waits of {acquisitions} acquisitions, {breaks} breaks",
            run.what,
            waits.len()
        );
    });
}

// --- threads that wait as they should ---

fn assert_nothing_is_wrong(kind: &str) {
    each_build("workers", kind, |run| {
        let found: Vec<&Finding> = run.own_findings().collect();
        let twins_ns = run.twins_ns;
        assert!(found.is_empty(), "{}, while the other build ran for {twins_ns} ns: {found:#?}", run.what);
        let locks: Vec<&Stall> = run.lock_stalls().take(3).collect();
        assert!(locks.is_empty(), "{}: {} waits for a lock: {locks:#?}", run.what, run.lock_stalls().count());
    });
}

#[test]
fn a_queue_is_no_lock() {
    let Some(_run) = stored::run("a_queue_is_no_lock") else { return };
    assert_nothing_is_wrong("queue");
}

#[test]
fn a_thread_pool_is_no_lock() {
    let Some(_run) = stored::run("a_thread_pool_is_no_lock") else { return };
    assert_nothing_is_wrong("pool");
}

#[test]
fn idle_workers_that_wake_each_other_wait_for_no_lock() {
    let Some(_run) = stored::run("idle_workers_that_wake_each_other_wait_for_no_lock") else { return };
    assert_nothing_is_wrong("stealing");
}

#[test]
fn a_barrier_is_no_lock() {
    let Some(_run) = stored::run("a_barrier_is_no_lock") else { return };
    assert_nothing_is_wrong("barrier");
    assert_nothing_is_wrong("rendezvous");
}

#[test]
fn a_timer_thread_waits_for_no_lock() {
    let Some(_run) = stored::run("a_timer_thread_waits_for_no_lock") else { return };
    assert_nothing_is_wrong("timer");
}

#[test]
fn stages_of_a_pipeline_wait_for_no_lock() {
    let Some(_run) = stored::run("stages_of_a_pipeline_wait_for_no_lock") else { return };
    assert_nothing_is_wrong("pipeline");
}

#[test]
fn two_threads_that_take_turns_wait_for_no_lock() {
    let Some(_run) = stored::run("two_threads_that_take_turns_wait_for_no_lock") else { return };
    assert_nothing_is_wrong("pingpong");
}

/// A signal waits for threads that were woken before and have no CPU: neither a lock, nor idle.
#[test]
fn signal_that_waits_for_woken_waiters_is_named() {
    let Some(_run) = stored::run("signal_that_waits_for_woken_waiters_is_named") else { return };
    each_build("workers", "signals", |run| {
        let all: Vec<Waited> = run.truth.all("signalled");
        let Some(signalled) = all.first().filter(|waited| waited.total_ns > LEAST_SIGNALLED_NS) else {
            return wallprof_testkit::skip(&run.what, "signals do not wait here");
        };
        assert_eq!(run.lock_stalls().count(), 0, "{}: {:#?}", run.what, run.lock_stalls().next());
        let signaller = run.threads[&run.truth.start.tid("signaller")];
        let in_futex =
            |stall: &&Stall| stall.thread == signaller && stall.syscall.as_deref() == Some("futex");
        let waits: Vec<&Stall> = run.stalls.iter().filter(in_futex).collect();
        // Where the CPU came much later than the wakeup, the wait is one for a CPU.
        let (late, named): (Vec<&Stall>, Vec<&Stall>) =
            waits.into_iter().partition(|stall| stall.reason == "runnable");
        for stall in &named {
            assert!(is_for_woken_waiters(stall) && !stall.voluntary, "{}: {stall:#?}", run.what);
        }
        let [late_ns, named_ns] =
            [late, named].map(|stalls| stalls.iter().map(|stall| stall.duration_ns).sum::<u64>());
        let least_ns = signalled.total_ns.saturating_sub(signalled.count * MIN_STALL_NS);
        assert!(
            named_ns <= signalled.total_ns * MOST_PERCENT / 100 && named_ns + late_ns >= least_ns,
            "{}: {named_ns} ns, and {late_ns} ns for a CPU, of {signalled:?}",
            run.what
        );
    });
}
