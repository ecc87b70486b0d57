//! `wallprof report`: where each thread's time went, and why it was late.

use std::process::ExitCode;

use wallprof_analysis::StallDigest;
use wallprof_analysis::calls::{FunctionCalls, functions};
use wallprof_analysis::rules::Collector;
use wallprof_recording::Recording;
use wallprof_views::{Report, functions_text, report_json, report_json_with_functions, report_text};

use crate::args::ReportArgs;
use crate::failure::Failure;
use crate::findings::Background;
use crate::meanings::open_recording;
use crate::output::to_stdout;
use crate::page;
use crate::terminal::style_for_stdout;

/// The number of stalls that a report shows with their stacks.
const LONGEST_SHOWN: usize = 5;

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<ExitCode, Failure> {
    if let Some(output) = &args.output {
        page::write(&args.file, output, &args.meaning.rules()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let recording = open_recording(&args.file, &args.meaning.rules()?)?;
    let (stalls, collector) = stalls(&recording)?;
    let background = Background::read(&recording)?;
    let folded = recording.folded()?;
    let marks = recording.marks()?;
    let findings = background.findings(collector);
    let report = Report {
        info: &background.info,
        threads: &background.threads,
        interrupts: &background.interrupts,
        intrusions: &background.intrusions,
        folded: &folded,
        marks: &marks,
        stalls: &stalls,
        findings: &findings,
    };
    let functions = called_functions(&recording)?;
    to_stdout(|mut out| {
        match args.json {
            true if functions.is_empty() => report_json(&mut out, &report)?,
            true => report_json_with_functions(&mut out, &report, &functions)?,
            false => {
                report_text(&mut out, &report, &style_for_stdout())?;
                functions_text(&mut out, &functions, &style_for_stdout())?;
            }
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Reads all stalls once, in the two forms that a report needs.
fn stalls(recording: &Recording) -> Result<(StallDigest, Collector), Failure> {
    let (mut digest, mut collector) = (StallDigest::new(LONGEST_SHOWN), Collector::default());
    recording.each_stall(|stall| {
        digest.add(&stall);
        collector.add(&stall);
    })?;
    Ok((digest, collector))
}

/// The calls of each function, where every call was traced.
pub fn called_functions(recording: &Recording) -> Result<Vec<FunctionCalls>, Failure> {
    let mut calls = Vec::new();
    for thread in recording.threads_with_calls()? {
        calls.push(recording.calls(thread)?);
    }
    Ok(functions(&calls))
}
