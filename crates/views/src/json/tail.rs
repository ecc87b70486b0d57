//! The spans of each kind, and the tail minus the body, in JSON.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use wallprof_analysis::spans::{Cause, Exemplar, Group, KindTail, Means};
use wallprof_model::histogram::range_from_bucket;
use wallprof_model::{ClockMap, Reason, SpanState, State};

use super::known;
use super::stack::StackJson;
use super::stall::{LockJson, MeaningJson, WakerJson};

#[derive(Serialize)]
pub(super) struct TailJson<'a> {
    schema: u32,
    kinds: Vec<KindJson<'a>>,
}

impl<'a> TailJson<'a> {
    pub fn of(kinds: &'a [KindTail], clock: &ClockMap) -> Self {
        TailJson { schema: 1, kinds: kinds.iter().map(|kind| KindJson::of(kind, clock)).collect() }
    }
}

#[derive(Serialize)]
struct KindJson<'a> {
    kind: &'a str,
    source: &'static str,
    process: Option<&'a str>,
    count: u64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
    histogram: Vec<CellJson>,
    /// From which percentile on spans are in the tail.
    tail_percentile: f64,
    body: Option<MeansJson>,
    tail: Option<MeansJson>,
    difference: Option<DifferenceJson<'a>>,
    exemplars: Vec<ExemplarJson<'a>>,
}

impl<'a> KindJson<'a> {
    fn of(kind: &'a KindTail, clock: &ClockMap) -> Self {
        let cells = kind.histogram.cells().map(|(bucket, cell)| {
            let (from_ns, to_ns) = range_from_bucket(bucket);
            CellJson { from_ns, to_ns, count: cell.count, total_ns: cell.total_ns }
        });
        KindJson {
            kind: &kind.kind,
            source: kind.source.name(),
            process: known(&kind.process),
            count: kind.histogram.count(),
            p50_ns: kind.histogram.quantile_ns(0.5),
            p90_ns: kind.histogram.quantile_ns(0.9),
            p99_ns: kind.histogram.quantile_ns(0.99),
            p999_ns: kind.histogram.quantile_ns(0.999),
            max_ns: kind.histogram.max_ns(),
            histogram: cells.collect(),
            tail_percentile: (kind.tail_share * 1e6).round() / 1e4,
            body: kind.body.as_ref().map(MeansJson::of),
            tail: kind.difference.as_ref().map(|group| MeansJson::of(&group.tail)),
            difference: kind.difference.as_ref().map(DifferenceJson::of),
            exemplars: kind.exemplars.iter().map(|span| ExemplarJson::of(span, clock)).collect(),
        }
    }
}

#[derive(Serialize)]
struct CellJson {
    from_ns: u64,
    to_ns: u64,
    count: u64,
    total_ns: u64,
}

#[derive(Serialize)]
struct MeansJson {
    from_ns: u64,
    to_ns: u64,
    count: u64,
    mean_ns: i64,
    states: StatesJson,
}

impl MeansJson {
    fn of(means: &Means) -> Self {
        MeansJson {
            from_ns: means.from_ns,
            to_ns: means.to_ns,
            count: means.count,
            mean_ns: means.mean_ns(),
            states: StatesJson(means.states),
        }
    }
}

/// As a ledger's states, with `cpu` for running time: spans have too few samples to divide it. `unknown` is the
/// part that can have been waits without a record of their own.
struct StatesJson([i64; SpanState::COUNT]);

impl Serialize for StatesJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let of = |state: State| self.0[SpanState::Of(state).index()];
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("cpu", &self.0[SpanState::Cpu.index()])?;
        map.serialize_entry("user", &None::<i64>)?;
        map.serialize_entry("kernel", &None::<i64>)?;
        map.serialize_entry("irq", &of(State::Irq))?;
        map.serialize_entry("fault_minor", &of(State::FaultMinor))?;
        map.serialize_entry("fault_major", &of(State::FaultMajor))?;
        map.serialize_entry("runnable", &of(State::Runnable))?;
        map.serialize_entry("preempted", &of(State::Preempted))?;
        map.serialize_entry("blocked", &BlockedJson(&self.0))?;
        map.serialize_entry("unknown", &self.0[SpanState::Unknown.index()])?;
        map.end()
    }
}

struct BlockedJson<'a>(&'a [i64; SpanState::COUNT]);

impl Serialize for BlockedJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let of = |reason: Reason| self.0[SpanState::Of(State::Blocked(reason)).index()];
        serializer.collect_map(Reason::ALL.into_iter().map(|reason| (reason.name(), of(reason))))
    }
}

#[derive(Serialize)]
struct DifferenceJson<'a> {
    mean_ns: i64,
    states: StatesJson,
    causes: Vec<CauseJson<'a>>,
}

impl<'a> DifferenceJson<'a> {
    fn of(group: &'a Group) -> Self {
        DifferenceJson {
            mean_ns: group.states.iter().sum(),
            states: StatesJson(group.states),
            causes: group.causes.iter().map(CauseJson::of).collect(),
        }
    }
}

#[derive(Serialize)]
struct CauseJson<'a> {
    ns: i64,
    state: String,
    meaning: Option<MeaningJson<'a>>,
    user_stack: Option<StackJson<'a>>,
    kernel_stack: Option<StackJson<'a>>,
    waker: Option<WakerJson<'a>>,
    lock: Option<LockJson<'a>>,
}

impl<'a> CauseJson<'a> {
    fn of(cause: &'a Cause) -> Self {
        CauseJson {
            ns: cause.ns,
            state: cause.state.label(),
            meaning: cause.meaning.as_deref().map(|meaning| MeaningJson::of(meaning, None)),
            user_stack: cause.user.as_ref().map(StackJson),
            kernel_stack: cause.kernel.as_ref().map(StackJson),
            waker: cause.waker.as_ref().map(WakerJson::of),
            lock: cause.lock.as_ref().map(|lock| LockJson::of(lock, None)),
        }
    }
}

#[derive(Serialize)]
struct ExemplarJson<'a> {
    id: u64,
    start_ns: u64,
    end_ns: u64,
    duration_ns: u64,
    thread: u32,
    tid: u32,
    comm: &'a str,
    states: StatesJson,
    stalls: &'a [u64],
}

impl<'a> ExemplarJson<'a> {
    fn of(exemplar: &'a Exemplar, clock: &ClockMap) -> Self {
        let span = &exemplar.span;
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        ExemplarJson {
            id: exemplar.id,
            start_ns: clock.epoch_from_mono(span.start).0,
            end_ns: clock.epoch_from_mono(span.end).0,
            duration_ns: span.duration_ns(),
            thread: span.thread.0,
            tid: exemplar.tid,
            comm: &exemplar.comm,
            states: StatesJson(span.states.0.map(signed)),
            stalls: &exemplar.stalls,
        }
    }
}
