// SPDX-License-Identifier: Apache-2.0
//! Reads little-endian integers and LEB128 numbers from bytes that may end anywhere.

/// Limit on the bytes of one LEB128 number. Ten hold 64 bits, and assemblers may pad with a few more. The
/// limit keeps overlapping numbers from being read again and again.
const MAX_LEB: u32 = 16;

/// A position in a byte slice. Reads past the end return `None`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Bytes { bytes, at: 0 }
    }

    /// Starts at `at`, which may be outside.
    pub(crate) fn at(bytes: &'a [u8], at: usize) -> Self {
        Bytes { bytes, at }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let array = *self.bytes.get(self.at..)?.first_chunk()?;
        self.at += N;
        Some(array)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    #[inline]
    pub(crate) fn uleb(&mut self) -> Option<u64> {
        let first = self.u8()?;
        if first < 0x80 {
            return Some(first.into());
        }
        self.long_leb(first).map(|(value, _, _)| value)
    }

    #[inline]
    pub(crate) fn sleb(&mut self) -> Option<i64> {
        let first = self.u8()?;
        let (value, bits, last) = if first < 0x80 { (first.into(), 7, first) } else { self.long_leb(first)? };
        let negative = last & 0x40 != 0 && bits < 64;
        Some((if negative { value | u64::MAX << bits } else { value }) as i64)
    }

    /// The value, its number of bits, and its last byte. Bits beyond 64 are dropped.
    fn long_leb(&mut self, first: u8) -> Option<(u64, u32, u8)> {
        let mut value = u64::from(first & 0x7f);
        let mut bits = 7;
        for _ in 1..MAX_LEB {
            let byte = self.u8()?;
            if bits < 64 {
                value |= u64::from(byte & 0x7f) << bits;
                bits += 7;
            }
            if byte < 0x80 {
                return Some((value, bits, byte));
            }
        }
        None
    }

    /// The next `len` bytes.
    pub(crate) fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let end = self.at.checked_add(usize::try_from(len).ok()?)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    /// The bytes up to the next zero byte, which is skipped.
    pub(crate) fn text(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let len = rest.iter().position(|&byte| byte == 0)?;
        self.at += len + 1;
        Some(&rest[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leb128_of_the_dwarf_standard() {
        // DWARF 5, figures 22 and 23.
        for (bytes, value) in [(&[2][..], 2), (&[127], 127), (&[0x80, 1], 128), (&[0xb9, 0x64], 12857)] {
            assert_eq!(Bytes::new(bytes).uleb(), Some(value));
        }
        for (bytes, value) in [
            (&[2][..], 2),
            (&[0x7e], -2),
            (&[0xff, 0], 127),
            (&[0x81, 0x7f], -127),
            (&[0x80, 1], 128),
            (&[0x80, 0x7f], -128),
        ] {
            assert_eq!(Bytes::new(bytes).sleb(), Some(value));
        }
    }

    #[test]
    fn a_long_leb128_keeps_its_low_64_bits_and_ends() {
        let mut long = vec![0xff; 15];
        long.push(0x7f);
        assert_eq!(Bytes::new(&long).uleb(), Some(u64::MAX));
        assert_eq!(Bytes::new(&long).sleb(), Some(-1));
        assert_eq!(Bytes::new(&long[..15]).uleb(), None);
        long.insert(0, 0xff);
        assert_eq!(Bytes::new(&long).uleb(), None);
    }

    #[test]
    fn reads_past_the_end_return_none_and_do_not_move() {
        let mut bytes = Bytes::new(&[1, 2, 3]);
        assert_eq!(bytes.u32(), None);
        assert_eq!(bytes.take(u64::MAX), None);
        assert_eq!(bytes.text(), None);
        assert_eq!(bytes.u16(), Some(0x0201));
        assert_eq!(Bytes::at(&[1], usize::MAX).u16(), None);
    }
}
