// SPDX-License-Identifier: Apache-2.0
//! Weighted stacks of each second as samples.

use std::collections::HashMap;

use fxprof_processed_profile::{CpuDelta, StackHandle, ThreadHandle, Timestamp};
use serde_json::Value;
use wallprof_analysis::bins::{BinnedStacks, ThreadBin};
use wallprof_analysis::weights::{FrameId, View, WeightedStack};
use wallprof_model::profile::Thread;

use super::Trace;

/// `threads` are those of the stacks. Threads that the profile does not have are skipped.
pub(super) fn add(trace: &mut Trace<'_>, stacks: &BinnedStacks, threads: &[Thread]) {
    let mut line: Option<Line<'_>> = None;
    for bin in stacks.by_thread(threads, trace.start) {
        let Some(handle) = trace.threads.get(&bin.thread.info.key).copied() else { continue };
        let line = match line.take() {
            Some(same) if same.thread == handle => line.insert(same),
            _ => line.insert(Line::begin(trace, handle, bin.from)),
        };
        line.add_bin(trace, stacks, &bin);
    }
}

/// The samples of one thread.
struct Line<'s> {
    thread: ThreadHandle,
    known: HashMap<&'s [FrameId], Option<StackHandle>>,
    weights: Weights,
    /// CPU time up to the last sample, ns.
    cpu_ns: u64,
    cpu_us: u64,
}

impl<'s> Line<'s> {
    /// Viewers compare a sample's CPU time with the time since the sample before: the first has none.
    fn begin(trace: &mut Trace<'_>, thread: ThreadHandle, from: u64) -> Self {
        let at = Timestamp::from_nanos_since_reference(from);
        trace.profile.add_sample(thread, at, None, CpuDelta::ZERO, 0);
        Line { thread, known: HashMap::new(), weights: Weights::default(), cpu_ns: 0, cpu_us: 0 }
    }

    /// A sample stands at the end of its time.
    fn add_bin(&mut self, trace: &mut Trace<'_>, stacks: &'s BinnedStacks, bin: &ThreadBin<'s>) {
        let of_bin = &bin.stacks;
        let runs = |stack: &WeightedStack| stack.state.is_some_and(|state| View::OnCpu.includes(state));
        let all_ns: u64 = of_bin.iter().map(|stack| stack.weight).sum();
        let running_ns: u64 = of_bin.iter().filter(|stack| runs(stack)).map(|stack| stack.weight).sum();
        trace.activity.add(self.thread, running_ns);
        let (before_ns, mut passed_ns) = (self.cpu_ns, 0u64);
        for (number, stack) in (1..).zip(of_bin) {
            passed_ns += stack.weight;
            let handle = *self.known.entry(&stack.frames).or_insert_with(|| {
                trace.stack(self.thread, stack.frames.iter().map(|frame| stacks.frames().get(*frame)))
            });
            let weight_us = self.weights.add(handle, stack.weight);
            if weight_us == 0 && number < of_bin.len() {
                continue;
            }
            self.cpu_ns = before_ns + share(running_ns, passed_ns, all_ns);
            let cpu_us = self.cpu_ns / 1_000;
            let delta = CpuDelta::from_micros(cpu_us - self.cpu_us);
            self.cpu_us = cpu_us;
            let at = Timestamp::from_nanos_since_reference((bin.from + passed_ns).min(bin.to));
            trace.profile.add_sample(self.thread, at, handle, delta, weight_us);
        }
    }
}

/// The weight of each stack so far, ns. The library takes whole numbers, which are microseconds up to
/// [`in_milliseconds`]: what a stack's sample is short of, its next one gets.
#[derive(Default)]
pub(super) struct Weights(HashMap<Option<StackHandle>, u64>);

impl Weights {
    /// The microseconds of the next sample.
    pub(super) fn add(&mut self, stack: Option<StackHandle>, ns: u64) -> i32 {
        let sum = self.0.entry(stack).or_default();
        let before = rounded_us(*sum);
        *sum = sum.saturating_add(ns);
        i32::try_from(rounded_us(*sum) - before).unwrap_or(i32::MAX)
    }
}

fn rounded_us(ns: u64) -> u64 {
    ns.saturating_add(500) / 1_000
}

/// Viewers take weights for milliseconds, and those below one add up.
pub(super) fn in_milliseconds(profile: &mut Value) {
    for thread in profile["threads"].as_array_mut().into_iter().flatten() {
        for weight in thread["samples"]["weight"].as_array_mut().into_iter().flatten() {
            *weight = weight.as_f64().map_or(Value::Null, |us| (us / 1_000.0).into());
        }
    }
}

fn share(of_ns: u64, part: u64, whole: u64) -> u64 {
    (u128::from(of_ns) * u128::from(part) / u128::from(whole.max(1))) as u64
}
