// SPDX-License-Identifier: Apache-2.0
//! Damaged and random traces make gaps, but no panic, no hang, and no time that does not add up.

use std::collections::BTreeMap;

use wallprof_intel_pt::generator::{Generated, Plan, Random, Tracing, generate, generate_traced};
use wallprof_intel_pt::packet::Packet;
use wallprof_intel_pt::packets::Packets;
use wallprof_intel_pt::replay::{CallTree, ThreadCalls, ThreadReplay, replay_segment};
use wallprof_intel_pt::{
    Event, EventKind, GapCause, RunCache, Segment, SpaceId, ThreadId, TimeConv, decode_segment,
    segment_starts,
};

const SEEDS: u64 = 300;

fn generated(seed: u64) -> Generated {
    generate(
        seed,
        Plan {
            functions: 20,
            threads: 3,
            instructions: 3_000,
            overflows: seed.is_multiple_of(2),
            exceptions: true,
        },
    )
}

fn replay(generated: &Generated) -> Vec<ThreadCalls> {
    let trace = generated.as_trace();
    let mut starts = segment_starts(trace.bytes);
    starts.push(trace.bytes.len());
    let mut replays: BTreeMap<ThreadId, ThreadReplay> = BTreeMap::new();
    let mut end = 0;
    for (index, piece) in starts.windows(2).enumerate() {
        let segment = Segment { start: piece[0], end: piece[1], first: index == 0 };
        let (decoded, stretches) =
            replay_segment(&trace, segment, TimeConv::NANOSECONDS, &mut RunCache::new());
        for stretch in stretches {
            let new = || ThreadReplay::new(stretch.thread, TimeConv::NANOSECONDS);
            replays.entry(stretch.thread).or_insert_with(new).add(&stretch);
        }
        end = decoded.last_ticks;
    }
    replays.into_values().map(|replay| replay.finish(end)).collect()
}

fn decode(generated: &Generated) -> Vec<Event> {
    let start = segment_starts(&generated.trace).first().copied().unwrap_or(0);
    let mut events = Vec::new();
    let whole = Segment { start, end: generated.trace.len(), first: true };
    decode_segment(&generated.as_trace(), whole, &mut RunCache::new(), &mut events);
    events
}

fn assert_sound(seed: u64, generated: &Generated) {
    for calls in replay(generated) {
        let paths = calls.tree.paths(CallTree::ROOT);
        let spent: u64 = paths.iter().map(|&path| calls.tree.numbers(path).self_ticks).sum();
        assert_eq!(spent, calls.last - calls.first, "seed {seed}");
    }
    assert!(decode(generated).len() < 1_000 * (generated.trace.len() + 10), "seed {seed}");
}

#[test]
fn flipped_bits() {
    for seed in 0..SEEDS {
        let mut generated = generated(seed);
        let mut random = Random::new(seed ^ 0xf11b);
        for _ in 0..1 + random.below(20) {
            let at = random.below(generated.trace.len());
            generated.trace[at] ^= 1 << random.below(8);
        }
        assert_sound(seed, &generated);
    }
}

/// Traces of some functions, with and without the kernel, whole and damaged, with their own filters and with
/// others.
#[test]
fn filtered_traces() {
    for seed in 0..SEEDS {
        let (kernel, kernel_ranges) = (seed % 3 > 0, (seed % 3) as usize);
        let tracing =
            Tracing { ranges: 2, splits: true, kernel, kernel_ranges, addressed_ends: seed % 5 > 1 };
        let plan =
            Plan { functions: 20, threads: 1, instructions: 3_000, overflows: false, exceptions: true };
        let mut generated = generate_traced(seed, plan, tracing);
        let mut random = Random::new(seed ^ 0xf117);
        match seed % 4 {
            0 => generated.program.traced.truncate(1),
            1 => generated.program.kernel = None,
            _ => {}
        }
        for _ in 0..random.below(10) {
            let at = random.below(generated.trace.len());
            generated.trace[at] ^= 1 << random.below(8);
        }
        assert_sound(seed, &generated);
    }
}

#[test]
fn missing_bytes() {
    for seed in 0..SEEDS {
        let mut generated = generated(seed);
        let mut random = Random::new(seed ^ 0x9055);
        let from = random.below(generated.trace.len());
        let to = (from + random.below(500)).min(generated.trace.len());
        generated.trace.drain(from..to);
        generated.trace.truncate(generated.trace.len() - random.below(40).min(generated.trace.len()));
        assert_sound(seed, &generated);
    }
}

#[test]
fn random_bytes() {
    for seed in 0..SEEDS {
        let mut generated = generated(seed);
        let mut random = Random::new(seed ^ 0x4a4d);
        let from = random.below(generated.trace.len());
        generated.trace[from..].iter_mut().for_each(|byte| *byte = random.word() as u8);
        assert_sound(seed, &generated);
        generated.trace.iter_mut().skip(64).for_each(|byte| *byte = random.word() as u8);
        assert_sound(seed, &generated);
    }
}

#[test]
fn switches_at_wrong_times() {
    for seed in 0..SEEDS {
        let mut generated = generated(seed);
        let mut random = Random::new(seed ^ 0x5417);
        let mut switch = wallprof_intel_pt::Switch::default();
        let switches = (0..50).map(|_| {
            switch.ticks = generated.end - random.below(40_000_000) as u64 + 20_000_000;
            switch.thread = ThreadId(random.below(4) as u32);
            switch.space = [SpaceId(1), SpaceId(2), SpaceId::NOTHING][random.below(12) / 5];
            switch
        });
        generated.schedule = wallprof_intel_pt::Schedule::new(switches);
        assert_sound(seed, &generated);
    }
}

#[test]
fn an_image_of_another_program() {
    for seed in 0..SEEDS {
        let mut generated = generated(seed);
        generated.program = self::generated(seed + 1).program;
        assert_sound(seed, &generated);
    }
}

/// Offset and length of the packets that count cycles.
fn cycle_packets(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut packets = Packets::new(bytes);
    let mut found = Vec::new();
    let mut start = 0;
    while let Some(Ok(packet)) = packets.next_packet() {
        if matches!(packet, Packet::Cyc(_)) {
            found.push((start, packets.offset() - start));
        }
        start = packets.offset();
    }
    found
}

fn corrected(generated: &Generated) -> u64 {
    let starts = segment_starts(&generated.trace);
    let whole = Segment { start: starts[0], end: generated.trace.len(), first: true };
    let trace = generated.as_trace();
    decode_segment(&trace, whole, &mut RunCache::new(), &mut Vec::<Event>::new()).corrected_times
}

#[test]
fn damaged_cycle_counts_are_bounded_and_counted() {
    let mut damaged = 0;
    for seed in 0..SEEDS {
        let mut generated = generated(seed);
        assert_eq!(corrected(&generated), 0, "seed {seed}: nothing is wrong");
        let cycles = cycle_packets(&generated.trace);
        let lives: BTreeMap<ThreadId, u64> =
            replay(&generated).iter().map(|calls| (calls.thread, calls.last)).collect();
        let mut random = Random::new(seed ^ 0xc7c);
        // The last exact time is left out, because nothing limits the cycles behind it exactly.
        let Some(&(at, len)) = cycles.get(random.below(cycles.len().max(2) / 2)) else { continue };
        // A count of some 2^40 cycles.
        generated.trace.splice(at..at + len, [0x07, 0x01, 0x01, 0x01, 0x01, 0x81, 0x02]);
        damaged += 1;
        assert!(corrected(&generated) >= 1, "seed {seed}");
        assert_sound(seed, &generated);
        for calls in replay(&generated) {
            let life = lives.get(&calls.thread).copied().unwrap_or(generated.end);
            assert!(calls.last <= life.max(generated.end), "seed {seed}: {} > {life}", calls.last);
        }
    }
    assert!(damaged > 50, "{damaged} traces count cycles");
}

#[test]
fn overflows_behind_an_overflow_are_counted() {
    const OVERFLOW: [u8; 2] = [0x02, 0xf3];
    for seed in (1..40).step_by(2) {
        let mut generated = generated(seed);
        let further = |generated: &Generated| {
            let whole = Segment { start: 0, end: generated.trace.len(), first: true };
            let trace = generated.as_trace();
            let mut events: Vec<Event> = Vec::new();
            let decoded = decode_segment(&trace, whole, &mut RunCache::new(), &mut events);
            let gaps = events.iter().filter(|event| event.kind == EventKind::Gap(GapCause::Overflow));
            (gaps.count(), decoded.further.overflows)
        };
        assert_eq!(further(&generated), (0, 0), "seed {seed}: nothing is wrong");
        let starts = segment_starts(&generated.trace);
        let Some(&at) = starts.get(1) else { continue };
        generated.trace.splice(at..at, OVERFLOW.repeat(3));
        assert_eq!(further(&generated), (1, 2), "seed {seed}");
    }
}

#[test]
fn without_code_all_is_one_gap() {
    for seed in 0..20 {
        let mut generated = generated(2 * seed + 1);
        generated.program.code.clear();
        let events = decode(&generated);
        let gaps: Vec<EventKind> = events.iter().map(|event| event.kind).collect();
        assert!(gaps.contains(&EventKind::Gap(GapCause::NoCode)), "seed {seed}");
        let is_call = |kind: &EventKind| matches!(kind, EventKind::Call { .. } | EventKind::Return);
        assert!(!gaps.iter().any(is_call), "seed {seed}: no frame is made up");
    }
}
