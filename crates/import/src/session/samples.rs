// SPDX-License-Identifier: Apache-2.0
//! Samples: running time of the clock, switches and wakeups of tracepoints, counts of other events.

use wallprof_intel_pt::Departure;
use wallprof_model::event::{LedgerDelta, SampleDelta, Weighted};
use wallprof_model::{Event, Loss, Reason, StackEnd, State, ThreadKey};
use wallprof_symbols::FileSearch;

use super::Session;
use crate::chain::{Chain, chain_from_sample};
use crate::events::{Role, SwitchFields, WakeFields};
use crate::format::attr::{Attr, TYPE_TRACEPOINT};
use crate::format::record::{RawRecord, comm_from_bytes, misc};
use crate::format::sample::{Sample, sample_id};
use crate::format::tracing::Field;
use crate::machine::{Machine, kernel_symbols};
use crate::seconds::WokenBy;
use crate::threads::Known;
use crate::timeline::{Leave, Stacks, Step};
use crate::unwinder::Sampled;

/// Bits of a tracepoint's `common_flags`: it fired in an interrupt or in an NMI.
const IN_HARD_INTERRUPT: u64 = 0x08 | 0x40;
/// It fired in a softirq.
const IN_SOFT_INTERRUPT: u64 = 0x10;

/// The stacks of one sample.
#[derive(Default)]
pub(super) struct Taken {
    pub stacks: Stacks,
    pub interrupt: Option<bool>,
}

impl Session {
    pub(super) fn take_sample(&mut self, raw: RawRecord<'_>) {
        let Some(layout) = self.events.layout() else { return };
        let id = sample_id(layout, raw).id;
        let Some((_, event)) = self.events.by_id(id) else {
            self.lose(Loss::SamplesOfUnknownEvents, 1);
            return;
        };
        let (attr, role, view) = (event.attr.clone(), event.role, event.view);
        let Ok(sample) = Sample::read(&attr, raw.body) else {
            self.lose(Loss::RecordsMalformed, 1);
            return;
        };
        let mode = raw.misc & misc::CPU_MODE;
        if matches!(mode, misc::GUEST_KERNEL | misc::GUEST_USER) {
            self.lose(Loss::GuestSamples, 1);
            return;
        }
        let time = sample.id.time.unwrap_or(self.now);
        self.start_at(time);
        self.now = self.now.max(time);
        match role {
            // Of the idle task, too: the next thread's start and the woken thread are kept.
            Role::Switch(_) | Role::Wake(_) => self.samples += 1,
            Role::Clock | Role::Other => self.count_sample(sample.id.tid),
        }
        let taken = self.taken(&attr, role, raw.misc, &sample);
        match role {
            Role::Clock => {
                let sampler = sample.id.cpu.or(sample.id.tid).unwrap_or(0);
                let weight = self.sample_clock.weight_ns(&attr, sample.period, sampler.into(), time);
                let state = if mode == misc::KERNEL { State::Kernel } else { State::User };
                self.running(time, &sample, weight, state, &taken);
            }
            Role::Switch(fields) => self.switched(time, &sample, fields, &taken),
            Role::Wake(fields) => self.woken(time, &sample, fields, &taken),
            Role::Other => {}
        }
        if let Some(view) = view {
            // A sample of a fixed period does not say it: `perf record -c`.
            let fixed =
                (!attr.is_frequency() && attr.period_or_frequency > 0).then_some(attr.period_or_frequency);
            let events = sample.period.or(fixed).unwrap_or(1);
            self.counted(time, &sample, (view, events), &taken);
        }
    }

    /// A sample of the clock.
    pub(super) fn running(
        &mut self,
        time: u64,
        sample: &Sample<'_>,
        weight: u64,
        state: State,
        taken: &Taken,
    ) {
        let from = time.saturating_sub(weight).max(self.start.unwrap_or(time));
        let Some(key) = self.with_sampled(sample, from, time, |known, time, steps| {
            known.timeline.sampled(time, weight, steps);
        }) else {
            return;
        };
        if self.pt.is_some() {
            self.sampled.insert(key);
        }
        self.weigh(key, time, Weighted::State(state), weight, taken);
        let second = self.step_emitter().second(time);
        let mut delta = LedgerDelta::new(key, second);
        match state {
            State::Kernel => delta.kernel_samples = 1,
            _ => delta.user_samples = 1,
        }
        self.out.push(Event::Ledger(delta));
    }

    /// A sample of an event that has a view of its own, for so many events.
    pub(super) fn counted(
        &mut self,
        time: u64,
        sample: &Sample<'_>,
        (view, events): (u16, u64),
        taken: &Taken,
    ) {
        let key =
            self.with_sampled(sample, time, time, |known, time, steps| known.timeline.seen(time, steps));
        if let Some(key) = key {
            self.weigh(key, time, Weighted::Event(view), events, taken);
        }
    }

    fn weigh(&mut self, thread: ThreadKey, time: u64, what: Weighted, weight: u64, taken: &Taken) {
        let second = self.step_emitter().second(time);
        let Stacks { user, kernel } = taken.stacks;
        let sample = SampleDelta { thread, second, what, user, kernel, waker: None, weight, count: 1 };
        self.out.push(Event::Sample(sample));
    }

    /// `sched_switch`, in the context of the thread that leaves.
    fn switched(&mut self, time: u64, sample: &Sample<'_>, fields: SwitchFields, taken: &Taken) {
        let number = |field: Field| field.integer(sample.raw);
        let (Some(prev), Some(state), Some(next)) =
            (number(fields.prev_pid), number(fields.prev_state), number(fields.next_pid))
        else {
            self.lose(Loss::RecordsMalformed, 1);
            return;
        };
        let (prev, next) = (sample.id.tid.unwrap_or(prev as u32), next as u32);
        for (tid, comm) in [(prev, fields.prev_comm), (next, fields.next_comm)] {
            if let Some(comm) = comm.and_then(|field| field.bytes(sample.raw)) {
                self.threads.suggest(tid, comm_from_bytes(comm), &mut self.out);
            }
        }
        if prev == 0 {
            self.system_wide.get_or_insert(true);
        }
        self.with_thread(sample.id.pid, prev, time, time, |known, time, steps| {
            known.timeline.switch_out(time, leave_from_state(state), taken.stacks, steps);
        });
        // Events of single threads show the next thread, but not its switch-out.
        if self.system_wide == Some(true) {
            self.switch_ins_seen = true;
            self.with_thread(None, next, time, time, |known, time, steps| {
                known.cpu = sample.id.cpu.or(known.cpu);
                known.timeline.switch_in(time, steps);
            });
        }
        if let Some(cpu) = sample.id.cpu.filter(|_| self.pt.is_some()) {
            let departure = match leave_from_state(state) {
                Leave::Preempted => Departure::Preempted,
                Leave::Blocked(_) => Departure::Blocked,
            };
            self.trace_switch(cpu, time, None, next, departure);
        }
    }

    /// `sched_waking` and `sched_wakeup`, in the context of the waker.
    fn woken(&mut self, time: u64, sample: &Sample<'_>, fields: WakeFields, taken: &Taken) {
        let Some(tid) = fields.pid.integer(sample.raw) else {
            self.lose(Loss::RecordsMalformed, 1);
            return;
        };
        let tid = tid as u32;
        if self.system_wide != Some(true) && self.threads.get(tid).is_none() {
            return;
        }
        let flags = fields.common_flags.and_then(|field| field.integer(sample.raw)).unwrap_or(0);
        let waker = self.waker(sample, flags, taken);
        self.with_thread(None, tid, time, time, |known, time, steps| known.timeline.wake(time, waker, steps));
    }

    /// `None` if it is not known whether an interrupt woke the thread.
    fn waker(&self, sample: &Sample<'_>, flags: u64, taken: &Taken) -> Option<WokenBy> {
        let tid = sample.id.tid?;
        let interrupt = match flags {
            _ if tid == 0 || flags & IN_HARD_INTERRUPT != 0 => true,
            // A softirq on the way out of an interrupt, or one that a task runs itself.
            _ if flags & IN_SOFT_INTERRUPT != 0 => taken.interrupt?,
            _ => false,
        };
        let kernel = taken.stacks.kernel;
        Some(match interrupt {
            true => WokenBy { thread: None, stacks: Stacks { user: None, kernel } },
            false => {
                WokenBy { thread: Some(self.threads.reference(sample.id.pid, tid)), stacks: taken.stacks }
            }
        })
    }

    fn taken(&mut self, attr: &Attr, role: Role, bits: u16, sample: &Sample<'_>) -> Taken {
        let Chain { kernel, user, full } = chain_from_sample(attr, bits & misc::CPU_MODE, sample);
        let pid = sample.id.pid.unwrap_or(u32::MAX);
        let of_tracepoint = attr.kind == TYPE_TRACEPOINT;
        if !kernel.is_empty() {
            self.find_kernel_symbols();
        }
        let wants_interrupt = matches!(role, Role::Wake(_));
        let mut addresses = std::mem::take(&mut self.addresses);
        let mut out = std::mem::take(&mut self.out);
        let _ = self.stacks();
        let mut taken = Taken::default();
        if let Some(files) = &mut self.files {
            let user = match &sample.user {
                Some(state) if !state.stack.is_empty() => {
                    let tid = sample.id.tid.unwrap_or(pid);
                    let sampled = Sampled { pid, tid, is_exact: bits & misc::EXACT_IP != 0 };
                    let end = self.unwinder.walk(&files.processes, sampled, state, &mut addresses);
                    files.user(pid, &addresses, end, &mut out)
                }
                _ => {
                    let end = if full { StackEnd::Truncated } else { StackEnd::FramePointerEnd };
                    files.user(pid, &user, end, &mut out)
                }
            };
            let kernel_stack = files.kernel(&kernel, of_tracepoint, &mut out);
            taken.stacks = Stacks { user, kernel: kernel_stack };
            taken.interrupt = if wants_interrupt { files.is_interrupt(&kernel) } else { None };
        }
        (self.addresses, self.out) = (addresses, out);
        taken
    }

    /// Called at the first kernel stack: by then a stream has named its kernel.
    pub(crate) fn find_kernel_symbols(&mut self) {
        if std::mem::replace(&mut self.kernel_asked, true) {
            return;
        }
        let search = FileSearch {
            root: None,
            build_id_cache: self.options.build_id_cache.clone(),
            same_kernel: Machine::this().is_recorded(&self.facts),
        };
        if let Some(symbols) = kernel_symbols(&self.facts, &search, self.kernel_base) {
            self.stacks().set_kernel_symbols(symbols);
        }
    }

    fn with_sampled(
        &mut self,
        sample: &Sample<'_>,
        from: u64,
        time: u64,
        change: impl FnOnce(&mut Known, u64, &mut Vec<Step<WokenBy>>),
    ) -> Option<ThreadKey> {
        let tid = sample.id.tid.unwrap_or(u32::MAX);
        let change = |known: &mut Known, time: u64, steps: &mut Vec<Step<WokenBy>>| {
            known.cpu = sample.id.cpu.or(known.cpu);
            change(known, time, steps);
        };
        if let Some(mut known) = self.threads.exiting(sample.id.pid, tid) {
            let mut steps = Vec::new();
            change(&mut known, time, &mut steps);
            self.emit(&known, tid, steps);
            self.end_thread(tid, &known);
            return Some(known.key);
        }
        let key = self.with_thread(sample.id.pid, tid, from, time, change);
        if key.is_none() && tid != 0 {
            self.lose(Loss::SamplesOfEndedThreads, 1);
        }
        key
    }
}

/// `prev_state` is a bit mask. Bits above the lowest eight say that the thread was preempted, or how it may
/// be woken.
fn leave_from_state(state: u64) -> Leave {
    const STOPPED_OR_TRACED: u64 = 0x04 | 0x08;
    match state & 0xff {
        0 => Leave::Preempted,
        state if state & STOPPED_OR_TRACED != 0 => Leave::Blocked(Reason::Stopped),
        _ => Leave::Blocked(Reason::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_bit_masks() {
        assert_eq!([0, 0x100, 0x400].map(leave_from_state), [Leave::Preempted; 3]);
        let blocked = Leave::Blocked(Reason::Other);
        assert_eq!([1, 2, 0x82, 0x102].map(leave_from_state), [blocked; 4]);
        assert_eq!([4, 8].map(leave_from_state), [Leave::Blocked(Reason::Stopped); 2]);
    }
}
