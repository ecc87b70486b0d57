// SPDX-License-Identifier: Apache-2.0
//! `wallprof blame`: who costs whom.

use std::collections::{BTreeMap, HashSet};
use std::process::ExitCode;

use wallprof_analysis::blame::{Change, Operation, Operations, Waits};
use wallprof_model::ThreadKey;
use wallprof_model::histogram::Cell;
use wallprof_recording::Recording;
use wallprof_views::{blame_json, blame_svg, blame_text, what_if_text};

use crate::args::BlameArgs;
use crate::failure::{Failure, say};
use crate::meanings::open_recording;
use crate::output::{check_picture, to_file, to_stdout};
use crate::terminal::style_for_stdout;
use crate::threads::Threads;

/// Runs the command. The options are checked before the file is opened.
pub fn run(args: &BlameArgs) -> Result<ExitCode, Failure> {
    let selected = Threads::from_args(args.thread.as_deref(), args.container.as_deref())?;
    if let Some(file) = &args.output {
        check_picture(file, &[&args.file])?;
    }
    let change = args.what_if.as_deref().map(str::parse::<Change>).transpose();
    let change = change.map_err(|error| Failure::usage(format!("--what-if: {error}")))?;
    let recording = open_recording(&args.file, &args.meaning.rules()?)?;
    let mut threads = recording.thread_infos()?;
    let mut waits = Waits::new(&threads);
    selected.retain(&mut threads, &args.file)?;
    if let Some(change) = &change {
        waits.expect(change);
    }
    recording.each_stall(|stall| waits.add(&stall))?;
    if waits.dropped() > 0 {
        say(&format!("{} waits are left out: the recording has more than are kept.", waits.dropped()));
    }
    let waiters: HashSet<ThreadKey> = threads.iter().map(|thread| thread.key).collect();
    let what_if = match &change {
        Some(change) => {
            waits.set_counted(counted(&recording)?);
            Some(
                waits.what_if(change, &operations(&recording, &waiters)?, |name| selected.accepts_name(name)),
            )
        }
        None => None,
    };
    let blame = waits.blame(|thread| waiters.contains(&thread));
    if let Some(file) = &args.output {
        to_file(file, &[&args.file], |mut out| Ok(blame_svg(&mut out, &blame)?))?;
    }
    to_stdout(|mut out| {
        match args.json {
            true => blame_json(&mut out, &blame, what_if.as_ref())?,
            false => blame_text(&mut out, &blame, &style_for_stdout())?,
        }
        if let Some(what_if) = what_if.as_ref().filter(|_| !args.json) {
            what_if_text(&mut out, what_if, &style_for_stdout())?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The waits that the recording has no rows for.
fn counted(recording: &Recording) -> Result<u64, Failure> {
    Ok(recording.folded()?.iter().fold(0, |sum, folded| sum.saturating_add(folded.count)))
}

/// The spans of these threads that are in the recording one by one, by kind, with the lengths of all.
fn operations(recording: &Recording, threads: &HashSet<ThreadKey>) -> Result<Vec<Operations>, Failure> {
    let mut kinds: BTreeMap<String, Operations> = BTreeMap::new();
    for sum in recording.span_sums()?.iter().filter(|sum| threads.contains(&sum.thread)) {
        let cell = Cell { count: sum.count, total_ns: sum.states.total_ns(), max_ns: sum.max_ns };
        kinds.entry(sum.kind.to_string()).or_default().all.add_cell(sum.bucket, cell);
    }
    for (_, span) in recording.spans()?.into_iter().filter(|(_, span)| threads.contains(&span.thread)) {
        let operation = Operation { thread: span.thread, start: span.start.0, end: span.end.0 };
        kinds.entry(span.kind.to_string()).or_default().kept.push(operation);
    }
    let named = |(kind, operations): (String, Operations)| Operations { kind: kind.into(), ..operations };
    Ok(kinds.into_iter().map(named).collect())
}
