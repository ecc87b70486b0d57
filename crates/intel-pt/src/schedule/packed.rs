// SPDX-License-Identifier: Apache-2.0
//! A block of switches in a few bytes each: the time since the previous one, the thread with the previous
//! one's departure, and the space, as numbers of seven bits a byte (LEB128).

use std::borrow::Cow;

use super::{Departure, Switch, SwitchStore, ThreadId};
use crate::code::SpaceId;

/// Packed switches by time.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    /// The time of the first one.
    pub first: u64,
    place: Place,
}

/// The location of a block's bytes.
#[derive(Clone, Debug)]
enum Place {
    InMemory(Box<[u8]>),
    Stored { at: u64, len: usize },
}

impl Packed {
    /// `switches` must be sorted by time.
    pub(super) fn new(switches: impl Iterator<Item = Switch>, store: Option<&dyn SwitchStore>) -> Packed {
        let mut bytes = Vec::new();
        let mut first = None;
        let mut before = 0;
        for switch in switches {
            before = if first.is_none() { switch.ticks } else { before };
            first.get_or_insert(switch.ticks);
            pack(switch, before, &mut bytes);
            before = switch.ticks;
        }
        let place = match store.and_then(|store| store.put(&bytes)) {
            Some(at) => Place::Stored { at, len: bytes.len() },
            None => Place::InMemory(bytes.into()),
        };
        Packed { first: first.unwrap_or(0), place }
    }

    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        match &self.place {
            Place::InMemory(bytes) => size_of::<Packed>() + bytes.len(),
            Place::Stored { .. } => size_of::<Packed>(),
        }
    }
}

/// Reads a block from its start.
#[derive(Clone, Debug, Default)]
pub(super) struct Unpacking<'a> {
    bytes: Cow<'a, [u8]>,
    at: usize,
    ticks: u64,
}

impl<'a> Unpacking<'a> {
    pub(super) fn new(block: &'a Packed, store: Option<&dyn SwitchStore>) -> Self {
        let bytes = match (&block.place, store) {
            (Place::InMemory(bytes), _) => Cow::Borrowed(&bytes[..]),
            (&Place::Stored { at, len }, Some(store)) => Cow::Owned(store.get(at, len)),
            (Place::Stored { .. }, None) => Cow::default(),
        };
        Unpacking { bytes, at: 0, ticks: block.first }
    }

    fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

impl Iterator for Unpacking<'_> {
    type Item = Switch;

    fn next(&mut self) -> Option<Switch> {
        self.ticks = self.ticks.wrapping_add(self.number()?);
        let thread_and_departure = self.number()?;
        let departure = match thread_and_departure & 3 {
            0 => Departure::Blocked,
            1 => Departure::Preempted,
            _ => Departure::Unknown,
        };
        let (thread, space) = (ThreadId((thread_and_departure >> 2) as u32), SpaceId(self.number()? as u32));
        Some(Switch { ticks: self.ticks, thread, space, departure })
    }
}

fn pack(switch: Switch, before: u64, out: &mut Vec<u8>) {
    let departure = match switch.departure {
        Departure::Blocked => 0,
        Departure::Preempted => 1,
        Departure::Unknown => 2,
    };
    pack_number(switch.ticks - before, out);
    pack_number(u64::from(switch.thread.0) << 2 | departure, out);
    pack_number(switch.space.0.into(), out);
}

fn pack_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
