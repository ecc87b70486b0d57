// SPDX-License-Identifier: Apache-2.0
//! Reads one trace from start to end, in pieces that start at a synchronisation point (PSB) and can be
//! decoded alone.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use wallprof_intel_pt::packet::Packet;
use wallprof_intel_pt::packets::{PSB, Packets, find_psb};

use super::buffers::Buffer;

/// Bytes behind the next synchronisation point that a piece includes, because the packets there end the
/// piece.
const TAIL: usize = 4 << 10;
/// Bytes that are read at a time.
const BLOCK: usize = 64 << 10;
/// A trace has a synchronisation point at least every 64 MiB. Without one in twice that size the rest of a
/// run is lost.
const MAX_PIECE: usize = 128 << 20;
/// perf pads pieces with PAD packets.
const PADDING: u8 = 0;
/// The packets of a synchronisation point in front of its time.
const MAX_PACKETS_TO_TIME: usize = 64;

/// Part of a trace.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub bytes: Vec<u8>,
    /// The start of the next piece in `bytes`.
    pub end: usize,
    /// The first piece of a run: nothing before it is known.
    pub first: bool,
    /// The start time in ticks, and that of the next piece if it is known.
    pub from: u64,
    pub until: Option<u64>,
    /// The piece starts with a time.
    pub is_timed: bool,
}

/// A position in a trace.
pub(crate) struct Reader<'a> {
    file: &'a File,
    /// The position of the first record in `file`.
    base: u64,
    pub buffer: &'a Buffer,
    piece_size: usize,
    run: usize,
    extent: usize,
    /// Bytes of the extent that were read.
    within: u64,
    /// Bytes that were read and belong to the next piece.
    rest: Vec<u8>,
    /// `rest` starts a run.
    first: bool,
    /// The first synchronisation point of the run was found.
    started: bool,
    from: u64,
    is_snapshot: bool,
    /// The last segment of a snapshot. The next snapshot may have more of it.
    held: Option<Piece>,
    damaged: u64,
    unsynchronised: u64,
    /// The run has bytes other than padding before its first synchronisation point.
    has_bytes: bool,
}

impl<'a> Reader<'a> {
    /// Pieces have at least `piece_size` bytes, except at the end of a run.
    pub(crate) fn new(
        file: &'a File,
        base: u64,
        buffer: &'a Buffer,
        piece_size: usize,
        is_snapshot: bool,
    ) -> Self {
        Reader {
            file,
            base,
            buffer,
            piece_size,
            run: 0,
            extent: 0,
            within: 0,
            rest: Vec::new(),
            first: true,
            started: false,
            from: 0,
            is_snapshot,
            held: None,
            damaged: 0,
            unsynchronised: 0,
            has_bytes: false,
        }
    }

    /// Runs of which a part was left out.
    pub(crate) fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Runs without a synchronisation point, which cannot be decoded.
    pub(crate) fn unsynchronised(&self) -> u64 {
        self.unsynchronised
    }

    /// `None` at the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Piece>> {
        while self.run < self.buffer.runs.len() {
            let before = if !self.started { self.find_start()? } else { Start::Found(None) };
            match before {
                Start::Found(Some(held)) => return Ok(Some(held)),
                Start::Found(None) if !self.rest.is_empty() => {
                    if let Some(piece) = self.cut_piece()? {
                        return Ok(Some(piece));
                    }
                }
                _ => self.next_run(),
            }
        }
        Ok(self.held.take())
    }

    /// Moves the first synchronisation point of a run, or of the new part of a snapshot, to the start of
    /// `rest`.
    fn find_start(&mut self) -> io::Result<Start> {
        if !self.find_first()? {
            return Ok(Start::None);
        }
        let mut start = 0;
        let mut held = None;
        if self.is_snapshot && self.held.is_some() {
            self.fill(MAX_PIECE)?;
            let Some(news) = self.held.as_ref().and_then(|held| news(&self.rest, held)) else {
                return Ok(Start::None);
            };
            held = self.held.take();
            match news {
                News::More(at) => (start, self.first) = (at, held.take().is_some_and(|held| held.first)),
                News::Later(at) => start = at,
            }
        }
        self.rest.drain(..start);
        self.started = true;
        Ok(Start::Found(held))
    }

    fn cut_piece(&mut self) -> io::Result<Option<Piece>> {
        let end = self.find_from(self.piece_size.max(PSB.len()))?;
        let first = std::mem::replace(&mut self.first, false);
        let time = self.time_at(&self.rest, 0);
        let is_timed = time.is_some();
        let from = time.unwrap_or(self.from).max(self.from);
        let Some(end) = end else {
            let bytes = std::mem::take(&mut self.rest);
            let end = bytes.len();
            let piece = Piece { bytes, end, first, from, until: None, is_timed };
            return Ok(if self.is_snapshot { self.hold_back(piece) } else { Some(piece) });
        };
        self.fill(end + TAIL)?;
        let until = self.time_at(&self.rest, end).map(|until| until.max(from));
        let rest = self.rest[end..].to_vec();
        let mut bytes = std::mem::replace(&mut self.rest, rest);
        bytes.truncate(end + TAIL);
        self.from = until.unwrap_or(from);
        Ok(Some(Piece { bytes, end, first, from, until, is_timed }))
    }

    /// Skips all bytes before the first synchronisation point.
    fn find_first(&mut self) -> io::Result<bool> {
        loop {
            if let Some(found) = find_psb(&self.rest, 0) {
                self.rest.drain(..found);
                self.has_bytes = false;
                return Ok(true);
            }
            let kept = self.rest.len().min(PSB.len() - 1);
            self.has_bytes |= self.rest.iter().any(|byte| *byte != PADDING);
            self.rest.drain(..self.rest.len() - kept);
            self.fill(kept + BLOCK)?;
            if self.rest.len() == kept {
                self.unsynchronised += u64::from(std::mem::take(&mut self.has_bytes));
                return Ok(false);
            }
        }
    }

    /// The first synchronisation point in `rest` at or after `from`. Reads on as far as necessary.
    fn find_from(&mut self, from: usize) -> io::Result<Option<usize>> {
        let mut from = from;
        loop {
            if let Some(found) = find_psb(&self.rest, from) {
                return Ok(Some(found));
            }
            let len = self.rest.len();
            from = from.max(len.saturating_sub(PSB.len() - 1));
            if len >= MAX_PIECE {
                self.damaged += 1;
                return Ok(None);
            }
            self.fill((len + BLOCK).max(from + PSB.len()))?;
            if self.rest.len() == len {
                return Ok(None);
            }
        }
    }

    /// Reads until `rest` has `len` bytes, or the run ends.
    fn fill(&mut self, len: usize) -> io::Result<()> {
        while self.rest.len() < len {
            let Some(extent) = self.buffer.runs.get(self.run).and_then(|run| run.get(self.extent)) else {
                return Ok(());
            };
            let left = extent.size - self.within;
            if left == 0 {
                (self.extent, self.within) = (self.extent + 1, 0);
                continue;
            }
            let start = self.rest.len();
            let count = left.min(BLOCK.max(len - start) as u64) as usize;
            let position = self.base.saturating_add(extent.position).saturating_add(self.within);
            self.rest.resize(start + count, 0);
            self.file.read_exact_at(&mut self.rest[start..], position)?;
            self.within += count as u64;
        }
        Ok(())
    }

    /// As [`time_at`], with the high bits that a trace lacks.
    fn time_at(&self, bytes: &[u8], at: usize) -> Option<u64> {
        const TRACED_BITS: u64 = (1 << 56) - 1;
        time_at(bytes, at).map(|time| self.buffer.reference & !TRACED_BITS | time)
    }

    fn next_run(&mut self) {
        (self.run, self.extent, self.within) = (self.run + 1, 0, 0);
        self.rest.clear();
        (self.first, self.started) = (true, false);
    }

    /// Keeps the last segment of the last piece of a snapshot. Returns the part in front of it.
    fn hold_back(&mut self, mut piece: Piece) -> Option<Piece> {
        let last = *wallprof_intel_pt::segment_starts(&piece.bytes).last()?;
        let time = self.time_at(&piece.bytes, last);
        let from = time.map_or(piece.from, |from| from.max(piece.from));
        let bytes = piece.bytes[last..].to_vec();
        let first = piece.first && last == 0;
        let is_timed = time.is_some();
        self.held = Some(Piece { end: bytes.len(), bytes, first, from, until: None, is_timed });
        (piece.end, piece.until) = (last, Some(from));
        (last > 0).then_some(piece)
    }
}

/// The start of a run.
enum Start {
    /// A synchronisation point, and the piece that comes before it.
    Found(Option<Piece>),
    None,
}

/// The start of the new part of a snapshot.
enum News {
    /// The last segment of the previous snapshot, of which there may be more.
    More(usize),
    Later(usize),
}

/// `bytes` start with a synchronisation point.
fn news(bytes: &[u8], held: &Piece) -> Option<News> {
    let last = time_at(&held.bytes, 0)?;
    let mut start = Some(0);
    while let Some(at) = start {
        match time_at(bytes, at) {
            Some(time) if time > last => return Some(News::Later(at)),
            Some(time) if time == last && bytes[at..].starts_with(&held.bytes) => {
                return Some(News::More(at));
            }
            _ => start = find_psb(bytes, at + PSB.len()),
        }
    }
    None
}

/// The time of the synchronisation point at `at`, in ticks, without the highest bits.
fn time_at(bytes: &[u8], at: usize) -> Option<u64> {
    let mut packets = Packets::starting_at(bytes, at);
    for _ in 0..MAX_PACKETS_TO_TIME {
        match packets.next_packet()?.ok()? {
            Packet::Tsc(ticks) => return Some(ticks),
            Packet::PsbEnd => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::buffers::{Extent, Followed};
    use super::*;

    /// A synchronisation point at this time, and padding.
    fn segment(time: u8, padding: usize) -> Vec<u8> {
        let mut bytes = PSB.to_vec();
        bytes.extend([0x19, time, 0, 0, 0, 0, 0, 0]);
        bytes.extend([0x02, 0x23]);
        bytes.resize(bytes.len() + padding, 0);
        bytes
    }

    /// Writes runs of extents to one file and reads the pieces.
    fn read(runs: &[&[&[u8]]], piece_size: usize, is_snapshot: bool) -> Vec<(Vec<u8>, bool, u64)> {
        let mut file = tempfile::tempfile().expect("a scratch file");
        file.write_all(b"base").expect("written");
        let mut position = 0;
        let mut place = |bytes: &&[u8]| {
            file.write_all(bytes).expect("written");
            let extent = Extent { position, size: bytes.len() as u64, offset: position };
            position += bytes.len() as u64;
            extent
        };
        let runs: Vec<Vec<Extent>> = runs.iter().map(|run| run.iter().map(&mut place).collect()).collect();
        let buffer = Buffer { followed: Followed::Cpu(0), reference: 0, runs };
        let mut reader = Reader::new(&file, 4, &buffer, piece_size, is_snapshot);
        let mut pieces = Vec::new();
        while let Some(piece) = reader.next().expect("readable") {
            pieces.push((piece.bytes[..piece.end].to_vec(), piece.first, piece.from));
        }
        pieces
    }

    #[test]
    fn pieces_start_at_synchronisation_points_wherever_extents_end() {
        let trace = [segment(1, 40), segment(2, 3), segment(3, 7)].concat();
        for cut in [1, 20, 66, 70, trace.len() - 1] {
            let (one, other) = trace.split_at(cut);
            let pieces = read(&[&[one, other]], 1, false);
            let expected = [(segment(1, 40), true, 1), (segment(2, 3), false, 2), (segment(3, 7), false, 3)];
            assert_eq!(pieces, expected, "{cut}");
            let whole: Vec<u8> =
                read(&[&[one, other]], 68, false).into_iter().flat_map(|piece| piece.0).collect();
            assert_eq!(whole, trace);
        }
    }

    #[test]
    fn run_starts_at_its_first_synchronisation_point() {
        let lead = [&[0x55; 9][..], &segment(4, 2)].concat();
        let pieces = read(&[&[&segment(1, 0)], &[&[0; 99]], &[&lead]], 1, false);
        assert_eq!(pieces, [(segment(1, 0), true, 1), (segment(4, 2), true, 4)]);
        assert_eq!(read(&[], 1, false), []);
    }

    #[test]
    fn large_segments_are_read_whole() {
        let trace = [segment(1, 3 * BLOCK), segment(2, BLOCK - 5), segment(3, 1)].concat();
        let pieces = read(&[&[&trace]], 10, false);
        let sizes: Vec<_> = pieces.iter().map(|piece| piece.0.len()).collect();
        assert_eq!(sizes, [3 * BLOCK + 26, BLOCK + 21, 27]);
    }

    #[test]
    fn times_never_decrease() {
        let trace = [segment(9, 0), segment(3, 0), segment(12, 0)].concat();
        let froms: Vec<_> = read(&[&[&trace]], 1, false).into_iter().map(|piece| piece.2).collect();
        assert_eq!(froms, [9, 9, 12]);
    }

    #[test]
    fn common_part_of_snapshots_is_read_once() {
        let old = [segment(1, 5), segment(2, 5), segment(3, 5)].concat();
        // The same bytes, a longer last segment, and a new one.
        let new = [&segment(2, 5)[..], &segment(3, 9), &segment(4, 5)].concat();
        let pieces = read(&[&[&old], &[&new]], 1, true);
        let times: Vec<_> = pieces.iter().map(|piece| (piece.2, piece.0.len(), piece.1)).collect();
        assert_eq!(times, [(1, 31, true), (2, 31, false), (3, 35, false), (4, 31, false)]);
        // A snapshot without new bytes, and one that shares none.
        assert_eq!(read(&[&[&old], &[&old[31..]]], 1, true).len(), 3);
        let apart = read(&[&[&old], &[&segment(7, 5)]], 1, true);
        let times: Vec<_> = apart.iter().map(|piece| (piece.2, piece.1)).collect();
        assert_eq!(times, [(1, true), (2, false), (3, false), (7, true)]);
    }
}
