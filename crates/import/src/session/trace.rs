// SPDX-License-Identifier: Apache-2.0
//! The hardware trace of a recording: its records, and the results of decoding.

use wallprof_intel_pt::{Departure, TimeConv};
use wallprof_model::{Loss, MonoNs, StackId, ThreadKey};

use super::Session;
use crate::format::records::Passed;
use crate::format::trace::TraceInfo;
use crate::intel_pt::{IntelPt, LongWait, Prepared, Traced, Waits};
use crate::seconds::{StepEmitter, ThreadOfStep, few_parts};
use crate::timeline::Step;

impl Session {
    /// Collects facts about a hardware trace.
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

    /// Prepares decoding of the trace. Called after the last record.
    pub(crate) fn prepare_trace(&mut self) -> Option<Prepared> {
        let untracked = self.pt.as_ref()?.untracked();
        let start = self.start.unwrap_or_default();
        for tid in untracked {
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

    /// The waits that are held until their stacks are known.
    pub(crate) fn waits(&mut self) -> &mut Waits {
        &mut self.waits
    }

    /// Emits a wait, with or without stacks.
    pub(crate) fn emit_wait(&mut self, long: LongWait) {
        let LongWait { key, comm, cpu, wait } = long;
        let emitter = StepEmitter { clock: &self.clock, min_stall_ns: self.options.min_stall_ns };
        emitter.emit(ThreadOfStep { key, comm: &comm, cpu }, Step::Waited(wait), &mut self.out);
    }

    /// Adds the division of the thread's time between `from` and `to` by the trace.
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
        self.running.ran(thread, self.step_emitter().second(to), traced.since(before));
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

    /// From `time` on `cpu` runs `tid`, or no thread.
    pub(super) fn trace_switch(
        &mut self,
        cpu: u32,
        time: u64,
        pid: Option<u32>,
        tid: u32,
        departure: Departure,
    ) {
        let known = self.threads.meet(pid, tid, time, &mut self.out).map(|known| (known.key, known.pid));
        let Some(pt) = &mut self.pt else { return };
        match known {
            Some((key, pid)) => pt.switch_in(cpu, time, key, tid, pid, departure),
            None => pt.switch_out(cpu, time, departure),
        }
    }

    /// A trace that follows a thread starts: the thread runs now. Later records of switches say when it does
    /// not.
    pub(super) fn trace_start(&mut self, time: Option<u64>, cpu: Option<u32>, pid: Option<u32>, tid: u32) {
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
}
