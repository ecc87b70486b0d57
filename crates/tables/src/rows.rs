// SPDX-License-Identifier: Apache-2.0
//! The rows of each table, in the order of its columns.

use wallprof_model::event::Throttled;
use wallprof_model::histogram::range_from_bucket;
use wallprof_model::profile::{Finding, RecordingInfo, ResolvedStack, StallRecord, WakerRecord};
use wallprof_model::{
    Counter, FrameKind, Span, SpanDelta, SpanStates, ThreadInfo, ThreadKey, ThreadRef, container_from_cgroup,
};

use crate::stack_id::StackHash;
use crate::value::Value;

/// A row of `recordings`; `labels` is a JSON object, and nothing was measured for `paused_ns`.
pub fn recording_row<'v>(
    recording: &'v str,
    info: &'v RecordingInfo,
    paused_ns: u64,
    labels: String,
) -> Vec<Value<'v>> {
    let known = |text: &'v String| Value::from((!text.is_empty()).then_some(text.as_str()));
    let (start, end) = (info.clock.epoch_from_mono(info.start), info.clock.epoch_from_mono(info.end));
    vec![
        recording.into(),
        Value::time(start.0),
        start.0.into(),
        end.0.into(),
        info.end.0.saturating_sub(info.start.0).saturating_sub(paused_ns).into(),
        labels.into(),
        known(&info.command),
        known(&info.source),
        known(&info.kernel),
        known(&info.arch),
        (info.cpus > 0).then_some(info.cpus).into(),
        known(&info.machine_id),
        known(&info.boot_id),
        info.min_stall_ns.into(),
        info.ended_cleanly.into(),
        info.overhead.process_cpu_ns.into(),
        info.overhead.probe_ns.into(),
    ]
}

/// The columns by which every table of threads names one. The pod, which came later, is the last column of each.
#[derive(Clone, Debug)]
pub struct ThreadColumns([Value<'static>; 6], Value<'static>);

impl ThreadColumns {
    pub fn of(thread: &ThreadInfo) -> ThreadColumns {
        let columns = [
            thread.key.0.into(),
            thread.pid.into(),
            thread.tid.into(),
            thread.process.clone().into(),
            thread.comm.clone().into(),
            thread.container().into(),
        ];
        ThreadColumns(columns, thread.pod_name().into())
    }

    /// Of a thread about which nothing but its number is known.
    pub fn unknown(thread: ThreadKey) -> ThreadColumns {
        let ThreadColumns(mut columns, pod) = ThreadColumns::none();
        columns[0] = thread.0.into();
        ThreadColumns(columns, pod)
    }

    /// Of no thread.
    fn none() -> ThreadColumns {
        ThreadColumns([const { Value::Null }; 6], Value::Null)
    }

    fn container(&self) -> Value<'_> {
        self.0[5].borrowed()
    }

    fn pod(&self) -> Value<'_> {
        self.1.borrowed()
    }

    fn values(&self) -> impl Iterator<Item = Value<'_>> {
        self.0.iter().map(Value::borrowed)
    }
}

/// The recording, the time, the thread, the table's own columns, and the thread's pod.
pub fn thread_row<'v>(
    recording: &'v str,
    epoch_ns: u64,
    thread: &'v ThreadColumns,
    rest: impl IntoIterator<Item = Value<'v>>,
) -> Vec<Value<'v>> {
    let start = [recording.into(), Value::time(epoch_ns)];
    start.into_iter().chain(thread.values()).chain(rest).chain([thread.pod()]).collect()
}

/// The hashes of a stall's stacks, in the order user, kernel, waker's user, waker's kernel.
pub type StallStacks = [Option<StackHash>; 4];

const SECOND_NS: u64 = 1_000_000_000;

/// The second of a time: it takes a bit or two of a row, where a time of its own beside `start_ns` took two bytes.
fn second(epoch_ns: u64) -> Value<'static> {
    Value::time(epoch_ns - epoch_ns % SECOND_NS)
}

/// The thread that had the CPU for the longest part of a stall's waiting for one.
pub fn ran_longest(stall: &StallRecord) -> Option<&ThreadRef> {
    // Most time first.
    stall.ran_instead.first().map(|(thread, _)| thread)
}

/// A row of `stalls`; `ran` is the thread that [`ran_longest`], where it is recorded.
pub fn stall_row<'v>(
    recording: &'v str,
    stall: &'v StallRecord,
    thread: &'v ThreadColumns,
    start_ns: u64,
    stacks: &'v StallStacks,
    ran: Option<&'v ThreadColumns>,
) -> Vec<Value<'v>> {
    let [user, kernel, waker_user, waker_kernel] = stacks.each_ref().map(Option::as_deref);
    let waker = stall.waker.as_ref().and_then(|waker| waker.thread.as_ref());
    let context = |waker: &WakerRecord| if waker.thread.is_some() { "task" } else { "interrupt" };
    let owner = stall.lock.as_ref().and_then(|lock| lock.owner.as_ref());
    // A lock of the kernel has none.
    let address = stall.lock.as_ref().filter(|lock| lock.address != 0);
    let faulted = stall.fault.as_ref().and_then(|fault| fault.file.as_deref());
    let file = stall.file.as_ref().map(|file| file.path.as_str()).or(faulted);
    let duration_ns = stall.end.0.saturating_sub(stall.start.0);
    let start = [
        recording.into(),
        stall.id.into(),
        second(start_ns),
        start_ns.into(),
        // Nearly always 0, so that it takes nothing. A duration beside the lateness took 3.5 bytes of a row.
        duration_ns.saturating_sub(stall.late_ns()).into(),
        stall.late_ns().into(),
        stall.open.into(),
    ];
    let rest = [
        stall.kind.name().into(),
        stall.reason.name().into(),
        stall.voluntary.into(),
        stall.meaning.as_ref().map(|meaning| meaning.name.as_str()).into(),
        stall.meaning.as_ref().and_then(|meaning| meaning.software.as_deref()).into(),
        stall.wait_id.into(),
        stall.runnable_ns.into(),
        stall.syscall.as_deref().into(),
        stall.cpu.into(),
        user.into(),
        kernel.into(),
        stall.waker.as_ref().map(context).into(),
        waker.map(|waker| waker.pid).into(),
        waker.map(|waker| waker.tid).into(),
        waker.map(|waker| waker.comm.as_str()).into(),
        waker_user.into(),
        waker_kernel.into(),
        address.map(|lock| format!("{:#x}", lock.address)).into(),
        owner.map(|owner| owner.tid).into(),
        owner.map(|owner| owner.comm.as_str()).into(),
        file.into(),
        stall.trace.map(|ids| ids.trace_id()).into(),
        stall.trace.map(|ids| ids.span_id()).into(),
        ran_longest(stall).map(|thread| thread.comm.as_str()).into(),
        ran.map_or(Value::Null, ThreadColumns::container),
        thread.pod(),
    ];
    start.into_iter().chain(thread.values()).chain(rest).collect()
}

/// A row of `stacks`. The text is leaf first.
pub fn stack_row<'v>(recording: &'v str, hash: &'v str, stack: &ResolvedStack) -> Vec<Value<'v>> {
    let (mut text, mut leaf) = (String::new(), None);
    for (frame, line) in
        stack.frames.iter().flat_map(|frame| frame.lines.iter().map(move |line| (frame, line)))
    {
        if leaf.is_some() {
            text.push_str(" < ");
        }
        match (&line.symbol, frame.kind) {
            (Some(symbol), FrameKind::Kernel) => text.extend([symbol.as_str(), "_[k]"]),
            (Some(symbol), _) => text.push_str(symbol),
            (None, _) => text += &format!("{}+{:#x}", frame.module.as_deref().unwrap_or(""), frame.address),
        }
        leaf.get_or_insert(text.len());
    }
    let leaf = leaf.map(|end| text[..end].to_owned());
    vec![
        recording.into(),
        hash.into(),
        text.into(),
        leaf.into(),
        Value::number(stack.frames.len()),
        stack.end.name().into(),
    ]
}

/// A row of `spans`, with the second for its time, too.
pub fn span_row<'v>(
    recording: &'v str,
    id: u64,
    span: &'v Span,
    thread: &'v ThreadColumns,
    start_ns: u64,
) -> Vec<Value<'v>> {
    let rest = [
        id.into(),
        span.source.name().into(),
        span.kind.as_ref().into(),
        start_ns.into(),
        span.duration_ns().into(),
    ];
    let second_ns = start_ns - start_ns % SECOND_NS;
    thread_row(recording, second_ns, thread, rest.into_iter().chain(of_states(&span.states)))
}

/// A row of `span_latency`.
pub fn span_latency_row<'v>(
    recording: &'v str,
    epoch_ns: u64,
    spans: &'v SpanDelta,
    thread: &'v ThreadColumns,
) -> Vec<Value<'v>> {
    let (from_ns, to_ns) = range_from_bucket(spans.bucket);
    let rest = [
        spans.source.name().into(),
        spans.kind.as_ref().into(),
        from_ns.into(),
        to_ns.into(),
        spans.count.into(),
        spans.states.total_ns().into(),
        spans.max_ns.into(),
    ];
    thread_row(recording, epoch_ns, thread, rest.into_iter().chain(of_states(&spans.states)))
}

fn of_states<'v>(states: &SpanStates) -> impl Iterator<Item = Value<'v>> + use<'v> {
    states.0.into_iter().map(Value::from)
}

/// The columns by which `counters` names one. A counter of the machine has no thread.
#[derive(Clone, Debug)]
pub struct CounterColumns {
    thread: ThreadColumns,
    name: String,
    kind: &'static str,
    unit: &'static str,
}

impl CounterColumns {
    pub fn of(counter: &Counter, thread: Option<ThreadColumns>) -> CounterColumns {
        CounterColumns {
            thread: thread.unwrap_or_else(ThreadColumns::none),
            name: counter.name.clone(),
            kind: counter.kind.name(),
            unit: counter.unit.name(),
        }
    }

    /// A row of `counters`.
    pub fn row<'v>(&'v self, recording: &'v str, epoch_ns: u64, value: f64) -> Vec<Value<'v>> {
        let rest = [self.name.as_str().into(), self.kind.into(), self.unit.into(), Value::real(value)];
        thread_row(recording, epoch_ns, &self.thread, rest)
    }
}

/// A row of `throttling`, with the times since the epoch.
pub fn throttling_row<'v>(
    recording: &'v str,
    throttled: &'v Throttled,
    from_ns: u64,
    to_ns: u64,
) -> Vec<Value<'v>> {
    vec![
        recording.into(),
        second(from_ns),
        container_from_cgroup(&throttled.cgroup).into(),
        throttled.cgroup.as_str().into(),
        from_ns.into(),
        to_ns.into(),
        throttled.quota_ns.into(),
        throttled.period_ns.into(),
        throttled.count.into(),
        throttled.total_ns.into(),
    ]
}

/// A row of `findings`.
pub fn finding_row<'v>(recording: &'v str, epoch_ns: u64, finding: &'v Finding) -> Vec<Value<'v>> {
    vec![
        recording.into(),
        Value::time(epoch_ns),
        finding.rule.as_str().into(),
        finding.title.as_str().into(),
        finding.advice.as_str().into(),
        finding.count.into(),
        finding.total_ns.into(),
        finding.max_ns.into(),
    ]
}

/// A row of `losses`.
pub fn loss_row<'v>(recording: &'v str, epoch_ns: u64, reason: &'v str, count: u64) -> Vec<Value<'v>> {
    vec![recording.into(), Value::time(epoch_ns), reason.into(), count.into()]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use wallprof_model::{MonoNs, PodContainer, StallReason};

    use super::*;
    use crate::schema::{COUNTERS, LEDGER, STALLS};

    #[test]
    fn pod_of_a_thread_is_the_last_column() {
        let mut thread = ThreadInfo::new(ThreadKey(7), (1, "app"), (2, "worker"));
        let (namespace, pod, container) = ("shop".into(), "web-0".into(), "app".into());
        thread.pod = Some(Arc::new(PodContainer { namespace, pod, container }));
        let columns = ThreadColumns::of(&thread);
        let row = thread_row("r", 0, &columns, ["user".into(), 5_u64.into()]);
        assert_eq!(row.len(), LEDGER.columns.len());
        assert_eq!(row.last(), Some(&Value::from("shop/web-0/app")));
        let stall = StallRecord::new(1, ThreadKey(7), StallReason::Runnable, MonoNs(0), 5);
        let stacks = StallStacks::default();
        let row = stall_row("r", &stall, &columns, 0, &stacks, None);
        assert_eq!(row.len(), STALLS.columns.len());
        assert_eq!(row.last(), Some(&Value::from("shop/web-0/app")));
        let unknown = ThreadColumns::unknown(ThreadKey(7));
        let row = thread_row(
            "r",
            0,
            &unknown,
            ["a", "b", "c"].map(Value::from).into_iter().chain([Value::real(1.0)]),
        );
        assert_eq!((row.len(), row.last()), (COUNTERS.columns.len(), Some(&Value::Null)));
    }
}
