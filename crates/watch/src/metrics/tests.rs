// SPDX-License-Identifier: Apache-2.0
//! What each event changes.

use wallprof_model::{
    IntrusionKind, Meaning, MeaningSource, Reason, SpanSource, SpanState, SpanStates, ThreadRef,
};

use wallprof_model::counter::{CounterKind, CounterUnit};
use wallprof_model::histogram::{Cell, bucket_from_ns};

use super::*;

pub(crate) fn thread(key: u32, process: &str, comm: &str) -> Event {
    Event::Thread(info(key, process, comm))
}

pub(crate) fn thread_in(key: u32, process: &str, comm: &str, cgroup: &str) -> Event {
    Event::Thread(info_in(key, process, comm, cgroup))
}

pub(crate) fn info_in(key: u32, process: &str, comm: &str, cgroup: &str) -> ThreadInfo {
    ThreadInfo { cgroup: Some(cgroup.into()), ..info(key, process, comm) }
}

fn info(key: u32, process: &str, comm: &str) -> ThreadInfo {
    ThreadInfo::new(ThreadKey(key), (key, process), (key, comm))
}

pub(crate) fn stall(key: u32, start: u64, ns: u64) -> Stall {
    Stall::new(ThreadKey(key), StallReason::Blocked(Reason::Lock), MonoNs(start), ns)
}

pub(crate) fn meaning(name: &str, idle: bool) -> Arc<Meaning> {
    Arc::new(Meaning { name: name.into(), software: None, idle, holder: true, source: MeaningSource::Wakers })
}

pub(crate) fn stall_event(stall: Stall) -> Event {
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
        format!("{}/{}/{}", labels.owner.thread, labels.reason.unwrap_or(""), severity)
    };
    metrics.stalls.iter().map(|(labels, sum)| (name(labels), sum.count, sum.total_ns)).collect()
}

#[test]
fn stall_is_counted_once_by_its_highest_severity() {
    let mut metrics = metrics();
    for ns in [60_000, 100_000, 600_000, 2_000_000] {
        metrics.take(&stall_event(stall(1, 5, ns)));
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
    (0..3).for_each(|n| metrics.take(&stall_event(overslept(n * 30_000_000, 60_000))));
    metrics.take(&stall_event(stall(1, 200_000_000, 20_060_000)));
    let expected = [("engine/lock/critical", 1, 20_060_000), ("engine/sleep/info", 3, 180_000)];
    assert_eq!(counted(&metrics), expected.map(|(name, count, ns)| (name.to_string(), count, ns)));
    assert_eq!(metrics.longest.iter().map(|(_, ns)| *ns).max(), Some(20_060_000));
    metrics.restart_longest();
    metrics.take(&stall_event(overslept(300_000_000, 60_000)));
    assert_eq!(metrics.longest.iter().map(|(_, ns)| *ns).collect::<Vec<_>>(), [60_000]);
}

#[test]
fn open_stall_is_late_since_the_end_of_its_timeout() {
    let mut metrics = metrics();
    metrics.take(&stall_event(Stall { open: true, ..overslept(0, 1_000_000) }));
    metrics.note_open(MonoNs(25_000_000));
    assert_eq!(metrics.longest.iter().map(|(_, ns)| *ns).collect::<Vec<_>>(), [5_000_000]);
}

#[test]
fn voluntary_wait_is_no_stall() {
    let mut metrics = metrics();
    metrics.take(&stall_event(Stall { voluntary: true, ..stall(1, 5, 9_000_000) }));
    assert!(counted(&metrics).is_empty());
}

#[test]
fn meaning_decides_whether_a_wait_is_a_stall() {
    let (lock, clients) = (Some(meaning("lock", false)), Some(meaning("clients", true)));
    for (voluntary, meaning, stalls) in [
        (true, lock.clone(), 1),
        (false, lock, 1),
        (true, None, 0),
        (false, clients.clone(), 0),
        (true, clients, 0),
    ] {
        let mut metrics = metrics();
        let what = format!("{voluntary} {meaning:?}");
        metrics.take(&stall_event(Stall { voluntary, meaning, ..stall(1, 5, 9_000_000) }));
        assert_eq!(counted(&metrics).len(), stalls, "{what}");
    }
}

#[test]
fn open_stall_counts_when_it_ends() {
    let mut metrics = metrics();
    metrics.take(&stall_event(Stall { open: true, ..stall(1, 1_000, 1_000) }));
    assert!(counted(&metrics).is_empty());
    metrics.note_open(MonoNs(5_000));
    assert_eq!(metrics.longest.iter().map(|(_, ns)| *ns).collect::<Vec<_>>(), [4_000]);
    metrics.take(&stall_event(stall(1, 1_000, 700_000)));
    metrics.restart_longest();
    metrics.note_open(MonoNs(9_000));
    assert_eq!((counted(&metrics).len(), metrics.longest.iter().count()), (1, 0));
}

#[test]
fn earlier_second_that_is_flushed_late_leaves_a_stall_open() {
    let mut metrics = metrics();
    metrics.take(&Event::Clock(ClockAnchor { mono: MonoNs(0), epoch: EpochNs(100_000_000_000) }));
    // The stall started at 103.5 and was found open at 105; the thread had run until 103.5.
    metrics.take(&stall_event(Stall { open: true, ..stall(1, 3_500_000_000, 1_500_000_000) }));
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
fn exemplars_point_to_recorded_stalls() {
    let mut metrics = metrics();
    metrics.take(&off_cpu(1, StallReason::Blocked(Reason::Lock), 2_000_000));
    metrics.take(&stall_event(stall(1, 7, 2_000_000)));
    let kept = KeptStall {
        id: 42,
        thread: ThreadKey(1),
        kind: StallKind::OffCpu,
        start: MonoNs(7),
        end: MonoNs(2_000_007),
        trace: None,
    };
    metrics.take(&stall_event(stall(1, 9, 2_000_000)));
    metrics.add_exemplars(&[kept], |mono| EpochNs(mono.0));
    assert_eq!(metrics.lost[FOLDED], 1, "the other one");
    let (_, durations) = metrics.off_cpu.iter().next().expect("a series");
    let (bucket, exemplar) = durations.exemplars.first_key_value().expect("an exemplar");
    assert_eq!((durations.counts[*bucket], exemplar.of, exemplar.ns), (1, Shown::Stall(42, None), 2_000_000));
    assert!(metrics.without_id.is_empty(), "a stall that was not kept gets no id later");
}

#[test]
fn exemplar_of_the_run_queue_is_a_stall_that_waited_for_a_cpu() {
    let mut metrics = metrics();
    let cell = Cell { count: 1, total_ns: 900_000, max_ns: 900_000 };
    let (thread, bucket) = (ThreadKey(1), bucket_from_ns(900_000));
    metrics.take(&Event::Latency(LatencyDelta { thread, metric: Metric::RunQueue, bucket, cell }));
    let late = |reason, start| {
        let waits = Stall { blocked_ns: 100_000, runnable_ns: 900_000, ..stall(1, start, 1_000_000) };
        stall_event(Stall { reason, ..waits })
    };
    let kept = |id, start| KeptStall {
        id,
        thread,
        kind: StallKind::OffCpu,
        start: MonoNs(start),
        end: MonoNs(start + 1_000_000),
        trace: None,
    };
    metrics.take(&late(StallReason::Runnable, 7));
    metrics.take(&late(StallReason::Blocked(Reason::Lock), 9));
    metrics.add_exemplars(&[kept(42, 7), kept(43, 9)], |mono| EpochNs(mono.0));
    let (_, durations) = metrics.run_queue.iter().next().expect("a series");
    let exemplars: Vec<_> = durations.exemplars.values().map(|exemplar| (exemplar.of, exemplar.ns)).collect();
    assert_eq!(exemplars, [(Shown::Stall(42, None), 900_000)]);
}

#[test]
fn ended_thread_is_dropped_after_its_last_events() {
    let mut metrics = metrics();
    metrics.take(&Event::ThreadEnd { thread: ThreadKey(1), at: MonoNs(9) });
    metrics.end_seconds(1);
    metrics.take(&stall_event(stall(1, 5, 200_000)));
    assert_eq!(counted(&metrics)[0].0, "engine/lock/warning");
    (0..LINGER).for_each(|_| metrics.end_seconds(1));
    assert!(metrics.threads.is_empty());
}

#[test]
fn renamed_thread_has_its_own_series() {
    let mut metrics = metrics();
    metrics.take(&stall_event(stall(1, 5, 200_000)));
    metrics.take(&thread(1, "server", "worker"));
    metrics.take(&stall_event(stall(1, 300_000, 200_000)));
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

/// Readings of the dropped packets at an address of a thread's process.
pub(crate) fn drops(number: u32, thread: u32, values: &[f64]) -> Vec<Event> {
    let (name, thread) = ("udp.drops 10.0.0.1:5000".into(), Some(ThreadKey(thread)));
    let counter = Counter { name, thread, kind: CounterKind::Sum, unit: CounterUnit::Count };
    let key = CounterKey(number);
    let value = |&value: &f64| Event::CounterValue { key, at: MonoNs(0), value };
    std::iter::once(Event::Counter { key, counter }).chain(values.iter().map(value)).collect()
}

#[test]
fn dropped_packets_are_counted_by_process_and_address_from_the_first_reading_on() {
    let mut metrics = metrics();
    metrics.take(&thread(1, "server", "engine"));
    metrics.take(&thread(2, "quiet", "engine"));
    drops(7, 1, &[40.0, 52.0, 52.0, 3.0, 5.0]).iter().for_each(|event| metrics.take(event));
    drops(8, 2, &[9.0, 9.0]).iter().for_each(|event| metrics.take(event));
    let found: Vec<_> = metrics.udp_drops.iter().map(|(labels, count)| (labels.clone(), *count)).collect();
    let [(labels, 14)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&*labels.owner.process, labels.kind.as_deref()), ("server", Some("10.0.0.1:5000")));
}

#[test]
fn counters_of_ended_processes_make_place() {
    let mut metrics = metrics();
    let number = u32::try_from(MAX_DROP_COUNTERS).unwrap();
    (0..number).for_each(|key| drops(key, 9, &[0.0]).iter().for_each(|event| metrics.take(event)));
    metrics.take(&thread(1, "server", "engine"));
    metrics.end_seconds(1);
    drops(number, 1, &[0.0, 5.0]).iter().for_each(|event| metrics.take(event));
    assert_eq!(metrics.udp_drops.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [5]);
}

#[test]
fn allowed_thread_is_no_intruder_and_intruders_are_bounded() {
    let mut metrics = metrics();
    metrics.take(&intrusion("engine", true));
    assert!(metrics.intrusions.is_empty());
    let generation = metrics.generation();
    metrics.take(&intrusion("cron-0", false));
    assert!(metrics.generation() > generation, "an intruder is shown at once");
    for number in 1..MAX_INTRUDERS + 10 {
        metrics.take(&intrusion(&format!("cron-{number}"), false));
    }
    assert_eq!(metrics.intrusions[&(1, "task", "cron-0".into())], 2);
    assert_eq!(metrics.intrusions[&(1, "task", OTHERS.into())], 20);
}

#[test]
fn loss_reasons_are_bounded() {
    let mut metrics = metrics();
    for number in 0..1_000 {
        metrics.count_loss(&format!("reason {number}"), 1);
    }
    assert_eq!((metrics.lost.len(), metrics.lost["other"]), (MAX_LOSS_REASONS + 1, 936));
}

/// Wakeups that came 2 ms late for want of a CPU.
fn late_wakeup(key: u32, start: u64) -> Event {
    stall_event(Stall::new(ThreadKey(key), StallReason::Runnable, MonoNs(start), 2_000_000))
}

/// A thread that runs for so long in each of 20 seconds.
fn runs(metrics: &mut Metrics, key: u32, ns: u64) {
    for second in 1..=20 {
        let mut delta = LedgerDelta::new(ThreadKey(key), EpochSecond(second));
        delta.on_cpu_ns = ns;
        metrics.take(&Event::Ledger(delta));
    }
}

#[test]
fn on_an_idle_machine_nothing_is_critical() {
    let mut metrics = Metrics::new(Severities::default(), 1_000).of_all_threads(true);
    for (key, process) in [(1, "redis-server"), (2, "engine"), (3, "wallprof")] {
        metrics.take(&thread(key, process, process));
    }
    runs(&mut metrics, 1, 1_000_000);
    runs(&mut metrics, 2, 300_000_000);
    runs(&mut metrics, 3, 300_000_000);
    for key in 1..=3 {
        metrics.take(&late_wakeup(key, 20_500_000_000));
    }
    let names: Vec<String> = counted(&metrics).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["engine/runnable/critical", "redis-server/runnable/info", "wallprof/runnable/info"]);
    let longest: Vec<&str> = metrics.longest.iter().map(|(labels, _)| &*labels.owner.thread).collect();
    assert_eq!(longest, ["engine"]);
}

#[test]
fn threads_that_were_chosen_are_late_even_when_idle() {
    let mut metrics = metrics();
    metrics.take(&late_wakeup(1, 5));
    assert_eq!(metrics.stalls_by_severity()["critical"], 1);
}

#[test]
fn waits_for_data_raise_no_severity() {
    let mut metrics = metrics();
    let pipe = Stall::new(ThreadKey(1), StallReason::Blocked(Reason::Pipe), MonoNs(5), 9_000_000_000);
    metrics.take(&stall_event(pipe.clone()));
    metrics.take(&stall_event(Stall { open: true, ..pipe }));
    metrics.note_open(MonoNs(60_000_000_000));
    assert_eq!(counted(&metrics), [("engine/pipe/info".to_string(), 1, 9_000_000_000)]);
    assert_eq!(metrics.longest.iter().count(), 0);
}

fn periods(kind: &str, ns: u64, count: u64) -> Event {
    let mut states = SpanStates::default();
    states.0[SpanState::Cpu.index()] = ns * count;
    Event::Spans(Box::new(SpanDelta {
        thread: ThreadKey(1),
        source: SpanSource::Code,
        kind: kind.into(),
        bucket: bucket_from_ns(ns),
        count,
        max_ns: ns,
        states,
    }))
}

fn period(kind: &str, end: u64, ns: u64) -> Event {
    Event::Span(Box::new(Span {
        thread: ThreadKey(1),
        source: SpanSource::Code,
        kind: kind.into(),
        start: MonoNs(end - ns),
        end: MonoNs(end),
        states: SpanStates::default(),
    }))
}

#[test]
fn spans_are_counted_by_process_and_kind_and_over_their_budget() {
    let mut metrics = metrics().with_budgets([("order".to_owned(), 500_000)].into());
    metrics.take(&periods("order", 20_000, 99));
    metrics.take(&periods("order", 900_000, 1));
    metrics.take(&periods("quote", 900_000, 1));
    for event in [period("order", 2_000_000, 900_000), period("order", 9_000_000, 20_000)] {
        metrics.take(&event);
    }
    metrics.take(&period("quote", 2_000_000, 900_000));
    let counts = |durations: &Durations| (durations.counts.iter().sum::<u64>(), durations.total_ns);
    let found: Vec<_> = metrics.spans.iter().map(|(labels, all)| (labels.clone(), counts(all))).collect();
    let kinds: Vec<_> = found.iter().map(|(labels, all)| (labels.kind.as_deref().unwrap(), *all)).collect();
    assert_eq!(kinds, [("order", (100, 2_880_000)), ("quote", (1, 900_000))]);
    let over: Vec<_> =
        metrics.over_budget.iter().map(|(labels, count)| (labels.kind.as_deref(), *count)).collect();
    assert_eq!(over, [(Some("order"), 1)]);
    let exemplars: Vec<_> = metrics.spans.iter().flat_map(|(_, all)| all.exemplars.values()).collect();
    assert_eq!(exemplars.len(), 3);
    assert!(exemplars.iter().all(|exemplar| matches!(exemplar.of, Shown::Thread(_))), "{exemplars:?}");
}

#[test]
fn kinds_without_end_are_counted_together() {
    let mut metrics = Metrics::new(Severities::default(), 10);
    metrics.take(&thread(1, "server", "engine"));
    for number in 0..1_000 {
        metrics.take(&periods(&format!("kind-{number}"), 20_000, 1));
    }
    let total: u64 = metrics.spans.iter().flat_map(|(_, all)| all.counts).sum();
    assert!(metrics.spans.iter().count() <= 11 && total == 1_000, "{}", metrics.spans.iter().count());
}
