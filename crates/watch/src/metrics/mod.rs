// SPDX-License-Identifier: Apache-2.0
//! The metrics so far, by process and thread name: events in, counters and histograms out.
//!
//! Owns the meaning of every metric. Pure: it reads no clock and writes no text. Only involuntary stalls are
//! counted as stalls. The off-CPU histogram has waits of every reason, from switch-out to switch-in.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use wallprof_model::counter::{Counter, CounterKey};
use wallprof_model::event::{LatencyDelta, LedgerDelta, OffCpuDelta, Stall};
use wallprof_model::histogram::Cell;
use wallprof_model::profile::KeptStall;
use wallprof_model::{
    ClockAnchor, EpochNs, EpochSecond, Event, IntrusionDelta, Loss, Metric, MonoNs, Span, SpanBudgets,
    SpanDelta, StallKind, StallReason, ThreadInfo, ThreadKey,
};

use crate::durations::{Durations, Exemplar, Shown};
use crate::idleness::{Relevance, is_lateness};
use crate::open::OpenStalls;
use crate::series::{Container, Family, Labels, OTHERS, Owner, SeriesPool};
use crate::severity::{BELOW, Severities};

/// Limit on the reasons of losses that are counted by name; there are some thirty.
const MAX_LOSS_REASONS: usize = 64;
/// The loss of a stall that is counted but not in the flight recording, whose size is bounded.
const FOLDED: &str = Loss::StallsFolded.name();
/// Limit on the names of intruders on guarded CPUs; an IPI may come from any thread.
const MAX_INTRUDERS: usize = 1024;
/// Counters of dropped packets begin so; their local address follows.
const UDP_DROPS: &str = "udp.drops ";
/// Limit on counters of dropped packets. Those of ended processes make place for others.
const MAX_DROP_COUNTERS: usize = 4096;
/// Limit on counted stalls without an id yet.
const MAX_WITHOUT_ID: usize = 4096;
/// Flushes after the end of a thread in which its last events may still arrive.
const LINGER: u64 = 3;

/// The CPU time of wallprof itself since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SelfCost {
    pub process_cpu_ns: u64,
    /// Of the BPF programs, estimated: one run in 61 is timed.
    pub probe_ns: u64,
    /// That threads waited for a CPU on which a thread of wallprof ran.
    pub behind_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct StallSum {
    pub count: u64,
    pub total_ns: u64,
}

/// The names of a thread; kept a little longer than the thread lives.
struct NamedThread {
    owner: Arc<Owner>,
    tid: u32,
    relevance: Relevance,
    /// The flush after which it ended.
    ended: Option<u64>,
}

/// A counted stall; the recording gives it an id when it is written.
struct StallWithoutId {
    thread: ThreadKey,
    kind: StallKind,
    start: MonoNs,
    labels: Labels,
    /// How long the thread waited for a CPU, ns; 0 where that was not why it stalled.
    run_queue_ns: u64,
}

/// A counter of packets that were dropped at the sockets of a process with one address.
struct DropCounter {
    /// One of the process.
    thread: ThreadKey,
    address: Arc<str>,
    last: Option<f64>,
}

pub struct Metrics {
    severities: Severities,
    /// Nobody chose the threads: idle ones raise no severity.
    watches_all: bool,
    labels_containers: bool,
    names: HashMap<String, Arc<str>>,
    threads: HashMap<ThreadKey, NamedThread>,
    without_id: VecDeque<StallWithoutId>,
    open: OpenStalls,
    pub(crate) pool: SeriesPool,
    pub(crate) stalls: Family<StallSum>,
    pub(crate) off_cpu: Family<Durations>,
    pub(crate) run_queue: Family<Durations>,
    pub(crate) fault: Family<Durations>,
    pub(crate) spans: Family<Durations>,
    pub(crate) over_budget: Family<u64>,
    budgets: SpanBudgets,
    pub(crate) on_cpu: Family<u64>,
    pub(crate) longest: Family<u64>,
    pub(crate) udp_drops: Family<u64>,
    /// The counters of dropped packets.
    drop_counters: HashMap<CounterKey, DropCounter>,
    pub(crate) intrusions: BTreeMap<(u32, &'static str, String), u64>,
    pub(crate) lost: BTreeMap<String, u64>,
    pub(crate) cost: SelfCost,
    pub(crate) cost_share: f64,
    pub(crate) armed: bool,
    pub(crate) sample_hz: f64,
    pub(crate) stack_threshold_ns: u64,
    pub(crate) snapshots: u64,
    /// How often seconds were flushed.
    flushes: u64,
    clock: Option<ClockAnchor>,
    /// Counts changes: texts of the same generation are equal.
    generation: u64,
}

impl Metrics {
    /// `max_series` bounds all families together.
    pub fn new(severities: Severities, max_series: usize) -> Self {
        let names = severities.names().map(|name| (name.to_string(), Arc::from(name))).collect();
        Metrics {
            severities,
            watches_all: false,
            labels_containers: false,
            names,
            threads: HashMap::new(),
            without_id: VecDeque::new(),
            open: OpenStalls::default(),
            pool: SeriesPool::new(max_series),
            stalls: Family::default(),
            off_cpu: Family::default(),
            run_queue: Family::default(),
            fault: Family::default(),
            spans: Family::default(),
            over_budget: Family::default(),
            budgets: SpanBudgets::new(),
            on_cpu: Family::default(),
            longest: Family::default(),
            udp_drops: Family::default(),
            drop_counters: HashMap::new(),
            intrusions: BTreeMap::new(),
            lost: BTreeMap::new(),
            cost: SelfCost::default(),
            cost_share: 0.0,
            armed: false,
            sample_hz: 0.0,
            stack_threshold_ns: 0,
            snapshots: 0,
            flushes: 0,
            clock: None,
            generation: 0,
        }
    }

    /// Metrics of all threads of the machine, if `all`: no user chose them. Stalls of kernel threads, of
    /// wallprof itself, of processes in their first second and of idle threads raise no severity then.
    pub fn of_all_threads(self, all: bool) -> Self {
        Metrics { watches_all: all, ..self }
    }

    /// Threads of different containers have different series, if `labels`.
    pub fn with_containers(self, labels: bool) -> Self {
        Metrics { labels_containers: labels, ..self }
    }

    /// Spans are counted that last longer than the budget of their kind.
    pub fn with_budgets(self, budgets: SpanBudgets) -> Self {
        Metrics { budgets, ..self }
    }

    /// Whether a stall may raise a severity above `info`.
    pub fn raises_severity(&self, stall: &Stall) -> bool {
        let matters = || {
            let named = self.threads.get(&stall.thread);
            named.is_some_and(|named| named.relevance.matters(stall, self.second_at(stall.end)))
        };
        is_lateness(stall) && (!self.watches_all || matters())
    }

    /// Sorts later stalls by these severities.
    pub fn set_severities(&mut self, severities: Severities) {
        self.names = severities.names().map(|name| (name.to_string(), Arc::from(name))).collect();
        self.severities = severities;
    }

    /// Counts an event. Events without a metric change nothing.
    pub fn take(&mut self, event: &Event) {
        match event {
            Event::Thread(info) => self.thread(info),
            Event::ThreadEnd { thread, .. } => self.thread_ended(*thread),
            Event::Ledger(delta) => self.ledger(delta),
            Event::Clock(anchor) => self.clock = Some(*anchor),
            Event::Latency(delta) => self.latency(delta),
            Event::OffCpu(delta) => self.off_cpu(delta),
            Event::Stall(stall) => self.stall(stall),
            Event::Spans(delta) => self.spans(delta),
            Event::Span(span) => self.span(span),
            Event::Intrusion(delta) if !delta.allowed => self.intrusion(delta),
            Event::Counter { key, counter } => self.drop_counter(*key, counter),
            Event::CounterValue { key, value, .. } => self.drops(*key, *value),
            Event::Loss { reason, count } => self.count_loss(reason, *count),
            Event::Overhead { process_cpu_ns, probe_ns, behind_ns, .. } => {
                self.cost.process_cpu_ns += process_cpu_ns;
                self.cost.probe_ns += probe_ns;
                self.cost.behind_ns += behind_ns;
            }
            _ => {}
        }
    }

    /// Marks `seconds` further seconds as complete: all of their events have been taken.
    pub fn end_seconds(&mut self, seconds: u64) {
        self.generation += 1;
        self.flushes += 1;
        let flushes = self.flushes;
        self.threads.retain(|_, named| named.ended.is_none_or(|ended| ended + LINGER > flushes));
        if self.drop_counters.len() >= MAX_DROP_COUNTERS {
            self.drop_counters.retain(|_, counter| self.threads.contains_key(&counter.thread));
        }
        if self.pool.pass(seconds) {
            let pool = &mut self.pool;
            self.stalls.evict_stale(pool);
            self.off_cpu.evict_stale(pool);
            self.run_queue.evict_stale(pool);
            self.fault.evict_stale(pool);
            self.spans.evict_stale(pool);
            self.over_budget.evict_stale(pool);
            self.on_cpu.evict_stale(pool);
            self.udp_drops.evict_stale(pool);
        }
    }

    /// Counts changes: texts of the same generation are equal.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Makes exemplars of the counted stalls that are in the recording. A counted stall that is not is a
    /// loss: the recording has only its sum. `epoch` converts a timestamp to the time of day.
    pub fn add_exemplars(&mut self, kept: &[KeptStall], epoch: impl Fn(MonoNs) -> EpochNs) {
        let ids: HashMap<_, _> =
            kept.iter().map(|kept| ((kept.thread, kept.kind, kept.start), kept)).collect();
        for stall in std::mem::take(&mut self.without_id) {
            let Some(kept) = ids.get(&(stall.thread, stall.kind, stall.start)) else {
                self.count_loss(FOLDED, 1);
                continue;
            };
            let ns = kept.end.0.saturating_sub(kept.start.0);
            let of = Shown::Stall(kept.id, kept.trace);
            self.add_exemplar(&stall, Exemplar { of, ns, at: epoch(kept.end) });
        }
    }

    /// CPU time of a process that worked for the watcher.
    pub fn add_cpu_time(&mut self, ns: u64) {
        self.cost.process_cpu_ns += ns;
    }

    pub fn count_loss(&mut self, reason: &str, count: u64) {
        let known = self.lost.contains_key(reason) || self.lost.len() < MAX_LOSS_REASONS;
        let reason = if known { reason } else { "other" };
        *self.lost.entry(reason.to_string()).or_default() += count;
    }

    /// While disarmed, nothing is measured and no stall is open.
    pub fn set_armed(&mut self, armed: bool) {
        self.armed = armed;
        self.generation += 1;
        if !armed {
            self.open.clear();
        }
    }

    /// Sets the sampling rate of stacks on each CPU, and the shortest wait that gets a stack.
    pub fn set_pace(&mut self, sample_hz: f64, stack_threshold_ns: u64) {
        (self.sample_hz, self.stack_threshold_ns) = (sample_hz, stack_threshold_ns);
    }

    /// Sets the recent cost of watching, as a share of one CPU.
    pub fn set_cost(&mut self, share: f64) {
        self.cost_share = share;
    }

    pub fn count_snapshot(&mut self) {
        self.snapshots += 1;
        self.generation += 1;
    }

    /// Stalls counted under each severity, all series together.
    pub fn stalls_by_severity(&self) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for (labels, sum) in self.stalls.iter() {
            if let Some(severity) = &labels.severity {
                *sums.entry(severity.to_string()).or_default() += sum.count;
            }
        }
        sums
    }

    /// Starts to measure the longest stalls anew.
    pub(crate) fn restart_longest(&mut self) {
        self.longest.clear(&mut self.pool);
    }

    /// Counts the open stalls as they are at `now` among the longest ones.
    pub(crate) fn note_open(&mut self, now: MonoNs) {
        let open: Vec<_> = self.open.lateness_at(now).map(|(labels, ns)| (labels.clone(), ns)).collect();
        for (labels, ns) in open {
            self.note_longest(labels, ns);
        }
    }

    fn note_longest(&mut self, labels: Labels, ns: u64) {
        let longest = self.longest.at(labels, &mut self.pool);
        *longest = (*longest).max(ns);
    }

    fn thread(&mut self, info: &ThreadInfo) {
        let container = self.labels_containers.then(|| Container::of(info)).flatten();
        let owner = Owner { process: info.process.clone(), thread: info.comm.clone(), container };
        match self.threads.get_mut(&info.key) {
            Some(named) => {
                named.tid = info.tid;
                if *named.owner != owner {
                    named.owner = Arc::new(owner);
                    named.relevance.rename(info);
                }
            }
            None => {
                let relevance = Relevance::of(info);
                self.threads.insert(
                    info.key,
                    NamedThread { owner: Arc::new(owner), tid: info.tid, relevance, ended: None },
                );
            }
        }
    }

    fn thread_ended(&mut self, thread: ThreadKey) {
        self.open.thread_ended(thread);
        if let Some(named) = self.threads.get_mut(&thread) {
            named.ended = Some(self.flushes);
        }
    }

    fn labels(&self, thread: ThreadKey) -> Labels {
        self.threads
            .get(&thread)
            .map_or_else(|| Labels::of(&self.pool.others()), |named| Labels::of(&named.owner))
    }

    fn ledger(&mut self, delta: &LedgerDelta) {
        if let Some(named) = self.threads.get_mut(&delta.thread) {
            named.relevance.add(delta);
        }
        if delta.on_cpu_ns > 0 {
            self.open.ran(delta.thread, delta.second);
            *self.on_cpu.at(self.labels(delta.thread), &mut self.pool) += delta.on_cpu_ns;
        }
    }

    fn latency(&mut self, delta: &LatencyDelta) {
        let labels = self.labels(delta.thread);
        let durations = match delta.metric {
            Metric::RunQueue => self.run_queue.at(labels, &mut self.pool),
            Metric::Fault => self.fault.at(labels, &mut self.pool),
            Metric::OffCpu | Metric::Blocked(_) => return,
        };
        durations.add(delta.bucket, delta.cell);
    }

    fn off_cpu(&mut self, delta: &OffCpuDelta) {
        let labels = self.labels(delta.thread).reason(delta.reason.name());
        self.off_cpu.at(labels, &mut self.pool).add(delta.bucket, delta.cell);
    }

    /// Spans are counted by process and kind: threads of a pool share the work.
    fn span_labels(&self, thread: ThreadKey, kind: &Arc<str>) -> Labels {
        let of_thread = self.threads.get(&thread).map(|named| &*named.owner);
        let owner = Owner {
            process: of_thread.map_or(OTHERS, |owner| &owner.process).into(),
            thread: String::new(),
            container: of_thread.and_then(|owner| owner.container.clone()),
        };
        Labels::of(&Arc::new(owner)).kind(Arc::clone(kind))
    }

    fn spans(&mut self, delta: &SpanDelta) {
        let labels = self.span_labels(delta.thread, &delta.kind);
        let cell = Cell { count: delta.count, total_ns: delta.states.total_ns(), max_ns: delta.max_ns };
        self.spans.at(labels, &mut self.pool).add(delta.bucket, cell);
    }

    fn span(&mut self, span: &Span) {
        let labels = self.span_labels(span.thread, &span.kind);
        let tid = self.threads.get(&span.thread).map(|named| named.tid);
        let at = self.epoch_at(span.end);
        if span.is_over(&self.budgets) {
            *self.over_budget.at(labels.clone(), &mut self.pool) += 1;
        }
        if let (Some(durations), Some(tid)) = (self.spans.get_mut(&labels), tid) {
            durations.set_exemplar(Exemplar { of: Shown::Thread(tid), ns: span.duration_ns(), at });
        }
    }

    fn drop_counter(&mut self, key: CounterKey, counter: &Counter) {
        if let (Some(thread), Some(address)) = (counter.thread, counter.name.strip_prefix(UDP_DROPS))
            && (self.drop_counters.contains_key(&key) || self.drop_counters.len() < MAX_DROP_COUNTERS)
        {
            self.drop_counters.insert(key, DropCounter { thread, address: address.into(), last: None });
        }
    }

    /// A sum counts from its first value on.
    fn drops(&mut self, key: CounterKey, value: f64) {
        let Some(counter) = self.drop_counters.get_mut(&key) else { return };
        let dropped = counter.last.map_or(0.0, |last| (value - last).max(0.0)) as u64;
        counter.last = Some(value);
        if dropped > 0 {
            let (thread, address) = (counter.thread, Arc::clone(&counter.address));
            *self.udp_drops.at(self.span_labels(thread, &address), &mut self.pool) += dropped;
        }
    }

    /// Counted under the thread that ran there or sent the interrupt, else under the interrupt.
    fn intrusion(&mut self, delta: &IntrusionDelta) {
        let name = delta.thread.as_ref().map_or(&delta.what, |thread| &thread.comm);
        let key = (delta.cpu, delta.kind.name(), name.clone());
        let known = self.intrusions.contains_key(&key) || self.intrusions.len() < MAX_INTRUDERS;
        let key = if known { key } else { (key.0, key.1, OTHERS.to_string()) };
        // A new intruder is shown before the end of the second.
        self.generation += u64::from(!self.intrusions.contains_key(&key));
        *self.intrusions.entry(key).or_default() += delta.count;
    }

    fn stall(&mut self, stall: &Stall) {
        if !stall.open {
            self.open.end(stall.thread, stall.kind);
        }
        if stall.is_idle() {
            return;
        }
        let owner = self.labels(stall.thread);
        let labels = owner.clone().reason(stall.reason.name());
        let raises = self.raises_severity(stall);
        if stall.open && !raises {
            return;
        }
        if stall.open {
            let reported_in = self.second_at(stall.end);
            let late_since = MonoNs(stall.end.0.saturating_sub(stall.late_ns()));
            self.open.start(stall.thread, stall.kind, late_since, owner, reported_in);
            return;
        }
        let ns = stall.late_ns();
        let severity = if raises { self.severity(ns) } else { Arc::from(BELOW) };
        let meant = labels
            .clone()
            .severity(severity)
            .meaning(stall.meaning.as_ref().map(|meaning| meaning.name.as_str().into()));
        let sum = self.stalls.at(meant, &mut self.pool);
        sum.count += 1;
        sum.total_ns += ns;
        if raises {
            self.note_longest(owner, ns);
        }
        if self.without_id.len() == MAX_WITHOUT_ID {
            self.without_id.pop_front();
        }
        let is_in_run_queue = matches!(stall.reason, StallReason::Runnable | StallReason::Preempted);
        self.without_id.push_back(StallWithoutId {
            thread: stall.thread,
            kind: stall.kind,
            start: stall.start,
            labels,
            run_queue_ns: if is_in_run_queue { stall.runnable_ns } else { 0 },
        });
    }

    /// The wall clock at `at`, by the last reading of both clocks.
    fn epoch_at(&self, at: MonoNs) -> EpochNs {
        let epoch_ns =
            self.clock.map_or(at.0, |clock| at.0.wrapping_add(clock.epoch.0.wrapping_sub(clock.mono.0)));
        EpochNs(epoch_ns)
    }

    fn second_at(&self, at: MonoNs) -> EpochSecond {
        EpochSecond(u32::try_from(self.epoch_at(at).0 / 1_000_000_000).unwrap_or(u32::MAX))
    }

    fn severity(&self, ns: u64) -> Arc<str> {
        let name = self.severities.of(ns);
        self.names.get(name).cloned().unwrap_or_else(|| Arc::from(name))
    }

    fn add_exemplar(&mut self, stall: &StallWithoutId, exemplar: Exemplar) {
        let of_thread = || Labels { reason: None, ..stall.labels.clone() };
        if stall.run_queue_ns > 0
            && let Some(durations) = self.run_queue.get_mut(&of_thread())
        {
            durations.set_exemplar(Exemplar { ns: stall.run_queue_ns, ..exemplar });
        }
        let series = match stall.kind {
            StallKind::OffCpu => self.off_cpu.get_mut(&stall.labels),
            StallKind::Fault => self.fault.get_mut(&of_thread()),
        };
        if let Some(durations) = series {
            durations.set_exemplar(exemplar);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
