// SPDX-License-Identifier: Apache-2.0
//! The ledger adds up, and agrees with the scheduler's own counts of every thread.
//!
//! The scenario is parked when the recorder arms and when it stops, and the kernel's counters are read while
//! it is parked. So both measurements see the same switches, and the window has no edges to allow for.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use wallprof_testkit::contract::{Report, Stall, Thread};
use wallprof_testkit::machine;
use wallprof_testkit::proc::{Counters, STEAL_TICK_NS, process_switches, steal_ns};
use wallprof_testkit::recorder::{Recorder, RecordingFile};
use wallprof_testkit::scenario::{Scenario, ScenarioThread};

use crate::load::Load;

/// The first process: in a sandbox the kernel may keep it from being traced.
const SUPERVISOR: u32 = 1;

/// The kernel's counts of each thread between two times at which it was parked.
struct Window {
    counted: BTreeMap<u32, Counters>,
    /// At most.
    steal_ns: u64,
    supervisors_switches: u64,
    recording: RecordingFile,
    workers: Vec<ScenarioThread>,
}

fn record(name: &str, args: &[&str]) -> Window {
    let mut scenario = Scenario::ready(name, args);
    let pid = scenario.pid();
    let switches_before = process_switches(SUPERVISOR);
    let recorder = Recorder::armed(&["-p", &pid], &[]);
    let steal_before = steal_ns();
    let before = counters(&scenario);
    scenario.run();
    let after = counters(&scenario);
    let counted = after.into_iter().map(|(tid, counters)| (tid, counters.since(before[&tid]))).collect();
    let steal_ns = steal_ns() - steal_before + STEAL_TICK_NS;
    let recording = recorder.stop();
    let supervisors_switches = process_switches(SUPERVISOR).saturating_sub(switches_before);
    let workers = scenario.start.workers().to_vec();
    Window { counted, steal_ns, supervisors_switches, recording, workers }
}

fn counters(scenario: &Scenario) -> BTreeMap<u32, Counters> {
    let pid = scenario.start.pid;
    scenario.start.workers().iter().map(|worker| (worker.tid, Counters::of(pid, worker.tid))).collect()
}

pub fn thread<'a>(report: &'a Report, tid: u32, name: &str) -> &'a Thread {
    let mut found = report.threads.iter().filter(|thread| thread.tid == tid && thread.comm == name);
    let thread = found.next().unwrap_or_else(|| panic!("{name} ({tid}) is in the report"));
    assert!(found.next().is_none(), "{name} ({tid}) is in the report once");
    thread
}

/// States and unaccounted time partition the wall time. Less than 0.1 % is unaccounted.
pub fn assert_adds_up(thread: &Thread) {
    let Thread { comm, wall_ns, unaccounted_ns, .. } = thread;
    assert_eq!(thread.states.sum() + unaccounted_ns, *wall_ns, "the states of {comm} add up: {thread:#?}");
    assert!(unaccounted_ns * 1_000 <= *wall_ns, "{unaccounted_ns} ns of {wall_ns} of {comm} are unaccounted");
    let waiting_for_cpu = thread.states.runnable + thread.states.preempted;
    assert_eq!(thread.run_queue_ns, waiting_for_cpu, "run_queue_ns of {comm} is runnable + preempted");
    assert_latencies_add_up(thread);
}

fn assert_latencies_add_up(thread: &Thread) {
    for latency in [&thread.latency.off_cpu, &thread.latency.run_queue, &thread.latency.fault] {
        let buckets = &latency.histogram;
        assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), latency.count);
        assert_eq!(buckets.iter().map(|bucket| bucket.total_ns).sum::<u64>(), latency.total_ns);
        for bucket in buckets {
            let mean = bucket.total_ns / bucket.count;
            assert!((bucket.from_ns..bucket.to_ns).contains(&mean), "{bucket:?} of {}", thread.comm);
        }
        let last = buckets.last().map_or(0..1, |bucket| bucket.from_ns..bucket.to_ns);
        assert!(last.contains(&latency.max_ns), "{} of {} is in {last:?}", latency.max_ns, thread.comm);
    }
}

/// A thread that lived through the recording: its wall time is the recording's.
fn assert_lived_through(thread: &Thread, report: &Report) {
    let duration = report.recording.duration_ns;
    let difference = thread.wall_ns.abs_diff(duration);
    assert!(difference * 1_000 <= duration, "{} has {} ns of {duration}", thread.comm, thread.wall_ns);
}

/// One of the ledger's sums beside the kernel's own, for each thread of the scenario.
struct Comparison {
    what: &'static str,
    pairs: Vec<(String, u64, u64)>,
}

impl Comparison {
    fn new(what: &'static str) -> Self {
        Comparison { what, pairs: Vec::new() }
    }

    fn add(&mut self, thread: &Thread, recorded_ns: u64, counted_ns: u64) {
        self.pairs.push((thread.comm.clone(), recorded_ns, counted_ns));
    }

    /// Each thread's two sums agree within 1 %. Beyond that they differ by steal time, which the scheduler
    /// leaves out of running time: for all threads together by no more than the steal time.
    fn agrees(&self, steal_ns: u64) -> Result<(), String> {
        let beyond_ns: u64 =
            self.pairs.iter().map(|(_, recorded, counted)| beyond_a_percent(*recorded, *counted)).sum();
        if beyond_ns <= steal_ns {
            return Ok(());
        }
        Err(format!(
            "{}: {beyond_ns} ns beyond 1 %, {steal_ns} ns may be steal; thread, recorded, counted: {:#?}",
            self.what, self.pairs
        ))
    }
}

fn beyond_a_percent(recorded: u64, counted: u64) -> u64 {
    recorded.abs_diff(counted).saturating_sub(counted / 100)
}

/// A live recording in schema 1.
fn assert_describes_itself(report: &Report) {
    let recording = &report.recording;
    assert_eq!((report.schema, recording.source.as_str(), recording.clock.as_str()), (1, "live", "epoch"));
    assert_eq!(recording.end_ns - recording.start_ns, recording.duration_ns);
}

/// Nothing was lost. Where a supervisor's threads are kept from being traced, their switches cannot be seen,
/// nor the wakeups that happen while one of them runs: of the sleeps that is less than one in a hundred.
fn assert_complete(report: &Report, supervisors_switches: u64) {
    let sleeps: u64 = report.threads.iter().map(|thread| thread.switches.voluntary).sum();
    for (reason, count) in &report.losses {
        let allowed = match reason.as_str() {
            "sleeps_without_wakeup" => 1 + sleeps / 100,
            "switches_unseen" => supervisors_switches,
            _ => 0,
        };
        assert!(*count <= allowed, "{count} {reason}, {allowed} allowed: {:?}", report.losses);
    }
}

/// Every stall belongs to a thread of the report, which counts it.
fn assert_stalls_are_counted(report: &Report, stalls: &[Stall]) {
    for thread in &report.threads {
        let listed = stalls.iter().filter(|stall| stall.thread == thread.id).count() as u64;
        assert_eq!(listed, thread.stalls, "stalls of {}", thread.comm);
    }
    assert!(stalls.iter().all(|stall| report.threads.iter().any(|thread| thread.id == stall.thread)));
}

/// A hypervisor's share does not always show as steal time. Of three windows one is calm enough to compare.
fn assert_agrees_with_the_kernel(window: impl Fn() -> Window) {
    let differences: Vec<String> = (0..3).map_while(|_| agrees_with_the_kernel(&window()).err()).collect();
    assert!(differences.len() < 3, "{}", differences.join("\n"));
}

fn agrees_with_the_kernel(window: &Window) -> Result<(), String> {
    let report = window.recording.report();
    assert_describes_itself(&report);
    assert_stalls_are_counted(&report, &window.recording.stalls(&[]));
    let (mut on_cpu, mut run_queue) = (Comparison::new("on_cpu_ns"), Comparison::new("run_queue_ns"));
    for worker in &window.workers {
        let thread = thread(&report, worker.tid, &worker.name);
        let counted = window.counted[&worker.tid];
        assert_adds_up(thread);
        assert_lived_through(thread, &report);
        on_cpu.add(thread, thread.on_cpu_ns, counted.on_cpu_ns);
        run_queue.add(thread, thread.run_queue_ns, counted.run_queue_ns);
        assert_eq!(thread.switches.voluntary, counted.voluntary, "voluntary switches of {}", worker.name);
        assert_eq!(
            thread.switches.involuntary, counted.involuntary,
            "involuntary switches of {}",
            worker.name
        );
    }
    assert_complete(&report, window.supervisors_switches);
    on_cpu.agrees(window.steal_ns)?;
    run_queue.agrees(window.steal_ns)
}

/// `perf bench sched messaging` in a loop of the test's own: each round ends by itself.
fn with_messaging(perform: impl Fn() -> Window) -> Window {
    let bench = ["bench", "sched", "messaging", "-g", "4", "-l", "4000"];
    let mut child = Command::new("perf")
        .args(bench)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("perf runs");
    let window = perform();
    let _ = child.kill();
    child.wait().expect("perf is waited for");
    window
}

#[test]
fn spinning_threads() {
    let Some(_guard) = machine::reserve("spinning_threads") else { return };
    assert_agrees_with_the_kernel(|| record("spin", &["-d", "2"]));
}

#[test]
fn threads_that_wait_for_a_lock() {
    let Some(_guard) = machine::reserve("threads_that_wait_for_a_lock") else { return };
    assert_agrees_with_the_kernel(|| record("lock", &["-d", "3"]));
}

#[test]
fn threads_that_sleep() {
    let Some(_guard) = machine::reserve("threads_that_sleep") else { return };
    assert_agrees_with_the_kernel(|| record("sleepers", &["-d", "2"]));
}

#[test]
fn threads_that_switch_all_the_time() {
    let Some(_guard) = machine::reserve("threads_that_switch_all_the_time") else { return };
    assert_agrees_with_the_kernel(|| record("pingpong", &["-d", "2", "-c", "0"]));
}

#[test]
fn threads_that_migrate() {
    let Some(_guard) = machine::reserve("threads_that_migrate") else { return };
    assert_agrees_with_the_kernel(|| record("pingpong", &["-d", "2", "-m", "10"]));
}

#[test]
fn on_a_machine_under_stress() {
    let Some(_guard) = machine::reserve("on_a_machine_under_stress") else { return };
    let Some(_load) = Load::stress() else {
        return wallprof_testkit::skip("on_a_machine_under_stress", "stress-ng is not installed");
    };
    assert_agrees_with_the_kernel(|| record("lock", &["-d", "3"]));
    assert_agrees_with_the_kernel(|| record("spin", &["-d", "3"]));
}

#[test]
fn beside_many_messages() {
    let Some(_guard) = machine::reserve("beside_many_messages") else { return };
    if Command::new("perf").arg("--version").stdout(Stdio::null()).status().is_err() {
        return wallprof_testkit::skip("beside_many_messages", "perf is not installed");
    }
    assert_agrees_with_the_kernel(|| with_messaging(|| record("pingpong", &["-d", "3"])));
}
