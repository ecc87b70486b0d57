//! A block of switches in a few bytes each: how much later than the one before, who, how the one before left, and which
//! memory, as numbers of seven bits a byte (LEB128).

use std::borrow::Cow;

use super::{Departure, Shelf, Switch, ThreadId};
use crate::code::SpaceId;

/// Packed switches by time.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    /// The time of the first one.
    pub first: u64,
    place: Place,
}

/// Where the bytes of a block are.
#[derive(Clone, Debug)]
enum Place {
    Here(Box<[u8]>),
    Shelved { at: u64, len: usize },
}

impl Packed {
    /// `switches` must be by time.
    pub(super) fn new(switches: impl Iterator<Item = Switch>, shelf: Option<&dyn Shelf>) -> Packed {
        let mut bytes = Vec::new();
        let mut first = None;
        let mut before = 0;
        for switch in switches {
            before = if first.is_none() { switch.ticks } else { before };
            first.get_or_insert(switch.ticks);
            pack(switch, before, &mut bytes);
            before = switch.ticks;
        }
        let place = match shelf.and_then(|shelf| shelf.put(&bytes)) {
            Some(at) => Place::Shelved { at, len: bytes.len() },
            None => Place::Here(bytes.into()),
        };
        Packed { first: first.unwrap_or(0), place }
    }

    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        match &self.place {
            Place::Here(bytes) => size_of::<Packed>() + bytes.len(),
            Place::Shelved { .. } => size_of::<Packed>(),
        }
    }
}

/// Reads a block from its beginning.
#[derive(Clone, Debug, Default)]
pub(super) struct Unpacking<'a> {
    bytes: Cow<'a, [u8]>,
    at: usize,
    ticks: u64,
}

impl<'a> Unpacking<'a> {
    pub(super) fn new(block: &'a Packed, shelf: Option<&dyn Shelf>) -> Self {
        let bytes = match (&block.place, shelf) {
            (Place::Here(bytes), _) => Cow::Borrowed(&bytes[..]),
            (&Place::Shelved { at, len }, Some(shelf)) => Cow::Owned(shelf.get(at, len)),
            (Place::Shelved { .. }, None) => Cow::default(),
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
        let who = self.number()?;
        let departure = match who & 3 {
            0 => Departure::Blocked,
            1 => Departure::Preempted,
            _ => Departure::Unknown,
        };
        let (thread, space) = (ThreadId((who >> 2) as u32), SpaceId(self.number()? as u32));
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
