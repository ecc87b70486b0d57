// SPDX-License-Identifier: Apache-2.0
//! Packets, blocks and calls of a generated program's trace, which needs no recording.
//!
//! `cargo bench -p wallprof-intel-pt --bench generated`

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use wallprof_intel_pt::generator::{Generated, Plan, generate};
use wallprof_intel_pt::packets::Packets;
use wallprof_intel_pt::replay::{ThreadReplay, replay_segment};
use wallprof_intel_pt::{Event, RunCache, Segment, ThreadId, TimeConv, decode_segment};

const SEED: u64 = 11;
const PLAN: Plan =
    Plan { functions: 40, threads: 1, instructions: 300_000, overflows: false, exceptions: true };

fn whole(generated: &Generated) -> Segment {
    Segment { start: 0, end: generated.trace.len(), first: true }
}

#[inline(never)]
fn once_packets(generated: &Generated) -> usize {
    Packets::new(&generated.trace).filter(|packet| packet.is_ok()).count()
}

#[inline(never)]
fn once_blocks(generated: &Generated) -> u64 {
    let mut sum = 0u64;
    let sink = &mut |event: &Event| sum = sum.wrapping_add(event.to ^ event.ticks);
    decode_segment(&generated.as_trace(), whole(generated), &mut RunCache::new(), sink);
    sum
}

#[inline(never)]
fn once_calls(generated: &Generated) -> usize {
    let mut replay = ThreadReplay::new(ThreadId(1), TimeConv::NANOSECONDS);
    let trace = generated.as_trace();
    let (decoded, stretches) =
        replay_segment(&trace, whole(generated), TimeConv::NANOSECONDS, &mut RunCache::new());
    stretches.iter().for_each(|stretch| replay.add(stretch));
    replay.finish(decoded.last_ticks).tree.len()
}

fn benches(criterion: &mut Criterion) {
    let generated = generate(SEED, PLAN);
    let packets = Packets::new(&generated.trace).count() as u64;
    let blocks =
        decode_segment(&generated.as_trace(), whole(&generated), &mut RunCache::new(), &mut |_: &Event| {})
            .blocks;
    let mut group = criterion.benchmark_group("intel-pt");
    group.sample_size(20).throughput(Throughput::Elements(packets));
    group.bench_function("packets", |bencher| bencher.iter(|| once_packets(&generated)));
    group.throughput(Throughput::Elements(blocks));
    group.bench_function("blocks", |bencher| bencher.iter(|| once_blocks(&generated)));
    group.bench_function("calls", |bencher| bencher.iter(|| once_calls(&generated)));
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
