//! `wallprof record`: reads the options, checks that what they name exists, and records.

mod check;
mod ending;
mod engine;
mod found;
pub mod held;
mod host;
mod intel_pt;
mod options;
mod progress;
mod run;

use std::process::ExitCode;
use std::time::Instant;

use crate::args::RecordArgs;
use crate::failure::Failure;
use intel_pt::TraceOptions;

pub use check::check_exists;
pub use ending::ready;
pub use engine::{Engine, Setup};
#[cfg(test)]
pub use options::GivenTargets;
pub use options::{RecordOptions, Target};
pub use run::check_permitted;

/// Runs the command; `started` is when the process began, for the time to armed probes.
pub fn run(args: RecordArgs, started: Instant) -> Result<ExitCode, Failure> {
    let trace = args.intel_pt.map(|mode| TraceOptions::from_args(mode, &args.trace_buffer)).transpose()?;
    let options = RecordOptions::from_args(args)?;
    match trace {
        Some(trace) => intel_pt::record(&options, trace, started),
        None => run::record(&options, started),
    }
}
