// SPDX-License-Identifier: Apache-2.0
//! `record`, and the hidden command that it starts a recorded command with.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::DEFAULT_FILE;
use super::MeaningArgs;
use super::values::{CallGraph, CallGraphParser, TraceMode};

#[derive(Debug, Default, Args)]
pub struct RecordArgs {
    /// Record these processes with all their threads; -p, -t, --name and --cgroup can be combined: a thread
    /// is recorded if any of them matches
    #[arg(short = 'p', long = "pid", value_name = "PID,…", value_delimiter = ',')]
    pub pids: Vec<String>,

    /// With -p: also record the processes that these have started or will start, and theirs; a process whose
    /// parent ended before the recording started is not found
    #[arg(long)]
    pub children: bool,

    /// Record these threads, not the threads or processes that they start
    #[arg(short = 't', long = "tid", value_name = "TID,…", value_delimiter = ',')]
    pub tids: Vec<String>,

    /// Record processes and threads with this name, such as 'feed*', whenever one starts: a process by its
    /// name or its program's file, a thread by its own name (at most 15 characters); can be given several
    /// times
    #[arg(long = "name", value_name = "GLOB")]
    pub names: Vec<String>,

    /// Record a cgroup (v1 or v2) and its descendants: a directory, or a path as in /proc/PID/cgroup
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,

    /// Record everything
    #[arg(short = 'a', long = "all")]
    pub all: bool,

    /// Record only on these CPUs, such as 0-3,5
    #[arg(short = 'C', long = "cpu", value_name = "CPUS")]
    pub cpus: Option<String>,

    /// Report all noise on these CPUs, such as 2,3: threads other than those of --allow, and interrupts
    #[arg(long, value_name = "CPUS")]
    pub guard_cpus: Option<String>,

    /// Threads whose name matches may run on guarded CPUs
    #[arg(long = "allow", value_name = "GLOB", requires = "guard_cpus")]
    pub allow: Vec<String>,

    /// Run wallprof itself on these CPUs [not on guarded ones; beside what is recorded, where that is bound to
    /// some CPUs]
    #[arg(long, value_name = "CPUS")]
    pub recorder_cpus: Option<String>,

    /// End after this time: 30, 30s, 2m, 500ms (a bare number is seconds)
    #[arg(short = 'd', long = "duration", value_name = "DURATION")]
    pub duration: Option<String>,

    /// Samples a second of each CPU; 0: none, and running time is not divided into user and kernel
    #[arg(short = 'F', long = "freq", value_name = "HZ", default_value = "99")]
    pub sample_hz: String,

    /// Also sample this event, named as in perf: cycles, page-faults, sched:sched_switch, cpu/event=0x3c/ …
    #[arg(short = 'e', long = "event", value_name = "EVENT")]
    pub events: Vec<String>,

    /// Keep waits and faults at least this long one by one, with stacks: 100us, 1.5ms
    #[arg(long, value_name = "DURATION", default_value = "100us")]
    pub min_stall: String,

    /// How user stacks are walked, by perf's names
    #[arg(long, value_name = "HOW", value_parser = CallGraphParser, default_value = "auto")]
    pub call_graph: CallGraph,

    /// Trace every call and return by Intel PT, instead of sampling; -o FILE.data keeps the trace itself, for
    /// import and perf
    #[arg(long, value_name = "MODE", num_args = 0..=1, require_equals = true, default_missing_value = "full")]
    pub intel_pt: Option<TraceMode>,

    /// Intel PT: the size of each CPU's buffer
    #[arg(long, value_name = "SIZE", default_value = "16MiB", requires = "intel_pt")]
    pub trace_buffer: String,

    /// The file to write
    #[arg(short = 'o', long = "output", value_name = "FILE", default_value = DEFAULT_FILE)]
    pub output: PathBuf,

    /// Say something about the recording, such as version=1.4: `wallprof runs` compares by it; can be given
    /// several times
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,

    /// Keep each span of this kind that lasts longer, with its stalls, and report them as over-budget:
    /// busy=5ms; can be given several times
    #[arg(long = "budget", value_name = "KIND=DURATION")]
    pub budgets: Vec<String>,

    /// Spans between two USDT probes, or calls of a function, for `wallprof tail`:
    /// usdt:PATH:PROVIDER:BEGIN..END, uprobe:PATH:FUNCTION; or loop: busy periods end at polls that return at once,
    /// too; can be given several times
    #[arg(long = "span", alias = "spans", value_name = "SOURCE")]
    pub spans: Vec<String>,

    #[command(flatten)]
    pub meaning: MeaningArgs,

    /// Print more on stderr
    #[arg(short = 'v', long)]
    pub verbose: bool,

    /// Start this command and record it from its first instruction; with another target: record that while
    /// CMD runs
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct HeldArgs {
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}
