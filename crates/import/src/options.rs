//! What an import is asked for, and what it says of the recording as a whole.

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
    /// Where debug files that are on no disk come from.
    pub debug_server: Option<Arc<dyn DebugFileServer>>,
    /// Waits at least this long are kept one by one.
    pub min_stall_ns: u64,
    /// Which part of a hardware trace is decoded.
    pub trace: TraceLimits,
}

/// Which part of a hardware trace is decoded; empty lists are everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceLimits {
    pub tids: Vec<u32>,
    pub cpus: Vec<u32>,
}

/// A stretch of time on the recording's own clock. The part that is decoded begins and ends at the next
/// synchronisation points of the trace outside it, some microseconds away.
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

/// What a recording is to begin with. Empty texts are unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingFacts {
    /// The first moment that anything was recorded at, on the recording's own clock.
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

/// What became of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The last moment that anything was recorded at.
    pub end: MonoNs,
    pub threads: u64,
    pub samples: u64,
    /// Calls of functions, where every call was traced.
    pub calls: Option<u64>,
    /// Something is known of what threads did: a state, a wait, a call or a sample.
    pub accounted: bool,
    pub stacks: StackCounts,
    /// By reason, as the recording has them.
    pub losses: BTreeMap<&'static str, u64>,
}
