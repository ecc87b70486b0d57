// SPDX-License-Identifier: Apache-2.0
use std::collections::BTreeMap;

use proptest::prelude::*;
use wallprof_model::event::LedgerDelta;
use wallprof_model::histogram::{Cell, bucket_from_ns};
use wallprof_model::profile::{LockRecord, StallRecord, Thread, WakerRecord};
use wallprof_model::{
    EpochSecond, Histogram, Meaning, MeaningSource, MonoNs, Reason, StallKind, ThreadInfo, ThreadKey,
    ThreadRef,
};
use wallprof_testkit::stacks::stack;

use super::*;

fn threads(names: &[&str]) -> Vec<Thread> {
    let thread = |(at, name): (usize, &&str)| Thread {
        info: ThreadInfo {
            ns_tid: 0,
            ns_pid: 0,
            ..ThreadInfo::new(ThreadKey(at as u32), (100, "app"), (100 + at as u32, name.to_string()))
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
    let threads = threads(names);
    let name =
        |key| threads.iter().find(|thread| thread.info.key == key).map(|thread| thread.info.comm.as_str());
    waits.blame(|key| waiter == "*" || name(key) == Some(waiter))
}

/// `culprit state place ns` of each edge, by place and state.
fn lines(blame: &Blame) -> Vec<String> {
    let line = |edge: &Edge| {
        let culprit = match &*edge.culprit {
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
fn wait_that_began_before_and_never_ended_is_charged_to_the_owner_of_its_lock() {
    let open = |thread: u32, owner: Option<u32>| {
        let owner =
            ThreadRef { key: owner.map(ThreadKey), tid: 77, comm: "gone".into(), ..ThreadRef::default() };
        let lock = Some(LockRecord { address: 0x7000, owner: Some(owner) });
        StallRecord { open: true, lock, ..wait(thread, 0, 100, 0, None) }
    };
    let of = |stalls: &[StallRecord]| lines(&blame(&["a", "b", "c"], stalls, "a"));
    assert_eq!(of(&[open(0, Some(1))]), ["b running - 100x1"]);
    let asleep = disk(1, 40, 100);
    assert_eq!(of(&[open(0, Some(1)), asleep]), ["device disk work_1 60x1", "b running - 40x1"]);
    let ring = [open(0, Some(1)), open(1, Some(2)), open(2, Some(0))];
    assert_eq!(of(&ring), ["c circle - 100x1"]);
    assert_eq!(of(&[open(0, Some(0))]), ["a circle - 100x1"], "the waiter itself");
    assert_eq!(of(&[open(0, Some(9))]), ["gone lock work_0 100x1"], "its number is no recorded thread's");
    assert_eq!(of(&[open(0, None)]), ["gone lock work_0 100x1"], "it is not recorded");
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

/// The sum of each culprit's state, by waiter, found nanosecond by nanosecond.
type Sums = BTreeMap<(String, String, &'static str), u64>;

/// Where the chain from `thread` ends at one time. It does not wait there: a second redistribution would
/// change nothing. Each step follows a recorded wakeup.
fn end_of_chain(thread: u32, at: u64, stalls: &[StallRecord]) -> (Option<u32>, &'static str) {
    let mut path = vec![thread];
    loop {
        let last = path[path.len() - 1];
        let covers = |stall: &&StallRecord| {
            stall.thread == ThreadKey(last) && (stall.start.0..stall.end.0).contains(&at)
        };
        let Some(wait) = stalls.iter().find(covers) else { return (Some(last), "running") };
        if at >= wait.end.0 - wait.runnable_ns {
            return (None, "cpu");
        }
        let Some(next) = wait.waker.as_ref().and_then(|waker| waker.thread.as_ref()?.key) else {
            return (None, "lock");
        };
        if path.contains(&next.0) {
            return (Some(last), "circle");
        }
        path.push(next.0);
    }
}

fn sums_by_time(names: &[&str], stalls: &[StallRecord]) -> Sums {
    let name = |thread: Option<u32>| thread.map_or("unknown", |at| names[at as usize]).to_owned();
    let mut sums = Sums::new();
    for wait in stalls.iter().filter(|stall| !stall.voluntary) {
        for at in wait.start.0..wait.end.0 {
            let (culprit, state) = end_of_chain(wait.thread.0, at, stalls);
            *sums.entry((name(Some(wait.thread.0)), name(culprit), state)).or_default() += 1;
        }
    }
    sums
}

fn sums_of(blame: &Blame) -> Sums {
    let name = |group: &Group| match group {
        Group::Threads { thread, .. } => thread.to_string(),
        other => other.name().unwrap_or_default().to_owned(),
    };
    let mut sums = Sums::new();
    for edge in &blame.edges {
        *sums.entry((name(&edge.waiter), name(&edge.culprit), edge.doing.name())).or_default() += edge.ns;
    }
    sums
}

proptest! {
    #[test]
    fn each_nanosecond_is_charged_to_the_end_of_its_chain(
        timelines in proptest::collection::vec(timeline(), 6)
    ) {
        let mut stalls = Vec::new();
        for (thread, timeline) in timelines.into_iter().enumerate() {
            let mut at = 0;
            for (gap, ns, runnable, waker, voluntary) in timeline {
                let start = at + gap;
                at = start + ns;
                let wait = wait(thread as u32, start, at, runnable.min(ns), waker);
                stalls.push(StallRecord { voluntary, ..wait });
            }
        }
        let names = ["a", "b", "c", "d", "e", "f"];
        prop_assert_eq!(sums_of(&blame(&names, &stalls, "*")), sums_by_time(&names, &stalls));
    }

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

fn played(names: &[&str], stalls: &[StallRecord], change: &str) -> WhatIf {
    let change: Change = change.parse().expect("a change");
    let mut waits = Waits::new(&threads(names));
    waits.expect(&change);
    stalls.iter().for_each(|stall| waits.add(stall));
    waits.what_if(&change, &[], |_| true)
}

/// A holder that sleeps from 0 to `from`, and lets go in `unlock` at `to`, for which another thread waits.
fn held(from: u64, asked: u64, to: u64) -> [StallRecord; 2] {
    let before =
        StallRecord { voluntary: true, user: Some(stack(&["nap", "idle"])), ..wait(1, 0, from, 0, None) };
    [before, wait(0, asked, to, 0, Some(1))]
}

fn after(what_if: &WhatIf) -> (u64, u64, u64) {
    (what_if.waiting.after, what_if.waiting.low, what_if.waiting.high)
}

#[test]
fn half_a_critical_section_that_is_waited_for_from_its_start_halves_the_wait() {
    let found = played(&["a", "b"], &held(100, 100, 300), "lock:unlock=-50%");
    assert_eq!((found.waiting.before, after(&found)), (200, (100, 100, 100)));
    assert_eq!((found.unknown_share, found.is_found), (0.0, true));
}

#[test]
fn waiter_that_comes_late_gains_more_than_half() {
    // The section began at 100 or later. With half of it, it ends at 200 or, if it began at 240, at 270.
    let found = played(&["a", "b"], &held(100, 240, 300), "lock:unlock=-50%");
    assert_eq!(after(&found), (0, 0, 30));
    let other = played(&["a", "b"], &held(100, 240, 300), "lock:other=-50%");
    assert_eq!((after(&other), other.is_found), ((60, 60, 60), false));
}

#[test]
fn sleep_in_a_critical_section_is_a_part_of_it() {
    let sleep =
        StallRecord { voluntary: true, user: Some(stack(&["nap", "unlock"])), ..wait(1, 120, 280, 0, None) };
    let mut stalls = held(100, 100, 300).to_vec();
    stalls.push(StallRecord { reason: StallReason::Blocked(Reason::Sleep), ..sleep });
    assert_eq!(after(&played(&["a", "b"], &stalls, "lock:unlock=-50%")), (100, 100, 100));
}

/// A wait in `acquire`, which the thread `holder` ends in `unlock`.
fn acquire(thread: u32, start: u64, end: u64, holder: u32) -> StallRecord {
    StallRecord { user: Some(stack(&["acquire"])), ..wait(thread, start, end, 0, Some(holder)) }
}

/// A wait for the next request.
fn idle(thread: u32, start: u64, end: u64, client: Option<u32>) -> StallRecord {
    let reason = StallReason::Blocked(Reason::Poll);
    let user = Some(stack(&["next_request"]));
    let waker = wait(thread, start, end, 0, client).waker.map(|waker| WakerRecord { user: None, ..waker });
    StallRecord { voluntary: true, reason, user, waker, ..wait(thread, start, end, 0, None) }
}

/// The longest and the shortest holds of `b`.
fn holds_of_b(stalls: &[StallRecord]) -> [Vec<(u64, u64)>; 2] {
    let mut waits = Waits::new(&threads(&["a", "b", "c", "client"]));
    waits.expect(&"lock:unlock=-50%".parse().expect("a change"));
    let mut stalls = stalls.to_vec();
    stalls.sort_by_key(|stall| stall.start);
    stalls.iter().for_each(|stall| waits.add(stall));
    let holds = holds::Holds::new(&waits);
    [true, false].map(|are_long| holds.sections(are_long)[1].clone())
}

#[test]
fn hold_begins_with_the_end_of_its_own_wait_while_another_thread_waits() {
    let stalls = [acquire(1, 0, 100, 2), idle(1, 120, 200, None), acquire(0, 50, 300, 1)];
    assert_eq!(holds_of_b(&stalls), [[(100, 300)], [(100, 300)]]);
}

#[test]
fn lock_is_not_held_between_independent_requests() {
    // No other thread waited until 250: b may have let go, and waits for its client in no known hold.
    let stalls = [acquire(1, 0, 100, 2), idle(1, 120, 200, None), acquire(0, 250, 300, 1)];
    assert_eq!(holds_of_b(&stalls), [[(200, 300)], [(250, 300)]]);
}

#[test]
fn holds_that_go_on_between_requests_show_that_another_may() {
    let first = [acquire(1, 0, 100, 2), idle(1, 120, 200, None), acquire(0, 50, 300, 1)];
    let second = [idle(1, 400, 450, None), acquire(0, 460, 500, 1)];
    let stalls = [first.as_slice(), second.as_slice()].concat();
    assert_eq!(holds_of_b(&stalls), [vec![(100, 500)], vec![(100, 300), (460, 500)]]);
}

#[test]
fn wait_for_an_answer_proves_no_hold() {
    let reason = StallReason::Blocked(Reason::Poll);
    let stalls = [StallRecord { reason, ..acquire(0, 50, 300, 1) }, disk(1, 120, 200)];
    assert_eq!(holds_of_b(&stalls), [[(50, 300)], [(200, 300)]]);
}

#[test]
fn hold_over_several_requests_is_shorter_with_its_clients_time() {
    let stalls = [
        acquire(1, 0, 100, 2),
        idle(3, 0, 122, Some(1)),
        idle(1, 120, 200, Some(3)),
        acquire(0, 50, 300, 1),
        StallRecord { voluntary: false, ..idle(0, 310, 320, Some(3)) },
    ];
    let found = played(&["a", "b", "c", "client"], &stalls, "lock:unlock=-50%");
    // c lets go at 50, b gets its request at 99 and lets go at 149. The client is 40 earlier than without that: at
    // 219 it comes to the end of a's last wait, which begins at 159.
    assert_eq!((found.waiting.before, found.waiting.after), (360, 50 + 99 + 60));
}

#[test]
fn shorter_waits_pass_along_a_chain() {
    // a waits for b, which waits for c.
    let stalls = [wait(0, 0, 120, 0, Some(1)), wait(1, 0, 110, 0, Some(2))];
    let found = played(&["a", "b", "c"], &stalls, "thread:c=-50%");
    let of: Vec<u64> = found.groups.iter().map(|(_, estimate)| estimate.after).collect();
    assert_eq!(of, [65, 55], "b takes ten as before");
}

#[test]
fn disks_and_waits_for_a_cpu_can_be_shorter() {
    let disk = StallRecord { reason: StallReason::Blocked(Reason::Disk), ..wait(0, 0, 100, 20, None) };
    let of = |change| after(&played(&["a"], std::slice::from_ref(&disk), change)).0;
    assert_eq!((of("disk=-75%"), of("cpu=-50%"), of("thread:a=-50%")), (40, 90, 100));
}

#[test]
fn wakeup_that_was_not_seen_makes_an_interval_and_is_said() {
    // b runs until 100, and waits for nobody knows what until 150. a waits for the lock of b until 200.
    let stalls = [wait(1, 100, 150, 0, None), wait(0, 0, 200, 0, Some(1))];
    let found = played(&["a", "b"], &stalls, "thread:b=-50%");
    // With the same wait: 50 + 50 + 25. Until the same time: 150 + 25; and b itself waits for 100.
    assert_eq!(after(&found), (175, 175, 275));
    assert_eq!(found.unknown_share, 0.2);
}

#[test]
fn operations_end_with_their_waits() {
    let change: Change = "thread:b=-50%".parse().expect("a change");
    let mut waits = Waits::new(&threads(&["a", "b"]));
    [wait(0, 100, 200, 0, Some(1)), wait(1, 0, 10, 0, None)].iter().for_each(|stall| waits.add(stall));
    let kept = vec![Operation { thread: ThreadKey(0), start: 50, end: 230 }];
    let lengths = |lengths: &[(u64, u64)]| {
        let mut all = Histogram::default();
        for (ns, count) in lengths {
            all.add_cell(bucket_from_ns(*ns), Cell { count: *count, total_ns: ns * count, max_ns: *ns });
        }
        all
    };
    let operations = Operations { kind: "order".into(), kept, all: lengths(&[(180, 1)]) };
    let many = Operations { all: lengths(&[(180, 1), (20, 1_000_000)]), ..operations.clone() };
    let unrecorded = vec![Operation { thread: ThreadKey(77), start: 50, end: 230 }];
    let elsewhere = Operations { kept: unrecorded, ..operations.clone() };
    // Of two as long, one is kept: the percentile may be the other's.
    let one_of_two = Operations { all: lengths(&[(180, 2)]), ..operations.clone() };
    let found = waits.what_if(&change, &[operations, many, elsewhere, one_of_two], |_| true);
    // b comes to 200 at 10 + 95: a has waited for 5.
    let p99 = found.kinds[0].p99.expect("the one operation");
    assert_eq!((p99.before, p99.after), (180, 85));
    for too_few in [1, 3] {
        assert_eq!((found.kinds[too_few].p99, found.kinds[too_few].p999), (None, None), "{too_few}");
    }
    assert_eq!(found.kinds[2].p99.map(|p99| p99.after), Some(180), "a thread without waits");
}

#[test]
fn changes_are_a_part_and_a_percentage() {
    let parse = |text: &str| text.parse::<Change>().map(drop);
    for text in ["lock:sweep_*=-50%", "disk=-100%", "thread:worker-*=-0.5%", "cpu=-10%", "lock:a=b=-5%"] {
        assert_eq!(parse(text), Ok(()), "{text}");
    }
    for text in ["disk", "disk=50%", "disk=-0%", "disk=-101%", "disk=-50", "disk=-nan%", ""] {
        assert_eq!(parse(text), Err(ChangeError::NoPercentage), "{text}");
    }
    for text in ["lock=-50%", "lock:=-50%", "disks=-50%", "disk:a=-50%"] {
        assert_eq!(parse(text), Err(ChangeError::NoPart), "{text}");
    }
}

proptest! {
    #[test]
    fn less_work_is_never_more_waiting_and_no_change_none(
        timelines in proptest::collection::vec(timeline(), 6)
    ) {
        let mut stalls = Vec::new();
        for (thread, timeline) in timelines.into_iter().enumerate() {
            let mut at = 0;
            for (gap, ns, runnable, waker, voluntary) in timeline {
                let start = at + gap;
                at = start + ns;
                let wait = wait(thread as u32, start, at, runnable.min(ns), waker);
                stalls.push(StallRecord { voluntary, ..wait });
            }
        }
        let names = ["a", "b", "c", "d", "e", "f"];
        let same = played(&names, &stalls, "thread:nobody=-50%");
        prop_assert_eq!(after(&same), (same.waiting.before, same.waiting.before, same.waiting.before));
        for change in ["cpu=-100%", "lock:unlock=-50%", "thread:*=-50%"] {
            let found = played(&names, &stalls, change);
            prop_assert!(found.waiting.low <= found.waiting.after && found.waiting.after <= found.waiting.high);
            let sum: u64 = found.groups.iter().map(|(_, estimate)| estimate.after).sum();
            prop_assert_eq!(sum, found.waiting.after);
        }
    }
}

/// A poll for a row lock, in slices of its timeout, of which the last one is ended by the holder or not.
#[test]
fn poll_for_a_lock_is_that_lock_and_waits_for_no_network() {
    let poll = |holder: bool, waker| {
        let meaning = Meaning {
            name: "row lock".into(),
            software: None,
            idle: false,
            holder,
            source: MeaningSource::Stack,
        };
        let reason = StallReason::Blocked(Reason::Poll);
        let stall = StallRecord { reason, meaning: Some(meaning.into()), ..wait(0, 0, 100, 0, waker) };
        StallRecord { asked_ns: Some(50), ..stall }
    };
    let found = |stall| {
        let blame = blame(&["engine", "keeper"], &[stall], "engine");
        let edge = &blame.edges[0];
        (edge.culprit.name(), edge.doing, edge.meaning.as_deref().map(str::to_owned))
    };
    let waiting = Doing::Waiting(StallReason::Blocked(Reason::Poll));
    let row_lock = Some("row lock".to_owned());
    assert_eq!(found(poll(true, None)), (Some("unknown"), waiting, row_lock.clone()));
    assert_eq!(found(poll(false, None)), (Some("timer"), waiting, row_lock), "nobody holds it");
    assert_eq!(found(poll(true, Some(1))), (None, Doing::Running, None));
}
