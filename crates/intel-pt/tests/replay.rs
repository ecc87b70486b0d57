// SPDX-License-Identifier: Apache-2.0
//! Replays the synthetic recordings and compares the counts with the truth.

mod support;

use std::collections::BTreeMap;

use support::elf::Program;
use support::perf_data::Recording;
use support::truth::Truth;
use wallprof_intel_pt::replay::{
    CallTree, Frame, PathId, Stretch, ThreadCalls, ThreadReplay, functions, replay_segment,
};
use wallprof_intel_pt::{
    Code, Event, EventKind, RunCache, Segment, SpaceId, Switch, ThreadId, Trace, decode_segment,
    segment_starts,
};

struct Replayed {
    threads: BTreeMap<ThreadId, ThreadCalls>,
    events: Vec<Event>,
    program: Program,
}

fn replay(name: &str, segments_a_piece: usize) -> Replayed {
    let recording = Recording::parse(&support::recording(&format!("{name}.perf.data.xz")));
    let program = Program::parse(support::recording("target.elf.xz"));
    let trace = Trace {
        bytes: &recording.trace,
        code: &program,
        schedule: &recording.schedule,
        clock: recording.clock,
        return_compression: true,
    };
    let mut starts: Vec<usize> = segment_starts(trace.bytes).into_iter().step_by(segments_a_piece).collect();
    starts.push(trace.bytes.len());
    let mut replays: BTreeMap<ThreadId, ThreadReplay> = BTreeMap::new();
    let mut last = 0;
    for (index, piece) in starts.windows(2).enumerate() {
        let segment = Segment { start: piece[0], end: piece[1], first: index == 0 };
        let (decoded, stretches): (_, Vec<Stretch>) =
            replay_segment(&trace, segment, recording.time_conv, &mut RunCache::new());
        for stretch in &stretches {
            let new = || ThreadReplay::new(stretch.thread, recording.time_conv);
            replays.entry(stretch.thread).or_insert_with(new).add(stretch);
        }
        last = decoded.last_ticks;
    }
    let threads = replays.into_iter().map(|(thread, replay)| (thread, replay.finish(last))).collect();
    let whole = Segment { start: 0, end: trace.bytes.len(), first: true };
    let mut events = Vec::new();
    decode_segment(&trace, whole, &mut RunCache::new(), &mut events);
    Replayed { threads, events, program }
}

/// Every path as text with all its numbers.
fn paths(calls: &ThreadCalls) -> Vec<String> {
    let text = |path: PathId| {
        let mut frames = Vec::new();
        let mut at = Some(path);
        while let Some(path) = at {
            frames.push(format!("{:?}", calls.tree.frame(path)));
            at = calls.tree.parent(path);
        }
        frames.reverse();
        let numbers = calls.tree.numbers(path);
        let counts = [numbers.calls, numbers.incomplete, numbers.entered_before, numbers.unwound];
        let ticks = [numbers.self_ticks, numbers.call_ticks, numbers.partial_ticks];
        let range = (numbers.min_ticks, numbers.max_ticks, numbers.histogram());
        format!("{} {counts:?} {ticks:?} {range:?}", frames.join(";"))
    };
    let mut found: Vec<String> = calls.tree.paths(CallTree::ROOT).into_iter().map(text).collect();
    found.sort();
    found
}

fn assert_invariants(calls: &ThreadCalls) {
    let all = calls.tree.paths(CallTree::ROOT);
    let spent: u64 = all.iter().map(|&path| calls.tree.numbers(path).self_ticks).sum();
    assert_eq!(spent, calls.last - calls.first, "self times add up to the span");
    for path in all {
        assert!(!matches!(calls.tree.frame(path), Frame::Floor(_)));
        assert_eq!(calls.tree.numbers(path).histogram().count(), calls.tree.numbers(path).calls);
    }
}

/// Without gaps a path's time is its own and its children's. After a gap, open calls count no further.
fn assert_sums(calls: &ThreadCalls) {
    for path in calls.tree.paths(CallTree::ROOT).into_iter().skip(1) {
        let numbers = calls.tree.numbers(path);
        let children: u64 =
            calls.tree.children(path).map(|child| calls.tree.numbers(child).total_ticks()).sum();
        assert_eq!(numbers.total_ticks(), numbers.self_ticks + children, "{:?}", calls.tree.frame(path));
    }
}

/// Calls of each function: those of the truth, and also jumps to its entry and starts there.
fn expected_calls(
    truth: &Truth,
    events: &[Event],
    thread: ThreadId,
    program: &Program,
) -> BTreeMap<Frame, u64> {
    let frame = |address| match program.function(SpaceId(1), address) {
        Some(function) => Frame::Function(function.id),
        None => Frame::Address(address),
    };
    let mut expected = BTreeMap::new();
    for call in truth.transfers.iter().filter(|transfer| transfer.is_call) {
        *expected.entry(frame(call.to)).or_default() += 1;
    }
    let mut current = ThreadId::NONE;
    let mut expected_back = None;
    for event in events {
        match event.kind {
            EventKind::Switch(Switch { thread, .. }) => current = thread,
            _ if current != thread => {}
            EventKind::End { return_to, .. } => expected_back = Some(return_to),
            EventKind::Jump { .. } if event.at_entry => *expected.entry(frame(event.to)).or_default() += 1,
            EventKind::Start if event.at_entry && expected_back != Some(event.to) => {
                *expected.entry(frame(event.to)).or_default() += 1;
            }
            _ => {}
        }
    }
    expected
}

fn assert_counts(replayed: &Replayed, name: impl Fn(ThreadId) -> String) {
    for (&thread, calls) in &replayed.threads {
        assert_invariants(calls);
        assert_sums(calls);
        let truth = Truth::parse(&support::recording(&name(thread)));
        let expected = expected_calls(&truth, &replayed.events, thread, &replayed.program);
        let mut found: BTreeMap<Frame, u64> = functions(&calls.tree)
            .into_iter()
            .map(|(frame, function)| (frame, function.numbers.calls + function.numbers.incomplete))
            .filter(|(frame, _)| frame.label().is_none())
            .collect();
        found.retain(|_, calls| *calls != 0);
        let different = expected.iter().find(|(frame, calls)| found.get(frame) != Some(calls));
        assert_eq!(different, None, "{:?}", different.map(|(frame, _)| found.get(frame)));
        assert_eq!(found.len(), expected.len());
    }
}

#[test]
fn one_thread() {
    if !support::has_recordings("one_thread") {
        return;
    }
    let replayed = replay("one_thread", 1);
    assert_eq!(replayed.threads.len(), 1);
    assert_counts(&replayed, |_| "one_thread.truth.txt.xz".to_owned());
}

#[test]
fn threads_that_share_a_cpu() {
    if !support::has_recordings("threads_that_share_a_cpu") {
        return;
    }
    let replayed = replay("cpu_wide", 1);
    assert_eq!(replayed.threads.len(), 4);
    assert_counts(&replayed, |thread| format!("cpu_wide.tid{}.truth.txt.xz", thread.0));
}

#[test]
fn gaps_change_nothing_else() {
    if !support::has_recordings("gaps_change_nothing_else") {
        return;
    }
    let replayed = replay("cpu_wide_ovf", 1);
    for calls in replayed.threads.values() {
        assert_invariants(calls);
    }
}

#[test]
fn division_into_segments_changes_nothing() {
    if !support::has_recordings("division_into_segments_changes_nothing") {
        return;
    }
    for name in ["one_thread", "cpu_wide", "cpu_wide_ovf"] {
        let (one, three, all) = (replay(name, 1), replay(name, 3), replay(name, usize::MAX));
        for (thread, calls) in &one.threads {
            for other in [&three, &all] {
                let (one, other) = (paths(calls), paths(&other.threads[thread]));
                let different = one.iter().zip(&other).find(|(one, other)| one != other);
                assert_eq!(different, None);
                assert_eq!(one.len(), other.len());
            }
        }
    }
}
