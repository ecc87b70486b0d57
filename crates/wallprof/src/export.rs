// SPDX-License-Identifier: Apache-2.0
//! `wallprof export`: a recording for other tools.

use std::process::ExitCode;

use wallprof_analysis::bins::{Samples, Slots};
use wallprof_analysis::weights::{CallNames, Side, View};
use wallprof_model::counter::CounterTrack;
use wallprof_model::profile::{RecordingInfo, StallRecord, Thread};
use wallprof_recording::{Recording, StallFilter};
use wallprof_views::{Export, Rows, Timeline};

use crate::args::ExportArgs;
use crate::bins;
use crate::failure::Failure;
use crate::output::{WriteFailure, to_file};
use crate::selection::Selection;
use crate::tables;
use crate::terminal::zone;

/// Runs the command. The options are checked before the file is opened.
pub fn run(args: &ExportArgs) -> Result<ExitCode, Failure> {
    let selection = Selection::from_args(&args.selection)?;
    match args.format.rows {
        Rows::Stacks(write) => {
            let counted = args.format.counts_calls_in_names;
            let names = if counted { CallNames::Counted } else { CallNames::Plain };
            let selected = selection.naming_calls(names).read(&args.file, &zone())?;
            let weights = if args.anonymize { selected.weights.anonymized() } else { selected.weights };
            let command = selected.info.command.as_str();
            let name = if args.anonymize || command.is_empty() { "wallprof" } else { command };
            let range = selected.range.clone();
            let export = Export { weights: &weights, info: &selected.info, title: name, range };
            to_file(&args.output, &[&args.file], |mut out| Ok(write(&mut out, &export)?))?;
        }
        Rows::Timeline(start) => {
            check_timeline(args, &selection)?;
            let (recording, threads) = selection.open(&args.file)?;
            let info = recording.info()?;
            to_file(&args.output, &[&args.file], |out| {
                let mut timeline = start(out, &info, &threads)?;
                write_stacks(&mut *timeline, &recording, &info, selection.side)?;
                write_rows(&mut *timeline, &recording, &threads, selection.side)
            })?;
        }
        Rows::Tables => {
            check_tables(args)?;
            tables::export(&args.file, &args.output, &args.selection.meaning.rules()?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The tables are of the whole recording: a query selects.
fn check_tables(args: &ExportArgs) -> Result<(), Failure> {
    let selection = &args.selection;
    let options = [
        ("--view", selection.view != View::Wall),
        ("--thread", selection.thread.is_some()),
        ("--container", selection.container.is_some()),
        ("--user", selection.user),
        ("--kernel", selection.kernel),
        ("--anonymize", args.anonymize),
    ];
    if let Some((option, _)) = options.iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!("--to parquet writes all of a recording: omit {option}")));
    }
    if args.output.as_os_str() == "-" {
        return Err(Failure::usage("--to parquet writes a folder of tables: give it with -o DIR"));
    }
    Ok(())
}

/// Options about weighted stacks mean nothing on a timeline.
fn check_timeline(args: &ExportArgs, selection: &Selection) -> Result<(), Failure> {
    let format = args.format.name;
    if !selection.is_of_wall_time() {
        return Err(Failure::usage(format!(
            "--to {format} writes a timeline of all wall time: omit --view, or choose another format"
        )));
    }
    if args.anonymize {
        return Err(Failure::usage(format!(
            "--to {format} cannot replace names: omit --anonymize, or choose --to folded, speedscope or pprof"
        )));
    }
    Ok(())
}

/// Writes the stacks of all threads: the samples of a process divide the time of its threads without samples.
fn write_stacks(
    timeline: &mut dyn Timeline,
    recording: &Recording,
    info: &RecordingInfo,
    side: Side,
) -> Result<(), WriteFailure> {
    let threads = recording.threads().map_err(Failure::from)?;
    let ledger = bins::ledger(recording, info, &threads)?;
    let slots = Slots::new(info, &threads, &ledger);
    let mut samples = Samples::new(&slots, side);
    bins::add_samples(&mut samples, recording)?;
    recording.each_stall(|stall| samples.add_wait(&stall)).map_err(Failure::from)?;
    Ok(timeline.stacks(&samples.finish(), &threads)?)
}

/// Reads and writes one row after the other.
fn write_rows(
    timeline: &mut dyn Timeline,
    recording: &Recording,
    threads: &[Thread],
    side: Side,
) -> Result<(), WriteFailure> {
    let keys = threads.iter().map(|thread| thread.info.key).collect();
    let filter = StallFilter { threads: Some(keys), include_voluntary: true, ..StallFilter::default() };
    for stall in recording.stalls(&filter).map_err(Failure::from)? {
        timeline.stall(&of_side(stall.map_err(Failure::from)?, side))?;
    }
    for row in recording.ledger(..).map_err(Failure::from)? {
        timeline.second(&row.map_err(Failure::from)?)?;
    }
    for track in counters(recording)? {
        timeline.counter(&track)?;
    }
    for mark in recording.marks().map_err(Failure::from)? {
        timeline.mark(&mark)?;
    }
    Ok(timeline.finish()?)
}

/// The stacks of one side alone.
fn of_side(mut stall: StallRecord, side: Side) -> StallRecord {
    let keep = |kept: Side| side == Side::Both || side == kept;
    stall.user = stall.user.filter(|_| keep(Side::User));
    stall.kernel = stall.kernel.filter(|_| keep(Side::Kernel));
    if let Some(waker) = &mut stall.waker {
        waker.user = waker.user.take().filter(|_| keep(Side::User));
        waker.kernel = waker.kernel.take().filter(|_| keep(Side::Kernel));
    }
    stall
}

/// The counters of the machine and of processes. The reader limits their values.
fn counters(recording: &Recording) -> Result<Vec<CounterTrack>, Failure> {
    let counters = recording.counters()?;
    let mut tracks = counters.whole(|_| true)?;
    tracks.extend(counters.whole_of_processes(|_| true)?);
    Ok(tracks)
}
