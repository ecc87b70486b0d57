// SPDX-License-Identifier: Apache-2.0
//! Every slow operation that the lock scenario logs has its stall, with everything that a reader needs to
//! act.

use serde::Deserialize;
use wallprof_testkit::contract::Stall;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::{Scenario, Truth};
use wallprof_testkit::stored;

use crate::load::Load;

/// The distance of a stall's edge from the operation's, beside the time that the engine itself ran in between
/// by its own CPU clock: the system call, the recorder, and interrupts that hit just then.
const EDGE_NS: u64 = 50_000;
const SLOW_NS: u64 = 300_000;
/// Shorter waits cannot hide a preemption that moves an edge further than EDGE_NS.
const MIN_STALL: &str = "20us";
const MIN_STALL_NS: u64 = 20_000;

#[derive(Debug, Deserialize)]
struct Slow {
    start_ns: u64,
    end_ns: u64,
    cpu_ns: u64,
    waited: bool,
    held_by: u32,
}

#[derive(Debug, Deserialize)]
struct Ticks {
    lock: String,
}

struct Evidence {
    truth: Truth,
    stalls: Vec<Stall>,
}

fn record() -> Evidence {
    let mut scenario = Scenario::ready("lock", &["-d", "4", "-n", "30"]);
    let pid = scenario.pid();
    let recorder = Recorder::armed(&["-p", &pid, "--min-stall", MIN_STALL], &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    Evidence { truth, stalls: recording.stalls(&["--thread", "engine", "--all"]) }
}

/// The engine's stalls within a slow operation, mostly one. Under load the thread can also be preempted on
/// its way to the lock, or find the lock taken again.
fn stalls_of(evidence: &Evidence, start_ns: u64, end_ns: u64) -> Vec<&Stall> {
    evidence
        .stalls
        .iter()
        .filter(|stall| stall.comm == "engine" && stall.overlaps(start_ns, end_ns))
        .collect()
}

fn is_wait_for_lock(stall: &Stall) -> bool {
    let is_lock =
        stall.reason == "lock" || (stall.reason == "runnable" && stall.runnable_ns > stall.blocked_ns);
    is_lock && stall.syscall.as_deref() == Some("futex")
}

/// Whether the operation's two ends are those of its stalls, and whether the stalls cover the time in which
/// the engine did not run.
fn edges_agree(stalls: &[&Stall], start_ns: u64, end_ns: u64, slow: &Slow) -> bool {
    let first = stalls.iter().map(|stall| stall.start_ns).min().unwrap_or_default();
    let last = stalls.iter().map(|stall| stall.end_ns).max().unwrap_or_default();
    let off_cpu_ns: u64 = stalls.iter().map(|stall| stall.duration_ns).sum();
    let length_ns = end_ns - start_ns;
    // Its CPU clock may start at the wakeup already: the scheduler skips a second reading of its own clock.
    let least_ns = length_ns.saturating_sub(slow.cpu_ns + EDGE_NS);
    first.abs_diff(start_ns) <= EDGE_NS + slow.cpu_ns
        && last.abs_diff(end_ns) <= EDGE_NS + slow.cpu_ns
        && (least_ns..=length_ns + EDGE_NS).contains(&off_cpu_ns)
}

fn assert_names_the_lock(stall: &Stall, slow: &Slow, lock: &str, housekeeper: u32) {
    assert!(stall.user_stack_has("take_registry_lock"), "{slow:?}: the waiting function is in {stall:#?}");
    assert!(!stall.voluntary && !stall.open);
    let seen = stall.lock.as_ref().unwrap_or_else(|| panic!("{slow:?}: a lock in {stall:#?}"));
    assert_eq!(seen.address.as_deref(), Some(lock));
    if slow.held_by == housekeeper {
        let owner = seen.owner.as_ref().unwrap_or_else(|| panic!("{slow:?}: an owner in {stall:#?}"));
        assert_eq!((owner.tid, owner.comm.as_str()), (housekeeper, "housekeeper"));
    }
}

/// Whether the engine lost its CPU for the length of the operation: it found the lock taken, and free when it
/// was back.
fn preempted_instead(stalls: &[&Stall], slow: &Slow) -> bool {
    let preempted_ns: u64 =
        stalls.iter().filter(|stall| stall.reason == "preempted").map(|stall| stall.duration_ns).sum();
    slow.end_ns - slow.start_ns < slow.cpu_ns + preempted_ns + MIN_STALL_NS
}

fn was_woken_by_the_release(stall: &Stall, housekeeper: u32) -> bool {
    stall.waker.as_ref().is_some_and(|waker| {
        waker.context == "task"
            && waker.tid == Some(housekeeper)
            && waker.comm.as_deref() == Some("housekeeper")
            && waker.user_stack_has("release_registry")
    })
}

fn assert_every_slow_operation_is_reported(evidence: &Evidence) {
    let truth = &evidence.truth;
    let lock = truth.one::<Ticks>("ticks").lock;
    let housekeeper = truth.start.tid("housekeeper");
    let slow: Vec<Slow> = truth.all("slow");
    let late: Vec<&Slow> =
        slow.iter().filter(|slow| slow.waited && slow.end_ns - slow.start_ns > SLOW_NS).collect();
    assert!(late.len() >= 50, "{} slow operations are too few to judge by", late.len());
    let mut apart = Vec::new();
    let mut waits = 0;
    let mut named = 0;
    let (mut owned, mut located, mut asleep) = (0, 0, 0);
    for slow in late {
        let (start, end) = (truth.epoch_from_mono(slow.start_ns), truth.epoch_from_mono(slow.end_ns));
        let stalls = stalls_of(evidence, start, end);
        if !edges_agree(&stalls, start, end, slow) {
            apart.push(format!("{slow:?} from {start} to {end}: {stalls:#?}"));
        }
        let wait = stalls.iter().rfind(|stall| is_wait_for_lock(stall));
        if wait.is_none() && preempted_instead(&stalls, slow) {
            continue;
        }
        let wait = wait.unwrap_or_else(|| panic!("{slow:?}: a stall for the lock among {stalls:#?}"));
        assert_names_the_lock(wait, slow, &lock, housekeeper);
        let owner = wait.lock.as_ref().and_then(|lock| lock.owner.as_ref());
        if let Some(owner) = owner.filter(|owner| owner.tid == housekeeper && wait.blocked_ns >= MIN_STALL_NS)
        {
            owned += 1;
            located += usize::from(owner.user_stack_has("sweep_registry"));
            let slept = owner.state.as_deref() == Some("blocked:sleep");
            assert!(!slept || owner.from.as_deref() == Some("wait"), "{wait:#?}");
            asleep += usize::from(slept);
        }
        // A wait takes its waker's stack if it is a stall when it ends. The wait for a CPU comes after that.
        if wait.blocked_ns >= MIN_STALL_NS {
            waits += 1;
            named += usize::from(was_woken_by_the_release(wait, housekeeper));
        }
    }
    // A hypervisor that holds a CPU back for some 100 µs is seen by neither clock. It does so a few times a
    // second: one edge in a hundred is allowed for it.
    assert!(waits >= 50, "{waits} waits for the lock are too few to judge by");
    assert!(apart.len() * 100 <= waits, "{} of {waits} have other edges: {apart:#?}", apart.len());
    // It sleeps through half of its sweeps.
    assert!(asleep > 0 && asleep < owned, "{asleep} of {owned} holders slept");
    assert!(
        located * 100 >= owned * 95,
        "{located} of {owned} holders were in the function that holds the lock"
    );
    assert!(
        named * 100 >= waits * 99,
        "{named} of {waits} waits name the thread that released the lock, and where"
    );
}

#[test]
fn a_rare_wait_for_a_lock() {
    let Some(_run) = stored::run("a_rare_wait_for_a_lock") else { return };
    assert_every_slow_operation_is_reported(&record());
}

#[test]
fn a_rare_wait_for_a_lock_under_stress() {
    let Some(_run) = stored::run("a_rare_wait_for_a_lock_under_stress") else { return };
    let Some(_load) = Load::stress() else {
        return wallprof_testkit::skip("a_rare_wait_for_a_lock_under_stress", "stress-ng is not installed");
    };
    assert_every_slow_operation_is_reported(&record());
}
