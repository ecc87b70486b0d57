//! The packets of a trace in the order in which they are written, and the texts that they share.
//!
//! A text is written once and has a number from then on. Memory stays bounded: when the known texts have
//! reached a limit, the sequence forgets them, which the next packet says.

use std::collections::HashMap;
use std::io::{self, Write};

use prost::Message;
use wallprof_model::{EpochNs, MonoNs};

use super::messages::{
    Clock, ClockSnapshot, DebugAnnotation, INCREMENTAL_STATE_CLEARED, Interned, InternedData, MONOTONIC,
    NEEDS_INCREMENTAL_STATE, REALTIME, TracePacket, TracePacketDefaults, TrackDescriptor, TrackEvent,
};

/// Any number but 0.
const SEQUENCE: u32 = 1;

/// The key of the field `packet` of a `Trace`: number 1, with a length.
const PACKET_KEY: u8 = 1 << 3 | 2;

/// Bytes of known texts. The names of a large program's functions are a few MiB.
const MAX_TEXT_BYTES: usize = 16 << 20;

pub(super) struct Sequence<'o> {
    out: &'o mut dyn Write,
    categories: Texts,
    names: Texts,
    keys: Texts,
    values: Texts,
    max_text_bytes: usize,
    is_cleared: bool,
}

impl<'o> Sequence<'o> {
    pub fn new(out: &'o mut dyn Write) -> Self {
        Sequence {
            out,
            categories: Texts::default(),
            names: Texts::default(),
            keys: Texts::default(),
            values: Texts::default(),
            max_text_bytes: MAX_TEXT_BYTES,
            is_cleared: true,
        }
    }

    #[cfg(test)]
    pub fn with_limit(out: &'o mut dyn Write, max_text_bytes: usize) -> Self {
        Sequence { max_text_bytes, ..Sequence::new(out) }
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
        self.write(TracePacket {
            timestamp: Some(at.0),
            track_event: Some(event),
            ..TracePacket::default()
        })?;
        if self.text_bytes() > self.max_text_bytes {
            for texts in [&mut self.categories, &mut self.names, &mut self.keys, &mut self.values] {
                *texts = Texts::default();
            }
            self.is_cleared = true;
        }
        Ok(())
    }

    /// The number of an event's category, for the next event.
    pub fn category(&mut self, text: &str) -> u64 {
        self.categories.number(text)
    }

    /// The number of an event's name, for the next event.
    pub fn name(&mut self, text: &str) -> u64 {
        self.names.number(text)
    }

    /// An annotation without a value, for the next event.
    pub fn annotation(&mut self, key: &str) -> DebugAnnotation {
        DebugAnnotation { name_iid: Some(self.keys.number(key)), ..DebugAnnotation::default() }
    }

    /// An annotation's text, for the next event.
    pub fn value(&mut self, text: &str) -> DebugAnnotation {
        DebugAnnotation { string_value_iid: Some(self.values.number(text)), ..DebugAnnotation::default() }
    }

    fn text_bytes(&self) -> usize {
        [&self.categories, &self.names, &self.keys, &self.values].iter().map(|texts| texts.bytes).sum()
    }

    fn write(&mut self, mut packet: TracePacket) -> io::Result<()> {
        packet.trusted_packet_sequence_id = Some(SEQUENCE);
        packet.sequence_flags = Some(NEEDS_INCREMENTAL_STATE);
        if std::mem::take(&mut self.is_cleared) {
            packet.sequence_flags = Some(INCREMENTAL_STATE_CLEARED);
            packet.trace_packet_defaults = Some(TracePacketDefaults { timestamp_clock_id: Some(MONOTONIC) });
        }
        let interned = InternedData {
            event_categories: std::mem::take(&mut self.categories.fresh),
            event_names: std::mem::take(&mut self.names.fresh),
            debug_annotation_names: std::mem::take(&mut self.keys.fresh),
            debug_annotation_string_values: std::mem::take(&mut self.values.fresh),
        };
        packet.interned_data = (interned != InternedData::default()).then_some(interned);
        self.out.write_all(&[PACKET_KEY])?;
        self.out.write_all(&packet.encode_length_delimited_to_vec())
    }
}

/// Texts of one kind. The first has number 1.
#[derive(Default)]
struct Texts {
    numbers: HashMap<String, u64>,
    fresh: Vec<Interned>,
    bytes: usize,
}

impl Texts {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.numbers.len() as u64 + 1;
        self.numbers.insert(text.into(), number);
        self.fresh.push(Interned { iid: Some(number), text: Some(text.into()) });
        self.bytes += text.len();
        number
    }
}
