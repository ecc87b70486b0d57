//! What an import is asked for, and what it says of the recording as a whole.

use std::collections::BTreeMap;
use std::path::PathBuf;

use wallprof_model::{ClockAnchor, MonoNs};

use crate::stacks::StackCounts;

/// How to import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportOptions {
    /// The root of the recorded machine's files; `None`: this machine's.
    pub symfs: Option<PathBuf>,
    /// perf's copies of files by build id: `~/.debug`.
    pub build_id_cache: Option<PathBuf>,
    /// Waits at least this long are kept one by one.
    pub min_stall_ns: u64,
}

impl Default for ImportOptions {
    fn default() -> Self {
        ImportOptions { symfs: None, build_id_cache: None, min_stall_ns: 100_000 }
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
}

/// What became of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The last moment that anything was recorded at.
    pub end: MonoNs,
    pub threads: u64,
    pub samples: u64,
    pub stacks: StackCounts,
    /// By reason, as the recording has them.
    pub losses: BTreeMap<&'static str, u64>,
}
