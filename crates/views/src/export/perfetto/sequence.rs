// SPDX-License-Identifier: Apache-2.0
//! The packets of a trace in the order in which they are written, and the texts and stacks that they share.
//!
//! A text is written once and has a number from then on, and so is a stack. Memory stays bounded: when the known
//! ones have reached a limit, the sequence forgets them, which the next packet says.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::io::{self, Write};

use prost::Message;
use wallprof_model::{EpochNs, MonoNs};

use super::messages::{
    Callstack, Clock, ClockSnapshot, DebugAnnotation, Frame, INCREMENTAL_STATE_CLEARED, Interned,
    InternedData, MONOTONIC, NEEDS_INCREMENTAL_STATE, REALTIME, StackCounter, StackSample,
    StackSampleDefaults, TracePacket, TracePacketDefaults, TrackDescriptor, TrackEvent, UNIT_NANOSECONDS,
};

/// Any number but 0.
const SEQUENCE: u32 = 1;

/// The key of the field `packet` of a `Trace`: number 1, with a length.
const PACKET_KEY: u8 = 1 << 3 | 2;

/// Bytes of known texts and stacks. The names of a large program's functions are a few MiB.
const MAX_KNOWN_BYTES: usize = 16 << 20;

pub(super) struct Sequence<'o> {
    out: &'o mut dyn Write,
    known: Known,
    max_known_bytes: usize,
    is_cleared: bool,
}

impl<'o> Sequence<'o> {
    pub fn new(out: &'o mut dyn Write) -> Self {
        Sequence { out, known: Known::default(), max_known_bytes: MAX_KNOWN_BYTES, is_cleared: true }
    }

    #[cfg(test)]
    pub fn with_limit(out: &'o mut dyn Write, max_known_bytes: usize) -> Self {
        Sequence { max_known_bytes, ..Sequence::new(out) }
    }

    /// Writes which clock the timestamps are of, and the time of day at `start` where it is known.
    pub fn clocks(&mut self, start: MonoNs, time_of_day: Option<EpochNs>) -> io::Result<()> {
        let clock = |id, timestamp| Clock { clock_id: Some(id), timestamp: Some(timestamp) };
        let mut clocks = vec![clock(MONOTONIC, start.0)];
        clocks.extend(time_of_day.map(|EpochNs(now)| clock(REALTIME, now)));
        let snapshot = ClockSnapshot { clocks, primary_trace_clock: Some(MONOTONIC) };
        self.write(TracePacket { clock_snapshot: Some(snapshot), ..TracePacket::default() })
    }

    pub fn track(&mut self, track: TrackDescriptor) -> io::Result<()> {
        self.write(TracePacket { track_descriptor: Some(track), ..TracePacket::default() })
    }

    pub fn event(&mut self, at: MonoNs, event: TrackEvent) -> io::Result<()> {
        let packet = TracePacket { track_event: Some(event), ..TracePacket::default() };
        self.write_at(at, packet)
    }

    pub fn sample(&mut self, at: MonoNs, sample: StackSample) -> io::Result<()> {
        let packet = TracePacket { stack_sample: Some(sample), ..TracePacket::default() };
        self.write_at(at, packet)
    }

    fn write_at(&mut self, at: MonoNs, packet: TracePacket) -> io::Result<()> {
        self.write(TracePacket { timestamp: Some(at.0), ..packet })?;
        if self.known.bytes() > self.max_known_bytes {
            self.known = Known::default();
            self.is_cleared = true;
        }
        Ok(())
    }

    /// The number of an event's category, for the next event.
    pub fn category(&mut self, text: &str) -> u64 {
        self.known.categories.number(text)
    }

    /// The number of an event's name, for the next event.
    pub fn name(&mut self, text: &str) -> u64 {
        self.known.names.number(text)
    }

    /// An annotation without a value, for the next event.
    pub fn annotation(&mut self, key: &str) -> DebugAnnotation {
        DebugAnnotation { name_iid: Some(self.known.keys.number(key)), ..DebugAnnotation::default() }
    }

    /// An annotation's text, for the next event.
    pub fn value(&mut self, text: &str) -> DebugAnnotation {
        DebugAnnotation {
            string_value_iid: Some(self.known.values.number(text)),
            ..DebugAnnotation::default()
        }
    }

    /// The number of a function at a place in the sources, for the next stack.
    pub fn frame(&mut self, function: &str, source: Option<(&str, Option<u32>)>) -> u64 {
        let known = &mut self.known;
        let function_name_id = Some(known.function_names.number(function));
        let source_path_iid = source.map(|(path, _)| known.source_paths.number(path));
        let line_number = source.and_then(|(_, line)| line);
        let key = (function_name_id, source_path_iid, line_number);
        known.frames.number(key, size_of::<Frame>(), |iid, _| Frame {
            iid: Some(iid),
            function_name_id,
            source_path_iid,
            line_number,
        })
    }

    /// The number of a stack of frames, root first, for the next sample.
    pub fn callstack(&mut self, frames: Vec<u64>) -> u64 {
        let bytes = size_of_val(frames.as_slice());
        let stack = |iid, frames: &Vec<u64>| Callstack { iid: Some(iid), frame_ids: frames.clone() };
        self.known.callstacks.number(frames, bytes, stack)
    }

    /// The number of a counter of nanoseconds, for the next sample.
    pub fn counter(&mut self, name: &str) -> u64 {
        let counter = |iid, _: &String| StackCounter { iid: Some(iid), ..nanoseconds(name) };
        self.known.counters.number(name.to_owned(), name.len(), counter)
    }

    fn write(&mut self, mut packet: TracePacket) -> io::Result<()> {
        packet.trusted_packet_sequence_id = Some(SEQUENCE);
        packet.sequence_flags = Some(NEEDS_INCREMENTAL_STATE);
        if std::mem::take(&mut self.is_cleared) {
            packet.sequence_flags = Some(INCREMENTAL_STATE_CLEARED);
            packet.trace_packet_defaults = Some(TracePacketDefaults {
                timestamp_clock_id: Some(MONOTONIC),
                stack_sample_defaults: Some(StackSampleDefaults {
                    source: Some("wallprof".into()),
                    primary_descriptor: Some(nanoseconds("wall time")),
                }),
            });
        }
        let interned = self.known.take_fresh();
        packet.interned_data = (interned != InternedData::default()).then_some(interned);
        self.out.write_all(&[PACKET_KEY])?;
        self.out.write_all(&packet.encode_length_delimited_to_vec())
    }
}

fn nanoseconds(name: &str) -> StackCounter {
    StackCounter { iid: None, name: Some(name.into()), unit: Some(UNIT_NANOSECONDS) }
}

/// The number of the function's name, that of the source's path, and the line.
type FrameKey = (Option<u64>, Option<u64>, Option<u32>);

/// What has a number.
#[derive(Default)]
struct Known {
    categories: Texts,
    names: Texts,
    keys: Texts,
    values: Texts,
    function_names: Texts,
    source_paths: Texts,
    frames: Pool<FrameKey, Frame>,
    callstacks: Pool<Vec<u64>, Callstack>,
    counters: Pool<String, StackCounter>,
}

impl Known {
    fn bytes(&self) -> usize {
        let texts = [
            &self.categories,
            &self.names,
            &self.keys,
            &self.values,
            &self.function_names,
            &self.source_paths,
        ];
        let texts: usize = texts.into_iter().map(|texts| texts.0.bytes).sum();
        texts + self.frames.bytes + self.callstacks.bytes + self.counters.bytes
    }

    fn take_fresh(&mut self) -> InternedData {
        InternedData {
            event_categories: self.categories.0.take_fresh(),
            event_names: self.names.0.take_fresh(),
            debug_annotation_names: self.keys.0.take_fresh(),
            debug_annotation_string_values: self.values.0.take_fresh(),
            function_names: self.function_names.0.take_fresh(),
            source_paths: self.source_paths.0.take_fresh(),
            frames: self.frames.take_fresh(),
            callstacks: self.callstacks.take_fresh(),
            stack_sample_counter_descriptors: self.counters.take_fresh(),
        }
    }
}

/// Texts of one kind.
#[derive(Default)]
struct Texts(Pool<String, Interned>);

impl Texts {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(number) = self.0.numbers.get(text) {
            return *number;
        }
        let interned = |iid, text: &String| Interned { iid: Some(iid), text: Some(text.clone()) };
        self.0.number(text.to_owned(), text.len(), interned)
    }
}

/// Messages of one kind by what they say. The first has number 1.
struct Pool<K, M> {
    numbers: HashMap<K, u64>,
    fresh: Vec<M>,
    bytes: usize,
}

impl<K, M> Default for Pool<K, M> {
    fn default() -> Self {
        Pool { numbers: HashMap::new(), fresh: Vec::new(), bytes: 0 }
    }
}

impl<K: Eq + Hash, M> Pool<K, M> {
    /// `message` makes what is written of a new key.
    fn number(&mut self, key: K, bytes: usize, message: impl FnOnce(u64, &K) -> M) -> u64 {
        let next = self.numbers.len() as u64 + 1;
        match self.numbers.entry(key) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                self.fresh.push(message(next, new.key()));
                self.bytes += bytes;
                *new.insert(next)
            }
        }
    }

    fn take_fresh(&mut self) -> Vec<M> {
        std::mem::take(&mut self.fresh)
    }
}
