// SPDX-License-Identifier: Apache-2.0
//! Consecutive parts of a bounded recording have everything once.

mod fixture;

use fixture::flight::{Machine, NS, bounded, end_of};
use fixture::*;
use wallprof_model::event::Stall;
use wallprof_model::{Event, MonoNs};
use wallprof_recording::{Part, Recorder, Recording, StallFilter};

const LAST: MonoNs = MonoNs(u64::MAX);

/// What must add up: wall time, weight of samples, latencies, interrupts, losses, cost, length.
fn sums(recording: &Recording) -> [u64; 7] {
    let info = recording.info().unwrap();
    let threads = recording.threads().unwrap();
    [
        recording.ledger(..).unwrap().map(|row| row.unwrap().wall_ns).sum(),
        recording.samples(..).unwrap().map(|row| row.unwrap().weight).sum(),
        threads.iter().flat_map(|thread| thread.latency.values()).map(|latency| latency.count()).sum(),
        recording.interrupts().unwrap().iter().map(|row| row.count).sum(),
        info.losses["stacks_full"],
        info.overhead.process_cpu_ns,
        info.end.0 - info.start.0,
    ]
}

fn stalls(recording: &Recording) -> Vec<u64> {
    let filter = StallFilter { include_voluntary: true, ..StallFilter::default() };
    recording.stalls(&filter).unwrap().map(|stall| stall.unwrap().id).collect()
}

#[test]
fn parts_add_up_to_the_recording() {
    let place = place();
    let mut recorder = Recorder::create(&place.file(), &bounded(1_000, 1 << 40)).unwrap();
    let mut machine = Machine::new(&mut recorder, 2);
    take_all(&mut recorder, definitions());
    let open = Stall { open: true, ..stall(100, NS) };
    recorder.take(Event::Stall(Box::new(open.clone()))).unwrap();
    (0..8).for_each(|second| machine.second(&mut recorder, second));
    // It starts in the first part and ends in the second.
    let closed = Stall { open: false, ..stall(100, 7 * NS) };
    recorder.take(Event::Stall(Box::new(closed))).unwrap();
    recorder.take(Event::Stall(Box::new(Stall { open: true, ..stall(8 * NS, NS) }))).unwrap();
    (8..12).for_each(|second| machine.second(&mut recorder, second));
    let read = |from: MonoNs, until: MonoNs| {
        Recording::open_part(&place.file(), &Part { during: from..until }).unwrap()
    };
    let (first, second) = (read(MonoNs(0), end_of(4)), read(end_of(4), end_of(9)));
    let rest = read(end_of(9), LAST);
    let whole = Recording::open(&place.file()).unwrap();
    let parts = [&first, &second, &rest];
    let added = parts.map(sums).into_iter().reduce(|a, b| std::array::from_fn(|at| a[at] + b[at]));
    assert_eq!(added.unwrap(), sums(&whole));
    let mut ids: Vec<u64> = parts.iter().flat_map(|part| stalls(part)).collect();
    ids.sort_unstable();
    let mut all = stalls(&whole);
    all.sort_unstable();
    assert_eq!(ids, all);
    for recording in [&first, &second, &rest, &whole] {
        let threads = recording.threads().unwrap();
        let infos = recording.thread_infos().unwrap();
        assert!(!infos.is_empty() && threads.iter().map(|thread| &thread.info).eq(&infos));
    }
    assert!(first.info().unwrap().end == end_of(4) && second.info().unwrap().start == end_of(4));
    // The open one is in the last part alone.
    let before = [read(end_of(9), end_of(10)), read(end_of(10), end_of(11))];
    assert_eq!(before.iter().map(|part| stalls(part).len()).sum::<usize>() + 1, stalls(&rest).len());
}
