// SPDX-License-Identifier: Apache-2.0
//! Spans that programs mark themselves, with `include/wallprof.h`.
//!
//! Each thread writes its spans into memory that it shares with the recorder: sums of all of them, and those of a
//! microsecond or longer one by one in a ring. The kernel side sends what a thread was not running for, by the
//! number of the span. The rest of a span is running time. It is unknown where records were lost, where the
//! number could not be read, and before the kernel side knew the thread's slot.

mod clock;
mod memory;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use wallprof_model::histogram::{bucket_from_ns, range_from_bucket};
use wallprof_model::span::{LateSample, Span, SpanDelta, SpanSource, SpanState, SpanStates};
use wallprof_model::{MonoNs, SpanBudgets, ThreadKey};
use wallprof_probe::MarkSlot;
use wallprof_probe::bpf::{constants as c, marked_record};
use wallprof_symbols::{Undisturbed, living_thread};

use self::clock::MarkClock;
pub(crate) use self::memory::SHOWN_BYTES;
use self::memory::{BYTES, Cell, Entry, Memory, NAME, OTHER_KINDS, SHORT_NS, SLOTS, kind_of};
use crate::session::states_from;
use crate::span_samples::{SpanSamples, late_length};
use crate::threads::Threads;

/// Marks stay on for this long without word from the recorder.
const ON_FOR: Duration = Duration::from_secs(2);
const SWITCH_ON_EVERY_NS: u64 = 400_000_000;
/// Records and gaps of a thread are kept this long for spans that end later.
const KEEP_NS: u64 = 2_000_000_000;
/// Processes that mark spans, and the memories of each. Further ones are not read.
const MOST_PROCESSES: usize = 1_024;
const MOST_MEMORIES: usize = 256;
/// Memories of all processes.
const MOST_MEMORIES_IN_ALL: usize = 1_024;
/// Spans of all threads that wait for the end of their second, 40 bytes each. Further ones stay in the rings, and
/// have unknown states when they are overwritten there.
const MOST_PENDING: usize = 1 << 18;
/// Kinds of all threads, of which each has up to 9 KB. Of further ones, spans that are only in the sums are left out.
const MOST_TABLES: usize = 1 << 13;
/// Names that the kinds of a memory may have had. A process can write others at any time.
const MOST_NAMES: usize = 256;
/// Single spans of a flush that can become examples: the longest.
const MOST_SPANS: usize = 1 << 15;
/// Spans of a thread with records that wait for their end.
const MOST_RECORDS: usize = 1 << 16;
/// Gaps of a thread.
const MOST_GAPS: usize = 1 << 10;
/// Flushes after the end of a process.
const MOST_GONE: u32 = 5;

pub(crate) struct Marks {
    clock: MarkClock,
    processes: BTreeMap<u32, Process>,
    /// By key.
    threads: HashMap<u32, ThreadMarks>,
    switched_on: u64,
}

struct Process {
    exec_id: u32,
    memories: Vec<Shared>,
    /// Flushes that found it gone.
    gone: u32,
}

struct Shared {
    memory: Memory,
    inode: u64,
    /// By the present image of the process. Of a former one, the last spans are still to be read.
    is_mapped: bool,
    refused: u64,
    names: Names,
    slots: [Slot; SLOTS],
}

#[derive(Default)]
struct Slot {
    /// Inside of the pid namespace; 0: nobody has had it yet.
    tid: u32,
    /// Its number in the recording, once it was known. It may end before its last spans are due.
    key: Option<u32>,
    /// What its former threads have left.
    former: Vec<Former>,
    /// Entries that were read.
    read: u64,
    pending: Vec<Entry>,
    /// Entries were lost since the last flush.
    lost: u64,
    too_deep: u64,
    /// By kind and bucket: the spans that were read or emitted.
    seen: HashMap<usize, Vec<Cell>>,
}

/// Spans of a thread whose slot has gone to another one.
struct Former {
    tid: u32,
    key: Option<u32>,
    entries: Vec<Entry>,
    rows: Rows,
}

/// What may still be kept: processes say of themselves how much there is.
struct Room {
    pending: usize,
    tables: usize,
}

/// What the kernel side has said about a thread.
#[derive(Default)]
struct ThreadMarks {
    known_from: Option<u64>,
    /// In between, states are unknown.
    gaps: Vec<(u64, u64)>,
    /// By span: what it was not running for, and when the last record came.
    records: HashMap<u64, (Growth, u64)>,
    /// When the last record came.
    latest: u64,
    samples: SpanSamples,
}

/// Nanoseconds by state. A later record can take back a part of an earlier one.
#[derive(Clone, Copy, Default)]
pub(crate) struct Growth([i64; SpanState::COUNT]);

impl Growth {
    pub fn add(&mut self, states: &SpanStates) {
        for (sum, more) in self.0.iter_mut().zip(states.0) {
            *sum = sum.wrapping_add(more.cast_signed());
        }
    }

    pub fn states(&self) -> SpanStates {
        SpanStates(self.0.map(|ns| u64::try_from(ns).unwrap_or(0)))
    }
}

/// Spans that are ready to be emitted.
#[derive(Default)]
pub(crate) struct Flushed {
    pub sums: Vec<SpanDelta>,
    pub spans: Vec<Span>,
    pub late: Vec<LateSample>,
    /// [`wallprof_model::Loss::MarksOverwritten`].
    pub overwritten: u64,
    /// [`wallprof_model::Loss::MarksLeftOut`].
    pub left_out: u64,
    /// [`wallprof_model::Loss::SpansOverBudgetLeftOut`].
    pub over_left_out: u64,
}

impl Default for Marks {
    fn default() -> Self {
        Marks { clock: MarkClock::new(), processes: BTreeMap::new(), threads: HashMap::new(), switched_on: 0 }
    }
}

impl Marks {
    /// Reads where this process marks spans, if it does.
    pub fn look_at(&mut self, pid: u32, exec_id: u32) {
        let ranges = mapped(pid);
        if ranges.is_empty() {
            // Its last spans are read at the next flush.
            return;
        }
        let memories: usize = self.processes.values().map(|process| process.memories.len()).sum();
        let is_full = self.processes.len() >= MOST_PROCESSES && !self.processes.contains_key(&pid);
        if is_full || memories >= MOST_MEMORIES_IN_ALL {
            return;
        }
        let mut room = self.room();
        let process =
            self.processes.entry(pid).or_insert_with(|| Process { exec_id, memories: Vec::new(), gone: 0 });
        let mapped: Vec<(Memory, u64)> = ranges
            .into_iter()
            .take(MOST_MEMORIES)
            .filter_map(|(start, end)| Memory::open(pid, start, end))
            .filter_map(|memory| memory.inode().map(|inode| (memory, inode)))
            .collect();
        if process.exec_id != exec_id {
            process.exec_id = exec_id;
            for shared in &mut process.memories {
                // The kernel side forgets what the former image had. Its last spans are still to be read.
                shared.follow(pid, exec_id, &mut room, &mut Vec::new());
                let is_mapped = |(memory, inode): &(Memory, u64)| {
                    *inode == shared.inode && memory.address() == shared.memory.address()
                };
                shared.is_mapped = mapped.iter().any(is_mapped);
                if shared.is_mapped {
                    shared.slots.iter_mut().for_each(|slot| slot.tid = 0);
                }
            }
        }
        // What was marked before, while another recorder ran, is not of this recording.
        let is_first = process.memories.iter().all(|shared| !shared.is_mapped);
        for (memory, inode) in mapped {
            if process.memories.iter().all(|shared| shared.inode != inode) {
                process.memories.push(Shared::new(memory, inode, is_first, &mut room));
            }
        }
        self.switched_on = 0;
    }

    /// Whether any process marks spans.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    fn room(&self) -> Room {
        let slots = || {
            let memories = self.processes.values().flat_map(|process| &process.memories);
            memories.flat_map(|shared| &shared.slots)
        };
        let pending: usize = slots().map(|slot| slot.pending.len()).sum();
        let tables: usize = slots().map(|slot| slot.seen.len()).sum();
        Room { pending: MOST_PENDING.saturating_sub(pending), tables: MOST_TABLES.saturating_sub(tables) }
    }

    /// Keeps marks on and reads what is in the rings. Returns the slots that are new or gone.
    pub fn follow(&mut self, now: u64) -> Vec<MarkSlot> {
        if self.is_empty() {
            return Vec::new();
        }
        if self.switched_on.saturating_add(SWITCH_ON_EVERY_NS) <= now {
            self.clock.follow();
            let until = self.clock.after(ON_FOR);
            let (ns_per_tick, number) = (self.clock.ns_per_tick(), self.clock.number());
            for shared in self.processes.values().flat_map(|process| &process.memories) {
                shared.memory.switch_on(until, ns_per_tick, number);
            }
            self.switched_on = now;
        }
        let mut room = self.room();
        let mut changes = Vec::new();
        for (pid, process) in &mut self.processes {
            for shared in process.memories.iter_mut().filter(|shared| shared.is_mapped) {
                shared.follow(*pid, process.exec_id, &mut room, &mut changes);
                let used = shared.slots.iter_mut().enumerate().filter(|(_, slot)| slot.tid != 0);
                used.for_each(|(at, slot)| slot.read(at, &shared.memory, &mut room));
            }
        }
        changes
    }

    /// Leaves out the spans that have ended since the last flush: the recording has paused.
    pub fn pass_over(&mut self) {
        let mut room = self.room();
        self.processes
            .values_mut()
            .flat_map(|process| &mut process.memories)
            .for_each(|shared| shared.pass_over(&mut room));
    }

    /// The recording paused in between: the kernel side knows nothing of that time.
    pub fn add_pause(&mut self, from: u64, to: u64) {
        self.threads.values_mut().for_each(|thread| thread.add_gap(from, to));
    }

    /// Takes records of the kernel side.
    pub fn take(&mut self, records: Vec<marked_record>) {
        for record in records {
            let thread = self.threads.entry(record.key).or_default();
            thread.latest = thread.latest.max(record.at);
            if record.incomplete != 0 {
                thread.add_gap(record.from, record.at);
                thread.known_from.get_or_insert(record.at);
            }
            match record.id {
                c::MARK_SLOT_FOUND => thread.known_from = Some(record.at),
                c::MARK_UNREADABLE => thread.add_gap(record.from, record.at),
                id => {
                    let mut states = states_from(&record.states);
                    states.0[SpanState::Cpu.index()] = 0;
                    if thread.records.len() >= MOST_RECORDS && !thread.records.contains_key(&id) {
                        thread.records.clear();
                        thread.add_gap(0, record.at);
                    }
                    let (sum, at) = thread.records.entry(id).or_default();
                    sum.add(&states);
                    *at = record.at;
                }
            }
        }
    }

    /// Takes a sample of a thread in a span.
    pub fn take_sample(&mut self, sample: LateSample) {
        self.threads.entry(sample.thread.0).or_default().samples.take(sample);
    }

    /// The spans that ended before `boundary`, by the kernel's clock.
    pub fn flush(&mut self, boundary: u64, threads: &Threads, budgets: &SpanBudgets) -> Flushed {
        let mut flushed = Flushed::default();
        if self.is_empty() {
            return flushed;
        }
        self.clock.follow();
        let mut room = self.room();
        let keys = |pid: u32, tid: u32| Some(threads.owner(pid, tid)?.key?.0);
        for (pid, process) in &mut self.processes {
            for shared in &mut process.memories {
                let Shared { memory, slots, refused, names, is_mapped, .. } = shared;
                flushed.left_out += memory.refused().saturating_sub(*refused);
                *refused = memory.refused().max(*refused);
                for (at, slot) in slots.iter_mut().enumerate() {
                    let mut flush = Flush {
                        clock: &self.clock,
                        boundary,
                        budgets,
                        threads: &mut self.threads,
                        flushed: &mut flushed,
                        room: &mut room,
                    };
                    slot.flush(at, memory, names, &|tid| keys(*pid, tid), &mut flush);
                    // Nothing comes any more. A thread that is not known yet keeps its spans waiting.
                    if !*is_mapped && slot.pending.is_empty() && slot.key.is_some() {
                        slot.tid = 0;
                    }
                }
            }
        }
        flushed.left_out += self.forget(boundary, &keys);
        flushed
    }

    /// Returns how many spans had to be left out: those of threads that are not known though they ended long ago.
    fn forget(&mut self, boundary: u64, keys: &dyn Fn(u32, u32) -> Option<u32>) -> u64 {
        let mut left_out = 0;
        self.processes.retain(|pid, process| {
            let waits = |shared: &Shared| shared.slots.iter().any(|slot| slot.tid != 0);
            process.memories.retain(|shared| shared.is_mapped || waits(shared));
            process.gone = if crate::known::exists(*pid) { 0 } else { process.gone + 1 };
            // Its last spans end after the boundary of the flush that finds it gone.
            let pending = process.pending();
            let is_kept = process.gone < MOST_GONE && (process.gone < 2 || pending > 0);
            left_out += if is_kept { 0 } else { pending as u64 };
            is_kept
        });
        let mut open: HashMap<u32, Vec<u64>> = HashMap::new();
        let mut since: HashMap<u32, u64> = HashMap::new();
        for (pid, process) in &self.processes {
            for shared in &process.memories {
                for (at, slot) in shared.slots.iter().enumerate().filter(|(_, slot)| slot.tid != 0) {
                    if let Some(key) = keys(*pid, slot.tid) {
                        open.insert(key, shared.memory.open_spans(at));
                        let ended = slot.pending.iter().map(|entry| start_of(entry, &self.clock));
                        let outermost = shared.memory.open_since(at).map(|start| self.clock.mono(start).0);
                        since.insert(key, ended.chain(outermost).min().unwrap_or(boundary).min(boundary));
                    }
                }
            }
        }
        let long_ago = boundary.saturating_sub(KEEP_NS);
        self.threads.retain(|key, thread| {
            let open = open.get(key);
            let is_open = |id: &u64| open.is_some_and(|open| open.contains(id));
            thread.records.retain(|id, (_, at)| *at >= long_ago || is_open(id));
            let since = since.get(key).copied().unwrap_or(boundary);
            thread.samples.forget(since);
            thread.gaps.retain(|(_, to)| *to >= long_ago || open.is_some_and(|open| !open.is_empty()));
            open.is_some() || thread.latest >= long_ago
        });
        left_out
    }
}

impl Process {
    /// Spans that were read and not emitted.
    fn pending(&self) -> usize {
        let slots = self.memories.iter().flat_map(|shared| &shared.slots);
        slots
            .map(|slot| {
                slot.pending.len() + slot.former.iter().map(|former| former.entries.len()).sum::<usize>()
            })
            .sum()
    }
}

impl Shared {
    fn new(memory: Memory, inode: u64, is_first: bool, room: &mut Room) -> Self {
        let mut shared = Shared {
            refused: memory.refused(),
            is_mapped: true,
            memory,
            inode,
            names: Names::default(),
            slots: Default::default(),
        };
        if is_first {
            shared.pass_over(room);
        }
        shared
    }

    /// What is there by now is of no recording.
    fn pass_over(&mut self, room: &mut Room) {
        self.refused = self.memory.refused();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            slot.read = self.memory.entries(at, u64::MAX, &mut Vec::new()).0;
            slot.pass_over_sums(at, &self.memory, room);
            slot.too_deep = self.memory.too_deep(at);
            slot.pending.clear();
            slot.former.clear();
            slot.lost = 0;
        }
    }

    fn follow(&mut self, pid: u32, exec_id: u32, room: &mut Room, changes: &mut Vec<MarkSlot>) {
        for (at, (slot, tid)) in self.slots.iter_mut().zip(self.memory.tids()).enumerate() {
            if tid == 0 || slot.tid == tid {
                continue;
            }
            if slot.tid != 0 {
                slot.change_thread(at, &self.memory, &mut self.names, room);
                changes.push(MarkSlot { pid, ns_tid: slot.tid, place: None });
            }
            let place = Some((self.memory.current_address(at), exec_id));
            changes.push(MarkSlot { pid, ns_tid: tid, place });
            slot.tid = tid;
            slot.key = None;
        }
    }
}

impl Slot {
    fn read(&mut self, at: usize, memory: &Memory, room: &mut Room) {
        if room.pending == 0 {
            return;
        }
        let before = self.pending.len();
        let (read, lost) = memory.entries(at, self.read, &mut self.pending);
        self.read = read;
        self.lost = self.lost.saturating_add(lost);
        room.pending = room.pending.saturating_sub(self.pending.len() - before);
        for entry in &self.pending[before..] {
            if let Some(seen) = cell(&mut self.seen, kind_of(entry.id), bucket_from_ns(entry.ns), room) {
                *seen = Cell { count: seen.count.wrapping_add(1), ns: seen.ns.wrapping_add(entry.ns) };
            }
        }
    }

    fn pass_over_sums(&mut self, at: usize, memory: &Memory, room: &mut Room) {
        for (kind, _) in memory.kinds(at) {
            if let Some(seen) = table(&mut self.seen, kind, room) {
                *seen = memory.sums(at, kind);
            }
        }
    }

    /// Another thread has taken the slot: what is there so far belongs to the former one.
    fn change_thread(&mut self, at: usize, memory: &Memory, names: &mut Names, room: &mut Room) {
        let (_, rows) = self.read_all(at, memory, names, room);
        let taken_at = memory.taken_at(at);
        let entries = self.pending.extract_if(.., |entry| entry.id >> 8 <= taken_at).collect();
        self.former.push(Former { tid: self.tid, key: self.key, entries, rows });
    }

    /// Reads the ring, and what is in the sums alone.
    fn read_all(&mut self, at: usize, memory: &Memory, names: &mut Names, room: &mut Room) -> (Kinds, Rows) {
        // The sums before the ring: each span is in the ring before it is in them.
        let kinds: Kinds =
            memory.kinds(at).into_iter().map(|(kind, name)| (kind, names.get(&name))).collect();
        let sums: Vec<(usize, Vec<Cell>)> =
            kinds.keys().map(|kind| (*kind, memory.sums(at, *kind))).collect();
        self.read(at, memory, room);
        let mut rows = Rows::default();
        for (kind, sums) in &sums {
            self.add_unseen(*kind, &kinds[kind], sums, &mut rows, room);
        }
        (kinds, rows)
    }

    /// `key_of` gives the key of a thread. That of a new one is not known yet: its spans wait.
    fn flush(
        &mut self,
        at: usize,
        memory: &Memory,
        names: &mut Names,
        key_of: &dyn Fn(u32) -> Option<u32>,
        to: &mut Flush<'_>,
    ) {
        if self.tid == 0 {
            return;
        }
        let Some(key) = key_of(self.tid).or(self.key) else { return };
        self.key = Some(key);
        let (kinds, mut rows) = self.read_all(at, memory, names, to.room);
        let late_ns = self.late_ns();
        to.flushed.overwritten += std::mem::take(&mut self.lost);
        let too_deep = memory.too_deep(at);
        to.flushed.left_out += too_deep.saturating_sub(self.too_deep);
        self.too_deep = too_deep.max(self.too_deep);
        for Former { tid, key, entries, mut rows } in std::mem::take(&mut self.former) {
            match key_of(tid).or(key) {
                Some(key) => {
                    to.add(key, &entries, &kinds, &late_ns, &mut rows);
                    to.flushed.sums.extend(rows.finish(ThreadKey(key), SpanSource::Code));
                }
                // It started and ended while no record of it was written.
                None => to.flushed.left_out += entries.len() as u64,
            }
        }
        let (clock, boundary) = (to.clock, to.boundary);
        let is_due = |entry: &mut Entry| clock.mono(entry.end).0 < boundary;
        let due: Vec<Entry> = self.pending.extract_if(.., is_due).collect();
        to.add(key, &due, &kinds, &late_ns, &mut rows);
        to.flushed.sums.extend(rows.finish(ThreadKey(key), SpanSource::Code));
    }

    /// By kind, the length that nineteen of twenty spans so far do not exceed.
    fn late_ns(&self) -> BTreeMap<usize, u64> {
        let of_kind = |cells: &Vec<Cell>| late_length(cells.iter().map(|cell| cell.count));
        self.seen.iter().map(|(kind, cells)| (*kind, of_kind(cells))).collect()
    }

    /// Spans that are in the sums alone: the short ones were running, and of longer ones the ring had no space.
    fn add_unseen(&mut self, kind: usize, name: &Arc<str>, sums: &[Cell], rows: &mut Rows, room: &mut Room) {
        for (bucket, sum) in (0u16..).zip(sums) {
            let (from, to) = range_from_bucket(bucket);
            let is_short = from < SHORT_NS;
            if !is_short && self.lost == 0 {
                continue;
            }
            if sum.count == 0 {
                continue;
            }
            let Some(seen) = cell(&mut self.seen, kind, bucket, room) else { return };
            let count = sum.count.wrapping_sub(seen.count);
            // A span that has ended since the sums were read; or the memory of a process that lies.
            if count == 0 || count > 1 << 48 {
                continue;
            }
            let ns = sum.ns.wrapping_sub(seen.ns).clamp(count.saturating_mul(from), count.saturating_mul(to));
            *seen = *sum;
            let state = if is_short { SpanState::Cpu } else { SpanState::Unknown };
            let mut states = SpanStates::default();
            states.0[state.index()] = ns;
            rows.add(name, bucket, count, to - 1, &states);
        }
    }
}

/// The names of one memory's kinds.
#[derive(Default)]
struct Names(HashSet<Arc<str>>);

impl Names {
    fn get(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.get(name) {
            return Arc::clone(known);
        }
        let new: Arc<str> = if self.0.len() < MOST_NAMES { name.into() } else { OTHER_KINDS.into() };
        self.0.insert(Arc::clone(&new));
        new
    }
}

/// Names by the numbers of a slot.
type Kinds = BTreeMap<usize, Arc<str>>;

/// One flush of all slots.
struct Flush<'a> {
    clock: &'a MarkClock,
    boundary: u64,
    budgets: &'a SpanBudgets,
    threads: &'a mut HashMap<u32, ThreadMarks>,
    flushed: &'a mut Flushed,
    room: &'a mut Room,
}

impl Flush<'_> {
    /// Spans of one thread that have ended.
    fn add(
        &mut self,
        key: u32,
        entries: &[Entry],
        kinds: &Kinds,
        late_ns: &BTreeMap<usize, u64>,
        rows: &mut Rows,
    ) {
        let thread = self.threads.entry(key).or_default();
        for entry in entries {
            let late_ns = late_ns.get(&kind_of(entry.id)).copied().unwrap_or(u64::MAX);
            if entry.ns > late_ns {
                let start = start_of(entry, self.clock);
                let (from, to) = (start.saturating_add(late_ns), start + entry.ns);
                thread.samples.emit_late(SpanSource::Code, from, to, &mut self.flushed.late);
            }
            let states = thread.states_of(entry, self.clock);
            let Some(name) = kinds.get(&kind_of(entry.id)) else { continue };
            rows.add(name, bucket_from_ns(entry.ns), 1, entry.ns, &states);
            let end = self.clock.mono(entry.end);
            self.flushed.spans.push(Span {
                thread: ThreadKey(key),
                source: SpanSource::Code,
                kind: Arc::clone(name),
                start: MonoNs(end.0.saturating_sub(entry.ns)),
                end,
                states,
            });
            if self.flushed.spans.len() >= MOST_SPANS {
                let is_over = |span: &Span| span.is_over(self.budgets);
                self.flushed.spans.sort_by_key(|span| (!is_over(span), Reverse(span.duration_ns())));
                let removed = self.flushed.spans.split_off(MOST_SPANS / 2);
                self.flushed.over_left_out += removed.iter().filter(|span| is_over(span)).count() as u64;
            }
        }
    }
}

/// `None`: there is no room for another kind.
fn table<'a>(
    seen: &'a mut HashMap<usize, Vec<Cell>>,
    kind: usize,
    room: &mut Room,
) -> Option<&'a mut Vec<Cell>> {
    let is_new = !seen.contains_key(&kind);
    if is_new && room.tables == 0 {
        return None;
    }
    room.tables -= usize::from(is_new);
    Some(seen.entry(kind).or_default())
}

/// As [`table`].
fn cell<'a>(
    seen: &'a mut HashMap<usize, Vec<Cell>>,
    kind: usize,
    bucket: u16,
    room: &mut Room,
) -> Option<&'a mut Cell> {
    let cells = table(seen, kind, room)?;
    let at = usize::from(bucket);
    if cells.len() <= at {
        cells.resize(at + 1, Cell::default());
    }
    cells.get_mut(at)
}

impl ThreadMarks {
    fn add_gap(&mut self, from: u64, to: u64) {
        let is_full = self.gaps.len() >= MOST_GAPS;
        match self.gaps.last_mut().filter(|_| is_full) {
            // One long gap says less than two, and never too much.
            Some(last) => last.1 = last.1.max(to),
            None => self.gaps.push((from, to)),
        }
    }

    /// The states of a span, which add up to its length. What it was not running for counts for the span around
    /// it, too.
    fn states_of(&mut self, entry: &Entry, clock: &MarkClock) -> SpanStates {
        let mut states =
            self.records.remove(&entry.id).map(|(growth, _)| growth.states()).unwrap_or_default();
        if entry.outer != 0 && states.total_ns() > 0 {
            let (sum, at) = self.records.entry(entry.outer).or_default();
            sum.add(&states);
            *at = (*at).max(clock.mono(entry.end).0);
        }
        limit(&mut states, entry.ns);
        let end = clock.mono(entry.end).0;
        let start = end.saturating_sub(entry.ns);
        let is_known = self.known_from.is_some_and(|from| from <= start)
            && !self.gaps.iter().any(|(from, to)| *from < end && start < *to);
        let rest = if is_known { SpanState::Cpu } else { SpanState::Unknown };
        states.0[rest.index()] += entry.ns.saturating_sub(states.total_ns());
        states
    }
}

/// By the kernel's clock.
fn start_of(entry: &Entry, clock: &MarkClock) -> u64 {
    clock.mono(entry.end).0.saturating_sub(entry.ns)
}

/// The number is set just before the span starts by the clock, and removed just after it ends: a wait there is
/// no part of the span.
pub(crate) fn limit(states: &mut SpanStates, ns: u64) {
    let mut excess = states.total_ns().saturating_sub(ns);
    while excess > 0
        && let Some(most) = states.0.iter_mut().max()
        && *most > 0
    {
        let less = excess.min(*most);
        *most -= less;
        excess -= less;
    }
}

/// Sums of one thread, by kind and bucket.
#[derive(Default)]
pub(crate) struct Rows {
    rows: BTreeMap<(Arc<str>, u16), (u64, u64, SpanStates)>,
}

impl Rows {
    pub fn add(&mut self, kind: &Arc<str>, bucket: u16, count: u64, max_ns: u64, states: &SpanStates) {
        let (sum, max, all) = self.rows.entry((Arc::clone(kind), bucket)).or_default();
        *sum = sum.saturating_add(count);
        *max = (*max).max(max_ns);
        all.add(states);
    }

    pub fn finish(self, thread: ThreadKey, source: SpanSource) -> impl Iterator<Item = SpanDelta> {
        self.rows.into_iter().map(move |((kind, bucket), (count, max_ns, states))| SpanDelta {
            thread,
            source,
            kind,
            bucket,
            count,
            max_ns,
            states,
        })
    }
}

/// The mappings of the process that can be memories with marks: those that it may write.
fn mapped(pid: u32) -> Vec<(u64, u64)> {
    let mut maps = Vec::new();
    let opened = File::open(format!("/proc/{}/maps", living_thread(pid)));
    if opened.and_then(|file| Undisturbed(file).read_to_end(&mut maps)).is_err() {
        return Vec::new();
    }
    let lines = maps.split(|byte| *byte == b'\n').filter(|line| line.ends_with(NAME.as_bytes()));
    let range = |line: &[u8]| {
        let line = std::str::from_utf8(line).ok()?;
        let mut parts = line.split(' ');
        let (start, end) = parts.next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        (parts.next()?.starts_with("rw") && end.checked_sub(start)? == BYTES).then_some((start, end))
    };
    lines.filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(values: &[(SpanState, u64)]) -> SpanStates {
        let mut states = SpanStates::default();
        values.iter().for_each(|(state, ns)| states.0[state.index()] = *ns);
        states
    }

    const IRQ: SpanState = SpanState::Of(wallprof_model::State::Irq);
    const QUEUED: SpanState = SpanState::Of(wallprof_model::State::Runnable);

    #[test]
    fn states_add_up_to_the_span_and_count_for_the_one_around_it() {
        let clock = MarkClock::new();
        let mut thread = ThreadMarks { known_from: Some(0), ..ThreadMarks::default() };
        let mut growth = Growth::default();
        growth.add(&states(&[(QUEUED, 700)]));
        // A later record takes back what was running time.
        growth.add(&states(&[(QUEUED, 100u64.wrapping_neg()), (IRQ, 50)]));
        thread.records.insert(0x201, (growth, 1));
        let inner = Entry { id: 0x201, outer: 0x102, end: 0, ns: 2_000 };
        let found = thread.states_of(&inner, &clock);
        assert_eq!(found, states(&[(QUEUED, 600), (IRQ, 50), (SpanState::Cpu, 1_350)]));
        let outer = Entry { id: 0x102, outer: 0, end: 0, ns: 5_000 };
        let found = thread.states_of(&outer, &clock);
        assert_eq!(found, states(&[(QUEUED, 600), (IRQ, 50), (SpanState::Cpu, 4_350)]));
    }

    fn sample(at: u64) -> LateSample {
        let (thread, state) = (ThreadKey(7), wallprof_model::State::User);
        let source = SpanSource::Code;
        LateSample { thread, source, at: MonoNs(at), state, ns: 100, user: None, kernel: None }
    }

    #[test]
    fn span_is_late_after_nineteen_of_twenty_spans_have_ended() {
        let mut slot = Slot::default();
        let mut room = Room { pending: 0, tables: 2 };
        for (ns, count) in [(2_000, 96), (9_000, 4)] {
            cell(&mut slot.seen, 1, bucket_from_ns(ns), &mut room).expect("a cell").count += count;
        }
        let late_ns = slot.late_ns()[&1];
        assert_eq!(late_ns, range_from_bucket(bucket_from_ns(2_000)).1);
    }

    #[test]
    fn threads_without_a_memory_are_forgotten() {
        let mut marks = Marks::default();
        marks.take_sample(sample(50));
        marks.forget(5_000_000_000, &|_, _| None);
        assert!(marks.threads.is_empty());
    }

    #[test]
    fn wait_at_the_edge_of_a_span_is_no_longer_than_the_span() {
        let mut found = states(&[(QUEUED, 5_000), (IRQ, 100)]);
        limit(&mut found, 1_000);
        assert_eq!(found.total_ns(), 1_000);
        let mut all = SpanStates([u64::MAX; SpanState::COUNT]);
        limit(&mut all, 1_000);
    }

    #[test]
    fn names_of_a_memory_are_limited() {
        let mut names = Names::default();
        let given: HashSet<Arc<str>> = (0..10_000).map(|number| names.get(&number.to_string())).collect();
        assert_eq!(given.len(), MOST_NAMES + 1);
        assert!(given.contains(OTHER_KINDS) && names.0.len() == MOST_NAMES + 1);
    }

    #[test]
    fn kinds_without_room_are_left_out() {
        let (mut seen, mut room) = (HashMap::new(), Room { pending: 0, tables: 1 });
        assert!(cell(&mut seen, 1, 500, &mut room).is_some() && cell(&mut seen, 1, 20, &mut room).is_some());
        assert!(cell(&mut seen, 2, 20, &mut room).is_none());
        assert_eq!(seen.len(), 1);
    }

    #[test]
    fn spans_that_end_in_a_pause_are_of_no_recording() {
        let mut marks = Marks::default();
        let mut room = marks.room();
        let mut shared = Shared::new(memory::tests::memory_after(5), 1, false, &mut room);
        shared.slots[3].read(3, &shared.memory, &mut room);
        shared.slots[3].lost = 2;
        assert_eq!(shared.slots[3].pending.len(), 5);
        marks.processes.insert(7, Process { exec_id: 0, memories: vec![shared], gone: 0 });
        marks.threads.insert(1, ThreadMarks { known_from: Some(0), ..ThreadMarks::default() });
        marks.pass_over();
        marks.add_pause(10, 20);
        let slot = &mut marks.processes.get_mut(&7).expect("the process").memories[0].slots[3];
        assert_eq!((slot.read, slot.pending.len(), slot.lost), (5, 0, 0));
        assert_eq!(marks.threads[&1].gaps, [(10, 20)]);
    }

    #[test]
    fn states_before_the_slot_was_found_and_in_gaps_are_unknown() {
        let mut clock = MarkClock::new();
        clock.follow();
        let mut thread = ThreadMarks::default();
        let end = clock.after(Duration::ZERO);
        let now = clock.mono(end).0;
        let span = Entry { id: 0x101, outer: 0, end, ns: 2_000 };
        let unknown = states(&[(SpanState::Unknown, 2_000)]);
        assert_eq!(thread.states_of(&span, &clock), unknown);
        thread.known_from = Some(now.saturating_sub(2_000));
        assert_eq!(thread.states_of(&span, &clock), states(&[(SpanState::Cpu, 2_000)]));
        thread.add_gap(now.saturating_sub(10), now + 10);
        assert_eq!(thread.states_of(&span, &clock), unknown);
    }
}
