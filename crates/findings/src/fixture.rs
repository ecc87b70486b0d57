// SPDX-License-Identifier: Apache-2.0
//! Recordings for the tests of the rules: threads of one process, and stalls one after the other.

use std::collections::BTreeMap;

use wallprof_analysis::spans::{LongPeriod, LongSum, OverBudget};
use wallprof_model::counter::{Counter, CounterKind, CounterTrack, CounterUnit};
use wallprof_model::event::{Access, DelayKind, Fault, KernelDelay, LedgerDelta, Mapping};
use wallprof_model::profile::{
    CrossCallRow, Finding, InterruptRow, IntrusionRow, KernelDelayRow, LockRecord, RecordingInfo,
    StallRecord, Thread, ThrottledRow, WakerRecord,
};
use wallprof_model::{EpochSecond, MonoNs, Reason, StallKind, StallReason, ThreadInfo, ThreadKey, ThreadRef};
use wallprof_testkit::stacks::stall;

use super::{Collector, Evidence, SumRow, Surroundings, findings};

pub(super) use wallprof_testkit::stacks::{kernel_stack, stack};

/// Each thread's time.
pub const WALL_NS: u64 = 10_000_000_000;

/// Threads 1 to 9 of the process `app`, named `thread-1` …
pub struct Fixture {
    pub info: RecordingInfo,
    pub threads: Vec<Thread>,
    pub interrupts: Vec<InterruptRow>,
    pub intrusions: Vec<IntrusionRow>,
    pub kernel_delays: Vec<KernelDelayRow>,
    pub cross_calls: Vec<CrossCallRow>,
    pub throttled: Vec<ThrottledRow>,
    pub counters: Vec<CounterTrack>,
    pub process_counters: Vec<CounterTrack>,
    pub periods: Vec<LongPeriod>,
    pub long_sums: Vec<LongSum>,
    pub over_budget: Vec<OverBudget>,
    pub sums: Vec<SumRow>,
    pub collector: Collector,
}

impl Fixture {
    pub fn new() -> Self {
        Fixture {
            info: RecordingInfo {
                end: MonoNs(WALL_NS),
                cpus: 16,
                min_stall_ns: 100_000,
                ..RecordingInfo::default()
            },
            threads: (1..10).map(thread).collect(),
            interrupts: Vec::new(),
            intrusions: Vec::new(),
            kernel_delays: Vec::new(),
            cross_calls: Vec::new(),
            throttled: Vec::new(),
            counters: Vec::new(),
            process_counters: Vec::new(),
            periods: Vec::new(),
            long_sums: Vec::new(),
            over_budget: Vec::new(),
            sums: Vec::new(),
            collector: Collector::default(),
        }
    }

    pub fn stall(&mut self, stall: StallRecord) {
        self.collector.add(&stall);
    }

    pub fn evidence(self) -> Evidence {
        let Fixture {
            info,
            threads,
            interrupts,
            intrusions,
            kernel_delays,
            cross_calls,
            throttled,
            collector,
            counters,
            process_counters,
            periods,
            long_sums,
            over_budget,
            sums,
        } = self;
        collector.finish(&Surroundings {
            info: &info,
            threads: &threads,
            interrupts: &interrupts,
            intrusions: &intrusions,
            kernel_delays: &kernel_delays,
            cross_calls: &cross_calls,
            throttled: &throttled,
            counters: &counters,
            process_counters: &process_counters,
            periods: &periods,
            long_sums: &long_sums,
            over_budget: &over_budget,
            sums: &sums,
        })
    }

    /// The findings from these stalls.
    pub fn findings(stalls: impl IntoIterator<Item = StallRecord>) -> Vec<Finding> {
        let mut fixture = Fixture::new();
        stalls.into_iter().for_each(|stall| fixture.stall(stall));
        findings(&fixture.evidence())
    }

    /// The one finding from these stalls.
    pub fn only_finding(stalls: impl IntoIterator<Item = StallRecord>) -> Finding {
        let mut findings = Self::findings(stalls);
        assert_eq!(findings.len(), 1, "{findings:#?}");
        findings.remove(0)
    }
}

pub fn thread(number: u32) -> Thread {
    let mut ledger = LedgerDelta::new(ThreadKey(number), EpochSecond(0));
    ledger.wall_ns = WALL_NS;
    ledger.on_cpu_ns = WALL_NS / 2;
    let info = ThreadInfo::new(ThreadKey(number), (100, "app"), (100 + number, format!("thread-{number}")));
    Thread { info, start: MonoNs(0), end: MonoNs(WALL_NS), ledger, latency: BTreeMap::new(), stalls: 0 }
}

pub fn thread_ref(number: u32) -> ThreadRef {
    ThreadRef {
        key: Some(ThreadKey(number)),
        pid: 100,
        tid: 100 + number,
        comm: format!("thread-{number}"),
        title: None,
    }
}

/// An untracked thread.
pub fn untracked(comm: &str) -> ThreadRef {
    ThreadRef { key: None, pid: 900, tid: 901, comm: comm.into(), title: None }
}

/// The steal counter of a CPU at some milliseconds, in ms.
pub fn steal(cpu: u32, readings: &[(u64, u64)]) -> CounterTrack {
    counter(&format!("cpu{cpu}.steal"), CounterKind::Sum, CounterUnit::Ns, readings, 1e6)
}

/// The counter `cpuN.run_queue` at some milliseconds.
pub fn run_queue(cpu: u32, readings: &[(u64, u64)]) -> CounterTrack {
    counter(&format!("cpu{cpu}.run_queue"), CounterKind::Level, CounterUnit::Count, readings, 1.0)
}

/// The counter of a UDP receive queue of the process at some milliseconds, bytes.
pub fn udp_queue(readings: &[(u64, u64)]) -> CounterTrack {
    let track = counter("udp.queue 10.0.0.1:5000", CounterKind::Level, CounterUnit::Bytes, readings, 1.0);
    of_the_process(track)
}

/// The counter of its dropped packets.
pub fn udp_drops(readings: &[(u64, u64)]) -> CounterTrack {
    let track = counter("udp.drops 10.0.0.1:5000", CounterKind::Sum, CounterUnit::Count, readings, 1.0);
    of_the_process(track)
}

/// The memory in use by the control group of the process at some milliseconds, and its limit, MiB.
pub fn memory_group(name: &str, readings: &[(u64, u64)], limit: u64) -> Vec<CounterTrack> {
    let level = |name: String, readings: &[(u64, u64)]| {
        of_the_process(counter(&name, CounterKind::Level, CounterUnit::Bytes, readings, 1_048_576.0))
    };
    let limit = level(format!("cgroup.memory.limit {name}"), &[(0, limit)]);
    vec![level(format!("cgroup.memory {name}"), readings), limit]
}

/// What the control group of the process had written to a disk at some milliseconds, and its limit a second,
/// MiB.
pub fn disk_limit(name: &str, readings: &[(u64, u64)], limit: u64) -> Vec<CounterTrack> {
    let track = |name: String, kind: CounterKind, readings: &[(u64, u64)]| {
        of_the_process(counter(&name, kind, CounterUnit::Bytes, readings, 1_048_576.0))
    };
    let limit = track(format!("cgroup.disk.written.limit 7:0 {name}"), CounterKind::Level, &[(0, limit)]);
    vec![track(format!("cgroup.disk.written 7:0 {name}"), CounterKind::Sum, readings), limit]
}

/// The counters of the requests of a thread's process that waited for an upstream, in milliseconds.
pub fn upstream(
    number: u32,
    address: &str,
    process: Option<&str>,
    requests: u64,
    waited_ms: u64,
    longest_ms: u64,
) -> Vec<CounterTrack> {
    let mut tracks = waited("upstream", "requests", number, address, (requests, waited_ms, longest_ms));
    let name = |comm: &str| format!("upstream.process {address} {comm}");
    let named = |comm| counter(&name(comm), CounterKind::Level, CounterUnit::Plain, &[(9_000, 4711)], 1.0);
    tracks.extend(process.map(named));
    tracks.iter_mut().for_each(|track| track.counter.thread = Some(ThreadKey(number)));
    tracks
}

/// The counters of `(how many, ms in all, ms of the longest)` that waited at an address, of a thread's process.
pub fn waited(
    what: &str,
    many: &str,
    number: u32,
    address: &str,
    (count, total_ms, longest_ms): (u64, u64, u64),
) -> Vec<CounterTrack> {
    let sum = |name: &str, unit, value, scale| {
        counter(
            &format!("{what}.{name} {address}"),
            CounterKind::Sum,
            unit,
            &[(500, 0), (9_000, value)],
            scale,
        )
    };
    let longest = format!("{what}.longest {address}");
    let mut tracks = vec![
        sum("waited", CounterUnit::Ns, total_ms, 1e6),
        sum(many, CounterUnit::Count, count, 1.0),
        counter(&longest, CounterKind::Level, CounterUnit::Ns, &[(9_000, longest_ms)], 1e6),
    ];
    tracks.iter_mut().for_each(|track| track.counter.thread = Some(ThreadKey(number)));
    tracks
}

/// A count of a thread's process at some milliseconds.
pub fn sum(name: &str, number: u32, readings: &[(u64, u64)]) -> CounterTrack {
    let mut track = counter(name, CounterKind::Sum, CounterUnit::Count, readings, 1.0);
    track.counter.thread = Some(ThreadKey(number));
    track
}

fn of_the_process(mut track: CounterTrack) -> CounterTrack {
    track.counter.thread = Some(ThreadKey(1));
    track
}

/// The counter `memory.KIND` at some milliseconds, in MiB.
pub fn memory(kind: &str, readings: &[(u64, u64)]) -> CounterTrack {
    counter(&format!("memory.{kind}"), CounterKind::Level, CounterUnit::Bytes, readings, 1_048_576.0)
}

fn counter(
    name: &str,
    kind: CounterKind,
    unit: CounterUnit,
    readings: &[(u64, u64)],
    scale: f64,
) -> CounterTrack {
    let points = readings.iter().map(|&(ms, value)| (MonoNs(ms * 1_000_000), value as f64 * scale));
    CounterTrack {
        counter: Counter { name: name.into(), thread: None, kind, unit },
        points: points.collect(),
    }
}

/// A kernel delay of the thread of a stall, from and to ns after the stall's start.
pub fn delay_in(stall: &StallRecord, kind: DelayKind, from_ns: u64, to_ns: u64) -> KernelDelayRow {
    let at = |ns| MonoNs(stall.start.0 + ns);
    KernelDelay { thread: stall.thread, kind, start: at(from_ns), end: at(to_ns) }
}

/// A wait of thread `thread`, starting at 50 ms times its id.
pub fn case(id: u64, thread: u32, reason: StallReason, ns: u64) -> StallRecord {
    let start = MonoNs(1_000_000_000 + id * 50_000_000);
    StallRecord { cpu: Some(1), user: Some(stack(&["work", "main"])), ..stall(id, thread, reason, start, ns) }
}

/// A wait for a lock that `owner` holds and releases.
pub fn lock_case(id: u64, thread: u32, owner: u32, ns: u64) -> StallRecord {
    StallRecord {
        syscall: Some("futex".into()),
        user: Some(stack(&["pthread_mutex_lock", "take_order", "handle_tick"])),
        lock: Some(LockRecord { address: 0x1000, owner: Some(thread_ref(owner)) }),
        waker: Some(woken_by(owner, "release_order")),
        ..case(id, thread, StallReason::Blocked(Reason::Lock), ns)
    }
}

pub fn woken_by(thread: u32, function: &str) -> WakerRecord {
    WakerRecord { thread: Some(thread_ref(thread)), user: Some(stack(&[function, "run"])), kernel: None }
}

/// A page fault on the third page of a file.
pub fn fault(id: u64, thread: u32, major: bool, ns: u64) -> StallRecord {
    let fault = Fault {
        address: 0x7000_2008,
        access: Some(Access::Read),
        major,
        mapping: Some(Mapping::File),
        file: Some("/data/prices.idx".into()),
        file_offset: Some(0x2008),
    };
    let reason = if major { StallReason::Major } else { StallReason::Minor };
    StallRecord {
        kind: StallKind::Fault,
        runnable_ns: 0,
        blocked_ns: ns,
        fault: Some(fault),
        ..case(id, thread, reason, ns)
    }
}

/// The same wait, not ended.
pub fn open(stall: StallRecord) -> StallRecord {
    StallRecord { open: true, waker: None, ..stall }
}

/// The same wait at another time, ns after the recording's start.
pub fn at(start_ns: u64, stall: StallRecord) -> StallRecord {
    let length = stall.duration_ns();
    let start = MonoNs(1_000_000_000 + start_ns);
    StallRecord { start, end: MonoNs(start.0 + length), ..stall }
}
