// SPDX-License-Identifier: Apache-2.0
//! The place of each trace's bytes in the input: pieces of a buffer, joined by their offsets into runs
//! without a hole.
//!
//! A piece may start before the end of the previous one. perf pads pieces to a multiple of eight bytes, and
//! then the later piece has the right bytes. In snapshot mode each piece is the whole buffer at the time of a
//! snapshot, whatever was read before.

use std::collections::{BTreeMap, HashMap};

use crate::format::records::Passed;
use crate::format::trace::Filled;

/// Buffers: one for each CPU or thread.
const MAX_BUFFERS: usize = 1 << 16;
/// Pieces of all buffers together, 24 bytes each.
const MAX_PIECES: usize = 1 << 22;

/// The thread or CPU that a buffer follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Followed {
    Cpu(u32),
    Thread(u32),
}

/// Bytes of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Counted from the first record.
    pub position: u64,
    pub size: u64,
    /// The position among all bytes of the buffer.
    pub offset: u64,
}

impl Extent {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.size)
    }
}

/// One trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Buffer {
    pub followed: Followed,
    /// A time near the trace's, in ticks.
    pub reference: u64,
    /// Ranges of bytes without a hole.
    pub runs: Vec<Vec<Extent>>,
}

impl Buffer {
    pub(crate) fn size(&self) -> u64 {
        self.runs.iter().flatten().map(|extent| extent.size).sum()
    }
}

#[derive(Debug, Default)]
struct Collected {
    reference: u64,
    extents: Vec<Extent>,
}

/// All pieces, in the order of the input.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    by_index: BTreeMap<(Followed, u32), Collected>,
    pieces: usize,
    /// Offsets behind which bytes are missing.
    holes: HashMap<Followed, Vec<u64>>,
    refused: u64,
}

impl Buffers {
    pub(crate) fn add(&mut self, passed: Passed) {
        let Passed { piece, position, .. } = passed;
        let followed = match (piece.cpu, piece.tid) {
            (Some(cpu), _) => Followed::Cpu(cpu),
            (None, Some(tid)) => Followed::Thread(tid),
            (None, None) => Followed::Cpu(piece.index),
        };
        let key = (followed, piece.index);
        let is_new = !self.by_index.contains_key(&key);
        if self.pieces >= MAX_PIECES || is_new && self.by_index.len() >= MAX_BUFFERS {
            self.refused += 1;
            return;
        }
        self.pieces += 1;
        let known = self.by_index.entry(key).or_default();
        if is_new {
            known.reference = piece.reference;
        }
        known.extents.push(Extent { position, size: piece.size, offset: piece.offset });
    }

    /// A record that says how the kernel filled a buffer.
    pub(crate) fn filled(&mut self, cpu: Option<u32>, tid: Option<u32>, filled: Filled) {
        if !filled.lost || self.pieces >= MAX_PIECES {
            return;
        }
        self.pieces += 1;
        let at = filled.offset.saturating_add(filled.size);
        for followed in [cpu.map(Followed::Cpu), tid.map(Followed::Thread)].into_iter().flatten() {
            self.holes.entry(followed).or_default().push(at);
        }
    }

    /// The number of pieces.
    pub(crate) fn pieces(&self) -> u64 {
        self.by_index.values().map(|known| known.extents.len() as u64).sum()
    }

    /// Pieces beyond the limit.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// The threads that have a buffer of their own.
    pub(crate) fn followed_threads(&self) -> Vec<u32> {
        let thread = |key: &(Followed, u32)| match key.0 {
            Followed::Thread(tid) => Some(tid),
            Followed::Cpu(_) => None,
        };
        self.by_index.keys().filter_map(thread).collect()
    }

    /// The traces. With `is_snapshot` each piece is a run of its own, and runs may overlap.
    pub(crate) fn joined(self, is_snapshot: bool) -> Vec<Buffer> {
        let Buffers { by_index, mut holes, .. } = self;
        holes.values_mut().for_each(|holes| holes.sort_unstable());
        let none = Vec::new();
        by_index
            .into_iter()
            .map(|((followed, _), Collected { reference, extents })| {
                let holes = holes.get(&followed).unwrap_or(&none);
                let runs = match is_snapshot {
                    true => extents.into_iter().map(|extent| vec![extent]).collect(),
                    false => runs(extents, holes),
                };
                Buffer { followed, reference, runs }
            })
            .collect()
    }
}

/// Joins extents, and divides them where bytes are missing.
fn runs(extents: Vec<Extent>, holes: &[u64]) -> Vec<Vec<Extent>> {
    let mut runs: Vec<Vec<Extent>> = Vec::new();
    for extent in extents.into_iter().filter(|extent| extent.size > 0) {
        if runs.last_mut().is_none_or(|run| !joins(run, &extent)) {
            runs.push(Vec::new());
        }
        runs.last_mut().into_iter().for_each(|run| run.push(extent));
    }
    runs.into_iter().flat_map(|run| cut(run, holes)).collect()
}

/// Whether `next` continues `run`. Padding at the end of `run` is cut off.
fn joins(run: &mut [Extent], next: &Extent) -> bool {
    let Some(last) = run.last_mut() else { return true };
    if next.offset > last.end() || next.offset <= last.offset {
        return false;
    }
    last.size = next.offset - last.offset;
    true
}

/// Divides a run at the holes inside it.
fn cut(run: Vec<Extent>, holes: &[u64]) -> Vec<Vec<Extent>> {
    let mut runs = vec![Vec::new()];
    for mut extent in run {
        let from = holes.partition_point(|&hole| hole < extent.offset);
        let end = extent.end();
        for &hole in holes[from..].iter().take_while(|&&hole| hole < end) {
            let size = hole - extent.offset;
            if size > 0 {
                runs.last_mut().into_iter().for_each(|run| run.push(Extent { size, ..extent }));
            }
            if runs.last().is_some_and(|run| !run.is_empty()) {
                runs.push(Vec::new());
            }
            extent = Extent {
                position: extent.position.saturating_add(size),
                size: extent.size - size,
                offset: hole,
            };
        }
        runs.last_mut().into_iter().for_each(|run| run.push(extent));
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::trace::TracePiece;

    fn passed(position: u64, offset: u64, size: u64, cpu: u32) -> Passed {
        let piece = TracePiece { size, offset, reference: 9, index: cpu, tid: None, cpu: Some(cpu) };
        Passed { piece, position, missing: 0 }
    }

    fn extents(buffer: &Buffer) -> Vec<Vec<(u64, u64)>> {
        buffer
            .runs
            .iter()
            .map(|run| run.iter().map(|extent| (extent.position, extent.size)).collect())
            .collect()
    }

    fn joined(pieces: &[(u64, u64, u64)], holes: &[u64], is_snapshot: bool) -> Vec<Vec<(u64, u64)>> {
        let mut buffers = Buffers::default();
        pieces.iter().for_each(|&(position, offset, size)| buffers.add(passed(position, offset, size, 3)));
        for &hole in holes {
            buffers.filled(Some(3), Some(77), Filled { offset: 0, size: hole, lost: true });
            buffers.filled(Some(4), None, Filled { offset: 0, size: 1, lost: true });
        }
        let all = buffers.joined(is_snapshot);
        assert_eq!((all.len(), all[0].followed, all[0].reference), (1, Followed::Cpu(3), 9));
        extents(&all[0])
    }

    #[test]
    fn pieces_join_where_their_offsets_meet() {
        assert_eq!(joined(&[(100, 0, 8), (200, 8, 16)], &[], false), [[(100, 8), (200, 16)]]);
        assert_eq!(joined(&[(100, 0, 8), (200, 16, 16)], &[], false), [[(100, 8)], [(200, 16)]]);
        // The first piece has three bytes of padding; an empty piece changes nothing.
        let padded = joined(&[(100, 0, 8), (150, 8, 0), (200, 5, 16)], &[], false);
        assert_eq!(padded, [[(100, 5), (200, 16)]]);
    }

    #[test]
    fn bytes_that_the_kernel_lost_are_a_hole() {
        assert_eq!(joined(&[(100, 0, 8), (200, 8, 16)], &[8], false), [[(100, 8)], [(200, 16)]]);
        assert_eq!(joined(&[(100, 0, 8)], &[3, 3], false), [[(100, 3)], [(103, 5)]]);
        assert_eq!(joined(&[(100, 0, 8)], &[0, 8], false), [[(100, 8)]]);
    }

    #[test]
    fn snapshots_are_runs_of_their_own() {
        assert_eq!(joined(&[(100, 0, 8), (200, 4, 8)], &[], true), [[(100, 8)], [(200, 8)]]);
    }

    #[test]
    fn arbitrary_offsets_do_not_panic() {
        for offset in [0, 1, u64::MAX - 3, u64::MAX] {
            let runs =
                joined(&[(100, 7, 8), (200, offset, u64::MAX), (300, offset, 8)], &[u64::MAX - 1], false);
            assert!(!runs.is_empty());
        }
    }
}
