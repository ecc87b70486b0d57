// SPDX-License-Identifier: Apache-2.0
//! `watch` and `ctl`.

use std::path::PathBuf;

use super::MeaningArgs;
use clap::Args;

#[derive(Clone, Debug, Default, Args)]
pub struct WatchArgs {
    /// Watch these processes with all their threads; -p, -t, --name and --cgroup can be combined: a thread is
    /// watched if any of them matches
    #[arg(short = 'p', long = "pid", value_name = "PID,…", value_delimiter = ',')]
    pub pids: Vec<String>,

    /// With -p: also watch the processes that these have started or will start, and theirs; a process whose
    /// parent ended before watching started is not found
    #[arg(long)]
    pub children: bool,

    /// Watch these threads, not the threads or processes that they start
    #[arg(short = 't', long = "tid", value_name = "TID,…", value_delimiter = ',')]
    pub tids: Vec<String>,

    /// Watch processes and threads with this name, such as 'feed*', whenever one starts: a process by its
    /// name or its program's file, a thread by its own name (at most 15 characters); can be given several
    /// times
    #[arg(long = "name", value_name = "GLOB")]
    pub names: Vec<String>,

    /// Watch a cgroup (v1 or v2) and its descendants: a directory, or a path as in /proc/PID/cgroup
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,

    /// Watch everything
    #[arg(short = 'a', long = "all")]
    pub all: bool,

    /// Waits and faults that make a thread at least this late are stalls [50us]
    #[arg(long, value_name = "DURATION")]
    pub threshold: Option<String>,

    /// Names for the lateness of stalls, each from a duration upwards [warning=100us,critical=500us]
    #[arg(long, value_name = "NAME=DURATION,…")]
    pub severity: Option<String>,

    /// The address that serves metrics [127.0.0.1:9101]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,

    /// The socket for `wallprof ctl`; each user with write permission on it may give orders
    /// [/run/wallprof.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<String>,

    /// Host names that clients may use, besides addresses, localhost and this machine's name
    #[arg(long, value_name = "NAME,…")]
    pub host_names: Option<String>,

    /// The flight recording [wallprof.db]
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub output: Option<String>,

    /// The time that the flight recording covers [10m]
    #[arg(long, value_name = "DURATION")]
    pub keep: Option<String>,

    /// The largest size of the flight recording [512MiB]
    #[arg(long, value_name = "SIZE")]
    pub keep_size: Option<String>,

    /// Write a snapshot of the time around each stall of at least this severity, at most one a minute
    #[arg(long, value_name = "SEVERITY")]
    pub on: Option<String>,

    /// The folder for snapshots [that of the flight recording]
    #[arg(long, value_name = "DIR")]
    pub snapshot: Option<String>,

    /// Write the flight recording as Parquet tables into this folder, a part every five minutes, by host, date and
    /// hour
    #[arg(long, value_name = "DIR")]
    pub parquet: Option<String>,

    /// The largest size of the tables of this machine; the oldest are removed first [1GiB]
    #[arg(long, value_name = "SIZE")]
    pub parquet_size: Option<String>,

    /// Report all noise on these CPUs, such as 2,3: threads other than those of --allow, and interrupts [the
    /// CPUs that the kernel isolates]
    #[arg(long, value_name = "CPUS")]
    pub guard_cpus: Option<String>,

    /// Threads whose name matches may run on guarded CPUs
    #[arg(long, value_name = "GLOB,…")]
    pub allow: Option<String>,

    /// Run wallprof itself on these CPUs [not on guarded ones; beside what is recorded, where that is bound to
    /// some CPUs]
    #[arg(long, value_name = "CPUS")]
    pub recorder_cpus: Option<String>,

    /// Start to measure at this local time of day: 08:00
    #[arg(long, value_name = "TIME")]
    pub arm_at: Option<String>,

    /// Stop at this local time of day: 16:30
    #[arg(long, value_name = "TIME")]
    pub disarm_at: Option<String>,

    /// Take fewer stacks before watching uses more than this share of one CPU: 0.5%
    #[arg(long, value_name = "PERCENT")]
    pub max_cpu: Option<String>,

    /// Stack samples a second of each CPU; 0: none, and running time is not divided into user and kernel [49]
    #[arg(short = 'F', long = "freq", value_name = "HZ")]
    pub sample_hz: Option<String>,

    /// Limit on the series of metrics; beyond it, new ones are counted together [5000]
    #[arg(long, value_name = "COUNT")]
    pub max_series: Option<String>,

    /// Give the metrics of threads in containers the label `container`: the name, or 12 digits of the id
    #[arg(long)]
    pub label_containers: bool,

    /// Say something about the flight recording, such as version=1.4: `wallprof runs` compares by it; can be given
    /// several times
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,

    /// Keep each span of this kind that lasts longer, and count them: busy=5ms; can be given several times
    #[arg(long = "budget", value_name = "KIND=DURATION")]
    pub budgets: Vec<String>,

    /// Spans between two USDT probes, or calls of a function: usdt:PATH:PROVIDER:BEGIN..END,
    /// uprobe:PATH:FUNCTION; or loop: busy periods end at polls that return at once, too; can be given several
    /// times
    #[arg(long = "span", alias = "spans", value_name = "SOURCE")]
    pub spans: Vec<String>,

    #[command(flatten)]
    pub meaning: MeaningArgs,

    /// A TOML file with these options, under the same names; read again at SIGHUP
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Default, Args)]
pub struct TopArgs {
    /// Show these processes with all their threads
    #[arg(short = 'p', long = "pid", value_name = "PID,…", value_delimiter = ',')]
    pub pids: Vec<String>,

    /// Show processes and threads with this name, such as 'feed*', whenever one starts; can be given several times
    #[arg(long = "name", value_name = "GLOB")]
    pub names: Vec<String>,

    /// Show everything
    #[arg(short = 'a', long = "all")]
    pub all: bool,

    #[command(flatten)]
    pub meaning: MeaningArgs,
}

/// One part of a flight recording as tables.
#[derive(Debug, Args)]
pub struct TablesArgs {
    pub recording: PathBuf,
    pub folder: PathBuf,
    /// The end of the part before, monotonic ns
    #[arg(long)]
    pub from: u64,
    /// Monotonic ns
    #[arg(long)]
    pub until: u64,
    /// When the watcher was started, monotonic ns
    #[arg(long)]
    pub started: u64,
    /// When nothing was measured: from and to, monotonic ns
    #[arg(long, num_args = 2)]
    pub paused: Vec<u64>,
    #[arg(long)]
    pub keep_bytes: u64,
    #[command(flatten)]
    pub meaning: MeaningArgs,
}

/// The arguments of the child process that reads the last minutes of a flight recording.
#[derive(Debug, Args)]
pub struct LatestArgs {
    pub recording: PathBuf,
    /// Monotonic ns
    #[arg(long)]
    pub from: u64,
    /// Print the findings' sentences instead of a page
    #[arg(long)]
    pub findings: bool,
    #[command(flatten)]
    pub meaning: MeaningArgs,
}

/// An order to a running watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Measure, until --disarm-at
    Arm,
    /// Stop measuring until --arm-at; the probes stay attached
    Disarm,
    /// Print whether it is armed, its stalls, its cost and its pace
    Status,
    /// Write a snapshot of the flight recording
    Snapshot,
    /// Put an event on the time axis, now: `wallprof ctl mark 'deployed 1.4'`
    Mark,
}

#[derive(Debug, Args)]
pub struct CtlArgs {
    /// What to do
    #[arg(value_name = "ORDER", value_enum)]
    pub order: Order,

    /// The text of a mark
    #[arg(value_name = "TEXT", required_if_eq("order", "mark"))]
    pub text: Option<String>,

    /// The watcher's socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}
