// SPDX-License-Identifier: Apache-2.0
//! `wallprof export --to parquet`: a recording as tables for databases.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use wallprof_analysis::ledger::{Samples, account};
use wallprof_findings::Collector;
use wallprof_meaning::waits::Rules;
use wallprof_model::event::Weighted;
use wallprof_model::histogram::range_from_bucket;
use wallprof_model::profile::{RecordingInfo, ResolvedFrame, ResolvedStack, Thread, ThrottledRow};
use wallprof_model::{Counter, EpochSecond, FastMap, Loss, MonoNs, StackId, ThreadInfo, ThreadKey};
use wallprof_recording::Recording;
use wallprof_tables::{
    COUNTERS, CounterColumns, FINDINGS, Folder, Hour, Known, LATENCY, LEDGER, LOSSES, Partition, RECORDINGS,
    SAMPLES, SPAN_LATENCY, SPANS, STACKS, STALLS, StackHash, StackHasher, THROTTLING, TableWriter,
    ThreadColumns, Value, Written, finding_row, loss_row, ran_longest, recording_id, recording_row,
    span_latency_row, span_row, stack_row, stall_row, thread_row, throttling_row,
};

use crate::failure::Failure;
use crate::findings::Background;
use crate::meanings::open_recording;

const SECOND_NS: u64 = 1_000_000_000;

/// Hashes of stacks that are kept: those of one reader are few.
const MOST_HASHES: usize = 100_000;

/// Writes all tables of the recording into the folder.
pub fn export(file: &Path, folder: &Path, rules: &Rules) -> Result<(), Failure> {
    let recording = open_recording(file, rules)?;
    let id = recording_id(&recording.info()?);
    let names = Names { file: id.clone(), id, watcher: None };
    let all = MonoNs(0)..MonoNs(u64::MAX);
    write(&recording, folder, &names, &Part { counters: all, lost: None, paused_ns: 0 })?
        .0
        .publish()
        .map_err(failed)
}

/// How rows and files name the recording.
pub struct Names {
    /// The column `recording`.
    pub id: String,
    /// The files, without their extension.
    pub file: String,
    /// Of a part of a watcher: it has only the stacks that earlier parts of the hour have not.
    pub watcher: Option<String>,
}

/// What a part of a recording has besides its rows by the second.
pub struct Part {
    /// The time of its counters' values.
    pub counters: Range<MonoNs>,
    /// A row of `losses` besides those of the recording.
    pub lost: Option<(Loss, u64)>,
    /// The time of it in which nothing was measured.
    pub paused_ns: u64,
}

/// Writes all tables of the recording, which are not visible yet, and returns which stacks are in them.
pub fn write(
    recording: &Recording,
    folder: &Path,
    names: &Names,
    part: &Part,
) -> Result<(Written, Known), Failure> {
    let info = recording.info()?;
    if info.clock.anchors().is_empty() {
        return Err(Failure::failed(format!(
            "the recording {} has no times of day, by which tables are divided: import it from a source with them",
            recording.path().display()
        )));
    }
    let mut tables = Tables::new(folder, names, &info, &recording.thread_infos()?);
    let start = info.clock.epoch_from_mono(info.start).0;
    tables.recording(&info, part.paused_ns, start)?;
    let mut stacks = tables.stacks(names.watcher.clone());
    // Stalls are read once, for their rows and for the findings.
    let mut stalls = Collector::default();
    tables.stalls(recording, &info, &mut stacks, &mut stalls)?;
    let background = Background::read(recording)?;
    let findings = background.findings(stalls);
    tables.samples(recording, &info, &mut stacks)?;
    tables.finish(stacks.table)?;
    tables.ledger(recording, &background.threads)?;
    tables.latency(&background.threads, start)?;
    tables.spans(recording, &info, start)?;
    tables.counters(recording, &info, &part.counters)?;
    tables.throttling(&background.throttled, &info)?;
    let mut table = tables.start(&FINDINGS);
    for found in &findings {
        table.row(start, finding_row(&names.id, start, found)).map_err(failed)?;
    }
    tables.finish(table)?;
    let mut table = tables.start(&LOSSES);
    let losses = info.losses.iter().map(|(reason, count)| (reason.as_str(), *count));
    for (reason, count) in losses.chain(part.lost.map(|(loss, count)| (loss.name(), count))) {
        table.row(start, loss_row(&names.id, start, reason, count)).map_err(failed)?;
    }
    tables.finish(table)?;
    Ok((tables.written, stacks.known))
}

fn failed(error: wallprof_tables::Error) -> Failure {
    Failure::failed(error)
}

/// The folder, and what the rows of one recording have in common.
struct Tables {
    folder: Folder,
    at: Partition,
    id: String,
    threads: FastMap<ThreadKey, ThreadColumns>,
    written: Written,
}

impl Tables {
    fn new(folder: &Path, names: &Names, info: &RecordingInfo, threads: &[ThreadInfo]) -> Self {
        let hour = |at| Hour::of_ns(info.clock.epoch_from_mono(at).0);
        let (first, last) = (hour(info.start), hour(info.end));
        let columns = |thread: &ThreadInfo| (thread.key, ThreadColumns::of(thread));
        Tables {
            folder: Folder::new(folder),
            at: Partition {
                host: info.hostname.clone(),
                file: names.file.clone(),
                first: first.min(last),
                last: last.max(first),
            },
            id: names.id.clone(),
            threads: threads.iter().map(columns).collect(),
            written: Written::default(),
        }
    }

    fn start(&self, table: &'static wallprof_tables::Table) -> TableWriter {
        self.folder.table(table, &self.at)
    }

    fn finish(&mut self, table: TableWriter) -> Result<(), Failure> {
        table.finish(&mut self.written).map_err(failed)
    }

    /// Of more threads than a reader lists, the others have their number alone.
    fn columns(&self, thread: ThreadKey) -> Cow<'_, ThreadColumns> {
        let known = self.threads.get(&thread).map(Cow::Borrowed);
        known.unwrap_or_else(|| Cow::Owned(ThreadColumns::unknown(thread)))
    }

    fn recording(&mut self, info: &RecordingInfo, paused_ns: u64, start: u64) -> Result<(), Failure> {
        let mut table = self.start(&RECORDINGS);
        let labels = wallprof_views::labels_json(&info.labels).map_err(Failure::failed)?;
        table.row(start, recording_row(&self.id, info, paused_ns, labels)).map_err(failed)?;
        self.finish(table)
    }

    /// The ledger by second. Running time is divided into user and kernel as the recording's samples of the
    /// thread are.
    fn ledger(&mut self, recording: &Recording, threads: &[Thread]) -> Result<(), Failure> {
        let whole: HashMap<ThreadKey, &Thread> =
            threads.iter().map(|thread| (thread.info.key, thread)).collect();
        let mut processes: HashMap<u32, Samples> = HashMap::new();
        for thread in threads {
            let samples = processes.entry(thread.info.pid).or_default();
            samples.user = samples.user.saturating_add(thread.ledger.user_samples);
            samples.kernel = samples.kernel.saturating_add(thread.ledger.kernel_samples);
        }
        let mut table = self.start(&LEDGER);
        for row in recording.ledger(..)? {
            let mut row = row?;
            let columns = self.columns(row.thread);
            let mut fallback = Samples::default();
            if let Some(thread) = whole.get(&row.thread) {
                row.user_samples = thread.ledger.user_samples;
                row.kernel_samples = thread.ledger.kernel_samples;
                fallback = match processes.get(&thread.info.pid) {
                    Some(samples) if samples.count() > 0 => *samples,
                    _ if thread.info.kernel_thread => Samples { user: 0, kernel: 1 },
                    _ => fallback,
                };
            }
            let account = account(&row, fallback);
            let at = ns_of(row.second);
            // Below 0 where the states are longer than the second, as in the view.
            let unaccounted = i128::from(account.wall_ns) - account.states.total_ns().cast_signed();
            let states = account.states.iter().filter(|(_, ns)| *ns != 0);
            let states = states.map(|(state, ns)| (state.label(), Value::from(ns)));
            let rest = (unaccounted != 0).then(|| ("unaccounted".to_owned(), Value::number(unaccounted)));
            for (state, ns) in states.chain(rest) {
                let row = thread_row(&self.id, at, &columns, [state.into(), ns]);
                table.row(at, row).map_err(failed)?;
            }
        }
        self.finish(table)
    }

    /// Of stalls and samples.
    fn stacks(&self, watcher: Option<String>) -> StackTable {
        StackTable {
            table: self.start(&STACKS),
            id: self.id.clone(),
            known: Known::new(self.folder.clone(), self.at.clone(), watcher),
            hashes: FastMap::default(),
            hasher: StackHasher::default(),
        }
    }

    /// The evidence of findings gets the stalls, too.
    fn stalls(
        &mut self,
        recording: &Recording,
        info: &RecordingInfo,
        stacks: &mut StackTable,
        evidence: &mut Collector,
    ) -> Result<(), Failure> {
        let mut table = self.start(&STALLS);
        let mut outcome = Ok(());
        recording.each_stall(|stall| {
            if outcome.is_err() {
                return;
            }
            evidence.add(&stall);
            let columns = self.columns(stall.thread);
            let from = info.clock.epoch_from_mono(stall.start).0;
            let waker = stall.waker.as_ref();
            let of_stall = [
                stall.user.as_ref(),
                stall.kernel.as_ref(),
                waker.and_then(|waker| waker.user.as_ref()),
                waker.and_then(|waker| waker.kernel.as_ref()),
            ];
            let mut hashes = [const { None }; 4];
            for (hash, stack) in hashes.iter_mut().zip(of_stall) {
                match stack.map(|stack| stacks.hash(stack, from)).transpose() {
                    Ok(known) => *hash = known,
                    Err(error) => outcome = Err(error),
                }
            }
            if outcome.is_ok() {
                let ran = ran_longest(&stall).and_then(|thread| self.threads.get(&thread.key?));
                outcome = table.row(from, stall_row(&self.id, &stall, &columns, from, &hashes, ran));
            }
        })?;
        outcome.map_err(failed)?;
        self.finish(table)
    }

    fn samples(
        &mut self,
        recording: &Recording,
        info: &RecordingInfo,
        stacks: &mut StackTable,
    ) -> Result<(), Failure> {
        let mut by_id: FastMap<StackId, StackHash> = FastMap::default();
        let mut hour = None;
        let mut table = self.start(&SAMPLES);
        for sample in recording.samples(..)? {
            let sample = sample?;
            let at = ns_of(sample.second);
            // Each hour has its own rows of stacks.
            if hour.replace(Hour::of_ns(at)) != Some(Hour::of_ns(at)) || by_id.len() >= MOST_HASHES {
                by_id.clear();
            }
            let columns = self.columns(sample.thread);
            let mut hash = |stack: Option<StackId>| -> Result<Option<StackHash>, Failure> {
                let Some(stack) = stack else { return Ok(None) };
                if let Some(known) = by_id.get(&stack) {
                    return Ok(Some(known.clone()));
                }
                let hash = stacks.hash(&recording.look_at(stack)?, at).map_err(failed)?;
                by_id.insert(stack, hash.clone());
                Ok(Some(hash))
            };
            let (user, kernel) = (hash(sample.user)?, hash(sample.kernel)?);
            let state = match sample.what {
                Weighted::State(state) => state.label(),
                Weighted::Event(event) => {
                    let name = info.events.get(usize::from(event)).map_or("", String::as_str);
                    format!("event:{name}")
                }
            };
            let (user, kernel) = (user.as_deref().into(), kernel.as_deref().into());
            let rest = [state.into(), sample.weight.into(), sample.count.into(), user, kernel];
            table.row(at, thread_row(&self.id, at, &columns, rest)).map_err(failed)?;
        }
        self.finish(table)
    }

    fn latency(&mut self, threads: &[Thread], start: u64) -> Result<(), Failure> {
        let mut table = self.start(&LATENCY);
        for thread in threads {
            let columns = self.columns(thread.info.key);
            for (metric, histogram) in &thread.latency {
                let name = metric.name();
                for (bucket, cell) in histogram.cells() {
                    let (from, to) = range_from_bucket(bucket);
                    let rest = [
                        name.as_str().into(),
                        from.into(),
                        to.into(),
                        cell.count.into(),
                        cell.total_ns.into(),
                        cell.max_ns.into(),
                    ];
                    table.row(start, thread_row(&self.id, start, &columns, rest)).map_err(failed)?;
                }
            }
        }
        self.finish(table)
    }

    /// Single spans in the hours in which they start, and the sums over all spans.
    fn spans(&mut self, recording: &Recording, info: &RecordingInfo, start: u64) -> Result<(), Failure> {
        let mut table = self.start(&SPANS);
        for (id, span) in recording.spans()? {
            let from = info.clock.epoch_from_mono(span.start).0;
            let columns = self.columns(span.thread);
            let row = span_row(&self.id, id, &span, &columns, from);
            table.row(from, row).map_err(failed)?;
        }
        self.finish(table)?;
        let mut table = self.start(&SPAN_LATENCY);
        for spans in recording.span_sums()? {
            let columns = self.columns(spans.thread);
            table.row(start, span_latency_row(&self.id, start, &spans, &columns)).map_err(failed)?;
        }
        self.finish(table)
    }

    /// The values of a part may be of the hour before: see `watch::tables`.
    fn counters(
        &mut self,
        recording: &Recording,
        info: &RecordingInfo,
        during: &Range<MonoNs>,
    ) -> Result<(), Failure> {
        let at_ns = |at| info.clock.epoch_from_mono(at).0;
        let mut at = self.at.clone();
        if during.start.0 > 0 {
            at.first = at.first.min(Hour::of_ns(at_ns(during.start)));
        }
        let mut table = self.folder.table(&COUNTERS, &at);
        let mut last: Option<(Counter, CounterColumns)> = None;
        let mut outcome = Ok(());
        recording.counters()?.each_value(during.clone(), |counter, at, value| {
            if outcome.is_err() {
                return;
            }
            if last.as_ref().is_none_or(|(known, _)| known != counter) {
                let thread = counter.thread.map(|thread| self.columns(thread).into_owned());
                last = Some((counter.clone(), CounterColumns::of(counter, thread)));
            }
            if let Some((_, columns)) = &last {
                outcome = table.row(at_ns(at), columns.row(&self.id, at_ns(at), value));
            }
        })?;
        outcome.map_err(failed)?;
        self.finish(table)
    }

    /// Of each group once, however many of its processes are recorded.
    fn throttling(&mut self, rows: &[ThrottledRow], info: &RecordingInfo) -> Result<(), Failure> {
        let mut table = self.start(&THROTTLING);
        let mut written: HashSet<(&str, MonoNs)> = HashSet::new();
        for row in rows {
            if written.insert((&row.cgroup, row.from)) {
                let [from, to] = [row.from, row.to].map(|at| info.clock.epoch_from_mono(at).0);
                table.row(from, throttling_row(&self.id, row, from, to)).map_err(failed)?;
            }
        }
        self.finish(table)
    }
}

fn ns_of(second: EpochSecond) -> u64 {
    u64::from(second.0) * SECOND_NS
}

/// The table of stacks: each is written when a row of the hour refers to it for the first time.
struct StackTable {
    table: TableWriter,
    id: String,
    known: Known,
    /// By the address of the frames.
    hashes: FastMap<(usize, u8), Hashed>,
    hasher: StackHasher,
}

struct Hashed {
    hash: StackHash,
    /// The hour of the last row that referred to it: the stack is in the table of that hour.
    hour: Hour,
    /// No other stack gets this address while the entry exists.
    _frames: Arc<[Arc<ResolvedFrame>]>,
}

impl StackTable {
    /// The hash of a stack to which a row of this time refers.
    fn hash(&mut self, stack: &ResolvedStack, at: u64) -> Result<StackHash, wallprof_tables::Error> {
        let key = (Arc::as_ptr(&stack.frames).cast::<()>().addr(), stack.end as u8);
        let hour = Hour::of_ns(at);
        if self.hashes.len() >= MOST_HASHES && !self.hashes.contains_key(&key) {
            self.hashes.clear();
        }
        let hash = match self.hashes.entry(key) {
            Entry::Occupied(known) if known.get().hour == hour => return Ok(known.get().hash.clone()),
            Entry::Occupied(mut known) => {
                known.get_mut().hour = hour;
                known.get().hash.clone()
            }
            Entry::Vacant(place) => {
                let hash = self.hasher.hash(stack);
                place.insert(Hashed { hash: hash.clone(), hour, _frames: Arc::clone(&stack.frames) });
                hash
            }
        };
        if self.known.is_new(at, &hash) {
            self.table.row(at, stack_row(&self.id, &hash, stack))?;
        }
        Ok(hash)
    }
}
