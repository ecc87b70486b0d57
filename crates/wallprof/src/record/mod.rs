// SPDX-License-Identifier: Apache-2.0
//! `wallprof record`: reads the options, checks that their targets exist, and records.

mod check;
mod ending;
mod engine;
mod found;
pub mod held;
mod host;
mod intel_pt;
mod options;
mod placement;
mod progress;
mod run;
mod target;

use std::process::ExitCode;
use std::time::Instant;

use crate::args::RecordArgs;
use crate::failure::Failure;
use intel_pt::TraceOptions;

pub use check::check_exists;
pub use ending::ready;
pub use engine::{Engine, Setup, failure_from_session, target_set};
pub use options::RecordOptions;
pub use run::check_permitted;
pub use target::{GivenTargets, Target};

/// Runs the command; `started` is the start of the process, for the time until the probes are armed.
pub fn run(args: RecordArgs, started: Instant) -> Result<ExitCode, Failure> {
    let trace = args.intel_pt.map(|mode| TraceOptions::from_args(mode, &args.trace_buffer)).transpose()?;
    let options = RecordOptions::from_args(args)?;
    match trace {
        Some(trace) => intel_pt::record(&options, trace, started),
        None => run::record(&options, started),
    }
}
