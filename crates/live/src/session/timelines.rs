// SPDX-License-Identifier: Apache-2.0
//! Sessions over the fake kernel: what they emit of each second must be what the timeline shows.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use proptest::prelude::*;
use wallprof_model::{Event, Reason, StallReason, ThreadKey};

use super::fake::{EPOCH_OFFSET, FakeKernel, SECOND_NS, START, TICK_NS, World};
use super::{Pending, Session};
use crate::follower::Follower;
use crate::guard::Guard;
use crate::known::KnownProcesses;

const MIN_STALL_NS: u64 = 100_000;
/// The second in which timelines start.
const FIRST: u64 = (START + EPOCH_OFFSET) / SECOND_NS;
/// A look comes this long after a second's end.
const LATE_MS: u64 = 50;

/// A session with the world it records and what it emitted.
struct Fixture {
    session: Session<FakeKernel>,
    world: Rc<RefCell<World>>,
    events: Vec<Event>,
}

/// By thread and second: 100 ms ticks of each state, as in `R3 L7`.
type Ledgers = BTreeMap<(u32, u64), String>;

impl Fixture {
    fn new(timelines: &str) -> Self {
        let world = World::new(timelines);
        let kernel = FakeKernel(Rc::clone(&world));
        let follower = Follower::idle(KnownProcesses::default());
        let session = Session::new(kernel, follower, Guard::new(&[]), MIN_STALL_NS);
        let mut fixture = Fixture { session, world, events: Vec::new() };
        fixture.session.arm();
        fixture.world.borrow_mut().run_until(0);
        let events = &mut fixture.events;
        fixture.session.emit_threads(&mut |event| events.push(event)).unwrap();
        fixture
    }

    /// Lets time pass and looks once, after `ms`. True when seconds were flushed.
    fn look_at(&mut self, ms: u64, is_due: bool) -> bool {
        self.world.borrow_mut().run_until(ms);
        let events = &mut self.events;
        self.session.drain(&|_: &Pending| is_due, &mut |event| events.push(event)).unwrap().is_some()
    }

    /// Looks after each second up to `seconds`.
    fn run_until(&mut self, seconds: u64) {
        let from = (self.world.borrow().now - START) / SECOND_NS;
        for second in from + 1..=seconds {
            assert!(self.look_at(second * 1_000 + LATE_MS, true), "second {second}");
        }
    }

    fn finish(mut self) -> Vec<Event> {
        let events = &mut self.events;
        self.session.finish(&mut |event| events.push(event)).unwrap();
        self.events
    }

    fn pause(&mut self) {
        let events = &mut self.events;
        self.session.pause(&mut |event| events.push(event)).unwrap();
    }

    fn resume(&mut self) {
        let events = &mut self.events;
        self.session.resume(&mut |event| events.push(event)).unwrap();
    }
}

fn text(ticks: [u64; 5]) -> String {
    let parts = ["R", "P", "L", "p", "w"].into_iter().zip(ticks).filter(|(_, ticks)| *ticks > 0);
    parts.map(|(state, ticks)| format!("{state}{ticks}")).collect::<Vec<_>>().join(" ")
}

/// The emitted times. Each delta must add up to its wall time.
fn emitted(events: &[Event]) -> Ledgers {
    let mut sums: BTreeMap<(u32, u64), [u64; 5]> = BTreeMap::new();
    for event in events {
        let Event::Ledger(delta) = event else { continue };
        let blocked = |reason: Reason| delta.blocked_ns[usize::from(reason.code())];
        let states = [
            delta.on_cpu_ns,
            delta.preempted_ns,
            blocked(Reason::Lock),
            blocked(Reason::Poll),
            delta.runnable_ns,
        ];
        assert_eq!(states.iter().sum::<u64>(), delta.wall_ns, "{delta:?}");
        let row = sums.entry((delta.thread.0, u64::from(delta.second.0) - FIRST)).or_default();
        row.iter_mut().zip(states).for_each(|(sum, ns)| *sum += ns);
    }
    let in_ticks = |row: [u64; 5]| {
        assert!(row.iter().all(|ns| ns % TICK_NS == 0), "whole ticks: {row:?}");
        row.map(|ns| ns / TICK_NS)
    };
    sums.into_iter().map(|(key, row)| (key, text(in_ticks(row)))).collect()
}

/// The time in the timelines of the ticks that `counts` selects.
fn shown(timelines: &str, counts: impl Fn(u64) -> bool) -> Ledgers {
    let mut sums: BTreeMap<(u32, u64), [u64; 5]> = BTreeMap::new();
    let lines = timelines.lines().map(str::trim).filter(|line| !line.is_empty());
    for (index, line) in lines.enumerate() {
        let states = line.split_once(':').expect("name: timeline").1.trim();
        for (tick, state) in states.bytes().enumerate().filter(|(tick, _)| counts(*tick as u64)) {
            let Some(place) = b"RPLpw".iter().position(|known| *known == state) else { continue };
            sums.entry((index as u32 + 1, tick as u64 / 10)).or_default()[place] += 1;
        }
    }
    sums.into_iter().map(|(key, row)| (key, text(row))).collect()
}

fn losses(events: &[Event]) -> BTreeMap<&str, u64> {
    let mut sums = BTreeMap::new();
    for event in events {
        if let Event::Loss { reason, count } = event {
            *sums.entry(reason.as_str()).or_default() += count;
        }
    }
    sums
}

/// Stalls as (thread, start and end in ticks, open).
fn stalls(events: &[Event]) -> Vec<(u32, u64, u64, bool)> {
    let ticks = |ns: u64| (ns - START) / TICK_NS;
    let stall = |event: &Event| match event {
        Event::Stall(stall) => Some((stall.thread.0, ticks(stall.start.0), ticks(stall.end.0), stall.open)),
        _ => None,
    };
    events.iter().filter_map(stall).collect()
}

const TWO: &str = "
    server: RRRRRLLLLL LLLwwRRRPP RRRRRRRRRR pppppppppp ppppppwRRR
    worker: ...RRRRRRR RRRRRRRRRR RRRLLLLLLL LLLLLLLLLL LLLLLLLLwR
";

fn two() -> String {
    TWO.replace(": ", ":").replace("R ", "R").replace(' ', "").replace("\n", "\n ")
}

#[test]
fn seconds_are_emitted_as_they_were() {
    let timelines = two();
    let mut fixture = Fixture::new(&timelines);
    fixture.run_until(5);
    assert_eq!(emitted(&fixture.finish()), shown(&timelines, |_| true));
}

#[test]
fn deferred_seconds_are_emitted_as_each_would_have_been() {
    let timelines = two();
    for every in 1..=5 {
        let mut fixture = Fixture::new(&timelines);
        fixture.session.send_seconds(true);
        for second in 1..=5 {
            let is_due = second % every == 0;
            assert_eq!(fixture.look_at(second * 1_000 + LATE_MS, is_due), is_due, "second {second}");
        }
        assert_eq!(emitted(&fixture.finish()), shown(&timelines, |_| true), "every {every} seconds");
    }
}

/// Samples by second of the timelines, and how many of them were emitted by the end of each second.
fn samples(events: &[Event]) -> (BTreeMap<u64, usize>, usize) {
    let mut by_second = BTreeMap::new();
    for event in events {
        if let Event::Sample(sample) = event {
            *by_second.entry(u64::from(sample.second.0) - FIRST).or_default() += 1;
        }
    }
    let count = by_second.values().sum();
    (by_second, count)
}

/// The thread, the second of the timelines and the running time of each ledger.
fn ledgers(events: &[Event]) -> BTreeSet<(u32, u64, u64)> {
    let row = |event: &Event| match event {
        Event::Ledger(delta) => Some((delta.thread.0, u64::from(delta.second.0) - FIRST, delta.on_cpu_ns)),
        _ => None,
    };
    events.iter().filter_map(row).collect()
}

#[test]
fn sums_stay_in_the_maps_until_they_are_due_and_ledgers_do_not() {
    let timelines = alternating("db.worker<2", "R", 6) + &format!("db.source: {}\n", "R".repeat(60));
    let run = |every: u64| {
        let mut fixture = Fixture::new(&timelines);
        let mut emitted_by = Vec::new();
        for second in 1..=6 {
            fixture.world.borrow_mut().run_until(second * 1_000 + LATE_MS);
            let events = &mut fixture.events;
            let due = |_: &Pending| second % every == 0;
            let flushed = fixture.session.drain_ledgers(&due, &mut |event| events.push(event)).unwrap();
            let flushed = flushed.expect("the second is over");
            assert_eq!(flushed.sums, second % every == 0, "second {second}");
            assert_eq!(
                ledgers(events).iter().map(|(_, second, _)| second + 1).max(),
                Some(second),
                "ledgers of each second"
            );
            emitted_by.push(samples(events).1);
        }
        (emitted_by, samples(&fixture.events).0, ledgers(&fixture.finish()))
    };
    let (each, all, all_ledgers) = run(1);
    assert_eq!(all.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert!(each.is_sorted_by(|one, next| one < next), "{each:?}");
    let (third, same, same_ledgers) = run(3);
    assert_eq!(third, [0, 0, each[2], each[2], each[2], each[5]]);
    assert_eq!((same, same_ledgers), (all, all_ledgers));
}

#[test]
fn ledgers_wait_until_they_are_due_while_nobody_is_late() {
    let calm = format!("db.source: {}\n", "R".repeat(120));
    let late = format!("{calm}db.worker: {}\n", "RRRRwwRRRR".repeat(12));
    let run = |timelines: &str, sends: bool| {
        let mut fixture = Fixture::new(timelines);
        fixture.session.send_seconds(sends);
        let mut seconds = Vec::new();
        for second in 1..=11 {
            fixture.world.borrow_mut().run_until(second * 1_000 + LATE_MS);
            let events = &mut fixture.events;
            let due = |pending: &Pending| pending.seconds >= 5;
            let flushed = fixture.session.drain_ledgers(&due, &mut |event| events.push(event)).unwrap();
            seconds.push(flushed.map_or(0, |flushed| flushed.seconds));
        }
        (seconds, ledgers(&fixture.finish()))
    };
    let (each, all) = run(&calm, false);
    assert_eq!(each, [1; 11], "the kernel side sends no seconds");
    assert_eq!(run(&calm, true), (vec![0, 0, 0, 0, 5, 0, 0, 0, 0, 5, 0], all));
    assert_eq!(run(&late, true).0, [1; 11]);
}

#[test]
fn sums_of_a_thread_come_before_its_end() {
    let timelines = alternating("db.worker<2", "R", 1) + &format!("db.source: {}\n", "R".repeat(60));
    let mut fixture = Fixture::new(&timelines);
    for second in 1..=2 {
        fixture.world.borrow_mut().run_until(second * 1_000 + LATE_MS);
        let events = &mut fixture.events;
        let flushed = fixture.session.drain_ledgers(&|_| false, &mut |event| events.push(event)).unwrap();
        assert_eq!(flushed.expect("the second is over").sums, second == 2, "second {second}");
    }
    let place = |is: fn(&Event) -> bool| fixture.events.iter().position(is).expect("the event");
    let end = place(|event| matches!(event, Event::ThreadEnd { .. }));
    assert!(place(|event| matches!(event, Event::Sample(_))) < end);
}

#[test]
fn sums_that_were_left_are_emitted_when_they_are_asked_for() {
    let timelines = alternating("db.worker<2", "R", 3) + &format!("db.source: {}\n", "R".repeat(30));
    let mut fixture = Fixture::new(&timelines);
    fixture.world.borrow_mut().run_until(1_000 + LATE_MS);
    let events = &mut fixture.events;
    fixture.session.drain_ledgers(&|_| false, &mut |event| events.push(event)).unwrap();
    assert_eq!(samples(events).1, 0);
    fixture.session.emit_sums(&mut |event| events.push(event)).unwrap();
    let (by_second, count) = samples(events);
    assert!(
        count > 0 && by_second.keys().all(|second| *second == 0),
        "of the seconds that are flushed: {by_second:?}"
    );
}

#[test]
fn seconds_wait_only_while_the_kernel_side_sends_them() {
    let mut fixture = Fixture::new(&two());
    assert!(fixture.look_at(1_000 + LATE_MS, false), "not sent");
    fixture.session.send_seconds(true);
    assert!(!fixture.look_at(2_000 + LATE_MS, false));
    fixture.session.send_seconds(false);
    assert!(fixture.look_at(3_000 + LATE_MS, false));
}

#[test]
fn lateness_of_pending_stalls_is_that_of_all_since_the_last_flush() {
    let mut fixture = Fixture::new(
        "a: RLLRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRR
         b: RRRRRRRRRRRRLLLLRRRRRRRRRRLRRRRRRRRRRRRRRRRRRRRRRR",
    );
    fixture.session.send_seconds(true);
    let mut late_ms = |ms: u64, is_due: bool| {
        fixture.world.borrow_mut().run_until(ms);
        let late_ns = std::cell::Cell::new(None);
        let is_due = |pending: &Pending| {
            late_ns.set(Some((pending.stalls, pending.late_ns / 1_000_000)));
            is_due
        };
        fixture.session.drain(&is_due, &mut |_| {}).unwrap();
        late_ns.get()
    };
    assert_eq!(late_ms(1_050, true), Some((1, 200)));
    assert_eq!(late_ms(2_050, false), Some((1, 400)));
    assert_eq!(late_ms(3_050, false), Some((2, 400)), "the later one is shorter");
    assert_eq!(late_ms(4_050, true), Some((2, 400)));
    assert_eq!(late_ms(5_050, false), Some((0, 0)), "all were flushed");
}

#[test]
fn look_within_a_second_flushes_nothing() {
    let mut fixture = Fixture::new(&two());
    assert!(!fixture.look_at(700, true));
    assert!(!fixture.look_at(1_010, true), "events of other CPUs may still be under way");
    assert!(fixture.look_at(1_030, true));
    assert!(!fixture.look_at(1_900, true));
}

#[test]
fn pause_counts_for_no_state_and_ends_threads_that_are_gone_after_it() {
    let timelines = "
        stays: RRRRRLLLLLLLLLLLLLLLRRRRRRRRRR
        gone:  RRRRRRRRRRRRR.................
        born:  ...............RRRRRLLLLLLLLLL
    ";
    let mut fixture = Fixture::new(timelines);
    fixture.run_until(1);
    fixture.world.borrow_mut().run_until(1_200);
    fixture.pause();
    assert!(!fixture.look_at(1_900, true), "nothing is flushed in a pause");
    fixture.world.borrow_mut().run_until(2_100);
    fixture.resume();
    fixture.run_until(3);
    let events = fixture.finish();
    assert_eq!(emitted(&events), shown(timelines, |tick| !(12..21).contains(&tick)));
    let ended = |event: &Event| match event {
        Event::ThreadEnd { thread, at } => Some((thread.0, (at.0 - START) / TICK_NS)),
        _ => None,
    };
    let ends: Vec<_> = events.iter().filter_map(ended).filter(|(thread, _)| *thread == 2).collect();
    assert_eq!(ends, [(2, 12)], "where the last delta of the thread ended");
}

#[test]
fn clock_step_renumbers_later_seconds_and_loses_no_time() {
    for (hours, sends) in [(1, false), (1, true), (-1, false), (-1, true)] {
        let timelines = two();
        let mut fixture = Fixture::new(&timelines);
        fixture.session.send_seconds(sends);
        fixture.look_at(1_000 + LATE_MS, !sends);
        let step = hours * 3_600 * SECOND_NS as i64 + 300_000_000;
        let offset = fixture.world.borrow().epoch_offset;
        fixture.world.borrow_mut().epoch_offset = offset.strict_add_signed(step);
        assert!(fixture.look_at(2_000 + LATE_MS, false), "a step is not waited for");
        for second in 3..=5 {
            fixture.look_at(second * 1_000 + LATE_MS, true);
        }
        let events = fixture.finish();
        let clocks = events.iter().filter(|event| matches!(event, Event::Clock(_))).count();
        assert_eq!(clocks, 3, "at the start, at the step and at the end");
        let total = |wall: &dyn Fn(u32) -> bool| {
            let ledgers = events.iter().filter_map(|event| match event {
                Event::Ledger(delta) if wall(delta.second.0) => Some(delta.wall_ns),
                _ => None,
            });
            ledgers.sum::<u64>()
        };
        assert_eq!(total(&|_| true), 50 * TICK_NS + 47 * TICK_NS);
        let renumbered = (FIRST as i64 + hours * 3_600) as u32;
        assert_eq!(total(&|second| second.abs_diff(renumbered) < 100), 2 * 30 * TICK_NS, "after the step");
    }
}

#[test]
fn lost_records_are_counted_and_lose_no_time() {
    let timelines = two();
    let mut fixture = Fixture::new(&timelines);
    fixture.session.send_seconds(true);
    fixture.world.borrow_mut().rings_are_full = true;
    fixture.look_at(3_000 + LATE_MS, true);
    fixture.world.borrow_mut().rings_are_full = false;
    fixture.run_until(5);
    let events = fixture.finish();
    let wall = events.iter().filter_map(|event| match event {
        Event::Ledger(delta) => Some(delta.wall_ns),
        _ => None,
    });
    assert_eq!(wall.sum::<u64>(), 97 * TICK_NS);
    // Three seconds and two waits of the server, and one second of the worker.
    assert_eq!(losses(&events).get("stalls_ring_full"), Some(&6));
    let open = [(1, 30, 40, true), (2, 23, 40, true)];
    // The server's poll and its wait for a CPU are two stalls, since only the poll is voluntary.
    let ended = [(1, 30, 46, false), (1, 46, 47, false), (2, 23, 49, false)];
    assert_eq!(stalls(&events), [open.as_slice(), &ended].concat());
}

#[test]
fn cpu_that_comes_online_is_reported_once() {
    let mut fixture = Fixture::new(&two());
    fixture.run_until(1);
    fixture.world.borrow_mut().new_cpus = 1;
    fixture.run_until(5);
    assert_eq!(losses(&fixture.finish()), BTreeMap::from([("cpus_came_online", 1)]));
}

#[test]
fn nothing_is_lost_where_nothing_is_wrong() {
    let mut fixture = Fixture::new(&two());
    fixture.run_until(5);
    assert_eq!(losses(&fixture.finish()), BTreeMap::new());
}

#[test]
fn wait_is_emitted_while_it_is_open_and_again_when_it_ends() {
    let mut fixture = Fixture::new("waits: RRRLLLLLLLLLLLLLLLLLLLLLLLLLLR");
    fixture.run_until(2);
    assert_eq!(stalls(&fixture.events), [(1, 3, 20, true)]);
    fixture.run_until(3);
    assert_eq!(stalls(&fixture.finish()), [(1, 3, 20, true), (1, 3, 29, false)]);
}

/// The voluntary part is over at the wakeup, and yet comes once.
#[test]
fn open_wait_that_is_divided_at_its_wakeup_comes_once() {
    let mut fixture = Fixture::new("waits: RRRppppppppwwwwwwwwwwwwwwwwwwwR");
    fixture.run_until(2);
    assert_eq!(stalls(&fixture.events), [(1, 11, 20, true)]);
    fixture.run_until(4);
    assert_eq!(stalls(&fixture.finish()), [(1, 11, 20, true), (1, 3, 11, false), (1, 11, 30, false)]);
}

#[test]
fn wait_that_is_open_at_the_end_lasts_to_the_end() {
    let mut fixture = Fixture::new("waits: RRRLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLL");
    fixture.run_until(2);
    fixture.world.borrow_mut().run_until(2_500);
    assert_eq!(stalls(&fixture.finish()), [(1, 3, 20, true), (1, 3, 25, true)]);
}

#[test]
fn wait_that_is_open_at_the_end_has_the_stack_that_it_had_before() {
    // The second end is one at which a wait is old enough to be emitted while it is open.
    for (end_ms, ticks) in [(1_900, 19), (2_900, 29)] {
        let mut fixture = Fixture::new("waits: RRRLLLLLLLLLRRRRcccccccccccccccccccc");
        fixture.run_until(1);
        fixture.world.borrow_mut().run_until(end_ms);
        let events = fixture.finish();
        assert_eq!(stalls(&events), [(1, 3, 12, false), (1, 16, ticks, true)]);
        let Some(Event::Stall(last)) = events.iter().rfind(|event| matches!(event, Event::Stall(_))) else {
            panic!("a stall")
        };
        assert!(last.user.is_some());
    }
}

#[test]
fn stall_of_a_thread_that_is_never_known_is_a_loss() {
    let mut fixture = Fixture::new("one: RRRRRRRRRRRRRRRRRRRRRRRRRRRRRR");
    fixture.run_until(1);
    fixture.session.pending.stalls.push(wallprof_probe::bpf::stall_record {
        key: 99,
        start: START,
        end: START + TICK_NS,
        ..Default::default()
    });
    fixture.run_until(2);
    assert_eq!(losses(&fixture.finish()), BTreeMap::from([("stalls_of_unknown_threads", 1)]));
}

#[test]
fn thread_is_defined_before_events_refer_to_it() {
    let mut fixture = Fixture::new(&two());
    fixture.run_until(5);
    let mut defined = Vec::new();
    for event in fixture.finish() {
        let refers_to = |thread: ThreadKey| assert!(defined.contains(&thread), "{thread:?} is not defined");
        match event {
            Event::Thread(thread) => defined.push(thread.key),
            Event::Ledger(delta) => refers_to(delta.thread),
            Event::Stall(stall) => refers_to(stall.thread),
            Event::ThreadEnd { thread, .. } => refers_to(thread),
            _ => {}
        }
    }
    assert_eq!(defined, [ThreadKey(1), ThreadKey(2)]);
}

/// Waits on a condition variable, for `seconds`: (tick of the wait's end, whether it is known to be for a lock)
/// of those that were emitted, by thread. Voluntary waits below a second are too many to be emitted one by one.
fn emitted_waits(timelines: &str, seconds: u64) -> BTreeMap<u32, Vec<(u64, bool)>> {
    let mut fixture = Fixture::new(timelines);
    fixture.world.borrow_mut().voluntary_ns = SECOND_NS;
    fixture.world.borrow_mut().first_waits_left = 1_000;
    fixture.run_until(seconds);
    let mut waits: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    for event in fixture.finish() {
        if let Event::Stall(stall) = event
            && stall.reason == StallReason::Blocked(Reason::Wait)
        {
            let tick = (stall.end.0 - START) / TICK_NS;
            waits.entry(stall.thread.0).or_default().push((tick, !stall.is_idle()));
        }
    }
    waits
}

/// A line for a thread that waits and runs in turn, a tick each.
fn alternating(name: &str, first: &str, seconds: usize) -> String {
    format!("{name}: {first}{}\n", "cR".repeat(seconds * 5))
}

/// Lines for three threads of `program` that take a lock in turn, a tick each, after `idle` ticks.
fn taking_turns(program: &str, idle: usize, seconds: usize) -> String {
    let holder = |turn: usize| (turn * 7 + turn / 5) % 3;
    let line = |thread: usize| {
        let turns = (0..seconds * 10).map(|turn| if holder(turn) == thread { 'R' } else { 'c' });
        format!("{program}.t{thread}<*: {}{}\n", "R".repeat(idle), turns.collect::<String>())
    };
    (0..3).map(line).collect()
}

#[test]
fn waits_of_a_lock_are_emitted_and_those_of_a_queue_are_folded() {
    let timelines = [
        taking_turns("db", 0, 30),
        alternating("web.worker<5", "R", 30),
        format!("web.source: {}\n", "R".repeat(300)),
    ];
    let waits = emitted_waits(&timelines.concat(), 30);
    let lock = &waits[&1];
    let ended = timelines[0].lines().next().expect("a thread").matches("cR").count();
    assert_eq!(lock.len(), ended, "all of them, long after the first ones");
    let is_known = |(tick, is_lock): &(u64, bool)| *is_lock || *tick < 30;
    assert!(lock.iter().all(is_known), "from the third second on: {lock:?}");
    let queue = &waits[&4];
    assert!(queue.len() < 64, "{} of 150", queue.len());
    let (last, is_lock) = *queue.last().expect("the first waits");
    assert_eq!((last, is_lock), (40, false), "the verdict ends it: {queue:?}");
}

#[test]
fn unknown_place_emits_its_first_waits_only() {
    // A sixth of the waited time is ended by a peer, which is neither a lock nor a queue.
    let timelines = [
        format!("db.locks<2: {}\n", "RcRRRRRRRR".repeat(30)),
        format!("db.peer: Rc{}\n", "R".repeat(298)),
        alternating("db.sleeps", "R", 30),
    ];
    let waits = emitted_waits(&timelines.concat(), 30);
    assert_eq!([waits[&1].len(), waits[&2].len(), waits[&3].len()], [30, 1, 64]);
    assert!(waits.values().flatten().all(|(_, is_lock)| !is_lock), "{waits:?}");
}

#[test]
fn first_waits_are_limited_for_all_places_together() {
    let mut fixture = Fixture::new(&alternating("db.sleeps", "R", 2));
    fixture.world.borrow_mut().voluntary_ns = SECOND_NS;
    fixture.world.borrow_mut().first_waits_left = 2;
    fixture.run_until(1);
    assert_eq!(stalls(&fixture.events), [(1, 1, 2, false), (1, 3, 4, false)]);
    assert!(fixture.world.borrow().first_waits_left > 2, "each flush allows more");
}

#[test]
fn thread_that_sleeps_when_the_recording_starts_has_a_place_at_once() {
    let asleep = format!("db.peer: {}R\n", "c".repeat(60));
    let mut fixture = Fixture::new(&asleep);
    assert_eq!(fixture.session.places.known(), 1, "before the first flush");
    assert_eq!(stalls(&fixture.events), [], "it is emitted when it lasts");
    fixture.run_until(1);
    assert_eq!(stalls(&fixture.events), [(1, 0, 10, true)]);
    fixture.run_until(8);
    assert_eq!(stalls(&fixture.finish()), [(1, 0, 10, true), (1, 0, 60, false)], "and once at its end");
}

#[test]
fn a_thread_that_ends_between_the_rings_and_the_snapshot_is_known_in_that_flush() {
    let timelines = "one: RRRRRRRRRRRRRRRRRRRRRRRRRRRRRR
        old: RRRRRRRRRRPRRRRRRRRRR
        new: ............RRRRRRRRR";
    let mut fixture = Fixture::new(timelines);
    fixture.run_until(1);
    fixture.world.borrow_mut().late_snapshot_ms = Some(2_200);
    assert!(fixture.look_at(2_050, true));
    // The sums of its second follow in the same flush.
    let is_new = |event: &Event| matches!(event, Event::Thread(thread) if thread.key == ThreadKey(3));
    assert!(fixture.events.iter().any(is_new), "{:#?}", fixture.events);
    assert_eq!(emitted(&fixture.finish()), shown(timelines, |tick| tick < 22));
}

#[test]
fn short_sleep_at_the_start_is_emitted_once() {
    let mut fixture = Fixture::new("db.peer: cccRRRRRRRRRRRRRRRRRRRRRRRRR");
    fixture.run_until(2);
    assert_eq!(stalls(&fixture.finish()), [(1, 0, 3, false)]);
}

#[test]
fn place_that_becomes_a_lock_is_emitted_again() {
    // Thread 4 ends the waits of three idle threads for ten seconds; then they take turns.
    let idle = |line: &str| line.replacen(&"R".repeat(100), &"cR".repeat(50), 1);
    let lock: String = taking_turns("db", 100, 20).lines().map(|line| idle(line) + "\n").collect();
    let source = format!("db.source: {}\n", "R".repeat(300));
    let waits = &emitted_waits(&(lock + &source), 30)[&1];
    let in_seconds =
        |range: std::ops::Range<u64>| waits.iter().filter(|(tick, _)| range.contains(&(tick / 10))).count();
    assert!(in_seconds(0..5) > 0, "the first ones");
    assert_eq!(in_seconds(6..10), 0, "{waits:?}");
    assert!(in_seconds(25..30) > 10, "{waits:?}");
    assert_eq!(waits.last().map(|(_, is_lock)| *is_lock), Some(true));
}

/// States of one thread, each for some ticks. A thread wakes only from a wait, and then runs.
fn timeline() -> impl Strategy<Value = String> {
    let run = prop_oneof![Just("R"), Just("RP"), Just("RL"), Just("Rp"), Just("RLw"), Just("Rpw")];
    proptest::collection::vec((run, 1usize..14, 1usize..14, 1usize..4), 1..12).prop_map(|parts| {
        let ticks = parts.iter().flat_map(|(states, a, b, c)| {
            states.chars().zip([*a, *b, *c]).flat_map(|(state, ticks)| std::iter::repeat_n(state, ticks))
        });
        ticks.take(80).collect()
    })
}

proptest! {
    /// However rarely seconds are flushed, each is emitted as the timeline shows it.
    #[test]
    fn any_timeline_is_emitted_as_it_is(
        lines in proptest::collection::vec((timeline(), 0usize..15), 1..4),
        due in 1u64..9,
    ) {
        let line = |(states, from): &(String, usize)| format!("thread: {}{states}\n", ".".repeat(*from));
        let timelines: String = lines.iter().map(line).collect();
        let mut fixture = Fixture::new(&timelines);
        fixture.session.send_seconds(true);
        for second in 1..=10 {
            fixture.look_at(second * 1_000 + LATE_MS, second % due == 0);
        }
        prop_assert_eq!(emitted(&fixture.finish()), shown(&timelines, |_| true), "{}", timelines);
    }
}
