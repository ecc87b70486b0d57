// SPDX-License-Identifier: Apache-2.0
//! The vocabulary of wallprof: time, threads, ledger states, stacks, and the events that
//! carry them from a source (live probes, perf.data, Intel PT) to the recorder.
//!
//! Owns no behaviour beyond arithmetic on these values: no files, no clocks, no kernel.

pub mod calls;
pub mod container;
pub mod counter;
pub mod event;
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
pub mod word;

pub use calls::{CallFrame, CallNumbers, CallPath, CallPathId, Outside, ThreadCalls};
pub use container::{container_from_cgroup, short_container};
pub use counter::{Counter, CounterKey, CounterKind, CounterTrack, CounterUnit, Mark};
pub use event::Event;
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
    Frame, FrameId, FrameKind, MissingFile, Module, ModuleId, StackEnd, StackId, SymbolLine,
    is_allocator_library, is_runtime_library,
};
pub use state::{Metric, Reason, StallKind, StallReason, State};
pub use thread::{ThreadInfo, ThreadKey, ThreadRef};
pub use time::{ClockAnchor, ClockMap, EpochNs, EpochSecond, MonoNs};
pub use word::{WaitWord, WordMeaning, WordPlace, WordRow, WordRules, WordSource};
