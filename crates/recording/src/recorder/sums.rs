// SPDX-License-Identifier: Apache-2.0
//! Events that are added up: ledgers, samples, interrupts, intrusions, counters, calls.

use wallprof_model::event::{
    CrossCallDelta, InterruptDelta, LatencyDelta, LedgerDelta, SampleDelta, WakerStacks, Weighted,
};
use wallprof_model::histogram::{self, Cell};
use wallprof_model::{
    CallFrame, CallPath, Counter, CounterKey, IntrusionDelta, LateSample, Span, SpanDelta, ThreadKey,
};

use super::Recorder;
use crate::intern::clipped;
use crate::pending::{
    self, CallPathRow, InterruptKey, IntrusionKey, LateRow, SampleKey, SampleWaker, SpanSum,
};
use crate::schema::FIRST_EVENT;

impl Recorder {
    pub(super) fn latency(&mut self, delta: &LatencyDelta) {
        if let Some(thread) = self.ids.thread(delta.thread) {
            let bucket = delta.bucket.min(histogram::BUCKETS - 1);
            let key = (thread, delta.metric.code(), bucket);
            pending::add_cell(self.pending.latency.entry(key).or_default(), delta.cell);
        }
    }

    pub(super) fn ledger(&mut self, mut delta: LedgerDelta) {
        if let Some(thread) = self.ids.thread(delta.thread) {
            delta.thread.0 = thread;
            self.pending.add_ledger(delta);
        }
    }

    pub(super) fn sample(&mut self, delta: SampleDelta) {
        let Some(thread) = self.ids.thread(delta.thread) else { return };
        let state_or_event = match delta.what {
            Weighted::State(state) => i64::from(state.code()),
            Weighted::Event(index) => FIRST_EVENT + i64::from(index),
        };
        let key = SampleKey {
            second: delta.second.0,
            thread,
            state_or_event,
            user: self.ids.stack(delta.user).unwrap_or(0),
            kernel: self.ids.stack(delta.kernel).unwrap_or(0),
            waker: delta.waker.map_or(0, |waker| self.sample_waker(&waker)),
        };
        self.pending.add_sample(key, delta.weight, delta.count);
    }

    pub(super) fn sample_waker(&mut self, waker: &WakerStacks) -> u32 {
        let waker = SampleWaker {
            thread: self.ids.optional_thread(waker.thread),
            interrupt: waker.interrupt,
            user: self.ids.stack(waker.user),
            kernel: self.ids.stack(waker.kernel),
        };
        let (row, is_new) = self.ids.wakers.get_or_define(waker);
        if is_new {
            waker.thread.iter().for_each(|&thread| self.ids.threads.hold(thread));
            [waker.user, waker.kernel].iter().flatten().for_each(|&node| self.tree.uses.hold(node));
            self.pending.wakers.push((row, waker));
        }
        row
    }

    pub(super) fn interrupt(&mut self, delta: InterruptDelta) {
        let key = InterruptKey {
            cpu: delta.cpu,
            kind: delta.kind,
            name: self.text(&delta.name),
            victim: self.ids.optional_thread(delta.victim).unwrap_or(0),
        };
        let cell = Cell { count: delta.count, total_ns: delta.total_ns, max_ns: delta.max_ns };
        pending::add_cell(self.pending.interrupts.entry(key).or_default(), cell);
    }

    pub(super) fn intrusion(&mut self, delta: &IntrusionDelta) {
        let key = IntrusionKey {
            cpu: delta.cpu,
            kind: delta.kind,
            what: if delta.what.is_empty() { 0 } else { self.text(&delta.what) },
            mention: delta.thread.as_ref().map_or(0, |thread| self.mention(thread)),
            allowed: delta.allowed,
        };
        let cell = Cell { count: delta.count, total_ns: delta.total_ns, max_ns: delta.max_ns };
        pending::add_cell(self.pending.intrusions.entry(key).or_default(), cell);
    }

    pub(super) fn cross_calls(&mut self, delta: &CrossCallDelta) {
        let key = (
            self.mention(&delta.caller),
            self.optional_text(delta.syscall.as_deref()).unwrap_or(0),
            self.optional_text(delta.function.as_deref()).unwrap_or(0),
        );
        let sum = self.pending.cross_calls.entry(key).or_default();
        *sum = sum.saturating_add(delta.count);
    }

    pub(super) fn spans(&mut self, delta: &SpanDelta) {
        let Some(thread) = self.ids.thread(delta.thread) else { return };
        let kind = self.text(clipped(&delta.kind));
        let bucket = delta.bucket.min(histogram::BUCKETS - 1);
        let more = SpanSum { count: delta.count, max_ns: delta.max_ns, states: delta.states };
        self.pending.span_cells.entry((thread, delta.source, kind, bucket)).or_default().add(&more);
    }

    pub(super) fn span(&mut self, span: Span) {
        let Some(thread) = self.ids.thread(span.thread) else { return };
        let kind = self.text(clipped(&span.kind));
        self.pending.spans.push((Span { thread: ThreadKey(thread), ..span }, kind));
    }

    pub(super) fn late(&mut self, sample: LateSample) {
        let Some(thread) = self.ids.thread(sample.thread) else { return };
        self.pending.late.push(LateRow {
            sample: LateSample { thread: ThreadKey(thread), ..sample },
            user: self.ids.stack(sample.user).unwrap_or(0),
            kernel: self.ids.stack(sample.kernel).unwrap_or(0),
        });
    }

    pub(super) fn counter(&mut self, key: CounterKey, mut counter: Counter) {
        counter.thread = self.ids.optional_thread(counter.thread).map(ThreadKey);
        counter.name.truncate(clipped(&counter.name).len());
        let row = self.ids.counters.define(key);
        if let Some(thread) = counter.thread.filter(|_| self.window.is_some()) {
            self.ids.counters_of.entry(thread.0).or_default().push(key);
        }
        self.pending.counters.push((row, counter));
    }

    /// A path with an unknown thread, parent or frame is unknown itself, and so are the paths below it.
    pub(super) fn call_path(&mut self, path: CallPath) {
        let Some(thread) = self.ids.thread(path.thread) else { return };
        let parent = path.parent.map(|parent| self.ids.call_path(thread, parent));
        let frame = match path.frame {
            CallFrame::Outside(outside) => Some(CallFrame::Outside(outside)),
            CallFrame::Code(frame) => self.ids.frame(frame).map(CallFrame::Code),
        };
        let (Some(frame), false) = (frame, parent == Some(None)) else { return };
        let (id, _) = self.ids.call_paths.get_or_define((thread, path.id));
        let parent = parent.flatten();
        self.pending.call_paths.push(CallPathRow { id, thread, parent, frame, numbers: path.numbers });
    }
}
