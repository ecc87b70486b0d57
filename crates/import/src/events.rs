// SPDX-License-Identifier: Apache-2.0
//! The events of a recording. One is the clock that samples running time, some report switches and wakeups,
//! the others are only counted.

use std::collections::HashMap;

use crate::format::attr::{Attr, TYPE_HARDWARE, TYPE_SOFTWARE, TYPE_TRACEPOINT};
use crate::format::facts::Facts;
use crate::format::header::EventIds;
use crate::format::tracing::{Field, Format, Formats};

const NS_PER_SECOND: u64 = 1_000_000_000;
/// The longest running time that one sample stands for: an hour.
const MAX_WEIGHT_NS: u64 = 3_600 * NS_PER_SECOND;
/// CPUs or threads for which the time of the last sample is kept.
const MAX_SAMPLERS: usize = 1 << 20;

/// The fields of `sched_switch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SwitchFields {
    pub prev_pid: Field,
    pub prev_state: Field,
    pub prev_comm: Option<Field>,
    pub next_pid: Field,
    pub next_comm: Option<Field>,
}

/// The fields of `sched_waking`, `sched_wakeup` and `sched_wakeup_new`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WakeFields {
    pub pid: Field,
    pub common_flags: Option<Field>,
}

/// The meaning of a sample of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Running time.
    Clock,
    Switch(SwitchFields),
    Wake(WakeFields),
    Other,
}

/// One event.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub attr: Attr,
    pub role: Role,
    /// As perf prints it.
    pub name: String,
    /// Its number among the events that have a view of their own. The clock has none.
    pub view: Option<u16>,
}

/// All events of a recording, known from its header or from the start of a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events {
    known: Vec<EventIds>,
    /// Names that the stream gives to single event numbers.
    updates: HashMap<u64, String>,
    settled: Vec<Event>,
    by_id: HashMap<u64, usize>,
}

impl Events {
    pub(crate) fn add(&mut self, event: EventIds) {
        /// The limit that holds for a file's header, too.
        const MAX_EVENTS: usize = 1 << 16;
        if self.known.len() < MAX_EVENTS {
            self.known.push(event);
        }
    }

    pub(crate) fn rename(&mut self, id: u64, name: String) {
        if self.updates.len() < self.known.len() {
            self.updates.insert(id, name);
        }
    }

    /// Decides the role of each event, once all are known.
    pub(crate) fn settle(&mut self, facts: &Facts, formats: &Formats) {
        let clock = self.known.iter().map(|event| &event.attr).find(|attr| is_clock(attr));
        let clock = clock.map(|attr| (attr.kind, attr.generic_config()));
        let mut next_view = 0u16;
        let settle = |event: &EventIds| {
            let attr = event.attr.clone();
            let format = (attr.kind == TYPE_TRACEPOINT).then(|| formats.by_id.get(&attr.config)).flatten();
            let role = match clock == Some((attr.kind, attr.generic_config())) {
                true => Role::Clock,
                false => format.and_then(role_from_format).unwrap_or(Role::Other),
            };
            let update = event.ids.iter().find_map(|id| self.updates.get(id).or(facts.event_names.get(id)));
            let name = update.cloned().unwrap_or_else(|| name_of(&attr, format));
            let view = (role != Role::Clock).then_some(next_view);
            next_view = next_view.saturating_add(u16::from(view.is_some()));
            Event { attr, role, name, view }
        };
        self.settled = self.known.iter().map(settle).collect();
        let ids =
            self.known.iter().enumerate().flat_map(|(at, event)| event.ids.iter().map(move |id| (*id, at)));
        self.by_id = ids.collect();
    }

    /// The event with this number. In a recording with a single event, samples without a number are of that
    /// event.
    pub(crate) fn by_id(&self, id: Option<u64>) -> Option<(usize, &Event)> {
        let at = match id {
            Some(id) => self.by_id.get(&id).copied().or((self.settled.len() == 1).then_some(0))?,
            None => 0,
        };
        Some((at, self.settled.get(at)?))
    }

    /// The attr that says where each record has its id. All events of a recording agree on that.
    pub(crate) fn layout(&self) -> Option<&Attr> {
        self.known.first().map(|event| &event.attr)
    }

    /// The config of the first event of this kind.
    pub(crate) fn config_of(&self, kind: u32) -> Option<u64> {
        self.known.iter().find(|event| event.attr.kind == kind).map(|event| event.attr.config)
    }

    pub(crate) fn all(&self) -> &[Event] {
        &self.settled
    }

    /// Whether switches are recorded twice, as records and as tracepoints.
    pub(crate) fn switches_twice(&self) -> bool {
        let tracepoint = self.settled.iter().any(|event| matches!(event.role, Role::Switch(_)));
        tracepoint && self.known.iter().any(|event| event.attr.has_switches())
    }

    /// Whether mappings were asked to carry build ids.
    pub(crate) fn has_build_ids(&self) -> bool {
        self.known.iter().any(|event| event.attr.has_build_ids())
    }

    /// The clock of all times, unless it is perf's own.
    pub(crate) fn clockid(&self) -> Option<i32> {
        self.layout().and_then(Attr::clock)
    }
}

fn is_clock(attr: &Attr) -> bool {
    // cpu-clock and task-clock; cycles and ref-cycles.
    match attr.kind {
        TYPE_SOFTWARE => attr.config <= 1,
        TYPE_HARDWARE => matches!(attr.generic_config(), 0 | 9),
        _ => false,
    }
}

fn role_from_format(format: &Format) -> Option<Role> {
    let field = |name| format.field(name);
    match format.name.as_str() {
        "sched:sched_switch" => Some(Role::Switch(SwitchFields {
            prev_pid: field("prev_pid")?,
            prev_state: field("prev_state")?,
            prev_comm: field("prev_comm"),
            next_pid: field("next_pid")?,
            next_comm: field("next_comm"),
        })),
        "sched:sched_waking" | "sched:sched_wakeup" | "sched:sched_wakeup_new" => {
            Some(Role::Wake(WakeFields { pid: field("pid")?, common_flags: field("common_flags") }))
        }
        _ => None,
    }
}

fn name_of(attr: &Attr, format: Option<&Format>) -> String {
    match (attr.generic_name(), format) {
        (Some(name), _) => name.to_owned(),
        (None, Some(format)) => format.name.clone(),
        (None, None) => format!("type {} config {:#x}", attr.kind, attr.config),
    }
}

/// The running time that a sample of the clock stands for.
///
/// `cpu-clock` and `task-clock` count nanoseconds. A sample of `cycles` stands for the time since the sample
/// before it on the same CPU, or for one interval at the rate asked for where that is much longer: the CPU
/// was idle, or ran something that was not recorded.
#[derive(Clone, Debug, Default)]
pub(crate) struct SampleClock {
    last: HashMap<u64, u64>,
}

impl SampleClock {
    /// `sampler`: the CPU or thread that is sampled independently of others.
    pub(crate) fn weight_ns(&mut self, attr: &Attr, period: Option<u64>, sampler: u64, time: u64) -> u64 {
        let weight = match attr.kind {
            TYPE_SOFTWARE => period.unwrap_or_else(|| nominal_ns(attr)),
            _ => self.interval_ns(nominal_ns(attr), sampler, time),
        };
        Self::limited(weight)
    }

    /// A running time that one sample may stand for.
    pub(crate) fn limited(weight_ns: u64) -> u64 {
        weight_ns.min(MAX_WEIGHT_NS)
    }

    /// The time since the last sample, or `nominal` where that is much longer.
    pub(crate) fn interval_ns(&mut self, nominal: u64, sampler: u64, time: u64) -> u64 {
        if self.last.len() >= MAX_SAMPLERS {
            self.last.clear();
        }
        let last = self.last.insert(sampler, time);
        let interval = last.and_then(|last| time.checked_sub(last));
        interval.filter(|interval| *interval <= nominal.saturating_mul(2)).unwrap_or(nominal)
    }
}

/// The interval between samples that the event was opened for; cycles are counted at 2 GHz.
fn nominal_ns(attr: &Attr) -> u64 {
    let asked = attr.period_or_frequency;
    match (attr.is_frequency(), attr.kind) {
        (true, _) => NS_PER_SECOND.checked_div(asked).unwrap_or(0),
        (false, TYPE_SOFTWARE) => asked,
        (false, _) => asked / 2,
    }
}

#[cfg(test)]
mod tests {
    use wallprof_intel_pt::generator::record;

    use super::*;
    use crate::format::tracing::tests::tracing_data;

    fn attr(kind: u64, config: u64, frequency: u64) -> Attr {
        Attr::from_bytes(&record::attr(
            128,
            &[(8, config), (16, frequency), (40, 1 << 10), (0, kind | 128 << 32)],
        ))
    }

    fn events(attrs: &[Attr]) -> Events {
        let mut events = Events::default();
        for (index, attr) in attrs.iter().enumerate() {
            events.add(EventIds { attr: attr.clone(), ids: vec![index as u64 + 10] });
        }
        let formats = Formats::read(&mut &tracing_data()[..]).expect("formats");
        events.settle(&Facts::default(), &formats);
        events
    }

    #[test]
    fn first_clock_gives_running_time_and_others_are_counted() {
        let events = events(&[attr(1, 9, 1), attr(0, 4 << 32, 99), attr(1, 0, 99), attr(0, 8 << 32, 99)]);
        let views: Vec<_> = events.all().iter().map(|event| (event.role, event.view)).collect();
        let other = |view| (Role::Other, Some(view));
        assert_eq!(views, [other(0), (Role::Clock, None), other(1), (Role::Clock, None)]);
        let names: Vec<_> = events.all().iter().map(|event| event.name.as_str()).collect();
        assert_eq!(names, ["dummy", "cycles", "cpu-clock", "cycles"]);
    }

    #[test]
    fn tracepoints_are_found_by_their_format() {
        let events = events(&[attr(2, 316, 1), attr(2, 318, 1), attr(2, 999, 1)]);
        let roles: Vec<_> = events.all().iter().map(|event| event.role).collect();
        assert!(matches!(roles[..], [Role::Switch(_), Role::Wake(_), Role::Other]), "{roles:?}");
        assert_eq!(events.all()[0].name, "sched:sched_switch");
        assert!(!events.switches_twice());
    }

    #[test]
    fn numbers_lead_to_events() {
        let mut two = events(&[attr(1, 0, 1), attr(1, 2, 1)]);
        let at = |events: &Events, id| events.by_id(id).map(|(at, _)| at);
        assert_eq!((at(&two, Some(11)), at(&two, Some(77)), at(&two, None)), (Some(1), None, Some(0)));
        assert_eq!(at(&events(&[attr(1, 0, 1)]), Some(77)), Some(0));
        two.rename(11, "page-faults:u".into());
        two.settle(&Facts::default(), &Formats::default());
        assert_eq!(two.all()[1].name, "page-faults:u");
    }

    #[test]
    fn weight_of_cpu_clock_is_the_period_of_the_sample() {
        let mut clock = SampleClock::default();
        let cpu_clock = attr(1, 0, 1_000);
        assert_eq!(clock.weight_ns(&cpu_clock, Some(250_000), 0, 5), 250_000);
        assert_eq!(clock.weight_ns(&cpu_clock, None, 0, 5), 1_000_000);
        assert_eq!(clock.weight_ns(&cpu_clock, Some(u64::MAX), 0, 5), MAX_WEIGHT_NS);
        assert_eq!(clock.weight_ns(&attr(1, 0, 0), None, 0, 5), 0);
    }

    #[test]
    fn weight_of_cycles_is_the_time_since_the_previous_sample() {
        let mut clock = SampleClock::default();
        let cycles = attr(0, 0, 1_000);
        let mut at = |cpu, time| clock.weight_ns(&cycles, Some(77), cpu, time);
        assert_eq!(
            [at(0, 10_000_000), at(0, 10_900_000), at(1, 11_000_000)],
            [1_000_000, 900_000, 1_000_000]
        );
        assert_eq!([at(0, 12_000_000), at(0, 90_000_000), at(0, 5)], [1_100_000, 1_000_000, 1_000_000]);
    }
}
