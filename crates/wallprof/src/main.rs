//! `wallprof`: wires the command line to the commands and their outcome to the exit code.

mod additions;
mod args;
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
mod open;
mod output;
mod record;
mod report;
mod rights;
mod selection;
mod stalls;
mod symbolize;
mod terminal;
mod watch;

use std::process::ExitCode;
use std::time::Instant;

use args::{Command, Parsed};
use failure::Failure;

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
    if !command.needs_capabilities() {
        rights::drop_for_files();
    }
    match command {
        Command::Record(args) => record::run(args, started),
        Command::Report(args) => report::run(&args),
        Command::Stalls(args) => stalls::run(&args),
        Command::Flame(args) => flame::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Symbolize(args) => symbolize::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Ctl(args) => watch::control(&args),
        Command::Demo(args) => demo::run(&args, started),
        Command::Doctor(args) => doctor::run(&args),
        Command::Help(args) => help::run(args.topic.as_deref()),
        Command::Documents(args) => documents::run(&args.folder),
        Command::Held(args) => record::held::hold(args.command),
    }
}
