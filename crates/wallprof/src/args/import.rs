// SPDX-License-Identifier: Apache-2.0
//! The commands that add to recordings: `import` and `symbolize`.

use std::path::PathBuf;

use clap::Args;

use super::DEFAULT_FILE;
use super::values::ImportFormat;

#[derive(Debug, Default, Args)]
pub struct ImportArgs {
    /// The file to import, or the recording that --metrics, --marks and --spans are added to; - is standard input:
    /// `perf record --call-graph dwarf -o - … | wallprof import -`
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Further parts of the same recording: texts of `perf script`, one for each CPU or time interval
    #[arg(value_name = "MORE")]
    pub more: Vec<PathBuf>,

    /// The format of FILE; without it, the first bytes of FILE decide
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub format: Option<ImportFormat>,

    /// Look up the recorded programs and libraries below this folder, instead of on this machine
    #[arg(long, value_name = "DIR")]
    pub symfs: Option<PathBuf>,

    /// Add metrics of the application to a recording: lines of time, name, value, such as
    /// `12:32:52.331,orders,17`; times of day, RFC 3339, or s, ms, us, ns since the epoch
    #[arg(long, value_name = "FILE.csv")]
    pub metrics: Vec<PathBuf>,

    /// Add events of the application to a recording: lines of time, text and, optionally, duration, such as
    /// `12:32:52.331,gap alarm,250ms`: `wallprof import --marks alarms.csv wallprof.db`
    #[arg(long, value_name = "FILE.csv")]
    pub marks: Vec<PathBuf>,

    /// Add operations of the application to a recording, for `wallprof tail`: lines of start and end, in ns
    /// since the epoch, thread id and kind; waits of at least the recording's --min-stall are found in them
    #[arg(long, value_name = "FILE.csv")]
    pub spans: Vec<PathBuf>,

    /// Intel PT: decode from this time: 12:32:52.331, RFC 3339, seconds since the epoch, +1.5s after the
    /// start
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,

    /// Intel PT: decode up to this time
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,

    /// Intel PT: decode these threads only
    #[arg(short = 't', long = "tid", value_name = "TID,…", value_delimiter = ',')]
    pub tids: Vec<u32>,

    /// Intel PT: decode these CPUs only, such as 0-3,5
    #[arg(short = 'C', long = "cpu", value_name = "CPUS")]
    pub cpus: Option<String>,

    /// The recording to write, or to add to
    #[arg(short = 'o', long = "output", value_name = "FILE", default_value = DEFAULT_FILE)]
    pub output: PathBuf,
}

#[derive(Debug, Args)]
pub struct SymbolizeArgs {
    /// The recording to complete
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub file: PathBuf,

    /// A folder of debug files (.build-id/xx/yyyy.debug, or any names) or of unstripped programs; searched
    /// with its subfolders, before /usr/lib/debug; can be given several times
    #[arg(long = "debug-dir", value_name = "DIR")]
    pub debug_dirs: Vec<PathBuf>,
}

pub const SYMBOLIZE_HELP: &str = "Existing names stay. A file is used only if its build id is the recorded one. \
    Files that are not on this machine are requested from the servers of DEBUGINFOD_URLS. DEBUGINFOD_CACHE_PATH, \
    DEBUGINFOD_TIMEOUT, DEBUGINFOD_MAXSIZE and DEBUGINFOD_MAXTIME mean the same as for debuginfod-find(1).";
