// SPDX-License-Identifier: Apache-2.0
//! Decodes all traces on all CPUs of this machine, and merges the activity of each thread in the order of
//! time.
//!
//! A worker takes the earliest remaining piece of all traces. Results are merged in the order in which their
//! pieces were taken. A stretch of a thread is held back until no remaining piece can have an earlier one. A
//! window bounds how far workers may be ahead, so that memory does not grow with the trace.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::fs::File;
use std::io;
use std::num::NonZero;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use wallprof_intel_pt::replay::{Frame, PathLimit, Recorder, Sides, Stretch, ThreadCalls, ThreadReplay};
use wallprof_intel_pt::{
    ClockFacts, Code, Decoded, Event, EventKind, FunctionId, GapCause, RunCache, Schedule, Segment, Sink,
    Switch, ThreadId, TimeConv, Trace, decode_segment,
};

use super::buffers::Buffer;
use super::reader::{Piece, Reader};
use crate::by_time::ByTime;
use crate::gaps::Gaps;

/// Bytes of all pieces that are read ahead.
const READ_AHEAD: usize = 32 << 20;
const LARGEST_PIECE: usize = 256 << 10;
const SMALLEST_PIECE: usize = 32 << 10;
/// Pieces that each worker may be ahead.
const WINDOW: usize = 2;

/// One trace with the data needed to decode it.
pub(crate) struct Source<'a> {
    pub buffer: &'a Buffer,
    pub schedule: &'a Schedule,
    pub clock: ClockFacts,
}

/// The input and the parameters of decoding.
pub(crate) struct Job<'a, C> {
    pub file: &'a File,
    /// The position of the first record in `file`.
    pub base: u64,
    pub sources: Vec<Source<'a>>,
    pub code: &'a C,
    pub time_conv: TimeConv,
    pub return_compression: bool,
    pub is_snapshot: bool,
    /// In ticks. Pieces outside of `from..to` are left out.
    pub from: u64,
    pub to: u64,
    /// No CPU's trace is left out.
    pub has_all_cpus: bool,
    /// The ends of threads, in ticks.
    pub ends: &'a HashMap<ThreadId, u64>,
}

/// Receives results while decoding goes on.
pub(crate) trait Watcher {
    type Error;

    /// The thread left its CPU at `ticks` with these frames open, the outermost first.
    fn departed(
        &mut self,
        thread: ThreadId,
        ticks: u64,
        frames: &mut dyn Iterator<Item = Frame>,
    ) -> Result<(), Self::Error>;

    /// The thread's time on the two sides, most of it between these ticks. Time inside of earlier calls is
    /// not included.
    fn ran(&mut self, thread: ThreadId, ticks: (u64, u64), sides: Sides);

    /// The trace has ended. The thread had left its CPU at `ticks`, with these frames open.
    fn stays_away(&mut self, thread: ThreadId, ticks: u64, frames: &mut dyn Iterator<Item = Frame>);

    /// `bytes` of the traces are decoded.
    fn progress(&mut self, bytes: u64);
}

/// Why decoding stopped early.
#[derive(Debug)]
pub(crate) enum DecodeError<E> {
    Input(io::Error),
    Watcher(E),
}

/// All calls of all threads.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// By thread.
    pub threads: Vec<ThreadCalls>,
    pub gaps: Gaps,
    /// Latencies beyond the limit of distinct ones.
    pub coarse_latencies: u64,
    /// The last time in the trace, in ticks.
    pub last: Option<u64>,
}

/// A question about the recorded programs that [`Code`] does not have.
pub(crate) trait LinkageStubs {
    /// Whether the function only jumps to another one, as a stub of the procedure linkage table does.
    fn is_stub(&self, function: FunctionId) -> bool;
}

/// Counts gaps, and passes events on to the replay.
struct Counted {
    recorder: Recorder,
    gaps: Gaps,
}

impl Sink for Counted {
    fn join(&mut self, ticks: u64, current: Switch) {
        self.recorder.join(ticks, current);
    }

    #[inline]
    fn event(&mut self, event: &Event) {
        if let EventKind::Gap(cause) = event.kind {
            self.gaps.add(cause, 1);
        }
        self.recorder.event(event);
    }
}

/// A piece to decode.
struct Taken {
    number: u64,
    source: usize,
    piece: Piece,
    /// No later piece starts earlier.
    frontier: u64,
}

/// A piece that was decoded.
struct Done {
    number: u64,
    source: usize,
    first: bool,
    bytes: u64,
    frontier: u64,
    /// The time of the piece is known.
    has_time: bool,
    decoded: Decoded,
    stretches: Vec<Stretch>,
    gaps: Gaps,
}

/// The pieces that remain.
struct Feed<'a> {
    readers: Vec<Reader<'a>>,
    /// The next piece of each source, by its start.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    pieces: Vec<Option<Piece>>,
    next_number: u64,
    from: u64,
    to: u64,
    error: Option<io::Error>,
}

impl<'a> Feed<'a> {
    fn new<C>(job: &Job<'a, C>) -> Self {
        let piece_size = READ_AHEAD / job.sources.len().max(1);
        let piece_size = piece_size.clamp(SMALLEST_PIECE, LARGEST_PIECE);
        // A window of time is cut out exactly only with small pieces.
        let is_whole = job.from == 0 && job.to == u64::MAX;
        let piece_size = if is_whole { piece_size } else { 1 };
        let reader =
            |source: &Source<'a>| Reader::new(job.file, job.base, source.buffer, piece_size, job.is_snapshot);
        let mut feed = Feed {
            readers: job.sources.iter().map(reader).collect(),
            heads: BinaryHeap::new(),
            pieces: job.sources.iter().map(|_| None).collect(),
            next_number: 0,
            from: job.from,
            to: job.to,
            error: None,
        };
        (0..feed.readers.len()).for_each(|source| feed.refill(source));
        feed
    }

    fn take(&mut self) -> Option<Taken> {
        let Reverse((_, source)) = self.heads.pop()?;
        let piece = self.pieces[source].take()?;
        self.refill(source);
        let frontier = self.heads.peek().map_or(u64::MAX, |Reverse((from, _))| *from);
        self.next_number += 1;
        Some(Taken { number: self.next_number - 1, source, piece, frontier })
    }

    fn refill(&mut self, source: usize) {
        let mut skipped = false;
        loop {
            match self.readers[source].next() {
                Ok(Some(piece)) if piece.from > self.to => return,
                Ok(Some(piece)) if piece.until.is_some_and(|until| until <= self.from) => skipped = true,
                Ok(Some(mut piece)) => {
                    piece.first |= skipped;
                    self.heads.push(Reverse((piece.from, source)));
                    self.pieces[source] = Some(piece);
                    return;
                }
                Ok(None) => return,
                Err(error) => {
                    self.error = Some(error);
                    return;
                }
            }
        }
    }
}

/// Decodes everything.
pub(crate) fn decode<C: Code + LinkageStubs + Sync, W: Watcher>(
    job: &Job<'_, C>,
    watcher: &mut W,
) -> Result<Calls, DecodeError<W::Error>> {
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    let feed = Mutex::new(Feed::new(job));
    let (permit, permits) = channel();
    let permits = Mutex::new(permits);
    let (results, done) = channel();
    let mut merger = Merger::new(job);
    let merged = std::thread::scope(|scope| {
        for _ in 0..workers {
            let (feed, permits, results) = (&feed, &permits, results.clone());
            scope.spawn(move || decode_pieces(job, feed, permits, &results));
        }
        drop(results);
        for _ in 0..workers * WINDOW {
            let _ = permit.send(());
        }
        // On an error the sender of permits is dropped, which ends all workers that wait for a permit.
        merger.run(done, permit, watcher)
    });
    merged.map_err(DecodeError::Watcher)?;
    let mut feed = feed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = feed.error.take() {
        return Err(DecodeError::Input(error));
    }
    let mut calls = merger.finish();
    calls.gaps.left_out += feed.readers.iter().map(Reader::damaged).sum::<u64>();
    calls.gaps.unsynchronised += feed.readers.iter().map(Reader::unsynchronised).sum::<u64>();
    Ok(calls)
}

/// Decodes pieces until none is left.
fn decode_pieces<C: Code>(
    job: &Job<'_, C>,
    feed: &Mutex<Feed<'_>>,
    permits: &Mutex<Receiver<()>>,
    results: &Sender<Done>,
) {
    let mut cache = RunCache::new();
    while permits.lock().unwrap_or_else(PoisonError::into_inner).recv().is_ok() {
        let taken = feed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(taken) = taken else { return };
        if results.send(decode_piece(job, taken, &mut cache)).is_err() {
            return;
        }
    }
}

fn decode_piece<C: Code>(job: &Job<'_, C>, taken: Taken, cache: &mut RunCache) -> Done {
    let Taken { number, source, piece, frontier } = taken;
    let Source { schedule, clock, .. } = &job.sources[source];
    let trace = Trace {
        bytes: &piece.bytes,
        code: job.code,
        schedule,
        // A piece without a start time continues the previous piece.
        clock: match piece.is_timed || piece.from == 0 {
            true => *clock,
            false => ClockFacts { reference_ticks: piece.from, ..*clock },
        },
        return_compression: job.return_compression,
    };
    let segment = Segment { start: 0, end: piece.end, first: piece.first };
    let mut sink = Counted { recorder: Recorder::new(job.time_conv), gaps: Gaps::default() };
    let decoded = decode_segment(&trace, segment, cache, &mut sink);
    let has_time = decoded.is_timed || piece.from > 0;
    let mut stretches = sink.recorder.finish(decoded.last_ticks);
    let mut gaps = sink.gaps;
    decoded.further.counts().into_iter().for_each(|(cause, count)| gaps.add(cause, count));
    gaps.corrected_times += decoded.corrected_times;
    if !has_time {
        gaps.untimed += 1;
        stretches.clear();
    }
    let (first, bytes) = (piece.first, piece.end as u64);
    Done { number, source, first, bytes, frontier, has_time, decoded, stretches, gaps }
}

/// An item of a thread, in the order of time.
enum Item {
    Stretch(Box<Stretch>),
    /// From here on the trace has a gap.
    Lost(ThreadId),
}

/// The position in the trace of one source.
#[derive(Clone, Copy, Default)]
struct Position {
    /// The end of its last piece.
    last: Option<u64>,
    /// The start of its last stretch. The next one is later.
    from: u64,
}

/// Merges results.
struct Merger<'j, 'a, C> {
    job: &'j Job<'a, C>,
    positions: Vec<Position>,
    waiting: ByTime<Item>,
    threads: HashMap<ThreadId, ThreadReplay>,
    limit: PathLimit,
    gaps: Gaps,
    last: Option<u64>,
    bytes: u64,
}

impl<'j, 'a, C: LinkageStubs> Merger<'j, 'a, C> {
    fn new(job: &'j Job<'a, C>) -> Self {
        Merger {
            job,
            positions: vec![Position::default(); job.sources.len()],
            waiting: ByTime::default(),
            threads: HashMap::new(),
            limit: PathLimit::default(),
            gaps: Gaps::default(),
            last: None,
            bytes: 0,
        }
    }

    fn run<W: Watcher>(
        &mut self,
        done: Receiver<Done>,
        permit: Sender<()>,
        watcher: &mut W,
    ) -> Result<(), W::Error> {
        let mut early: BTreeMap<u64, Done> = BTreeMap::new();
        let mut next = 0;
        for result in done {
            early.insert(result.number, result);
            while let Some(result) = early.remove(&next) {
                next += 1;
                let frontier = result.frontier;
                self.add(result);
                self.release(frontier, watcher)?;
                watcher.progress(self.bytes);
                let _ = permit.send(());
            }
        }
        self.release(u64::MAX, watcher)?;
        for (&thread, replay) in &self.threads {
            if let Some(ticks) = replay.away_since() {
                watcher.stays_away(thread, ticks, &mut replay.frames());
            }
        }
        Ok(())
    }

    fn add(&mut self, result: Done) {
        let Done { source, first, bytes, decoded, stretches, ref gaps, .. } = result;
        self.bytes += bytes;
        self.gaps.merge(gaps);
        if !result.has_time {
            return;
        }
        self.last = self.last.max(Some(decoded.last_ticks));
        if first && let Some(last) = self.positions[source].last {
            self.lose(source, last, decoded.first_ticks);
        }
        self.positions[source].last = Some(decoded.last_ticks);
        for stretch in stretches {
            let from = stretch.from.max(self.positions[source].from);
            self.positions[source].from = from;
            self.waiting.push(from, Item::Stretch(Box::new(stretch)));
        }
    }

    /// Between `last` and `next` nothing is known of the threads on that CPU.
    fn lose(&mut self, source: usize, last: u64, next: u64) {
        self.gaps.add(GapCause::LostData, 1);
        let schedule = self.job.sources[source].schedule;
        let mut cursor = schedule.cursor_at(last);
        self.positions[source].from = self.positions[source].from.max(last);
        let ran = std::iter::once((last, cursor.current().thread));
        let mut lost: Vec<(u64, ThreadId)> = ran.collect();
        while let Some(switch) = cursor.advance(next) {
            lost.push((switch.ticks, switch.thread));
        }
        for (ticks, thread) in lost.into_iter().filter(|(_, thread)| *thread != ThreadId::NONE) {
            self.waiting.push(ticks.max(last), Item::Lost(thread));
        }
    }

    /// Applies the items that are earlier than all future ones.
    fn release<W: Watcher>(&mut self, frontier: u64, watcher: &mut W) -> Result<(), W::Error> {
        let is_due = |ticks| ticks < frontier || frontier == u64::MAX;
        let code = self.job.code;
        let is_stub = |function| code.is_stub(function);
        while let Some((ticks, item)) = self.waiting.pop_if(is_due) {
            match item {
                Item::Lost(thread) => self.replay(thread).lose(ticks),
                Item::Stretch(stretch) => {
                    let replay = self.replay(stretch.thread);
                    replay.add_with_stubs(&stretch, &is_stub);
                    watcher.ran(stretch.thread, (stretch.from, stretch.to), replay.take_sides());
                    if stretch.departure.is_some() {
                        watcher.departed(stretch.thread, stretch.to, &mut replay.frames())?;
                    }
                }
            }
        }
        Ok(())
    }

    fn replay(&mut self, thread: ThreadId) -> &mut ThreadReplay {
        let (limit, time_conv) = (&self.limit, self.job.time_conv);
        let new = || ThreadReplay::within(limit.clone(), thread, time_conv);
        self.threads.entry(thread).or_insert_with(new)
    }

    /// The times at which threads that left their CPU came back, according to the schedule. No decodable
    /// trace shows them there.
    fn returns(&self) -> HashMap<ThreadId, u64> {
        let since = |replay: &ThreadReplay| replay.away_since();
        let away: HashMap<ThreadId, u64> =
            self.threads.iter().filter_map(|(&thread, replay)| Some((thread, since(replay)?))).collect();
        let mut returns: HashMap<ThreadId, u64> = HashMap::new();
        if away.is_empty() {
            return returns;
        }
        for switch in self.job.sources.iter().flat_map(|source| source.schedule.switches()) {
            if away.get(&switch.thread).is_some_and(|&since| switch.ticks > since) {
                let first = returns.entry(switch.thread).or_insert(switch.ticks);
                *first = switch.ticks.min(*first);
            }
        }
        returns
    }

    fn finish(self) -> Calls {
        let returns = self.returns();
        let Merger { job, threads, limit, gaps, last, .. } = self;
        let until = last.unwrap_or(0).min(job.to);
        let end = |thread, replay: &ThreadReplay| match replay.away_since() {
            // Its activity behind its own last time is not known.
            None => 0,
            Some(_) if !job.has_all_cpus => 0,
            // It stays off the CPU.
            Some(_) => {
                let ended = job.ends.get(&thread).copied().unwrap_or(until);
                returns.get(&thread).copied().unwrap_or(until).min(ended).min(until)
            }
        };
        let finished = threads.into_iter().map(|(thread, replay)| {
            let end = end(thread, &replay);
            replay.finish(end)
        });
        let mut threads: Vec<ThreadCalls> = finished.collect();
        threads.sort_by_key(|calls| calls.thread);
        Calls { threads, gaps, coarse_latencies: limit.refused_latencies(), last }
    }
}
