// SPDX-License-Identifier: Apache-2.0
//! The buffer to which the processor writes its trace, beside an event's records (AUX in perf_event_open(2)).

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use crate::ring::{Pages, Ring, control};

/// Part of a trace: the position of its first byte in the count of all bytes, and its two halves around the
/// buffer's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    pub offset: u64,
    pub parts: [&'a [u8]; 2],
}

impl Piece<'_> {
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bytes of perf.data's unit. Padding inside a piece would lie in the middle of a packet that continues in
/// the next piece.
const UNIT: u64 = 8;

/// A trace's buffer.
pub(crate) struct Aux {
    pages: Pages,
    /// The buffer is overwritten continuously, and read once, at the end.
    keeps_last: bool,
}

impl Aux {
    /// A buffer of `bytes`, a power of two, beside `ring`, whose event it is.
    pub(crate) fn map(event: &impl AsFd, ring: &Ring, bytes: u64, keeps_last: bool) -> io::Result<Self> {
        let offset = (ring.pages().len() as u64).next_multiple_of(bytes);
        ring.pages().word(control::AUX_OFFSET).store(offset, Ordering::Relaxed);
        ring.pages().word(control::AUX_SIZE).store(bytes, Ordering::Relaxed);
        let len = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // The kernel overwrites pages that are mapped without write permission: it cannot know which ones
        // were read.
        let pages = Pages::map(event.as_fd(), len, offset, !keeps_last)?;
        Ok(Aux { pages, keeps_last })
    }

    /// Calls `each` with the bytes written since the last call; when it returns, the kernel may overwrite
    /// them. Returns whether there were any. A file holds whole units, so the rest of a unit waits for the
    /// next call.
    pub(crate) fn read<E>(
        &self,
        ring: &Ring,
        each: impl FnOnce(Piece<'_>) -> Result<(), E>,
    ) -> Result<bool, E> {
        if self.keeps_last {
            return Ok(false);
        }
        self.read_to(head(ring) / UNIT * UNIT, ring, each)
    }

    /// The rest of a trace; its event is disabled.
    pub(crate) fn read_last<E>(
        &self,
        ring: &Ring,
        each: impl FnOnce(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.keeps_last {
            true => self.snapshot(ring, each),
            false => self.read_to(head(ring), ring, each).map(drop),
        }
    }

    fn read_to<E>(
        &self,
        to: u64,
        ring: &Ring,
        each: impl FnOnce(Piece<'_>) -> Result<(), E>,
    ) -> Result<bool, E> {
        let tail = ring.pages().word(control::AUX_TAIL);
        let from = tail.load(Ordering::Relaxed);
        if from >= to {
            return Ok(false);
        }
        let result = each(self.piece(from, to - from));
        tail.store(to, Ordering::Release);
        result.map(|()| true)
    }

    /// The content of a buffer that keeps the end of a trace.
    fn snapshot<E>(&self, ring: &Ring, each: impl FnOnce(Piece<'_>) -> Result<(), E>) -> Result<(), E> {
        let len = self.pages.len() as u64;
        let head = head(ring) % len;
        // The number of wraps is not known. A buffer starts as zeros, and a trace has few zeros.
        let rest = self.pages.still(head as usize, (len - head) as usize);
        let piece = match rest.iter().any(|byte| *byte != 0) {
            true => Piece { offset: 0, ..self.piece(head, len) },
            false => self.piece(0, head),
        };
        if piece.is_empty() { Ok(()) } else { each(piece) }
    }

    /// The `len` bytes from `from` on, or as many of them as the buffer holds.
    fn piece(&self, from: u64, len: u64) -> Piece<'_> {
        let size = self.pages.len();
        let len = len.min(size as u64) as usize;
        let at = (from % size as u64) as usize;
        let first = len.min(size - at);
        Piece { offset: from, parts: [self.pages.still(at, first), self.pages.still(0, len - first)] }
    }
}

/// The number of bytes that the processor has written.
fn head(ring: &Ring) -> u64 {
    ring.pages().word(control::AUX_HEAD).load(Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::PAGE;

    fn ring() -> Ring {
        Ring::private(1)
    }

    fn aux(keeps_last: bool) -> Aux {
        Aux { pages: Pages::private(PAGE), keeps_last }
    }

    fn set(ring: &Ring, word: usize, value: u64) {
        ring.pages().word(word).store(value, Ordering::Release);
    }

    fn read(aux: &Aux, ring: &Ring) -> Option<(u64, Vec<u8>)> {
        let mut found = None;
        let read: Result<bool, ()> = aux.read(ring, |piece| {
            assert_eq!(piece.len() as usize, piece.parts.concat().len());
            found = Some((piece.offset, piece.parts.concat()));
            Ok(())
        });
        assert_eq!(read, Ok(found.is_some()));
        found
    }

    #[test]
    fn each_byte_comes_once_and_its_space_is_released() {
        let (ring, mut aux) = (ring(), aux(false));
        assert_eq!(read(&aux, &ring), None);
        let (mut expected, mut passed_on) = (0, 0);
        for turn in 1..40u64 {
            let len = turn * 97 % 3_000 + 9;
            for at in expected..expected + len {
                aux.pages.fill((at % PAGE as u64) as usize, &[at as u8]);
            }
            set(&ring, control::AUX_HEAD, expected + len);
            expected += len;
            let whole = expected / UNIT * UNIT;
            let (offset, bytes) = read(&aux, &ring).expect("something new");
            assert_eq!((offset, offset + bytes.len() as u64), (passed_on, whole));
            assert!((passed_on..).zip(&bytes).all(|(at, byte)| at as u8 == *byte));
            passed_on = whole;
            assert_eq!(ring.pages().word(control::AUX_TAIL).load(Ordering::Relaxed), passed_on);
        }
        let mut rest = 0;
        let read_rest: Result<(), ()> = aux.read_last(&ring, |piece| {
            rest = piece.len();
            Ok(())
        });
        assert_eq!((read_rest, passed_on + rest), (Ok(()), expected));
        // There are never more bytes than the buffer has, whatever the head is.
        set(&ring, control::AUX_HEAD, u64::MAX);
        assert_eq!(read(&aux, &ring).expect("some").1.len(), PAGE);
    }

    #[test]
    fn end_of_a_wrapped_trace_is_in_order() {
        let (ring, mut aux) = (ring(), aux(true));
        let last = |aux: &Aux| {
            let mut found = Vec::new();
            let read: Result<(), ()> = aux.read_last(&ring, |piece| {
                assert_eq!(piece.offset, 0);
                found = piece.parts.concat();
                Ok(())
            });
            read.expect("nothing fails");
            found
        };
        assert!(last(&aux).is_empty() && read(&aux, &ring).is_none());
        aux.pages.fill(0, &[1; 100]);
        set(&ring, control::AUX_HEAD, 100);
        assert_eq!(last(&aux), [1; 100]);
        // The buffer has wrapped: the oldest bytes are those after its head.
        aux.pages.fill(100, &[2; PAGE - 100]);
        assert_eq!(last(&aux), [&[2; PAGE - 100][..], &[1; 100]].concat());
        set(&ring, control::AUX_HEAD, PAGE as u64 + 100);
        assert_eq!(last(&aux).len(), PAGE);
    }

    #[test]
    fn write_errors_are_returned() {
        let (ring, aux) = (ring(), aux(false));
        set(&ring, control::AUX_HEAD, 8);
        assert_eq!(aux.read(&ring, |_| Err("full")), Err("full"));
    }
}
