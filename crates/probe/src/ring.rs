// SPDX-License-Identifier: Apache-2.0
//! The pages that the kernel shares for one event: a control page, and records that the kernel writes and
//! user space reads.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

pub(crate) const PAGE: usize = 4096;

/// Offsets in `struct perf_event_mmap_page` (include/uapi/linux/perf_event.h).
pub(crate) mod control {
    pub const LOCK: usize = 8;
    pub const CAPABILITIES: usize = 40;
    pub const TIME_SHIFT: usize = 50;
    pub const TIME_MULT: usize = 52;
    pub const TIME_ZERO: usize = 64;
    pub const DATA_HEAD: usize = 1024;
    pub const DATA_TAIL: usize = 1032;
    pub const AUX_HEAD: usize = 1056;
    pub const AUX_TAIL: usize = 1064;
    pub const AUX_OFFSET: usize = 1072;
    pub const AUX_SIZE: usize = 1080;
}
/// `cap_user_time_zero`.
const CAN_CONVERT_TIME: u64 = 1 << 4;
/// The kernel changes these numbers a few times after boot, very briefly: more tries than that takes.
const TRIES: usize = 1_000;

/// How the processor's ticks become perf's nanoseconds: `zero + (ticks · mult >> shift)`, wrapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TickNumbers {
    pub shift: u16,
    pub mult: u32,
    pub zero: u64,
}

/// Memory shared with the kernel, unmapped when dropped.
pub(crate) struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone. It is read through `&self` by atomic accesses, or in parts
// that the kernel does not write until the tail moves.
unsafe impl Send for Pages {}

impl Pages {
    /// Maps `len` bytes at `offset` of what `event` shares.
    pub(crate) fn map(event: BorrowedFd<'_>, len: usize, offset: u64, writable: bool) -> io::Result<Self> {
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a fresh shared mapping at a place that the kernel chooses; unmapped in Drop.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, event.as_raw_fd(), offset)
        };
        Pages::of(start, len)
    }

    fn of(start: *mut libc::c_void, len: usize) -> io::Result<Self> {
        match NonNull::new(start.cast()) {
            Some(pages) if start != libc::MAP_FAILED => Ok(Pages { start: pages, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The integer at `offset`, which is a multiple of eight and inside.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len, "an integer inside the pages");
        // SAFETY: aligned, inside the mapping, which lives as long as `self`, and shared by atomic accesses
        // only.
        unsafe { &*self.start.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// Bytes that are not written while they are borrowed: the caller reads them before it moves the tail.
    pub(crate) fn still(&self, from: usize, len: usize) -> &[u8] {
        assert!(from <= self.len && len <= self.len - from, "bytes inside the pages");
        // SAFETY: inside the mapping; by the ring's protocol the kernel does not write there until `tail`
        // moves, or the event is disabled.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(from), len) }
    }

    fn half(&self, offset: usize) -> u32 {
        // SAFETY: as in `word`; both halves of it are aligned.
        unsafe { &*self.start.as_ptr().add(offset).cast::<AtomicU32>() }.load(Ordering::Relaxed)
    }

    /// Private memory with the layout of shared pages.
    #[cfg(test)]
    pub(crate) fn private(len: usize) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh private mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        Pages::of(start, len).expect("memory")
    }

    #[cfg(test)]
    pub(crate) fn fill(&mut self, from: usize, bytes: &[u8]) {
        assert!(from + bytes.len() <= self.len);
        // SAFETY: inside the mapping, which has no other user.
        unsafe { self.start.as_ptr().add(from).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping that this value owns, and that has no other user.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// The records of one event, or of several that write to the same pages.
pub(crate) struct Ring {
    pages: Pages,
    /// A copy of a record that lies across the end of the pages.
    joined: Vec<u8>,
}

impl Ring {
    /// `data_pages` is a power of two.
    pub(crate) fn map(event: &impl AsFd, data_pages: usize) -> io::Result<Self> {
        let pages = Pages::map(event.as_fd(), (1 + data_pages) * PAGE, 0, true)?;
        Ok(Ring { pages, joined: Vec::new() })
    }

    /// Private memory in place of the kernel's.
    #[cfg(test)]
    pub(crate) fn private(data_pages: usize) -> Self {
        Ring { pages: Pages::private((1 + data_pages) * PAGE), joined: Vec::new() }
    }

    /// The control page, and what follows it.
    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Calls `each` for every record since the last call, whole, with its header.
    pub(crate) fn read<E>(&mut self, mut each: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let Ring { pages, joined } = self;
        let (head, tail) = (pages.word(control::DATA_HEAD), pages.word(control::DATA_TAIL));
        let (end, mut at) = (head.load(Ordering::Acquire), tail.load(Ordering::Relaxed));
        let mut result = Ok(());
        while at < end && result.is_ok() {
            let header = taken(pages, at, 8, joined);
            let size = usize::from(u16::from_le_bytes([header[6], header[7]]));
            if size < 8 {
                break;
            }
            result = each(taken(pages, at, size, joined));
            at += size as u64;
        }
        pages.word(control::DATA_TAIL).store(end, Ordering::Release);
        result
    }

    /// The conversion of ticks to times of records; `None` where the kernel does not provide it.
    pub(crate) fn tick_numbers(&self) -> Option<TickNumbers> {
        let pages = &self.pages;
        for _ in 0..TRIES {
            let before = pages.half(control::LOCK);
            fence(Ordering::Acquire);
            let can_convert =
                pages.word(control::CAPABILITIES).load(Ordering::Relaxed) & CAN_CONVERT_TIME != 0;
            let shift = (pages.half(control::TIME_SHIFT - 2) >> 16) as u16;
            let mult = pages.half(control::TIME_MULT);
            let zero = pages.word(control::TIME_ZERO).load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if before == pages.half(control::LOCK) && before.is_multiple_of(2) {
                return can_convert.then_some(TickNumbers { shift, mult, zero });
            }
        }
        None
    }
}

/// `len` bytes at position `at` in the count of all bytes ever written.
fn taken<'a>(pages: &'a Pages, at: u64, len: usize, joined: &'a mut Vec<u8>) -> &'a [u8] {
    let data_len = pages.len() - PAGE;
    let len = len.min(data_len);
    let from = (at % data_len as u64) as usize;
    let first = len.min(data_len - from);
    if first == len {
        return pages.still(PAGE + from, len);
    }
    joined.clear();
    joined.extend_from_slice(pages.still(PAGE + from, first));
    joined.extend_from_slice(pages.still(PAGE, len - first));
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, len: u16) -> Vec<u8> {
        let mut bytes = vec![kind; len.into()];
        bytes[6..8].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    fn ring() -> Ring {
        Ring::private(1)
    }

    /// Writes as the kernel does.
    fn write(ring: &mut Ring, bytes: &[u8]) {
        let head = ring.pages.word(control::DATA_HEAD).load(Ordering::Relaxed);
        for (index, byte) in bytes.iter().enumerate() {
            ring.pages.fill(PAGE + (head as usize + index) % PAGE, &[*byte]);
        }
        ring.pages.word(control::DATA_HEAD).store(head + bytes.len() as u64, Ordering::Release);
    }

    fn read(ring: &mut Ring) -> Vec<(u8, usize)> {
        let mut found = Vec::new();
        let read: Result<(), ()> = ring.read(|record| {
            assert!(record[8..].iter().all(|byte| *byte == record[0]));
            found.push((record[0], record.len()));
            Ok(())
        });
        read.expect("nothing fails");
        found
    }

    #[test]
    fn records_come_whole_wherever_they_lie() {
        let mut ring = ring();
        let mut written = 0;
        for turn in 0..500u16 {
            let (kind, len) = (turn as u8, 8 + turn * 8 % 1_000);
            write(&mut ring, &record(kind, len));
            written += u64::from(len);
            assert_eq!(read(&mut ring), [(kind, usize::from(len))]);
            assert_eq!(ring.pages.word(control::DATA_TAIL).load(Ordering::Relaxed), written);
        }
        assert!(written > 10 * PAGE as u64);
    }

    #[test]
    fn a_record_without_a_size_ends_the_reading() {
        let mut ring = ring();
        write(&mut ring, &[record(1, 16), vec![0; 16]].concat());
        assert_eq!(read(&mut ring), [(1, 16)]);
        write(&mut ring, &record(2, 16));
        assert_eq!(read(&mut ring), [(2, 16)], "later records are read");
    }

    #[test]
    fn an_error_ends_the_reading() {
        let mut ring = ring();
        write(&mut ring, &[record(1, 16), record(2, 16)].concat());
        let mut count = 0;
        let read = ring.read(|_| {
            count += 1;
            Err("full")
        });
        assert_eq!((read, count), (Err("full"), 1));
    }

    #[test]
    fn times_convert_where_the_kernel_says_how() {
        let mut ring = ring();
        assert_eq!(ring.tick_numbers(), None);
        ring.pages.fill(control::CAPABILITIES, &CAN_CONVERT_TIME.to_le_bytes());
        ring.pages.fill(control::TIME_SHIFT, &31u16.to_le_bytes());
        ring.pages.fill(control::TIME_MULT, &858_993_459u32.to_le_bytes());
        ring.pages.fill(control::TIME_ZERO, &7u64.to_le_bytes());
        assert_eq!(ring.tick_numbers(), Some(TickNumbers { shift: 31, mult: 858_993_459, zero: 7 }));
        // The kernel has started to change them, and never finishes.
        ring.pages.fill(control::LOCK, &1u32.to_le_bytes());
        assert_eq!(ring.tick_numbers(), None);
    }
}
