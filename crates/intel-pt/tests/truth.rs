// SPDX-License-Identifier: Apache-2.0
//! Decodes the synthetic recordings, and compares every call and return with the truth.

mod support;

use std::collections::BTreeMap;

use support::elf::Program;
use support::perf_data::Recording;
use support::truth::{Transfer, Truth};
use wallprof_intel_pt::{
    Event, EventKind, RunCache, Segment, ThreadId, Trace, decode_segment, segment_starts,
};

struct Decoding {
    events: Vec<Event>,
    recording: Recording,
}

fn decode(name: &str) -> Decoding {
    let recording = Recording::parse(&support::recording(&format!("{name}.perf.data.xz")));
    let program = Program::parse(support::recording("target.elf.xz"));
    let trace = Trace {
        bytes: &recording.trace,
        code: &program,
        schedule: &recording.schedule,
        clock: recording.clock,
        return_compression: true,
    };
    let whole = Segment { start: 0, end: recording.trace.len(), first: true };
    let mut events = Vec::new();
    decode_segment(&trace, whole, &mut RunCache::new(), &mut events);
    assert_eq!(in_segments(&trace), events, "segments decode independently");
    Decoding { events, recording }
}

/// Each segment alone, the last ones first, with a cache of its own every other time.
fn in_segments(trace: &Trace<'_, Program>) -> Vec<Event> {
    let starts = segment_starts(trace.bytes);
    let mut cache = RunCache::new();
    let mut pieces = Vec::new();
    for (index, &start) in starts.iter().enumerate().rev() {
        if index % 2 == 0 {
            cache = RunCache::new();
        }
        let end = starts.get(index + 1).copied().unwrap_or(trace.bytes.len());
        let mut events: Vec<Event> = Vec::new();
        decode_segment(trace, Segment { start, end, first: index == 0 }, &mut cache, &mut events);
        pieces.push(events);
    }
    pieces.into_iter().rev().flatten().collect()
}

/// Calls and returns by thread.
fn transfers(events: &[Event]) -> BTreeMap<ThreadId, Vec<Transfer>> {
    let mut thread = ThreadId::NONE;
    let mut found: BTreeMap<ThreadId, Vec<Transfer>> = BTreeMap::new();
    for event in events {
        let is_call = match event.kind {
            EventKind::Switch(switch) => {
                thread = switch.thread;
                continue;
            }
            EventKind::Call { .. } => true,
            EventKind::Return => false,
            _ => continue,
        };
        let transfer = Transfer { is_call, from: event.from, to: event.to, ticks: event.ticks };
        found.entry(thread).or_default().push(transfer);
    }
    found
}

/// Compares `found` with the truth. Calls may be missing that were open at a loss, if nothing in the trace
/// proves them.
fn assert_equal(found: &[Transfer], truth: &Truth, decoding: &Decoding) {
    let mut expected = truth.transfers.iter().enumerate();
    let mut errors = Vec::new();
    let ends = |transfer: &Transfer| (transfer.is_call, transfer.from, transfer.to);
    for found in found {
        let (mut index, mut transfer) = expected.next().expect("no more than the truth");
        while ends(found) != ends(transfer) {
            assert!(transfer.is_call && truth.losses.contains(&(index + 1)), "{found:x?} {transfer:x?}");
            (index, transfer) = expected.next().expect("no more than the truth");
        }
        errors.push(found.ticks.abs_diff(transfer.ticks));
    }
    assert_eq!(expected.next(), None);
    errors.sort_unstable();
    let share = |of: usize| decoding.recording.time_conv.delta_ns(errors[(errors.len() - 1) * of / 1000]);
    eprintln!(
        "errors in ns: median {}, p99 {}, p99.9 {}, max {}",
        share(500),
        share(990),
        share(999),
        share(1000)
    );
    assert!(share(990) <= 25);
}

#[test]
fn one_thread() {
    if !support::has_recordings("one_thread") {
        return;
    }
    let decoding = decode("one_thread");
    let truth = Truth::parse(&support::recording("one_thread.truth.txt.xz"));
    let found = transfers(&decoding.events);
    assert_eq!(found.len(), 1);
    assert_equal(&found[&ThreadId(5000)], &truth, &decoding);
}

#[test]
fn threads_that_share_a_cpu() {
    if !support::has_recordings("threads_that_share_a_cpu") {
        return;
    }
    let decoding = decode("cpu_wide");
    let found = transfers(&decoding.events);
    assert_eq!(found.len(), 4);
    for (thread, found) in &found {
        let truth = support::recording(&format!("cpu_wide.tid{}.truth.txt.xz", thread.0));
        assert_equal(found, &Truth::parse(&truth), &decoding);
    }
}

#[test]
fn threads_with_overflows() {
    if !support::has_recordings("threads_with_overflows") {
        return;
    }
    let decoding = decode("cpu_wide_ovf");
    let found = transfers(&decoding.events);
    assert_eq!(found.len(), 4);
    for (thread, found) in &found {
        let truth = support::recording(&format!("cpu_wide_ovf.tid{}.truth.txt.xz", thread.0));
        assert_equal(found, &Truth::parse(&truth), &decoding);
    }
    let gaps = decoding.events.iter().filter(|event| matches!(event.kind, EventKind::Gap(_))).count();
    let resumptions = decoding.events.iter().filter(|event| event.kind == EventKind::Resume).count();
    assert_eq!((gaps, resumptions), (13, 13));
}
