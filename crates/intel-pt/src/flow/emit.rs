// SPDX-License-Identifier: Apache-2.0
//! Emission of events, with their times and functions.

use super::Decoder;
use super::interval::Interval;
use crate::code::{Code, FunctionId};
use crate::event::{EndCause, Event, EventKind, Sink};
use crate::return_stack::ReturnAddress;
use crate::run_cache::{Step, StepKind, place};

impl<C: Code, S: Sink> Decoder<'_, '_, C, S> {
    pub(super) fn start_interval(&mut self) {
        let now = self.watch.now();
        self.interval = Interval { start: now, end: now, results: 0, used: 0 };
    }

    #[inline(always)]
    pub(super) fn next_interval(&mut self, results: u64) {
        let end = self.watch.now();
        self.interval = Interval { start: self.interval.end.min(end), end, results, used: 0 };
    }

    #[inline(always)]
    pub(super) fn emit_steps(&mut self) {
        let ticks = self.interval.between_results();
        let space = self.reading.space;
        for step in self.cache.steps(self.cache.run(self.at)) {
            let kind = match step.kind {
                StepKind::Call { return_to, call } => {
                    let space = space.of_address(return_to);
                    self.returns.push(ReturnAddress { address: return_to, site: call, space });
                    EventKind::Call { return_to }
                }
                StepKind::Jump => EventKind::Jump { indirect: false },
            };
            let Step { from, to, function, at_entry, .. } = *step;
            self.sink.event(&Event { ticks, from, to, function, at_entry, kind });
        }
    }

    #[cold]
    pub(super) fn emit_taken_branch(&mut self) {
        let site = *self.cache.site(self.at);
        let ticks = self.interval.at_result();
        self.emit_at(ticks, EventKind::Jump { indirect: false }, site.source, site.target());
    }

    pub(super) fn emit_end(&mut self, cause: EndCause, from: u64, return_to: u64) {
        self.emit_bare(EventKind::End { cause, return_to }, from);
    }

    pub(super) fn emit(&mut self, kind: EventKind, from: u64, to: u64) {
        self.emit_at(self.watch.now(), kind, from, to);
    }

    pub(super) fn emit_at(&mut self, ticks: u64, kind: EventKind, from: u64, to: u64) {
        let (function, at_entry) = place(self.trace.code, self.reading, to);
        self.sink.event(&Event { ticks, from, to, function, at_entry, kind });
    }

    pub(super) fn emit_bare(&mut self, kind: EventKind, from: u64) {
        self.emit_bare_at(self.watch.now(), kind, from);
    }

    pub(super) fn emit_bare_at(&mut self, ticks: u64, kind: EventKind, from: u64) {
        self.sink.event(&Event { ticks, from, to: 0, function: FunctionId::UNKNOWN, at_entry: false, kind });
    }
}
