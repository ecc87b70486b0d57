use proptest::prelude::*;
use wallprof_model::event::LedgerDelta;
use wallprof_model::profile::{StallRecord, Thread, WakerRecord};
use wallprof_model::{EpochSecond, MonoNs, Reason, StallKind, ThreadInfo, ThreadKey, ThreadRef};

use super::*;
use crate::fixture::stack;

fn threads(names: &[&str]) -> Vec<Thread> {
    let thread = |(at, name): (usize, &&str)| Thread {
        info: ThreadInfo {
            key: ThreadKey(at as u32),
            tid: 100 + at as u32,
            pid: 100,
            ns_tid: 0,
            ns_pid: 0,
            start_boot_ns: 0,
            comm: name.to_string(),
            process: "app".into(),
            cgroup: None,
            kernel_thread: false,
        },
        start: MonoNs(0),
        end: MonoNs(0),
        ledger: LedgerDelta::new(ThreadKey(at as u32), EpochSecond(0)),
        latency: Default::default(),
        stalls: 0,
    };
    names.iter().enumerate().map(thread).collect()
}

/// A wait for a lock from `start` to `end`, of which the last `runnable_ns` for a CPU, ended by `waker`.
fn wait(thread: u32, start: u64, end: u64, runnable_ns: u64, waker: Option<u32>) -> StallRecord {
    let by = |waker: u32| WakerRecord {
        thread: Some(ThreadRef {
            key: Some(ThreadKey(waker)),
            pid: 100,
            tid: 100 + waker,
            comm: String::new(),
            title: None,
        }),
        user: Some(stack(&["unlock", &format!("release_{waker}")])),
        kernel: None,
    };
    StallRecord {
        runnable_ns,
        blocked_ns: end - start - runnable_ns,
        waker: waker.map(by),
        user: Some(stack(&[&format!("work_{thread}")])),
        ..StallRecord::new(
            0,
            ThreadKey(thread),
            StallReason::Blocked(Reason::Lock),
            MonoNs(start),
            end - start,
        )
    }
}

fn disk(thread: u32, start: u64, end: u64) -> StallRecord {
    StallRecord { reason: StallReason::Blocked(Reason::Disk), ..wait(thread, start, end, 0, None) }
}

fn blame(names: &[&str], stalls: &[StallRecord], waiter: &str) -> Blame {
    let mut waits = Waits::new(&threads(names));
    stalls.iter().for_each(|stall| waits.add(stall));
    waits.blame(|name| waiter == "*" || name == waiter)
}

/// `culprit state place ns` of each edge, by place and state.
fn lines(blame: &Blame) -> Vec<String> {
    let line = |edge: &Edge| {
        let culprit = match &edge.culprit {
            Group::Threads { thread, .. } => thread.to_string(),
            other => other.name().unwrap_or_default().to_owned(),
        };
        let place = edge.place.as_deref().unwrap_or("-");
        format!("{culprit} {} {place} {}x{}", edge.doing.name(), edge.ns, edge.count)
    };
    blame.edges.iter().map(line).collect()
}

#[test]
fn part_in_which_the_holder_waited_is_charged_to_what_it_waited_for() {
    let stalls = [wait(0, 100, 200, 0, Some(1)), disk(1, 120, 180)];
    assert_eq!(
        lines(&blame(&["a", "b"], &stalls, "a")),
        ["device disk work_1 60x1", "b running unlock 40x1"]
    );
}

#[test]
fn chain_of_four_is_charged_to_its_last_thread() {
    let stalls =
        [wait(0, 130, 400, 0, Some(1)), wait(1, 120, 390, 0, Some(2)), wait(2, 110, 380, 0, Some(3))];
    // From 380 on the third, from 390 on the second thread ran.
    assert_eq!(
        lines(&blame(&["a", "b", "c", "d"], &stalls, "a")),
        ["d running unlock 250x1", "b running unlock 10x1", "c running unlock 10x1"]
    );
}

#[test]
fn convoy_hands_its_time_from_holder_to_holder() {
    // Each held the lock for 100.
    let stalls = [wait(1, 0, 100, 0, Some(0)), wait(2, 0, 200, 0, Some(1)), wait(3, 0, 300, 0, Some(2))];
    assert_eq!(
        lines(&blame(&["a", "b", "c", "d"], &stalls, "d")),
        ["a running unlock 100x1", "b running unlock 100x1", "c running unlock 100x1"]
    );
}

#[test]
fn threads_that_had_the_cpu_share_the_wait_for_it() {
    let ran = |thread, ns| (ThreadRef { key: Some(ThreadKey(thread)), ..ThreadRef::default() }, ns);
    let waits = StallRecord { ran_instead: vec![ran(2, 60), ran(3, 20)], ..wait(1, 0, 150, 100, Some(4)) };
    let stalls = [wait(0, 0, 100, 0, Some(1)), waits.clone()];
    // Half of its wait for a CPU lies within the first wait.
    assert_eq!(
        lines(&blame(&["a", "b", "c", "d", "e"], &stalls, "a")),
        ["e running unlock 50x1", "c cpu - 30x1", "d cpu - 10x1", "unknown cpu - 10x1"]
    );
    let nobody = StallRecord { ran_instead: vec![], ..waits.clone() };
    let stalls = [waits, StallRecord { start: MonoNs(200), end: MonoNs(300), blocked_ns: 0, ..nobody }];
    assert!(lines(&blame(&["a", "b", "c", "d", "e"], &stalls, "b")).contains(&"host cpu - 100x1".into()));
}

#[test]
fn circle_ends_at_its_last_thread() {
    let stalls = [wait(0, 0, 100, 0, Some(1)), wait(1, 0, 100, 0, Some(0)), wait(2, 0, 90, 0, Some(2))];
    assert_eq!(lines(&blame(&["a", "b", "c"], &stalls, "a")), ["b circle unlock 100x1"]);
    assert_eq!(lines(&blame(&["a", "b", "c"], &stalls, "c")), ["c circle unlock 90x1"], "woken by itself");
}

#[test]
fn voluntary_waits_are_links_and_no_charge() {
    let idle = StallRecord { voluntary: true, ..wait(1, 20, 60, 0, Some(2)) };
    let found = blame(&["a", "b", "client"], &[wait(0, 0, 100, 0, Some(1)), idle], "*");
    assert_eq!(lines(&found), ["b running unlock 60x1", "client running unlock 40x1"]);
    assert_eq!(found.waiting_ns, 100);
}

#[test]
fn causes_without_a_thread_have_names() {
    let of = |reason: Reason, asked_ns| {
        let stall =
            StallRecord { reason: StallReason::Blocked(reason), asked_ns, ..wait(0, 0, 100, 0, None) };
        lines(&blame(&["a"], &[StallRecord { voluntary: false, ..stall }], "a")).join("")
    };
    assert_eq!(of(Reason::Network, None), "network network work_0 100x1");
    assert_eq!(of(Reason::Sleep, None), "timer sleep work_0 100x1");
    assert_eq!(of(Reason::Poll, Some(90)), "timer poll work_0 10x1", "the rest is the time it asked for");
    assert_eq!(of(Reason::Lock, None), "unknown lock work_0 100x1");
    let fault =
        StallRecord { kind: StallKind::Fault, reason: StallReason::Minor, ..wait(0, 0, 100, 0, None) };
    assert_eq!(lines(&blame(&["a"], &[fault], "a")), ["a minor work_0 100x1"]);
}

#[test]
fn wide_graphs_are_cut_and_counted() {
    // Each thread waits for the next one: 100 threads.
    let names: Vec<String> = (0..100).map(|at| format!("t{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let stalls: Vec<StallRecord> = (0..99).map(|at| wait(at, 0, 1_000, 0, Some(at + 1))).collect();
    let found = blame(&names, &stalls, "t0");
    assert_eq!((found.waiting_ns, found.cut_ns), (1_000, 1_000));
}

/// Waits of one thread that do not overlap.
fn timeline() -> impl Strategy<Value = Vec<(u64, u64, u64, Option<u32>, bool)>> {
    let wait = (0u64..50, 1u64..100, 0u64..100, proptest::option::of(0u32..6), any::<bool>());
    proptest::collection::vec(wait, 0..12)
}

proptest! {
    #[test]
    fn no_waiting_is_created_or_lost(timelines in proptest::collection::vec(timeline(), 6)) {
        let mut stalls = Vec::new();
        let mut waiting_ns = 0;
        for (thread, timeline) in timelines.into_iter().enumerate() {
            let mut at = 0;
            for (gap, ns, runnable, waker, voluntary) in timeline {
                let start = at + gap;
                at = start + ns;
                waiting_ns += if voluntary { 0 } else { ns };
                let wait = wait(thread as u32, start, at, runnable.min(ns), waker);
                stalls.push(StallRecord { voluntary, ..wait });
            }
        }
        let names = ["a", "b", "c", "d", "e", "f"];
        let all = blame(&names, &stalls, "*");
        prop_assert_eq!(all.waiting_ns, waiting_ns);
        prop_assert!(all.edges.iter().all(|edge| edge.ns > 0 && edge.count > 0));
        // A thread's waiting is charged in the same way, whether other threads are selected or not.
        let single: u64 = names.iter().map(|name| blame(&names, &stalls, name).waiting_ns).sum();
        prop_assert_eq!(single, waiting_ns);
    }
}
