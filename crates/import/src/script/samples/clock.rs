// SPDX-License-Identifier: Apache-2.0
//! The running time that a printed sample stands for.
//!
//! The period of `cpu-clock` and `task-clock` is in ns. A sample of `cycles`, or one without a period, counts
//! as the time since the sample before it, as in perf.data. The rate that was asked for is not in the text:
//! the usual interval takes its place.

use std::collections::HashMap;

use super::line::{Expected, Line, split_modifiers};

const MS: u64 = 1_000_000;
const LONGEST_NS: u64 = 1_000 * MS;
/// Intervals that are looked at.
const MAX_INTERVALS: usize = 1 << 14;

/// What an event says of running time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventClock {
    /// The period is in ns.
    Ns,
    /// Only the interval between samples is known.
    Cycles,
}

/// The kind of clock that an event is, by its name, and the name without what may differ among its parts.
pub(crate) fn event_clock(event: &[u8]) -> Option<(EventClock, Vec<u8>)> {
    let (name, _) = split_modifiers(event);
    // `cpu_core/cycles/`, `cpu/cpu-cycles,period=5/`
    let name = match name.split(|byte| *byte == b'/').collect::<Vec<_>>()[..] {
        [_, inside, _] => inside.split(|byte| *byte == b',').next().unwrap_or_default(),
        _ => name,
    };
    let clock = match name {
        b"cpu-clock" | b"task-clock" => EventClock::Ns,
        b"cycles" | b"cpu-cycles" | b"ref-cycles" => EventClock::Cycles,
        _ => return None,
    };
    Some((clock, name.to_vec()))
}

/// The usual time between two samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockOfText {
    pub interval_ns: u64,
}

impl ClockOfText {
    /// The median of the intervals between two samples of the same event and CPU, or thread, in this text.
    pub(super) fn from_start(start: &[u8]) -> Self {
        let mut last = HashMap::new();
        let mut intervals = Vec::new();
        for text in start.split(|byte| *byte == b'\n') {
            let Line::Sample(head) = Line::parse(text, Expected::Frame) else { continue };
            let Some(ns) = head.ns else { continue };
            let sampler = (head.cpu.map_or(i64::from(head.tid), |cpu| -1 - i64::from(cpu)), head.event);
            let before = last.insert(sampler, ns);
            intervals.extend(before.and_then(|before| ns.checked_sub(before)).filter(|ns| *ns > 0));
            if intervals.len() >= MAX_INTERVALS {
                break;
            }
        }
        intervals.sort_unstable();
        let median = intervals.get(intervals.len() / 2).copied();
        ClockOfText { interval_ns: median.unwrap_or(MS).min(LONGEST_NS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_known_by_their_names() {
        for (event, expected) in [
            ("cpu-clock", Some((EventClock::Ns, "cpu-clock"))),
            ("task-clock:ppp", Some((EventClock::Ns, "task-clock"))),
            ("cycles:uppp", Some((EventClock::Cycles, "cycles"))),
            ("cpu_core/cycles/", Some((EventClock::Cycles, "cycles"))),
            ("cpu/cpu-cycles,period=9/u", Some((EventClock::Cycles, "cpu-cycles"))),
            ("instructions:u", None),
            ("sched:sched_switch", None),
            ("", None),
        ] {
            let found = event_clock(event.as_bytes());
            let expected = expected.map(|(clock, name)| (clock, name.as_bytes().to_vec()));
            assert_eq!(found, expected, "{event}");
        }
    }

    #[test]
    fn usual_interval_is_the_median_of_each_cpu() {
        let text = "a 1 [000] 1.000: cycles:\na 1 [001] 1.0001: cycles:\na 1 [000] 1.010: cycles:\n\
                    a 1 [001] 1.0101: cycles:\na 1 [000] 9.010: cycles:\n\t7f12 main (/bin/a)\n";
        assert_eq!(ClockOfText::from_start(text.as_bytes()).interval_ns, 10 * MS);
        assert_eq!(ClockOfText::from_start(b"a 1 1.0: cycles:").interval_ns, MS);
        assert_eq!(ClockOfText::from_start(b"a 1 1.0: cycles:\na 1 9.0: cycles:").interval_ns, LONGEST_NS);
    }
}
