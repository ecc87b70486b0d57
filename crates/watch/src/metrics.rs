//! What has been measured so far, by name: events in, counters and histograms out.
//!
//! Owns the meaning of every metric. Pure: it reads no clock and writes no text. Only stalls that nobody chose are
//! counted as stalls; waits of every reason are in the off-CPU histogram, whole, from switch-out to switch-in.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use wallprof_model::event::{LatencyDelta, LedgerDelta, OffCpuDelta, Stall};
use wallprof_model::histogram::{Cell, bucket_from_ns, range_from_bucket};
use wallprof_model::profile::KeptStall;
use wallprof_model::{
    ClockAnchor, EpochNs, EpochSecond, Event, IntrusionDelta, Metric, MonoNs, StallKind, ThreadInfo,
    ThreadKey,
};

use crate::open::OpenStalls;
use crate::series::{Family, Labels, OTHERS, Room, Who};
use crate::severity::Severities;

/// The names of all metrics, as Prometheus queries them (histograms without their suffixes).
pub const NAMES: [&str; 16] = [
    "wallprof_stalls_total",
    "wallprof_stall_seconds_total",
    "wallprof_offcpu_seconds",
    "wallprof_runqueue_seconds",
    "wallprof_fault_seconds",
    "wallprof_oncpu_seconds_total",
    "wallprof_longest_stall_seconds",
    "wallprof_guard_intrusions_total",
    "wallprof_lost_total",
    "wallprof_series_limit_hits_total",
    "wallprof_self_cpu_seconds_total",
    "wallprof_probe_seconds_total",
    "wallprof_armed",
    "wallprof_sample_rate_hertz",
    "wallprof_stack_threshold_seconds",
    "wallprof_snapshots_total",
];

/// The upper edges of exposed buckets are 2^12 ns (4.1 µs) to 2^32 ns (4.3 s): each an edge of the recording's
/// log-linear buckets too, of which sixteen lie between two of these.
pub const FIRST_EDGE: u32 = 12;
pub const EDGES: usize = 21;

/// Reasons for losses that are told apart; there are some thirty.
const MOST_REASONS: usize = 64;
/// Why a stall is counted and not in the flight recording: its size has a bound.
const FOLDED: &str = "stalls_folded";
/// Names on guarded CPUs; an IPI may come from any thread.
const MOST_INTRUDERS: usize = 1024;
/// Stalls of the last second that wait for their ids.
const MOST_WAITING: usize = 4096;
/// Tellings in which late news of an ended thread may come.
const LINGER: u64 = 3;

/// What wallprof itself has cost since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SelfCost {
    pub process_cpu_ns: u64,
    /// Of the kernel side: estimated from one run in 61 that is timed.
    pub probe_ns: u64,
}

/// A stall that an exemplar points to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exemplar {
    pub stall_id: u64,
    pub ns: u64,
    pub at: EpochNs,
}

/// Durations in exposed buckets; the last one is beyond the last edge.
#[derive(Clone, Debug, Default)]
pub struct Durations {
    pub counts: [u64; EDGES + 1],
    pub total_ns: u64,
    pub exemplars: BTreeMap<usize, Exemplar>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct StallSum {
    pub count: u64,
    pub total_ns: u64,
}

/// A thread's names; kept a little longer than the thread.
struct Named {
    who: Arc<Who>,
    ended: Option<u64>,
}

/// A stall that was counted and has no id yet.
struct Waiting {
    thread: ThreadKey,
    kind: StallKind,
    start: MonoNs,
    labels: Labels,
}

pub struct Metrics {
    severities: Severities,
    names: HashMap<String, Arc<str>>,
    threads: HashMap<ThreadKey, Named>,
    waiting: VecDeque<Waiting>,
    open: OpenStalls,
    pub(crate) room: Room,
    pub(crate) stalls: Family<StallSum>,
    pub(crate) off_cpu: Family<Durations>,
    pub(crate) run_queue: Family<Durations>,
    pub(crate) fault: Family<Durations>,
    pub(crate) on_cpu: Family<u64>,
    pub(crate) longest: Family<u64>,
    pub(crate) intrusions: BTreeMap<(u32, &'static str, String), u64>,
    pub(crate) lost: BTreeMap<String, u64>,
    pub(crate) cost: SelfCost,
    pub(crate) cost_share: f64,
    pub(crate) armed: bool,
    pub(crate) sample_hz: f64,
    pub(crate) stack_threshold_ns: u64,
    pub(crate) snapshots: u64,
    /// How often seconds were told.
    tellings: u64,
    clock: Option<ClockAnchor>,
    /// Counts changes: a text of the same generation says the same.
    generation: u64,
}

impl Metrics {
    /// `most_series` bounds all families together.
    pub fn new(severities: Severities, most_series: usize) -> Self {
        let names = severities.names().map(|name| (name.to_string(), Arc::from(name))).collect();
        Metrics {
            severities,
            names,
            threads: HashMap::new(),
            waiting: VecDeque::new(),
            open: OpenStalls::default(),
            room: Room::new(most_series),
            stalls: Family::default(),
            off_cpu: Family::default(),
            run_queue: Family::default(),
            fault: Family::default(),
            on_cpu: Family::default(),
            longest: Family::default(),
            intrusions: BTreeMap::new(),
            lost: BTreeMap::new(),
            cost: SelfCost::default(),
            cost_share: 0.0,
            armed: false,
            sample_hz: 0.0,
            stack_threshold_ns: 0,
            snapshots: 0,
            tellings: 0,
            clock: None,
            generation: 0,
        }
    }

    /// From now on stalls are filed by these.
    pub fn set_severities(&mut self, severities: Severities) {
        self.names = severities.names().map(|name| (name.to_string(), Arc::from(name))).collect();
        self.severities = severities;
    }

    /// Takes what happened. Events that no metric is about change nothing.
    pub fn take(&mut self, event: &Event) {
        match event {
            Event::Thread(info) => self.thread(info),
            Event::ThreadEnd { thread, .. } => self.thread_ended(*thread),
            Event::Ledger(delta) => self.ledger(delta),
            Event::Clock(anchor) => self.clock = Some(*anchor),
            Event::Latency(delta) => self.latency(delta),
            Event::OffCpu(delta) => self.off_cpu(delta),
            Event::Stall(stall) => self.stall(stall),
            Event::Intrusion(delta) if !delta.allowed => self.intrusion(delta),
            Event::Loss { reason, count } => self.lose(reason, *count),
            Event::Overhead { process_cpu_ns, probe_ns, .. } => {
                self.cost.process_cpu_ns += process_cpu_ns;
                self.cost.probe_ns += probe_ns;
            }
            _ => {}
        }
    }

    /// So many more seconds are over: what was told of them is complete.
    pub fn end_seconds(&mut self, seconds: u64) {
        self.generation += 1;
        self.tellings += 1;
        let tellings = self.tellings;
        self.threads.retain(|_, named| named.ended.is_none_or(|ended| ended + LINGER > tellings));
        if self.room.pass(seconds) {
            let room = &mut self.room;
            self.stalls.retire(room);
            self.off_cpu.retire(room);
            self.run_queue.retire(room);
            self.fault.retire(room);
            self.on_cpu.retire(room);
        }
    }

    /// Counts changes: a text of the same generation says the same.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Gives counted stalls their numbers in the recording; those that have none are not in it one by one. `epoch` tells the time of day of a moment.
    pub fn keep(&mut self, kept: &[KeptStall], epoch: impl Fn(MonoNs) -> EpochNs) {
        let ids: HashMap<_, _> =
            kept.iter().map(|kept| ((kept.thread, kept.kind, kept.start), kept)).collect();
        for waiting in std::mem::take(&mut self.waiting) {
            let Some(kept) = ids.get(&(waiting.thread, waiting.kind, waiting.start)) else {
                self.lose(FOLDED, 1);
                continue;
            };
            let ns = kept.end.0.saturating_sub(kept.start.0);
            let exemplar = Exemplar { stall_id: kept.id, ns, at: epoch(kept.end) };
            self.exemplar(&waiting, exemplar);
        }
    }

    pub fn lose(&mut self, reason: &str, count: u64) {
        let known = self.lost.contains_key(reason) || self.lost.len() < MOST_REASONS;
        let reason = if known { reason } else { "other" };
        *self.lost.entry(reason.to_string()).or_default() += count;
    }

    /// While disarmed nothing is measured, and nothing is open.
    pub fn set_armed(&mut self, armed: bool) {
        self.armed = armed;
        self.generation += 1;
        if !armed {
            self.open.clear();
        }
    }

    /// How often stacks are sampled on each CPU, and from which duration on a wait gets one.
    pub fn set_pace(&mut self, sample_hz: f64, stack_threshold_ns: u64) {
        (self.sample_hz, self.stack_threshold_ns) = (sample_hz, stack_threshold_ns);
    }

    /// What watching costs of late, as a share of one CPU.
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

    /// Begins a new measuring of the longest stalls; those under way at `now` count from the first.
    pub(crate) fn restart_longest(&mut self) {
        self.longest.clear(&mut self.room);
    }

    pub(crate) fn note_open(&mut self, now: MonoNs) {
        let lasting: Vec<_> = self.open.lasting(now).map(|(labels, ns)| (labels.clone(), ns)).collect();
        for (labels, ns) in lasting {
            self.note_longest(labels, ns);
        }
    }

    fn note_longest(&mut self, labels: Labels, ns: u64) {
        let longest = self.longest.at(labels, &mut self.room);
        *longest = (*longest).max(ns);
    }

    fn thread(&mut self, info: &ThreadInfo) {
        let who = Who { process: info.process.clone(), thread: info.comm.clone() };
        match self.threads.get_mut(&info.key) {
            Some(named) if *named.who == who => {}
            Some(named) => named.who = Arc::new(who),
            None => {
                self.threads.insert(info.key, Named { who: Arc::new(who), ended: None });
            }
        }
    }

    fn thread_ended(&mut self, thread: ThreadKey) {
        self.open.forget(thread);
        if let Some(named) = self.threads.get_mut(&thread) {
            named.ended = Some(self.tellings);
        }
    }

    fn labels(&self, thread: ThreadKey) -> Labels {
        self.threads
            .get(&thread)
            .map_or_else(|| Labels::of(&self.room.others()), |named| Labels::of(&named.who))
    }

    fn ledger(&mut self, delta: &LedgerDelta) {
        if delta.on_cpu_ns > 0 {
            self.open.ran(delta.thread, delta.second);
            *self.on_cpu.at(self.labels(delta.thread), &mut self.room) += delta.on_cpu_ns;
        }
    }

    fn latency(&mut self, delta: &LatencyDelta) {
        let labels = self.labels(delta.thread);
        let durations = match delta.metric {
            Metric::RunQueue => self.run_queue.at(labels, &mut self.room),
            Metric::Fault => self.fault.at(labels, &mut self.room),
            Metric::OffCpu | Metric::Blocked(_) => return,
        };
        durations.add(delta.bucket, delta.cell);
    }

    fn off_cpu(&mut self, delta: &OffCpuDelta) {
        let labels = self.labels(delta.thread).reason(delta.reason.name());
        self.off_cpu.at(labels, &mut self.room).add(delta.bucket, delta.cell);
    }

    /// Named by the thread that ran there or sent the interrupt, else by the interrupt.
    fn intrusion(&mut self, delta: &IntrusionDelta) {
        let name = delta.thread.as_ref().map_or(&delta.what, |thread| &thread.comm);
        let key = (delta.cpu, delta.kind.name(), name.clone());
        let known = self.intrusions.contains_key(&key) || self.intrusions.len() < MOST_INTRUDERS;
        let key = if known { key } else { (key.0, key.1, OTHERS.to_string()) };
        // A new intruder is not kept waiting for the end of a second.
        self.generation += u64::from(!self.intrusions.contains_key(&key));
        *self.intrusions.entry(key).or_default() += delta.count;
    }

    fn stall(&mut self, stall: &Stall) {
        if !stall.open {
            self.open.end(stall.thread, stall.kind);
        }
        if stall.voluntary {
            return;
        }
        let who = self.labels(stall.thread);
        let labels = who.clone().reason(stall.reason.name());
        if stall.open {
            let told_in = self.second_at(stall.end);
            let late_since = MonoNs(stall.end.0.saturating_sub(stall.late_ns()));
            self.open.begin(stall.thread, stall.kind, late_since, who, told_in);
            return;
        }
        let ns = stall.late_ns();
        let severity = self.severity(ns);
        let sum = self.stalls.at(labels.clone().severity(severity), &mut self.room);
        sum.count += 1;
        sum.total_ns += ns;
        self.note_longest(who, ns);
        if self.waiting.len() == MOST_WAITING {
            self.waiting.pop_front();
        }
        let (thread, kind, start) = (stall.thread, stall.kind, stall.start);
        self.waiting.push_back(Waiting { thread, kind, start, labels });
    }

    /// The second of a moment, by the last reading of both clocks.
    fn second_at(&self, at: MonoNs) -> EpochSecond {
        let epoch_ns =
            self.clock.map_or(at.0, |clock| at.0.wrapping_add(clock.epoch.0.wrapping_sub(clock.mono.0)));
        EpochSecond(u32::try_from(epoch_ns / 1_000_000_000).unwrap_or(u32::MAX))
    }

    fn severity(&self, ns: u64) -> Arc<str> {
        let name = self.severities.of(ns);
        self.names.get(name).cloned().unwrap_or_else(|| Arc::from(name))
    }

    fn exemplar(&mut self, waiting: &Waiting, exemplar: Exemplar) {
        let place = match waiting.kind {
            StallKind::OffCpu => self.off_cpu.get_mut(&waiting.labels),
            StallKind::Fault => self.fault.get_mut(&Labels { reason: None, ..waiting.labels.clone() }),
        };
        if let Some(durations) = place {
            durations.exemplars.insert(edge_from_ns(exemplar.ns), exemplar);
        }
    }
}

impl Durations {
    fn add(&mut self, bucket: u16, cell: Cell) {
        let (from, _) = range_from_bucket(bucket);
        self.counts[edge_from_ns(from)] += cell.count;
        self.total_ns = self.total_ns.saturating_add(cell.total_ns);
    }
}

/// The exposed bucket that holds `ns`. A recording's bucket lies in one of them whole.
fn edge_from_ns(ns: u64) -> usize {
    let (from, _) = range_from_bucket(bucket_from_ns(ns));
    let bits = (u64::BITS - from.leading_zeros()).saturating_sub(FIRST_EDGE) as usize;
    bits.min(EDGES)
}

#[cfg(test)]
pub(crate) mod tests {
    use wallprof_model::{IntrusionKind, Reason, StallReason, ThreadRef};

    use super::*;

    pub(crate) fn thread(key: u32, process: &str, comm: &str) -> Event {
        Event::Thread(ThreadInfo {
            key: ThreadKey(key),
            tid: key,
            pid: key,
            ns_tid: key,
            ns_pid: key,
            start_boot_ns: 0,
            comm: comm.into(),
            process: process.into(),
            cgroup: None,
            kernel_thread: false,
        })
    }

    pub(crate) fn stall(key: u32, start: u64, ns: u64) -> Stall {
        Stall::new(ThreadKey(key), StallReason::Blocked(Reason::Lock), MonoNs(start), ns)
    }

    pub(crate) fn told(stall: Stall) -> Event {
        Event::Stall(Box::new(stall))
    }

    pub(crate) fn off_cpu(key: u32, reason: StallReason, ns: u64) -> Event {
        let cell = Cell { count: 1, total_ns: ns, max_ns: ns };
        Event::OffCpu(OffCpuDelta { thread: ThreadKey(key), reason, bucket: bucket_from_ns(ns), cell })
    }

    pub(crate) fn metrics() -> Metrics {
        let mut metrics = Metrics::new(Severities::default(), 1_000);
        metrics.take(&thread(1, "server", "engine"));
        metrics
    }

    fn counted(metrics: &Metrics) -> Vec<(String, u64, u64)> {
        let name = |labels: &Labels| {
            let severity = labels.severity.as_deref().unwrap_or("");
            format!("{}/{}/{}", labels.who.thread, labels.reason.unwrap_or(""), severity)
        };
        metrics.stalls.iter().map(|(labels, sum)| (name(labels), sum.count, sum.total_ns)).collect()
    }

    #[test]
    fn stalls_are_counted_once_by_their_highest_severity() {
        let mut metrics = metrics();
        for ns in [60_000, 100_000, 600_000, 2_000_000] {
            metrics.take(&told(stall(1, 5, ns)));
        }
        let expected = [
            ("engine/lock/critical", 2, 2_600_000),
            ("engine/lock/info", 1, 60_000),
            ("engine/lock/warning", 1, 100_000),
        ];
        assert_eq!(counted(&metrics), expected.map(|(name, count, ns)| (name.to_string(), count, ns)));
        assert_eq!(metrics.stalls_by_severity()["critical"], 2);
    }

    /// A sleep of 20 ms that lasted `late_ns` longer.
    fn overslept(start: u64, late_ns: u64) -> Stall {
        let asked_ns = 20_000_000;
        let sleep =
            Stall::new(ThreadKey(1), StallReason::Blocked(Reason::Sleep), MonoNs(start), asked_ns + late_ns);
        Stall { voluntary: false, asked_ns: Some(asked_ns), ..sleep }
    }

    #[test]
    fn overslept_wait_counts_by_its_lateness() {
        let mut metrics = metrics();
        (0..3).for_each(|n| metrics.take(&told(overslept(n * 30_000_000, 60_000))));
        metrics.take(&told(stall(1, 200_000_000, 20_060_000)));
        let expected = [("engine/lock/critical", 1, 20_060_000), ("engine/sleep/info", 3, 180_000)];
        assert_eq!(counted(&metrics), expected.map(|(name, count, ns)| (name.to_string(), count, ns)));
        assert_eq!(metrics.longest.iter().map(|(_, ns)| *ns).max(), Some(20_060_000));
        metrics.restart_longest();
        metrics.take(&told(overslept(300_000_000, 60_000)));
        assert_eq!(metrics.longest.iter().map(|(_, ns)| *ns).collect::<Vec<_>>(), [60_000]);
    }

    #[test]
    fn open_stall_is_late_since_the_end_of_its_timeout() {
        let mut metrics = metrics();
        metrics.take(&told(Stall { open: true, ..overslept(0, 1_000_000) }));
        metrics.note_open(MonoNs(25_000_000));
        assert_eq!(metrics.longest.iter().map(|(_, ns)| *ns).collect::<Vec<_>>(), [5_000_000]);
    }

    #[test]
    fn what_a_thread_chose_is_no_stall() {
        let mut metrics = metrics();
        metrics.take(&told(Stall { voluntary: true, ..stall(1, 5, 9_000_000) }));
        assert!(counted(&metrics).is_empty());
    }

    #[test]
    fn an_open_stall_counts_when_it_ends() {
        let mut metrics = metrics();
        metrics.take(&told(Stall { open: true, ..stall(1, 1_000, 1_000) }));
        assert!(counted(&metrics).is_empty());
        metrics.note_open(MonoNs(5_000));
        assert_eq!(metrics.longest.iter().map(|(_, ns)| *ns).collect::<Vec<_>>(), [4_000]);
        metrics.take(&told(stall(1, 1_000, 700_000)));
        metrics.restart_longest();
        metrics.note_open(MonoNs(9_000));
        assert_eq!((counted(&metrics).len(), metrics.longest.iter().count()), (1, 0));
    }

    #[test]
    fn seconds_told_after_an_open_stall_and_before_it_began_leave_it_open() {
        let mut metrics = metrics();
        metrics.take(&Event::Clock(ClockAnchor { mono: MonoNs(0), epoch: EpochNs(100_000_000_000) }));
        // It began at 103.5 and was found open at 105; it had run until then.
        metrics.take(&told(Stall { open: true, ..stall(1, 3_500_000_000, 1_500_000_000) }));
        let mut ledger = LedgerDelta::new(ThreadKey(1), EpochSecond(103));
        ledger.on_cpu_ns = 7;
        metrics.take(&Event::Ledger(ledger.clone()));
        metrics.note_open(MonoNs(6_500_000_000));
        assert_eq!(metrics.longest.iter().map(|(_, ns)| *ns).collect::<Vec<_>>(), [3_000_000_000]);
        metrics.take(&Event::Ledger(LedgerDelta { second: EpochSecond(106), ..ledger }));
        metrics.restart_longest();
        metrics.note_open(MonoNs(7_500_000_000));
        assert_eq!(metrics.longest.iter().count(), 0, "it has run since");
    }

    #[test]
    fn exemplars_point_to_stalls_that_were_kept() {
        let mut metrics = metrics();
        metrics.take(&off_cpu(1, StallReason::Blocked(Reason::Lock), 2_000_000));
        metrics.take(&told(stall(1, 7, 2_000_000)));
        let kept = KeptStall {
            id: 42,
            thread: ThreadKey(1),
            kind: StallKind::OffCpu,
            start: MonoNs(7),
            end: MonoNs(2_000_007),
        };
        metrics.take(&told(stall(1, 9, 2_000_000)));
        metrics.keep(&[kept], |mono| EpochNs(mono.0));
        assert_eq!(metrics.lost[FOLDED], 1, "the other one");
        let (_, durations) = metrics.off_cpu.iter().next().expect("a series");
        let (bucket, exemplar) = durations.exemplars.first_key_value().expect("an exemplar");
        assert_eq!((durations.counts[*bucket], exemplar.stall_id, exemplar.ns), (1, 42, 2_000_000));
        assert!(metrics.waiting.is_empty(), "stalls that were not kept wait no longer");
    }

    #[test]
    fn recorded_buckets_lie_whole_in_exposed_ones() {
        for bucket in 0..wallprof_model::histogram::BUCKETS {
            let (from, to) = range_from_bucket(bucket);
            assert_eq!(edge_from_ns(from), edge_from_ns(to - 1), "bucket {bucket}");
        }
        assert_eq!((edge_from_ns(0), edge_from_ns(4_095), edge_from_ns(4_096)), (0, 0, 1));
        assert_eq!(
            (edge_from_ns((1 << 32) - 1), edge_from_ns(1 << 32), edge_from_ns(u64::MAX)),
            (20, 21, 21)
        );
    }

    #[test]
    fn ended_threads_are_forgotten_once_late_news_has_come() {
        let mut metrics = metrics();
        metrics.take(&Event::ThreadEnd { thread: ThreadKey(1), at: MonoNs(9) });
        metrics.end_seconds(1);
        metrics.take(&told(stall(1, 5, 200_000)));
        assert_eq!(counted(&metrics)[0].0, "engine/lock/warning");
        (0..LINGER).for_each(|_| metrics.end_seconds(1));
        assert!(metrics.threads.is_empty());
    }

    #[test]
    fn a_renamed_thread_has_series_of_its_own() {
        let mut metrics = metrics();
        metrics.take(&told(stall(1, 5, 200_000)));
        metrics.take(&thread(1, "server", "worker"));
        metrics.take(&told(stall(1, 300_000, 200_000)));
        let names: Vec<_> = counted(&metrics).into_iter().map(|(name, ..)| name).collect();
        assert_eq!(names, ["engine/lock/warning", "worker/lock/warning"]);
    }

    pub(crate) fn intrusion(name: &str, allowed: bool) -> Event {
        Event::Intrusion(Box::new(IntrusionDelta {
            cpu: 1,
            kind: IntrusionKind::Task,
            what: String::new(),
            thread: Some(ThreadRef { comm: name.into(), ..ThreadRef::default() }),
            allowed,
            count: 2,
            total_ns: 5,
            max_ns: 4,
        }))
    }

    #[test]
    fn who_may_be_there_is_no_intruder_and_intruders_are_bounded() {
        let mut metrics = metrics();
        metrics.take(&intrusion("engine", true));
        assert!(metrics.intrusions.is_empty());
        let generation = metrics.generation();
        metrics.take(&intrusion("cron-0", false));
        assert!(metrics.generation() > generation, "an intruder waits for nothing");
        for number in 1..MOST_INTRUDERS + 10 {
            metrics.take(&intrusion(&format!("cron-{number}"), false));
        }
        assert_eq!(metrics.intrusions[&(1, "task", "cron-0".into())], 2);
        assert_eq!(metrics.intrusions[&(1, "task", OTHERS.into())], 20);
    }

    #[test]
    fn reasons_of_losses_are_bounded() {
        let mut metrics = metrics();
        for number in 0..1_000 {
            metrics.lose(&format!("reason {number}"), 1);
        }
        assert_eq!((metrics.lost.len(), metrics.lost["other"]), (MOST_REASONS + 1, 936));
    }
}
