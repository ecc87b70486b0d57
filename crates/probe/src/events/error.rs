// SPDX-License-Identifier: Apache-2.0
//! Why an event is not available, as facts; the message says which events are.

use std::fmt;

use super::generic;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventError {
    /// No event has this name; `near` are similar names, best first.
    Unknown {
        event: String,
        near: Vec<String>,
    },
    /// A hardware event where the machine has no counters.
    NoHardwareCounters {
        event: String,
    },
    /// A tracepoint, or a name that may be one, and no tracefs is mounted: mount one and parse again.
    NeedsTracefs {
        event: String,
    },
    /// A tracefs is mounted, and this process may not read it.
    TracefsNotReadable {
        event: String,
    },
    /// `group:name` of a tracepoint that this kernel does not have.
    UnknownTracepoint {
        event: String,
        near: Vec<String>,
    },
    UnknownPmu {
        event: String,
        pmu: String,
        known: Vec<String>,
    },
    /// The PMU exists, but has no samples: it counts a whole socket, or takes pointers.
    PmuCannotSample {
        event: String,
        pmu: String,
    },
    UnknownTerm {
        event: String,
        term: String,
        known: Vec<String>,
    },
    /// A term's value is not a number, or has more bits than the PMU gives the term.
    BadTermValue {
        event: String,
        term: String,
    },
    BadModifier {
        event: String,
        modifier: char,
    },
    /// `:p` on an event that is not counted by hardware.
    NotPrecise {
        event: String,
    },
    /// Unbalanced slashes, too many colons, an empty name, or characters that no event has.
    Malformed {
        event: String,
    },
}

impl EventError {
    /// True when the request is right, but this machine or these permissions do not provide it. False when
    /// the request itself is wrong.
    pub fn is_unavailable(&self) -> bool {
        use EventError::*;
        matches!(
            self,
            NoHardwareCounters { .. }
                | NeedsTracefs { .. }
                | TracefsNotReadable { .. }
                | PmuCannotSample { .. }
        )
    }
}

impl std::error::Error for EventError {}

impl fmt::Display for EventError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        use EventError::*;
        match self {
            Unknown { event, near } if near.is_empty() => {
                write!(f, "there is no event `{event}`: use {}", everywhere())
            }
            Unknown { event, near } => {
                write!(
                    f,
                    "there is no event `{event}`: did you mean {}? or use {}",
                    choice(near),
                    everywhere()
                )
            }
            NoHardwareCounters { event } => write!(
                f,
                "event `{event}` needs hardware counters, and this machine offers none (a virtual machine \
                 without a PMU?): use {}",
                everywhere()
            ),
            NeedsTracefs { event } => write!(
                f,
                "event `{event}` is looked up in tracefs, which is not mounted: run \
                 `mount -t tracefs tracefs /sys/kernel/tracing` as root"
            ),
            TracefsNotReadable { event } => write!(
                f,
                "event `{event}` is looked up in tracefs, which this user may not read: run as root, or give \
                 wallprof CAP_DAC_READ_SEARCH"
            ),
            UnknownTracepoint { event, near } if near.is_empty() => write!(
                f,
                "this kernel has no tracepoint `{event}`: /sys/kernel/tracing/available_events lists those \
                 it has"
            ),
            UnknownTracepoint { event, near } => {
                write!(f, "this kernel has no tracepoint `{event}`: did you mean {}?", choice(near))
            }
            UnknownPmu { event, pmu, known } => {
                write!(
                    f,
                    "event `{event}` names a PMU `{pmu}` that does not exist: this machine has {}",
                    choice(known)
                )
            }
            PmuCannotSample { event, pmu } => {
                write!(
                    f,
                    "event `{event}` cannot be sampled: the PMU `{pmu}` only counts, or counts for all \
                     CPUs at once"
                )
            }
            UnknownTerm { event, term, known } => {
                write!(
                    f,
                    "event `{event}` has a term `{term}` that its PMU does not have: it has {}",
                    choice(known)
                )
            }
            BadTermValue { event, term } => {
                write!(f, "event `{event}` gives the term `{term}` a value that is no number or does not fit")
            }
            BadModifier { event, modifier } => write!(
                f,
                "event `{event}` has a modifier `{modifier}`: the modifiers are u (user), k (kernel) and \
                 p, pp or ppp (precise)"
            ),
            NotPrecise { event } => {
                write!(f, "event `{event}` has no precise form: only hardware events take the modifier p")
            }
            Malformed { event } => write!(
                f,
                "`{event}` is not an event's name: write a name (`page-faults`), a tracepoint \
                 (`sched:sched_switch`), `pmu/term=value,…/` or a raw code (`r1a8`)"
            ),
        }
    }
}

fn everywhere() -> String {
    let names: Vec<_> =
        generic::software_names().filter(|name| !matches!(*name, "dummy" | "bpf-output")).collect();
    format!("{}, or a tracepoint such as sched:sched_switch", names.join(", "))
}

fn choice(names: &[String]) -> String {
    match names {
        [] => "none".to_string(),
        [one] => format!("`{one}`"),
        [most @ .., last] => {
            let most: Vec<_> = most.iter().map(|name| format!("`{name}`")).collect();
            format!("{} or `{last}`", most.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_one_sentence_with_an_alternative() {
        let missing = EventError::NoHardwareCounters { event: "cycles".into() };
        assert!(missing.is_unavailable());
        assert_eq!(
            missing.to_string(),
            "event `cycles` needs hardware counters, and this machine offers none (a virtual machine \
             without a \
             PMU?): use cpu-clock, task-clock, page-faults, minor-faults, major-faults, context-switches, \
             cpu-migrations, alignment-faults, emulation-faults, cgroup-switches, or a tracepoint such as \
             sched:sched_switch"
        );
        let unknown = EventError::UnknownTracepoint {
            event: "sched:swich".into(),
            near: vec!["sched:sched_switch".into(), "sched:sched_stat".into(), "a".into()],
        };
        assert!(!unknown.is_unavailable());
        assert!(
            unknown.to_string().ends_with("did you mean `sched:sched_switch`, `sched:sched_stat` or `a`?")
        );
    }
}
