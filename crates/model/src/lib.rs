// SPDX-License-Identifier: Apache-2.0
//! The vocabulary of wallprof: time, threads, ledger states, stacks, and the events that
//! carry them from a source (live probes, perf.data, Intel PT) to the recorder.
//!
//! Owns no behaviour beyond arithmetic on these values: no files, no clocks, no kernel.
//!
//! ```
//! use wallprof_model::event::LedgerDelta;
//! use wallprof_model::histogram::{bucket_from_ns, range_from_bucket};
//! use wallprof_model::{EpochSecond, Reason, ThreadKey};
//!
//! // A thread waited for a lock for 1.5 ms of a second in which it was observed for 2 ms.
//! let mut second = LedgerDelta::new(ThreadKey(1), EpochSecond(1_700_000_000));
//! second.wall_ns = 2_000_000;
//! second.blocked_ns[usize::from(Reason::Lock.code())] = 1_500_000;
//! assert!(second.blocked_ns.iter().sum::<u64>() <= second.wall_ns);
//!
//! // Lengths are counted in buckets with fixed edges: 6.25 % wide at most.
//! let (from, to) = range_from_bucket(bucket_from_ns(1_500_000));
//! assert!((from..to).contains(&1_500_000));
//! ```
//!
//! A source defines an id before another event refers to it:
//!
//! ```
//! use wallprof_model::event::Stall;
//! use wallprof_model::{Event, MonoNs, Reason, StallReason, ThreadInfo, ThreadKey};
//!
//! let key = ThreadKey(1);
//! let info = ThreadInfo::new(key, (4711, "server"), (4711, "worker"));
//! // The thread asked for a sleep of 20 ms, and came back 60 µs after that.
//! let sleep = StallReason::Blocked(Reason::Sleep);
//! let stall = Stall { asked_ns: Some(20_000_000), ..Stall::new(key, sleep, MonoNs(5_000), 20_060_000) };
//! assert_eq!(stall.late_ns(), 60_000);
//! let events = [Event::Thread(info), Event::Stall(Box::new(stall))];
//! # assert_eq!(events.len(), 2);
//! ```

#![warn(missing_docs)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub mod calls;
pub mod container;
pub mod counter;
pub mod event;
pub mod fast_map;
pub mod forgotten;
pub mod guard;
pub mod histogram;
pub mod label;
pub mod lateness;
pub mod loss;
pub mod meaning;
pub mod now;
pub mod owner;
pub mod pod;
pub mod profile;
pub mod span;
pub mod span_budget;
pub mod stack;
pub mod state;
pub mod text;
pub mod thread;
pub mod time;
mod trace;
pub mod word;

pub use calls::{CallFrame, CallNumbers, CallPath, CallPathId, Outside, ThreadCalls};
pub use container::{container_from_cgroup, short_container};
pub use counter::{Counter, CounterKey, CounterKind, CounterTrack, CounterUnit, Mark};
pub use event::Event;
pub use fast_map::{FastMap, FastSet};
pub use forgotten::Forgotten;
pub use guard::{IntrusionDelta, IntrusionKind};
pub use histogram::Histogram;
pub use label::{LabelError, Labels, MAX_LABEL_KEY, MAX_LABEL_VALUE, MAX_LABELS, label_from_text};
pub use lateness::Lateness;
pub use loss::Loss;
pub use meaning::{Meaning, MeaningSource, Meanings, WaitRow};
pub use now::{Activity, Since, ThreadNow};
pub use owner::Owner;
pub use pod::{PodContainer, PodContainers};
pub use span::{BUSY, LateSample, Span, SpanDelta, SpanSource, SpanState, SpanStates};
pub use span_budget::{MAX_BUDGET_KIND, MAX_SPAN_BUDGETS, SpanBudgets};
pub use stack::{
    Frame, FrameId, FrameKind, MissingFile, Module, ModuleId, StackEnd, StackId, SymbolLine, YIELDS,
    is_allocator_library, is_runtime_library,
};
pub use state::{Metric, Reason, StallKind, StallReason, State};
pub use thread::{ThreadInfo, ThreadKey, ThreadRef};
pub use time::{ClockAnchor, ClockMap, EpochNs, EpochSecond, MonoNs};
pub use trace::{TraceIds, trace_id_from_text};
pub use word::{WaitWord, WordMeaning, WordPlace, WordRow, WordRules, WordSource};
