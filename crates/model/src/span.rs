// SPDX-License-Identifier: Apache-2.0
//! Spans: operations of the application, each on one thread, with the time of each state in them.
//!
//! Single spans are examples. Sums by kind and duration have every span, however many there are.

use std::sync::Arc;

use crate::span_budget::SpanBudgets;
use crate::stack::StackId;
use crate::state::{Reason, State};
use crate::thread::ThreadKey;
use crate::time::MonoNs;

/// Where spans come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SpanSource {
    /// Busy periods: from the wakeup that ends an idle wait to the start of the next one.
    Busy,
    /// Marks in the program: `include/wallprof.h`.
    Code,
    /// A file of the application.
    Import,
    /// Calls of a function, from its entry to its return: `--span uprobe:…`.
    Uprobe,
    /// From one statically defined tracepoint of the program to another: `--span usdt:…`.
    Usdt,
}

impl SpanSource {
    /// Each variant once, in the order of their declaration.
    pub const ALL: [SpanSource; 5] =
        [SpanSource::Busy, SpanSource::Code, SpanSource::Import, SpanSource::Uprobe, SpanSource::Usdt];

    /// The name in recordings and in JSON, which [`Self::from_name`] reads.
    pub fn name(self) -> &'static str {
        match self {
            SpanSource::Busy => "busy",
            SpanSource::Code => "code",
            SpanSource::Import => "import",
            SpanSource::Uprobe => "uprobe",
            SpanSource::Usdt => "usdt",
        }
    }

    /// `None`: no name is equal to the text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.name() == name)
    }
}

/// The kind of spans that are busy periods.
pub const BUSY: &str = "busy";

/// A state of a span: as of a ledger, with one state for all running time, which has too few samples in a
/// span to be divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SpanState {
    /// Running: user and kernel mode together.
    Cpu,
    /// As of a ledger. [`State::User`], [`State::Kernel`] and [`State::Cpu`] count as [`SpanState::Cpu`].
    Of(State),
    /// Running, or waits that are too short for a record of their own.
    Unknown,
}

impl SpanState {
    /// The number of states.
    pub const COUNT: usize = 7 + Reason::COUNT;

    /// Each state, in the order of the numbers in [`SpanStates`].
    pub fn all() -> [SpanState; Self::COUNT] {
        let mut all = [SpanState::Unknown; Self::COUNT];
        all[0] = SpanState::Cpu;
        let others = [State::Irq, State::FaultMinor, State::FaultMajor, State::Runnable, State::Preempted];
        let blocked = Reason::ALL.into_iter().map(State::Blocked);
        for (slot, state) in all[1..].iter_mut().zip(others.into_iter().chain(blocked)) {
            *slot = SpanState::Of(state);
        }
        all
    }

    /// Its place in [`SpanStates`].
    pub fn index(self) -> usize {
        match self {
            SpanState::Cpu | SpanState::Of(State::User | State::Kernel | State::Cpu) => 0,
            SpanState::Of(State::Irq) => 1,
            SpanState::Of(State::FaultMinor) => 2,
            SpanState::Of(State::FaultMajor) => 3,
            SpanState::Of(State::Runnable) => 4,
            SpanState::Of(State::Preempted) => 5,
            SpanState::Of(State::Blocked(reason)) => 6 + usize::from(reason.code()),
            SpanState::Unknown => Self::COUNT - 1,
        }
    }

    /// As in folded stacks: `cpu`, `runnable`, `blocked:lock`.
    pub fn label(self) -> String {
        match self {
            SpanState::Cpu => "cpu".into(),
            SpanState::Of(state) => state.label(),
            SpanState::Unknown => "unknown".into(),
        }
    }
}

/// Nanoseconds in each state, by [`SpanState::index`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanStates(pub [u64; SpanState::COUNT]);

impl SpanStates {
    /// Adds state by state. Sums saturate.
    pub fn add(&mut self, other: &SpanStates) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(more);
        }
    }

    /// Makes unknown of the running time, of which up to `most_ns` can have been waits; `None`: all of it.
    pub fn divide_cpu(&mut self, most_ns: Option<u64>) {
        let cpu_ns = self.0[SpanState::Cpu.index()];
        let unknown_ns = most_ns.unwrap_or(cpu_ns).min(cpu_ns);
        self.0[SpanState::Cpu.index()] -= unknown_ns;
        self.0[SpanState::Unknown.index()] += unknown_ns;
    }

    /// All states together, ns. Saturates.
    pub fn total_ns(&self) -> u64 {
        self.0.iter().fold(0, |sum: u64, ns| sum.saturating_add(*ns))
    }
}

/// Spans of one thread, kind and length, to be added to the sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanDelta {
    /// The thread that ran the spans.
    pub thread: ThreadKey,
    /// What showed the start and the end of the spans.
    pub source: SpanSource,
    /// The name of the operation; [`BUSY`] for busy periods.
    pub kind: Arc<str>,
    /// A [`crate::histogram`] bucket.
    pub bucket: u16,
    /// Spans.
    pub count: u64,
    /// The longest span, ns.
    pub max_ns: u64,
    /// The time of all spans, ns by state.
    pub states: SpanStates,
}

/// One span. The sums have it, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The thread that ran the span.
    pub thread: ThreadKey,
    /// What showed the start and the end of the span.
    pub source: SpanSource,
    /// The name of the operation; [`BUSY`] for a busy period.
    pub kind: Arc<str>,
    /// Monotonic clock, ns.
    pub start: MonoNs,
    /// Monotonic clock, ns.
    pub end: MonoNs,
    /// The time of the span, ns by state.
    pub states: SpanStates,
}

/// What a thread did late in a busy period or a span of its own, which had by then lasted longer than most of
/// the thread: a sample of the clock, or in a busy period a wait without a stall. The samples by stack have it,
/// too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateSample {
    /// The thread that the sample is of.
    pub thread: ThreadKey,
    /// Of the span: any but [`SpanSource::Import`].
    pub source: SpanSource,
    /// When the sample was taken or the wait was over.
    pub at: MonoNs,
    /// The state in which the thread was.
    pub state: State,
    /// What the sample stands for, or how long the wait lasted.
    pub ns: u64,
    /// `None`: no user stack was taken.
    pub user: Option<StackId>,
    /// `None`: no kernel stack was taken.
    pub kernel: Option<StackId>,
}

impl LateSample {
    /// Whether it says where a thread ran late in a busy period.
    pub fn is_running_in_period(&self) -> bool {
        self.source == SpanSource::Busy && matches!(self.state, State::User | State::Kernel)
    }
}

impl Span {
    /// From start to end, ns; 0 where the end is before the start.
    pub fn duration_ns(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Whether it lasted longer than the budget of its kind.
    pub fn is_over(&self, budgets: &SpanBudgets) -> bool {
        budgets.get(&*self.kind).is_some_and(|budget_ns| self.duration_ns() > *budget_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_numbered_in_their_order() {
        for (at, state) in SpanState::all().into_iter().enumerate() {
            assert_eq!(state.index(), at, "{state:?}");
        }
        assert_eq!(SpanState::all().map(SpanState::label)[..3], ["cpu", "irq", "fault:minor"]);
        assert_eq!(SpanState::Of(State::Kernel).index(), SpanState::Cpu.index());
    }

    #[test]
    fn sources_come_back_by_name() {
        for source in SpanSource::ALL {
            assert_eq!(SpanSource::from_name(source.name()), Some(source));
        }
        assert_eq!(SpanSource::from_name("kprobe"), None);
    }

    #[test]
    fn sums_of_states_saturate() {
        let mut states = SpanStates([u64::MAX; SpanState::COUNT]);
        states.add(&SpanStates([1; SpanState::COUNT]));
        assert_eq!((states.0[3], states.total_ns()), (u64::MAX, u64::MAX));
    }
}
