// SPDX-License-Identifier: Apache-2.0
//! Bounded reads at an offset: the only way in which this crate reads a foreign file or a memory image.
//!
//! No file is read whole. A length from a file is compared with a limit and with the size of the source
//! before memory is allocated for it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that can be read at an offset.
pub(crate) trait ReadAt {
    /// Fills `buffer` from `offset`, or fails.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// How many bytes there are.
    fn size(&self) -> io::Result<u64>;
}

impl ReadAt for File {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

impl ReadAt for [u8] {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let end = from.checked_add(buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(self.get(from..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

/// The `len` bytes at `offset`; `None` when they are not all there or more than `limit`.
pub(crate) fn read_bounded<R: ReadAt + ?Sized>(
    source: &R,
    offset: u64,
    len: u64,
    limit: u64,
) -> Option<Vec<u8>> {
    let inside = offset.checked_add(len)? <= source.size().ok()?;
    if !inside || len > limit {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    source.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_stay_inside_the_source_and_the_limit() {
        let bytes: &[u8] = &[1, 2, 3, 4];
        assert_eq!(read_bounded(bytes, 1, 2, 10), Some(vec![2, 3]));
        assert_eq!(read_bounded(bytes, 3, 2, 10), None);
        assert_eq!(read_bounded(bytes, 0, 3, 2), None);
        assert_eq!(read_bounded(bytes, u64::MAX, 1, 10), None);
        assert_eq!(read_bounded(bytes, 0, u64::MAX, u64::MAX), None);
    }
}
