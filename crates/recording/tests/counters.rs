// SPDX-License-Identifier: Apache-2.0
//! Counters and marks: those of the recorder and those that are added later are read around any time.

mod fixture;

use fixture::*;
use wallprof_model::counter::{Counter, CounterKey, CounterKind, CounterTrack, CounterUnit, Mark};
use wallprof_model::{Event, MonoNs, ThreadKey};
use wallprof_recording::{Additions, Error, MAX_METRICS, Part, Recording};

const SECOND_NS: u64 = 1_000_000_000;

fn counter(name: &str, thread: Option<ThreadKey>) -> Counter {
    Counter { name: name.into(), thread, kind: CounterKind::Sum, unit: CounterUnit::Bytes }
}

/// A counter of the machine with a value each second for a minute, and one of a process with one value.
fn recorded() -> Place {
    let place = place();
    let mut recorder = recorder(&place.file());
    take_all(&mut recorder, definitions());
    let define = |key, counter| Event::Counter { key: CounterKey(key), counter };
    let value =
        |key, second, value| Event::CounterValue { key: CounterKey(key), at: at(second * SECOND_NS), value };
    let mut events = vec![define(4, counter("machine", None)), define(9, counter("own", Some(ThreadKey(7))))];
    events.extend((0..60).map(|second| value(4, second, second as f64)));
    events.push(value(9, 1, 0.5));
    events.push(value(77, 1, 1.0));
    take_all(&mut recorder, events);
    recorder.finish(at(60 * SECOND_NS)).unwrap();
    place
}

fn tracks(recording: &Recording, pid: u32, from: u64, to: u64) -> Vec<CounterTrack> {
    let mut counters = recording.counters().unwrap();
    counters.around(pid, at(from * SECOND_NS)..at(to * SECOND_NS)).unwrap().into_iter().cloned().collect()
}

fn seconds(track: &CounterTrack) -> Vec<u64> {
    track.points.iter().map(|(at, _)| (at.0 - START.0) / SECOND_NS).collect()
}

#[test]
fn selected_counters_of_the_machine_are_read_whole() {
    let place = recorded();
    let recording = Recording::open(&place.file()).unwrap();
    let counters = recording.counters().unwrap();
    let whole = counters.whole(|name| name == "machine").unwrap();
    assert_eq!(whole.len(), 1);
    assert_eq!(seconds(&whole[0]), (0..60).collect::<Vec<_>>());
    assert_eq!(counters.whole(|_| true).unwrap().len(), 1, "a process' counter is not the machine's");
    assert_eq!(counters.whole(|_| false).unwrap(), []);
}

#[test]
fn parts_of_a_sum_add_up() {
    let place = recorded();
    let grown = |from: MonoNs, until: MonoNs| {
        let part = Recording::open_part(&place.file(), &Part { during: from..until }).unwrap();
        let track = part.counters().unwrap().whole(|name| name == "machine").unwrap().remove(0);
        let (first, last) = (track.points[0], track.points[track.points.len() - 1]);
        assert!(first.0 >= from && last.0 <= until);
        last.1 - first.1
    };
    let (one, two) = (at(20 * SECOND_NS), at(40 * SECOND_NS + SECOND_NS / 2));
    let parts = [grown(MonoNs(0), one), grown(one, two), grown(two, MonoNs(u64::MAX))];
    assert_eq!(parts, [20.0, 20.0, 19.0]);
}

#[test]
fn values_around_a_time_include_the_last_one_before() {
    let place = recorded();
    let recording = Recording::open(&place.file()).unwrap();
    let mut counters = recording.counters().unwrap();
    for from in [0, 5, 30, 58, 2] {
        let found = counters.around(1, at(from * SECOND_NS + 1)..at((from + 1) * SECOND_NS)).unwrap();
        assert_eq!(found.len(), 1, "the other process' counter is left out");
        assert_eq!(found[0].counter, counter("machine", None));
        let seconds = seconds(found[0]);
        assert!(seconds.contains(&from) && seconds.contains(&(from + 1)), "{seconds:?}");
        assert!(seconds.len() <= 12, "no more than is needed: {seconds:?}");
    }
    let both = tracks(&recording, 1000, 30, 31);
    assert_eq!(both[1].counter.name, "own");
    assert_eq!(both[1].points, [(at(SECOND_NS), 0.5)], "it holds from long before");
    assert_eq!(recording.info().unwrap().losses["unknown_reference"], 1, "the value of nothing");
}

#[test]
fn metrics_and_marks_are_added_to_a_complete_recording() {
    let place = recorded();
    let mark = Mark { at: at(3), duration_ns: Some(5), text: "alarm".into() };
    for value in [1.5, 2.5] {
        let mut additions = Additions::open(&place.file()).unwrap();
        assert!(additions.metric("orders", at(7), value).unwrap());
        additions.mark(&mark).unwrap();
        additions.commit().unwrap();
    }
    let mut dropped = Additions::open(&place.file()).unwrap();
    dropped.mark(&Mark { text: "never".into(), ..mark.clone() }).unwrap();
    drop(dropped);
    let recording = Recording::open(&place.file()).unwrap();
    assert_eq!(recording.marks().unwrap(), [mark], "twice the same is once");
    let found = tracks(&recording, 1, 0, 1);
    let own = found.iter().find(|track| track.counter.name == "orders").unwrap();
    assert_eq!(own.points, [(at(7), 2.5)]);
    assert_eq!((own.counter.kind, own.counter.unit), (CounterKind::Level, CounterUnit::Plain));
    assert_eq!(std::fs::read_dir(place.folder()).unwrap().count(), 1, "one plain file is left");
}

#[test]
fn too_many_names_are_refused() {
    let place = recorded();
    let mut additions = Additions::open(&place.file()).unwrap();
    for name in 0..MAX_METRICS {
        assert!(additions.metric(&name.to_string(), MonoNs(1), 0.0).unwrap());
    }
    assert!(!additions.metric("one more", MonoNs(1), 0.0).unwrap());
    assert!(additions.metric("0", MonoNs(2), 0.0).unwrap(), "a known one still is");
}

#[test]
fn only_recordings_accept_additions() {
    let place = place();
    std::fs::write(place.file(), "dear diary").unwrap();
    assert!(matches!(Additions::open(&place.file()), Err(Error::NotARecording { .. })));
}

#[test]
fn each_value_of_a_time_is_read_once() {
    let place = recorded();
    let recording = Recording::open(&place.file()).unwrap();
    let counters = recording.counters().unwrap();
    let values = |from: u64, to: u64| {
        let mut found = Vec::new();
        let during = at(from * SECOND_NS)..at(to * SECOND_NS);
        counters
            .each_value(during, |counter, at, value| {
                found.push((counter.name.clone(), (at.0 - START.0) / SECOND_NS, value));
            })
            .unwrap();
        found
    };
    let own = ("own".to_owned(), 1, 0.5);
    let machine = |second: u64| ("machine".to_owned(), second, second as f64);
    assert_eq!(values(0, 3), [machine(0), machine(1), machine(2), own.clone()]);
    let parts = [values(0, 20), values(20, 40), values(40, 1_000)].concat();
    assert_eq!(parts.len(), 61);
    assert!((0..60).all(|second| parts.contains(&machine(second))) && parts.contains(&own));
}
