//! Where the bytes of each trace are in the input: pieces of one buffer joined by their offset, in runs without a hole.
//!
//! A piece may begin before the one before it ended: perf fills pieces up to a multiple of eight, and then the later
//! one has the right bytes. In snapshot mode each piece is what the buffer held at a moment, whatever was read before.

use std::collections::{BTreeMap, HashMap};

use crate::format::records::Passed;
use crate::format::trace::Filled;

/// Buffers: one for each CPU or thread.
const MAX_BUFFERS: usize = 1 << 16;
/// Pieces of all buffers together, 24 bytes each.
const MAX_PIECES: usize = 1 << 22;

/// What a buffer follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Whose {
    Cpu(u32),
    Thread(u32),
}

/// Bytes of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Counted from the first record.
    pub position: u64,
    pub size: u64,
    /// In the buffer's own count.
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
    pub whose: Whose,
    /// A time near the trace's, in ticks.
    pub reference: u64,
    /// Stretches of bytes without a hole.
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

/// All pieces as they come.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    by_index: BTreeMap<(Whose, u32), Collected>,
    pieces: usize,
    /// Offsets behind which something is missing.
    holes: HashMap<Whose, Vec<u64>>,
    refused: u64,
}

impl Buffers {
    pub(crate) fn add(&mut self, passed: Passed) {
        let Passed { piece, position, .. } = passed;
        let whose = match (piece.cpu, piece.tid) {
            (Some(cpu), _) => Whose::Cpu(cpu),
            (None, Some(tid)) => Whose::Thread(tid),
            (None, None) => Whose::Cpu(piece.index),
        };
        let key = (whose, piece.index);
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

    /// What the kernel says of a buffer's content.
    pub(crate) fn filled(&mut self, cpu: Option<u32>, tid: Option<u32>, filled: Filled) {
        if !filled.lost || self.pieces >= MAX_PIECES {
            return;
        }
        self.pieces += 1;
        let at = filled.offset.saturating_add(filled.size);
        for whose in [cpu.map(Whose::Cpu), tid.map(Whose::Thread)].into_iter().flatten() {
            self.holes.entry(whose).or_default().push(at);
        }
    }

    /// How many there are.
    pub(crate) fn pieces(&self) -> u64 {
        self.by_index.values().map(|known| known.extents.len() as u64).sum()
    }

    /// Pieces beyond what is kept.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// The threads that have a buffer of their own.
    pub(crate) fn followed(&self) -> Vec<u32> {
        let thread = |key: &(Whose, u32)| match key.0 {
            Whose::Thread(tid) => Some(tid),
            Whose::Cpu(_) => None,
        };
        self.by_index.keys().filter_map(thread).collect()
    }

    /// The traces. With `is_snapshot` each piece is a run of its own, whose bytes may overlap with those of others.
    pub(crate) fn joined(self, is_snapshot: bool) -> Vec<Buffer> {
        let Buffers { by_index, mut holes, .. } = self;
        holes.values_mut().for_each(|holes| holes.sort_unstable());
        let none = Vec::new();
        by_index
            .into_iter()
            .map(|((whose, _), Collected { reference, extents })| {
                let holes = holes.get(&whose).unwrap_or(&none);
                let runs = match is_snapshot {
                    true => extents.into_iter().map(|extent| vec![extent]).collect(),
                    false => runs(extents, holes),
                };
                Buffer { whose, reference, runs }
            })
            .collect()
    }
}

/// Joins extents, and cuts them where something is missing.
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

/// Whether `next` goes on where `run` ends, perhaps after bytes that were only filled up.
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

    fn told(buffer: &Buffer) -> Vec<Vec<(u64, u64)>> {
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
        assert_eq!((all.len(), all[0].whose, all[0].reference), (1, Whose::Cpu(3), 9));
        told(&all[0])
    }

    #[test]
    fn pieces_join_where_their_offsets_meet() {
        assert_eq!(joined(&[(100, 0, 8), (200, 8, 16)], &[], false), [[(100, 8), (200, 16)]]);
        assert_eq!(joined(&[(100, 0, 8), (200, 16, 16)], &[], false), [[(100, 8)], [(200, 16)]]);
        // The first was filled up with three bytes; an empty one says nothing.
        let filled_up = joined(&[(100, 0, 8), (150, 8, 0), (200, 5, 16)], &[], false);
        assert_eq!(filled_up, [[(100, 5), (200, 16)]]);
    }

    #[test]
    fn what_the_kernel_could_not_write_is_a_hole() {
        assert_eq!(joined(&[(100, 0, 8), (200, 8, 16)], &[8], false), [[(100, 8)], [(200, 16)]]);
        assert_eq!(joined(&[(100, 0, 8)], &[3, 3], false), [[(100, 3)], [(103, 5)]]);
        assert_eq!(joined(&[(100, 0, 8)], &[0, 8], false), [[(100, 8)]]);
    }

    #[test]
    fn snapshots_stand_for_themselves() {
        assert_eq!(joined(&[(100, 0, 8), (200, 4, 8)], &[], true), [[(100, 8)], [(200, 8)]]);
    }

    #[test]
    fn any_offsets_are_harmless() {
        for offset in [0, 1, u64::MAX - 3, u64::MAX] {
            let runs =
                joined(&[(100, 7, 8), (200, offset, u64::MAX), (300, offset, 8)], &[u64::MAX - 1], false);
            assert!(!runs.is_empty());
        }
    }
}
