// SPDX-License-Identifier: Apache-2.0
//! The report in JSON.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use wallprof_analysis::calls::FunctionCalls;
use wallprof_analysis::latency::Bucket;
use wallprof_analysis::totals::accounts;
use wallprof_analysis::{Account, Inconsistency, Latency, States};
use wallprof_model::event::LedgerDelta;
use wallprof_model::profile::{FoldedStalls, InterruptRow, IntrusionRow, RecordingInfo, Thread};
use wallprof_model::{ClockMap, Histogram, Labels, Metric, Reason};

use super::finding::FindingJson;
use super::function::FunctionJson;
use super::mark::MarkJson;
use super::{known, schema};
use crate::report::Report;

/// `wallprof report --json`: one object.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ReportJson<'a> {
    #[schemars(schema_with = "schema::version")]
    schema: u32,
    recording: RecordingJson<'a>,
    #[schemars(with = "Vec<ThreadJson<'a>>")]
    threads: ThreadsJson<'a>,
    /// Deadlocks first, then by the share of the threads' time that they cost.
    findings: Vec<FindingJson<'a>>,
    /// `null` where not every call is known.
    functions: Option<Vec<FunctionJson<'a>>>,
    /// How often something could not be recorded, by reason.
    losses: &'a BTreeMap<String, u64>,
    unwinding: UnwindingJson<'a>,
    overhead: OverheadJson,
    interrupts: Vec<InterruptJson<'a>>,
    /// What ran on guarded CPUs.
    guard: Vec<IntrusionJson<'a>>,
    /// Stalls that were too many to be kept one by one.
    folded_stalls: Vec<FoldedJson>,
    marks: Vec<MarkJson<'a>>,
}

impl<'a> ReportJson<'a> {
    /// `functions`: where every call is known.
    pub fn of(report: &Report<'a>, functions: Option<&'a [FunctionCalls]>) -> Self {
        let info = report.info;
        ReportJson {
            schema: schema::VERSION,
            recording: RecordingJson::of(info),
            threads: ThreadsJson::of(report),
            findings: report.findings.iter().map(FindingJson::of).collect(),
            functions: functions.map(|functions| functions.iter().map(FunctionJson::of).collect()),
            losses: &info.losses,
            unwinding: UnwindingJson {
                stacks: info.unwinding.stacks,
                complete: info.unwinding.complete,
                incomplete: &info.unwinding.incomplete,
            },
            overhead: OverheadJson {
                process_cpu_ns: info.overhead.process_cpu_ns,
                probe_ns: info.overhead.probe_ns,
                probe_runs: info.overhead.probe_runs,
                behind_ns: info.overhead.behind_ns,
                table_bytes: info.overhead.table_bytes,
            },
            interrupts: report.interrupts.iter().map(InterruptJson::of).collect(),
            guard: report.intrusions.iter().map(IntrusionJson::of).collect(),
            folded_stalls: report.folded.iter().map(FoldedJson::of).collect(),
            marks: report.marks.iter().map(|mark| MarkJson::of(mark, &info.clock)).collect(),
        }
    }
}

#[derive(Serialize, JsonSchema)]
struct RecordingJson<'a> {
    /// Unix epoch.
    start_ns: u64,
    end_ns: u64,
    duration_ns: u64,
    /// `unknown`: times of day are those of a clock that is not known.
    #[schemars(schema_with = "schema::clocks")]
    clock: &'static str,
    /// `live`, or what was imported.
    source: Option<&'a str>,
    kernel: Option<&'a str>,
    arch: Option<&'a str>,
    cpus: Option<u32>,
    hostname: Option<&'a str>,
    machine_id: Option<&'a str>,
    boot_id: Option<&'a str>,
    command: Option<&'a str>,
    labels: &'a Labels,
    /// Shorter waits are no stalls.
    min_stall_ns: u64,
    /// `false`: the recorder was killed, and the end of the recording may be missing; or it still records.
    ended_cleanly: bool,
}

impl<'a> RecordingJson<'a> {
    fn of(info: &'a RecordingInfo) -> Self {
        RecordingJson {
            start_ns: info.clock.epoch_from_mono(info.start).0,
            end_ns: info.clock.epoch_from_mono(info.end).0,
            duration_ns: info.end.0.saturating_sub(info.start.0),
            clock: if info.clock.anchors().is_empty() { "unknown" } else { "epoch" },
            source: known(&info.source),
            kernel: known(&info.kernel),
            arch: known(&info.arch),
            cpus: (info.cpus > 0).then_some(info.cpus),
            hostname: known(&info.hostname),
            machine_id: known(&info.machine_id),
            boot_id: known(&info.boot_id),
            command: known(&info.command),
            labels: &info.labels,
            min_stall_ns: info.min_stall_ns,
            ended_cleanly: info.ended_cleanly,
        }
    }
}

/// All threads, made one by one while they are written.
struct ThreadsJson<'a> {
    threads: &'a [Thread],
    accounts: Vec<Account>,
    clock: &'a ClockMap,
    /// Whether this recording measured faults at all: other sources have no ends of faults.
    measures_faults: bool,
    is_sampled: bool,
}

impl<'a> ThreadsJson<'a> {
    fn of(report: &Report<'a>) -> Self {
        ThreadsJson {
            threads: report.threads,
            accounts: accounts(report.threads),
            clock: &report.info.clock,
            measures_faults: report.info.is_live(),
            is_sampled: report.threads.iter().all(|thread| thread.ledger.cpu_ns == 0),
        }
    }
}

impl Serialize for ThreadsJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let pairs = self.threads.iter().zip(&self.accounts);
        serializer.collect_seq(pairs.map(|(thread, account)| ThreadJson::of(thread, account, self)))
    }
}

/// A thread's ledger: its states and `unaccounted_ns` add up to `wall_ns`.
#[derive(Serialize, JsonSchema)]
struct ThreadJson<'a> {
    /// Its number in this recording.
    id: u32,
    pid: u32,
    tid: u32,
    /// The process's number in its own pid namespace.
    ns_pid: u32,
    /// The thread's name.
    comm: &'a str,
    process: &'a str,
    cgroup: Option<&'a str>,
    /// The id of its container.
    container: Option<String>,
    /// The container in Kubernetes: `NAMESPACE/POD/CONTAINER`.
    pod: Option<String>,
    start_ns: u64,
    end_ns: u64,
    /// For how long it was observed.
    wall_ns: u64,
    states: StatesJson,
    unaccounted_ns: u64,
    /// Running, as the scheduler counts it.
    on_cpu_ns: u64,
    /// `runnable` and `preempted` together.
    run_queue_ns: u64,
    samples: u64,
    switches: SwitchesJson,
    /// `null` where faults are not measured.
    faults: Option<FaultsJson>,
    latency: LatenciesJson,
    stalls: u64,
    inconsistencies: Vec<InconsistencyJson>,
}

impl<'a> ThreadJson<'a> {
    fn of(thread: &'a Thread, account: &Account, all: &ThreadsJson<'_>) -> Self {
        let info = &thread.info;
        ThreadJson {
            id: info.key.0,
            pid: info.pid,
            tid: info.tid,
            ns_pid: info.ns_pid,
            comm: &info.comm,
            process: &info.process,
            cgroup: info.cgroup.as_deref(),
            container: info.container(),
            pod: info.pod_name(),
            start_ns: all.clock.epoch_from_mono(thread.start).0,
            end_ns: all.clock.epoch_from_mono(thread.end).0,
            wall_ns: account.wall_ns,
            states: StatesJson::of(&account.states, all.is_sampled),
            unaccounted_ns: account.unaccounted_ns,
            on_cpu_ns: account.on_cpu_ns,
            run_queue_ns: account.run_queue_ns,
            samples: account.samples,
            switches: SwitchesJson {
                voluntary: thread.ledger.voluntary_switches,
                involuntary: thread.ledger.involuntary_switches,
            },
            faults: all.measures_faults.then(|| FaultsJson::of(&thread.ledger)),
            latency: LatenciesJson::of(thread, all.measures_faults),
            stalls: thread.stalls,
            inconsistencies: account.inconsistencies.iter().copied().map(InconsistencyJson::of).collect(),
        }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "States")]
struct StatesJson {
    /// `null` without sampling, which divides running time.
    user: Option<u64>,
    kernel: Option<u64>,
    /// `null` with sampling.
    cpu: Option<u64>,
    /// Interrupts that took its CPU while it ran.
    irq: u64,
    fault_minor: u64,
    fault_major: u64,
    /// Woken, and not yet running.
    runnable: u64,
    /// Another thread was given its CPU.
    preempted: u64,
    #[schemars(schema_with = "schema::reasons_with::<u64>")]
    blocked: BlockedJson,
}

impl StatesJson {
    fn of(states: &States, is_sampled: bool) -> Self {
        StatesJson {
            user: is_sampled.then_some(states.user),
            kernel: is_sampled.then_some(states.kernel),
            cpu: (!is_sampled).then_some(states.cpu),
            irq: states.irq,
            fault_minor: states.fault_minor,
            fault_major: states.fault_major,
            runnable: states.runnable,
            preempted: states.preempted,
            blocked: BlockedJson(states.blocked),
        }
    }
}

/// Every reason with its nanoseconds, in the order of the contract.
struct BlockedJson([u64; Reason::COUNT]);

impl Serialize for BlockedJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Reason::ALL.into_iter().zip(self.0).map(|(reason, ns)| (reason.name(), ns)))
    }
}

#[derive(Serialize, JsonSchema)]
struct SwitchesJson {
    voluntary: u64,
    involuntary: u64,
}

/// Page faults that ended, by how.
#[derive(Serialize, JsonSchema)]
struct FaultsJson {
    minor: u64,
    major: u64,
    failed: u64,
}

impl FaultsJson {
    fn of(ledger: &LedgerDelta) -> Self {
        FaultsJson { minor: ledger.minor_faults, major: ledger.major_faults, failed: ledger.failed_faults }
    }
}

/// Two measurements that contradict each other.
#[derive(Serialize, JsonSchema)]
struct InconsistencyJson {
    kind: &'static str,
    by_ns: u64,
}

impl InconsistencyJson {
    fn of(found: Inconsistency) -> Self {
        InconsistencyJson { kind: found.name(), by_ns: found.by_ns() }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Latencies")]
struct LatenciesJson {
    off_cpu: LatencyJson,
    run_queue: LatencyJson,
    fault: Option<LatencyJson>,
    #[schemars(schema_with = "schema::some_reasons_with::<LatencyJson>")]
    blocked: BlockedLatencyJson,
}

impl LatenciesJson {
    fn of(thread: &Thread, measures_faults: bool) -> Self {
        let latency = |metric| LatencyJson::of(thread.latency.get(&metric));
        let blocked =
            Reason::ALL.into_iter().filter(|&reason| thread.latency.contains_key(&Metric::Blocked(reason)));
        LatenciesJson {
            off_cpu: latency(Metric::OffCpu),
            run_queue: latency(Metric::RunQueue),
            fault: measures_faults.then(|| latency(Metric::Fault)),
            blocked: BlockedLatencyJson(
                blocked.map(|reason| (reason, latency(Metric::Blocked(reason)))).collect(),
            ),
        }
    }
}

/// The reasons a thread was ever blocked for.
struct BlockedLatencyJson(Vec<(Reason, LatencyJson)>);

impl Serialize for BlockedLatencyJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (reason, latency) in &self.0 {
            map.serialize_entry(reason.name(), latency)?;
        }
        map.end()
    }
}

/// How long something took, each time.
#[derive(Serialize, JsonSchema)]
struct LatencyJson {
    count: u64,
    total_ns: u64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
    histogram: Vec<BucketJson>,
}

impl LatencyJson {
    fn of(histogram: Option<&Histogram>) -> Self {
        let latency = histogram.map(Latency::of).unwrap_or_default();
        LatencyJson {
            count: latency.count,
            total_ns: latency.total_ns,
            p50_ns: latency.p50_ns,
            p90_ns: latency.p90_ns,
            p99_ns: latency.p99_ns,
            p999_ns: latency.p999_ns,
            max_ns: latency.max_ns,
            histogram: latency.histogram.into_iter().map(BucketJson::of).collect(),
        }
    }
}

#[derive(Serialize, JsonSchema)]
pub(super) struct BucketJson {
    from_ns: u64,
    to_ns: u64,
    count: u64,
    total_ns: u64,
}

impl BucketJson {
    pub(super) fn of(bucket: Bucket) -> Self {
        let Bucket { from_ns, to_ns, count, total_ns } = bucket;
        BucketJson { from_ns, to_ns, count, total_ns }
    }
}

/// How many stacks were taken, and how many reach the thread's start.
#[derive(Serialize, JsonSchema)]
struct UnwindingJson<'a> {
    stacks: u64,
    complete: u64,
    /// By reason.
    incomplete: &'a BTreeMap<String, u64>,
}

/// What the recording itself cost.
#[derive(Serialize, JsonSchema)]
struct OverheadJson {
    process_cpu_ns: u64,
    probe_ns: u64,
    probe_runs: u64,
    /// How far user space was behind the kernel side at most.
    behind_ns: u64,
    table_bytes: u64,
}

/// Interrupts of one kind that took the CPU from one thread.
#[derive(Serialize, JsonSchema)]
struct InterruptJson<'a> {
    cpu: u32,
    kind: &'static str,
    name: &'a str,
    /// The row of the thread that was current.
    victim: Option<u32>,
    count: u64,
    total_ns: u64,
    max_ns: u64,
}

impl<'a> InterruptJson<'a> {
    fn of(row: &'a InterruptRow) -> Self {
        InterruptJson {
            cpu: row.cpu,
            kind: row.kind.name(),
            name: &row.name,
            victim: row.victim.map(|victim| victim.0),
            count: row.count,
            total_ns: row.total_ns,
            max_ns: row.max_ns,
        }
    }
}

/// A thread or an interrupt on a guarded CPU.
#[derive(Serialize, JsonSchema)]
struct IntrusionJson<'a> {
    cpu: u32,
    kind: &'static str,
    /// The interrupt, or the function that its sender wanted called.
    what: Option<&'a str>,
    /// The thread that ran there, or sent the interrupt.
    thread: Option<u32>,
    pid: Option<u32>,
    tid: Option<u32>,
    comm: Option<&'a str>,
    allowed: bool,
    count: u64,
    total_ns: u64,
    max_ns: u64,
}

impl<'a> IntrusionJson<'a> {
    fn of(row: &'a IntrusionRow) -> Self {
        let thread = row.thread.as_ref();
        IntrusionJson {
            cpu: row.cpu,
            kind: row.kind.name(),
            what: known(&row.what),
            thread: thread.and_then(|thread| thread.key).map(|key| key.0),
            pid: thread.map(|thread| thread.pid),
            tid: thread.map(|thread| thread.tid),
            comm: thread.map(|thread| thread.comm.as_str()),
            allowed: row.allowed,
            count: row.count,
            total_ns: row.total_ns,
            max_ns: row.max_ns,
        }
    }
}

/// Stalls of a thread that were only counted.
#[derive(Serialize, JsonSchema)]
struct FoldedJson {
    thread: u32,
    #[schemars(schema_with = "schema::stall_reasons")]
    reason: &'static str,
    voluntary: bool,
    count: u64,
    total_ns: u64,
    max_ns: u64,
}

impl FoldedJson {
    fn of(folded: &FoldedStalls) -> Self {
        FoldedJson {
            thread: folded.thread.0,
            reason: folded.reason.name(),
            voluntary: folded.voluntary,
            count: folded.count,
            total_ns: folded.total_ns,
            max_ns: folded.max_ns,
        }
    }
}
