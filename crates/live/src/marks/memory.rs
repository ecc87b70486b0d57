// SPDX-License-Identifier: Apache-2.0
//! The memory in which a process marks its spans: the layout of `include/wallprof.h`, version 1.
//!
//! It is read with `pread`, which a hostile process cannot make fail later, as it could make a mapping, and
//! which takes no memory for parts that were never written.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{SealFlags, fcntl_get_seals};
use wallprof_symbols::{kept_cpu, living_thread};

/// What `/proc/PID/maps` says of it.
pub(super) const NAME: &str = "/memfd:wallprof-spans (deleted)";
/// Of the part that is mapped as executable, so that the kernel announces it.
pub(crate) const SHOWN_BYTES: u64 = 4096;

pub(super) const SLOTS: usize = 16;
pub(super) const KINDS: usize = 32;
const BUCKETS: usize = 592;
const RING: u64 = 2048;
const DEPTH: usize = 16;
/// Shorter spans are in the sums alone, ns.
pub(super) const SHORT_NS: u64 = 1_000;

const MAGIC: u64 = 0x736e_6170_736c_6c77;
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 4096;
const SLOT_BYTES: u64 = 389_120;
pub(super) const BYTES: u64 = HEADER_BYTES + SLOTS as u64 * SLOT_BYTES;

/// Offsets in the header.
const ON_UNTIL: u64 = 64;
const REFUSED: u64 = 136;
const TIDS: u64 = 144;
/// Offsets in a slot.
const ENTRIES: u64 = 8;
const DEPTH_AT: u64 = 24;
const TOO_DEEP: u64 = 32;
const TAKEN_AT: u64 = 48;
const IDS: u64 = 64;
const STARTS: u64 = IDS + 8 * DEPTH as u64;
const NAMES: u64 = 896;
const NAME_BYTES: usize = 48;
const RING_AT: u64 = 4096;
const ENTRY_BYTES: usize = 40;
const SUMS: u64 = RING_AT + RING * ENTRY_BYTES as u64;
const KIND_BYTES: usize = BUCKETS * 16;

/// A span that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub id: u64,
    /// The id of the span around it; 0: none.
    pub outer: u64,
    /// By the clock of the marks.
    pub end: u64,
    pub ns: u64,
}

/// All spans of a kind and length so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cell {
    pub count: u64,
    pub ns: u64,
}

/// A memory of sixteen slots.
pub(super) struct Memory {
    file: File,
    /// Where the process has mapped it.
    address: u64,
}

impl Memory {
    /// The memory that process `pid` has mapped at `[start, end)`. `None`: it is another file, or not sealed
    /// against becoming shorter.
    pub fn open(pid: u32, start: u64, end: u64) -> Option<Self> {
        let path = format!("/proc/{}/map_files/{start:x}-{end:x}", living_thread(pid));
        let link = || {
            let _kept = kept_cpu();
            std::fs::read_link(&path)
        };
        let target = link().ok()?;
        if target.to_str() != Some(NAME) || end - start != BYTES {
            return None;
        }
        // Before it is opened for writing: only memory files have seals.
        let seals = fcntl_get_seals(File::open(&path).ok()?).ok()?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return None;
        }
        let file = File::options().read(true).write(true).open(&path).ok()?;
        Memory::of(file, start)
    }

    pub(super) fn of(file: File, address: u64) -> Option<Self> {
        let memory = Memory { file, address };
        let header = memory.read::<16>(0)?;
        let is_known = word(&header, 0) == MAGIC && half(&header, 8) == VERSION;
        is_known.then_some(memory)
    }

    pub fn inode(&self) -> Option<u64> {
        use std::os::unix::fs::MetadataExt;
        Some(self.file.metadata().ok()?.ino())
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    /// Marks are on until the clock says `until`. They are off when the recorder is gone.
    pub fn switch_on(&self, until: u64, ns_per_tick: u64, clock: u64) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&ns_per_tick.to_ne_bytes());
        bytes[8..].copy_from_slice(&clock.to_ne_bytes());
        // Of a memory that nobody may write, no marks come.
        let _ = self.file.write_all_at(&bytes, ON_UNTIL + 8);
        let _ = self.file.write_all_at(&until.to_ne_bytes(), ON_UNTIL);
    }

    /// Threads that got no slot.
    pub fn refused(&self) -> u64 {
        self.word(REFUSED)
    }

    /// Spans of a slot that were nested too deep.
    pub fn too_deep(&self, slot: usize) -> u64 {
        self.word(slot_at(slot) + TOO_DEEP)
    }

    /// The tids of the threads that have the slots, in their own pid namespace; 0: nobody has it.
    pub fn tids(&self) -> [u32; SLOTS] {
        let bytes = self.read::<{ 4 * SLOTS }>(TIDS).unwrap_or([0; 4 * SLOTS]);
        std::array::from_fn(|slot| half(&bytes, 4 * slot))
    }

    /// The number of the last span of the slot's former thread.
    pub fn taken_at(&self, slot: usize) -> u64 {
        self.word(slot_at(slot) + TAKEN_AT)
    }

    /// Where the process has the number of the current span of a slot.
    pub fn current_address(&self, slot: usize) -> u64 {
        self.address + slot_at(slot)
    }

    /// Appends the entries from `from` on. Returns the number of the next one, and how many are lost: they were
    /// overwritten before they could be read.
    pub fn entries(&self, slot: usize, from: u64, entries: &mut Vec<Entry>) -> (u64, u64) {
        let written = self.word(slot_at(slot) + ENTRIES);
        // The counter of a hostile process may say anything.
        if written <= from || written - from > 1 << 48 {
            return (written, 0);
        }
        let first = from.max(written.saturating_sub(RING - 1));
        let mut bytes = vec![0; (written - first) as usize * ENTRY_BYTES];
        let until_wrap = (RING - first % RING).min(written - first) as usize * ENTRY_BYTES;
        let (before, after) = bytes.split_at_mut(until_wrap);
        let ring = slot_at(slot) + RING_AT;
        let at = ring + first % RING * ENTRY_BYTES as u64;
        if self.file.read_exact_at(before, at).is_err() || self.file.read_exact_at(after, ring).is_err() {
            return (written, written - from);
        }
        // The entry after the last one may be half written, over the oldest.
        let whole_from = (self.word(slot_at(slot) + ENTRIES) + 1).saturating_sub(RING).max(first);
        let mut lost = whole_from.min(written) - from;
        for (number, bytes) in (first..written).zip(bytes.chunks_exact(ENTRY_BYTES)) {
            if number < whole_from {
                continue;
            }
            if word(bytes, 0) != number + 1 {
                lost += 1;
                continue;
            }
            let [id, outer, end, ns] = [8, 16, 24, 32].map(|at| word(bytes, at));
            entries.push(Entry { id, outer, end, ns });
        }
        (written, lost)
    }

    /// The spans that are open, the outermost first.
    pub fn open_spans(&self, slot: usize) -> Vec<u64> {
        let depth = usize::try_from(self.word(slot_at(slot) + DEPTH_AT)).unwrap_or(0).min(DEPTH);
        (0..depth).map(|at| self.word(slot_at(slot) + IDS + 8 * at as u64)).collect()
    }

    /// When the outermost span that is open started, by the clock of the marks.
    pub fn open_since(&self, slot: usize) -> Option<u64> {
        (self.word(slot_at(slot) + DEPTH_AT) > 0).then(|| self.word(slot_at(slot) + STARTS))
    }

    /// The kinds of a slot that have a name. The first is that of all further ones.
    pub fn kinds(&self, slot: usize) -> Vec<(usize, String)> {
        let mut bytes = [0; KINDS * NAME_BYTES];
        if self.file.read_exact_at(&mut bytes, slot_at(slot) + NAMES).is_err() {
            return Vec::new();
        }
        let names = bytes.chunks_exact(NAME_BYTES).enumerate().skip(1).filter(|(_, name)| name[0] != 0);
        let name = |name: &[u8]| {
            let length = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
            String::from_utf8_lossy(&name[..length]).into_owned()
        };
        let others = std::iter::once((0, OTHER_KINDS.to_owned()));
        others.chain(names.map(|(kind, bytes)| (kind, name(bytes)))).collect()
    }

    /// The sums of a kind, by bucket of the model's histogram.
    pub fn sums(&self, slot: usize, kind: usize) -> Vec<Cell> {
        let mut bytes = vec![0; KIND_BYTES];
        let at = slot_at(slot) + SUMS + (kind * KIND_BYTES) as u64;
        if self.file.read_exact_at(&mut bytes, at).is_err() {
            return Vec::new();
        }
        bytes.chunks_exact(16).map(|cell| Cell { count: word(cell, 0), ns: word(cell, 8) }).collect()
    }

    fn word(&self, at: u64) -> u64 {
        self.read::<8>(at).map_or(0, |bytes| word(&bytes, 0))
    }

    fn read<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    }
}

/// The kind of spans whose thread has more kinds than fit.
pub(super) const OTHER_KINDS: &str = "(other kinds)";

/// The kind's number in a span's id.
pub(super) fn kind_of(id: u64) -> usize {
    (id & 0xff) as usize % KINDS
}

fn slot_at(slot: usize) -> u64 {
    HEADER_BYTES + slot as u64 * SLOT_BYTES
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A memory as a program has it after `count` spans of kind 1, each of 2 µs.
    pub fn memory_after(count: u64) -> Memory {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(BYTES).expect("space");
        let write = |at: u64, number: u64| file.write_all_at(&number.to_ne_bytes(), at).expect("written");
        write(0, MAGIC);
        write(8, VERSION.into());
        let slot = slot_at(3);
        write(slot + ENTRIES, count);
        for number in count.saturating_sub(RING)..count {
            let at = slot + RING_AT + number % RING * ENTRY_BYTES as u64;
            for (offset, value) in [(0, number + 1), (8, number << 8 | 1), (24, number * 3_000), (32, 2_000)]
            {
                write(at + offset, value);
            }
        }
        file.write_all_at(b"order\0", slot + NAMES + NAME_BYTES as u64).expect("written");
        Memory::of(file, 0x1000).expect("a memory with marks")
    }

    #[test]
    fn entries_are_read_once_and_overwritten_ones_are_counted() {
        let memory = memory_after(5);
        let mut entries = Vec::new();
        assert_eq!(memory.entries(3, 0, &mut entries), (5, 0));
        let numbers: Vec<u64> = entries.iter().map(|entry| entry.id >> 8).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
        assert_eq!(memory.entries(3, 5, &mut entries), (5, 0));
        assert_eq!(entries.len(), 5);

        let around = memory_after(RING + 10);
        entries.clear();
        // The oldest of those in the ring may be the one that is being written.
        assert_eq!(around.entries(3, 4, &mut entries), (RING + 10, 7));
        assert_eq!(entries.first().map(|entry| entry.id >> 8), Some(11));
        assert_eq!(entries.last().map(|entry| entry.id >> 8), Some(RING + 9));
    }

    #[test]
    fn names_of_kinds_are_those_of_the_slot() {
        let kinds = memory_after(1).kinds(3);
        assert_eq!(kinds, [(0, OTHER_KINDS.to_owned()), (1, "order".to_owned())]);
    }

    #[test]
    fn numbers_of_a_hostile_process_are_harmless() {
        let memory = memory_after(1);
        for entries in [u64::MAX, 1 << 50, RING * 1_000] {
            memory.file.write_all_at(&entries.to_ne_bytes(), slot_at(3) + ENTRIES).expect("written");
            let mut found = Vec::new();
            memory.entries(3, 1, &mut found);
            assert!(found.is_empty(), "{entries}: none has its number");
        }
        memory.file.write_all_at(&u64::MAX.to_ne_bytes(), slot_at(3) + DEPTH_AT).expect("written");
        assert_eq!(memory.open_spans(3).len(), 16.min(DEPTH));
        assert!(Memory::of(tempfile::tempfile().expect("a file"), 0).is_none(), "an empty file");
        memory.file.write_all_at(&2u32.to_ne_bytes(), 8).expect("written");
        assert!(Memory::of(memory.file, 0).is_none(), "of another version");
        let own = std::process::id();
        assert!(Memory::open(own, 0x1000, 0x1000 + BYTES).is_none(), "nothing is mapped there");
    }
}
