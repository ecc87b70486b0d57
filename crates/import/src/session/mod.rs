// SPDX-License-Identifier: Apache-2.0
//! One import's state: records in the order of time become events of the model.
//!
//! `records` applies each kind of record, `samples` the samples, `printed` those of texts. `trace` has the
//! hardware trace. `steps` emits changes of a thread's timeline.

mod printed;
mod records;
mod samples;
mod steps;
mod trace;

use std::collections::{BTreeMap, HashMap, HashSet};

use wallprof_model::{ClockAnchor, ClockMap, EpochNs, Event, Loss, MonoNs, StackId, ThreadKey};
use wallprof_symbols::FileSearch;

use crate::events::{Events, SampleClock};
use crate::format::facts::Facts;
use crate::format::record::{RawRecord, Record, kind};
use crate::format::sample::sample_id;
use crate::format::tracing::Formats;
use crate::intel_pt::{IntelPt, Running, Waits};
use crate::machine::{KernelBase, Machine};
use crate::options::{ImportOptions, Outcome, RecordingFacts};
use crate::seconds::WokenBy;
use crate::stacks::Stacks;
use crate::threads::Threads;
use crate::timeline::Step;
use crate::unwinder::Unwinder;
use printed::PrintedEvents;

/// The clock of `perf record -k CLOCK_REALTIME`.
const CLOCK_REALTIME: i32 = 0;

/// The state of an import, and the pending events.
pub(crate) struct Session {
    options: ImportOptions,
    pub facts: Facts,
    pub formats: Formats,
    pub events: Events,
    settled: bool,
    clock: ClockMap,
    sample_clock: SampleClock,
    threads: Threads,
    files: Option<Stacks>,
    unwinder: Unwinder,
    kernel_base: Option<KernelBase>,
    kernel_asked: bool,
    system_wide: Option<bool>,
    switch_ins_seen: bool,
    start: Option<u64>,
    now: u64,
    samples: u64,
    idle_samples: u64,
    /// Set by records of a hardware trace, also of one that is not Intel PT.
    pt: Option<IntelPt>,
    is_traced: bool,
    /// The input is text.
    printed: Option<PrintedEvents>,
    waits: Waits,
    /// Running time by the trace, and the threads that have samples, too.
    running: Running,
    sampled: HashSet<ThreadKey>,
    /// The activity of threads is known in part.
    is_accounted: bool,
    /// Threads that had left their CPU when the trace ended: the time, and the stack.
    away: HashMap<ThreadKey, (u64, Option<StackId>)>,
    losses: BTreeMap<&'static str, u64>,
    pub broken_at: Option<u64>,
    /// Scratch buffer of one walk.
    addresses: Vec<u64>,
    /// Pending events, in order.
    pub out: Vec<Event>,
}

impl Session {
    pub(crate) fn new(options: ImportOptions) -> Self {
        Session {
            options,
            facts: Facts::default(),
            formats: Formats::default(),
            events: Events::default(),
            settled: false,
            clock: ClockMap::default(),
            sample_clock: SampleClock::default(),
            threads: Threads::default(),
            files: None,
            unwinder: Unwinder::default(),
            kernel_base: None,
            kernel_asked: false,
            system_wide: None,
            switch_ins_seen: false,
            start: None,
            now: 0,
            samples: 0,
            idle_samples: 0,
            pt: None,
            is_traced: false,
            printed: None,
            waits: Waits::default(),
            running: Running::default(),
            sampled: HashSet::new(),
            is_accounted: false,
            away: HashMap::new(),
            losses: BTreeMap::new(),
            broken_at: None,
            addresses: Vec::new(),
            out: Vec::new(),
        }
    }

    /// The time of a record; `None`: it is not from the kernel, or has no time.
    pub(crate) fn time_of(&self, raw: RawRecord<'_>) -> Option<u64> {
        let id = sample_id(self.events.layout()?, raw);
        // Records that perf synthesises for running processes have no time, or a meaningless one.
        id.time.filter(|time| *time != 0 && *time != u64::MAX)
    }

    pub(crate) fn options(&self) -> &ImportOptions {
        &self.options
    }

    pub(crate) fn now(&self) -> MonoNs {
        MonoNs(self.now)
    }

    /// The outcome, after the last event. `calls`: of a hardware trace.
    pub(crate) fn outcome(&mut self, calls: Option<u64>) -> Outcome {
        Outcome {
            end: self.now(),
            threads: self.threads.count(),
            samples: self.samples,
            idle_samples: self.idle_samples,
            calls,
            accounted: self.is_accounted || self.samples > 0,
            stacks: self.stacks().counts().clone(),
            losses: self.losses.clone(),
            broken_at: self.broken_at,
        }
    }

    /// Counts a sample of this thread that shows what it did.
    fn count_sample(&mut self, tid: Option<u32>) {
        let count = if tid == Some(0) { &mut self.idle_samples } else { &mut self.samples };
        *count += 1;
    }

    pub(crate) fn lose(&mut self, loss: Loss, count: u64) {
        if count > 0 {
            let sum = self.losses.entry(loss.name()).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    pub(crate) fn stacks(&mut self) -> &mut Stacks {
        let same_kernel = || Machine::this().is_recorded(&self.facts);
        self.files.get_or_insert_with(|| {
            Stacks::new(FileSearch {
                root: self.options.symfs.clone(),
                build_id_cache: self.options.build_id_cache.clone(),
                same_kernel: same_kernel(),
            })
        })
    }

    /// Facts for the start of the recording. `None` until a record has a time.
    pub(crate) fn recording(&self) -> Option<RecordingFacts> {
        let start = MonoNs(self.start?);
        let facts = &self.facts;
        let command = facts.command_line.iter().skip_while(|word| *word != "--").nth(1);
        let name = |path: &String| path.rsplit('/').next().unwrap_or_default().to_owned();
        Some(RecordingFacts {
            start,
            clock: self.clock.anchors().first().copied(),
            kernel: facts.kernel.clone(),
            arch: facts.arch.clone(),
            cpus: facts.cpus,
            hostname: facts.hostname.clone(),
            command: command.map(name).unwrap_or_default(),
            source: match &self.printed {
                Some(_) => "perf-script",
                None if self.is_traced => "intel-pt",
                None => "perf.data",
            },
        })
    }

    /// Takes a record, in the order of time.
    pub(crate) fn take(&mut self, time: Option<u64>, raw: RawRecord<'_>) {
        self.settle();
        if let Some(time) = time {
            self.start_at(time);
            self.now = self.now.max(time);
        }
        if raw.kind == kind::SAMPLE {
            self.take_sample(raw);
            return;
        }
        let Some(layout) = self.events.layout() else { return };
        let id = sample_id(layout, raw);
        match Record::read(raw) {
            Ok(Some(record)) => self.take_record(time, id, record),
            Ok(None) => {}
            Err(_) => self.lose(Loss::RecordsMalformed, 1),
        }
    }

    /// Ends all threads' timelines at the end of the recording.
    pub(crate) fn finish(&mut self) {
        let end = self.now;
        for (tid, mut known) in self.threads.take_all() {
            let mut steps = Vec::new();
            known.timeline.finish(end, self.switch_ins_seen, &mut steps);
            if let Some(&(left, stack)) = self.away.get(&known.key) {
                steps.iter_mut().for_each(|step| give_stack(step, left, stack));
            }
            self.emit(&known, tid, steps);
            if known.timeline.upto() < end {
                let at = MonoNs(known.timeline.upto());
                self.out.push(Event::ThreadEnd { thread: known.key, at });
            }
        }
        for wait in self.waits.take_all() {
            self.emit_wait(wait);
        }
        if self.is_traced {
            let running = std::mem::take(&mut self.running);
            let divided = running.finish(|thread| self.sampled.contains(&thread));
            self.out.extend(divided.into_iter().map(Event::Ledger));
        }
        if let Some(files) = &self.files {
            files.emit_missing_files(&mut self.out);
            let (stacks, frames) = files.refused();
            let (counts, mappings) = (files.processes.counts(), files.processes.lost_mappings());
            self.lose(Loss::StacksFull, stacks);
            self.lose(Loss::FramesFull, frames);
            self.lose(Loss::MappingsLost, mappings);
            self.lose(Loss::BinariesMissing, counts.missing);
            self.lose(Loss::BinariesDifferent, counts.different);
        }
        let losses = self.losses.iter();
        self.out
            .extend(losses.map(|(reason, count)| Event::Loss { reason: (*reason).into(), count: *count }));
    }

    fn settle(&mut self) {
        if !self.settled {
            self.settled = true;
            self.events.settle(&self.facts, &self.formats);
            let names = self.events.all().iter().filter_map(|event| {
                event.view.map(|index| Event::EventName { index, name: event.name.clone() })
            });
            self.out.extend(names);
        }
    }

    /// Events are settled again, because a stream may announce some later than others.
    pub(crate) fn unsettle(&mut self) {
        self.settled = false;
    }

    fn start_at(&mut self, time: u64) {
        if self.start.is_some() {
            return;
        }
        self.start = Some(time);
        let anchor = match (self.facts.clock, self.events.clockid()) {
            (Some(data), clockid) if clockid.is_none_or(|id| id.cast_unsigned() == data.clockid) => {
                Some(ClockAnchor { mono: MonoNs(data.clock_ns), epoch: EpochNs(data.epoch_ns) })
            }
            (_, Some(CLOCK_REALTIME)) => Some(ClockAnchor { mono: MonoNs(time), epoch: EpochNs(time) }),
            _ => None,
        };
        self.clock = ClockMap::new(anchor.into_iter().collect());
    }
}

/// Gives a wait that is open at the recording's end the stack with which the thread left its CPU, if it left
/// in that wait.
fn give_stack(step: &mut Step<WokenBy>, left: u64, stack: Option<StackId>) {
    if let Step::Waited(wait) = step
        && wait.open
        && wait.from <= left
    {
        wait.stacks.user = wait.stacks.user.or(stack);
    }
}
