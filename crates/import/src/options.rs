// SPDX-License-Identifier: Apache-2.0
//! Options of an import, and its outcome.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use wallprof_model::{ClockAnchor, MonoNs};
use wallprof_symbols::DebugFileServer;

use crate::stacks::StackCounts;

/// How to import.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// The root of the recorded machine's files; `None`: this machine's.
    pub symfs: Option<PathBuf>,
    /// perf's copies of files by build id: `~/.debug`.
    pub build_id_cache: Option<PathBuf>,
    /// A server of debug files that are not on this machine.
    pub debug_server: Option<Arc<dyn DebugFileServer>>,
    /// Waits of at least this length are emitted one by one.
    pub min_stall_ns: u64,
    /// The threads and CPUs of a hardware trace that are decoded.
    pub trace: TraceLimits,
}

/// The threads and CPUs of a hardware trace that are decoded. An empty list is all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceLimits {
    pub tids: Vec<u32>,
    pub cpus: Vec<u32>,
}

/// An interval on the recording's own clock. The decoded part is cut at the next synchronisation points of
/// the trace outside of it, some microseconds away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceWindow {
    pub from: Option<MonoNs>,
    pub to: Option<MonoNs>,
}

impl Default for ImportOptions {
    fn default() -> Self {
        ImportOptions {
            symfs: None,
            build_id_cache: None,
            debug_server: None,
            min_stall_ns: 100_000,
            trace: TraceLimits::default(),
        }
    }
}

/// Facts about a recording, known at its start. Empty texts are unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingFacts {
    /// The first recorded time, on the recording's own clock.
    pub start: MonoNs,
    /// `None`: times of day are not known.
    pub clock: Option<ClockAnchor>,
    pub kernel: String,
    pub arch: String,
    pub cpus: u32,
    pub hostname: String,
    /// The recorded program's name.
    pub command: String,
    /// `perf.data` or `intel-pt`.
    pub source: &'static str,
}

/// The outcome of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The last recorded time.
    pub end: MonoNs,
    pub threads: u64,
    /// Without those of the idle task.
    pub samples: u64,
    /// Samples of the idle task, which is no thread: they are left out.
    pub idle_samples: u64,
    /// Calls of functions, where every call was traced.
    pub calls: Option<u64>,
    /// The activity of threads is known in part: a state, a wait, a call or a sample.
    pub accounted: bool,
    pub stacks: StackCounts,
    /// By reason, as in the recording.
    pub losses: BTreeMap<&'static str, u64>,
    /// The position of the record in the input that is cut short, or damaged. Reading ended there.
    pub broken_at: Option<u64>,
}
