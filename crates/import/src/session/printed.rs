// SPDX-License-Identifier: Apache-2.0
//! Samples that were printed as text.

use std::collections::HashMap;

use wallprof_model::{Event, Loss, StackEnd, StackId, State};

use super::Session;
use super::samples::Taken;
use crate::events::SampleClock;
use crate::format::facts::Facts;
use crate::format::record::comm_from_bytes;
use crate::format::sample::{Sample, SampleId};
use crate::options::ImportOptions;
use crate::script::samples::{ClockOfText, EventClock, PrintedSample, PrintedStack, event_clock};
use crate::timeline::Stacks;

/// More events than perf opens.
const MAX_EVENTS: usize = 1 << 12;
/// The running time of a sample without any time.
const UNTIMED_NS: u64 = 1_000_000;

/// The events of a text, by their printed names.
#[derive(Default)]
pub(super) struct PrintedEvents {
    clock: ClockOfText,
    /// The name of the first event that is a clock. Others with it are parts of it, such as `cycles:k`.
    clock_name: Option<Vec<u8>>,
    known: HashMap<Vec<u8>, PrintedEvent>,
}

#[derive(Clone, Copy)]
struct PrintedEvent {
    clock: Option<EventClock>,
    /// `None`: it is a clock in ns, or one event too many.
    view: Option<u16>,
}

impl Session {
    /// An import of texts.
    pub(crate) fn of_text(options: ImportOptions, clock: ClockOfText) -> Self {
        let printed = PrintedEvents { clock, ..PrintedEvents::default() };
        Session { printed: Some(printed), ..Session::new(options) }
    }

    /// `hostname : a` and others, from a text's first lines.
    pub(crate) fn take_text_facts(&mut self, facts: &[(String, String)]) {
        for (name, value) in facts {
            take_fact(&mut self.facts, name, value);
        }
    }

    pub(crate) fn take_printed(&mut self, printed: &PrintedSample) {
        let event = self.printed_event(printed);
        let (pid, tid) = (number(printed.pid), number(Some(printed.tid)).unwrap_or(u32::MAX));
        let untimed =
            || self.now.saturating_add(printed.period.filter(|_| event.is_ns()).unwrap_or(UNTIMED_NS));
        // perf prints samples in the order of time. Texts that were put together are not in it.
        let time = printed.ns.unwrap_or_else(untimed).max(self.now);
        self.lose(Loss::RecordsLate, u64::from(printed.ns.is_some_and(|ns| ns < time)));
        let id = SampleId { pid, tid: Some(tid), time: Some(time), cpu: printed.cpu, id: None };
        let sample = Sample { id, period: printed.period, ..Sample::default() };
        let weight = event.clock.map(|_| self.printed_weight(event, &sample, printed.ns, time));
        self.start_at(time.saturating_sub(weight.unwrap_or(0)));
        self.now = self.now.max(time);
        self.lose(Loss::SamplesWithoutTime, u64::from(printed.ns.is_none()));
        self.count_sample(Some(tid));
        let known = self.threads.get(tid).map(|known| known.pid);
        let comm = comm_from_bytes(&printed.comm);
        if !comm.is_empty() && tid != 0 {
            self.threads.name(pid.or(known).unwrap_or(tid), tid, comm, &mut self.out);
        }
        let is_kernel = !printed.stack.kernel.is_empty();
        let taken = Taken { stacks: self.printed_stacks(&printed.stack), ..Taken::default() };
        if let Some(weight) = weight {
            let state = if is_kernel { State::Kernel } else { State::User };
            self.running(time, &sample, weight, state, &taken);
        }
        if let Some(view) = event.view {
            self.counted(time, &sample, (view, sample.period.unwrap_or(1)), &taken);
        }
    }

    /// The event, with a view of its own if its counts are no running time.
    fn printed_event(&mut self, sample: &PrintedSample) -> PrintedEvent {
        let printed = self.printed.get_or_insert_default();
        if let Some(known) = printed.known.get(&sample.event) {
            return *known;
        }
        let clock = event_clock(&sample.event)
            .filter(|(_, name)| printed.clock_name.get_or_insert_with(|| name.clone()) == name);
        let clock = clock.map(|(clock, _)| clock).map(|clock| match sample.period {
            None => EventClock::Cycles,
            Some(_) => clock,
        });
        let index = u16::try_from(printed.known.len()).ok().filter(|index| usize::from(*index) < MAX_EVENTS);
        let view = index.filter(|_| clock != Some(EventClock::Ns));
        let event = PrintedEvent { clock, view };
        if let Some(index) = index {
            printed.known.insert(sample.event.clone(), event);
            let name = match &sample.event[..] {
                [] => "samples".to_owned(),
                name => String::from_utf8_lossy(name).into_owned(),
            };
            if view.is_some() {
                self.out.push(Event::EventName { index, name });
            }
        }
        event
    }

    fn printed_weight(
        &mut self,
        event: PrintedEvent,
        sample: &Sample<'_>,
        ns: Option<u64>,
        time: u64,
    ) -> u64 {
        let usual = self.printed.as_ref().map_or(UNTIMED_NS, |printed| printed.clock.interval_ns);
        match (event.is_ns(), sample.period) {
            (true, Some(period)) => SampleClock::limited(period),
            _ if ns.is_none() => UNTIMED_NS,
            _ => {
                let sampler = sample.id.cpu.or(sample.id.tid).unwrap_or(0);
                self.sample_clock.interval_ns(usual, sampler.into(), time)
            }
        }
    }

    fn printed_stacks(&mut self, stack: &PrintedStack) -> Stacks {
        let end = if stack.is_incomplete { StackEnd::Truncated } else { StackEnd::FramePointerEnd };
        let mut out = std::mem::take(&mut self.out);
        let stacks = self.stacks();
        let user = stacks.of_frames(stack.user.clone(), end, &mut out);
        let kernel: Option<StackId> = stacks.of_kernel_frames(stack.kernel.clone(), &mut out);
        self.out = out;
        Stacks { user, kernel }
    }
}

impl PrintedEvent {
    fn is_ns(self) -> bool {
        self.clock == Some(EventClock::Ns)
    }
}

/// Negative numbers are of threads that perf did not know.
fn number(id: Option<i32>) -> Option<u32> {
    id.and_then(|id| u32::try_from(id).ok())
}

/// The names are those of `perf script --header`.
fn take_fact(facts: &mut Facts, name: &str, value: &str) {
    match name {
        "hostname" => facts.hostname = value.to_owned(),
        "os release" => facts.kernel = value.to_owned(),
        "arch" => facts.arch = value.to_owned(),
        "nrcpus online" => facts.cpus = value.parse().unwrap_or(0),
        "cmdline" => facts.command_line = value.split(' ').map(str::to_owned).collect(),
        _ => {}
    }
}
