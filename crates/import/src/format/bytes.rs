// SPDX-License-Identifier: Apache-2.0
//! Little-endian integers and texts from untrusted bytes. Every read is checked; none panics.

/// Reads forward through bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a> {
    rest: &'a [u8],
}

impl<'a> Bytes<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Bytes { rest: bytes }
    }

    pub(crate) fn len(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    /// As [`Bytes::take`], for a length read from a file.
    pub(crate) fn take_u64(&mut self, len: u64) -> Option<&'a [u8]> {
        self.take(usize::try_from(len).ok()?)
    }

    pub(crate) fn skip(&mut self, len: usize) -> Option<()> {
        self.take(len).map(drop)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// `count` integers of 8 bytes. `None` unless all of them are there.
    pub(crate) fn u64s(&mut self, count: u64) -> Option<impl Iterator<Item = u64> + 'a> {
        let bytes = self.take_u64(count.checked_mul(8)?)?;
        Some(bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap_or_default())))
    }

    /// The remaining bytes up to the first NUL.
    pub(crate) fn c_string(&self) -> &'a [u8] {
        until_nul(self.rest)
    }

    /// A text of perf's header: a length of 4 bytes, then the text, padded with NULs.
    pub(crate) fn text(&mut self) -> Option<String> {
        let len = self.u32()?;
        Some(lossy(until_nul(self.take(len as usize)?)))
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
}

/// The bytes before the first NUL, or all of them.
pub(crate) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or(bytes)
}

pub(crate) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_end_where_the_bytes_end() {
        let mut bytes = Bytes::new(&[1, 0, 2, 0, 0, 0, 3]);
        assert_eq!((bytes.u16(), bytes.u32()), (Some(1), Some(2)));
        assert_eq!((bytes.u16(), bytes.len()), (None, 1));
        assert_eq!((bytes.take(1), bytes.take(1), bytes.is_empty()), (Some(&[3][..]), None, true));
    }

    #[test]
    fn counts_that_overflow_are_refused() {
        let mut bytes = Bytes::new(&[0; 16]);
        assert!(bytes.u64s(u64::MAX).is_none());
        assert!(bytes.u64s(3).is_none());
        assert_eq!(bytes.u64s(2).map(Iterator::count), Some(2));
    }

    #[test]
    fn texts_end_at_their_nul() {
        let mut bytes = Bytes::new(b"\x04\0\0\0ab\0\0\x01\0\0\0");
        assert_eq!(bytes.text().as_deref(), Some("ab"));
        assert_eq!(bytes.text(), None);
        assert_eq!(Bytes::new(b"x\0y").c_string(), b"x");
    }
}
