// SPDX-License-Identifier: Apache-2.0
//! Steps of a timeline as events of the model: intervals divided into seconds of the wall clock, waits as
//! samples, latencies and stalls.

use wallprof_model::event::{LatencyDelta, LedgerDelta, SampleDelta, Stall, Waker, WakerStacks, Weighted};
use wallprof_model::histogram::{Cell, bucket_from_ns};
use wallprof_model::{
    ClockMap, EpochSecond, Event, Metric, MonoNs, Reason, StallKind, StallReason, State, ThreadKey, ThreadRef,
};

use crate::timeline::{Leave, Spent, Step, Wait};

const SECOND_NS: u64 = 1_000_000_000;
/// The number of parts of an interval longer than an hour. Each part is in the second in which it starts.
const MAX_PARTS: u64 = 3_600;
/// The limit for intervals of a trace. A damaged trace has many.
const FEW_PARTS: u64 = 64;

/// The waker of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WokenBy {
    /// `None`: an interrupt.
    pub thread: Option<ThreadRef>,
    pub stacks: crate::timeline::Stacks,
}

/// The thread of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadOfStep<'a> {
    pub key: ThreadKey,
    pub comm: &'a str,
    pub cpu: Option<u32>,
}

/// Emits steps of threads.
pub(crate) struct StepEmitter<'a> {
    pub clock: &'a ClockMap,
    pub min_stall_ns: u64,
}

impl StepEmitter<'_> {
    pub(crate) fn second(&self, at: u64) -> EpochSecond {
        second_from_epoch(self.clock.epoch_from_mono(MonoNs(at)).0)
    }

    pub(crate) fn emit(&self, thread: ThreadOfStep<'_>, step: Step<WokenBy>, out: &mut Vec<Event>) {
        match step {
            Step::Spent { from, to, what } => self.spent(thread.key, from, to, what, out),
            Step::Waited(wait) => self.waited(thread, wait, out),
        }
    }

    fn spent(&self, thread: ThreadKey, from: u64, to: u64, what: Spent, out: &mut Vec<Event>) {
        let epoch = self.clock.epoch_from_mono(MonoNs(from)).0;
        for (second, ns) in parts(epoch, to.saturating_sub(from)) {
            let mut delta = LedgerDelta::new(thread, second);
            delta.wall_ns = ns;
            match what {
                Spent::OnCpu => delta.on_cpu_ns = ns,
                Spent::Runnable => delta.runnable_ns = ns,
                Spent::Preempted => delta.preempted_ns = ns,
                Spent::Blocked(reason) => delta.blocked_ns[usize::from(reason.code())] = ns,
                Spent::Unknown => {}
            }
            out.push(Event::Ledger(delta));
        }
    }

    fn waited(&self, thread: ThreadOfStep<'_>, wait: Wait<WokenBy>, out: &mut Vec<Event>) {
        if wait.open {
            self.stalls(thread, &wait, out);
            return;
        }
        let mut switches = LedgerDelta::new(thread.key, self.second(wait.from));
        match wait.why {
            Leave::Preempted => switches.involuntary_switches = 1,
            Leave::Blocked(_) => switches.voluntary_switches = 1,
        }
        out.push(Event::Ledger(switches));
        self.latencies(thread.key, &wait, out);
        self.samples(thread.key, &wait, out);
        self.stalls(thread, &wait, out);
    }

    fn latencies(&self, thread: ThreadKey, wait: &Wait<WokenBy>, out: &mut Vec<Event>) {
        let (blocked, runnable) = (wait.woken_at - wait.from, wait.to - wait.woken_at);
        let mut add = |metric, ns| {
            let cell = Cell { count: 1, total_ns: ns, max_ns: ns };
            out.push(Event::Latency(LatencyDelta { thread, metric, bucket: bucket_from_ns(ns), cell }));
        };
        add(Metric::OffCpu, blocked + runnable);
        add(Metric::RunQueue, runnable);
        if let Leave::Blocked(reason) = wait.why {
            add(Metric::Blocked(reason), blocked);
        }
    }

    /// A wait counts as a whole in the second in which it ends.
    fn samples(&self, thread: ThreadKey, wait: &Wait<WokenBy>, out: &mut Vec<Event>) {
        let (blocked, runnable) = (wait.woken_at - wait.from, wait.to - wait.woken_at);
        let mut add = |state, weight, waker| {
            if weight > 0 {
                out.push(Event::Sample(SampleDelta {
                    thread,
                    second: self.second(wait.to),
                    what: Weighted::State(state),
                    user: wait.stacks.user,
                    kernel: wait.stacks.kernel,
                    waker,
                    weight,
                    count: 1,
                }));
            }
        };
        match wait.why {
            Leave::Preempted => add(State::Preempted, runnable, None),
            Leave::Blocked(reason) => {
                add(State::Blocked(reason), blocked, wait.waker.as_ref().map(waker_stacks));
                add(State::Runnable, runnable, None);
            }
        }
    }

    /// No stall if the wait was short. Two stalls if a voluntary wait was followed by a long wait for a CPU.
    fn stalls(&self, thread: ThreadOfStep<'_>, wait: &Wait<WokenBy>, out: &mut Vec<Event>) {
        if wait.to - wait.from < self.min_stall_ns {
            return;
        }
        let whole = stall(thread, wait);
        let stalls = match wait.why {
            Leave::Blocked(reason) if reason.is_voluntary() => {
                whole.divided_at_wakeup(reason, self.min_stall_ns)
            }
            _ => vec![whole],
        };
        out.extend(stalls.into_iter().map(|stall| Event::Stall(Box::new(stall))));
    }
}

fn stall(thread: ThreadOfStep<'_>, wait: &Wait<WokenBy>) -> Stall {
    let (blocked_ns, runnable_ns) = (wait.woken_at - wait.from, wait.to - wait.woken_at);
    let reason = match wait.why {
        Leave::Preempted => StallReason::Preempted,
        Leave::Blocked(_) if blocked_ns < runnable_ns => StallReason::Runnable,
        Leave::Blocked(reason) => StallReason::Blocked(reason),
    };
    Stall {
        thread: thread.key,
        comm: thread.comm.to_owned(),
        kind: StallKind::OffCpu,
        reason,
        voluntary: matches!(reason, StallReason::Blocked(reason) if Reason::is_voluntary(reason)),
        start: MonoNs(wait.from),
        end: MonoNs(wait.to),
        open: wait.open,
        blocked_ns,
        runnable_ns,
        syscall: None,
        cpu: thread.cpu,
        priority: None,
        user: wait.stacks.user,
        kernel: wait.stacks.kernel,
        waker: wait.waker.as_ref().map(|by| Waker {
            thread: by.thread.clone(),
            user: by.stacks.user,
            kernel: by.stacks.kernel,
        }),
        lock: None,
        owner_sample: None,
        ran_instead: Vec::new(),
        fault: None,
        asked_ns: None,
        file: None,
        peer: None,
        word: None,
        trace: None,
        meaning: None,
    }
}

fn waker_stacks(by: &WokenBy) -> WakerStacks {
    WakerStacks {
        thread: by.thread.as_ref().and_then(|thread| thread.key),
        interrupt: by.thread.is_none(),
        user: by.stacks.user,
        kernel: by.stacks.kernel,
    }
}

/// `len` ns from `epoch` on, divided by second, in a few parts.
pub(crate) fn few_parts(epoch: u64, len: u64) -> impl Iterator<Item = (EpochSecond, u64)> {
    in_parts(epoch, len, FEW_PARTS)
}

/// `len` ns from `epoch` on, divided by second.
fn parts(epoch: u64, len: u64) -> impl Iterator<Item = (EpochSecond, u64)> {
    in_parts(epoch, len, MAX_PARTS)
}

fn in_parts(epoch: u64, len: u64, most: u64) -> impl Iterator<Item = (EpochSecond, u64)> {
    let length = (len / most).max(SECOND_NS);
    let end = epoch.saturating_add(len);
    let mut at = epoch;
    std::iter::from_fn(move || {
        let next = (at - at % SECOND_NS).saturating_add(length).min(end);
        let part = (next > at).then(|| (second_from_epoch(at), next - at));
        at = next;
        part
    })
}

fn second_from_epoch(ns: u64) -> EpochSecond {
    EpochSecond(u32::try_from(ns / SECOND_NS).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use wallprof_model::{ClockAnchor, EpochNs};

    use super::*;
    use crate::timeline::Stacks;

    const MS: u64 = 1_000_000;

    fn emitted(step: Step<WokenBy>) -> Vec<Event> {
        let anchor = ClockAnchor { mono: MonoNs(0), epoch: EpochNs(500 * MS) };
        let clock = ClockMap::new(vec![anchor]);
        let mut out = Vec::new();
        let thread = ThreadOfStep { key: ThreadKey(3), comm: "t", cpu: Some(1) };
        StepEmitter { clock: &clock, min_stall_ns: MS }.emit(thread, step, &mut out);
        out
    }

    fn wait(why: Leave, blocked: u64, runnable: u64) -> Wait<WokenBy> {
        let from = 100 * MS;
        let (woken_at, to) = (from + blocked, from + blocked + runnable);
        Wait { from, to, woken_at, why, stacks: Stacks::default(), waker: None, open: false }
    }

    fn stalls(wait: Wait<WokenBy>) -> Vec<(StallReason, u64, bool)> {
        let stall = |event: Event| match event {
            Event::Stall(stall) => Some((stall.reason, stall.end.0 - stall.start.0, stall.voluntary)),
            _ => None,
        };
        emitted(Step::Waited(wait)).into_iter().filter_map(stall).collect()
    }

    #[test]
    fn intervals_are_divided_at_seconds_of_the_wall_clock() {
        let cells: Vec<_> = emitted(Step::Spent { from: 0, to: 2_000 * MS, what: Spent::OnCpu })
            .into_iter()
            .map(|event| match event {
                Event::Ledger(delta) => (delta.second.0, delta.wall_ns, delta.on_cpu_ns),
                other => panic!("{other:?}"),
            })
            .collect();
        let cell = |second, ns| (second, ns * MS, ns * MS);
        assert_eq!(cells, [cell(0, 500), cell(1, 1_000), cell(2, 500)]);
    }

    #[test]
    fn damaged_time_makes_a_bounded_number_of_parts() {
        let parts: Vec<_> = parts(7, u64::MAX).collect();
        assert!(parts.len() as u64 <= MAX_PARTS + 1, "{}", parts.len());
        assert_eq!(parts.iter().map(|(_, ns)| ns).sum::<u64>(), u64::MAX - 7);
    }

    #[test]
    fn longer_part_is_the_reason_of_a_stall() {
        let other = Leave::Blocked(Reason::Other);
        assert_eq!(stalls(wait(other, 3 * MS, MS)), [(StallReason::Blocked(Reason::Other), 4 * MS, false)]);
        assert_eq!(stalls(wait(other, MS, 3 * MS)), [(StallReason::Runnable, 4 * MS, false)]);
        assert_eq!(stalls(wait(Leave::Preempted, 0, MS)), [(StallReason::Preempted, MS, false)]);
        assert_eq!(stalls(wait(other, MS - 1, 0)), []);
        let sleep = StallReason::Blocked(Reason::Sleep);
        assert_eq!(
            stalls(wait(Leave::Blocked(Reason::Sleep), 5 * MS, 2 * MS)),
            [(sleep, 5 * MS, true), (StallReason::Runnable, 2 * MS, false)]
        );
        assert_eq!(
            stalls(wait(Leave::Blocked(Reason::Sleep), 2 * MS, 5 * MS)),
            [(sleep, 2 * MS, true), (StallReason::Runnable, 5 * MS, false)]
        );
    }

    #[test]
    fn wait_becomes_samples_and_latencies_of_its_parts() {
        let events = emitted(Step::Waited(wait(Leave::Blocked(Reason::Other), 3, 1)));
        let sample = |event: &Event| match event {
            Event::Sample(sample) => Some((sample.what, sample.weight, sample.second.0)),
            _ => None,
        };
        assert_eq!(
            events.iter().filter_map(sample).collect::<Vec<_>>(),
            [
                (Weighted::State(State::Blocked(Reason::Other)), 3, 0),
                (Weighted::State(State::Runnable), 1, 0)
            ]
        );
        let latency = |event: &Event| match event {
            Event::Latency(latency) => Some((latency.metric, latency.cell.total_ns)),
            _ => None,
        };
        assert_eq!(
            events.iter().filter_map(latency).collect::<Vec<_>>(),
            [(Metric::OffCpu, 4), (Metric::RunQueue, 1), (Metric::Blocked(Reason::Other), 3)]
        );
    }

    #[test]
    fn open_wait_is_a_stall_without_samples() {
        let open = Wait { open: true, ..wait(Leave::Blocked(Reason::Other), 3 * MS, 0) };
        assert!(matches!(&emitted(Step::Waited(open))[..], [Event::Stall(stall)] if stall.open));
    }
}
