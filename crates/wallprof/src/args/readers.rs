// SPDX-License-Identifier: Apache-2.0
//! The commands that read recordings: `report`, `stalls`, `flame`, `export`, `diff`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use wallprof_analysis::weights::View;
use wallprof_model::{StallKind, StallReason};
use wallprof_views::ExportFormat;

use super::DEFAULT_FILE;
use super::values::{DiffView, ViewParser, export_format, stall_kind, stall_reason, trace_id};

/// Rules about what waits mean, in `record`, `watch` and every reader.
#[derive(Clone, Debug, Default, Args)]
pub struct MeaningArgs {
    /// Waits in functions with this name are idle: waiting is the thread's job there; can be given several times
    #[arg(long, value_name = "GLOB")]
    pub idle: Vec<String>,

    /// Waits in functions with this name are not idle: they make the thread late
    #[arg(long, value_name = "GLOB")]
    pub not_idle: Vec<String>,

    /// Rules about waits, before those in ~/.config/wallprof/waits.toml and the built-in ones, which `wallprof
    /// waits` lists
    #[arg(long, value_name = "FILE.toml")]
    pub waits: Vec<PathBuf>,
}

impl MeaningArgs {
    /// The options for another process of this program.
    pub fn as_options(&self) -> Vec<OsString> {
        let globs = |name: &str, globs: &[String]| {
            let option = |glob: &String| OsString::from(format!("{name}={glob}"));
            globs.iter().map(option).collect::<Vec<_>>()
        };
        let files = self.waits.iter().map(|file| {
            let mut option = OsString::from("--waits=");
            option.push(file);
            option
        });
        let names = globs("--idle", &self.idle).into_iter().chain(globs("--not-idle", &self.not_idle));
        names.chain(files).collect()
    }
}

#[derive(Debug, Args)]
pub struct WaitsArgs {
    /// Only the rules about this software: linux, postgresql
    #[arg(long, value_name = "S")]
    pub software: Option<String>,

    #[command(flatten)]
    pub meaning: MeaningArgs,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The recording to read
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub file: PathBuf,

    /// One JSON object, for programs
    #[arg(long, conflicts_with = "output")]
    pub json: bool,

    /// Write a page instead, which any browser opens without a network: threads over time, stalls with their
    /// stacks, heat maps, flame graph
    #[arg(short = 'o', long = "output", value_name = "FILE.html")]
    pub output: Option<PathBuf>,

    /// Only threads of containers whose id or name matches, such as '3f4a*'
    #[arg(long, value_name = "GLOB", conflicts_with = "output")]
    pub container: Option<String>,

    #[command(flatten)]
    pub meaning: MeaningArgs,
}

#[derive(Debug, Args)]
pub struct StallsArgs {
    /// The recording to read
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub file: PathBuf,

    /// One JSON object a line for each stall, oldest first, for programs
    #[arg(long, conflicts_with_all = ["each", "top"])]
    pub json: bool,

    /// Each stall by itself, oldest first, instead of groups of equal stacks
    #[arg(long, conflicts_with = "top")]
    pub each: bool,

    /// The most groups of equal stacks to print, those with the most time
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub top: usize,

    /// Only stalls that made their thread at least this late: 500us, 2ms (a bare number is seconds)
    #[arg(long, value_name = "DURATION")]
    pub longer_than: Option<String>,

    /// Only threads whose name matches, such as 'worker-*'
    #[arg(long, value_name = "GLOB")]
    pub thread: Option<String>,

    /// Only threads of containers whose id or name matches, such as '3f4a*'
    #[arg(long, value_name = "GLOB")]
    pub container: Option<String>,

    /// Only this kind
    #[arg(long, value_name = "KIND", value_parser = stall_kind())]
    pub kind: Option<StallKind>,

    /// Only this reason
    #[arg(long, value_name = "REASON", value_parser = stall_reason())]
    pub reason: Option<StallReason>,

    /// Only stalls of threads that worked for this trace of OpenTelemetry, by its id, voluntary waits among them
    #[arg(long, value_name = "ID", value_parser = trace_id)]
    pub trace: Option<String>,

    /// Only stalls that end after this time: 12:32:52.331, RFC 3339, seconds since the epoch, +1.5s after the
    /// start
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,

    /// Only stalls that start before this time
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,

    /// Only the stall with this id, from an exemplar of `watch`, a finding or --json
    #[arg(long, value_name = "N", conflicts_with_all = ["longer_than", "thread", "container", "kind", "reason", "trace", "from", "to"])]
    pub id: Option<u64>,

    /// Also voluntary waits: condition variables, poll, sleep, child
    #[arg(long)]
    pub all: bool,

    #[command(flatten)]
    pub meaning: MeaningArgs,
}

#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The recording to compare with: the earlier one, or one known to be good
    #[arg(value_name = "A")]
    pub a: PathBuf,

    /// The recording in question
    #[arg(value_name = "B")]
    pub b: PathBuf,

    /// Which time to compare
    #[arg(long, value_name = "VIEW", value_enum, default_value = "wall")]
    pub view: DiffView,

    /// Also write a differential flame graph: widths are B's, red took longer than in A, blue shorter
    #[arg(short = 'o', long = "output", value_name = "FILE.svg")]
    pub output: Option<PathBuf>,

    /// One JSON object, for programs
    #[arg(long)]
    pub json: bool,

    /// Every difference, not only the largest
    #[arg(long)]
    pub all: bool,

    /// Only threads of containers whose id or name matches, such as '3f4a*'
    #[arg(long, value_name = "GLOB")]
    pub container: Option<String>,

    #[command(flatten)]
    pub meaning: MeaningArgs,
}

#[derive(Debug, Args)]
pub struct BlameArgs {
    /// The recording to read
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub file: PathBuf,

    /// Only the waiting of threads whose name matches, such as 'worker-*'
    #[arg(long, value_name = "GLOB")]
    pub thread: Option<String>,

    /// Only the waiting of threads of containers whose id or name matches, such as '3f4a*'
    #[arg(long, value_name = "GLOB", conflicts_with = "what_if")]
    pub container: Option<String>,

    /// One JSON object, for programs
    #[arg(long)]
    pub json: bool,

    /// What waiting would be if a part of the work took less time: 'lock:FUNCTION=-50%' for what holds a lock
    /// and lets go in that function, 'disk=-50%', 'thread:GLOB=-50%' or 'cpu=-50%'
    #[arg(long, value_name = "PART=-PERCENT%")]
    pub what_if: Option<String>,

    /// Also draw a picture: waiters at the left, culprits at the right
    #[arg(short = 'o', long = "output", value_name = "FILE.svg")]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub meaning: MeaningArgs,
}

#[derive(Debug, Args)]
pub struct RunsArgs {
    /// The folder with recordings, also in folders below it
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,

    /// Compare the groups of runs with equal values of this label: each later one with the first
    #[arg(long, value_name = "KEY", conflicts_with = "trend")]
    pub compare: Option<String>,

    /// Draw figures over the values of this label, the earliest first; with --json: the newest value's figures
    /// in Bencher's Metric Format
    #[arg(long, value_name = "KEY")]
    pub trend: Option<String>,

    /// Only recordings with this label; can be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    pub only: Vec<String>,

    /// One JSON object, for programs
    #[arg(long)]
    pub json: bool,

    /// The picture of --trend [wallprof-trend.svg]
    #[arg(short = 'o', long = "output", value_name = "FILE.svg")]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub meaning: MeaningArgs,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The recording to read
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub file: PathBuf,

    /// The most time that threads may spend: reason:lock=5ms/s, 'meaning:row lock=1ms/s', span:order:p99.9=200us;
    /// can be given several times
    #[arg(long = "max", value_name = "LIMIT")]
    pub limits: Vec<String>,

    /// This finding must not be there, such as deadlock; any: none at all; can be given several times
    #[arg(long = "no-finding", value_name = "NAME")]
    pub no_findings: Vec<String>,

    /// Findings whose cause is the machine, such as other programs on its CPUs, do not fail the check; each is
    /// printed as excused
    #[arg(long, requires = "no_findings")]
    pub shared_machine: bool,

    #[command(flatten)]
    pub meaning: MeaningArgs,
}

#[derive(Debug, Default, Args)]
pub struct TailArgs {
    /// The recording to read
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub file: PathBuf,

    /// Only spans whose kind matches, such as 'order*'
    #[arg(long, value_name = "GLOB")]
    pub kind: Option<String>,

    /// Only the spans of threads whose name matches, such as 'worker-*'
    #[arg(long, value_name = "GLOB")]
    pub thread: Option<String>,

    /// Only the spans of threads of containers whose id or name matches, such as '3f4a*'
    #[arg(long, value_name = "GLOB")]
    pub container: Option<String>,

    /// The slow spans: those at or above this percentile of their kind [default: P99.9, and P99 or P90 of a kind
    /// with fewer spans]
    #[arg(long, value_name = "PERCENTILE")]
    pub tail: Option<String>,

    /// The spans to compare with: those between these percentiles
    #[arg(long, value_name = "FROM-TO", default_value = "P45-P55")]
    pub body: String,

    /// Draw what the slow spans have beyond the others as a flame graph
    #[arg(short = 'o', long = "output", value_name = "FILE.svg")]
    pub output: Option<PathBuf>,

    /// One JSON object, for programs
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub meaning: MeaningArgs,
}

/// The part of a recording that is drawn or exported.
#[derive(Debug, Args)]
pub struct SelectionArgs {
    /// The weight of a stack: its wall time, the part on or off a CPU, in page faults, in waits by who ended
    /// them (wakers), in calls (of Intel PT), or, with event:NAME, counts of an event
    #[arg(long, value_name = "VIEW", value_parser = ViewParser, default_value = "wall")]
    pub view: View,

    /// Only threads whose name matches, such as 'worker-*'
    #[arg(long, value_name = "GLOB")]
    pub thread: Option<String>,

    /// Only threads of containers whose id or name matches, such as '3f4a*'
    #[arg(long, value_name = "GLOB")]
    pub container: Option<String>,

    /// Only the program's frames; the total time stays the same
    #[arg(long, conflicts_with = "kernel")]
    pub user: bool,

    /// Only the kernel's frames; the total time stays the same
    #[arg(long)]
    pub kernel: bool,

    #[command(flatten)]
    pub meaning: MeaningArgs,
}

#[derive(Debug, Args)]
pub struct FlameArgs {
    /// The recording to read
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub file: PathBuf,

    #[command(flatten)]
    pub selection: SelectionArgs,

    /// Start with the second of this time: 12:32:52.331, RFC 3339, seconds since the epoch, +1.5s after the
    /// start
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,

    /// End with the second of this time
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,

    /// The file to write: .svg, or .folded or .txt for folded stacks; - is SVG on standard output
    #[arg(short = 'o', long = "output", value_name = "FILE.svg", default_value = "wallprof.svg")]
    pub output: PathBuf,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The recording to read
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub file: PathBuf,

    /// The format to write
    #[arg(long = "to", value_name = "FORMAT", value_parser = export_format(), required = true)]
    pub format: &'static ExportFormat,

    #[command(flatten)]
    pub selection: SelectionArgs,

    /// Replace the names of functions, files, processes and threads, equal names alike; kernel functions keep
    /// theirs
    #[arg(long)]
    pub anonymize: bool,

    /// The file to write; - is standard output. With --to parquet: the folder with the tables
    #[arg(short = 'o', long = "output", value_name = "OUT", required = true)]
    pub output: PathBuf,
}
