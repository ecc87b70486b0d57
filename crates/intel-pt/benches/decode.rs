//! Packets, blocks and calls a second on a recording of 28 MB: `WALLPROF_PT_DATA=FOLDER cargo bench -p wallprof-intel-pt`,
//! where FOLDER has big.perf.data.xz and target.elf.xz.

#[path = "../tests/support/mod.rs"]
mod support;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use support::elf::Program;
use support::perf_data::Recording;
use wallprof_intel_pt::packets::Packets;
use wallprof_intel_pt::{Event, RunCache, Segment, Trace, decode_segment};

fn benches(criterion: &mut Criterion) {
    let (Some(file), Some(program)) =
        (support::recording("big.perf.data.xz"), support::recording("target.elf.xz"))
    else {
        return;
    };
    let recording = Recording::parse(&file);
    let program = Program::parse(program);
    packets(criterion, &recording);
    control_flow(criterion, &recording, &program);
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
            events += 1;
            sum = sum.wrapping_add(event.to ^ event.ticks);
        });
        (decoded, events, sum)
    };
    let (decoded, events, _) = decode();
    eprintln!("{} blocks, {events} events", decoded.blocks);
    let mut group = criterion.benchmark_group("control flow");
    group.throughput(Throughput::Elements(decoded.blocks)).sample_size(10);
    group.bench_function("blocks", |bencher| bencher.iter(decode));
}

criterion_group!(all, benches);
criterion_main!(all);
