//! `wallprof report`: where each thread's time went, and why it was late.

use std::process::ExitCode;

use wallprof_analysis::StallDigest;
use wallprof_recording::{Recording, StallFilter};
use wallprof_views::{Report, report_json, report_text};

use crate::args::ReportArgs;
use crate::failure::Failure;
use crate::output::to_stdout;
use crate::terminal::style_for_stdout;

/// How many single stalls a report shows whole.
const LONGEST_SHOWN: usize = 5;

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<ExitCode, Failure> {
    let recording = Recording::open(&args.file)?;
    let info = recording.info()?;
    let threads = recording.threads()?;
    let interrupts = recording.interrupts()?;
    let folded = recording.folded()?;
    let stalls = digest(&recording)?;
    let report =
        Report { info: &info, threads: &threads, interrupts: &interrupts, folded: &folded, stalls: &stalls };
    to_stdout(|mut out| {
        match args.json {
            true => report_json(&mut out, &report)?,
            false => report_text(&mut out, &report, &style_for_stdout())?,
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn digest(recording: &Recording) -> Result<StallDigest, Failure> {
    let mut digest = StallDigest::new(LONGEST_SHOWN);
    let all = StallFilter { include_voluntary: true, ..StallFilter::default() };
    for stall in recording.stalls(&all)? {
        digest.add(&stall?);
    }
    Ok(digest)
}
