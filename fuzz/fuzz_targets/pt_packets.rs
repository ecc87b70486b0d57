// SPDX-License-Identifier: Apache-2.0
//! Any bytes as an Intel PT trace of a generated program, or of a program that is part of the input. The
//! trace is decoded and replayed, whole and by segments, without panic or hang. The self times of every
//! thread add up.
//!
//! Input: a byte of options; the seed of the program, or the length of its code in units of four bytes; the
//! shift of MTC; a byte of switches; the code, if it is part of the input; the trace.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use wallprof_intel_pt::generator::{Program, Random};
use wallprof_intel_pt::replay::{CallTree, Frame, Recorder, ThreadReplay, replay_segment};
use wallprof_intel_pt::{
    ClockFacts, Code, Departure, Event, Function, FunctionId, RunCache, Schedule, Segment, SpaceId, Switch,
    ThreadId, TimeConv, Trace, decode_segment, segment_starts,
};

const RETURN_COMPRESSION: u8 = 1;
const GIVEN_CODE: u8 = 2;
const WHOLE: u8 = 4;
const CLOCKS: u8 = 8;
/// The trace is filtered. A generated program has a kernel, too.
const FILTERED: u8 = 16;
const BASE: u64 = 0x40_0000;

/// Bytes as code, in user space and in the kernel. Every 32 bytes are a function, some without a name. A
/// filter excludes every other 64 bytes.
struct Given<'a> {
    code: &'a [u8],
    is_filtered: bool,
}

impl Code for Given<'_> {
    fn bytes(&self, space: SpaceId, address: u64) -> Option<&[u8]> {
        let base = if space == SpaceId::KERNEL { BASE | 0xffff << 48 } else { BASE };
        let offset = usize::try_from(address.checked_sub(base)?).ok()?;
        self.code.get(offset..).filter(|bytes| !bytes.is_empty())
    }

    fn function(&self, _: SpaceId, address: u64) -> Option<Function> {
        let id = (address >> 5) as u32 & 0xff;
        (id % 5 != 0).then_some(Function { id: FunctionId(id), entry: address & !31 })
    }

    fn is_filtered(&self) -> bool {
        self.is_filtered
    }

    fn is_left_out(&self, _: SpaceId, address: u64) -> bool {
        self.is_filtered && address & 64 != 0
    }
}

fuzz_target!(|input: &[u8]| {
    let &[options, program, mtc_shift, switches, ref rest @ ..] = input else { return };
    if options & GIVEN_CODE != 0 {
        let (code, trace) = rest.split_at(rest.len().min(4 * usize::from(program)));
        let given = Given { code, is_filtered: options & FILTERED != 0 };
        check(options, mtc_shift, switches, &given, trace);
    } else {
        let mut random = Random::new(u64::from(program));
        let mut program = Program::generate(&mut random, 12);
        if options & FILTERED != 0 {
            program = program.with_kernel(&mut random, 8);
            program.traced =
                program.functions[..4].iter().map(|function| function.start..function.end).collect();
        }
        check(options, mtc_shift, switches, &program, rest);
    }
});

fn check(options: u8, mtc_shift: u8, switches: u8, code: &impl Code, bytes: &[u8]) {
    let clock = ClockFacts {
        mtc_shift,
        tsc_ctc_numerator: if options & CLOCKS != 0 { 200 } else { 0 },
        tsc_ctc_denominator: 2,
        max_non_turbo_ratio: if options & CLOCKS != 0 { 25 } else { 0 },
        reference_ticks: 0,
    };
    let schedule = schedule(switches);
    let return_compression = options & RETURN_COMPRESSION != 0;
    let trace = Trace { bytes, code, schedule: &schedule, clock, return_compression };
    let mut starts = segment_starts(bytes);
    if options & WHOLE != 0 || starts.is_empty() {
        starts.truncate(1);
        starts.resize(1, 0);
    }
    starts.push(bytes.len());
    let mut cache = RunCache::new();
    let mut replays = BTreeMap::new();
    for (index, piece) in starts.windows(2).enumerate() {
        let segment = Segment { start: piece[0], end: piece[1], first: index == 0 };
        let (_, stretches) = replay_segment(&trace, segment, TimeConv::NANOSECONDS, &mut cache);
        for stretch in stretches {
            let new = || ThreadReplay::new(stretch.thread, TimeConv::NANOSECONDS);
            replays.entry(stretch.thread).or_insert_with(new).add(&stretch);
        }
        assert_bounded(&trace, segment, &mut cache);
    }
    replays.into_values().for_each(assert_sound);
    assert_eq!(Recorder::new(TimeConv::NANOSECONDS).finish(0).len(), 0);
}

/// Switches every 2^`switches` ticks from the first timestamp of the generated recordings on, to two threads
/// and to the idle task in turn.
fn schedule(switches: u8) -> Schedule {
    let switch = |index: u64| Switch {
        ticks: 1_000_000_000 + (index << (switches % 32)),
        thread: ThreadId((index % 3) as u32),
        space: Program::SPACE,
        departure: [Departure::Blocked, Departure::Preempted, Departure::Unknown][index as usize % 3],
    };
    let first = Switch { thread: ThreadId(1), space: Program::SPACE, ..Switch::default() };
    let several = (1..40).map(switch).filter(|_| switches >= 32);
    Schedule::new(std::iter::once(first).chain(several))
}

/// Asserts that the number of events is bounded by the length of the trace.
fn assert_bounded<C: Code>(trace: &Trace<'_, C>, segment: Segment, cache: &mut RunCache) {
    let mut events = 0u64;
    decode_segment(trace, segment, cache, &mut |_: &Event| events += 1);
    let packets = (segment.end - segment.start) as u64 + 100;
    assert!(events <= 64 * 4096 + 64 * 64 * packets, "{events} events of {packets} bytes");
}

fn assert_sound(replay: ThreadReplay) {
    let calls = replay.finish(0);
    let paths = calls.tree.paths(CallTree::ROOT);
    let spent: u64 = paths.iter().map(|&path| calls.tree.numbers(path).self_ticks).sum();
    assert_eq!(spent, calls.last - calls.first, "self times add up");
    for path in paths {
        assert!(!matches!(calls.tree.frame(path), Frame::Floor(_)), "no floor is left");
        let numbers = calls.tree.numbers(path);
        assert_eq!(numbers.histogram().count(), numbers.calls);
    }
}
