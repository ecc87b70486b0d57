//! `wallprof record`: reads the options, checks that what they name exists, and records.

mod check;
mod ending;
mod engine;
pub mod held;
mod host;
mod options;
mod progress;
mod run;

use std::process::ExitCode;
use std::time::Instant;

use crate::args::RecordArgs;
use crate::failure::Failure;
use options::RecordOptions;

/// Runs the command; `started` is when the process began, for the time to armed probes.
pub fn run(args: RecordArgs, started: Instant) -> Result<ExitCode, Failure> {
    run::record(&RecordOptions::from_args(args)?, started)
}
