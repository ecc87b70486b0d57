// SPDX-License-Identifier: Apache-2.0
//! `wallprof runs`: many recordings: listed, compared by groups, drawn over versions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use wallprof_analysis::runs::{Run, RunCollector, RunGroup, compare_groups};
use wallprof_findings::Collector;
use wallprof_meaning::waits::Rules;
use wallprof_model::label_from_text;
use wallprof_recording::is_recording;
use wallprof_views::{
    ComparedGroup, ComparedRuns, FoundRun, bmf_json, compared_json, compared_text, runs_json, runs_text,
    trend_svg,
};

use crate::args::RunsArgs;
use crate::failure::{Failure, say};
use crate::findings::Background;
use crate::meanings::open_recording;
use crate::output::{check_picture, to_file, to_stdout};
use crate::terminal::style_for_stdout;

/// Recordings read of one folder: the first ones by path.
const MOST_RUNS: usize = 10_000;
/// Folders within folders that are searched.
const MOST_DEPTH: usize = 8;

/// Runs the command. The options are checked before the folder is read.
pub fn run(args: &RunsArgs) -> Result<ExitCode, Failure> {
    let rules = args.meaning.rules()?;
    let wanted = args.only.iter().map(|text| {
        label_from_text(text)
            .map_err(|_| Failure::usage(format!("--only takes KEY=VALUE such as version=1.4, not `{text}`")))
    });
    let wanted: Vec<(String, String)> = wanted.collect::<Result<_, _>>()?;
    if args.output.is_some() && args.trend.is_none() {
        return Err(Failure::usage("-o draws figures over versions: give --trend KEY with it"));
    }
    if let Some(file) = &args.output {
        check_picture(file, &[])?;
    }
    let mut runs = read_all(&args.folder, &rules)?;
    runs.retain(|found| wanted.iter().all(|(key, value)| found.run.labels.get(key) == Some(value)));
    if runs.is_empty() {
        return Err(Failure::failed(format!(
            "there is no recording {}in {}: record with -o {}/NAME.db",
            if wanted.is_empty() { "" } else { "with these labels " },
            args.folder.display(),
            args.folder.display()
        )));
    }
    runs.sort_by(|x, y| (x.run.start, &x.file).cmp(&(y.run.start, &y.file)));
    match (&args.compare, &args.trend) {
        (Some(key), _) => compare(args, key, &runs),
        (None, Some(key)) => trend(args, key, &runs),
        (None, None) => to_stdout(|mut out| {
            match args.json {
                true => runs_json(&mut out, &runs)?,
                false => runs_text(&mut out, &runs, &style_for_stdout())?,
            }
            Ok(())
        }),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn compare(args: &RunsArgs, key: &str, runs: &[FoundRun]) -> Result<(), Failure> {
    let groups = groups(key, runs)?;
    let (first, others) = groups.split_first().ok_or_else(|| no_label(key, runs))?;
    if others.is_empty() {
        return Err(Failure::failed(format!(
            "all recordings with the label {key} have the value `{}`: compare needs runs with another one",
            first.value
        )));
    }
    let others: Vec<ComparedGroup<'_>> = others
        .iter()
        .map(|group| ComparedGroup { group, comparison: compare_groups(&first.runs, &group.runs) })
        .collect();
    if let Some(other) = others.iter().find(|other| other.comparison.matched == 0) {
        return Err(Failure::failed(format!(
            "the runs of {key}={} and {key}={} have no thread in common by the names of process and thread: compare \
             recordings of the same program",
            first.value, other.group.value
        )));
    }
    let labelled: usize = groups.iter().map(|group| group.runs.len()).sum();
    let compared = ComparedRuns { key, first, others, left_out: runs.len() - labelled };
    to_stdout(|mut out| {
        match args.json {
            true => compared_json(&mut out, &compared)?,
            false => compared_text(&mut out, &compared, &style_for_stdout())?,
        }
        Ok(())
    })
}

/// A picture of all values, and the figures of the newest one for Bencher, which is given one version at a time.
fn trend(args: &RunsArgs, key: &str, runs: &[FoundRun]) -> Result<(), Failure> {
    let groups = groups(key, runs)?;
    let newest = groups.last().ok_or_else(|| no_label(key, runs))?;
    let default = PathBuf::from("wallprof-trend.svg");
    let file = args.output.as_ref().unwrap_or(&default);
    let recordings: Vec<PathBuf> = runs.iter().map(|found| args.folder.join(&found.file)).collect();
    let recordings: Vec<&Path> = recordings.iter().map(PathBuf::as_path).collect();
    if args.output.is_some() || !args.json {
        to_file(file, &recordings, |mut out| Ok(trend_svg(&mut out, key, &groups)?))?;
    }
    match args.json {
        true => to_stdout(|mut out| Ok(bmf_json(&mut out, newest)?)),
        false => {
            say(&format!("{} has the figures of {} values of {key}", file.display(), groups.len()));
            Ok(())
        }
    }
}

/// The runs by the values of a label, the earliest value first.
fn groups<'r>(key: &str, runs: &'r [FoundRun]) -> Result<Vec<RunGroup<'r>>, Failure> {
    let mut groups: Vec<RunGroup<'r>> = Vec::new();
    for FoundRun { run, .. } in runs {
        let Some(value) = run.labels.get(key) else { continue };
        match groups.iter_mut().find(|group| group.value == value) {
            Some(group) => group.runs.push(run),
            None => groups.push(RunGroup { value, runs: vec![run] }),
        }
    }
    if groups.is_empty() { Err(no_label(key, runs)) } else { Ok(groups) }
}

fn no_label(key: &str, runs: &[FoundRun]) -> Failure {
    let mut known: Vec<&str> =
        runs.iter().flat_map(|found| found.run.labels.keys()).map(String::as_str).collect();
    known.sort_unstable();
    known.dedup();
    let known = if known.is_empty() { "no label".into() } else { format!("the labels {}", known.join(", ")) };
    Failure::failed(format!(
        "no recording has the label {key}, they have {known}: record with --label {key}=VALUE"
    ))
}

/// Reads every recording below the folder. One that cannot be read is named and left out.
fn read_all(folder: &Path, rules: &Rules) -> Result<Vec<FoundRun>, Failure> {
    let mut files = Vec::new();
    find(folder, MOST_DEPTH, &mut files).map_err(|error| {
        Failure::failed(format!(
            "cannot read the folder {}: {error}: give one with recordings",
            folder.display()
        ))
    })?;
    files.sort();
    if files.len() > MOST_RUNS {
        say(&format!("{} recordings are too many: only the first {MOST_RUNS} are read", files.len()));
        files.truncate(MOST_RUNS);
    }
    let (mut runs, mut failures) = (Vec::new(), Vec::new());
    for file in files {
        match read(&file, rules) {
            Ok(run) => {
                let name = file.strip_prefix(folder).unwrap_or(&file).to_string_lossy().into_owned();
                runs.push(FoundRun { file: name, run });
            }
            Err(failure) => failures.push(failure),
        }
    }
    if runs.is_empty() && !failures.is_empty() {
        return Err(failures.swap_remove(0));
    }
    failures.iter().for_each(|failure| say(&format!("left out: {}", failure.message)));
    Ok(runs)
}

fn find(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (kind, path) = (entry.file_type()?, entry.path());
        if kind.is_dir() && depth > 0 {
            if let Err(error) = find(&path, depth - 1, files) {
                say(&format!("cannot read the folder {}: {error}: left out", path.display()));
            }
        } else if kind.is_file() && is_recording(&path) {
            files.push(path);
        }
    }
    Ok(())
}

/// The figures of one recording.
pub fn read(file: &Path, rules: &Rules) -> Result<Run, Failure> {
    let recording = open_recording(file, rules)?;
    let mut collector = RunCollector::new(recording.info()?.min_stall_ns);
    let mut stalls = Collector::default();
    recording.each_stall(|stall| {
        collector.stall(&stall);
        stalls.add(&stall);
    })?;
    let background = Background::read(&recording)?;
    let findings = background.findings(stalls);
    collector.spans(&recording.span_sums()?);
    Ok(collector.finish(&background.info, &background.threads, &findings))
}
