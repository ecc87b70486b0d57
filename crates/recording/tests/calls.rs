// SPDX-License-Identifier: Apache-2.0
//! Call paths are read as they were emitted: their tree, their functions and their numbers.

mod fixture;

use fixture::*;
use wallprof_model::{
    CallFrame, CallNumbers, CallPath, CallPathId, Event, FrameId, Histogram, Outside, ThreadCalls, ThreadKey,
};
use wallprof_recording::{Recording, UNKNOWN_REFERENCE};

/// Calls of these lengths.
fn numbers(lengths: &[u64]) -> CallNumbers {
    let mut latency = Histogram::default();
    lengths.iter().for_each(|&ns| latency.record(ns));
    let complete_ns = lengths.iter().sum();
    CallNumbers {
        calls: lengths.len() as u64,
        incomplete: 1,
        entered_before: 2,
        unwound: 3,
        self_ns: 10,
        total_ns: complete_ns + 5,
        complete_ns,
        min_ns: lengths.iter().copied().min().unwrap_or(0),
        max_ns: lengths.iter().copied().max().unwrap_or(0),
        latency,
    }
}

fn path(id: u32, parent: Option<u32>, frame: CallFrame<FrameId>, lengths: &[u64]) -> Event {
    Event::CallPath(Box::new(CallPath {
        id: CallPathId(id),
        thread: ThreadKey(7),
        parent: parent.map(CallPathId),
        frame,
        numbers: numbers(lengths),
    }))
}

fn recording_of(events: Vec<Event>) -> (Place, Recording) {
    let place = place();
    let mut recorder = recorder(&place.file());
    take_all(&mut recorder, definitions());
    take_all(&mut recorder, events);
    recorder.finish(at(2_000_000_000)).unwrap();
    let recording = Recording::open(&place.file()).unwrap();
    (place, recording)
}

/// Each path as its functions, outermost first, with its numbers.
fn numbers_of(calls: &ThreadCalls) -> Vec<(String, CallNumbers)> {
    let mut names: Vec<String> = Vec::new();
    for path in &calls.paths {
        let own = match &path.frame {
            CallFrame::Outside(outside) => outside.label().to_owned(),
            CallFrame::Code(frame) => match &frame.lines[0].symbol {
                Some(symbol) => symbol.clone(),
                None => format!("{}+{:#x}", frame.module.as_deref().unwrap_or(""), frame.address),
            },
        };
        let caller = path.parent.map(|parent| format!("{};", names[parent]));
        names.push(caller.unwrap_or_default() + &own);
    }
    names.into_iter().zip(calls.paths.iter().map(|path| path.numbers.clone())).collect()
}

const MAIN: CallFrame<FrameId> = CallFrame::Code(FrameId(0));
const WAIT: CallFrame<FrameId> = CallFrame::Code(FrameId(1));
const BLOCKED: CallFrame<FrameId> = CallFrame::Outside(Outside::Blocked);

#[test]
fn paths_are_read_with_their_functions_and_numbers() {
    let (_place, recording) = recording_of(vec![
        path(40, None, MAIN, &[1_000]),
        path(3, Some(40), WAIT, &[7, 900, 70]),
        path(9, Some(3), BLOCKED, &[]),
        path(8, Some(40), BLOCKED, &[12]),
    ]);
    let thread = ThreadKey(1);
    assert_eq!(recording.threads_with_calls().unwrap(), [thread]);
    let expected = [
        ("main", numbers(&[1_000])),
        ("main;/usr/bin/server+0x2000", numbers(&[7, 900, 70])),
        ("main;/usr/bin/server+0x2000;[blocked]", numbers(&[])),
        ("main;[blocked]", numbers(&[12])),
    ];
    let expected: Vec<_> = expected.into_iter().map(|(names, numbers)| (names.to_owned(), numbers)).collect();
    assert_eq!(numbers_of(&recording.calls(thread).unwrap()), expected);
}

#[test]
fn path_that_is_emitted_again_adds_up() {
    let place = place();
    let mut recorder = recorder(&place.file());
    take_all(&mut recorder, definitions());
    for (second, lengths) in [(0, &[][..]), (1, &[50, 3]), (2, &[20]), (3, &[])] {
        recorder.take(path(0, None, MAIN, lengths)).unwrap();
        recorder.commit(at(second)).unwrap();
    }
    recorder.finish(at(9)).unwrap();
    let calls = Recording::open(&place.file()).unwrap().calls(ThreadKey(1)).unwrap();
    let mut sum = numbers(&[50, 3, 20]);
    (sum.incomplete, sum.entered_before, sum.unwound, sum.self_ns) = (4, 8, 12, 40);
    sum.total_ns = sum.complete_ns + 20;
    assert_eq!(numbers_of(&calls), [("main".to_owned(), sum)]);
}

#[test]
fn path_below_an_undefined_one_is_lost_and_counted() {
    let elsewhere = |event: Event| match event {
        Event::CallPath(path) => Event::CallPath(Box::new(CallPath { thread: ThreadKey(8), ..*path })),
        other => other,
    };
    let (_place, recording) = recording_of(vec![
        Event::Thread(thread(8, "other")),
        path(0, None, MAIN, &[]),
        path(1, Some(5), MAIN, &[]),
        path(2, Some(1), MAIN, &[]),
        path(3, Some(0), CallFrame::Code(FrameId(99)), &[]),
        // The path of that number is another thread's.
        elsewhere(path(4, Some(0), MAIN, &[])),
    ]);
    assert_eq!(numbers_of(&recording.calls(ThreadKey(1)).unwrap()).len(), 1);
    assert_eq!(recording.threads_with_calls().unwrap(), [ThreadKey(1)]);
    assert_eq!(recording.info().unwrap().losses[UNKNOWN_REFERENCE], 4);
}

#[test]
fn coarsest_resolution_is_kept() {
    let (_place, recording) = recording_of(vec![]);
    assert_eq!(recording.info().unwrap().call_resolution_ns, None);
    assert_eq!(recording.calls(ThreadKey(1)).unwrap().paths, []);
    let (_place, recording) =
        recording_of(vec![Event::CallResolution(2), Event::CallResolution(40), Event::CallResolution(1)]);
    assert_eq!(recording.info().unwrap().call_resolution_ns, Some(40));
}
