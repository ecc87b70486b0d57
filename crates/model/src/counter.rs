// SPDX-License-Identifier: Apache-2.0
//! Counters of the machine, of recorded processes and of the application, over time.

use crate::thread::ThreadKey;
use crate::time::MonoNs;

/// A source's own number of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CounterKey(pub u32);

/// The meaning of a counter's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CounterKind {
    /// The amount at one time.
    Level,
    /// A sum since some start: only differences have a meaning.
    Sum,
}

/// The unit of a counter's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CounterUnit {
    /// A number of the application.
    Plain,
    /// Things or events.
    Count,
    /// Memory or I/O.
    Bytes,
    /// Time.
    Ns,
}

impl CounterKind {
    /// Each variant once, in the order of their declaration.
    pub const ALL: [CounterKind; 2] = [CounterKind::Level, CounterKind::Sum];

    /// The name in recordings and in JSON, which [`Self::from_name`] reads.
    pub fn name(self) -> &'static str {
        match self {
            CounterKind::Level => "level",
            CounterKind::Sum => "sum",
        }
    }

    /// `None`: no name is equal to the text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl CounterUnit {
    /// Each variant once, in the order of their declaration.
    pub const ALL: [CounterUnit; 4] =
        [CounterUnit::Plain, CounterUnit::Count, CounterUnit::Bytes, CounterUnit::Ns];

    /// As it is in recordings and in JSON: empty for [`CounterUnit::Plain`].
    pub fn name(self) -> &'static str {
        match self {
            CounterUnit::Plain => "",
            CounterUnit::Count => "count",
            CounterUnit::Bytes => "bytes",
            CounterUnit::Ns => "ns",
        }
    }

    /// `None`: no name is equal to the text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name() == name)
    }
}

/// A counter's name and meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// `memory.free`, `cpu0.run_queue`, `faults.major` …
    pub name: String,
    /// A thread of the process that it is of; `None`: it is of the machine, or of the application.
    pub thread: Option<ThreadKey>,
    /// Whether values or their differences are shown.
    pub kind: CounterKind,
    /// Of each value.
    pub unit: CounterUnit,
}

/// A counter's values around some time, in its order. A value holds until the next one; where a value held
/// for long, the last time at which it was read is there, too, so that a sum can be interpolated between two
/// points.
#[derive(Clone, Debug, PartialEq)]
pub struct CounterTrack {
    /// The counter that has these values.
    pub counter: Counter,
    /// Times by the monotonic clock, ascending, each with the value from then on.
    pub points: Vec<(MonoNs, f64)>,
}

/// A note of the application or of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The start, by the monotonic clock, ns.
    pub at: MonoNs,
    /// `None`: a point in time.
    pub duration_ns: Option<u64>,
    /// As the application or the user wrote it: escape it before it is shown.
    pub text: String,
}

impl Mark {
    /// Monotonic clock, ns; the start where the mark has no duration.
    pub fn end(&self) -> MonoNs {
        MonoNs(self.at.0.saturating_add(self.duration_ns.unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        assert!(CounterKind::ALL.into_iter().all(|kind| CounterKind::from_name(kind.name()) == Some(kind)));
        assert!(CounterUnit::ALL.into_iter().all(|unit| CounterUnit::from_name(unit.name()) == Some(unit)));
        assert_eq!((CounterKind::from_name("x"), CounterUnit::from_name("x")), (None, None));
    }

    #[test]
    fn a_mark_ends_where_it_is_or_later() {
        let mark = Mark { at: MonoNs(5), duration_ns: None, text: "alarm".into() };
        assert_eq!(mark.end(), MonoNs(5));
        assert_eq!(Mark { duration_ns: Some(u64::MAX), ..mark }.end(), MonoNs(u64::MAX));
    }
}
