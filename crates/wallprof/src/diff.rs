// SPDX-License-Identifier: Apache-2.0
//! `wallprof diff`: two recordings compared in absolute time.

use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;

use wallprof_analysis::calls::{FunctionCalls, compare_calls, compare_paths};
use wallprof_analysis::diff::{
    Collector, Comparison, Floor, GroupRate, Kind, Kinds, Side, Tree, compare, compare_kinds,
};
use wallprof_analysis::weights::View;
use wallprof_meaning::waits::Rules;
use wallprof_model::profile::{RecordingInfo, Thread};
use wallprof_model::{ThreadCalls, ThreadKey};
use wallprof_recording::{Recording, StallFilter};
use wallprof_views::{
    Diff, DiffRows, DiffSide, calls_diff_json, calls_diff_svg, calls_diff_text, diff_json, diff_svg,
    diff_text,
};

use crate::args::{DiffArgs, DiffView};
use crate::failure::Failure;
use crate::meanings::open_recording;
use crate::output::{check_picture, to_file, to_stdout};
use crate::report::{called_functions, called_threads};
use crate::terminal::style_for_stdout;
use crate::threads::Threads;

/// Limit on the names of each side in an error.
const MAX_NAMES: usize = 5;

/// Runs the command. The options are checked before the files are opened.
pub fn run(args: &DiffArgs) -> Result<ExitCode, Failure> {
    let view = match args.view {
        DiffView::Calls => return diff_calls(args),
        DiffView::Wall => View::Wall,
        DiffView::OnCpu => View::OnCpu,
        DiffView::OffCpu => View::OffCpu,
    };
    if let Some(file) = &args.output {
        check_picture(file, &[&args.a, &args.b])?;
    }
    let mut tree = Tree::default();
    let rules = args.meaning.rules()?;
    let selected = Threads::from_args(None, args.container.as_deref())?;
    let (info_a, side_a, kinds_a) = collect(&args.a, &rules, &selected, &mut tree)?;
    let (info_b, side_b, kinds_b) = collect(&args.b, &rules, &selected, &mut tree)?;
    if view != View::OnCpu {
        check_waits([(&args.a, &info_a, &side_a), (&args.b, &info_b, &side_b)])?;
    }
    let comparison = compare(tree, &side_a, &side_b, &view, Floor::default());
    check(args, &comparison)?;
    let (file_a, file_b) = (args.a.to_string_lossy(), args.b.to_string_lossy());
    let diff = Diff {
        a: DiffSide { file: &file_a, info: &info_a },
        b: DiffSide { file: &file_b, info: &info_b },
        comparison: &comparison,
        kinds: &compare_kinds(&kinds_a, &kinds_b),
    };
    if let Some(file) = &args.output {
        to_file(file, &[&args.a, &args.b], |mut out| Ok(diff_svg(&mut out, &diff)?))?;
    }
    to_stdout(|mut out| {
        match args.json {
            true => diff_json(&mut out, &diff)?,
            false => {
                let rows = if args.all { DiffRows::All } else { DiffRows::Largest };
                diff_text(&mut out, &diff, rows, &style_for_stdout())?;
            }
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Compares the time of calls, where every call is recorded.
fn diff_calls(args: &DiffArgs) -> Result<ExitCode, Failure> {
    if let Some(file) = &args.output {
        check_picture(file, &[&args.a, &args.b])?;
    }
    let selected = Threads::from_args(None, args.container.as_deref())?;
    let comparison = compare_calls(&calls_of(&args.a, &selected)?, &calls_of(&args.b, &selected)?);
    if let Some(file) = &args.output {
        let paths = compare_paths(&paths_of(&args.a, &selected)?, &paths_of(&args.b, &selected)?);
        let (file_a, file_b) = (args.a.to_string_lossy(), args.b.to_string_lossy());
        to_file(file, &[&args.a, &args.b], |mut out| {
            Ok(calls_diff_svg(&mut out, [&file_a, &file_b], &paths)?)
        })?;
    }
    to_stdout(|mut out| {
        match args.json {
            true => calls_diff_json(&mut out, &comparison)?,
            false => calls_diff_text(&mut out, &comparison, args.all, &style_for_stdout())?,
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn paths_of(file: &Path, selected: &Threads) -> Result<Vec<ThreadCalls>, Failure> {
    let recording = Recording::open(file)?;
    called_threads(&recording, &known(selected, &recording, file)?)
}

fn known(selected: &Threads, recording: &Recording, file: &Path) -> Result<Vec<Thread>, Failure> {
    let mut threads = recording.threads()?;
    selected.retain(&mut threads, file)?;
    Ok(threads)
}

fn calls_of(file: &Path, selected: &Threads) -> Result<Vec<FunctionCalls>, Failure> {
    let recording = Recording::open(file)?;
    let functions = called_functions(&recording, &known(selected, &recording, file)?)?;
    if functions.is_empty() {
        return Err(Failure::failed(format!(
            "the recording {} has no calls, which need Intel PT: compare wall time, without --view",
            file.display()
        )));
    }
    Ok(functions)
}

fn collect(
    file: &Path,
    rules: &Rules,
    selected: &Threads,
    tree: &mut Tree,
) -> Result<(RecordingInfo, Side, Kinds), Failure> {
    let recording = open_recording(file, rules)?;
    let info = recording.info()?;
    let threads = known(selected, &recording, file)?;
    // It leaves out rows of other threads.
    let mut collector = Collector::new(&threads);
    for row in recording.ledger(..)? {
        collector.ledger(&row?);
    }
    for row in recording.samples(..)? {
        let row = row?;
        let meaning = recording.meaning(&row);
        collector.sample(&row, meaning.as_deref(), tree, |stack| recording.resolve(stack))?;
    }
    for stall in recording.stalls(&StallFilter::default())? {
        collector.stall(&stall?, tree);
    }
    let processes: HashMap<ThreadKey, &str> =
        threads.iter().map(|thread| (thread.info.key, thread.info.process.as_str())).collect();
    let mut kinds = Kinds::default();
    recording.each_span_cell(|spans| {
        let Some(process) = processes.get(&spans.thread) else { return };
        let kind =
            Kind { process: (*process).to_owned(), source: spans.source, kind: spans.kind.to_string() };
        kinds.add(kind, spans.second, spans.bucket, spans.cell);
    })?;
    let side = collector.finish(&info, tree);
    Ok((info, side, kinds))
}

/// Refuses a recording without waits beside one with some: all waits would have appeared, or gone.
fn check_waits([a, b]: [(&Path, &RecordingInfo, &Side); 2]) -> Result<(), Failure> {
    let (without, info) = match (a.2.has_waits(), b.2.has_waits()) {
        (false, true) => (a.0, a.1),
        (true, false) => (b.0, b.1),
        _ => return Ok(()),
    };
    // A thread that computes all the time has none.
    if info.is_live() {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{} knows running time alone, and no waits, which the other recording has: compare with --view on-cpu",
        without.display()
    )))
}

/// Refuses recordings that have nothing in common.
fn check(args: &DiffArgs, comparison: &Comparison) -> Result<(), Failure> {
    if comparison.matched.is_empty() {
        return Err(Failure::failed(format!(
            "{} and {} have no thread in common by the names of process and thread, the first has {}, the second {}: \
             compare recordings of the same program",
            args.a.display(),
            args.b.display(),
            names(&comparison.unmatched.only_a),
            names(&comparison.unmatched.only_b),
        )));
    }
    if comparison.parts.is_empty() {
        return Err(Failure::failed(format!(
            "neither {} nor {} has time in the {} view of the threads they have in common: try --view wall",
            args.a.display(),
            args.b.display(),
            comparison.view
        )));
    }
    Ok(())
}

fn names(rates: &[GroupRate]) -> String {
    if rates.is_empty() {
        return "none".into();
    }
    let name = |rate: &GroupRate| format!("{}/{}", rate.group.process, rate.group.thread);
    let mut names: Vec<String> = rates.iter().take(MAX_NAMES).map(name).collect();
    if rates.len() > MAX_NAMES {
        names.push(format!("{} more", rates.len() - MAX_NAMES));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_analysis::diff::Group;

    #[test]
    fn many_names_are_counted() {
        let rate = |number: usize| GroupRate {
            group: Group { process: "app".into(), thread: format!("w{number}") },
            threads: 1,
            running_ns: 0.0,
            late_ns: 0.0,
        };
        let rates: Vec<GroupRate> = (0..7).map(rate).collect();
        assert_eq!(names(&rates), "app/w0, app/w1, app/w2, app/w3, app/w4, 2 more");
        assert_eq!(names(&[]), "none");
    }
}
