// SPDX-License-Identifier: Apache-2.0
//! The interface of a session to the kernel: the probes' maps and rings, and the clocks.
//!
//! [`Probes`] is the real one. Tests of the session use a fake that runs timelines, so that they need neither
//! root nor a kernel.

use std::time::Duration;

use wallprof_model::{ClockAnchor, MonoNs};
use wallprof_probe::bpf::{
    constants as c, cross_call_key, cross_call_value, interrupt_key, latency_key, latency_value,
    noise_counts, noise_key, sample_key, sample_value, span_key, span_value, stack_record, stall_record,
    thread_record,
};
use wallprof_probe::{Inbox, KernelCounts, MarkSlot, ProbeError, Probes, RunQueue, clock};

use crate::known::exists;
use crate::places::SentVerdict;

/// Callback for one row of a map. The row is deleted when it returns true: rows of past seconds only.
pub type TakeRow<'a, K, V> = &'a mut dyn FnMut(&K, &V) -> bool;

/// The side of a recording that measures. Times are CLOCK_MONOTONIC, ns.
pub trait KernelSide {
    fn now(&self) -> MonoNs;
    /// Both clocks, read at the same time.
    fn clock(&self) -> ClockAnchor;
    /// CPU time that this process has used so far, ns.
    fn own_cpu_ns(&self) -> u64;

    /// Starts counting and returns the time from which it counts. `epoch_offset` is the distance of the wall
    /// clock from CLOCK_MONOTONIC, ns: it says where seconds start.
    fn arm(&mut self, epoch_offset: u64) -> MonoNs;
    /// Stops counting and returns the time up to which it counted.
    fn disarm(&mut self) -> MonoNs;
    /// Threads that have started to end and whose last record is still to come.
    fn ending_threads(&self) -> u32;
    fn set_epoch_offset(&mut self, epoch_offset: u64);
    /// Shorter waits are only counted.
    fn set_thresholds(&mut self, stall_ns: u64, voluntary_stall_ns: u64);
    /// Sets the verdicts of places, by `stall_record::place`.
    fn set_place_verdicts(&mut self, verdicts: &[(u64, SentVerdict)]);
    /// Waits at these sites, which the records of waits for locks have as places, are for no lock.
    fn set_no_locks(&mut self, sites: &[u64]);
    /// Forgets places, whose threads are gone.
    fn forget_places(&mut self, keys: &[u64]);
    /// This many shorter voluntary waits are emitted because their place is unknown.
    fn allow_first_waits(&mut self, waits: u32);
    /// This many shorter waits are emitted because their thread holds a lock for which another one waits.
    fn allow_holder_waits(&mut self, waits: u32);
    /// Shorter waits and faults are no stalls.
    fn set_min_stall(&mut self, min_stall_ns: u64);
    /// One sample in `stride` takes its stacks, and each wait from `stack_ns` on.
    fn set_pace(&mut self, stride: u32, stack_ns: u64);
    /// While this is on, each thread sends each second that it closes.
    fn send_seconds(&mut self, wanted: bool);
    /// Kernel text `[from, to)` whose sleepers have a reason, with the reason's code.
    fn set_sites(&mut self, sites: &[(u64, u64, u8)]);
    /// Kernel text `[from, to)` that runs softirqs for the current task.
    fn set_task_softirqs(&mut self, ranges: &[(u64, u64)]);
    /// Kernel text `[from, to)` that writes saved user registers.
    fn set_register_writers(&mut self, ranges: &[(u64, u64)]);

    /// Sets where threads mark their spans.
    fn set_mark_slots(&mut self, slots: &[MarkSlot]);
    /// By number of `--span`: how often its probes were hit so far, by any thread.
    fn span_probe_hits(&self) -> Result<Vec<u64>, ProbeError>;
    /// Removes the probes of one `--span`.
    fn remove_span_probes(&mut self, number: usize);

    /// Starts to record threads whose process got a recorded name or moved into the recorded cgroup.
    fn follow_processes(&mut self) -> Result<(), ProbeError>;
    /// Attaches to CPUs that have come online and returns their number.
    fn follow_cpus(&mut self) -> Result<usize, ProbeError>;

    /// Moves the records that are in the rings to the end of `inbox`.
    fn drain_rings(&mut self, inbox: &mut Inbox) -> Result<(), ProbeError>;
    /// Passes a record of each thread with events since the last snapshot; of each thread in the first one
    /// after arming.
    fn snapshot(&mut self, take: &mut dyn FnMut(&thread_record)) -> Result<(), ProbeError>;
    /// Passes every wait older than `older_than_ns` once; with 0 all waits, which may come again.
    fn open_waits(
        &mut self,
        older_than_ns: u64,
        take: &mut dyn FnMut(&stall_record),
    ) -> Result<(), ProbeError>;
    fn drain_samples(&self, take: TakeRow<'_, sample_key, sample_value>) -> Result<(), ProbeError>;
    fn drain_latency(&self, take: TakeRow<'_, latency_key, latency_value>) -> Result<(), ProbeError>;
    fn drain_spans(&self, take: TakeRow<'_, span_key, span_value>) -> Result<(), ProbeError>;
    fn drain_interrupts(&self, take: TakeRow<'_, interrupt_key, latency_value>) -> Result<(), ProbeError>;
    fn drain_cross_calls(
        &self,
        take: TakeRow<'_, cross_call_key, cross_call_value>,
    ) -> Result<(), ProbeError>;
    /// The threads that ran on guarded CPUs and the interrupts there.
    fn drain_noise(&self, take: TakeRow<'_, noise_key, noise_counts>) -> Result<(), ProbeError>;
    /// The distinct stacks since the last call, by their id. All are deleted.
    fn drain_stacks(&self, take: &mut dyn FnMut(u64, &stack_record)) -> Result<(), ProbeError>;

    /// Runs of the probes so far, on all CPUs.
    fn runs(&self) -> Result<u64, ProbeError>;
    /// Runs and ns of the probes so far, by CPU.
    fn runs_by_cpu(&self) -> Result<Vec<(u64, u64)>, ProbeError>;
    /// Run queues by CPU, as far as they can be read.
    fn run_queues(&self) -> Vec<RunQueue>;
    fn counts(&self) -> Result<KernelCounts, ProbeError>;
    /// Whether a thread with this tid exists.
    fn thread_exists(&self, tid: u32) -> bool;
}

impl KernelSide for Probes {
    fn now(&self) -> MonoNs {
        clock::mono_now()
    }

    fn clock(&self) -> ClockAnchor {
        clock::anchor()
    }

    fn own_cpu_ns(&self) -> u64 {
        clock::process_cpu_ns()
    }

    fn arm(&mut self, epoch_offset: u64) -> MonoNs {
        Probes::arm(self, epoch_offset)
    }

    fn disarm(&mut self) -> MonoNs {
        Probes::disarm(self)
    }

    fn thread_exists(&self, tid: u32) -> bool {
        exists(tid)
    }

    fn ending_threads(&self) -> u32 {
        Probes::ending_threads(self)
    }

    fn set_epoch_offset(&mut self, epoch_offset: u64) {
        Probes::set_epoch_offset(self, epoch_offset);
    }

    fn set_thresholds(&mut self, stall_ns: u64, voluntary_stall_ns: u64) {
        Probes::set_thresholds(self, stall_ns, voluntary_stall_ns);
    }

    fn set_place_verdicts(&mut self, verdicts: &[(u64, SentVerdict)]) {
        let code = |verdict| match verdict {
            SentVerdict::Unknown => c::PLACE_UNKNOWN,
            SentVerdict::Idle => c::PLACE_IDLE,
            SentVerdict::IdleAsked => c::PLACE_IDLE_ASKED,
            SentVerdict::NotIdle => c::PLACE_NOT_IDLE,
        };
        let codes: Vec<_> = verdicts.iter().map(|(key, verdict)| (*key, code(*verdict) as u32)).collect();
        Probes::set_place_verdicts(self, &codes);
    }

    fn set_no_locks(&mut self, sites: &[u64]) {
        let verdicts: Vec<_> = sites.iter().map(|site| (*site, c::PLACE_NO_LOCK as u32)).collect();
        Probes::set_place_verdicts(self, &verdicts);
    }

    fn forget_places(&mut self, keys: &[u64]) {
        Probes::forget_places(self, keys);
    }

    fn set_mark_slots(&mut self, slots: &[MarkSlot]) {
        Probes::set_mark_slots(self, slots);
    }

    fn span_probe_hits(&self) -> Result<Vec<u64>, ProbeError> {
        Probes::span_probe_hits(self)
    }

    fn remove_span_probes(&mut self, number: usize) {
        Probes::remove_span_probes(self, number);
    }

    fn allow_first_waits(&mut self, waits: u32) {
        Probes::allow_first_waits(self, waits);
    }

    fn allow_holder_waits(&mut self, waits: u32) {
        Probes::allow_holder_waits(self, waits);
    }

    fn set_min_stall(&mut self, min_stall_ns: u64) {
        Probes::set_min_stall(self, min_stall_ns);
    }

    fn set_pace(&mut self, stride: u32, stack_ns: u64) {
        Probes::set_pace(self, stride, stack_ns);
    }

    fn send_seconds(&mut self, wanted: bool) {
        self.emit_seconds(wanted);
    }

    fn set_sites(&mut self, sites: &[(u64, u64, u8)]) {
        Probes::set_sites(self, sites);
    }

    fn set_task_softirqs(&mut self, ranges: &[(u64, u64)]) {
        Probes::set_task_softirqs(self, ranges);
    }

    fn set_register_writers(&mut self, ranges: &[(u64, u64)]) {
        Probes::set_register_writers(self, ranges);
    }

    fn follow_processes(&mut self) -> Result<(), ProbeError> {
        Probes::follow_processes(self)
    }

    fn follow_cpus(&mut self) -> Result<usize, ProbeError> {
        Probes::follow_cpus(self)
    }

    fn drain_rings(&mut self, inbox: &mut Inbox) -> Result<(), ProbeError> {
        self.poll(Duration::ZERO, |received| inbox.append(received))
    }

    fn snapshot(&mut self, take: &mut dyn FnMut(&thread_record)) -> Result<(), ProbeError> {
        Probes::snapshot(self, take)
    }

    fn open_waits(
        &mut self,
        older_than_ns: u64,
        take: &mut dyn FnMut(&stall_record),
    ) -> Result<(), ProbeError> {
        Probes::open_waits(self, older_than_ns, take)
    }

    fn drain_samples(&self, take: TakeRow<'_, sample_key, sample_value>) -> Result<(), ProbeError> {
        Probes::drain_samples(self, take)
    }

    fn drain_latency(&self, take: TakeRow<'_, latency_key, latency_value>) -> Result<(), ProbeError> {
        Probes::drain_latency(self, take)
    }

    fn drain_spans(&self, take: TakeRow<'_, span_key, span_value>) -> Result<(), ProbeError> {
        Probes::drain_spans(self, take)
    }

    fn drain_interrupts(&self, take: TakeRow<'_, interrupt_key, latency_value>) -> Result<(), ProbeError> {
        Probes::drain_interrupts(self, take)
    }

    fn drain_cross_calls(
        &self,
        take: TakeRow<'_, cross_call_key, cross_call_value>,
    ) -> Result<(), ProbeError> {
        Probes::drain_cross_calls(self, take)
    }

    fn drain_noise(&self, take: TakeRow<'_, noise_key, noise_counts>) -> Result<(), ProbeError> {
        self.drain_noise(take)
    }

    fn drain_stacks(&self, take: &mut dyn FnMut(u64, &stack_record)) -> Result<(), ProbeError> {
        Probes::drain_stacks(self, take)
    }

    fn runs(&self) -> Result<u64, ProbeError> {
        Probes::runs(self)
    }

    fn runs_by_cpu(&self) -> Result<Vec<(u64, u64)>, ProbeError> {
        Probes::runs_by_cpu(self)
    }

    fn run_queues(&self) -> Vec<RunQueue> {
        Probes::run_queues(self).unwrap_or_default()
    }

    fn counts(&self) -> Result<KernelCounts, ProbeError> {
        Probes::counts(self)
    }
}
