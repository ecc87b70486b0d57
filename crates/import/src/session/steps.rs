// SPDX-License-Identifier: Apache-2.0
//! Steps of threads' timelines, and their events.

use wallprof_model::{Event, ThreadKey};

use super::Session;
use crate::seconds::{StepEmitter, ThreadOfStep, WokenBy};
use crate::threads::Known;
use crate::timeline::{Spent, Step};

impl Session {
    /// Changes a thread's timeline and emits its steps. The timeline of a new thread starts at `from`.
    pub(super) fn with_thread(
        &mut self,
        pid: Option<u32>,
        tid: u32,
        from: u64,
        time: u64,
        change: impl FnOnce(&mut Known, u64, &mut Vec<Step<WokenBy>>),
    ) -> Option<ThreadKey> {
        let mut steps = Vec::new();
        let known = self.threads.meet(pid, tid, from, &mut self.out)?;
        change(known, time, &mut steps);
        let (key, cpu) = (known.key, known.cpu);
        self.emit_steps(key, tid, cpu, steps);
        Some(key)
    }

    pub(super) fn emit(&mut self, known: &Known, tid: u32, steps: Vec<Step<WokenBy>>) {
        self.emit_steps(known.key, tid, known.cpu, steps);
    }

    /// With a trace, long waits are held until their stacks are known.
    fn emit_steps(&mut self, key: ThreadKey, tid: u32, cpu: Option<u32>, steps: Vec<Step<WokenBy>>) {
        let min_stall_ns = self.options.min_stall_ns;
        let is_known = |step: &Step<WokenBy>| !matches!(step, Step::Spent { what: Spent::Unknown, .. });
        self.is_accounted |= steps.iter().any(is_known);
        let first = self.out.len();
        let thread = ThreadOfStep { key, comm: self.threads.comm(tid), cpu };
        let emitter = StepEmitter { clock: &self.clock, min_stall_ns };
        for step in steps {
            let step = match step {
                Step::Waited(wait) if self.pt.is_some() && wait.to - wait.from >= min_stall_ns => {
                    let Some(wait) = self.waits.keep(key, thread.comm, cpu, wait) else { continue };
                    Step::Waited(wait)
                }
                step => step,
            };
            emitter.emit(thread, step, &mut self.out);
        }
        if self.is_traced || self.pt.is_some() {
            let emitted = self.out[first..].iter();
            let buckets = emitted.filter_map(|event| match event {
                Event::Ledger(delta) if delta.wall_ns > 0 => Some(delta),
                _ => None,
            });
            buckets.for_each(|delta| self.running.lived(delta));
        }
    }

    pub(super) fn step_emitter(&self) -> StepEmitter<'_> {
        StepEmitter { clock: &self.clock, min_stall_ns: self.options.min_stall_ns }
    }
}
