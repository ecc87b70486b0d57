// SPDX-License-Identifier: Apache-2.0
//! The spans of each kind, and the tail minus the body, in JSON.

use schemars::JsonSchema;
use serde::Serialize;
use serde::ser::Serializer;
use wallprof_analysis::spans::{Cause, Exemplar, Group, KindTail, Means};
use wallprof_model::histogram::range_from_bucket;
use wallprof_model::{ClockMap, Reason, SpanState, State};

use super::stack::StackJson;
use super::stall::{LockJson, MeaningJson, WakerJson};
use super::{known, schema};

/// `wallprof tail --json`: one object. Times of groups are means of a span.
#[derive(Serialize, JsonSchema)]
pub(crate) struct TailJson<'a> {
    #[schemars(schema_with = "schema::version")]
    schema: u32,
    kinds: Vec<KindJson<'a>>,
}

impl<'a> TailJson<'a> {
    pub fn of(kinds: &'a [KindTail], clock: &ClockMap) -> Self {
        TailJson {
            schema: schema::VERSION,
            kinds: kinds.iter().map(|kind| KindJson::of(kind, clock)).collect(),
        }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SpanKind")]
struct KindJson<'a> {
    kind: &'a str,
    #[schemars(schema_with = "schema::span_sources")]
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
    /// The spans in the middle, from which those of the tail differ.
    body: Option<MeansJson>,
    tail: Option<MeansJson>,
    /// The tail minus the body; `null` where the tail has too few spans.
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

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SpanBucket")]
struct CellJson {
    from_ns: u64,
    to_ns: u64,
    count: u64,
    total_ns: u64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SpanMeans")]
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
            states: StatesJson::of(&means.states),
        }
    }
}

/// As a ledger's states, with `cpu` for running time: spans have too few samples to divide it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SpanStates")]
struct StatesJson {
    cpu: i64,
    user: (),
    kernel: (),
    irq: i64,
    fault_minor: i64,
    fault_major: i64,
    runnable: i64,
    preempted: i64,
    #[schemars(schema_with = "schema::reasons_with::<i64>")]
    blocked: BlockedJson,
    /// The part that can have been waits without a record of their own.
    unknown: i64,
}

impl StatesJson {
    fn of(ns: &[i64; SpanState::COUNT]) -> Self {
        let of = |state: State| ns[SpanState::Of(state).index()];
        StatesJson {
            cpu: ns[SpanState::Cpu.index()],
            user: (),
            kernel: (),
            irq: of(State::Irq),
            fault_minor: of(State::FaultMinor),
            fault_major: of(State::FaultMajor),
            runnable: of(State::Runnable),
            preempted: of(State::Preempted),
            blocked: BlockedJson(Reason::ALL.map(|reason| of(State::Blocked(reason)))),
            unknown: ns[SpanState::Unknown.index()],
        }
    }
}

struct BlockedJson([i64; Reason::COUNT]);

impl Serialize for BlockedJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Reason::ALL.into_iter().zip(self.0).map(|(reason, ns)| (reason.name(), ns)))
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SpanDifference")]
struct DifferenceJson<'a> {
    mean_ns: i64,
    states: StatesJson,
    causes: Vec<CauseJson<'a>>,
}

impl<'a> DifferenceJson<'a> {
    fn of(group: &'a Group) -> Self {
        DifferenceJson {
            mean_ns: group.states.iter().sum(),
            states: StatesJson::of(&group.states),
            causes: group.causes.iter().map(CauseJson::of).collect(),
        }
    }
}

#[derive(Serialize, JsonSchema)]
struct CauseJson<'a> {
    /// Of a span of the tail beyond the body.
    ns: i64,
    /// The part of `ns` that no wait of its own shows: divided as the late waits are.
    divided_ns: i64,
    /// As in folded stacks: `blocked:lock`.
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
            divided_ns: cause.divided_ns,
            state: cause.state.label(),
            meaning: cause.meaning.as_deref().map(|meaning| MeaningJson::of(meaning, None)),
            user_stack: cause.user.as_ref().map(StackJson),
            kernel_stack: cause.kernel.as_ref().map(StackJson),
            waker: cause.waker.as_ref().map(WakerJson::of),
            lock: cause.lock.as_ref().map(|lock| LockJson::of(lock, None)),
        }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SpanExemplar")]
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
    /// The traces that the thread worked for in these stalls.
    trace_ids: &'a [String],
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
            states: StatesJson::of(&span.states.0.map(signed)),
            stalls: &exemplar.stalls,
            trace_ids: &exemplar.traces,
        }
    }
}
