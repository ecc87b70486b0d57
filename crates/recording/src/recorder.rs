//! The writer: takes events, adds up what belongs together, and commits about once a second.
//!
//! Owns the file while it is written. Decides nothing about what events mean; the only thing it leaves out
//! is what the size budget folds into counts, and that is counted.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use wallprof_model::IntrusionDelta;
use wallprof_model::event::{
    Binding, CrossCallDelta, InterruptDelta, KernelWork, LedgerDelta, SampleDelta, Stall, Waker, WakerStacks,
    Weighted,
};
use wallprof_model::histogram::{self, Cell};
use wallprof_model::profile::KeptStall;
use wallprof_model::{
    CallFrame, CallPath, ClockAnchor, Counter, CounterKey, Event, Forgotten, Frame, FrameId, Loss, Module,
    ModuleId, MonoNs, StackEnd, StackId, StallKind, SymbolLine, ThreadInfo, ThreadKey, ThreadRef,
};

use crate::budget::{self, Candidate, SizeBudget};
use crate::error::{Action, Error, Result};
use crate::forget::{self, Unused};
use crate::held::Held;
use crate::ids::{Ids, UNKNOWN_REFERENCE};
use crate::intern::{StackTree, Texts};
use crate::kept::KeptStalls;
use crate::new_file;
use crate::pending::{
    self, BindingRow, CallPathRow, FrameRow, InterruptKey, IntrusionKey, LineRow, MentionRow, ModuleRow,
    Pending, SampleKey,
};
use crate::pending::{SampleWaker, StallRow, ThreadRow};
use crate::retention::{Generations, RETAIN_EVERY, Retention};
use crate::schema::FIRST_EVENT;
use crate::write::{self, Progress};

/// The reason under which stalls are counted that the size budget folded.
pub const STALLS_FOLDED: &str = Loss::StallsFolded.name();

/// What is known when a recording starts. Empty texts are unknown.
#[derive(Clone, Debug, Default)]
pub struct RecordingStart {
    pub start: MonoNs,
    /// `None`: the source knows no times of day.
    pub clock: Option<ClockAnchor>,
    /// `live`, `perf.data`, `intel-pt` or `perf-script`.
    pub source: String,
    pub kernel: String,
    pub arch: String,
    pub cpus: u32,
    pub hostname: String,
    pub machine_id: String,
    pub boot_id: String,
    /// The recorded program's name; more only at the user's request.
    pub command: String,
    pub min_stall_ns: u64,
    pub sample_period_ns: Option<u64>,
    pub budget: SizeBudget,
    /// `None`: everything is kept.
    pub retention: Option<Retention>,
}

/// What became of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub duration_ns: u64,
    pub threads: u64,
    /// Stalls in the file, the voluntary ones included.
    pub stalls: u64,
    /// Stalls folded into counts.
    pub folded: u64,
    pub file_bytes: u64,
    /// False when someone was reading at the end: `-wal` and `-shm` then belong to the recording.
    pub one_file: bool,
    pub losses: BTreeMap<String, u64>,
}

pub struct Recorder {
    path: PathBuf,
    connection: Connection,
    start: MonoNs,
    /// The last moment that was committed.
    last: MonoNs,
    /// When the size budget was last asked.
    decided: MonoNs,
    budget: SizeBudget,
    ids: Ids,
    texts: Texts,
    tree: StackTree,
    next_stall: u64,
    pending: Pending,
    written: Summary,
    /// The last reading of both clocks.
    clock: Option<ClockAnchor>,
    /// Of a bounded recording.
    window: Option<Window>,
    /// `None`: nobody asks for it.
    kept: Option<KeptStalls>,
}

/// The part of a bounded recording that is in the file.
struct Window {
    generations: Generations,
    held: Held,
    forgotten: Forgotten,
}

impl Recorder {
    /// Creates the recording, in place of an earlier one but never of any other file.
    pub fn create(path: &Path, start: &RecordingStart) -> Result<Recorder> {
        let path = new_file::create(path, start)?;
        let connection = connect(&path, start.retention.is_some())
            .map_err(|source| Error::from_sqlite(&path, Action::Write, source))?;
        let counted = start.retention.is_some();
        Ok(Recorder {
            path,
            connection,
            start: start.start,
            last: start.start,
            decided: start.start,
            budget: start.budget,
            ids: Ids::new(counted),
            texts: Texts::new(counted),
            tree: StackTree::new(counted),
            next_stall: 1,
            pending: Pending::default(),
            written: Summary::default(),
            clock: start.clock,
            window: start.retention.map(|retention| Window {
                generations: Generations::new(retention),
                held: Held::default(),
                forgotten: Forgotten::default(),
            }),
            kept: None,
        })
    }

    /// Where the recording is, symbolic links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the start to where the source began to count; before the first commit.
    pub fn start_at(&mut self, start: MonoNs) -> Result<()> {
        let moved = self.connection.execute(
            "UPDATE recording SET start_ns = ?1, last_ns = ?1",
            [i64::try_from(start.0).unwrap_or(i64::MAX)],
        );
        moved.map_err(|source| Error::from_sqlite(&self.path, Action::Write, source))?;
        (self.start, self.last, self.decided) = (start, start, start);
        Ok(())
    }

    /// Takes one event. Ids that were never defined are counted as a loss, not an error; an error comes from
    /// writing, which happens here only when more waits than memory should hold. The event is then not taken.
    pub fn take(&mut self, event: Event) -> Result<()> {
        if self.pending.is_full() {
            self.flush(self.last)?;
        }
        match event {
            Event::Clock(anchor) => {
                self.clock = Some(anchor);
                self.pending.clock.push(anchor);
            }
            Event::Thread(info) => self.thread(&info),
            Event::ThreadSeen { thread, from } => {
                if let Some(row) = self.ids.thread(thread) {
                    self.pending.threads.entry(row).or_default().start = Some(from);
                }
            }
            Event::ThreadEnd { thread, at } => {
                if let Some(row) = self.ids.thread(thread) {
                    self.pending.threads.entry(row).or_default().end = Some(at);
                    self.close_stalls_of(row);
                }
            }
            Event::Module { id, module } => self.module(id, module),
            Event::Frame { id, frame } => self.frame(id, frame),
            Event::Symbol { frame, lines } => self.symbol(frame, &lines),
            Event::Stack { id, frames, end } => self.stack(id, &frames, end),
            Event::Binding(binding) => self.binding(&binding),
            Event::Ledger(delta) => self.ledger(delta),
            Event::Latency(delta) => {
                if let Some(thread) = self.ids.thread(delta.thread) {
                    let bucket = delta.bucket.min(histogram::BUCKETS - 1);
                    let key = (thread, delta.metric.code(), bucket);
                    pending::add_cell(self.pending.latency.entry(key).or_default(), delta.cell);
                }
            }
            // Kept as the latencies that are told beside it.
            Event::OffCpu(_) => {}
            Event::Sample(delta) => self.sample(delta),
            Event::EventName { index, name } => {
                self.pending.events.insert(index, crate::intern::clipped(&name).to_owned());
            }
            Event::Stall(stall) => self.stall(*stall),
            Event::Interrupt(delta) => self.interrupt(delta),
            Event::Intrusion(delta) => self.intrusion(&delta),
            Event::KernelWork(work) => {
                if let Some(row) = self.ids.thread(work.thread) {
                    self.pending.works.push(KernelWork { thread: ThreadKey(row), ..work });
                }
            }
            Event::CrossCalls(delta) => self.cross_calls(&delta),
            Event::Throttled(throttled) => {
                let cgroup = self.text(&throttled.cgroup);
                self.pending.throttled.push((throttled, cgroup));
            }
            Event::CallResolution(ns) => {
                let known = &mut self.pending.call_resolution_ns;
                *known = Some(known.map_or(ns, |known| known.max(ns)));
            }
            Event::CallPath(path) => self.call_path(*path),
            Event::Counter { key, counter } => self.counter(key, counter),
            Event::CounterValue { key, at, value } => {
                if let Some(row) = self.ids.counter(key).filter(|_| value.is_finite()) {
                    self.pending.counter_values.push((row, at, value));
                }
            }
            Event::Loss { reason, count } => self.pending.lose(crate::intern::clipped(&reason), count),
            Event::Overhead { process_cpu_ns, probe_ns, probe_runs, table_bytes } => {
                let sum = &mut self.pending.overhead;
                sum.process_cpu_ns = sum.process_cpu_ns.saturating_add(process_cpu_ns);
                sum.probe_ns = sum.probe_ns.saturating_add(probe_ns);
                sum.probe_runs = sum.probe_runs.saturating_add(probe_runs);
                sum.table_bytes = sum.table_bytes.max(table_bytes);
            }
        }
        Ok(())
    }

    /// Writes all that was taken, as of `now`, in one transaction. After an error nothing of it is in the
    /// file, the recorder still holds it, and the next commit tries again. A bounded recording then deletes some of
    /// what it no longer keeps, in a transaction of its own; an error there leaves that for the next time.
    pub fn commit(&mut self, now: MonoNs) -> Result<()> {
        self.flush(now.max(self.last))
    }

    /// What a bounded recording has deleted since this was last asked: the source defines it again when it meets it.
    pub fn take_forgotten(&mut self) -> Forgotten {
        self.window.as_mut().map(|window| std::mem::take(&mut window.forgotten)).unwrap_or_default()
    }

    /// From now on the numbers of stalls are remembered for [`Self::take_kept_stalls`].
    pub fn remember_kept_stalls(&mut self) {
        self.kept = Some(KeptStalls::default());
    }

    /// Stalls that went into the file since this was last asked, by their numbers there.
    pub fn take_kept_stalls(&mut self) -> Vec<KeptStall> {
        self.kept.as_mut().map(KeptStalls::take).unwrap_or_default()
    }

    /// Commits the rest, marks the recording as ended and leaves one plain file. After an error the file
    /// holds what the last successful commit left, as a killed recording does.
    pub fn finish(mut self, end: MonoNs) -> Result<Summary> {
        self.last = end.max(self.last);
        self.settle();
        self.write(Some(self.last))?;
        let one_file = self.leave_one_file();
        let mut summary = std::mem::take(&mut self.written);
        summary.duration_ns = self.last.0.saturating_sub(self.start.0);
        summary.threads = u64::from(self.ids.threads.defined());
        summary.file_bytes = self.file_bytes();
        summary.one_file = one_file;
        Ok(summary)
    }

    fn thread(&mut self, info: &ThreadInfo) {
        let (row, _) = self.ids.threads.get_or_define(info.key);
        let names = ThreadRow {
            tid: info.tid,
            pid: info.pid,
            ns_tid: info.ns_tid,
            ns_pid: info.ns_pid,
            start_boot_ns: info.start_boot_ns,
            comm: self.text(&info.comm),
            process: self.text(&info.process),
            cgroup: self.optional_text(info.cgroup.as_deref()),
            kernel_thread: info.kernel_thread,
        };
        let texts = [Some(names.comm), Some(names.process), names.cgroup];
        let texts = texts.map(|text| text.and_then(NonZeroU32::new));
        if let Some(needs) = self.ids.threads.needs_mut(row) {
            texts.iter().flatten().for_each(|text| self.texts.uses.hold(text.get()));
            let before = std::mem::replace(needs, texts);
            before.iter().flatten().for_each(|text| self.texts.uses.release(text.get()));
        }
        self.pending.threads.entry(row).or_default().names = Some(names);
    }

    fn module(&mut self, id: ModuleId, module: Module) {
        let path = self.text(&module.path);
        let id = self.ids.modules.define(id);
        if let Some(needs) = self.ids.modules.needs_mut(id) {
            *needs = NonZeroU32::new(path);
            self.texts.uses.hold(path);
        }
        let build_id = module.build_id.map(|mut bytes| {
            bytes.truncate(MAX_BUILD_ID_BYTES);
            bytes
        });
        self.pending.modules.push(ModuleRow { id, path, build_id });
    }

    fn frame(&mut self, id: FrameId, frame: Frame) {
        let module = self.ids.module(frame.module);
        let id = self.ids.frames.define(id);
        if let (Some(needs), Some(module)) = (self.ids.frames.needs_mut(id), module) {
            needs.module = Some(module);
            self.ids.modules.hold(module);
        }
        self.pending.frames.push(FrameRow { id, frame, module });
    }

    /// Later lines replace earlier ones, unless only the earlier ones name a symbol.
    fn symbol(&mut self, frame: FrameId, lines: &[SymbolLine]) {
        let Some(row) = self.ids.frame(frame) else { return };
        let lines = &lines[..lines.len().min(MAX_LINES)];
        if lines.iter().any(|line| line.symbol.is_some()) {
            self.ids.named_frames.insert(row);
        } else if self.ids.named_frames.contains(&row) {
            return;
        }
        let lines: Vec<LineRow> = lines.iter().map(|line| self.line(line)).collect();
        self.hold_lines(row, &lines);
        self.pending.lines.insert(row, lines);
    }

    fn hold_lines(&mut self, frame: u32, lines: &[LineRow]) {
        let Some(needs) = self.ids.frames.needs_mut(frame) else { return };
        let texts: Box<[u32]> = lines.iter().flat_map(|line| [line.symbol, line.file]).flatten().collect();
        texts.iter().for_each(|&text| self.texts.uses.hold(text));
        let before = std::mem::replace(&mut needs.texts, texts);
        before.iter().for_each(|&text| self.texts.uses.release(text));
    }

    fn line(&mut self, line: &SymbolLine) -> LineRow {
        LineRow {
            symbol: self.optional_text(line.symbol.as_deref()),
            offset: line.offset,
            file: self.optional_text(line.file.as_deref()),
            line: line.line,
            inlined: line.inlined,
        }
    }

    /// A stack with an unknown frame is unknown itself: half a stack would be a wrong one.
    fn stack(&mut self, id: StackId, frames: &[FrameId], end: StackEnd) {
        let rows: Option<Vec<u32>> = frames.iter().map(|&frame| self.ids.frames.get(frame)).collect();
        let Some(rows) = rows else {
            self.ids.unknown += 1;
            let before = self.ids.stacks.remove(id);
            self.let_go(before);
            return;
        };
        let known = self.pending.nodes.len();
        let node = self.tree.intern(&rows, end, &mut self.pending.nodes);
        for fresh in &self.pending.nodes[known..] {
            self.ids.frames.hold(fresh.frame);
        }
        self.tree.uses.hold(node);
        let before = self.ids.stacks.define(id, node);
        self.let_go(before);
        self.pending.stacks.push(node);
    }

    /// An id means another stack than before: rows of this window may have the old one.
    fn let_go(&mut self, node: Option<u32>) {
        if let Some(node) = node {
            self.tree.uses.touch(node);
            self.tree.uses.release(node);
        }
    }

    fn binding(&mut self, binding: &Binding) {
        let Some(stack) = self.ids.stack(Some(binding.stack)) else { return };
        let row = BindingRow {
            depth: binding.depth,
            symbol: self.optional_text(binding.symbol.as_deref()),
            library: self.optional_text(binding.library.as_deref()),
        };
        let names: Vec<u32> = [row.symbol, row.library].into_iter().flatten().collect();
        names.iter().for_each(|&text| self.texts.uses.hold(text));
        let before = self.ids.bindings.insert(stack, names).unwrap_or_default();
        before.iter().for_each(|&text| self.texts.uses.release(text));
        self.pending.bindings.insert(stack, row);
    }

    fn ledger(&mut self, mut delta: LedgerDelta) {
        if let Some(thread) = self.ids.thread(delta.thread) {
            delta.thread.0 = thread;
            self.pending.add_ledger(delta);
        }
    }

    fn sample(&mut self, delta: SampleDelta) {
        let Some(thread) = self.ids.thread(delta.thread) else { return };
        let what = match delta.what {
            Weighted::State(state) => i64::from(state.code()),
            Weighted::Event(index) => FIRST_EVENT + i64::from(index),
        };
        let key = SampleKey {
            second: delta.second.0,
            thread,
            what,
            user: self.ids.stack(delta.user).unwrap_or(0),
            kernel: self.ids.stack(delta.kernel).unwrap_or(0),
            waker: delta.waker.map_or(0, |waker| self.sample_waker(&waker)),
        };
        self.pending.add_sample(key, delta.weight, delta.count);
    }

    fn sample_waker(&mut self, waker: &WakerStacks) -> u32 {
        let waker = SampleWaker {
            thread: self.ids.optional_thread(waker.thread),
            interrupt: waker.interrupt,
            user: self.ids.stack(waker.user),
            kernel: self.ids.stack(waker.kernel),
        };
        let (row, is_new) = self.ids.wakers.get_or_define(waker);
        if is_new {
            waker.thread.iter().for_each(|&thread| self.ids.threads.hold(thread));
            [waker.user, waker.kernel].iter().flatten().for_each(|&node| self.tree.uses.hold(node));
            self.pending.wakers.push((row, waker));
        }
        row
    }

    /// Rewrites the stall's ids to rows. An open stall gets its row at once, so that what is later known of
    /// it replaces it.
    fn stall(&mut self, mut stall: Stall) {
        let Some(thread) = self.ids.thread(stall.thread) else { return };
        if let Some(kept) = &mut self.kept {
            kept.expect(thread, stall.thread);
        }
        stall.thread.0 = thread;
        stall.user = self.ids.stack(stall.user).map(stack_id);
        stall.kernel = self.ids.stack(stall.kernel).map(stack_id);
        if let Some(waker) = &mut stall.waker {
            waker.user = self.ids.stack(waker.user).map(stack_id);
            waker.kernel = self.ids.stack(waker.kernel).map(stack_id);
        }
        let row = self.row_of_open_stall(&stall);
        self.pending.candidates.push(Candidate { stall, row });
    }

    fn row_of_open_stall(&mut self, stall: &Stall) -> Option<u64> {
        let key = (stall.thread.0, stall.kind);
        let known =
            self.ids.open_stalls.get(&key).filter(|(start, _)| *start == stall.start).map(|open| open.1);
        if stall.open {
            let row = known.unwrap_or_else(|| self.new_stall_row());
            let before = self.ids.open_stalls.insert(key, (stall.start, row));
            if let Some((_, before)) = before
                && before != row
            {
                self.close_stall(before);
            }
            return Some(row);
        }
        if known.is_some() {
            self.ids.open_stalls.remove(&key);
        }
        known
    }

    /// A thread that has ended waits for nothing.
    fn close_stalls_of(&mut self, thread: u32) {
        if self.window.is_none() {
            return;
        }
        for kind in [StallKind::OffCpu, StallKind::Fault] {
            if let Some((_, id)) = self.ids.open_stalls.remove(&(thread, kind)) {
                self.close_stall(id);
            }
        }
    }

    /// Nothing more will be heard of an open stall.
    fn close_stall(&mut self, id: u64) {
        let Some(window) = &mut self.window else { return };
        window.generations.close_stall(id);
        window.held.release(id, &mut self.ids, &mut self.tree, &mut self.texts);
    }

    fn new_stall_row(&mut self) -> u64 {
        self.written.stalls += 1;
        self.next_stall += 1;
        self.next_stall - 1
    }

    fn interrupt(&mut self, delta: InterruptDelta) {
        let key = InterruptKey {
            cpu: delta.cpu,
            kind: delta.kind,
            name: self.text(&delta.name),
            victim: self.ids.optional_thread(delta.victim).unwrap_or(0),
        };
        let cell = Cell { count: delta.count, total_ns: delta.total_ns, max_ns: delta.max_ns };
        pending::add_cell(self.pending.interrupts.entry(key).or_default(), cell);
    }

    fn intrusion(&mut self, delta: &IntrusionDelta) {
        let key = IntrusionKey {
            cpu: delta.cpu,
            kind: delta.kind,
            what: if delta.what.is_empty() { 0 } else { self.text(&delta.what) },
            mention: delta.thread.as_ref().map_or(0, |thread| self.mention(thread)),
            allowed: delta.allowed,
        };
        let cell = Cell { count: delta.count, total_ns: delta.total_ns, max_ns: delta.max_ns };
        pending::add_cell(self.pending.intrusions.entry(key).or_default(), cell);
    }

    fn cross_calls(&mut self, delta: &CrossCallDelta) {
        let key = (
            self.mention(&delta.caller),
            self.optional_text(delta.syscall.as_deref()).unwrap_or(0),
            self.optional_text(delta.function.as_deref()).unwrap_or(0),
        );
        let sum = self.pending.cross_calls.entry(key).or_default();
        *sum = sum.saturating_add(delta.count);
    }

    fn counter(&mut self, key: CounterKey, mut counter: Counter) {
        counter.thread = self.ids.optional_thread(counter.thread).map(ThreadKey);
        counter.name.truncate(crate::intern::clipped(&counter.name).len());
        let row = self.ids.counters.define(key);
        self.pending.counters.push((row, counter));
    }

    /// A path whose thread, parent or frame is unknown is unknown itself, and so is all that hangs below it.
    fn call_path(&mut self, path: CallPath) {
        let Some(thread) = self.ids.thread(path.thread) else { return };
        let parent = path.parent.map(|parent| self.ids.call_path(thread, parent));
        let frame = match path.frame {
            CallFrame::Outside(outside) => Some(CallFrame::Outside(outside)),
            CallFrame::Code(frame) => self.ids.frame(frame).map(CallFrame::Code),
        };
        let (Some(frame), false) = (frame, parent == Some(None)) else { return };
        let (id, _) = self.ids.call_paths.get_or_define((thread, path.id));
        let parent = parent.flatten();
        self.pending.call_paths.push(CallPathRow { id, thread, parent, frame, numbers: path.numbers });
    }

    fn flush(&mut self, now: MonoNs) -> Result<()> {
        self.last = now;
        self.settle();
        self.write(None)?;
        self.retain()
    }

    /// Ends a generation and, once in a few, deletes some of what a bounded recording no longer keeps.
    fn retain(&mut self) -> Result<()> {
        let Some(window) = &mut self.window else { return Ok(()) };
        let now = window.generations.next(self.last, self.next_stall);
        self.ids.set_generation(now);
        self.texts.uses.set_generation(now);
        self.tree.uses.set_generation(now);
        if !(now - 1).is_multiple_of(RETAIN_EVERY) {
            return Ok(());
        }
        let used_bytes = self.used_bytes();
        let Some(window) = &mut self.window else { return Ok(()) };
        let outdated = window.generations.outdated(self.last, used_bytes);
        // What has just gone is looked for with the next commit.
        let expired = window.generations.unused_since();
        let unused = Unused::find(expired, &mut self.ids, &mut self.tree, &mut self.texts);
        if outdated.is_none() && unused.is_empty() {
            return Ok(());
        }
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let done = transaction.and_then(|transaction| {
            let stalls = outdated.as_ref().map_or(Ok(0), |old| forget::delete_rows(&transaction, old))?;
            unused.delete(&transaction)?;
            transaction.commit().map(|()| stalls)
        });
        let stalls = done.map_err(|source| Error::from_sqlite(&self.path, Action::Write, source))?;
        self.written.stalls = self.written.stalls.saturating_sub(stalls);
        unused.forget(&mut self.ids, &mut self.tree, &mut self.texts, &mut window.forgotten);
        if let Some(outdated) = &outdated {
            window.generations.remove(outdated);
            self.start = outdated.start;
        }
        Ok(())
    }

    /// Decides which stalls are kept, and counts what was lost.
    fn settle(&mut self) {
        let unknown = std::mem::take(&mut self.ids.unknown);
        self.pending.lose(UNKNOWN_REFERENCE, unknown);
        if self.pending.candidates.is_empty() {
            return;
        }
        let allowance = self.budget.allowance(
            self.last.0.saturating_sub(self.start.0),
            self.last.0.saturating_sub(self.decided.0),
            self.used_bytes(),
        );
        self.decided = self.last;
        let candidates = std::mem::take(&mut self.pending.candidates);
        let mut division = budget::divide(candidates, allowance);
        division.kept.sort_by_key(|candidate| candidate.stall.start);
        for candidate in division.kept {
            let row = self.stall_row(candidate);
            self.note_open(&row);
            self.pending.stalls.push(row);
        }
        for stall in &division.folded {
            self.pending.fold(stall);
        }
        self.pending.lose(STALLS_FOLDED, division.folded.len() as u64);
        self.written.folded += division.folded.len() as u64;
    }

    fn stall_row(&mut self, candidate: Candidate) -> StallRow {
        let Candidate { stall, row } = candidate;
        let mut ran_instead = Vec::with_capacity(stall.ran_instead.len().min(MAX_RAN_INSTEAD));
        for ran in stall.ran_instead.iter().take(MAX_RAN_INSTEAD) {
            ran_instead.push((self.mention(&ran.thread), ran.ns));
        }
        let id = row.unwrap_or_else(|| self.new_stall_row());
        if let Some(kept) = &mut self.kept {
            kept.add(id, &stall);
        }
        StallRow {
            id,
            replaces: row.is_some(),
            comm: self.text(&stall.comm),
            syscall: self.optional_text(stall.syscall.as_deref()),
            waker: stall.waker.as_ref().and_then(|waker| self.stall_waker(waker)),
            lock_owner: stall.lock.as_ref().and_then(|lock| Some(self.mention(lock.owner.as_ref()?))),
            fault: stall.fault.as_ref().map(|fault| {
                let file = fault.file.as_deref().map(|file| self.text(file));
                (fault.clone(), file)
            }),
            file: stall.file.as_ref().map(|file| (self.text(&file.path), file.offset)),
            ran_instead,
            stall,
        }
    }

    /// What an open stall refers to stays, however long it lasts.
    fn note_open(&mut self, row: &StallRow) {
        let Some(window) = &mut self.window else { return };
        // Of one that was taken together with its thread's end nothing more will be heard.
        let known = self.ids.open_stalls.get(&(row.stall.thread.0, row.stall.kind));
        let goes_on = row.stall.open && known.is_some_and(|(_, id)| *id == row.id);
        if goes_on {
            window.held.hold(row, &mut self.ids, &mut self.tree, &mut self.texts);
        } else if row.replaces {
            window.held.release(row.id, &mut self.ids, &mut self.tree, &mut self.texts);
        }
        if row.replaces {
            window.generations.wrote_stall(row.id, goes_on);
        }
    }

    fn stall_waker(&mut self, waker: &Waker) -> Option<u32> {
        Some(self.mention(waker.thread.as_ref()?))
    }

    fn mention(&mut self, thread: &ThreadRef) -> u32 {
        let mention = MentionRow {
            thread: self.ids.optional_thread(thread.key),
            pid: thread.pid,
            tid: thread.tid,
            comm: self.text(&thread.comm),
        };
        let (row, is_new) = self.ids.mentions.get_or_define(mention);
        if is_new {
            mention.thread.iter().for_each(|&thread| self.ids.threads.hold(thread));
            self.texts.uses.hold(mention.comm);
            self.pending.mentions.push((row, mention));
        }
        row
    }

    fn text(&mut self, text: &str) -> u32 {
        let (id, new) = self.texts.intern(text);
        if let Some(content) = new {
            self.pending.texts.push((id, content));
        }
        id
    }

    fn optional_text(&mut self, text: Option<&str>) -> Option<u32> {
        Some(self.text(text?))
    }

    fn write(&mut self, end: Option<MonoNs>) -> Result<()> {
        // What interning of the last decisions could not resolve is lost in the same commit.
        let unknown = std::mem::take(&mut self.ids.unknown);
        self.pending.lose(UNKNOWN_REFERENCE, unknown);
        let progress = Progress { last: self.last, end, slice: self.slice() };
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let done = transaction.and_then(|transaction| {
            write::write(&transaction, &self.pending, progress)?;
            transaction.commit()
        });
        done.map_err(|source| Error::from_sqlite(&self.path, Action::Write, source))?;
        let pending = std::mem::take(&mut self.pending);
        if let Some(window) = &mut self.window {
            window.generations.wrote_second(progress.slice);
            let seconds =
                pending.ledger.keys().map(|key| key.0).chain(pending.samples.keys().map(|key| key.second));
            seconds.for_each(|second| window.generations.wrote_second(second));
        }
        for (reason, count) in pending.losses {
            let sum = self.written.losses.entry(reason).or_default();
            *sum = sum.saturating_add(count);
        }
        Ok(())
    }

    /// The second that sums of this commit are filed under: of a bounded recording, so that they can go with it.
    fn slice(&self) -> u32 {
        if self.window.is_none() {
            return 0;
        }
        let offset = self.clock.map_or(0, |clock| clock.epoch.0.wrapping_sub(clock.mono.0));
        let epoch_ns = self.last.0.saturating_sub(1).wrapping_add(offset);
        u32::try_from(epoch_ns / 1_000_000_000).unwrap_or(u32::MAX)
    }

    fn file_bytes(&self) -> u64 {
        self.pages("page_count").saturating_mul(self.pages("page_size"))
    }

    /// What of the file is not free to be written over.
    fn used_bytes(&self) -> u64 {
        let used = self.pages("page_count").saturating_sub(self.pages("freelist_count"));
        used.saturating_mul(self.pages("page_size"))
    }

    fn pages(&self, pragma: &str) -> u64 {
        let statement = self.connection.prepare_cached(&format!("PRAGMA {pragma}"));
        let value = statement.and_then(|mut statement| statement.query_row([], |row| row.get::<_, i64>(0)));
        value.ok().and_then(|value| u64::try_from(value).ok()).unwrap_or(0)
    }

    /// Moves the write-ahead log into the file and removes it. Not possible while someone reads.
    fn leave_one_file(&self) -> bool {
        let mode = self.connection.busy_timeout(Duration::from_millis(500)).and_then(|()| {
            self.connection.pragma_update_and_check(None, "journal_mode", "DELETE", |row| row.get(0))
        });
        mode.is_ok_and(|mode: String| mode == "delete")
    }
}

/// A build id is a hash: 20 bytes, rarely 32.
const MAX_BUILD_ID_BYTES: usize = 64;

/// Functions inlined at one frame.
pub(crate) const MAX_LINES: usize = 256;

/// Threads that had the CPU during one stall; the first ones had it longest.
const MAX_RAN_INSTEAD: usize = 64;

fn stack_id(node: u32) -> StackId {
    StackId(u64::from(node))
}

/// A bounded recording is written by a monitor, which must not wait for a busy disk: when its pages are written is left to the
/// kernel. What a killed process has written is safe with both, what a power cut leaves is not.
fn connect(path: &Path, bounded: bool) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.pragma_update(None, "synchronous", if bounded { "OFF" } else { "NORMAL" })?;
    connection.pragma_update(None, "cache_size", -2048)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Recording, StallFilter};
    use wallprof_model::{Frame, FrameKind, Module, StallReason, ThreadKey};

    /// A thread whose names fill about a page of the file.
    fn bulky_thread(key: u32) -> Event {
        let name = |of: &str| format!("{of}{key}").repeat(300);
        Event::Thread(ThreadInfo {
            key: ThreadKey(key),
            tid: key,
            pid: key,
            ns_tid: key,
            ns_pid: key,
            start_boot_ns: 0,
            comm: name("comm"),
            process: name("process"),
            cgroup: None,
            kernel_thread: false,
        })
    }

    /// SQLite refuses pages beyond its limit exactly as it does when the disk is full.
    fn limit_pages(recorder: &Recorder, more: i64) {
        let now = recorder.file_bytes() as i64 / 4096;
        recorder.connection.pragma_update(None, "max_page_count", now + more).unwrap();
    }

    #[test]
    fn a_full_disk_keeps_what_was_committed_and_loses_nothing_once_there_is_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let mut recorder = Recorder::create(&path, &RecordingStart::default()).unwrap();
        recorder.take(bulky_thread(1)).unwrap();
        recorder.commit(MonoNs(10)).unwrap();
        limit_pages(&recorder, 1);
        for key in 2..50 {
            recorder.take(bulky_thread(key)).unwrap();
        }
        for _ in 0..3 {
            let error = recorder.commit(MonoNs(20)).unwrap_err();
            assert!(matches!(error, Error::DiskFull { .. }), "{error}");
        }
        let read = Recording::open(&path).unwrap();
        assert_eq!((read.threads().unwrap().len(), read.info().unwrap().end), (1, MonoNs(10)));
        drop(read);

        limit_pages(&recorder, 10_000);
        recorder.commit(MonoNs(30)).unwrap();
        assert_eq!(recorder.finish(MonoNs(40)).unwrap().threads, 49);
        assert_eq!(Recording::open(&path).unwrap().threads().unwrap().len(), 49);
    }

    #[test]
    fn kept_stalls_have_the_numbers_they_have_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let mut recorder = Recorder::create(&path, &RecordingStart::default()).unwrap();
        recorder.remember_kept_stalls();
        recorder.take(bulky_thread(70)).unwrap();
        for start in [500, 300] {
            recorder.take(Event::Stall(Box::new(stall(70, start)))).unwrap();
        }
        recorder.commit(MonoNs(1_000)).unwrap();
        let kept = recorder.take_kept_stalls();
        assert!(recorder.take_kept_stalls().is_empty());
        recorder.finish(MonoNs(2_000)).unwrap();
        let all = StallFilter { include_voluntary: true, ..StallFilter::default() };
        let recording = Recording::open(&path).unwrap();
        let written: Vec<_> = recording
            .stalls(&all)
            .unwrap()
            .map(|stall| stall.map(|stall| (stall.id, stall.start)).unwrap())
            .collect();
        assert_eq!(kept.iter().map(|kept| (kept.id, kept.start)).collect::<Vec<_>>(), written);
        assert!(kept.len() == 2 && kept.iter().all(|kept| kept.thread == ThreadKey(70)));
    }

    fn stall(thread: u32, start: u64) -> Stall {
        Stall::new(ThreadKey(thread), StallReason::Preempted, MonoNs(start), 100)
    }

    #[test]
    fn a_disk_still_full_at_the_end_leaves_an_unfinished_recording() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let mut recorder = Recorder::create(&path, &RecordingStart::default()).unwrap();
        recorder.take(bulky_thread(1)).unwrap();
        recorder.commit(MonoNs(10)).unwrap();
        limit_pages(&recorder, 1);
        for key in 2..50 {
            recorder.take(bulky_thread(key)).unwrap();
        }
        assert!(matches!(recorder.finish(MonoNs(20)), Err(Error::DiskFull { .. })));
        let read = Recording::open(&path).unwrap();
        let info = read.info().unwrap();
        assert_eq!((info.ended_cleanly, info.end, read.threads().unwrap().len()), (false, MonoNs(10), 1));
    }

    #[test]
    fn memory_is_bounded_when_nobody_commits() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::create(&folder.path().join("a.db"), &RecordingStart::default()).unwrap();
        recorder
            .take(Event::Module { id: ModuleId(0), module: Module { path: "m".into(), build_id: None } })
            .unwrap();
        for id in 0..150_000 {
            let frame = Frame { kind: FrameKind::Native, module: Some(ModuleId(0)), address: u64::from(id) };
            recorder.take(Event::Frame { id: FrameId(id), frame }).unwrap();
            assert!(recorder.pending.frames.len() <= 65_536);
        }
        let written: i64 =
            recorder.connection.query_row("SELECT count(*) FROM frame", [], |row| row.get(0)).unwrap();
        assert_eq!(written, 2 * 65_536);
    }

    #[test]
    fn a_reader_at_the_end_leaves_the_log_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let mut recorder = Recorder::create(&path, &RecordingStart::default()).unwrap();
        recorder.commit(MonoNs(10)).unwrap();
        let reader = Recording::open(&path).unwrap();
        recorder.take(bulky_thread(1)).unwrap();
        assert!(!recorder.finish(MonoNs(20)).unwrap().one_file);
        assert_eq!(reader.info().unwrap().end, MonoNs(10), "a snapshot does not change");
        drop(reader);
        let info = Recording::open(&path).unwrap().info().unwrap();
        assert_eq!((info.end, info.ended_cleanly), (MonoNs(20), true));
    }
}
