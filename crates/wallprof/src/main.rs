// SPDX-License-Identifier: Apache-2.0
//! `wallprof`: the list of commands, what each runs, and the exit code of its outcome.

mod additions;
mod args;
mod bins;
mod blame;
mod budgets;
mod check;
mod cpu_list;
mod debug_downloads;
mod demo;
mod descriptors;
mod diff;
mod doctor;
mod documents;
mod export;
mod failure;
mod findings;
mod flame;
mod guarded;
mod help;
mod import;
mod labels;
mod meanings;
mod open;
mod output;
mod page;
mod record;
mod report;
mod rights;
mod runs;
mod selection;
mod span_options;
mod stacks;
mod stages;
mod stalls;
mod symbolize;
mod tables;
mod tail;
mod terminal;
mod threads;
mod watch;

use std::process::ExitCode;
use std::time::Instant;

use clap::Subcommand;

use args::Parsed;
use failure::Failure;

/// The commands, in the order of the help. Each has a file, its options, and an arm in each `match` below.
#[derive(Debug, Subcommand)]
enum Command {
    /// Record where threads spend their wall time
    Record(Box<args::RecordArgs>),
    /// Show each thread's ledger, latencies, top stalls, losses and cost
    Report(args::ReportArgs),
    /// Show groups of stalls with equal stacks, or single stalls, with waker and the threads that ran instead
    Stalls(args::StallsArgs),
    /// Show what all threads do now: states, both stacks, locks and their holders; nothing is stopped
    Stacks(args::StacksArgs),
    /// Draw where the time went as a flame graph: an SVG with zoom and search for any browser
    Flame(args::FlameArgs),
    #[command(about = format!("Write stacks and weights for other tools: {}", args::export_formats()))]
    Export(args::ExportArgs),
    /// Compare two recordings in time per second of wall time: changed, new and gone
    Diff(args::DiffArgs),
    /// Charge waiting time to its cause along the chain of waits: who costs whom
    Blame(args::BlameArgs),
    /// List the recordings of a folder, compare groups of them by a label, draw figures over versions
    Runs(args::RunsArgs),
    /// Check a recording against limits: exit code 5 if one does not hold
    Check(args::CheckArgs),
    /// Show why the slow operations are slow: the slowest ones minus those in the middle
    Tail(args::TailArgs),
    /// List the rules about what waits mean
    Waits(args::WaitsArgs),
    /// Convert another profiler's recording, such as perf.data; add metrics, marks and spans to a recording
    Import(args::ImportArgs),
    /// Name the frames of a recording that have no name, by build id, from debug files on this machine
    #[command(after_help = args::SYMBOLIZE_HELP)]
    Symbolize(args::SymbolizeArgs),
    /// Record continuously in bounded memory; serve metrics, exemplars for alerts and a flight recording
    Watch(Box<args::WatchArgs>),
    /// Show live, in the terminal, which threads are late and why
    Top(args::TopArgs),
    /// Arm, disarm or query a running watcher, or have it write a snapshot
    Ctl(args::CtlArgs),
    /// List what this kernel, these permissions and this hardware allow
    Doctor(args::DoctorArgs),
    /// Run a built-in workload, record it, print the report and write the flame graph
    Demo(args::DemoArgs),
    /// Explain a command; print a page (findings, recording, symbols), or the schema of --json
    Help(args::HelpArgs),
    /// Write man pages and shell completions: `make release`
    #[command(name = documents::SUBCOMMAND, hide = true)]
    Documents(args::DocumentsArgs),
    /// `record -- CMD` starts CMD with this: it waits until the probes are armed
    #[command(name = record::held::SUBCOMMAND, hide = true)]
    Held(args::HeldArgs),
    /// `watch --parquet` writes each part of its tables with this
    #[command(name = watch::TABLES, hide = true)]
    Tables(args::TablesArgs),
    /// `watch` reads the last minutes for its port with this
    #[command(name = watch::LATEST, hide = true)]
    Latest(args::LatestArgs),
}

/// What a command may do with the capabilities that the program was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    /// It looks at other processes or the kernel, or starts a command of the user.
    Kept,
    /// It reads and writes files: it drops them first.
    Dropped,
}

fn main() -> ExitCode {
    let started = Instant::now();
    // A process that reads other users' files has no command line of its own, and no capabilities to keep.
    if let Some(ended) = wallprof_symbols::dispatch_reader() {
        return ended;
    }
    let outcome = args::parse(std::env::args_os()).and_then(|parsed| run(parsed, started));
    outcome.unwrap_or_else(|failure| failure.report())
}

fn run(parsed: Parsed, started: Instant) -> Result<ExitCode, Failure> {
    let command = match parsed {
        Parsed::Text(text) => {
            return output::to_stdout(|out| Ok(write!(out, "{text}")?)).map(|()| ExitCode::SUCCESS);
        }
        Parsed::Command(command) => *command,
    };
    if command.rights() == Rights::Dropped {
        rights::drop_for_files();
    }
    // The children of `watch` share its terminal.
    if command.rights() == Rights::Dropped && !matches!(command, Command::Tables(_) | Command::Latest(_)) {
        stages::show_on_terminal();
    }
    match command {
        Command::Record(args) => record::run(*args, started),
        Command::Report(args) => report::run(&args),
        Command::Stalls(args) => stalls::run(&args),
        Command::Stacks(args) => stacks::run(args),
        Command::Flame(args) => flame::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Blame(args) => blame::run(&args),
        Command::Runs(args) => runs::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Tail(args) => tail::run(&args),
        Command::Waits(args) => meanings::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Symbolize(args) => symbolize::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Top(args) => watch::top(args),
        Command::Ctl(args) => watch::control(&args),
        Command::Demo(args) => demo::run(&args, started),
        Command::Doctor(args) => doctor::run(&args),
        Command::Help(args) => help::run(args.topic.as_deref()),
        Command::Documents(args) => documents::run(&args.folder),
        Command::Held(args) => record::held::hold(args.command),
        Command::Tables(args) => watch::write_part(&args),
        Command::Latest(args) => watch::print_latest(&args),
    }
}

impl Command {
    fn rights(&self) -> Rights {
        match self {
            Command::Record(_)
            | Command::Watch(_)
            | Command::Top(_)
            | Command::Stacks(_)
            | Command::Doctor(_)
            | Command::Demo(_)
            | Command::Held(_) => Rights::Kept,
            Command::Report(_)
            | Command::Stalls(_)
            | Command::Flame(_)
            | Command::Export(_)
            | Command::Diff(_)
            | Command::Blame(_)
            | Command::Runs(_)
            | Command::Check(_)
            | Command::Tail(_)
            | Command::Waits(_)
            | Command::Import(_)
            | Command::Symbolize(_)
            | Command::Ctl(_)
            | Command::Help(_)
            | Command::Documents(_)
            | Command::Tables(_)
            | Command::Latest(_) => Rights::Dropped,
        }
    }
}
