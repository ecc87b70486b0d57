//! One import: records in the order of time → events of the model.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use wallprof_intel_pt::{Departure, TimeConv};
use wallprof_model::event::{LedgerDelta, SampleDelta, Weighted};
use wallprof_model::{
    ClockAnchor, ClockMap, EpochNs, Event, Loss, MonoNs, Reason, StackEnd, StackId, State, ThreadKey,
};
use wallprof_symbols::{FileSearch, MmapEvent};

use crate::chain::{Chain, chain_from_sample};
use crate::events::{Events, Role, SampleClock, SwitchFields, WakeFields};
use crate::format::facts::Facts;
use crate::format::record::{Mapping, RawRecord, Record, comm_from_bytes, kind, misc};
use crate::format::records::Passed;
use crate::format::sample::{Sample, SampleId, sample_id};
use crate::format::trace::TraceInfo;
use crate::format::tracing::Formats;
use crate::intel_pt::{IntelPt, LongWait, Prepared, Running, Traced, Waits};
use crate::machine::{KERNEL, KernelBase, Machine, kernel_symbols};
use crate::options::{ImportOptions, RecordingFacts};
use crate::seconds::{Teller, Who, WokenBy, few_parts};
use crate::stacks::Stacks;
use crate::threads::{Known, Threads};
use crate::timeline::{self, Leave, Spent, Step};
use crate::unwinder::Unwinder;

/// Bits of a tracepoint's `common_flags`: it fired in an interrupt, in a softirq, in an NMI.
const IN_HARD_INTERRUPT: u64 = 0x08 | 0x40;
const IN_SOFT_INTERRUPT: u64 = 0x10;
/// The clock `perf record -k CLOCK_REALTIME` uses.
const CLOCK_REALTIME: i32 = 0;
/// The one of compilers that write down what they make.
const CLOCK_MONOTONIC: i32 = 1;

/// What is known so far, and what has been said of it.
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
    /// Of a recording with a hardware trace, which may be of another kind.
    pt: Option<IntelPt>,
    is_traced: bool,
    waits: Waits,
    /// What running time went to by the trace, and the threads of which samples say it too.
    running: Running,
    sampled: HashSet<ThreadKey>,
    /// Something is known of what threads did.
    is_accounted: bool,
    /// The stacks of threads that had left their CPU when the trace ended, with when they left.
    away: HashMap<ThreadKey, (u64, Option<StackId>)>,
    losses: BTreeMap<&'static str, u64>,
    /// Room for one walk.
    addresses: Vec<u64>,
    /// What is to be told, in order.
    pub out: Vec<Event>,
}

/// The stacks of one sample.
#[derive(Default)]
struct Taken {
    stacks: timeline::Stacks,
    interrupt: Option<bool>,
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
            pt: None,
            is_traced: false,
            waits: Waits::default(),
            running: Running::default(),
            sampled: HashSet::new(),
            is_accounted: false,
            away: HashMap::new(),
            losses: BTreeMap::new(),
            addresses: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Where in time a record belongs; `None`: it is not of the kernel, or says nothing of when.
    pub(crate) fn time_of(&self, raw: RawRecord<'_>) -> Option<u64> {
        let id = sample_id(self.events.layout()?, raw);
        // What perf writes down of what it found has no time, or none that means anything.
        id.time.filter(|time| *time != 0 && *time != u64::MAX)
    }

    pub(crate) fn options(&self) -> &ImportOptions {
        &self.options
    }

    pub(crate) fn now(&self) -> MonoNs {
        MonoNs(self.now)
    }

    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    pub(crate) fn threads(&self) -> u64 {
        self.threads.count()
    }

    /// Gathers what is said of a hardware trace.
    pub(crate) fn intel_pt(&mut self) -> &mut IntelPt {
        self.pt.get_or_insert_default()
    }

    /// `filters`: the text of its address filters.
    pub(crate) fn describe_trace(&mut self, info: TraceInfo, filters: &[u8]) {
        self.is_traced = true;
        self.intel_pt().describe(info, filters);
    }

    pub(crate) fn set_time_conv(&mut self, time_conv: TimeConv) {
        if let Some(pt) = &mut self.pt {
            pt.set_time_conv(time_conv);
        }
    }

    pub(crate) fn trace_piece(&mut self, passed: Passed) {
        self.lose(Loss::TraceBytesMissing, passed.missing);
        match &mut self.pt {
            Some(pt) => pt.add_piece(passed),
            None => self.lose(Loss::HardwareTraceRecords, 1),
        }
    }

    /// All records were taken: what is needed to decode the trace.
    pub(crate) fn prepare_trace(&mut self) -> Option<Prepared> {
        let strangers = self.pt.as_ref()?.strangers();
        let start = self.start.unwrap_or_default();
        for tid in strangers {
            self.trace_start(Some(start), None, None, tid);
        }
        let pt = self.pt.take()?;
        if !self.is_traced {
            self.lose(Loss::HardwareTraceRecords, pt.pieces());
            return None;
        }
        self.lose(Loss::TracePartsLeftOut, pt.refused_pieces());
        self.lose(Loss::MappingsLost, pt.lost_mappings());
        let prepared = pt.prepared(|pmu| self.events.config_of(pmu), &self.options.trace);
        self.lose(Loss::TraceFiltersUnknown, prepared.unknown_filters);
        Some(prepared)
    }

    /// The waits that wait for their stacks.
    pub(crate) fn waits(&mut self) -> &mut Waits {
        &mut self.waits
    }

    /// A wait, with its stacks or without.
    pub(crate) fn tell_wait(&mut self, long: LongWait) {
        let LongWait { key, comm, cpu, wait } = long;
        let teller = Teller { clock: &self.clock, min_stall_ns: self.options.min_stall_ns };
        teller.tell(Who { key, comm: &comm, cpu }, Step::Waited(wait), &mut self.out);
    }

    /// What the thread's time between `from` and `to` went to, by the trace.
    pub(crate) fn traced_running(&mut self, thread: ThreadKey, (from, to): (u64, u64), traced: Traced) {
        if traced == Traced::default() {
            return;
        }
        self.is_accounted |= traced.user > 0 || traced.kernel > 0;
        let epoch = self.clock.epoch_from_mono(MonoNs(from)).0;
        let len = to.saturating_sub(from);
        let mut before = Traced::default();
        let mut passed = 0;
        for (second, ns) in few_parts(epoch, len) {
            passed += ns;
            let upto = traced.share(passed, len);
            self.running.ran(thread, second, upto.since(before));
            before = upto;
        }
        self.running.ran(thread, self.teller().second(to), traced.since(before));
    }

    /// Whether anything is known of what threads did.
    pub(crate) fn is_accounted(&self) -> bool {
        self.is_accounted || self.samples > 0
    }

    /// The thread left its CPU at `time`, with this stack, and the trace does not show it again.
    pub(crate) fn stays_away(&mut self, thread: ThreadKey, time: u64, stack: Option<StackId>) {
        self.away.insert(thread, (time, stack));
    }

    /// The trace goes on until `time`.
    pub(crate) fn traced_until(&mut self, time: u64) {
        if self.start.is_some() {
            self.now = self.now.max(time);
        }
    }

    pub(crate) fn lose(&mut self, loss: Loss, count: u64) {
        if count > 0 {
            let sum = self.losses.entry(loss.name()).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    pub(crate) fn losses(&self) -> &BTreeMap<&'static str, u64> {
        &self.losses
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

    /// What the recording is to begin with, once something with a time has come.
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
            source: if self.is_traced { "intel-pt" } else { "perf.data" },
        })
    }

    /// Takes a record whose time has come.
    pub(crate) fn take(&mut self, time: Option<u64>, raw: RawRecord<'_>) {
        self.settle();
        if let Some(time) = time {
            self.begin(time);
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

    /// Nothing more comes: what threads do goes on to the recording's end.
    pub(crate) fn finish(&mut self) {
        let end = self.now;
        for (tid, mut known) in self.threads.take_all() {
            let mut steps = Vec::new();
            known.timeline.finish(end, self.switch_ins_seen, &mut steps);
            if let Some(&(left, stack)) = self.away.get(&known.key) {
                steps.iter_mut().for_each(|step| give_stack(step, left, stack));
            }
            self.tell(&known, tid, steps);
            if known.timeline.upto() < end {
                let at = MonoNs(known.timeline.upto());
                self.out.push(Event::ThreadEnd { thread: known.key, at });
            }
        }
        for wait in self.waits.take_all() {
            self.tell_wait(wait);
        }
        if self.is_traced {
            let running = std::mem::take(&mut self.running);
            let divided = running.finish(|thread| self.sampled.contains(&thread));
            self.out.extend(divided.into_iter().map(Event::Ledger));
        }
        if let Some(files) = &self.files {
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

    /// Events are known anew: a stream may announce some later than others.
    pub(crate) fn unsettle(&mut self) {
        self.settled = false;
    }

    /// Records of perf itself, which take effect where they stand.
    pub(crate) fn id_index(&mut self, body: &[u8]) {
        if let Some(system_wide) = is_system_wide(body) {
            self.system_wide = Some(self.system_wide.unwrap_or(false) || system_wide);
        }
    }

    fn begin(&mut self, time: u64) {
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

    fn take_record(&mut self, time: Option<u64>, id: SampleId, record: Record<'_>) {
        match record {
            Record::Mapping(mapping) => self.mapping(time, mapping),
            Record::Comm { pid, tid, comm, exec } => {
                if exec {
                    self.stacks().processes.clear(pid);
                    if let Some(pt) = &mut self.pt {
                        pt.exec(pid, time.unwrap_or_default());
                    }
                }
                self.threads.name(pid, tid, comm_from_bytes(comm), &mut self.out);
                self.see(time, id.pid, tid);
            }
            Record::Fork { pid, parent_pid, tid, parent_tid, found } => {
                self.threads.fork(pid, tid, parent_pid, parent_tid);
                if !found && time.is_some() && pid != parent_pid {
                    self.stacks().processes.fork(parent_pid, pid);
                    if let Some(pt) = &mut self.pt {
                        pt.fork(parent_pid, pid, time.unwrap_or_default());
                    }
                }
                self.see(time, Some(pid), tid);
            }
            Record::Exit { pid, tid } => self.exit(time, pid, tid),
            Record::Switch { out, preempted, other } => self.switch(time, id, out, preempted, other),
            Record::TraceStart { pid, tid } => self.trace_start(time, id.cpu, Some(pid), tid),
            Record::Lost(count) => self.lose(Loss::PerfLostRecords, count),
            Record::LostSamples(count) => self.lose(Loss::PerfLostSamples, count),
            Record::Throttled => self.lose(Loss::PerfThrottled, 1),
            Record::Aux(filled) => match &mut self.pt {
                Some(pt) => pt.filled(id.cpu, id.tid, filled),
                None => self.lose(Loss::HardwareTraceRecords, 1),
            },
            Record::OtherTrace => self.lose(Loss::HardwareTraceRecords, 1),
            Record::DeferredCallchain => self.lose(Loss::DeferredCallchains, 1),
            Record::FinishedRound
            | Record::EventName { .. }
            | Record::BuildId { .. }
            | Record::IntelPt { .. } => {}
        }
    }

    fn mapping(&mut self, time: Option<u64>, mapping: Mapping<'_>) {
        if mapping.kernel || mapping.pid == u32::MAX {
            if mapping.path.starts_with(KERNEL) {
                self.kernel_base = Some(KernelBase(mapping.start));
            }
            return;
        }
        // `perf inject` adds build ids that no event asked for; they are whole ones.
        let is_one = |id: &&[u8]| self.events.has_build_ids() || matches!(id.len(), 16 | 20);
        let mapped = mapping.build_id.filter(is_one);
        let inode = if mapped.is_some() { None } else { mapping.inode };
        let build_id = mapped.or_else(|| self.facts.build_id(mapping.path)).map(<[u8]>::to_vec);
        let event = MmapEvent {
            pid: mapping.pid,
            start: mapping.start,
            len: mapping.len,
            file_offset: mapping.file_offset,
            path: OsStr::from_bytes(mapping.path),
            build_id: build_id.as_deref(),
            inode,
            executable: mapping.executable,
        };
        self.stacks().processes.mmap(&event);
        if self.pt.is_some() {
            let located = if event.executable { self.stacks().processes.locate(&event) } else { None };
            let has_its_clock = self.events.clockid() == Some(CLOCK_MONOTONIC);
            if let Some(pt) = &mut self.pt {
                let place = (event.start, event.len, event.file_offset);
                pt.map(event.pid, time.unwrap_or_default(), place, located, mapping.path);
                if event.executable {
                    pt.dump(event.pid, mapping.path, self.options.symfs.as_deref(), has_its_clock);
                }
            }
        }
    }

    /// An event of this thread that says nothing of what it does.
    fn see(&mut self, time: Option<u64>, pid: Option<u32>, tid: u32) {
        let Some(time) = time else { return };
        self.with_thread(pid, tid, time, time, |known, time, steps| known.timeline.seen(time, steps));
    }

    fn exit(&mut self, time: Option<u64>, pid: u32, tid: u32) {
        if let Some(time) = time {
            self.with_thread(Some(pid), tid, time, time, |known, time, steps| {
                known.timeline.end(time, steps)
            });
            if let Some(known) = self.threads.end(tid) {
                let at = MonoNs(known.timeline.upto());
                if let Some(pt) = &mut self.pt {
                    pt.end(known.key, time);
                }
                self.out.push(Event::ThreadEnd { thread: known.key, at });
            }
        }
        if pid == tid {
            self.stacks().processes.clear(pid);
        }
    }

    /// A record of a switch: both ways, without stacks.
    fn switch(
        &mut self,
        time: Option<u64>,
        id: SampleId,
        out: bool,
        preempted: bool,
        other: Option<(u32, u32)>,
    ) {
        let (Some(time), Some(tid)) = (time, id.tid) else { return };
        self.switch_ins_seen |= !out;
        let twice = self.events.switches_twice();
        let key = self.with_thread(id.pid, tid, time, time, |known, time, steps| {
            known.cpu = id.cpu.or(known.cpu);
            let told = twice && if out { known.timeline.is_waiting() } else { known.timeline.is_running() };
            let why = if preempted { Leave::Preempted } else { Leave::Blocked(Reason::Other) };
            match out {
                _ if told => {}
                true => known.timeline.switch_out(time, why, timeline::Stacks::default(), steps),
                false => known.timeline.switch_in(time, steps),
            }
        });
        let Some(cpu) = id.cpu.filter(|_| self.pt.is_some()) else { return };
        let departure = if preempted { Departure::Preempted } else { Departure::Blocked };
        match (out, key) {
            // Who comes next has the CPU from here on, a moment before its own record says so.
            (true, _) => {
                let (next_pid, next) = other.unwrap_or_default();
                self.trace_switch(cpu, time, Some(next_pid), next, departure);
            }
            (false, Some(_)) => self.trace_switch(cpu, time, id.pid, tid, Departure::Unknown),
            (false, None) => self.trace_switch(cpu, time, None, 0, Departure::Unknown),
        }
    }

    /// From `time` on `cpu` runs `tid`, or nobody.
    fn trace_switch(&mut self, cpu: u32, time: u64, pid: Option<u32>, tid: u32, departure: Departure) {
        let known = self.threads.meet(pid, tid, time, &mut self.out).map(|known| (known.key, known.pid));
        let Some(pt) = &mut self.pt else { return };
        match known {
            Some((key, pid)) => pt.switch_in(cpu, time, key, tid, pid, departure),
            None => pt.switch_out(cpu, time, departure),
        }
    }

    /// A trace that follows a thread begins: it runs now. Records say when not, if there are any.
    fn trace_start(&mut self, time: Option<u64>, cpu: Option<u32>, pid: Option<u32>, tid: u32) {
        let Some(time) = time else { return };
        let has_switches = self.pt.as_ref().is_some_and(IntelPt::has_switches);
        let key = self.with_thread(pid, tid, time, time, |known, time, steps| {
            known.cpu = cpu.or(known.cpu);
            if !has_switches {
                known.timeline.followed(time, steps);
            } else if !known.timeline.is_running() {
                known.timeline.switch_in(time, steps);
            }
        });
        let pid = self.threads.get(tid).map(|known| known.pid);
        if let (Some(pt), Some(key), Some(pid)) = (&mut self.pt, key, pid) {
            match cpu {
                Some(cpu) => pt.switch_in(cpu, time, key, tid, pid, Departure::Unknown),
                None => drop(pt.meet(key, tid, pid)),
            }
        }
    }

    fn take_sample(&mut self, raw: RawRecord<'_>) {
        let Some(layout) = self.events.layout() else { return };
        let id = sample_id(layout, raw).id;
        let Some((_, event)) = self.events.by_id(id) else {
            self.lose(Loss::SamplesOfUnknownEvents, 1);
            return;
        };
        let (attr, role, view) = (event.attr.clone(), event.role, event.view);
        let Ok(sample) = Sample::read(&attr, raw.body) else {
            self.lose(Loss::RecordsMalformed, 1);
            return;
        };
        let mode = raw.misc & misc::CPU_MODE;
        if matches!(mode, misc::GUEST_KERNEL | misc::GUEST_USER) {
            self.lose(Loss::GuestSamples, 1);
            return;
        }
        let time = sample.id.time.unwrap_or(self.now);
        self.begin(time);
        self.now = self.now.max(time);
        self.samples += 1;
        let taken = self.taken(&attr, role, mode, &sample);
        match role {
            Role::Clock => {
                let seat = sample.id.cpu.or(sample.id.tid).unwrap_or(0);
                let weight = self.sample_clock.weight_ns(&attr, sample.period, seat.into(), time);
                let state = if mode == misc::KERNEL { State::Kernel } else { State::User };
                self.running(time, &sample, weight, state, &taken);
            }
            Role::Switch(fields) => self.switched(time, &sample, fields, &taken),
            Role::Wake(fields) => self.woken(time, &sample, fields, &taken),
            Role::Other => {}
        }
        if let Some(view) = view {
            self.counted(time, &sample, view, &taken);
        }
    }

    /// A sample of the clock.
    fn running(&mut self, time: u64, sample: &Sample<'_>, weight: u64, state: State, taken: &Taken) {
        let from = time.saturating_sub(weight).max(self.start.unwrap_or(time));
        let Some(key) = self.with_sampled(sample, from, time, |known, time, steps| {
            known.timeline.sampled(time, weight, steps);
        }) else {
            return;
        };
        if self.pt.is_some() {
            self.sampled.insert(key);
        }
        self.weigh(key, time, Weighted::State(state), weight, taken);
        let second = self.teller().second(time);
        let mut delta = LedgerDelta::new(key, second);
        match state {
            State::Kernel => delta.kernel_samples = 1,
            _ => delta.user_samples = 1,
        }
        self.out.push(Event::Ledger(delta));
    }

    /// A sample of an event that has a view of its own.
    fn counted(&mut self, time: u64, sample: &Sample<'_>, view: u16, taken: &Taken) {
        let key =
            self.with_sampled(sample, time, time, |known, time, steps| known.timeline.seen(time, steps));
        if let Some(key) = key {
            self.weigh(key, time, Weighted::Event(view), sample.period.unwrap_or(1), taken);
        }
    }

    fn weigh(&mut self, thread: ThreadKey, time: u64, what: Weighted, weight: u64, taken: &Taken) {
        let second = self.teller().second(time);
        let timeline::Stacks { user, kernel } = taken.stacks;
        let sample = SampleDelta { thread, second, what, user, kernel, waker: None, weight, count: 1 };
        self.out.push(Event::Sample(sample));
    }

    /// `sched_switch`, in the context of the thread that leaves.
    fn switched(&mut self, time: u64, sample: &Sample<'_>, fields: SwitchFields, taken: &Taken) {
        let number = |field: crate::format::tracing::Field| field.integer(sample.raw);
        let (Some(prev), Some(state), Some(next)) =
            (number(fields.prev_pid), number(fields.prev_state), number(fields.next_pid))
        else {
            self.lose(Loss::RecordsMalformed, 1);
            return;
        };
        let (prev, next) = (sample.id.tid.unwrap_or(prev as u32), next as u32);
        for (tid, comm) in [(prev, fields.prev_comm), (next, fields.next_comm)] {
            if let Some(comm) = comm.and_then(|field| field.bytes(sample.raw)) {
                self.threads.suggest(tid, comm_from_bytes(comm), &mut self.out);
            }
        }
        if prev == 0 {
            self.system_wide.get_or_insert(true);
        }
        self.with_thread(sample.id.pid, prev, time, time, |known, time, steps| {
            known.timeline.switch_out(time, leave_from_state(state), taken.stacks, steps);
        });
        // The events of single threads say who comes next, but not when that one leaves.
        if self.system_wide == Some(true) {
            self.switch_ins_seen = true;
            self.with_thread(None, next, time, time, |known, time, steps| {
                known.cpu = sample.id.cpu.or(known.cpu);
                known.timeline.switch_in(time, steps);
            });
        }
        if let Some(cpu) = sample.id.cpu.filter(|_| self.pt.is_some()) {
            let departure = match leave_from_state(state) {
                Leave::Preempted => Departure::Preempted,
                Leave::Blocked(_) => Departure::Blocked,
            };
            self.trace_switch(cpu, time, None, next, departure);
        }
    }

    /// `sched_waking` and its kin, in the context of the waker.
    fn woken(&mut self, time: u64, sample: &Sample<'_>, fields: WakeFields, taken: &Taken) {
        let Some(tid) = fields.pid.integer(sample.raw) else {
            self.lose(Loss::RecordsMalformed, 1);
            return;
        };
        let tid = tid as u32;
        if self.system_wide != Some(true) && self.threads.get(tid).is_none() {
            return;
        }
        let flags = fields.common_flags.and_then(|field| field.integer(sample.raw)).unwrap_or(0);
        let waker = self.waker(sample, flags, taken);
        self.with_thread(None, tid, time, time, |known, time, steps| known.timeline.wake(time, waker, steps));
    }

    /// `None` where it is not known whether an interrupt did it.
    fn waker(&self, sample: &Sample<'_>, flags: u64, taken: &Taken) -> Option<WokenBy> {
        let tid = sample.id.tid?;
        let interrupt = match flags {
            _ if tid == 0 || flags & IN_HARD_INTERRUPT != 0 => true,
            // Deferred work on the way out of an interrupt, or work that a task does itself.
            _ if flags & IN_SOFT_INTERRUPT != 0 => taken.interrupt?,
            _ => false,
        };
        let kernel = taken.stacks.kernel;
        Some(match interrupt {
            true => WokenBy { thread: None, stacks: timeline::Stacks { user: None, kernel } },
            false => {
                WokenBy { thread: Some(self.threads.reference(sample.id.pid, tid)), stacks: taken.stacks }
            }
        })
    }

    fn taken(
        &mut self,
        attr: &crate::format::attr::Attr,
        role: Role,
        mode: u16,
        sample: &Sample<'_>,
    ) -> Taken {
        let Chain { kernel, user, full } = chain_from_sample(attr, mode, sample);
        let pid = sample.id.pid.unwrap_or(u32::MAX);
        let of_tracepoint = attr.kind == crate::format::attr::TYPE_TRACEPOINT;
        if !kernel.is_empty() {
            self.find_kernel_symbols();
        }
        let wants_interrupt = matches!(role, Role::Wake(_));
        let mut addresses = std::mem::take(&mut self.addresses);
        let mut out = std::mem::take(&mut self.out);
        let _ = self.stacks();
        let mut taken = Taken::default();
        if let Some(files) = &mut self.files {
            let user = match &sample.user {
                Some(state) if !state.stack.is_empty() => {
                    let end = self.unwinder.walk(&files.processes, pid, state, &mut addresses);
                    files.user(pid, &addresses, end, &mut out)
                }
                _ => {
                    let end = if full { StackEnd::Truncated } else { StackEnd::FramePointerEnd };
                    files.user(pid, &user, end, &mut out)
                }
            };
            let kernel_stack = files.kernel(&kernel, of_tracepoint, &mut out);
            taken.stacks = timeline::Stacks { user, kernel: kernel_stack };
            taken.interrupt = if wants_interrupt { files.is_interrupt(&kernel) } else { None };
        }
        (self.addresses, self.out) = (addresses, out);
        taken
    }

    /// Once, when the first kernel stack comes: by then a stream has said which kernel it is.
    pub(crate) fn find_kernel_symbols(&mut self) {
        if std::mem::replace(&mut self.kernel_asked, true) {
            return;
        }
        let search = FileSearch {
            root: None,
            build_id_cache: self.options.build_id_cache.clone(),
            same_kernel: Machine::this().is_recorded(&self.facts),
        };
        if let Some(symbols) = kernel_symbols(&self.facts, &search, self.kernel_base) {
            self.stacks().set_kernel_symbols(symbols);
        }
    }

    fn with_sampled(
        &mut self,
        sample: &Sample<'_>,
        from: u64,
        time: u64,
        change: impl FnOnce(&mut Known, u64, &mut Vec<Step<WokenBy>>),
    ) -> Option<ThreadKey> {
        let tid = sample.id.tid.unwrap_or(u32::MAX);
        let key = self.with_thread(sample.id.pid, tid, from, time, |known, time, steps| {
            known.cpu = sample.id.cpu.or(known.cpu);
            change(known, time, steps);
        });
        if key.is_none() && tid != 0 {
            self.lose(Loss::SamplesOfEndedThreads, 1);
        }
        key
    }

    /// Changes a thread's timeline and tells what that says. A thread first met is known from `from` on.
    fn with_thread(
        &mut self,
        pid: Option<u32>,
        tid: u32,
        from: u64,
        time: u64,
        change: impl FnOnce(&mut Known, u64, &mut Vec<Step<WokenBy>>),
    ) -> Option<ThreadKey> {
        let mut steps = Vec::new();
        let known = self.threads.meet(pid, tid, from, &mut self.out)?;
        change(known, time, &mut steps);
        let (key, cpu) = (known.key, known.cpu);
        self.tell_steps(key, tid, cpu, steps);
        Some(key)
    }

    fn tell(&mut self, known: &Known, tid: u32, steps: Vec<Step<WokenBy>>) {
        self.tell_steps(known.key, tid, known.cpu, steps);
    }

    /// With a trace, long waits wait for their stacks.
    fn tell_steps(&mut self, key: ThreadKey, tid: u32, cpu: Option<u32>, steps: Vec<Step<WokenBy>>) {
        let min_stall_ns = self.options.min_stall_ns;
        let is_known = |step: &Step<WokenBy>| !matches!(step, Step::Spent { what: Spent::Unknown, .. });
        self.is_accounted |= steps.iter().any(is_known);
        let first = self.out.len();
        let who = Who { key, comm: self.threads.comm(tid), cpu };
        let teller = Teller { clock: &self.clock, min_stall_ns };
        for step in steps {
            let step = match step {
                Step::Waited(wait) if self.pt.is_some() && wait.to - wait.from >= min_stall_ns => {
                    let Some(wait) = self.waits.keep(key, who.comm, cpu, wait) else { continue };
                    Step::Waited(wait)
                }
                step => step,
            };
            teller.tell(who, step, &mut self.out);
        }
        if self.is_traced || self.pt.is_some() {
            let emitted = self.out[first..].iter();
            let buckets = emitted.filter_map(|event| match event {
                Event::Ledger(delta) if delta.wall_ns > 0 => Some(delta),
                _ => None,
            });
            buckets.for_each(|delta| self.running.lived(delta));
        }
    }

    fn teller(&self) -> Teller<'_> {
        Teller { clock: &self.clock, min_stall_ns: self.options.min_stall_ns }
    }
}

/// A wait that is under way when the recording ends has the stack with which the thread left, if it is that one's.
fn give_stack(step: &mut Step<WokenBy>, left: u64, stack: Option<StackId>) {
    if let Step::Waited(wait) = step
        && wait.open
        && wait.from <= left
    {
        wait.stacks.user = wait.stacks.user.or(stack);
    }
}

/// `prev_state` is a bit mask; bits above the lowest eight say that the thread was preempted, or how it may be
/// woken.
fn leave_from_state(state: u64) -> Leave {
    const STOPPED_OR_TRACED: u64 = 0x04 | 0x08;
    match state & 0xff {
        0 => Leave::Preempted,
        state if state & STOPPED_OR_TRACED != 0 => Leave::Blocked(Reason::Stopped),
        _ => Leave::Blocked(Reason::Other),
    }
}

/// Whether events were opened for CPUs rather than for threads.
fn is_system_wide(body: &[u8]) -> Option<bool> {
    let mut bytes = crate::format::bytes::Bytes::new(body);
    let count = bytes.u64()?;
    let words: Vec<u64> = bytes.u64s(count.checked_mul(4)?)?.collect();
    // Entries are id, index, CPU and thread.
    Some(words.chunks_exact(4).any(|entry| entry[3] as u32 == u32::MAX && entry[2] as u32 != u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_bit_masks() {
        assert_eq!([0, 0x100, 0x400].map(leave_from_state), [Leave::Preempted; 3]);
        let blocked = Leave::Blocked(Reason::Other);
        assert_eq!([1, 2, 0x82, 0x102].map(leave_from_state), [blocked; 4]);
        assert_eq!([4, 8].map(leave_from_state), [Leave::Blocked(Reason::Stopped); 2]);
    }

    #[test]
    fn events_of_cpus_are_of_everything() {
        let index = |entries: &[[u64; 4]]| {
            let words = std::iter::once(entries.len() as u64).chain(entries.concat());
            words.flat_map(u64::to_le_bytes).collect::<Vec<_>>()
        };
        let nobody = u64::from(u32::MAX);
        assert_eq!(is_system_wide(&index(&[[5, 0, 0, 77], [6, 1, 1, nobody]])), Some(true));
        assert_eq!(is_system_wide(&index(&[[5, 0, 0, 77]])), Some(false));
        assert_eq!(is_system_wide(&index(&[[5, 0, 0, 77]])[..20]), None);
    }
}
