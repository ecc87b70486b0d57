// SPDX-License-Identifier: Apache-2.0
//! Reads packets from bytes, and finds the next synchronisation point after bytes that are not a packet.
//!
//! A reader has a position, and the one state that changes the meaning of bytes: whether a block of BIP items
//! is open.

use crate::packet::{BlockItemSize, CodeSize, IpPayload, Packet, Tnt};

/// The 16 bytes of a PSB packet.
pub const PSB: [u8; 16] =
    [0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82];

/// The reason why no packet could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketError {
    /// The bytes are not a packet of the manual.
    Unknown {
        /// The position of the first byte.
        offset: usize,
    },
    /// The trace ends inside a packet.
    Truncated {
        /// The position of the packet.
        offset: usize,
    },
}

/// A reader of packets. After an error it keeps its position; `seek_psb` moves on.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    bytes: &'a [u8],
    at: usize,
    block: Option<BlockItemSize>,
}

impl<'a> Packets<'a> {
    /// A reader at the first byte.
    pub fn new(bytes: &'a [u8]) -> Packets<'a> {
        Packets::starting_at(bytes, 0)
    }

    /// A reader at byte `offset`, which must be the first of a packet.
    pub fn starting_at(bytes: &'a [u8], offset: usize) -> Packets<'a> {
        Packets { bytes, at: offset.min(bytes.len()), block: None }
    }

    /// The offset of the next packet.
    pub fn offset(&self) -> usize {
        self.at
    }

    /// Moves to the next PSB at or after the position plus one. Returns whether there is one.
    pub fn seek_psb(&mut self) -> bool {
        self.block = None;
        let next = find_psb(self.bytes, self.at + 1);
        self.at = next.unwrap_or(self.bytes.len());
        next.is_some()
    }

    /// The next packet; `None` at the end.
    #[inline(always)]
    pub fn next_packet(&mut self) -> Option<Result<Packet, PacketError>> {
        let first = *self.bytes.get(self.at)?;
        if first & 1 == 0 {
            if first != 0x02 && first != 0 && self.block.is_none() {
                self.at += 1;
                return Some(Ok(Packet::Tnt(short_tnt(first))));
            }
            return Some(self.even(first));
        }
        if first & 3 == 3 {
            return Some(self.cycles(first));
        }
        match first & 0x1f {
            0x0d => Some(self.address(first).map(Packet::Tip)),
            0x11 => Some(self.address(first).map(Packet::TipPge)),
            0x01 => Some(self.address(first).map(Packet::TipPgd)),
            0x1d => Some(self.address(first).map(Packet::Fup)),
            _ => Some(self.other_odd(first)),
        }
    }

    #[inline(always)]
    fn cycles(&mut self, first: u8) -> Result<Packet, PacketError> {
        if first & 4 == 0 {
            self.at += 1;
            return Ok(Packet::Cyc(u64::from(first >> 3)));
        }
        self.long_cycles(first)
    }

    fn long_cycles(&mut self, first: u8) -> Result<Packet, PacketError> {
        let mut cycles = u64::from(first >> 3);
        let mut shift = 5;
        for length in 2..=15 {
            let byte = *self.bytes.get(self.at + length - 1).ok_or(self.truncated())?;
            let payload = u64::from(byte >> 1);
            if shift >= 64 || payload << shift >> shift != payload {
                return Err(self.unknown());
            }
            cycles |= payload << shift;
            shift += 7;
            if byte & 1 == 0 {
                self.at += length;
                return Ok(Packet::Cyc(cycles));
            }
        }
        Err(self.unknown())
    }

    #[inline(always)]
    fn address(&mut self, first: u8) -> Result<IpPayload, PacketError> {
        let (payload, length) = match first >> 5 {
            0 => (IpPayload::Suppressed, 1),
            1 => (IpPayload::Low16(self.payload(1, 2)? as u16), 3),
            2 => (IpPayload::Low32(self.payload(1, 4)? as u32), 5),
            3 => (IpPayload::Signed48(self.payload(1, 6)?), 7),
            4 => (IpPayload::Low48(self.payload(1, 6)?), 7),
            6 => (IpPayload::Full(self.payload(1, 8)?), 9),
            _ => return Err(self.unknown()),
        };
        self.at += length;
        Ok(payload)
    }

    /// `length` (at most 8) payload bytes, `skip` bytes into the packet, little-endian.
    #[inline(always)]
    fn payload(&self, skip: usize, length: usize) -> Result<u64, PacketError> {
        let start = self.at + skip;
        if let Some(bytes) = self.bytes.get(start..start + 8) {
            let word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            return Ok(if length == 8 { word } else { word & ((1 << (8 * length)) - 1) });
        }
        self.payload_near_end(start, length)
    }

    #[cold]
    fn payload_near_end(&self, start: usize, length: usize) -> Result<u64, PacketError> {
        let bytes = self.bytes.get(start..start + length).ok_or(self.truncated())?;
        Ok(bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)))
    }

    fn other_odd(&mut self, first: u8) -> Result<Packet, PacketError> {
        let (packet, length) = match first {
            0x19 => (Packet::Tsc(self.payload(1, 7)?), 8),
            0x59 => (Packet::Mtc(self.payload(1, 1)? as u8), 2),
            0x99 => (mode_from_byte(self.payload(1, 1)? as u8).ok_or(self.unknown())?, 2),
            _ => return Err(self.unknown()),
        };
        self.at += length;
        Ok(packet)
    }

    #[inline(never)]
    fn even(&mut self, first: u8) -> Result<Packet, PacketError> {
        if first == 0 {
            self.at += 1;
            return Ok(Packet::Pad);
        }
        match self.block {
            Some(size) if first & 7 == 4 => self.block_item(first >> 3, size),
            _ if first != 0x02 => {
                self.at += 1;
                Ok(Packet::Tnt(short_tnt(first)))
            }
            _ => self.extended(),
        }
    }

    fn block_item(&mut self, id: u8, size: BlockItemSize) -> Result<Packet, PacketError> {
        let length = match size {
            BlockItemSize::Four => 4,
            BlockItemSize::Eight => 8,
        };
        let value = self.payload(1, length)?;
        self.at += 1 + length;
        Ok(Packet::BlockItem { id, value })
    }

    fn extended(&mut self) -> Result<Packet, PacketError> {
        let second = *self.bytes.get(self.at + 1).ok_or(self.truncated())?;
        let (packet, length) = match second {
            0x82 => return self.psb(),
            0x23 => (Packet::PsbEnd, 2),
            0xf3 => (Packet::Overflow, 2),
            0x83 => (Packet::TraceStop, 2),
            0xa3 => (Packet::Tnt(long_tnt(self.payload(2, 6)?).ok_or(self.unknown())?), 8),
            0x43 => (pip_from_payload(self.payload(2, 6)?), 8),
            0x03 => (Packet::Cbr(self.payload(2, 2)? as u8), 4),
            0x73 => (tma_from_payload(self.payload(2, 5)?), 7),
            0xc8 => (Packet::Vmcs(self.payload(2, 5)? << 12), 7),
            0xc3 => self.mnt()?,
            0x62 | 0xe2 => (Packet::ExecStop { ip_follows: second & 0x80 != 0 }, 2),
            0xc2 => (mwait_from_payload(self.payload(2, 8)?), 10),
            0x22 => (Packet::PowerEntry(self.payload(2, 2)? as u16), 4),
            0xa2 => (Packet::PowerExit(self.payload(2, 5)?), 7),
            0x63 => (block_begin_from_byte(self.payload(2, 1)? as u8), 3),
            0x33 | 0xb3 => (Packet::BlockEnd { ip_follows: second & 0x80 != 0 }, 2),
            0x13 => (control_flow_event_from_payload(self.payload(2, 2)? as u16), 4),
            0x53 => {
                (Packet::EventData { kind: self.payload(2, 1)? as u8 & 0x3f, value: self.payload(3, 8)? }, 11)
            }
            _ if second & 0x1f == 0x12 => self.ptwrite(second)?,
            _ => return Err(self.unknown()),
        };
        self.at += length;
        self.track_block(packet);
        Ok(packet)
    }

    fn track_block(&mut self, packet: Packet) {
        match packet {
            Packet::BlockBegin { item, .. } => self.block = Some(item),
            Packet::BlockEnd { .. } | Packet::Overflow => self.block = None,
            _ => {}
        }
    }

    fn psb(&mut self) -> Result<Packet, PacketError> {
        self.block = None;
        let found = self.bytes.get(self.at..self.at + PSB.len()).ok_or(self.truncated())?;
        if found != PSB {
            return Err(self.unknown());
        }
        self.at += PSB.len();
        self.block = None;
        Ok(Packet::Psb)
    }

    fn mnt(&self) -> Result<(Packet, usize), PacketError> {
        match self.payload(2, 1)? {
            0x88 => Ok((Packet::Mnt(self.payload(3, 8)?), 11)),
            _ => Err(self.unknown()),
        }
    }

    fn ptwrite(&self, second: u8) -> Result<(Packet, usize), PacketError> {
        let length = match second >> 5 & 3 {
            0 => 4,
            1 => 8,
            _ => return Err(self.unknown()),
        };
        let packet = Packet::PtWrite { value: self.payload(2, length)?, ip_follows: second & 0x80 != 0 };
        Ok((packet, 2 + length))
    }

    fn unknown(&self) -> PacketError {
        PacketError::Unknown { offset: self.at }
    }

    fn truncated(&self) -> PacketError {
        PacketError::Truncated { offset: self.at }
    }
}

impl Iterator for Packets<'_> {
    type Item = Result<Packet, PacketError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_packet()
    }
}

/// The offset of the first PSB at or after `from`.
pub fn find_psb(bytes: &[u8], from: usize) -> Option<usize> {
    let is_psb = |at: usize| bytes.get(at..at + PSB.len()).is_some_and(|window| window == PSB);
    let mut at = find_pattern(bytes, from)?;
    // The packet before may end like a PSB starts. Then the pattern is longer, and its end counts.
    while is_psb(at + 2) {
        at += 2;
    }
    Some(at)
}

fn find_pattern(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(window) = bytes.get(at..at + PSB.len()) {
        if window == PSB {
            return Some(at);
        }
        // The two bytes of a PSB alternate, so the last byte of the window gives the distance to the next
        // possible start.
        at += match window[15] {
            0x82 => 2,
            0x02 => 1,
            _ => PSB.len(),
        };
    }
    None
}

#[inline(always)]
fn short_tnt(byte: u8) -> Tnt {
    let count = 6 - byte.leading_zeros() as u8;
    Tnt { bits: u64::from(byte >> 1) & ((1 << count) - 1), count }
}

fn long_tnt(payload: u64) -> Option<Tnt> {
    let count = 63u32.checked_sub(payload.leading_zeros())?;
    (count > 0).then(|| Tnt { bits: payload & ((1 << count) - 1), count: count as u8 })
}

fn mode_from_byte(byte: u8) -> Option<Packet> {
    match byte >> 5 {
        0 => {
            let code = match byte & 3 {
                1 => CodeSize::Bits64,
                2 => CodeSize::Bits32,
                0 => CodeSize::Bits16,
                _ => return None,
            };
            Some(Packet::ModeExec { code, interrupts: byte & 4 != 0 })
        }
        1 => Some(Packet::ModeTsx { inside: byte & 1 != 0, abort: byte & 2 != 0 }),
        _ => None,
    }
}

fn pip_from_payload(payload: u64) -> Packet {
    Packet::Pip { cr3: payload >> 1 << 5, non_root: payload & 1 != 0 }
}

fn tma_from_payload(payload: u64) -> Packet {
    Packet::Tma { ctc: payload as u16, fast: (payload >> 24) as u16 & 0x1ff }
}

fn mwait_from_payload(payload: u64) -> Packet {
    Packet::Mwait { hints: payload as u32, extensions: (payload >> 32) as u32 }
}

fn block_begin_from_byte(byte: u8) -> Packet {
    let item = if byte & 0x80 != 0 { BlockItemSize::Four } else { BlockItemSize::Eight };
    Packet::BlockBegin { kind: byte & 0x1f, item }
}

fn control_flow_event_from_payload(payload: u16) -> Packet {
    Packet::ControlFlowEvent {
        kind: payload as u8 & 0x1f,
        vector: (payload >> 8) as u8,
        ip_follows: payload & 0x80 != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<Result<Packet, PacketError>> {
        let mut packets = Packets::new(bytes);
        let mut found = Vec::new();
        while let Some(packet) = packets.next_packet() {
            found.push(packet);
            if packet.is_err() {
                break;
            }
        }
        found
    }

    fn one(bytes: &[u8]) -> Packet {
        let packets = read(bytes);
        assert_eq!(packets.len(), 1, "{packets:?}");
        for cut in 1..bytes.len() {
            let error = read(&bytes[..cut]);
            assert!(matches!(error[..], [Err(PacketError::Truncated { offset: 0 })]), "{cut}: {error:?}");
        }
        packets[0].unwrap()
    }

    #[test]
    fn branch_results_are_read_below_the_stop_bit() {
        assert_eq!(one(&[0b0000_0110]), Packet::Tnt(Tnt { bits: 0b1, count: 1 }));
        assert_eq!(one(&[0b1101_0010]), Packet::Tnt(Tnt { bits: 0b101001, count: 6 }));
        assert_eq!(one(&[0x02, 0xa3, 0b101, 0, 0, 0, 0, 0x80]), Packet::Tnt(Tnt { bits: 0b101, count: 47 }));
        assert_eq!(one(&[0x02, 0xa3, 0b101, 0, 0, 0, 0, 0]), Packet::Tnt(Tnt { bits: 0b01, count: 2 }));
        assert!(read(&[0x02, 0xa3, 1, 0, 0, 0, 0, 0])[0].is_err());
    }

    #[test]
    fn addresses_come_in_six_sizes() {
        assert_eq!(one(&[0x0d]), Packet::Tip(IpPayload::Suppressed));
        assert_eq!(one(&[0x31, 2, 1]), Packet::TipPge(IpPayload::Low16(0x102)));
        assert_eq!(one(&[0x41, 4, 3, 2, 1]), Packet::TipPgd(IpPayload::Low32(0x0102_0304)));
        assert_eq!(one(&[0x7d, 6, 5, 4, 3, 2, 1]), Packet::Fup(IpPayload::Signed48(0x0102_0304_0506)));
        assert_eq!(one(&[0x8d, 6, 5, 4, 3, 2, 1]), Packet::Tip(IpPayload::Low48(0x0102_0304_0506)));
        assert_eq!(one(&[0xcd, 8, 7, 6, 5, 4, 3, 2, 1]), Packet::Tip(IpPayload::Full(0x0102_0304_0506_0708)));
        assert!(read(&[0xad])[0].is_err() && read(&[0xed])[0].is_err());
    }

    #[test]
    fn times_and_frequencies() {
        assert_eq!(one(&[0x19, 7, 6, 5, 4, 3, 2, 1]), Packet::Tsc(0x0001_0203_0405_0607));
        assert_eq!(one(&[0x02, 0x73, 0x34, 0x12, 0, 0xff, 1]), Packet::Tma { ctc: 0x1234, fast: 0x1ff });
        assert_eq!(one(&[0x59, 0xe0]), Packet::Mtc(0xe0));
        assert_eq!(one(&[0x02, 0x03, 0x19, 0]), Packet::Cbr(0x19));
        assert_eq!(one(&[0b1111_1011]), Packet::Cyc(31));
        assert_eq!(one(&[0b0000_1111, 0b0000_0100]), Packet::Cyc(1 | 2 << 5));
        assert_eq!(one(&[0xff, 0xff, 0xfe]), Packet::Cyc((1 << 19) - 1));
        assert!(read(&[0xff; 16])[0].is_err(), "more than 64 bits of cycles");
    }

    #[test]
    fn modes_and_states() {
        let exec = |code| Packet::ModeExec { code, interrupts: true };
        assert_eq!(one(&[0x99, 0b101]), exec(CodeSize::Bits64));
        assert_eq!(one(&[0x99, 0b110]), exec(CodeSize::Bits32));
        assert_eq!(one(&[0x99, 0b100]), exec(CodeSize::Bits16));
        assert_eq!(one(&[0x99, 0x21]), Packet::ModeTsx { inside: true, abort: false });
        assert_eq!(one(&[0x99, 0x22]), Packet::ModeTsx { inside: false, abort: true });
        assert!(read(&[0x99, 0x40])[0].is_err());
        assert_eq!(
            one(&[0x02, 0x43, 0x03, 0, 0, 0, 0, 0]),
            Packet::Pip { cr3: 0x20, non_root: true },
            "bit 1 of the payload is bit 5 of CR3"
        );
        assert_eq!(one(&[0x02, 0xc8, 1, 0, 0, 0, 0]), Packet::Vmcs(0x1000));
        assert_eq!(one(&[0x02, 0xc3, 0x88, 9, 0, 0, 0, 0, 0, 0, 0]), Packet::Mnt(9));
    }

    #[test]
    fn power_and_software_packets() {
        assert_eq!(one(&[0x02, 0x12, 1, 0, 0, 0]), Packet::PtWrite { value: 1, ip_follows: false });
        assert_eq!(
            one(&[0x02, 0xb2, 1, 0, 0, 0, 0, 0, 0, 0]),
            Packet::PtWrite { value: 1, ip_follows: true }
        );
        assert!(read(&[0x02, 0x52, 0, 0, 0, 0, 0, 0, 0, 0])[0].is_err());
        let mwait = [0x02, 0xc2, 1, 0, 0, 0, 2, 0, 0, 0];
        assert_eq!(one(&mwait), Packet::Mwait { hints: 1, extensions: 2 });
        assert_eq!(one(&[0x02, 0x22, 0x80, 0x12]), Packet::PowerEntry(0x1280));
        assert_eq!(one(&[0x02, 0xa2, 1, 0, 0, 0, 0]), Packet::PowerExit(1));
        assert_eq!(one(&[0x02, 0xe2]), Packet::ExecStop { ip_follows: true });
        assert_eq!(
            one(&[0x02, 0x13, 0x81, 14]),
            Packet::ControlFlowEvent { kind: 1, vector: 14, ip_follows: true }
        );
        assert_eq!(
            one(&[0x02, 0x53, 0x00, 0x10, 0, 0, 0, 0, 0, 0, 0]),
            Packet::EventData { kind: 0, value: 0x10 }
        );
    }

    #[test]
    fn inside_a_block_the_same_byte_is_an_item() {
        let found = read(&[0x02, 0x63, 0x81, 0x0c, 5, 0, 0, 0, 0x02, 0x33, 0x0c]);
        let expected = [
            Packet::BlockBegin { kind: 1, item: BlockItemSize::Four },
            Packet::BlockItem { id: 1, value: 5 },
            Packet::BlockEnd { ip_follows: false },
            Packet::Tnt(Tnt { bits: 0b10, count: 2 }),
        ];
        assert_eq!(found, expected.map(Ok));
    }

    #[test]
    fn psb_is_found_at_any_alignment_after_unknown_bytes() {
        for junk in 1..40 {
            for byte in [0x02, 0x82, 0x41] {
                let mut bytes = vec![byte; junk];
                bytes.extend(PSB);
                assert_eq!(find_psb(&bytes, 0), Some(junk), "{junk} of {byte:#x}");
            }
        }
        let after_an_address = [&[0x2d, 0x02, 0x82][..], &PSB, &[0x02, 0x23]].concat();
        assert_eq!(find_psb(&after_an_address, 0), Some(3));
        assert_eq!(find_psb(&PSB[..15], 0), None);
        assert_eq!(find_psb(&PSB, 1), None);
    }
}
