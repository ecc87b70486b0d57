// SPDX-License-Identifier: Apache-2.0
//! Recordings of other profilers, turned into the events that wallprof records itself.
//!
//! [`import`] reads perf.data, a file or a stream, in constant memory. It gives a [`Sink`] events: threads,
//! running time by samples, waits by switches and wakeups, and counts of all other events. User stacks come
//! from callchains, or are unwound from registers and stack dumps. Time of unknown state is unaccounted, and
//! losses are counted. Text that `perf script` printed of samples becomes the same events, and text of an
//! Intel PT trace becomes calls. [`TraceFile`] writes the perf.data of traces that wallprof records itself.

mod build_budget;
mod by_time;
mod calls;
mod chain;
mod delivery;
mod error;
mod events;
mod format;
mod gaps;
mod import;
mod input;
mod intel_pt;
mod machine;
mod options;
mod rounds;
mod script;
mod seconds;
mod session;
mod sink;
mod stacks;
mod threads;
mod timeline;
mod trace_file;
mod unwinder;

pub use error::{ImportError, Refusal};
pub use import::{import, import_stream};
pub use input::open_input;
pub use options::{ImportOptions, Outcome, RecordingFacts, TraceLimits, TraceWindow};
pub use script::import_scripts;
pub use sink::Sink;
pub use stacks::StackCounts;
pub use trace_file::{FoundMapping, MachineFacts, TraceEvents, TraceFacts, TraceFile};
pub use wallprof_intel_pt::TimeConv;
