// SPDX-License-Identifier: Apache-2.0
//! Fits what was gathered to the threads' ledgers, so that the weights add up to them exactly.
//!
//! Samples of running time are statistical: each thread's are scaled so that they divide its exact user and
//! kernel time. Intervals off CPU carry their own length and stay as they are; what they leave of their
//! state is `[unsampled]`, and where they have more than the state (an interval counts whole in the second
//! in which it ended) they are scaled down to it.

use std::collections::HashMap;
use std::sync::Arc;

use wallprof_model::State;
use wallprof_model::event::Weighted;
use wallprof_model::profile::Thread;

use super::apportion::apportion;
use super::frame::{FrameId, Mark};
use super::gather::{Gather, Pair, Stacked, Stacks, Sum, Waker};
use super::interrupt::from_entry;
use super::stack::{WeightedStack, WeightedThread, Weights};
use super::view::View;
use crate::ledger::Account;
use crate::totals::accounts;

impl Gather<'_> {
    /// Fits everything to the threads' ledgers.
    pub fn finish(mut self) -> Weights {
        let mut weights = Vec::new();
        let mut left_out_ns = 0u64;
        let selected: Vec<usize> = self.selected.values().copied().collect();
        for (number, at) in selected.iter().enumerate() {
            weights.extend(self.counts(number, *at));
        }
        if self.view.is_time() {
            let accounts = accounts(self.threads);
            for (number, at) in selected.iter().enumerate() {
                let left_out = self.times((number, *at), &accounts[*at], &mut weights);
                left_out_ns = left_out_ns.saturating_add(left_out);
            }
        }
        weights.retain(|stack| stack.weight > 0);
        Weights {
            view: self.view,
            threads: selected.iter().map(|at| weighted_thread(&self.threads[*at])).collect(),
            frames: self.frames,
            stacks: weights,
            left_out_ns,
        }
    }

    /// The stacks of the event that the view counts: nothing to fit.
    fn counts(&mut self, number: usize, at: usize) -> Vec<WeightedStack> {
        let Some(event) = self.event else { return Vec::new() };
        let sums = sorted(self.sums.remove(&(at, Weighted::Event(event))));
        let stacks = sums.into_iter().map(|(stacks, sum)| WeightedStack {
            thread: number,
            frames: match stacks {
                Some(stacks) => self.code(stacks.pair),
                None => vec![self.frames.mark(Mark::Unsampled)],
            },
            state: None,
            weight: sum.weight,
            count: sum.count,
        });
        stacks.collect()
    }

    /// The stacks of one thread in all states of the view. Returns the time that has no place in it.
    fn times(&mut self, thread: (usize, usize), account: &Account, into: &mut Vec<WeightedStack>) -> u64 {
        let mut left_out_ns = 0u64;
        for (state, ns) in account.states.iter() {
            if self.view.includes(state) {
                left_out_ns = left_out_ns.saturating_add(self.fit(thread, state, ns, into));
            }
        }
        if self.view == View::Wall {
            let frames = vec![self.frames.mark(Mark::Unaccounted)];
            let weight = account.unaccounted_ns;
            into.push(WeightedStack { thread: thread.0, frames, state: None, weight, count: 0 });
        }
        left_out_ns
    }

    /// The stacks of one thread in one state, which took `ns`. Returns the time that has no place in the
    /// view.
    fn fit(
        &mut self,
        (number, at): (usize, usize),
        state: State,
        ns: u64,
        into: &mut Vec<WeightedStack>,
    ) -> u64 {
        let sums = sorted(self.sums.remove(&(at, Weighted::State(state))));
        let mut fitted: Vec<u64> =
            sums.iter().map(|(_, sum)| sum.weight.saturating_sub(sum.outside)).collect();
        let statistical = matches!(state, State::User | State::Kernel);
        let stacked: u128 = fitted.iter().map(|weight| u128::from(*weight)).sum();
        if statistical || stacked > u128::from(ns) {
            apportion(&mut fitted, ns);
        }
        let mut without = ns;
        for ((stacks, sum), weight) in sums.into_iter().zip(fitted) {
            if let Some(frames) = stacks.and_then(|stacks| self.whole(stacks, state)) {
                without -= weight;
                into.push(WeightedStack {
                    thread: number,
                    frames,
                    state: Some(state),
                    weight,
                    count: sum.count,
                });
            }
        }
        if self.view == View::Wakers {
            return without;
        }
        let frames = vec![self.frames.mark(Mark::Unsampled), self.frames.mark(Mark::State(state))];
        into.push(WeightedStack { thread: number, frames, state: Some(state), weight: without, count: 0 });
        0
    }

    /// A whole stack of a time view; `None` where `wakers` knows no waker.
    fn whole(&mut self, stacks: Stacked, state: State) -> Option<Vec<FrameId>> {
        let mut frames = self.code(stacks.pair);
        frames.extend(stacks.meaning.map(|meaning| self.frames.mark(Mark::Meaning(meaning))));
        frames.push(self.frames.mark(Mark::State(state)));
        if self.view == View::Wakers {
            let waker = stacks.waker?;
            frames.push(self.frames.mark(Mark::WokenBy));
            let code = self.code(waker.stacks);
            let code = if waker.interrupt { from_entry(&code, &self.frames) } else { &code };
            frames.extend(code.iter().rev());
            let by = self.waker_mark(waker);
            frames.push(self.frames.mark(by));
        }
        Some(frames)
    }

    fn code(&self, pair: Pair) -> Vec<FrameId> {
        [self.paths.get(pair.user), self.paths.get(pair.kernel)].concat()
    }

    fn waker_mark(&self, waker: Waker) -> Mark {
        let place = waker.thread.and_then(|key| self.places.get(&key));
        match place {
            _ if waker.interrupt => Mark::Interrupt,
            Some(at) => Mark::WakerThread(Arc::from(self.threads[*at].info.comm.as_str())),
            None => Mark::UnknownWaker,
        }
    }
}

/// In an order that no hash decides.
fn sorted(sums: Option<HashMap<Stacks, Sum>>) -> Vec<(Stacks, Sum)> {
    let mut sums: Vec<(Stacks, Sum)> = sums.unwrap_or_default().into_iter().collect();
    sums.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    sums
}

fn weighted_thread(thread: &Thread) -> WeightedThread {
    let info = &thread.info;
    WeightedThread { process: info.process.clone(), comm: info.comm.clone(), pid: info.pid, tid: info.tid }
}
