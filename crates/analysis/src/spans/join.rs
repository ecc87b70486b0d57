// SPDX-License-Identifier: Apache-2.0
//! Spans from elsewhere get their states from the stalls of their thread.
//!
//! Only stalls that were recorded one by one can be placed in a span. The rest of it counts as running time
//! here; `sums.rs` divides off what can have been shorter waits.

use wallprof_model::profile::StallRecord;
use wallprof_model::{MonoNs, Reason, SpanState, SpanStates, StallReason, State};

/// The stalls of one thread, which do not overlap.
#[derive(Debug, Default)]
pub struct ThreadPauses {
    pauses: Vec<Pause>,
    /// The states of all pauses before each one, and of all.
    before: Vec<SpanStates>,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    start: u64,
    /// It waits for a CPU from here on.
    runnable_from: u64,
    end: u64,
    /// Until then.
    state: SpanState,
}

impl ThreadPauses {
    pub fn add(&mut self, stall: &StallRecord) {
        let (start, end) = (stall.start.0, stall.end.0);
        let state = state_of(stall);
        let runnable_ns = if state == State::Preempted { 0 } else { stall.runnable_ns };
        let runnable_from = end.saturating_sub(runnable_ns).clamp(start, end.max(start));
        self.pauses.push(Pause { start, runnable_from, end, state: SpanState::Of(state) });
    }

    /// Called after the last stall.
    pub fn finish(&mut self) {
        self.pauses.sort_unstable_by_key(|pause| pause.start);
        let mut sum = SpanStates::default();
        self.before = vec![sum];
        for at in 0..self.pauses.len() {
            // Stalls of a damaged recording may overlap: each time belongs to the first one.
            if let Some(next) = self.pauses.get(at + 1).map(|next| next.start) {
                let pause = &mut self.pauses[at];
                pause.end = pause.end.min(next);
                pause.runnable_from = pause.runnable_from.min(pause.end);
            }
            self.pauses[at].add_to(&mut sum, 0, u64::MAX);
            self.before.push(sum);
        }
    }

    /// The states of a span. They add up to its duration.
    pub fn states_of(&self, start: MonoNs, end: MonoNs) -> SpanStates {
        let (from, to) = (start.0, end.0.max(start.0));
        let first = self.pauses.partition_point(|pause| pause.end <= from);
        let last = self.pauses.partition_point(|pause| pause.start < to);
        let mut states = SpanStates::default();
        if first < last {
            let inner = first + 1..(last - 1).max(first + 1);
            if let (Some(before), Some(until)) = (self.before.get(inner.start), self.before.get(inner.end)) {
                for (sum, (until, before)) in states.0.iter_mut().zip(until.0.iter().zip(before.0)) {
                    *sum = until.saturating_sub(before);
                }
            }
            self.pauses[first].add_to(&mut states, from, to);
            if last - 1 > first {
                self.pauses[last - 1].add_to(&mut states, from, to);
            }
        }
        states.0[SpanState::Cpu.index()] = (to - from).saturating_sub(states.total_ns());
        states
    }
}

/// The state of a stall before its wakeup.
pub(super) fn state_of(stall: &StallRecord) -> State {
    match stall.reason {
        StallReason::Preempted => State::Preempted,
        StallReason::Minor => State::FaultMinor,
        StallReason::Major => State::FaultMajor,
        StallReason::Blocked(reason) => State::Blocked(reason),
        StallReason::Runnable if stall.lock.is_some() => State::Blocked(Reason::Lock),
        // What else it waited for before its wakeup is not recorded.
        StallReason::Runnable => State::Blocked(Reason::Other),
    }
}

impl Pause {
    /// Adds the part of it within these times.
    fn add_to(&self, states: &mut SpanStates, from: u64, to: u64) {
        let within = |start: u64, end: u64| end.min(to).saturating_sub(start.max(from));
        let runnable = SpanState::Of(State::Runnable).index();
        for (state, ns) in [
            (self.state.index(), within(self.start, self.runnable_from)),
            (runnable, within(self.runnable_from, self.end)),
        ] {
            states.0[state] = states.0[state].saturating_add(ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wallprof_model::ThreadKey;
    use wallprof_model::profile::LockRecord;

    use super::*;

    const LOCK: StallReason = StallReason::Blocked(Reason::Lock);

    fn pauses(stalls: &[(StallReason, u64, u64, u64)]) -> ThreadPauses {
        let mut pauses = ThreadPauses::default();
        for &(reason, start, ns, runnable_ns) in stalls {
            let stall = StallRecord::new(1, ThreadKey(1), reason, MonoNs(start), ns);
            pauses.add(&StallRecord { runnable_ns, ..stall });
        }
        pauses.finish();
        pauses
    }

    fn states(pauses: &ThreadPauses, from: u64, to: u64) -> Vec<(String, u64)> {
        let states = pauses.states_of(MonoNs(from), MonoNs(to));
        let known = SpanState::all().into_iter().zip(states.0).filter(|(_, ns)| *ns > 0);
        known.map(|(state, ns)| (state.label(), ns)).collect()
    }

    fn named(states: &[(&str, u64)]) -> Vec<(String, u64)> {
        states.iter().map(|(name, ns)| ((*name).to_owned(), *ns)).collect()
    }

    #[test]
    fn stalls_are_the_states_of_the_span_they_lie_in() {
        let pauses = pauses(&[
            (StallReason::Preempted, 300, 50, 50),
            (LOCK, 100, 40, 10),
            (StallReason::Major, 400, 30, 5),
        ]);
        assert_eq!(states(&pauses, 0, 100), named(&[("cpu", 100)]));
        assert_eq!(states(&pauses, 90, 150), named(&[("cpu", 20), ("runnable", 10), ("blocked:lock", 30)]));
        assert_eq!(
            states(&pauses, 0, 500),
            named(&[
                ("cpu", 380),
                ("fault:major", 25),
                ("runnable", 15),
                ("preempted", 50),
                ("blocked:lock", 30)
            ])
        );
    }

    #[test]
    fn wait_for_a_lock_is_one_even_if_the_wait_for_a_cpu_was_longer() {
        let mut pauses = ThreadPauses::default();
        let stall = StallRecord::new(1, ThreadKey(1), StallReason::Runnable, MonoNs(100), 40);
        let lock = Some(LockRecord { address: 8, owner: None });
        pauses.add(&StallRecord { runnable_ns: 30, lock, ..stall });
        pauses.finish();
        assert_eq!(states(&pauses, 100, 140), named(&[("runnable", 30), ("blocked:lock", 10)]));
    }

    #[test]
    fn a_stall_is_cut_at_the_ends_of_the_span() {
        let pauses = pauses(&[(LOCK, 100, 40, 10)]);
        assert_eq!(states(&pauses, 120, 135), named(&[("runnable", 5), ("blocked:lock", 10)]));
        assert_eq!(states(&pauses, 135, 145), named(&[("cpu", 5), ("runnable", 5)]));
        assert_eq!(states(&pauses, 140, 141), named(&[("cpu", 1)]));
    }

    #[test]
    fn a_span_that_ends_before_it_starts_is_empty() {
        assert_eq!(states(&pauses(&[(LOCK, 100, 40, 10)]), 130, 120), []);
    }

    proptest! {
        #[test]
        fn states_add_up_to_the_duration(
            stalls in proptest::collection::vec((0u64..1000, 0u64..100, 0u64..50), 0..20),
            from in 0u64..1000, ns in 0u64..500,
        ) {
            let stalls: Vec<_> = stalls.into_iter().map(|(start, ns, run)| (LOCK, start, ns, run)).collect();
            let states = pauses(&stalls).states_of(MonoNs(from), MonoNs(from + ns));
            prop_assert_eq!(states.total_ns(), ns);
        }
    }
}
