// SPDX-License-Identifier: Apache-2.0
//! The messages that are written, decoded again. `tests/readers` decodes them by Perfetto's own definitions.

use std::collections::HashMap;

use prost::Message;
use wallprof_model::event::LedgerDelta;
use wallprof_model::profile::WakerRecord;
use wallprof_model::{
    Counter, CounterKind, EpochSecond, Histogram, MonoNs, Reason, StallKind, StallReason, ThreadInfo,
    ThreadKey, ThreadRef,
};

use super::messages::{INCREMENTAL_STATE_CLEARED, TracePacket};
use super::*;

const ENGINE: ThreadKey = ThreadKey(1);
const KEEPER: ThreadKey = ThreadKey(2);
const LOCK: StallReason = StallReason::Blocked(Reason::Lock);

fn thread(key: ThreadKey, tid: u32, comm: &str) -> Thread {
    let info = ThreadInfo::new(key, (42, "matchd"), (tid, comm));
    let ledger = LedgerDelta::new(key, EpochSecond(0));
    let latency: std::collections::BTreeMap<_, Histogram> = Default::default();
    Thread { info, start: MonoNs(0), end: MonoNs(100), ledger, latency, stalls: 0 }
}

/// Without anchors epoch and monotonic times are the same.
fn info() -> RecordingInfo {
    RecordingInfo { start: MonoNs(0), end: MonoNs(10_000_000_000), ..RecordingInfo::default() }
}

/// A stall of `engine` on a lock: woken 5 ns before its end.
fn lock_stall(id: u64, start: u64, ns: u64) -> StallRecord {
    let mut stall = StallRecord::new(id, ENGINE, LOCK, MonoNs(start), ns);
    (stall.blocked_ns, stall.runnable_ns) = (ns - 5, 5);
    stall
}

fn woken_by(mut stall: StallRecord, key: Option<ThreadKey>, tid: u32) -> StallRecord {
    let thread = ThreadRef { key, pid: 42, tid, comm: "keeper".into(), title: None };
    stall.waker = Some(WakerRecord { thread: Some(thread), user: None, kernel: None });
    stall
}

/// An event with its texts, as a reader of the format finds them.
#[derive(Debug, PartialEq)]
struct Read {
    at: u64,
    track: u64,
    kind: i32,
    name: String,
    category: String,
    event: TrackEvent,
    texts: HashMap<u64, String>,
}

fn packets(write: impl FnOnce(&mut Trace<'_>), limit: Option<usize>) -> Vec<TracePacket> {
    let (mut file, info) = (Vec::new(), info());
    let sequence = match limit {
        Some(limit) => Sequence::with_limit(&mut file, limit),
        None => Sequence::new(&mut file),
    };
    let threads = [thread(ENGINE, 43, "engine"), thread(KEEPER, 44, "keeper")];
    let mut trace = Trace::start(sequence, &info, &threads).unwrap();
    write(&mut trace);
    trace.finish().unwrap();
    drop(trace);
    let (mut rest, mut packets) = (file.as_slice(), Vec::new());
    while let Some((0x0a, after)) = rest.split_first().map(|(key, after)| (*key, after)) {
        rest = after;
        packets.push(TracePacket::decode_length_delimited(&mut rest).unwrap());
    }
    assert!(rest.is_empty(), "only packets");
    packets
}

/// The events of a trace, and the names of its tracks by number.
fn read(packets: &[TracePacket]) -> (Vec<Read>, HashMap<u64, String>) {
    let (mut names, mut categories, mut values) = (HashMap::new(), HashMap::new(), HashMap::new());
    let (mut events, mut tracks) = (Vec::new(), HashMap::new());
    for packet in packets {
        if packet.sequence_flags == Some(INCREMENTAL_STATE_CLEARED) {
            (names, categories, values) = Default::default();
        }
        let interned = packet.interned_data.clone().unwrap_or_default();
        let add = |to: &mut HashMap<u64, String>, fresh: Vec<messages::Interned>| {
            to.extend(fresh.into_iter().map(|one| (one.iid.unwrap(), one.text.unwrap())));
        };
        add(&mut names, interned.event_names);
        add(&mut categories, interned.event_categories);
        add(&mut values, interned.debug_annotation_string_values);
        if let Some(track) = &packet.track_descriptor {
            let thread = track.thread.as_ref().and_then(|thread| thread.thread_name.clone());
            let process = track.process.as_ref().and_then(|process| process.process_name.clone());
            let name = track.name.clone().or(thread).or(process).unwrap_or_default();
            assert!(tracks.insert(track.uuid.unwrap(), name).is_none(), "each track is described once");
        }
        let Some(event) = packet.track_event.clone() else { continue };
        let text = |texts: &HashMap<u64, String>, iid: Option<&u64>| {
            iid.map(|iid| texts[iid].clone()).unwrap_or_default()
        };
        assert!(tracks.contains_key(&event.track_uuid.unwrap()), "a track is described before its events");
        events.push(Read {
            at: packet.timestamp.unwrap(),
            track: event.track_uuid.unwrap(),
            kind: event.r#type.unwrap(),
            name: text(&names, event.name_iid.as_ref()),
            category: text(&categories, event.category_iids.first()),
            event,
            texts: values.clone(),
        });
    }
    (events, tracks)
}

/// `engine: lock 10..30` in the order of the file; instants have one time.
fn slices(events: &[Read], tracks: &HashMap<u64, String>) -> Vec<String> {
    let mut open: HashMap<u64, Vec<(&str, u64)>> = HashMap::new();
    let mut lines = Vec::new();
    for event in events {
        let track = &tracks[&event.track];
        match event.kind {
            1 => open.entry(event.track).or_default().push((&event.name, event.at)),
            2 => {
                let (name, start) = open.get_mut(&event.track).unwrap().pop().unwrap();
                lines.push(format!("{track}: {name} {start}..{}", event.at));
            }
            3 => lines.push(format!("{track}: {} {}", event.name, event.at)),
            _ => {}
        }
    }
    assert!(open.values().all(Vec::is_empty), "each slice ends");
    lines
}

#[test]
fn stall_is_a_slice_with_the_flow_from_its_waker() {
    let packets =
        packets(|trace| trace.stall(&woken_by(lock_stall(7, 10, 20), Some(KEEPER), 44)).unwrap(), None);
    let (events, tracks) = read(&packets);
    assert_eq!(
        slices(&events, &tracks),
        ["keeper: wakes (unnamed) 25", "engine: runnable 25..30", "engine: lock 10..30"]
    );
    let out: Vec<_> = events.iter().flat_map(|event| event.event.flow_ids.clone()).collect();
    let into: Vec<_> = events.iter().flat_map(|event| event.event.terminating_flow_ids.clone()).collect();
    assert_eq!((out, into), (vec![7], vec![7]));
    assert_eq!(events[0].category, "stall");
    let texts: Vec<_> =
        events[0].event.debug_annotations.iter().filter_map(|one| one.string_value_iid).collect();
    let texts: Vec<&str> = texts.iter().map(|iid| events[0].texts[iid].as_str()).collect();
    assert_eq!(texts, ["lock", "keeper 44"]);
}

#[test]
fn waker_outside_the_recording_has_a_track_once() {
    let packets = packets(
        |trace| {
            for start in [10, 50] {
                trace.stall(&woken_by(lock_stall(start, start, 20), None, 99)).unwrap();
            }
        },
        None,
    );
    let (events, tracks) = read(&packets);
    assert_eq!(tracks.values().filter(|name| *name == "keeper").count(), 2, "44 and 99");
    assert_eq!(events.iter().filter(|event| !event.event.flow_ids.is_empty()).count(), 2);
}

/// Other decoders read both encodings; Perfetto's own has no category, or no state, of the wrong one.
#[test]
fn repeated_numbers_are_packed_as_defined() {
    let event = TrackEvent { category_iids: vec![5, 6], flow_ids: vec![7], ..TrackEvent::default() };
    let flow = [0xf9, 0x02, 7, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(event.encode_to_vec(), [&[0x18, 5, 0x18, 6][..], &flow[..]].concat());
    let sample = messages::StackSample {
        follower_descriptor_iids: vec![5],
        follower_weights: vec![6],
        ..messages::StackSample::default()
    };
    assert_eq!(sample.encode_to_vec(), [0x6a, 1, 5, 0x72, 1, 6]);
}

#[test]
fn interrupt_as_waker_has_no_flow() {
    let mut stall = lock_stall(1, 10, 20);
    stall.waker = Some(WakerRecord { thread: None, user: None, kernel: None });
    let (events, tracks) = read(&packets(|trace| trace.stall(&stall).unwrap(), None));
    assert_eq!(slices(&events, &tracks), ["engine: runnable 25..30", "engine: lock 10..30"]);
    assert!(events.iter().all(|event| event.event.terminating_flow_ids.is_empty()));
    assert!(events[0].texts.values().any(|text| text == "interrupt"));
}

#[test]
fn preemption_has_no_part_after_a_wakeup() {
    let stall = StallRecord::new(1, ENGINE, StallReason::Preempted, MonoNs(10), 20);
    let (events, tracks) = read(&packets(|trace| trace.stall(&stall).unwrap(), None));
    assert_eq!(slices(&events, &tracks), ["engine: preempted 10..30"]);
}

#[test]
fn overlapping_stalls_are_on_rows_of_their_own() {
    let mut fault = StallRecord::new(1, ENGINE, StallReason::Major, MonoNs(10), 90);
    fault.kind = StallKind::Fault;
    let disk = |id, start| StallRecord::new(id, ENGINE, StallReason::Preempted, MonoNs(start), 20);
    let write = |trace: &mut Trace<'_>| {
        [fault, disk(2, 20), disk(3, 40), disk(4, 100)].iter().for_each(|stall| trace.stall(stall).unwrap());
    };
    let (events, tracks) = read(&packets(write, None));
    assert_eq!(
        slices(&events, &tracks),
        [
            "engine: fault:major 10..100",
            "within the above: preempted 20..40",
            "within the above: preempted 40..60",
            "engine: preempted 100..120"
        ]
    );
    assert_eq!(tracks.values().filter(|name| *name == "within the above").count(), 1);
}

#[test]
fn more_overlapping_stalls_than_rows_stay_as_instants() {
    let write = |trace: &mut Trace<'_>| {
        (1..=40).for_each(|id| {
            trace.stall(&StallRecord::new(id, ENGINE, StallReason::Preempted, MonoNs(id), 1_000)).unwrap();
        });
    };
    let (events, tracks) = read(&packets(write, None));
    let instants = events.iter().filter(|event| event.kind == 3).count();
    assert_eq!((instants, slices(&events, &tracks).len()), (8, 40));
}

#[test]
fn voluntary_wait_is_of_another_category() {
    let mut stall = StallRecord::new(1, ENGINE, StallReason::Blocked(Reason::Poll), MonoNs(10), 20);
    stall.voluntary = true;
    let (events, _) = read(&packets(|trace| trace.stall(&stall).unwrap(), None));
    assert_eq!((events[0].name.as_str(), events[0].category.as_str()), ("poll", "idle"));
}

#[test]
fn texts_are_written_again_when_they_are_forgotten() {
    let write = |trace: &mut Trace<'_>| {
        (0..9).for_each(|id| trace.stall(&lock_stall(id, id * 100, 20)).unwrap());
    };
    let (unlimited, limited) = (packets(write, None), packets(write, Some(10)));
    let cleared = |packets: &[TracePacket]| {
        let is_cleared = |packet: &&TracePacket| packet.sequence_flags == Some(INCREMENTAL_STATE_CLEARED);
        packets
            .iter()
            .filter(is_cleared)
            .inspect(|packet| assert!(packet.trace_packet_defaults.is_some()))
            .count()
    };
    assert_eq!(cleared(&unlimited), 1);
    assert!(cleared(&limited) > 9);
    let shown = |packets: &[TracePacket]| {
        let (events, tracks) = read(packets);
        slices(&events, &tracks)
    };
    assert_eq!(shown(&unlimited), shown(&limited));
}

/// `name at value` of all counters.
fn values(packets: &[TracePacket]) -> Vec<(String, u64, i64)> {
    let (events, tracks) = read(packets);
    let of = |event: &Read| Some((tracks[&event.track].clone(), event.at, event.event.counter_value?));
    events.iter().filter_map(of).collect()
}

#[test]
fn sums_by_second_are_counters_that_return_to_zero() {
    const SECOND: u64 = 1_000_000_000;
    let row = |second, on_cpu_ns, preempted_ns| LedgerDelta {
        on_cpu_ns,
        preempted_ns,
        ..LedgerDelta::new(ENGINE, EpochSecond(second))
    };
    let packets = packets(
        |trace| {
            [row(1, 30, 0), row(2, 30, 5), row(5, 30, 0)].iter().for_each(|row| trace.second(row).unwrap())
        },
        None,
    );
    let on_cpu = |at, value| ("on CPU".to_string(), at * SECOND, value);
    let preempted = |at, value| ("preempted".to_string(), at * SECOND, value);
    // Nothing is known of second 3 and 4: the thread has no row there.
    assert_eq!(
        values(&packets),
        [on_cpu(1, 30), preempted(2, 5), on_cpu(3, 0), on_cpu(5, 30), preempted(3, 0), on_cpu(6, 0)]
    );
}

#[test]
fn counters_and_marks_are_on_the_same_clock() {
    let track = |thread, value| CounterTrack {
        counter: Counter {
            name: "memory.free".into(),
            thread,
            kind: CounterKind::Level,
            unit: CounterUnit::Bytes,
        },
        points: vec![(MonoNs(3), value)],
    };
    let mark = |at, duration_ns| Mark { at: MonoNs(at), duration_ns, text: "deploy\u{202e}".into() };
    let packets = packets(
        |trace| {
            trace.counter(&track(None, 1.5)).unwrap();
            trace.counter(&track(Some(ENGINE), 2.5)).unwrap();
            trace.counter(&track(Some(ThreadKey(77)), 3.5)).unwrap();
            trace.mark(&mark(5, Some(10))).unwrap();
            trace.mark(&mark(20, None)).unwrap();
        },
        None,
    );
    let (events, tracks) = read(&packets);
    let values: Vec<_> = events.iter().filter_map(|event| event.event.double_counter_value).collect();
    assert_eq!(values, [1.5, 2.5], "the counter of a process that was not selected is left out");
    assert_eq!(slices(&events, &tracks), ["marks: deploy\\u{202e} 5..15", "marks: deploy\\u{202e} 20"]);
}

#[test]
fn sums_since_some_start_are_rates() {
    const SECOND: u64 = 1_000_000_000;
    let counter =
        Counter { name: "disk.read".into(), thread: None, kind: CounterKind::Sum, unit: CounterUnit::Bytes };
    let at = |ms: u64, value| (MonoNs(SECOND + ms * 1_000_000), value);
    let points = vec![at(0, 5e9), at(500, 5e9 + 1e3), at(1_500, 5e9 + 1e3), at(2_500, 10.0), at(2_500, 20.0)];
    let packets = packets(|trace| trace.counter(&CounterTrack { counter, points }).unwrap(), None);
    let (events, tracks) = read(&packets);
    let shown: Vec<_> = events
        .iter()
        .map(|event| ((event.at - SECOND) / 1_000_000, event.event.double_counter_value.unwrap()))
        .collect();
    assert_eq!(shown, [(0, 2_000.0), (500, 0.0), (1_500, 0.0)]);
    assert_eq!(tracks[&events[0].track], "disk.read/s");
}

#[test]
fn stall_of_another_thread_is_skipped() {
    let stall = StallRecord::new(1, ThreadKey(77), LOCK, MonoNs(10), 20);
    assert!(read(&packets(|trace| trace.stall(&stall).unwrap(), None)).0.is_empty());
}
