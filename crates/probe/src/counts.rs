//! What the kernel side counts on each CPU: losses, runs of the probes, and run queues.

use std::io;

use libbpf_rs::{Map, MapCore, MapFlags};

use crate::bpf::{Plain, WallprofSkel, constants as c, cpu_state, loss_counts, record_from_bytes, run_queue};
use crate::error::ProbeError;

/// Losses so far by reason, and the cost of the probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    pub losses: [u64; c::LOSSES as usize],
    /// Runs of the probes, and their time. One run in `TIMED_EVERY` (bpf/include/limits.h) is timed.
    pub probe_runs: u64,
    pub probe_ns: u64,
}

/// A CPU's run queue, summed over the readings that the sampling clock has taken since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunQueue {
    /// Threads that ran or were runnable.
    pub runnable: u64,
    pub looks: u64,
}

/// The names of [`KernelCounts::losses`].
pub const LOSS_NAMES: [&str; c::LOSSES as usize] = [
    "stalls_ring_full",
    "stacks_full",
    "samples_full",
    "latency_full",
    "interrupts_full",
    "threads_no_memory",
    "stack_scratch_busy",
    "sleeps_without_wakeup",
    "interrupt_depth",
    "waits_folded",
    "switches_unseen",
    "guests_full",
    "cross_calls_full",
];

pub(crate) fn counts(skeleton: &WallprofSkel<'_>) -> Result<KernelCounts, ProbeError> {
    let mut counts = KernelCounts::default();
    for lost in by_cpu::<loss_counts>(&skeleton.maps.losses, "losses")? {
        counts.losses.iter_mut().zip(lost.by_reason).for_each(|(sum, lost)| *sum += lost);
    }
    for (runs, ns) in runs_by_cpu(skeleton)? {
        counts.probe_runs += runs;
        counts.probe_ns += ns;
    }
    Ok(counts)
}

/// Runs of the probes on each CPU so far, and their ns, in the order of the CPUs' numbers.
pub(crate) fn runs_by_cpu(skeleton: &WallprofSkel<'_>) -> Result<Vec<(u64, u64)>, ProbeError> {
    let states = by_cpu::<cpu_state>(&skeleton.maps.cpus, "own cost")?;
    Ok(states.iter().map(|state| (state.runs, state.timed_ns)).collect())
}

/// The run queues, in the order of the CPUs' numbers.
pub(crate) fn run_queues(skeleton: &WallprofSkel<'_>) -> Result<Vec<RunQueue>, ProbeError> {
    let queues = by_cpu::<run_queue>(&skeleton.maps.run_queues, "run queues")?;
    Ok(queues.iter().map(|queue| RunQueue { runnable: queue.runnable, looks: queue.readings }).collect())
}

/// The value of a per-CPU array with one entry, CPU by CPU.
fn by_cpu<V: Plain>(map: &Map<'_>, what: &'static str) -> Result<Vec<V>, ProbeError> {
    let values = map.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
    let values = values.map_err(|error| ProbeError::reading(what, io::Error::other(error)))?;
    Ok(values.iter().flatten().filter_map(|bytes| record_from_bytes(bytes)).collect())
}
