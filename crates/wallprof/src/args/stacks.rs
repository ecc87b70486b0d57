// SPDX-License-Identifier: Apache-2.0
//! `stacks`.

use std::path::PathBuf;

use clap::Args;

use super::{MeaningArgs, RecordArgs};

#[derive(Debug, Default, Args)]
pub struct StacksArgs {
    /// Look at these processes with all their threads; -p, -t, --name and --cgroup can be combined
    #[arg(short = 'p', long = "pid", value_name = "PID,…", value_delimiter = ',')]
    pub pids: Vec<String>,

    /// With -p: also the processes that these have started, and theirs
    #[arg(long)]
    pub children: bool,

    /// Look at these threads
    #[arg(short = 't', long = "tid", value_name = "TID,…", value_delimiter = ',')]
    pub tids: Vec<String>,

    /// Look at processes and threads with this name, such as 'feed*'; can be given several times
    #[arg(long = "name", value_name = "GLOB")]
    pub names: Vec<String>,

    /// Look at a cgroup (v1 or v2) and its descendants: a directory, or a path as in /proc/PID/cgroup
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,

    /// Look at everything
    #[arg(short = 'a', long = "all")]
    pub all: bool,

    /// Print who waits for whom, as a tree; circles are deadlocks
    #[arg(long, conflicts_with = "json")]
    pub waits_for: bool,

    /// Print one JSON object a thread, the longest wait first
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub meaning: MeaningArgs,
}

impl StacksArgs {
    /// The same targets as those of a recording.
    pub fn into_record(self) -> RecordArgs {
        RecordArgs {
            pids: self.pids,
            children: self.children,
            tids: self.tids,
            names: self.names,
            cgroup: self.cgroup,
            all: self.all,
            sample_hz: "1".into(),
            min_stall: "0".into(),
            meaning: self.meaning,
            ..RecordArgs::default()
        }
    }

    pub fn has_target(&self) -> bool {
        self.all
            || self.cgroup.is_some()
            || [&self.pids, &self.tids, &self.names].iter().any(|texts| !texts.is_empty())
    }
}
