// SPDX-License-Identifier: Apache-2.0
//! Turns `perf script`'s output of Intel PT into calls. Each line is a call, a return or another branch. Text
//! of ordinary samples goes to [`samples`].
//!
//! Files are divided into blocks of whole lines, which are parsed on all CPUs. Only the calls that are open
//! at the ends of a block depend on other blocks. Blocks of several files are merged by time, so that a
//! thread's calls are complete whatever CPU it was on. The line of a call lacks the return address. A return
//! belongs to a call if it lands at most 15 bytes behind it.

mod flags;
mod frames;
mod input;
mod line;
mod merge;
mod names;
mod piece;
mod read;
pub(crate) mod samples;

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use wallprof_intel_pt::TimeConv;
use wallprof_model::{Event, Loss, MonoNs, ThreadKey};

use crate::calls::emit_calls;
use crate::error::{ImportError, Refusal};
use crate::format::header::{HeaderError, Section, SectionReader, kind_from_bytes};
use crate::input::open_input;
use crate::options::{Outcome, RecordingFacts};
use crate::sink::Sink;
use line::Line;
use piece::Counts;
use read::{Script, Text};

/// The size of the start by which a text is recognised.
const START: u64 = 256 << 10;

/// The recording's source.
const SOURCE: &str = "perf-script";
/// The resolution of times in microseconds.
const COARSE_NS: u64 = 1_000;

/// What `perf script` printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Branches of a hardware trace, maybe with samples among them.
    Trace,
    Samples,
}

/// What a text with this start is.
fn kind(start: &[u8]) -> Option<Kind> {
    let is_trace = |line| matches!(Line::parse(line), Line::Error(_)) || samples::is_branch(line);
    match start.split(|byte| *byte == b'\n').any(is_trace) {
        true => Some(Kind::Trace),
        false => samples::is_samples(start).then_some(Kind::Samples),
    }
}

/// Whether branches come in the rest of a file, behind many samples. The rest of a pipe is not known.
fn has_late_branches(file: &File) -> io::Result<bool> {
    if !file.metadata()?.is_file() {
        return Ok(false);
    }
    let mut place: &File = file;
    let offset = place.stream_position()?;
    let section = Section { offset, size: u64::MAX };
    let mut rest = BufReader::with_capacity(START as usize, SectionReader { file, section });
    let mut line = Vec::new();
    while (&mut rest).take(START).read_until(b'\n', &mut line)? > 0 {
        if samples::is_branch(&line) {
            return Ok(true);
        }
        line.clear();
    }
    Ok(false)
}

/// A text to import.
struct Opened {
    text: Text<'static>,
    kind: Kind,
    start: Vec<u8>,
}

/// Imports texts of `perf script` of one recording. Each may have one CPU, or a part of the time. `-` is
/// standard input.
pub fn import_scripts<S: Sink>(paths: &[PathBuf], sink: &mut S) -> Result<Outcome, ImportError<S::Error>> {
    let inputs: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    let mut texts = Vec::new();
    let mut total = Some(0u64);
    for input in &inputs {
        let file = open(input)?;
        total = total.zip(size(&file)).map(|(sum, size)| sum.saturating_add(size));
        texts.push(open_text(input, Vec::new(), file)?);
    }
    import(&inputs, texts, total, sink)
}

/// Imports a text whose `start` was read already.
pub(crate) fn import_started<S: Sink>(
    input: &Path,
    start: Vec<u8>,
    file: File,
    sink: &mut S,
) -> Result<Outcome, ImportError<S::Error>> {
    let total = size(&file);
    let text = open_text(input, start, file)?;
    import(&[input], vec![text], total, sink)
}

fn open<E>(input: &Path) -> Result<File, ImportError<E>> {
    if input.is_dir() {
        return Err(ImportError::refused(input, Refusal::Folder));
    }
    let opened = match input == Path::new("-") {
        true => io::stdin().as_fd().try_clone_to_owned().map(File::from),
        false => open_input(input),
    };
    opened.map_err(|cause| ImportError::unreadable(input, cause))
}

fn size(file: &File) -> Option<u64> {
    file.metadata().ok().filter(Metadata::is_file).map(|metadata| metadata.len())
}

fn open_text<E>(input: &Path, mut start: Vec<u8>, mut file: File) -> Result<Opened, ImportError<E>> {
    let unreadable = |cause| ImportError::unreadable(input, cause);
    file.by_ref().take(START).read_to_end(&mut start).map_err(unreadable)?;
    if start.first_chunk().is_some_and(|start| kind_from_bytes(start) != Err(HeaderError::NotPerfData)) {
        return Err(ImportError::refused(input, Refusal::PerfDataAmongTexts));
    }
    let kind = match kind(&start) {
        Some(Kind::Samples) if has_late_branches(&file).map_err(unreadable)? => Kind::Trace,
        Some(kind) => kind,
        None => return Err(ImportError::refused(input, Refusal::NotPerfData)),
    };
    Ok(Opened { text: Box::new(Cursor::new(start.clone()).chain(file)), kind, start })
}

/// Texts of samples are read as those of a trace if any of them is one: their lines are counted then.
fn import<S: Sink>(
    inputs: &[&Path],
    texts: Vec<Opened>,
    total: Option<u64>,
    sink: &mut S,
) -> Result<Outcome, ImportError<S::Error>> {
    let trace = texts.iter().position(|text| text.kind == Kind::Trace);
    let start = texts.first().map(|text| text.start.clone()).unwrap_or_default();
    let texts = texts.into_iter().map(|text| text.text).collect();
    match trace {
        Some(number) => import_trace(inputs, number, texts, total, sink),
        None => samples::import(inputs, texts, &start, total, sink),
    }
}

/// `first`: the number of the first text with branches.
fn import_trace<S: Sink>(
    inputs: &[&Path],
    first: usize,
    texts: Vec<Text<'_>>,
    total: Option<u64>,
    sink: &mut S,
) -> Result<Outcome, ImportError<S::Error>> {
    let script = read::read(texts, &mut |bytes| sink.progress(bytes, total))
        .map_err(|(index, cause)| ImportError::unreadable(inputs[index], cause))?;
    let Counts { branches, unflagged, untargeted, .. } = script.counts;
    if branches == 0 && unflagged.max(untargeted) > 0 {
        let without =
            if untargeted > unflagged { Refusal::ScriptWithoutTargets } else { Refusal::ScriptWithoutFlags };
        return Err(ImportError::refused(inputs[first], without));
    }
    emit(&script, sink).map_err(ImportError::Sink)
}

fn emit<S: Sink>(script: &Script, sink: &mut S) -> Result<Outcome, S::Error> {
    let times = script.threads.iter().map(|thread| (thread.calls.first, thread.calls.last));
    let (start, end) =
        times.fold((u64::MAX, 0), |(start, end), (first, last)| (start.min(first), end.max(last)));
    let mut outcome = Outcome {
        end: MonoNs(end),
        threads: script.threads.len() as u64,
        accounted: !script.threads.is_empty(),
        calls: Some(0),
        losses: losses(script),
        ..Outcome::default()
    };
    if script.threads.is_empty() {
        return Ok(outcome);
    }
    sink.start(&facts(script, MonoNs(start)))?;
    if script.counts.coarse {
        sink.take(Event::CallResolution(COARSE_NS))?;
    }
    let mut frames = frames::Frames::new(&script.functions);
    let mut out = Vec::new();
    let mut calls = 0u64;
    for (number, thread) in script.threads.iter().enumerate() {
        let key = ThreadKey(number as u32);
        frames::emit_thread(key, thread, &mut out);
        out.drain(..).try_for_each(|event| sink.take(event))?;
        let name = |frame, out: &mut Vec<Event>| Some(frames.of(frame, out));
        let deliver = |out: &mut Vec<Event>| out.drain(..).try_for_each(|event| sink.take(event));
        calls += emit_calls((key, &thread.calls), TimeConv::NANOSECONDS, &mut out, name, deliver)?;
        sink.settled(MonoNs(end))?;
    }
    for (&reason, &count) in &outcome.losses {
        sink.take(Event::Loss { reason: reason.to_owned(), count })?;
    }
    outcome.calls = Some(calls);
    Ok(outcome)
}

fn facts(script: &Script, start: MonoNs) -> RecordingFacts {
    let comm = script.threads.iter().map(|thread| &thread.identity.comm).find(|comm| !comm.is_empty());
    RecordingFacts {
        start,
        clock: None,
        kernel: String::new(),
        // The only architecture with Intel PT.
        arch: "x86_64".to_owned(),
        cpus: script.cpus,
        hostname: String::new(),
        command: comm.map(|comm| String::from_utf8_lossy(comm).into_owned()).unwrap_or_default(),
        source: SOURCE,
    }
}

fn losses(script: &Script) -> BTreeMap<&'static str, u64> {
    let others = [
        (Loss::BranchesWithoutKind, script.counts.unflagged),
        (Loss::BranchesWithoutTarget, script.counts.untargeted),
        (Loss::SamplesAmongBranches, script.counts.samples),
        (Loss::PrintedLinesUnread, script.counts.unread),
        (Loss::FunctionsOrThreadsBeyondLimit, script.refused),
        (Loss::CallPathsFull, script.folded()),
        (Loss::CallLatenciesCoarse, script.coarse_latencies),
    ];
    let all = script.counts.gaps.losses().chain(others).filter(|(_, count)| *count > 0);
    all.map(|(loss, count)| (loss.name(), count)).collect()
}

#[cfg(test)]
mod tests;
