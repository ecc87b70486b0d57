// SPDX-License-Identifier: Apache-2.0
//! The figures of one run.

use std::collections::BTreeMap;
use std::fmt;

use wallprof_model::profile::Cause;
use wallprof_model::{EpochNs, Histogram, Labels, Reason, State};

use crate::diff::Group;

const SECOND_NS: f64 = 1e9;

/// A mean of fewer waits than this says nothing.
const LEAST_WAITS: u64 = 20;
/// The percentiles of spans that are compared, in thousandths.
const PERCENTILES: [u16; 4] = [500, 900, 990, 999];
/// A percentile beyond which a run has fewer spans than this says nothing.
const LEAST_BEYOND: u64 = 5;

/// One recording, added up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    pub labels: Labels,
    /// `None`: the recording knows no times of day.
    pub start: Option<EpochNs>,
    pub duration_ns: u64,
    pub min_stall_ns: u64,
    pub threads: BTreeMap<Group, ThreadTime>,
    /// Waits and faults that made a thread late, by the place where it waited.
    pub places: BTreeMap<(Group, Place), Sum>,
    /// The same by meaning.
    pub meanings: BTreeMap<String, Sum>,
    /// Time in waits that were only added up, and may have the meaning as well: they have a reason of its waits.
    pub may_also_mean: BTreeMap<String, u64>,
    /// Time in waits of `--min-stall` or longer that were only added up, and have no place.
    pub only_summed_ns: u64,
    pub findings: Vec<FoundInRun>,
    /// Durations of spans by kind, of all processes.
    pub spans: BTreeMap<String, Histogram>,
}

/// The time of the threads of one group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThreadTime {
    pub threads: usize,
    /// By state; running time is [`What::Cpu`].
    pub states: BTreeMap<What, u64>,
    /// All waits of each reason, short ones included.
    pub waits: BTreeMap<Reason, Sum>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub count: u64,
    pub ns: u64,
}

impl Sum {
    pub fn add(&mut self, count: u64, ns: u64) {
        self.count = self.count.saturating_add(count);
        self.ns = self.ns.saturating_add(ns);
    }

    /// The mean of enough of them.
    fn mean(self) -> Option<f64> {
        (self.count >= LEAST_WAITS).then(|| self.ns as f64 / self.count as f64)
    }
}

/// A finding, by its rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundInRun {
    pub rule: String,
    pub cause: Cause,
    pub title: String,
    pub total_ns: u64,
}

/// Where a thread waited, in names that are equal in every build.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The reason of the stalls: `lock`, `runnable`, `major` …
    pub reason: &'static str,
    pub meaning: Option<String>,
    /// Functions, the innermost first; empty where no stack is known.
    pub functions: String,
}

/// What of a group is a figure.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum What {
    /// Running time in user and kernel mode together, which is exact.
    Cpu,
    State(State),
    /// The mean length of all waits of a reason.
    WaitLength(Reason),
    /// Lateness at a place.
    Place(Place),
    /// The mean lateness at a place.
    PlaceLength(Place),
    /// A percentile of the durations of the spans of a kind, of all threads, in thousandths.
    Span {
        kind: String,
        percentile: u16,
    },
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds per second of wall time, over all threads of the group.
    NsPerSecond,
    /// Nanoseconds a wait or a span.
    NsPerWait,
}

/// One number of a run that is compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Figure {
    /// `None`: of all threads.
    pub group: Option<Group>,
    pub what: What,
}

impl What {
    pub fn unit(&self) -> Unit {
        match self {
            What::Cpu | What::State(_) | What::Place(_) => Unit::NsPerSecond,
            What::WaitLength(_) | What::PlaceLength(_) | What::Span { .. } => Unit::NsPerWait,
        }
    }
}

impl fmt::Display for What {
    /// Foreign names are not escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Cpu => f.write_str("cpu"),
            What::State(state) => f.write_str(&state.label()),
            What::WaitLength(reason) => write!(f, "length of waits for {}", reason.name()),
            What::Place(place) => write!(f, "{place}"),
            What::PlaceLength(place) => write!(f, "length of: {place}"),
            What::Span { kind, percentile } => {
                write!(f, "P{} of spans {kind}", f64::from(*percentile) / 10.0)
            }
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.meaning.as_deref().unwrap_or(self.reason))?;
        if self.functions.is_empty() { Ok(()) } else { write!(f, " in {}", self.functions) }
    }
}

impl Run {
    pub fn wall_s(&self) -> f64 {
        self.duration_ns as f64 / SECOND_NS
    }

    /// Nanoseconds per second of wall time.
    pub fn rate(&self, ns: u64) -> f64 {
        if self.duration_ns == 0 { 0.0 } else { ns as f64 / self.wall_s() }
    }

    /// The value of a figure. A rate of something that did not happen is 0; a mean of too few waits, and a
    /// percentile of too few spans, is `None`.
    pub fn value(&self, figure: &Figure) -> Option<f64> {
        match &figure.what {
            What::Cpu | What::State(_) | What::Place(_) => Some(self.rate_of(figure)),
            What::WaitLength(reason) => self.threads.get(figure.group.as_ref()?)?.waits.get(reason)?.mean(),
            What::PlaceLength(at) => self.place(figure.group.as_ref()?, at).mean(),
            What::Span { kind, percentile } => {
                let durations = self.spans.get(kind)?;
                let beyond = durations.count().saturating_mul(u64::from(1_000 - percentile)) / 1_000;
                let share = f64::from(*percentile) / 1e3;
                (beyond >= LEAST_BEYOND).then(|| durations.quantile_ns(share) as f64)
            }
        }
    }

    /// The time per second that a figure is about, whose size decides whether it matters.
    pub(super) fn rate_of(&self, figure: &Figure) -> f64 {
        let group = figure.group.as_ref();
        let state = |what: &What| group.and_then(|group| self.threads.get(group)?.states.get(what)).copied();
        let place = |at: &Place| group.map(|group| self.place(group, at).ns);
        let ns = match &figure.what {
            what @ (What::Cpu | What::State(_)) => state(what),
            What::WaitLength(reason) => state(&What::State(State::Blocked(*reason))),
            What::Place(at) | What::PlaceLength(at) => place(at),
            What::Span { kind, .. } => self.spans.get(kind).map(Histogram::total_ns),
        };
        self.rate(ns.unwrap_or(0))
    }

    /// Whether at most a hundredth of the waiting of `--min-stall` or longer has no place.
    pub(super) fn has_most_waits(&self) -> bool {
        let of_meanings = self.places.values().fold(0u64, |sum, place| sum.saturating_add(place.ns));
        self.only_summed_ns <= of_meanings / 99
    }

    fn place(&self, group: &Group, place: &Place) -> Sum {
        self.places.get(&(group.clone(), place.clone())).copied().unwrap_or_default()
    }

    /// Every figure that is not 0 here.
    pub fn figures(&self) -> impl Iterator<Item = Figure> + '_ {
        let of_threads = self.threads.iter().flat_map(|(group, threads)| {
            let states = threads.states.iter().filter(|(_, ns)| **ns > 0).map(|(what, _)| what.clone());
            let lengths = threads.waits.keys().map(|reason| What::WaitLength(*reason));
            states.chain(lengths).map(|what| Figure { group: Some(group.clone()), what })
        });
        let of_places = self.places.keys().flat_map(|(group, place)| {
            [What::Place(place.clone()), What::PlaceLength(place.clone())]
                .map(|what| Figure { group: Some(group.clone()), what })
        });
        let of_spans = self.spans.keys().flat_map(|kind| {
            PERCENTILES
                .map(|percentile| Figure { group: None, what: What::Span { kind: kind.clone(), percentile } })
        });
        of_threads.chain(of_places).chain(of_spans)
    }

    /// Nanoseconds of all threads in a state.
    pub fn state_ns(&self, what: &What) -> u64 {
        let of_groups = self.threads.values().filter_map(|threads| threads.states.get(what));
        of_groups.fold(0, |sum, ns| sum.saturating_add(*ns))
    }

    /// The finding with the most time.
    pub fn worst_finding(&self) -> Option<&FoundInRun> {
        self.findings.iter().max_by_key(|finding| finding.total_ns)
    }
}
