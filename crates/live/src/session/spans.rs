// SPDX-License-Identifier: Apache-2.0
//! Spans: all of them as sums, and the slowest of each second and program one by one.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use wallprof_model::span::{BUSY, LateSample, Span, SpanDelta, SpanSource, SpanState, SpanStates};
use wallprof_model::state::State;
use wallprof_model::{Event, Loss, MonoNs, Reason, SpanBudgets, ThreadKey};
use wallprof_probe::bpf::{constants as c, late_record, probed_record, span_states};

use super::aggregates::state_from_kind;
use super::{Session, SessionError};
use crate::kernel_side::KernelSide;
use crate::marks::Flushed;
use crate::stacks::Stacks;

/// Single periods that are kept of each flush, of all programs, at 250 bytes each. A few programs share all of
/// them.
const MOST: usize = 128;
/// Of one of many programs: the slowest, and others.
const SLOWEST: usize = 16;
const OTHERS: usize = 8;
/// Of those over their budget.
const MOST_OVER: usize = 1_024;

impl<K: KernelSide> Session<K> {
    /// Emits the sums of seconds before `second`, and the single periods that have arrived.
    pub(super) fn emit_spans(
        &mut self,
        second: u32,
        emit: &mut dyn FnMut(Event),
    ) -> Result<(), SessionError> {
        let kind: Arc<str> = BUSY.into();
        self.kernel.drain_spans(&mut |key, value| {
            let past = key.second < second;
            if past {
                emit(Event::Spans(Box::new(SpanDelta {
                    thread: ThreadKey(key.key),
                    source: SpanSource::Busy,
                    kind: Arc::clone(&kind),
                    bucket: key.bucket as u16,
                    count: value.count,
                    max_ns: value.max,
                    states: states_from(&value.states),
                })));
            }
            past
        })?;
        let mut by_program: HashMap<Vec<u8>, Vec<Span>> = HashMap::new();
        for record in std::mem::take(&mut self.pending.spans) {
            match self.threads.program_of(record.key) {
                Some(program) => by_program.entry(program.to_vec()).or_default().push(Span {
                    thread: ThreadKey(record.key),
                    source: SpanSource::Busy,
                    kind: Arc::clone(&kind),
                    start: MonoNs(record.start),
                    end: MonoNs(record.end),
                    states: states_from(&record.states),
                }),
                // Its own record comes with the next reading.
                None if record.end >= self.flushed_until => self.pending.spans.push(record),
                None => {}
            }
        }
        emit_examples(by_program.into_values(), &self.budgets, emit);
        self.emit_late(emit);
        Ok(())
    }

    /// Emits the marked spans that ended before `boundary`.
    pub(super) fn emit_marked(&mut self, boundary: u64, emit: &mut dyn FnMut(Event)) {
        // Also slots that were taken since the last look: it may be the last.
        self.follow_marks();
        let flushed = self.marks.flush(boundary, &self.threads, &self.budgets);
        self.emit_flushed(flushed, emit);
    }

    /// Emits the spans of `--span` that ended before `end`.
    pub(super) fn emit_probed(&mut self, end: u64, emit: &mut dyn FnMut(Event)) {
        let mut due: Vec<probed_record> = self.pending.probed.extract_if(.., |span| span.end < end).collect();
        let mut lost = 0;
        due.retain(|span| {
            let is_known = self.threads.program_of(span.key).is_some();
            if !is_known && span.end >= self.flushed_until {
                // Its own record comes with the next reading.
                self.pending.probed.push(*span);
            } else {
                lost += u64::from(!is_known);
            }
            is_known
        });
        if lost > 0 {
            emit(Event::loss(Loss::ProbedSpansLost, lost));
        }
        let program_of = |key| self.threads.program_of(key).unwrap_or_default().to_vec();
        let flushed = self.probed.flush(due, end, &program_of);
        self.emit_flushed(flushed, emit);
    }

    /// Removes the probes of `--span` that are hit too often.
    pub(super) fn follow_span_probes(&mut self, emit: &mut dyn FnMut(Event)) -> Result<(), SessionError> {
        let now = self.kernel.now().0;
        if !self.probed.is_due(now) {
            return Ok(());
        }
        let hits = self.kernel.span_probe_hits()?;
        for number in self.probed.take_hits(now, hits) {
            self.kernel.remove_span_probes(number);
            emit(Event::loss(Loss::SpanProbesRemoved, 1));
        }
        Ok(())
    }

    fn emit_flushed(&self, flushed: Flushed, emit: &mut dyn FnMut(Event)) {
        let losses = [
            (Loss::MarksOverwritten, flushed.overwritten),
            (Loss::MarksLeftOut, flushed.left_out),
            (Loss::SpansOverBudgetLeftOut, flushed.over_left_out),
        ];
        for (loss, count) in losses.into_iter().filter(|(_, count)| *count > 0) {
            emit(Event::Loss { reason: loss.name().into(), count });
        }
        flushed.late.into_iter().for_each(|sample| emit(Event::Late(sample)));
        flushed.sums.into_iter().for_each(|sum| emit(Event::Spans(Box::new(sum))));
        let mut by_kind: HashMap<(Vec<u8>, Arc<str>), Vec<Span>> = HashMap::new();
        for span in flushed.spans {
            let program = self.threads.program_of(span.thread.0).unwrap_or_default().to_vec();
            by_kind.entry((program, Arc::clone(&span.kind))).or_default().push(span);
        }
        emit_examples(by_kind.into_values(), &self.budgets, emit);
    }

    fn emit_late(&mut self, emit: &mut dyn FnMut(Event)) {
        for record in std::mem::take(&mut self.pending.late) {
            if self.threads.pid_of(record.key).is_some() {
                for sample in late_samples(&record, &self.stacks) {
                    if record.within & c::LATE_IN_BUSY as u32 != 0 {
                        emit(Event::Late(sample));
                    }
                    if record.within & c::LATE_IN_MARKED as u32 != 0 {
                        self.marks.take_sample(sample);
                    }
                    if record.within & c::LATE_IN_PROBED as u32 != 0 {
                        self.probed.take_sample(sample);
                    }
                }
            } else if record.at >= self.flushed_until {
                self.pending.late.push(record);
            }
        }
    }
}

/// A wait has a part for which it waited for a CPU.
fn late_samples(record: &late_record, stacks: &Stacks) -> impl Iterator<Item = LateSample> {
    let state = state_from_kind(u64::from(record.what));
    let parts = [(state, record.ns), (Some(State::Runnable), record.runnable_ns)];
    let (user, kernel) = (stacks.id(record.user_stack), stacks.id(record.kernel_stack));
    let (thread, source, at) = (ThreadKey(record.key), SpanSource::Busy, MonoNs(record.at));
    let sample = move |(state, ns)| Some(LateSample { thread, source, at, state: state?, ns, user, kernel });
    parts.into_iter().filter(|(_, ns)| *ns > 0).filter_map(sample)
}

/// Emits the spans over their budget, and examples of each group, the slowest of all groups first where these
/// are too many.
fn emit_examples(
    groups: impl ExactSizeIterator<Item = Vec<Span>>,
    budgets: &SpanBudgets,
    emit: &mut dyn FnMut(Event),
) {
    let slowest = slowest_of_each(groups.len());
    let (mut over, mut kept) = (Vec::new(), Vec::new());
    for mut group in groups {
        over.extend(group.extract_if(.., |span| span.is_over(budgets)));
        kept.extend(examples(group, slowest));
    }
    let left_out = keep_slowest(&mut over, MOST_OVER);
    if left_out > 0 {
        emit(Event::Loss { reason: Loss::SpansOverBudgetLeftOut.name().into(), count: left_out as u64 });
    }
    keep_slowest(&mut kept, MOST);
    kept.append(&mut over);
    kept.sort_by_key(|span| (span.end, span.thread));
    kept.into_iter().for_each(|span| emit(Event::Span(Box::new(span))));
}

/// Returns how many were removed.
fn keep_slowest(spans: &mut Vec<Span>, most: usize) -> usize {
    let removed = spans.len().saturating_sub(most);
    spans.sort_by_key(|span| (Reverse(span.duration_ns()), span.start));
    spans.truncate(most);
    removed
}

/// The tail of a server that ends a thousand periods a second begins at its fiftieth slowest. The places of its
/// waits are known of the periods that are kept.
fn slowest_of_each(groups: usize) -> usize {
    (MOST / groups.max(1)).saturating_sub(OTHERS).max(SLOWEST)
}

/// The slowest, and some of the others, evenly.
fn examples(mut spans: Vec<Span>, slowest: usize) -> Vec<Span> {
    spans.sort_by_key(|span| Reverse(span.duration_ns()));
    let others = spans.split_off(slowest.min(spans.len()));
    let step = others.len().div_ceil(OTHERS).max(1);
    spans.extend(others.into_iter().step_by(step));
    spans
}

pub(crate) fn states_from(states: &span_states) -> SpanStates {
    let mut ns = SpanStates::default();
    let cpu = states.on_cpu.saturating_sub(states.irq).saturating_sub(states.fault_on_cpu);
    let mut set = |state: SpanState, value: u64| ns.0[state.index()] = value;
    set(SpanState::Cpu, cpu);
    set(SpanState::Of(State::Irq), states.irq);
    set(SpanState::Of(State::FaultMinor), states.blocked[c::SLEEP_FAULT_MINOR as usize]);
    set(SpanState::Of(State::FaultMajor), states.blocked[c::SLEEP_FAULT_MAJOR as usize]);
    set(SpanState::Of(State::Runnable), states.runnable);
    set(SpanState::Of(State::Preempted), states.preempted);
    for reason in Reason::ALL {
        set(SpanState::Of(State::Blocked(reason)), states.blocked[usize::from(reason.code())]);
    }
    ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_a_period_add_up_to_it() {
        let mut states = span_states { on_cpu: 100, irq: 7, fault_on_cpu: 13, ..span_states::default() };
        (states.runnable, states.preempted) = (5, 3);
        states.blocked[usize::from(Reason::Lock.code())] = 40;
        states.blocked[c::SLEEP_FAULT_MINOR as usize] = 20;
        let found = states_from(&states);
        // Of the fault's 20 ns, 13 are running time.
        assert_eq!(found.total_ns(), 100 + 5 + 3 + 40 + (20 - 13));
        assert_eq!(found.0[SpanState::Cpu.index()], 80);
        assert_eq!(found.0[SpanState::Of(State::Blocked(Reason::Lock)).index()], 40);
    }

    fn span(ns: u64) -> Span {
        Span {
            thread: ThreadKey(1),
            source: SpanSource::Busy,
            kind: BUSY.into(),
            start: MonoNs(0),
            end: MonoNs(ns),
            states: SpanStates::default(),
        }
    }

    #[test]
    fn spans_over_their_budget_are_kept_up_to_a_limit_that_is_counted() {
        let budgets = SpanBudgets::from([(BUSY.to_owned(), 500), ("order".to_owned(), 1)]);
        let emitted = |count: u64| {
            let (mut spans, mut left_out) = (Vec::new(), 0);
            let all: Vec<Span> = (1..=count).map(span).collect();
            emit_examples(std::iter::once(all), &budgets, &mut |event| match event {
                Event::Span(span) => spans.push(span.end.0),
                Event::Loss { count, .. } => left_out += count,
                _ => {}
            });
            (spans.iter().filter(|ns| **ns > 500).count(), spans.len(), left_out)
        };
        assert_eq!(emitted(500), (0, MOST, 0));
        assert_eq!(emitted(1_100), (600, 600 + MOST, 0));
        assert_eq!(emitted(2_000), (MOST_OVER, MOST_OVER + MOST, 1_500 - MOST_OVER as u64));
    }

    #[test]
    fn slowest_periods_and_some_others_are_kept() {
        let kept: Vec<u64> =
            examples((1..=100).map(span).collect(), SLOWEST).iter().map(|kept| kept.end.0).collect();
        let slowest: Vec<u64> = (0..SLOWEST as u64).map(|at| 100 - at).collect();
        assert_eq!(kept[..SLOWEST], slowest);
        assert_eq!(kept[SLOWEST..].len(), OTHERS);
        assert_eq!(examples((1..4).map(span).collect(), SLOWEST).len(), 3);
        assert!(examples(Vec::new(), SLOWEST).is_empty());
    }

    #[test]
    fn few_programs_share_what_may_be_kept_of_all() {
        let emitted = |programs: usize| {
            let mut count = 0;
            let groups = vec![(1..=1_000).map(span).collect(); programs].into_iter();
            emit_examples(groups, &SpanBudgets::default(), &mut |event| {
                assert!(matches!(event, Event::Span(_)));
                count += 1;
            });
            count
        };
        assert_eq!((emitted(1), emitted(3), emitted(100)), (MOST, 3 * (MOST / 3), MOST));
        assert_eq!((slowest_of_each(1), slowest_of_each(2), slowest_of_each(100)), (120, 56, SLOWEST));
    }
}
