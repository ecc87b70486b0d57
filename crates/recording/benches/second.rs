// SPDX-License-Identifier: Apache-2.0
//! The cost of writing one second of a busy machine: ledgers, samples, latencies and stalls of 400 threads.
//!
//! `cargo bench -p wallprof-recording --bench second`

#[path = "../tests/fixture/mod.rs"]
mod fixture;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fixture::{KERNEL, USER};
use wallprof_model::event::{LatencyDelta, LedgerDelta, SampleDelta, Stall};
use wallprof_model::histogram::Cell;
use wallprof_model::{EpochSecond, Event, Metric, ThreadKey};
use wallprof_recording::Recorder;

const THREADS: u32 = 400;
const STALLS: u64 = 500;
const SECOND_NS: u64 = 1_000_000_000;

/// The events of a live source at the end of `second`.
fn events(second: u32) -> Vec<Event> {
    let mut events = Vec::new();
    for key in 0..THREADS {
        let (thread, at) = (ThreadKey(key), EpochSecond(fixture::SECOND.0 + second));
        let ledger =
            LedgerDelta { wall_ns: SECOND_NS, runnable_ns: SECOND_NS, ..LedgerDelta::new(thread, at) };
        events.push(Event::Ledger(ledger));
        let cell = Cell { count: 9, total_ns: 90_000, max_ns: 20_000 };
        let bucket = key as u16 % 40;
        events.push(Event::Latency(LatencyDelta { thread, metric: Metric::RunQueue, bucket, cell }));
        events.push(Event::Sample(SampleDelta { thread, ..fixture::sample(second, 10_000_000) }));
    }
    let stall = |number: u64| Stall {
        thread: ThreadKey(number as u32 % THREADS),
        user: Some(USER),
        kernel: Some(KERNEL),
        ..fixture::stall(u64::from(second) * SECOND_NS + number * 1_000_000, 700_000)
    };
    events.extend((0..STALLS).map(|number| Event::Stall(Box::new(stall(number)))));
    events
}

/// What the counters count is the first call of this function: a second of a recording that has run for a while, in
/// which the recorder knows the sums that the file has.
#[inline(never)]
fn once_second(recorder: &mut Recorder, events: Vec<Event>, second: u32) {
    write_second(recorder, events, second);
}

fn write_second(recorder: &mut Recorder, events: Vec<Event>, second: u32) {
    for event in events {
        recorder.take(event).expect("the disk has space");
    }
    recorder.commit(fixture::at(u64::from(second + 1) * SECOND_NS)).expect("the disk has space");
}

fn benches(criterion: &mut Criterion) {
    let place = fixture::place();
    let mut recorder = fixture::recorder(&place.file());
    fixture::take_all(&mut recorder, fixture::definitions());
    for key in 0..THREADS {
        recorder.take(Event::Thread(fixture::thread(key, "worker"))).expect("the disk has space");
    }
    let mut second = 1;
    write_second(&mut recorder, events(second), second);
    let mut group = criterion.benchmark_group("recording");
    group.throughput(Throughput::Elements(events(0).len() as u64)).sample_size(10);
    group.bench_function("second", |bencher| {
        bencher.iter_batched(
            || {
                second += 1;
                (events(second), second)
            },
            |(events, second)| once_second(&mut recorder, events, second),
            criterion::BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
