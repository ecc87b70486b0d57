// SPDX-License-Identifier: Apache-2.0
//! `wallprof report`: where each thread's time went, and why it was late.

use std::collections::HashSet;
use std::process::ExitCode;

use wallprof_analysis::StallDigest;
use wallprof_analysis::calls::{FunctionCalls, functions};
use wallprof_findings::Collector;
use wallprof_model::profile::Thread;
use wallprof_model::{ThreadCalls, ThreadKey};
use wallprof_recording::Recording;
use wallprof_views::{Report, functions_text, report_json, report_json_with_functions, report_text};

use crate::args::ReportArgs;
use crate::failure::Failure;
use crate::findings::Background;
use crate::meanings::open_recording;
use crate::output::to_stdout;
use crate::page;
use crate::stages;
use crate::terminal::style_for_stdout;
use crate::threads::Threads;

/// The number of stalls that a report shows with their stacks.
const LONGEST_SHOWN: usize = 5;

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<ExitCode, Failure> {
    if let Some(output) = &args.output {
        page::write(&args.file, output, &args.meaning.rules()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let recording = open_recording(&args.file, &args.meaning.rules()?)?;
    let mut background = Background::read(&recording)?;
    let selected = Threads::from_args(None, args.container.as_deref())?;
    let mut folded = recording.folded()?;
    let keys = selected.keys(&recording)?;
    if let Some(keys) = &keys {
        selected.retain(&mut background.threads, &args.file)?;
        background.retain(keys);
        folded.retain(|stalls| keys.contains(&stalls.thread));
    }
    let (stalls, collector) = stalls(&recording, keys.as_ref())?;
    let marks = recording.marks()?;
    stages::start("searching for causes");
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
    let functions = called_functions(&recording, &background.threads)?;
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

/// Reads the stalls of these threads once, in the two forms that a report needs. `None`: of all threads.
fn stalls(
    recording: &Recording,
    of: Option<&HashSet<ThreadKey>>,
) -> Result<(StallDigest, Collector), Failure> {
    let (mut digest, mut collector) = (StallDigest::new(LONGEST_SHOWN), Collector::default());
    recording.each_stall(|stall| {
        if of.is_none_or(|threads| threads.contains(&stall.thread)) {
            digest.add(&stall);
            collector.add(&stall);
        }
    })?;
    Ok((digest, collector))
}

/// The calls of each function in these threads, where every call was traced.
pub fn called_functions(recording: &Recording, threads: &[Thread]) -> Result<Vec<FunctionCalls>, Failure> {
    Ok(functions(&called_threads(recording, threads)?))
}

/// The calls of those of these threads whose calls are known.
pub fn called_threads(recording: &Recording, threads: &[Thread]) -> Result<Vec<ThreadCalls>, Failure> {
    let with_calls = recording.threads_with_calls()?;
    if with_calls.is_empty() {
        return Ok(Vec::new());
    }
    let of: HashSet<ThreadKey> = threads.iter().map(|thread| thread.info.key).collect();
    let with_calls = with_calls.into_iter().filter(|thread| of.contains(thread));
    Ok(with_calls.map(|thread| recording.calls(thread)).collect::<Result<_, _>>()?)
}
