// SPDX-License-Identifier: Apache-2.0
//! What the kernel side counts on each CPU: losses, runs of the probes, and run queues.

use std::io;

use libbpf_rs::{Map, MapCore, MapFlags};
use wallprof_model::Loss;

use crate::bpf::{Plain, WallprofSkel, constants as c, cpu_state, loss_counts, record_from_bytes, run_queue};
use crate::error::ProbeError;

/// Losses so far by reason, and the cost of the probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    pub losses: [u64; c::LOSSES as usize],
    /// Runs of the probes, and their time. One run in `TIMED_EVERY` (bpf/include/limits.h) is timed.
    pub probe_runs: u64,
    pub probe_ns: u64,
    /// That recorded threads waited for a CPU on which a thread of this process ran.
    pub behind_ns: u64,
}

/// A CPU's run queue, summed over the readings that the sampling clock has taken since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunQueue {
    /// Threads that ran or were runnable.
    pub runnable: u64,
    pub readings: u64,
}

impl KernelCounts {
    /// Losses since `before`.
    pub fn losses_since(&self, before: &KernelCounts) -> Vec<(Loss, u64)> {
        let counts = (0..).zip(self.losses.iter().zip(before.losses));
        counts.map(|(code, (now, before))| (loss_from_code(code), now.saturating_sub(before))).collect()
    }
}

/// The loss that the kernel side counts under a number of `enum loss` (bpf/include/records.h).
fn loss_from_code(code: u64) -> Loss {
    match code {
        c::LOSS_RING_FULL => Loss::StallsRingFull,
        c::LOSS_STACKS_FULL => Loss::StacksFull,
        c::LOSS_SAMPLES_FULL => Loss::SamplesFull,
        c::LOSS_LATENCY_FULL => Loss::LatencyFull,
        c::LOSS_INTERRUPTS_FULL => Loss::InterruptsFull,
        c::LOSS_THREADS_FULL => Loss::ThreadsNoMemory,
        c::LOSS_SCRATCH_BUSY => Loss::StackScratchBusy,
        c::LOSS_NO_WAKEUP => Loss::SleepsWithoutWakeup,
        c::LOSS_INTERRUPT_DEPTH => Loss::InterruptDepth,
        c::LOSS_FOLDED => Loss::WaitsFolded,
        c::LOSS_NO_SWITCH => Loss::SwitchesUnseen,
        c::LOSS_NOISE_FULL => Loss::GuestsFull,
        c::LOSS_CROSS_CALLS_FULL => Loss::CrossCallsFull,
        c::LOSS_SPANS_FULL => Loss::SpansFull,
        c::LOSS_ENDS_FULL => Loss::ThreadEndsRingFull,
        c::LOSS_OVER_BUDGET => Loss::SpansOverBudgetLeftOut,
        c::LOSS_PROBED_SPANS => Loss::ProbedSpansLost,
        c::LOSS_SPANS_WITHOUT_END => Loss::ProbedSpansWithoutEnd,
        c::LOSS_LATE => Loss::LateSamplesLost,
        c::LOSS_PERIODS_ABANDONED => Loss::PeriodsAbandoned,
        _ => Loss::KernelLossUnknown,
    }
}

pub(crate) fn counts(skeleton: &WallprofSkel<'_>) -> Result<KernelCounts, ProbeError> {
    let mut counts = KernelCounts::default();
    for lost in by_cpu::<loss_counts>(&skeleton.maps.losses, "losses")? {
        counts.losses.iter_mut().zip(lost.by_reason).for_each(|(sum, lost)| *sum += lost);
    }
    for state in cpu_states(skeleton)? {
        counts.probe_runs += state.runs;
        counts.probe_ns += state.timed_ns;
        counts.behind_ns += state.behind_ns;
    }
    Ok(counts)
}

/// Runs of the probes on each CPU so far, and their ns, in the order of the CPUs' numbers.
pub(crate) fn runs_by_cpu(skeleton: &WallprofSkel<'_>) -> Result<Vec<(u64, u64)>, ProbeError> {
    let states = cpu_states(skeleton)?;
    Ok(states.iter().map(|state| (state.runs, state.timed_ns)).collect())
}

fn cpu_states(skeleton: &WallprofSkel<'_>) -> Result<Vec<cpu_state>, ProbeError> {
    by_cpu(&skeleton.maps.cpus, "own cost")
}

/// The run queues, in the order of the CPUs' numbers.
pub(crate) fn run_queues(skeleton: &WallprofSkel<'_>) -> Result<Vec<RunQueue>, ProbeError> {
    let queues = by_cpu::<run_queue>(&skeleton.maps.run_queues, "run queues")?;
    Ok(queues.iter().map(|queue| RunQueue { runnable: queue.runnable, readings: queue.readings }).collect())
}

/// The value of a per-CPU array with one entry, CPU by CPU.
fn by_cpu<V: Plain>(map: &Map<'_>, what: &'static str) -> Result<Vec<V>, ProbeError> {
    let values = map.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
    let values = values.map_err(|error| ProbeError::reading(what, io::Error::other(error)))?;
    Ok(values.iter().flatten().filter_map(|bytes| record_from_bytes(bytes)).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_loss_of_the_kernel_side_has_a_name_of_its_own() {
        let losses = std::array::from_fn(|code| code as u64 + 5);
        let counts = KernelCounts { losses, ..KernelCounts::default() };
        let losses = counts.losses_since(&KernelCounts { losses: [5; c::LOSSES as usize], ..counts });
        let names: HashSet<Loss> = losses.iter().map(|(loss, _)| *loss).collect();
        assert_eq!(names.len() as u64, c::LOSSES);
        assert!(!names.contains(&Loss::KernelLossUnknown));
        assert!(losses.contains(&(Loss::CrossCallsFull, c::LOSS_CROSS_CALLS_FULL)));
        assert_eq!(loss_from_code(c::LOSSES), Loss::KernelLossUnknown);
    }
}
