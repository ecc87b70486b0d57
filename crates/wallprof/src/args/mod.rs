// SPDX-License-Identifier: Apache-2.0
//! The options of each command as clap reads them: names, help and shapes. Each command checks what its values
//! mean. The list of commands is [`Command`], in `main.rs`.
//!
//! One file a group of commands; `values` holds the options with a fixed set of values, `refusal` the
//! sentences for what clap refuses.

// Doc comments of options are their help, which has defaults in brackets.
#![allow(rustdoc::broken_intra_doc_links)]

mod import;
mod readers;
mod record;
mod refusal;
mod stacks;
mod values;
mod watch;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser};

use crate::Command;
use crate::demo::Scenario;
use crate::failure::Failure;

pub use import::{ImportArgs, SYMBOLIZE_HELP, SymbolizeArgs};
pub use readers::{
    BlameArgs, CheckArgs, DiffArgs, ExportArgs, FlameArgs, MeaningArgs, ReportArgs, RunsArgs, SelectionArgs,
    StallsArgs, TailArgs, WaitsArgs,
};
pub use record::{HeldArgs, RecordArgs};
pub use stacks::StacksArgs;
pub use values::{CallGraph, DiffView, ImportFormat, TraceMode, export_formats};
pub use watch::{CtlArgs, LatestArgs, Order, TablesArgs, TopArgs, WatchArgs};

/// The file that `record` writes and readers read when none is named.
pub const DEFAULT_FILE: &str = "wallprof.db";

#[derive(Debug, Parser)]
#[command(
    name = "wallprof",
    version,
    about = "Where did this thread's wall time go, and why was it late?",
    max_term_width = 100,
    subcommand_required = true,
    disable_help_subcommand = true
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// How many instructions the kernel's verifier processes for each program
    #[arg(long, hide = true)]
    pub programs: bool,
}

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// The workload
    #[arg(value_name = "SCENARIO", value_enum, default_value_t)]
    pub scenario: Scenario,

    /// How long it runs: 10, 30s, 1m (a bare number is seconds)
    #[arg(short = 'd', long = "duration", value_name = "DURATION", default_value = "10s")]
    pub duration: String,

    /// The recording to write; the flame graph gets its name with .svg
    #[arg(short = 'o', long = "output", value_name = "FILE", default_value = "wallprof-demo.db")]
    pub output: PathBuf,
}

#[derive(Debug, Args)]
pub struct HelpArgs {
    /// A command; a page: findings (the meaning of each rule), recording (the views of the file), symbols (the
    /// sources of names); or schema (JSON Schema of each output of --json)
    #[arg(value_name = "TOPIC")]
    pub topic: Option<String>,
}

#[derive(Debug, Args)]
pub struct DocumentsArgs {
    /// Gets the folders man and completions
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// A command line that clap accepts.
#[derive(Debug)]
pub enum Parsed {
    Command(Box<Command>),
    /// `--help` or `--version`: this text, on stdout.
    Text(String),
}

/// The definition, for what is generated from it.
pub fn definition() -> clap::Command {
    CommandLine::command()
}

/// Parses the command line. An error is one sentence.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Parsed, Failure> {
    let error = match CommandLine::try_parse_from(arguments) {
        Ok(line) => return Ok(Parsed::Command(Box::new(line.command))),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Parsed::Text(error.render().to_string())),
        _ => Err(Failure::usage(refusal::sentence(&error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Parsed, Failure> {
        parse(
            std::iter::once("wallprof")
                .chain(line.split(' ').filter(|word| !word.is_empty()))
                .map(OsString::from),
        )
    }

    fn record(line: &str) -> RecordArgs {
        let Ok(Parsed::Command(command)) = parsed(line) else { panic!("{line}") };
        let Command::Record(args) = *command else { panic!("{command:?}") };
        *args
    }

    #[test]
    fn the_definition_is_sound() {
        definition().debug_assert();
    }

    #[test]
    fn perf_habits_hold() {
        let args = record("record -p 1,2 -F 199 -e cs -e faults -C 0-1 -d 30s -o x.db");
        assert_eq!((args.pids, args.sample_hz.as_str()), (vec!["1".into(), "2".into()], "199"));
        assert_eq!((args.events, args.cpus.as_deref()), (vec!["cs".into(), "faults".into()], Some("0-1")));
        let args = record("record -- make -j 2 -p 7");
        assert_eq!(args.command, ["make", "-j", "2", "-p", "7"]);
        assert_eq!((args.min_stall.as_str(), args.output), ("100us", DEFAULT_FILE.into()));
        assert_eq!((args.call_graph, args.intel_pt), (CallGraph::Auto, None));
        let args = record("record -a --call-graph dwarf,16384 --intel-pt");
        assert_eq!((args.call_graph, args.intel_pt), (CallGraph::Dwarf, Some(TraceMode::Full)));
        assert_eq!(record("record -a --intel-pt=snapshot").intel_pt, Some(TraceMode::Snapshot));
    }

    #[test]
    fn errors_are_one_line() {
        for line in ["", "recrod", "record --nmae x", "report a b", "stalls --longer-than", "record 1234"] {
            let failure = parsed(line).unwrap_err();
            assert_eq!(failure.exit, crate::failure::Exit::Usage, "{line}");
            assert!(!failure.message.contains('\n') && !failure.message.contains("error:"), "{failure:?}");
        }
        let unknown = parsed("record --durtaion 5").unwrap_err().message;
        assert!(unknown.contains("'--durtaion'") && unknown.contains("'--duration'"), "{unknown}");
        let stray = parsed("record 1234").unwrap_err().message;
        assert!(stray.contains("-p 1234") && stray.contains("-- 1234"), "{stray}");
    }

    #[test]
    fn an_unknown_value_is_answered_with_the_known_ones() {
        for (line, sentence) in [
            ("stalls --kind on-cpu", "--kind takes off-cpu or fault: `on-cpu` is none of them"),
            ("record -a --intel-pt=half", "--intel-pt takes full or snapshot: `half` is none of them"),
            (
                "record -a --call-graph fp,8",
                "--call-graph takes auto, fp, dwarf or lbr: `fp,8` is none of them",
            ),
            (
                "diff --view faults a b",
                "--view takes wall, on-cpu, off-cpu or calls: `faults` is none of them",
            ),
            ("import --format pprof x", "--format takes perf.data or perf-script: `pprof` is none of them"),
            ("ctl restart", "ORDER takes arm, disarm, status, snapshot or mark: `restart` is none of them"),
            ("stalls --kind=", "--kind takes off-cpu or fault: no value was given"),
        ] {
            assert_eq!(parsed(line).unwrap_err().message, sentence);
        }
        let format = parsed("export --to svg -o x").unwrap_err().message;
        assert!(format.starts_with("--to takes folded, speedscope"), "{format}");
        assert!(format.ends_with(": `svg` is none of them"), "{format}");
        let view = parsed("flame --view sideways").unwrap_err().message;
        assert!(
            view.starts_with("--view takes wall, on-cpu, ") && view.contains("or event:NAME: "),
            "{view}"
        );
        let reason = parsed("stalls --reason sloth").unwrap_err().message;
        assert!(reason.starts_with("--reason takes preempted, runnable, minor, major, lock, "), "{reason}");
    }

    #[test]
    fn help_is_not_an_error() {
        for line in ["--help", "--version", "record --help"] {
            assert!(matches!(parsed(line), Ok(Parsed::Text(_))), "{line}");
        }
        assert!(!matches!(parsed("--help"), Ok(Parsed::Text(text)) if text.contains("__")));
    }
}
