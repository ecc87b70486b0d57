// SPDX-License-Identifier: Apache-2.0
//! Control flow from packets: follows the recorded code along the trace and emits events.
//!
//! The decoder is lazy: it stays at the start of a run until a packet shows how that run ends. So at each
//! packet exactly the code that is known to have been executed has been emitted.
//!
//! A trace is decoded in segments, each from a synchronisation point (PSB) to the next. Segments are
//! independent: two of them together give the same events as each alone.

mod emit;
mod estimate;
mod follow;
mod gaps;
mod interval;
mod leave;
mod packets;
mod synchronise;
#[cfg(test)]
mod tests;

use estimate::Stamp;
use interval::Interval;
use synchronise::Synchronisation;

use crate::code::{Code, SpaceId};
use crate::event::{GapCause, Sink};
use crate::instruction::Reading;
use crate::packet::{CodeSize, IpPayload, LastIp, Packet};
use crate::packets::{PSB, PacketError, Packets, find_psb};
use crate::return_stack::ReturnStack;
use crate::run_cache::{RunCache, RunId};
use crate::schedule::{Cursor, Schedule};
use crate::stopwatch::{ClockFacts, Stopwatch};

/// A contiguous part of one CPU's or thread's trace, and the data needed to read it.
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a, C> {
    /// The bytes of the trace.
    pub bytes: &'a [u8],
    /// The recorded programs.
    pub code: &'a C,
    /// The threads that ran, by time.
    pub schedule: &'a Schedule,
    /// The parameters of the clocks.
    pub clock: ClockFacts,
    /// Whether returns may be compressed to a branch result: the recording did not ask for `noretcomp`.
    pub return_compression: bool,
}

/// Results of decoding, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Straight pieces of code between transfers of any kind.
    pub blocks: u64,
    /// The time of the segment's first synchronisation point, in ticks.
    pub first_ticks: u64,
    /// The time of its last packet, in ticks.
    pub last_ticks: u64,
    /// Whether the segment has a time. Without one its times are only near the clock's reference.
    pub is_timed: bool,
    /// Cycle counts that led beyond the exact times around them, and were limited to those.
    pub corrected_times: u64,
    /// Losses without an event.
    pub further: FurtherGaps,
}

/// Losses while the decoder's place was not known already. They have no event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FurtherGaps {
    /// Overflows of the processor's buffer.
    pub overflows: u64,
    /// Bytes that are not a packet.
    pub bad_packets: u64,
    /// Contradictions of code and trace, and all other causes.
    pub mismatches: u64,
}

impl FurtherGaps {
    fn add(&mut self, cause: GapCause) {
        match cause {
            GapCause::Overflow => self.overflows += 1,
            GapCause::BadPacket => self.bad_packets += 1,
            _ => self.mismatches += 1,
        }
    }

    /// The numbers by cause.
    pub fn counts(&self) -> [(GapCause, u64); 3] {
        [
            (GapCause::Overflow, self.overflows),
            (GapCause::BadPacket, self.bad_packets),
            (GapCause::Mismatch, self.mismatches),
        ]
    }
}

/// The offsets of a trace's segments: its PSBs.
pub fn segment_starts(bytes: &[u8]) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut from = 0;
    while let Some(start) = find_psb(bytes, from) {
        starts.push(start);
        from = start + PSB.len();
    }
    starts
}

/// The part of the trace to decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset of a PSB.
    pub start: usize,
    /// Offset of the PSB at which to stop, or the trace's length.
    pub end: usize,
    /// No segment was decoded before this one: its first address is a start.
    pub first: bool,
}

/// Decodes `segment` of `trace` and emits its events to `sink`.
pub fn decode_segment<C: Code>(
    trace: &Trace<'_, C>,
    segment: Segment,
    cache: &mut RunCache,
    sink: &mut impl Sink,
) -> Decoded {
    let mut decoder = Decoder::new(trace, segment, cache, sink);
    decoder.decode();
    decoder.decoded
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Tracing is off.
    Off,
    /// At a known place.
    On,
    /// Tracing is on, or may be, at an unknown place.
    Lost,
}

/// A FUP whose meaning the next packet decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    None,
    /// The address at which an interrupt may have occurred.
    Async(u64),
    Abort(u64),
}

struct Decoder<'a, 'c, C, S> {
    trace: &'a Trace<'a, C>,
    segment: Segment,
    cache: &'c mut RunCache,
    sink: &'c mut S,
    packets: Packets<'a>,
    last_ip: LastIp,
    watch: Stopwatch,
    cursor: Cursor<'a>,
    /// The time of the schedule's next switch.
    next_switch: u64,
    reading: Reading,
    next_size: CodeSize,
    state: State,
    /// The gap is one of kernel code, and the trace has not shown the return from the kernel yet.
    gap_in_kernel: bool,
    at: RunId,
    /// The steps of the current run have been emitted: it waits at its exit.
    at_exit: bool,
    /// Branch results that are not consumed, the oldest in the highest bit.
    results: u64,
    result_count: u32,
    interval: Interval,
    returns: ReturnStack,
    synchronisation: Option<Synchronisation>,
    source: Source,
    /// The last synchronisation point had no address: tracing is off, or an overflow ends and the address
    /// follows.
    may_be_on: bool,
    /// The next FUP belongs to the packet before it.
    fup_is_bound: bool,
    transaction: Option<(bool, bool)>,
    vector: Option<u8>,
    /// The number of long runs that may be passed without a packet. It grows with the packets.
    fuel: u32,
    /// The next TSC packet, after it was searched.
    stamp: Stamp,
    decoded: Decoded,
}

const FULL_TANK: u32 = 4096;

impl<'a, 'c, C: Code, S: Sink> Decoder<'a, 'c, C, S> {
    fn new(trace: &'a Trace<'a, C>, segment: Segment, cache: &'c mut RunCache, sink: &'c mut S) -> Self {
        Decoder {
            trace,
            segment,
            cache,
            sink,
            packets: Packets::starting_at(trace.bytes, segment.start),
            last_ip: LastIp::default(),
            watch: Stopwatch::new(trace.clock),
            cursor: trace.schedule.cursor_at(0),
            next_switch: u64::MAX,
            reading: Reading { space: SpaceId::default(), size: CodeSize::Bits64 },
            next_size: CodeSize::Bits64,
            state: State::Off,
            gap_in_kernel: false,
            at: RunId::NONE,
            at_exit: false,
            results: 0,
            result_count: 0,
            interval: Interval { start: 0, end: 0, results: 0, used: 0 },
            returns: ReturnStack::new(),
            synchronisation: None,
            source: Source::None,
            may_be_on: false,
            fup_is_bound: false,
            transaction: None,
            vector: None,
            fuel: FULL_TANK,
            stamp: Stamp::default(),
            decoded: Decoded::default(),
        }
    }

    fn decode(&mut self) {
        let mut offset = self.packets.offset();
        while let Some(packet) = self.packets.next_packet() {
            match packet {
                Ok(Packet::Cyc(cycles)) => {
                    if !self.watch.cyc_within_limit(cycles) {
                        self.judge_cycles(cycles);
                    }
                }
                Ok(Packet::Tnt(tnt)) => self.branch_results(tnt),
                Ok(Packet::Tip(payload)) => self.indirect(payload),
                Ok(packet) => {
                    if self.other(packet, offset) {
                        break;
                    }
                }
                Err(PacketError::Truncated { .. }) => break,
                Err(PacketError::Unknown { .. }) => {
                    if !self.cut_synchronisation() {
                        self.lose_now(GapCause::BadPacket);
                        self.packets.seek_psb();
                    }
                }
            }
            offset = self.packets.offset();
        }
        self.decoded.last_ticks = self.watch.now();
        self.decoded.is_timed = self.watch.is_set();
    }

    /// Handles the less frequent packets. Returns whether the segment ends.
    #[inline(never)]
    fn other(&mut self, packet: Packet, offset: usize) -> bool {
        self.fuel = (self.fuel + 16).min(FULL_TANK);
        match packet {
            Packet::Psb => return self.start_synchronisation(offset),
            Packet::PsbEnd => return self.end_synchronisation(),
            Packet::Tsc(ticks) => self.time_stamp(ticks),
            Packet::Tma { ctc, fast } => self.watch.tma(ctc, fast),
            Packet::Mtc(mtc) => self.watch.mtc(mtc),
            Packet::Cbr(ratio) => self.watch.cbr(ratio),
            Packet::Fup(payload) => self.source_address(payload),
            Packet::TipPge(payload) => self.enable(payload),
            Packet::TipPgd(_) | Packet::Overflow | Packet::TraceStop if self.cut_synchronisation() => {
                return true;
            }
            Packet::TipPgd(payload) => self.disable(payload),
            Packet::Overflow => self.overflow(),
            Packet::TraceStop => self.disable(IpPayload::Suppressed),
            Packet::ModeExec { code, .. } => self.change_mode(code),
            Packet::ModeTsx { inside, abort } => self.transaction = Some((inside, abort)),
            Packet::Pip { .. } if self.synchronisation.is_none() => self.reschedule(),
            Packet::PtWrite { ip_follows, .. }
            | Packet::ExecStop { ip_follows }
            | Packet::BlockEnd { ip_follows } => self.fup_is_bound |= ip_follows,
            Packet::Mwait { .. } => self.fup_is_bound = true,
            Packet::ControlFlowEvent { kind, vector, ip_follows } => self.announce(kind, vector, ip_follows),
            _ => {}
        }
        false
    }
}
