// SPDX-License-Identifier: Apache-2.0
//! Rows that the kernel side has added up by second → events.

use wallprof_meaning::waits::is_learned;
use wallprof_model::event::{
    CrossCallDelta, InterruptDelta, LatencyDelta, OffCpuDelta, SampleDelta, WakerStacks, Weighted,
};
use wallprof_model::histogram::Cell;
use wallprof_model::{EpochSecond, Event, Metric, Reason, StallReason, State, ThreadKey};
use wallprof_probe::bpf::{
    constants as c, cross_call_key, cross_call_value, interrupt_key, latency_value, other_thread, sample_key,
    sample_value,
};
use wallprof_probe::reasons;

use super::{Session, SessionError};
use crate::interrupts::InterruptNames;
use crate::kernel_side::KernelSide;
use crate::stacks::Stacks;
use crate::threads::Threads;

/// The kinds of samples of waits for locks, and of other waits for another thread.
const LOCK: u64 = c::SAMPLE_BLOCKED + c::REASON_LOCK;
const WAIT: u64 = c::SAMPLE_BLOCKED + c::REASON_WAIT;

/// Waits of one thread with one pair of stacks that one thread ended.
pub(super) struct WaitSample {
    pub key: sample_key,
    pub reason: Reason,
    /// A recorded thread.
    pub waker: Option<u32>,
    pub ns: u64,
    pub count: u64,
}

impl<K: KernelSide> Session<K> {
    /// Emits the samples of seconds before `second`, to which the kernel side adds no more. Returns those of
    /// waits. Places are judged by them: they have all waits, also those that are not emitted one by one.
    pub(super) fn emit_samples(
        &mut self,
        second: u32,
        now: u64,
        emit: &mut dyn FnMut(Event),
    ) -> Result<Vec<WaitSample>, SessionError> {
        let (mut waits, mut locks) = (Vec::new(), Vec::new());
        let Session { kernel, places, stacks, threads, .. } = self;
        let mut take = |key: &sample_key, value: &sample_value, stacks: &Stacks| {
            let Some(sample) = sample_from_row(key, value, stacks, threads) else { return };
            let waker = sample.waker.as_ref().and_then(|waker| waker.thread).map(|thread| thread.0);
            places.add_stack(key.key, key.user_stack, now);
            if let Some(waker) = waker {
                places.add_stack(waker, key.waker_user_stack, now);
            }
            if let Some(reason) = waited_for(sample.what) {
                waits.push(WaitSample { key: *key, reason, waker, ns: value.weight, count: value.count });
            }
            emit(Event::Sample(sample));
        };
        kernel.drain_samples(&mut |key, value| {
            let past = key.second < second;
            if past && u64::from(key.what) == LOCK {
                locks.push((*key, *value));
            } else if past {
                take(key, value, stacks);
            }
            past
        })?;
        // The functions of those that seemed to be for a lock may say that they are for none.
        for (key, _) in &locks {
            stacks.waits_mut().want(key.user_stack);
        }
        let follower = &self.follower;
        stacks.name_waits(&mut |id| follower.known().processes.module_file(id));
        for (mut key, value) in locks {
            if stacks.waits_mut().is_no_lock(key.user_stack) {
                key.what = WAIT as u8;
            }
            take(&key, &value, stacks);
        }
        Ok(waits)
    }

    /// Emits the other rows of seconds before `second`.
    pub(super) fn emit_aggregates(
        &mut self,
        second: u32,
        emit: &mut dyn FnMut(Event),
    ) -> Result<(), SessionError> {
        self.kernel.drain_latency(&mut |key, value| {
            let past = key.second < second;
            let (thread, bucket, cell) = (ThreadKey(key.key), key.bucket, cell_from_value(value));
            match metric_from_code(key.metric) {
                Some((metric, reason)) if past => {
                    emit(Event::Latency(LatencyDelta { thread, metric, bucket, cell }));
                    if let Some(reason) = reason {
                        emit(Event::OffCpu(OffCpuDelta { thread, reason, bucket, cell }));
                    }
                }
                _ => {}
            }
            past
        })?;
        let (stacks, threads) = (&self.stacks, &self.threads);
        self.kernel.drain_cross_calls(&mut |key, value| {
            let past = key.second < second;
            if past {
                emit(Event::CrossCalls(cross_calls_from_row(key, value, stacks, threads)));
            }
            past
        })?;
        let (names, guard) = (&mut self.names, &self.guard);
        self.kernel.drain_interrupts(&mut |key, value| {
            let past = key.second < second;
            if past {
                let interrupt = interrupt_from_row(key, value, names);
                if let Some(intrusion) = guard.of_interrupt(&interrupt) {
                    emit(Event::Intrusion(Box::new(intrusion)));
                }
                emit(Event::Interrupt(interrupt));
            }
            past
        })
    }

    /// Emits what was on guarded CPUs before this time slice, once for each slice.
    pub(super) fn emit_noise(&mut self, slice: u64, emit: &mut dyn FnMut(Event)) -> Result<(), SessionError> {
        if self.guard.is_empty() || slice == self.noise_slice {
            return Ok(());
        }
        self.noise_slice = slice;
        let (guard, threads) = (&self.guard, &self.threads);
        self.kernel.drain_noise(&mut |key, row| {
            let past = key.interval < slice;
            if past {
                emit(Event::Intrusion(Box::new(guard.of_noise(key, row, threads))));
            }
            past
        })?;
        for intrusion in self.guard.of_probes(self.kernel.runs_by_cpu()?) {
            emit(Event::Intrusion(Box::new(intrusion)));
        }
        Ok(())
    }
}

/// The metric of a row, and for off-CPU intervals their reason.
fn metric_from_code(code: u16) -> Option<(Metric, Option<StallReason>)> {
    let off_cpu = |reason| Some((Metric::OffCpu, Some(reason)));
    match u64::from(code) {
        c::METRIC_OFF_CPU_PREEMPTED => off_cpu(StallReason::Preempted),
        c::METRIC_OFF_CPU_RUNNABLE => off_cpu(StallReason::Runnable),
        blocked if blocked >= c::METRIC_OFF_CPU_BLOCKED => {
            let reason = u8::try_from(blocked - c::METRIC_OFF_CPU_BLOCKED).ok();
            off_cpu(StallReason::Blocked(Reason::from_code(reason?)?))
        }
        other => Some((Metric::from_code(u8::try_from(other).ok()?)?, None)),
    }
}

fn cell_from_value(value: &latency_value) -> Cell {
    Cell { count: value.count, total_ns: value.total, max_ns: value.max }
}

fn weighted(key: &sample_key) -> Option<Weighted> {
    match u64::from(key.what) {
        c::SAMPLE_EVENT => Some(Weighted::Event(key.event)),
        what => state_from_kind(what).map(Weighted::State),
    }
}

/// The state of a sample of this kind, if it is one of a state.
pub(super) fn state_from_kind(kind: u64) -> Option<State> {
    Some(match kind {
        c::SAMPLE_USER => State::User,
        c::SAMPLE_KERNEL => State::Kernel,
        c::SAMPLE_FAULT_MINOR => State::FaultMinor,
        c::SAMPLE_FAULT_MAJOR => State::FaultMajor,
        c::SAMPLE_RUNNABLE => State::Runnable,
        c::SAMPLE_PREEMPTED => State::Preempted,
        _ => State::Blocked(Reason::from_code(u8::try_from(kind.checked_sub(c::SAMPLE_BLOCKED)?).ok()?)?),
    })
}

/// Of waits that can be for a lock which the kernel does not know, or for work.
fn waited_for(what: Weighted) -> Option<Reason> {
    match what {
        Weighted::State(State::Blocked(reason)) => Some(reason).filter(|reason| is_learned(*reason)),
        _ => None,
    }
}

fn sample_from_row(
    key: &sample_key,
    value: &sample_value,
    stacks: &Stacks,
    threads: &Threads,
) -> Option<SampleDelta> {
    let waker = (key.woken != 0).then(|| {
        let interrupt = key.waker_tid == 0 || stacks.is_interrupt(key.waker_kernel_stack);
        WakerStacks {
            thread: if interrupt { None } else { threads.key_of_tid(key.waker_tid) },
            interrupt,
            user: if interrupt { None } else { stacks.id(key.waker_user_stack) },
            kernel: stacks.id(key.waker_kernel_stack),
        }
    });
    Some(SampleDelta {
        thread: ThreadKey(key.key),
        second: EpochSecond(key.second),
        what: weighted(key)?,
        user: stacks.id(key.user_stack),
        kernel: stacks.id(key.kernel_stack),
        waker,
        weight: value.weight,
        count: value.count,
    })
}

fn cross_calls_from_row(
    key: &cross_call_key,
    value: &cross_call_value,
    stacks: &Stacks,
    threads: &Threads,
) -> CrossCallDelta {
    let caller = other_thread { tid: key.tid, tgid: key.tgid, comm: value.comm };
    CrossCallDelta {
        caller: threads.reference(&caller),
        syscall: reasons::syscall_name(key.syscall),
        function: stacks.kernel_function(key.function),
        count: value.count,
    }
}

fn interrupt_from_row(
    key: &interrupt_key,
    value: &latency_value,
    names: &mut InterruptNames,
) -> InterruptDelta {
    let (kind, name) = names.name(key.kind, key.number);
    InterruptDelta {
        cpu: u32::from(key.cpu),
        kind,
        name,
        victim: (key.key != 0).then_some(ThreadKey(key.key)),
        count: value.count,
        total_ns: value.total,
        max_ns: value.max,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_cpu_interval_is_emitted_with_its_reason() {
        let of = |code: u64| metric_from_code(code as u16);
        assert_eq!(of(c::METRIC_OFF_CPU), Some((Metric::OffCpu, None)), "within a fault");
        assert_eq!(of(c::METRIC_RUN_QUEUE), Some((Metric::RunQueue, None)));
        let blocked = |reason| Some((Metric::OffCpu, Some(reason)));
        assert_eq!(of(c::METRIC_OFF_CPU_PREEMPTED), blocked(StallReason::Preempted));
        let disk = c::METRIC_OFF_CPU_BLOCKED + c::REASON_DISK;
        assert_eq!(of(disk), blocked(StallReason::Blocked(Reason::Disk)));
        let disk = c::METRIC_BLOCKED + c::REASON_DISK;
        assert_eq!(of(disk), Some((Metric::Blocked(Reason::Disk), None)));
        assert_eq!(of(c::METRIC_OFF_CPU_BLOCKED + c::REASONS), None);
        assert_eq!(of(u64::from(u16::MAX)), None);
    }

    #[test]
    fn weights_are_states_or_events() {
        let key = |what: u64| sample_key { what: what as u8, event: 3, ..sample_key::default() };
        assert_eq!(weighted(&key(c::SAMPLE_USER)), Some(Weighted::State(State::User)));
        assert_eq!(
            weighted(&key(c::SAMPLE_BLOCKED + c::REASON_DISK)),
            Some(Weighted::State(State::Blocked(Reason::Disk)))
        );
        assert_eq!(weighted(&key(c::SAMPLE_EVENT)), Some(Weighted::Event(3)));
        assert_eq!(weighted(&key(c::SAMPLE_FAULT_MAJOR)), Some(Weighted::State(State::FaultMajor)));
        assert_eq!(weighted(&key(9)), None);
    }
}
