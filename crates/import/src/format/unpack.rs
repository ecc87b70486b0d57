// SPDX-License-Identifier: Apache-2.0
//! Decompression of the records that perf compressed: one zstd stream, divided among records of the file at
//! any byte.
//!
//! Decompresses up to the next complete record only, because a few bytes may expand to gigabytes.

use std::io;

use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

/// The longest record.
const MAX_RECORD: usize = 1 << 16;
/// `perf record -z22` uses windows of 2^27 bytes.
const MAX_WINDOW_LOG: u32 = 27;

/// Compressed bytes of the input, and their decompressed form.
pub(crate) struct Unpacker {
    decoder: Decoder<'static>,
    packed: Vec<u8>,
    packed_at: usize,
    /// The bytes from `start` to `end` are decompressed.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Unpacker {
    pub(crate) fn new() -> io::Result<Self> {
        let mut decoder = Decoder::new()?;
        decoder.set_parameter(DParameter::WindowLogMax(MAX_WINDOW_LOG))?;
        let buffer = vec![0; 2 * MAX_RECORD];
        Ok(Unpacker { decoder, packed: Vec::new(), packed_at: 0, buffer, start: 0, end: 0 })
    }

    /// Adds bytes of the stream. All earlier bytes have been decompressed.
    pub(crate) fn feed(&mut self, packed: &[u8]) {
        self.packed.clear();
        self.packed.extend_from_slice(packed);
        self.packed_at = 0;
    }

    /// The next `len` decompressed bytes, at most a record, without consuming them. `None` if more of the
    /// stream is needed.
    pub(crate) fn peek(&mut self, len: usize) -> io::Result<Option<&[u8]>> {
        while self.end - self.start < len {
            if !self.unpack()? {
                return Ok(None);
            }
        }
        Ok(Some(&self.buffer[self.start..self.start + len]))
    }

    pub(crate) fn consume(&mut self, len: usize) {
        self.start = (self.start + len).min(self.end);
    }

    /// Whether bytes are left that are not a complete record.
    pub(crate) fn has_rest(&self) -> bool {
        self.start < self.end
    }

    /// Decompresses into the buffer, behind the bytes in it. Returns false if nothing was consumed or
    /// produced.
    fn unpack(&mut self) -> io::Result<bool> {
        if self.start > MAX_RECORD {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let mut input = InBuffer::around(&self.packed[self.packed_at..]);
        let mut output = OutBuffer::around(&mut self.buffer[self.end..]);
        let outcome = self.decoder.run(&mut input, &mut output);
        let (consumed, produced) = (input.pos(), output.pos());
        self.packed_at += consumed;
        self.end += produced;
        outcome?;
        Ok(consumed > 0 || produced > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        zstd::stream::encode_all(bytes, 1).expect("packed")
    }

    #[test]
    fn pieces_of_any_size_give_the_whole() {
        let bytes: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        for piece in [1, 7, 65_000] {
            let mut unpacker = Unpacker::new().expect("a decoder");
            let mut unpacked = Vec::new();
            for part in packed(&bytes).chunks(piece) {
                unpacker.feed(part);
                while let Some(some) = unpacker.peek(40).expect("sound") {
                    unpacked.extend_from_slice(some);
                    unpacker.consume(40);
                }
            }
            assert!(unpacked == bytes && !unpacker.has_rest(), "{piece}");
        }
    }

    #[test]
    fn zstd_bombs_are_decompressed_in_steps() {
        let bomb = packed(&vec![0; 64 << 20]);
        assert!(bomb.len() < 65_536);
        let mut unpacker = Unpacker::new().expect("a decoder");
        unpacker.feed(&bomb);
        for _ in 0..1_000 {
            assert!(unpacker.peek(65_535).expect("sound").is_some());
            unpacker.consume(65_535);
        }
        assert_eq!(unpacker.buffer.len(), 2 * MAX_RECORD);
    }

    #[test]
    fn damage_is_an_error() {
        let mut unpacker = Unpacker::new().expect("a decoder");
        unpacker.feed(b"this is not zstd");
        assert!(unpacker.peek(1).is_err());
    }
}
