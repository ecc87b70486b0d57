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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CounterUnit {
    /// A number of the application.
    Plain,
    Count,
    Bytes,
    Ns,
}

impl CounterKind {
    pub const ALL: [CounterKind; 2] = [CounterKind::Level, CounterKind::Sum];

    pub fn name(self) -> &'static str {
        match self {
            CounterKind::Level => "level",
            CounterKind::Sum => "sum",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl CounterUnit {
    pub const ALL: [CounterUnit; 4] =
        [CounterUnit::Plain, CounterUnit::Count, CounterUnit::Bytes, CounterUnit::Ns];

    pub fn name(self) -> &'static str {
        match self {
            CounterUnit::Plain => "",
            CounterUnit::Count => "count",
            CounterUnit::Bytes => "bytes",
            CounterUnit::Ns => "ns",
        }
    }

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
    pub kind: CounterKind,
    pub unit: CounterUnit,
}

/// A counter's values around some time, in its order. A value holds until the next one; where a value held
/// for long, the last time at which it was read is there, too, so that a sum can be interpolated between two
/// points.
#[derive(Clone, Debug, PartialEq)]
pub struct CounterTrack {
    pub counter: Counter,
    pub points: Vec<(MonoNs, f64)>,
}

/// A note of the application or of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    pub at: MonoNs,
    pub duration_ns: Option<u64>,
    pub text: String,
}

impl Mark {
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
