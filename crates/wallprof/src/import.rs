// SPDX-License-Identifier: Apache-2.0
//! `wallprof import`: converts another profiler's recording.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use wallprof_analysis::Timepoint;
use wallprof_import::{ImportError, ImportOptions, Outcome, RecordingFacts, Sink, TraceLimits, TraceWindow};
use wallprof_model::profile::RecordingInfo;
use wallprof_model::{ClockMap, Event, Loss, MonoNs};
use wallprof_recording::{Recorder, RecordingStart, Summary, is_recording};
use wallprof_symbols::DebugFileServer;

use crate::additions;
use crate::args::MeaningArgs;
use crate::args::{DEFAULT_FILE, ImportArgs, ImportFormat};
use crate::cpu_list::cpus_from_option;
use crate::debug_downloads;
use crate::failure::{Exit, Failure, say};
use crate::output::is_same_file;
use crate::terminal::zone;

const NO_FILE: &str = "no file was given: give a perf.data, a text of perf script or - for standard input, or add to a recording \
     with --metrics, --marks or --spans FILE.csv";

/// Imports the file of `args`, or adds to a recording, or both.
pub fn run(args: &ImportArgs) -> Result<ExitCode, Failure> {
    let adds = [&args.metrics, &args.marks, &args.spans].iter().any(|files| !files.is_empty());
    let recording = match &args.file {
        Some(file) if adds && is_recording(file) => {
            check_only(file, &args.output)?;
            file
        }
        Some(file) => {
            import(file, args)?;
            &args.output
        }
        None if adds => &args.output,
        None => return Err(Failure::usage(NO_FILE)),
    };
    if adds {
        let files = additions::Files { metrics: &args.metrics, marks: &args.marks, spans: &args.spans };
        additions::add(recording, files)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses -o with another file than the recording that is added to.
fn check_only(file: &Path, output: &Path) -> Result<(), Failure> {
    match output == Path::new(DEFAULT_FILE) || output == file {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "{} is a recording, and {} is another file: give only the recording to add to",
            file.display(),
            output.display()
        ))),
    }
}

fn import(file: &Path, args: &ImportArgs) -> Result<(), Failure> {
    check_symfs(args.symfs.as_deref())?;
    let rules = MeaningArgs::default().rules()?;
    for input in std::iter::once(file).chain(args.more.iter().map(PathBuf::as_path)) {
        check_output(input, &args.output)?;
    }
    let downloads = debug_downloads::start();
    let options = ImportOptions {
        symfs: args.symfs.clone(),
        build_id_cache: build_id_cache(),
        trace: trace_limits(args)?,
        debug_server: downloads.clone().map(|downloads| downloads as Arc<dyn DebugFileServer>),
        ..ImportOptions::default()
    };
    let times = Times::from_args(args)?;
    let mut writer = Writer::new(file, &args.output, args.format, options.min_stall_ns, times);
    let imported = match &args.more[..] {
        [] => wallprof_import::import(file, &options, &mut writer),
        more => {
            let all: Vec<PathBuf> =
                std::iter::once(file).chain(more.iter().map(PathBuf::as_path)).map(PathBuf::from).collect();
            wallprof_import::import_scripts(&all, &mut writer)
        }
    };
    writer.clear_progress();
    if let Some(failure) = writer.failure.take() {
        return Err(failure);
    }
    let outcome = imported.map_err(failure_from_import)?;
    let summary = writer.finish(outcome.end)?;
    match summary {
        Some(_) if outcome.calls.is_some() && !outcome.accounted => {
            Err(Failure::new(Exit::NothingRecorded, nothing_decoded(&outcome, file)))
        }
        Some(summary) if outcome.threads > 0 => {
            crate::findings::store(&args.output, &rules);
            if let Some(downloads) = &downloads {
                debug_downloads::print_outcome(downloads, &args.output);
            }
            say(&done_line(&outcome, &summary, &args.output));
            Ok(())
        }
        _ => Err(Failure::new(Exit::NothingRecorded, nothing_recorded(&outcome, file))),
    }
}

/// Refuses a file whose first bytes say another format than the user gave.
fn check_format(given: Option<ImportFormat>, input: &Path, source: &str) -> Result<(), Failure> {
    let found = if source == "perf-script" { ImportFormat::PerfScript } else { ImportFormat::PerfData };
    let name = |format| match format {
        ImportFormat::PerfData => "perf.data",
        ImportFormat::PerfScript => "the text of `perf script`",
    };
    match given {
        Some(given) if given != found => Err(Failure::usage(format!(
            "{} is {}, not {} as --format says: leave --format out",
            shown(input),
            name(found),
            name(given)
        ))),
        _ => Ok(()),
    }
}

fn check_symfs(folder: Option<&Path>) -> Result<(), Failure> {
    match folder {
        Some(folder) if !folder.is_dir() => Err(Failure::usage(format!(
            "--symfs {} is not a folder: give the folder with the recorded machine's files",
            folder.display()
        ))),
        _ => Ok(()),
    }
}

fn check_output(input: &Path, output: &Path) -> Result<(), Failure> {
    match is_same_file(input, output) {
        true => {
            Err(Failure::usage(format!("-o {} is the input itself: give it another name", output.display())))
        }
        false => Ok(()),
    }
}

/// The default folder of perf's copies of binaries.
fn build_id_cache() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty())?;
    Some(PathBuf::from(home).join(".debug"))
}

fn failure_from_import(error: ImportError<wallprof_recording::Error>) -> Failure {
    Failure::failed(error)
}

fn trace_limits(args: &ImportArgs) -> Result<TraceLimits, Failure> {
    let cpus = args.cpus.as_deref().map(|list| cpus_from_option("-C", list)).transpose()?;
    Ok(TraceLimits { tids: args.tids.clone(), cpus: cpus.unwrap_or_default() })
}

/// The times to decode, as the user wrote them.
#[derive(Debug, Default)]
struct Times {
    from: Option<Timepoint>,
    to: Option<Timepoint>,
}

impl Times {
    fn from_args(args: &ImportArgs) -> Result<Self, Failure> {
        let point = |option, text: Option<&str>| {
            let wrong = |error| Failure::usage(format!("{option}: {error}"));
            text.map(Timepoint::parse).transpose().map_err(wrong)
        };
        Ok(Times { from: point("--from", args.from.as_deref())?, to: point("--to", args.to.as_deref())? })
    }

    /// The times in a recording with these facts.
    fn window(&self, facts: &RecordingFacts) -> Result<TraceWindow, Failure> {
        let clock = ClockMap::new(facts.clock.into_iter().collect());
        let info = RecordingInfo { start: facts.start, end: facts.start, clock, ..RecordingInfo::default() };
        let resolve = |point: &Option<Timepoint>| {
            point.as_ref().map(|point| point.resolve(&info, &zone())).transpose().map_err(Failure::usage)
        };
        Ok(TraceWindow { from: resolve(&self.from)?, to: resolve(&self.to)? })
    }
}

/// The recording in progress; created with the first event.
struct Writer<'a> {
    input: &'a Path,
    output: &'a Path,
    /// The format that the user gave.
    format: Option<ImportFormat>,
    min_stall_ns: u64,
    recorder: Option<Recorder>,
    times: Times,
    window: TraceWindow,
    /// The file has another format than the user gave, or the given times mean nothing in it.
    failure: Option<Failure>,
    terminal: bool,
    shown: bool,
}

impl<'a> Writer<'a> {
    fn new(
        input: &'a Path,
        output: &'a Path,
        format: Option<ImportFormat>,
        min_stall_ns: u64,
        times: Times,
    ) -> Self {
        Writer {
            input,
            output,
            format,
            min_stall_ns,
            recorder: None,
            times,
            window: TraceWindow::default(),
            failure: None,
            terminal: io::stderr().is_terminal(),
            shown: false,
        }
    }

    fn finish(self, end: MonoNs) -> Result<Option<Summary>, Failure> {
        Ok(self.recorder.map(|recorder| recorder.finish(end)).transpose()?)
    }

    fn clear_progress(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Sink for Writer<'_> {
    type Error = wallprof_recording::Error;

    fn start(&mut self, facts: &RecordingFacts) -> Result<(), Self::Error> {
        if let Err(failure) = check_format(self.format, self.input, facts.source) {
            self.failure = Some(failure);
            return Ok(());
        }
        let start = RecordingStart {
            start: facts.start,
            clock: facts.clock,
            source: facts.source.into(),
            kernel: facts.kernel.clone(),
            arch: facts.arch.clone(),
            cpus: facts.cpus,
            hostname: facts.hostname.clone(),
            command: facts.command.clone(),
            min_stall_ns: self.min_stall_ns,
            ..RecordingStart::default()
        };
        self.recorder = Some(Recorder::create(self.output, &start)?);
        match self.times.window(facts) {
            Ok(window) => self.window = window,
            Err(failure) => self.failure = Some(failure),
        }
        Ok(())
    }

    fn window(&mut self) -> TraceWindow {
        self.window
    }

    fn take(&mut self, event: Event) -> Result<(), Self::Error> {
        self.recorder.as_mut().map_or(Ok(()), |recorder| recorder.take(event))
    }

    fn settled(&mut self, until: MonoNs) -> Result<(), Self::Error> {
        self.recorder.as_mut().map_or(Ok(()), |recorder| recorder.commit(until))
    }

    fn progress(&mut self, bytes: u64, of: Option<u64>) {
        if !self.terminal {
            return;
        }
        self.shown = true;
        let _ = write!(io::stderr(), "\r\x1b[K{}", progress_line(bytes, of));
    }
}

/// `12.0 of 180.5 MiB read`
fn progress_line(bytes: u64, of: Option<u64>) -> String {
    let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
    match of {
        Some(of) => format!("{:.1} of {:.1} MiB read", mib(bytes), mib(of)),
        None => format!("{:.1} MiB read", mib(bytes)),
    }
}

/// `1 sample`, `2 samples`
fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Sums up the imported data and the losses.
fn done_line(outcome: &Outcome, summary: &Summary, output: &Path) -> String {
    let what = match outcome.calls {
        Some(calls) => counted(calls, "call"),
        None => counted(outcome.samples, "sample"),
    };
    let mut parts = vec![what, counted(summary.threads, "thread")];
    if outcome.idle_samples > 0 {
        parts.push(format!("{} of the idle task left out", counted(outcome.idle_samples, "sample")));
    }
    let stacks = &outcome.stacks;
    let incomplete: Vec<_> =
        stacks.incomplete.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    if outcome.calls.is_none() && !incomplete.is_empty() {
        let ends = incomplete.join(", ");
        parts.push(format!("{} of {} user stacks complete ({ends})", stacks.complete, stacks.taken));
    }
    let lost = lost(outcome);
    if !lost.is_empty() {
        parts.push(format!("losses: {}", lost.join(", ")));
    }
    format!("imported {}: `wallprof report {}` shows it", parts.join("; "), output.display())
}

/// The error for a file without threads.
fn nothing_recorded(outcome: &Outcome, file: &Path) -> String {
    let is_lost = |loss: Loss| outcome.losses.contains_key(loss.name());
    let position = outcome.broken_at.unwrap_or_default();
    let idle = counted(outcome.idle_samples, "sample");
    let advice = match outcome.calls {
        Some(_) => "none of its branches could be read: import the perf.data",
        None if is_lost(Loss::InputTruncated) => {
            &format!("it is cut short in the record at byte {position}: copy it again, or record again")
        }
        None if is_lost(Loss::InputDamaged) => {
            &format!("it is damaged at byte {position}: copy it again, or record again")
        }
        None if outcome.idle_samples > 0 => {
            &format!("it has only {idle} of the idle task: record while the program runs")
        }
        None => "record while the program runs",
    };
    format!("nothing is recorded in {}: {advice}", shown(file))
}

/// The error for a trace of which nothing can be decoded, in a file without other data.
fn nothing_decoded(outcome: &Outcome, file: &Path) -> String {
    let what = match &lost(outcome)[..] {
        [] => String::new(),
        lost => format!(" ({})", lost.join(", ")),
    };
    let files = outcome.losses.contains_key("binaries_missing");
    let advice = if files { "give the recorded programs with --symfs DIR" } else { "record it again" };
    format!("nothing is recorded in {}: no part of its trace can be decoded{what}: {advice}", shown(file))
}

fn lost(outcome: &Outcome) -> Vec<String> {
    outcome.losses.iter().map(|(reason, count)| format!("{count} {reason}")).collect()
}

fn shown(input: &Path) -> String {
    if input == Path::new("-") { "standard input".into() } else { input.display().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_line_sums_up_data_and_losses() {
        let mut outcome = Outcome { samples: 12, ..Outcome::default() };
        let summary = Summary { threads: 1, ..Summary::default() };
        let line = done_line(&outcome, &summary, Path::new("a.db"));
        assert_eq!(line, "imported 12 samples; 1 thread: `wallprof report a.db` shows it");
        outcome.calls = Some(1);
        let line = done_line(&outcome, &summary, Path::new("a.db"));
        assert_eq!(line, "imported 1 call; 1 thread: `wallprof report a.db` shows it");
        outcome.calls = None;
        outcome.losses.insert("binaries_missing", 2);
        outcome.stacks.taken = 9;
        outcome.stacks.complete = 8;
        outcome.stacks.incomplete.insert("read_failed", 1);
        let line = done_line(&outcome, &summary, Path::new("a.db"));
        assert!(
            line.contains("8 of 9 user stacks complete (1 read_failed); losses: 2 binaries_missing:"),
            "{line}"
        );
    }

    #[test]
    fn samples_of_the_idle_task_are_counted_apart() {
        let outcome = Outcome { samples: 161, idle_samples: 4_780, ..Outcome::default() };
        let summary = Summary { threads: 3, ..Summary::default() };
        let line = done_line(&outcome, &summary, Path::new("a.db"));
        let expected = "imported 161 samples; 3 threads; 4780 samples of the idle task left out:";
        assert!(line.starts_with(expected), "{line}");
        let idle = Outcome { idle_samples: 1, ..Outcome::default() };
        let text = nothing_recorded(&idle, Path::new("a.data"));
        assert!(text.contains("it has only 1 sample of the idle task: record while"), "{text}");
    }

    #[test]
    fn file_that_breaks_off_before_its_first_sample_names_the_place() {
        let broken = |loss: Loss| Outcome {
            losses: [(loss.name(), 1)].into(),
            broken_at: Some(160),
            ..Outcome::default()
        };
        let text = |outcome| nothing_recorded(&outcome, Path::new("a.data"));
        let cut = text(broken(Loss::InputTruncated));
        assert!(cut.contains("a.data: it is cut short in the record at byte 160: copy"), "{cut}");
        let damaged = text(broken(Loss::InputDamaged));
        assert!(damaged.contains("a.data: it is damaged at byte 160: copy it again"), "{damaged}");
    }

    #[test]
    fn trace_without_readable_branches_is_sent_back_to_its_perf_data() {
        let mut outcome = Outcome::default();
        let text = nothing_recorded(&outcome, Path::new("a.data"));
        assert_eq!(text, "nothing is recorded in a.data: record while the program runs");
        outcome.calls = Some(0);
        assert!(nothing_recorded(&outcome, Path::new("a.txt")).ends_with("import the perf.data"));
    }

    #[test]
    fn undecodable_trace_is_an_error_with_its_reason() {
        let mut outcome = Outcome { calls: Some(0), threads: 1, ..Outcome::default() };
        let text = nothing_decoded(&outcome, Path::new("a.data"));
        let expected = "nothing is recorded in a.data: no part of its trace can be decoded: record it again";
        assert_eq!(text, expected);
        outcome.losses.insert("binaries_missing", 2);
        let text = nothing_decoded(&outcome, Path::new("a.data"));
        assert!(
            text.ends_with("(2 binaries_missing): give the recorded programs with --symfs DIR"),
            "{text}"
        );
    }

    #[test]
    fn progress_shows_the_total_if_it_is_known() {
        assert_eq!(progress_line(1 << 20, None), "1.0 MiB read");
        assert_eq!(progress_line(1 << 19, Some(3 << 20)), "0.5 of 3.0 MiB read");
    }

    #[test]
    fn times_count_from_the_start_of_the_recording() {
        let facts = RecordingFacts { start: MonoNs(5_000), ..RecordingFacts::default() };
        let times = |from: &str| Times { from: Timepoint::parse(from).ok(), to: None };
        let window = times("+2us").window(&facts).unwrap();
        assert_eq!((window.from, window.to), (Some(MonoNs(7_000)), None));
        assert_eq!(times("12:30").window(&facts).unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn a_file_of_another_format_is_refused() {
        let check = |given, source| check_format(given, Path::new("a.x"), source);
        for source in ["perf.data", "intel-pt"] {
            assert!(check(None, source).is_ok());
            assert!(check(Some(ImportFormat::PerfData), source).is_ok());
            assert_eq!(check(Some(ImportFormat::PerfScript), source).unwrap_err().exit, Exit::Usage);
        }
        assert!(check(Some(ImportFormat::PerfScript), "perf-script").is_ok());
        let failure = check(Some(ImportFormat::PerfData), "perf-script").unwrap_err();
        let expected = "a.x is the text of `perf script`, not perf.data ";
        assert!(failure.message.starts_with(expected), "{failure:?}");
    }

    #[test]
    fn nothing_is_created_for_a_file_of_another_format() {
        let folder = tempfile::tempdir().unwrap();
        let (text, output) = (folder.path().join("script.txt"), folder.path().join("x.db"));
        let calls = "app 5/5 [000] 7.000000100:   call   1010 a+0x10 (/bin/app) => 2000 b+0x0 (/bin/app)\n\
            app 5/5 [000] 7.000000150:   return   2020 b+0x20 (/bin/app) => 1015 a+0x15 (/bin/app)\n";
        std::fs::write(&text, calls).unwrap();
        let import = |format| {
            let args = ImportArgs {
                file: Some(text.clone()),
                format,
                output: output.clone(),
                ..ImportArgs::default()
            };
            run(&args)
        };
        let failure = import(Some(ImportFormat::PerfData)).unwrap_err();
        assert!(failure.exit == Exit::Usage && !output.exists(), "{failure:?}");
        assert!(import(Some(ImportFormat::PerfScript)).is_ok() && output.exists());
    }
}
