// SPDX-License-Identifier: Apache-2.0
//! Speed of reading packets, following blocks and replaying calls, on a recording of 28 MB:
//! `WALLPROF_PT_DATA=FOLDER cargo bench -p wallprof-intel-pt`, where FOLDER has big.perf.data.xz and
//! target.elf.xz.

#[path = "../tests/support/mod.rs"]
mod support;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use support::elf::Program;
use support::perf_data::Recording;
use wallprof_intel_pt::packets::Packets;
use wallprof_intel_pt::replay::{ThreadReplay, functions, replay_segment};
use wallprof_intel_pt::{
    Event, EventKind, RunCache, Segment, ThreadId, Trace, decode_segment, segment_starts,
};

fn benches(criterion: &mut Criterion) {
    if !support::has_recordings("benches of decode") {
        return;
    }
    let recording = Recording::parse(&support::recording("big.perf.data.xz"));
    let program = Program::parse(support::recording("target.elf.xz"));
    packets(criterion, &recording);
    control_flow(criterion, &recording, &program);
    calls(criterion, &recording, &program);
}

fn packets(criterion: &mut Criterion, recording: &Recording) {
    let mut group = criterion.benchmark_group("packets");
    group.throughput(Throughput::Elements(Packets::new(&recording.trace).count() as u64)).sample_size(10);
    group.bench_function("read", |bencher| {
        bencher.iter(|| Packets::new(&recording.trace).filter(|packet| packet.is_ok()).count())
    });
}

fn control_flow(criterion: &mut Criterion, recording: &Recording, program: &Program) {
    let trace = Trace {
        bytes: &recording.trace,
        code: program,
        schedule: &recording.schedule,
        clock: recording.clock,
        return_compression: true,
    };
    let whole = Segment { start: 0, end: recording.trace.len(), first: true };
    let decode = || {
        let mut events = 0u64;
        let mut sum = 0u64;
        let decoded = decode_segment(&trace, whole, &mut RunCache::new(), &mut |event: &Event| {
            events += u64::from(matches!(event.kind, EventKind::Call { .. } | EventKind::Return));
            sum = sum.wrapping_add(event.to ^ event.ticks);
        });
        (decoded, events, sum)
    };
    let (decoded, events, _) = decode();
    eprintln!("{} blocks, {events} calls and returns", decoded.blocks);
    let mut group = criterion.benchmark_group("control flow");
    group.throughput(Throughput::Elements(decoded.blocks)).sample_size(10);
    group.bench_function("blocks", |bencher| bencher.iter(decode));
}

fn calls(criterion: &mut Criterion, recording: &Recording, program: &Program) {
    let trace = Trace {
        bytes: &recording.trace,
        code: program,
        schedule: &recording.schedule,
        clock: recording.clock,
        return_compression: true,
    };
    let replay = |per_piece: usize| {
        let mut thread = ThreadReplay::new(ThreadId(5000), recording.time_conv);
        let mut cache = RunCache::new();
        let mut starts: Vec<usize> = segment_starts(trace.bytes).into_iter().step_by(per_piece).collect();
        starts.push(trace.bytes.len());
        let mut last = 0;
        for (index, piece) in starts.windows(2).enumerate() {
            let segment = Segment { start: piece[0], end: piece[1], first: index == 0 };
            let (decoded, stretches) = replay_segment(&trace, segment, recording.time_conv, &mut cache);
            stretches.iter().for_each(|stretch| thread.add(stretch));
            last = decoded.last_ticks;
        }
        thread.finish(last)
    };
    let all = replay(1);
    let calls: u64 = functions(&all.tree).values().map(|function| function.numbers.calls).sum();
    eprintln!("{calls} calls, {} paths", all.tree.len());
    let mut group = criterion.benchmark_group("calls");
    group.throughput(Throughput::Elements(calls)).sample_size(10);
    for per_piece in [1, 16, 256] {
        group.bench_function(format!("{per_piece} segments a piece"), |bencher| {
            bencher.iter(|| replay(per_piece))
        });
    }
}

criterion_group!(all, benches);
criterion_main!(all);
