// SPDX-License-Identifier: Apache-2.0
//! The weighted stacks of a selected part of a recording.

use std::collections::HashSet;
use std::ops::{Bound, Range};
use std::path::Path;

use wallprof_analysis::weights::{CallNames, Gather, Side, View, Weights, threads_within, weights_of_calls};
use wallprof_analysis::{Timepoint, Zone};
use wallprof_meaning::waits::Rules;
use wallprof_model::profile::{RecordingInfo, Thread};
use wallprof_model::{EpochNs, EpochSecond, MonoNs, ThreadCalls, ThreadKey};
use wallprof_recording::{Recording, StallFilter};

use crate::args::SelectionArgs;
use crate::failure::{Exit, Failure};
use crate::meanings::open_recording;
use crate::threads::{Threads, listed, no_container};

const SECOND_NS: u64 = 1_000_000_000;

/// Functions of all call paths, each path from its root on: 256 MiB as a picture holds them. A recursion of
/// 10,000 calls has 50 million.
const MOST_CALL_STEPS: u64 = 1 << 26;

/// The options, read but not yet applied to a recording.
pub struct Selection {
    view: View,
    pub side: Side,
    threads: Threads,
    from: Option<Timepoint>,
    to: Option<Timepoint>,
    call_names: CallNames,
    rules: Rules,
}

/// The selected part of a recording.
pub struct Selected {
    pub info: RecordingInfo,
    pub weights: Weights,
    /// Whole seconds of the recording.
    pub range: Range<MonoNs>,
    /// A note for the user if the range is longer than the requested one.
    pub note: Option<String>,
}

impl Selection {
    /// # Errors
    /// An option with a wrong value, by name.
    pub fn from_args(args: &SelectionArgs) -> Result<Self, Failure> {
        let side = match (args.user, args.kernel) {
            (true, _) => Side::User,
            (_, true) => Side::Kernel,
            _ => Side::Both,
        };
        let threads = Threads::from_args(args.thread.as_deref(), args.container.as_deref())?;
        Ok(Selection {
            view: args.view.clone(),
            side,
            threads,
            from: None,
            to: None,
            call_names: CallNames::Counted,
            rules: args.meaning.rules()?,
        })
    }

    /// Limits the selection to a part of the recording's time.
    pub fn between(self, from: Option<&str>, to: Option<&str>) -> Result<Self, Failure> {
        let point = |option, text: Option<&str>| {
            text.map(Timepoint::parse).transpose().map_err(|error| usage(option, error))
        };
        Ok(Selection { from: point("--from", from)?, to: point("--to", to)?, ..self })
    }

    /// The glob of --thread, as the user wrote it.
    pub fn thread_glob(&self) -> Option<&str> {
        self.threads.name_glob()
    }

    /// Reads the selected part, which is not empty.
    pub fn read(&self, file: &Path, zone: &Zone) -> Result<Selected, Failure> {
        let recording = match self.view.is_time() {
            true => open_recording(file, &self.rules)?,
            false => Recording::open(file)?,
        };
        let info = recording.info()?;
        self.check_event(&info, file)?;
        let requested = self.requested(&info, zone, file)?;
        if self.view == View::Calls {
            return self.read_calls(&recording, info, file);
        }
        let range = whole_seconds(&info, &requested);
        let seconds = seconds(&info, &range);
        let threads = threads_within(recording.threads()?, recording.ledger(seconds)?)?;
        self.check_threads(&info, &threads, file)?;
        let selected = |thread: &Thread| self.has_part(thread) && self.matches(thread);
        let mut gather = Gather::new(self.view.clone(), self.side, &info.events, &threads, selected);
        for sample in recording.samples(seconds)? {
            let sample = sample?;
            gather.add(&sample, recording.meaning(&sample), |stack| recording.resolve(stack))?;
        }
        if self.view.is_time() {
            let keys = threads.iter().filter(|thread| selected(thread)).map(|thread| thread.info.key);
            add_waits(&mut gather, &recording, &range, keys.collect())?;
        }
        let weights = gather.finish();
        if weights.stacks.is_empty() {
            return Err(self.nothing(file));
        }
        let note = note(&info, zone, &requested, &range);
        Ok(Selected { info, weights, range, note })
    }

    /// The selected threads of a recording whose waits have meanings.
    pub fn open(&self, file: &Path) -> Result<(Recording, Vec<Thread>), Failure> {
        let recording = open_recording(file, &self.rules)?;
        let mut threads = recording.threads()?;
        self.check_threads(&recording.info()?, &threads, file)?;
        threads.retain(|thread| self.matches(thread));
        Ok((recording, threads))
    }

    pub fn is_of_wall_time(&self) -> bool {
        self.view == View::Wall
    }

    /// Reads the calls, which are counted over the whole recording.
    fn read_calls(
        &self,
        recording: &Recording,
        info: RecordingInfo,
        file: &Path,
    ) -> Result<Selected, Failure> {
        if self.from.is_some() || self.to.is_some() {
            return Err(Failure::usage(
                "--view calls counts over the whole recording: give --from and --to to wallprof import",
            ));
        }
        let threads = recording.threads()?;
        let with_calls = recording.threads_with_calls()?;
        if with_calls.is_empty() {
            return Err(Failure::failed(format!(
                "the recording {} has no calls, which need Intel PT: use --view wall",
                file.display()
            )));
        }
        self.check_threads(&info, &threads, file)?;
        let mut calls = Vec::new();
        let mut steps = 0u64;
        for thread in threads.iter().filter(|thread| self.matches(thread)) {
            if with_calls.contains(&thread.info.key) {
                let of_thread = recording.calls(thread.info.key)?;
                steps = steps.saturating_add(call_steps(&of_thread));
                if steps > MOST_CALL_STEPS {
                    return Err(too_deep(file));
                }
                calls.push((thread, of_thread));
            }
        }
        let weights = weights_of_calls(&calls, self.side, self.call_names);
        if weights.stacks.is_empty() {
            return Err(self.nothing(file));
        }
        let range = info.start..info.end;
        Ok(Selected { info, weights, range, note: None })
    }

    /// Sets the form of the frames' names in the calls view; the default is with their counts.
    pub fn naming_calls(self, call_names: CallNames) -> Self {
        Selection { call_names, ..self }
    }

    fn matches(&self, thread: &Thread) -> bool {
        self.threads.matches(&thread.info)
    }

    /// Whether the view may show the thread: it has time, or counts. One that was seen at one instant only has
    /// counts and no time.
    fn has_part(&self, thread: &Thread) -> bool {
        thread.ledger.wall_ns > 0 || matches!(self.view, View::Event(_))
    }

    fn check_event(&self, info: &RecordingInfo, file: &Path) -> Result<(), Failure> {
        let View::Event(event) = &self.view else { return Ok(()) };
        let file = file.display();
        if info.events.contains(event) {
            return Ok(());
        }
        Err(Failure::failed(if info.events.is_empty() {
            format!("the recording {file} has no events to count: record them with -e {event}")
        } else {
            let events = listed(info.events.iter().map(String::as_str));
            format!("the recording {file} has no event `{event}`: it has {events}")
        }))
    }

    fn check_threads(&self, info: &RecordingInfo, threads: &[Thread], place: &Path) -> Result<(), Failure> {
        let file = place.display();
        if !threads.iter().any(|thread| self.has_part(thread)) {
            return Err(self.no_time(info, place));
        }
        let infos = || threads.iter().map(|thread| &thread.info);
        if infos().any(|thread| self.threads.matches(thread)) {
            return Ok(());
        }
        Err(Failure::failed(match (self.threads.name_glob(), self.threads.container_glob()) {
            (Some(glob), _) if !infos().any(|thread| self.threads.has_name(thread)) => {
                let names = listed(infos().map(|thread| thread.comm.as_str()));
                format!("no thread in {file} is named `{glob}`: there are {names}")
            }
            (_, Some(_)) if !infos().any(|thread| self.threads.is_in_container(thread)) => {
                no_container(&self.threads, infos(), place)
            }
            _ => format!("no thread in {file} matches both --thread and --container: give one of them"),
        }))
    }

    /// The requested time, within the recording.
    fn requested(&self, info: &RecordingInfo, zone: &Zone, file: &Path) -> Result<Range<MonoNs>, Failure> {
        let resolve = |option, point: &Option<Timepoint>| {
            point
                .as_ref()
                .map(|point| point.resolve(info, zone).map_err(|error| usage(option, error)))
                .transpose()
        };
        let (from, to) = (resolve("--from", &self.from)?, resolve("--to", &self.to)?);
        if let (Some(from), Some(to)) = (from, to)
            && from >= to
        {
            return Err(Failure::usage("--from is not before --to: give the earlier time to --from"));
        }
        if from.is_some_and(|from| from >= info.end) || to.is_some_and(|to| to <= info.start) {
            return Err(outside(info, zone, file));
        }
        Ok(from.unwrap_or(info.start).max(info.start)..to.unwrap_or(info.end).min(info.end))
    }

    /// The error for a part of a recording in which no thread lived.
    fn no_time(&self, info: &RecordingInfo, file: &Path) -> Failure {
        let file = file.display();
        if self.from.is_some() || self.to.is_some() {
            let message =
                format!("nothing was recorded in {file} in that time: record again, or give another time");
            return Failure::new(Exit::NothingRecorded, message);
        }
        match info.events.first() {
            Some(event) => Failure::failed(format!(
                "the recording {file} has counts of events and no time: `wallprof flame --view event:{event}` shows them"
            )),
            None => {
                Failure::new(Exit::NothingRecorded, format!("nothing was recorded in {file}: record again"))
            }
        }
    }

    /// The given options that select a part, as words.
    fn limits(&self) -> String {
        let options = [
            ("--thread", self.threads.name_glob().is_some()),
            ("--container", self.threads.container_glob().is_some()),
            ("--from", self.from.is_some()),
            ("--to", self.to.is_some()),
        ];
        let given: Vec<&str> =
            options.iter().filter(|(_, given)| *given).map(|(option, _)| *option).collect();
        given.join(" and ")
    }

    fn nothing(&self, file: &Path) -> Failure {
        let file = file.display();
        Failure::failed(match &self.view {
            View::Faults => {
                format!("the recording {file} has no page faults: use --view wall")
            }
            View::Wakers => {
                format!("the recording {file} has no waker of a wait of these threads: use --view off-cpu")
            }
            View::Event(event) => match self.limits() {
                limits if limits.is_empty() => {
                    format!("the event `{event}` was never counted in {file}: record it again")
                }
                limits => {
                    format!("the event `{event}` was never counted in that part of {file}: omit {limits}")
                }
            },
            view => {
                format!("the recording {file} has no {view} time of these threads: use --view wall")
            }
        })
    }
}

/// The functions of all paths, each from its root on.
fn call_steps(calls: &ThreadCalls) -> u64 {
    let mut depths: Vec<u64> = Vec::with_capacity(calls.paths.len());
    for path in &calls.paths {
        // Parents come first.
        let above = path.parent.and_then(|parent| depths.get(parent)).copied().unwrap_or(0);
        depths.push(above.saturating_add(1));
    }
    depths.into_iter().fold(0, u64::saturating_add)
}

fn too_deep(file: &Path) -> Failure {
    Failure::failed(format!(
        "the call paths in {} have more than {} million functions, which is more than a picture holds: choose fewer \
         threads with --thread; `wallprof report` lists the functions",
        file.display(),
        MOST_CALL_STEPS / 1_000_000
    ))
}

/// Adds waits that cross an edge of the range, which samples do not cover correctly.
fn add_waits(
    gather: &mut Gather<'_>,
    recording: &Recording,
    range: &Range<MonoNs>,
    threads: HashSet<ThreadKey>,
) -> Result<(), Failure> {
    let first = range.start..MonoNs(range.start.0.saturating_add(1));
    let last = MonoNs(range.end.0.saturating_sub(1))..range.end;
    let filter = StallFilter { threads: Some(threads), include_voluntary: true, ..StallFilter::default() };
    let mut seen = HashSet::new();
    for edge in [first, last] {
        for wait in recording.stalls(&StallFilter { during: Some(edge), ..filter.clone() })? {
            let wait = wait?;
            let crosses = wait.open || wait.start < range.start || wait.end > range.end;
            if crosses && seen.insert(wait.id) {
                gather.add_wait(&wait, range, !wait.open && wait.end <= range.end);
            }
        }
    }
    Ok(())
}

/// The range, extended to seconds of the wall clock and limited to the recording: sums are stored by the
/// second.
fn whole_seconds(info: &RecordingInfo, requested: &Range<MonoNs>) -> Range<MonoNs> {
    let cuts = |at| info.start < at && at < info.end;
    let rounded = |at, round| if cuts(at) { second_of(info, at, round) } else { at };
    let (start, end) = (rounded(requested.start, u64::div_euclid), rounded(requested.end, u64::div_ceil));
    start.max(info.start)..end.min(info.end)
}

fn note(
    info: &RecordingInfo,
    zone: &Zone,
    requested: &Range<MonoNs>,
    range: &Range<MonoNs>,
) -> Option<String> {
    let shown = |at: MonoNs| match info.clock.anchors().is_empty() {
        true => format!("+{:.3}s", at.0.saturating_sub(info.start.0) as f64 / SECOND_NS as f64),
        false => zone.time_of_day_at(info.clock.epoch_from_mono(at), 3),
    };
    (requested != range).then(|| {
        format!(
            "a recording is summed up by the second: the output covers {} to {}, more than --from and --to",
            shown(range.start),
            shown(range.end)
        )
    })
}

/// The seconds whose rows belong to the range.
fn seconds(info: &RecordingInfo, range: &Range<MonoNs>) -> (Bound<EpochSecond>, Bound<EpochSecond>) {
    let second = |at: MonoNs| {
        let second = info.clock.epoch_from_mono(at).0 / SECOND_NS;
        EpochSecond(u32::try_from(second).unwrap_or(u32::MAX))
    };
    let first =
        if range.start > info.start { Bound::Included(second(range.start)) } else { Bound::Unbounded };
    let end = if range.end < info.end { Bound::Excluded(second(range.end)) } else { Bound::Unbounded };
    (first, end)
}

/// The start or the end of the second at `at`, by the wall clock.
fn second_of(info: &RecordingInfo, at: MonoNs, round: fn(u64, u64) -> u64) -> MonoNs {
    let second = round(info.clock.epoch_from_mono(at).0, SECOND_NS);
    info.clock.mono_from_epoch(EpochNs(second.saturating_mul(SECOND_NS)))
}

fn outside(info: &RecordingInfo, zone: &Zone, file: &Path) -> Failure {
    let file = file.display();
    let lasted = (info.end.0.saturating_sub(info.start.0)) as f64 / SECOND_NS as f64;
    Failure::failed(if info.clock.anchors().is_empty() {
        format!("--from and --to are outside the recording {file}: it lasts {lasted:.3} s, from +0s")
    } else {
        let shown = |at| {
            let at = info.clock.epoch_from_mono(at);
            format!("{} {}", zone.date_at(at), zone.time_of_day_at(at, 3))
        };
        let offset = zone.offset_at(info.clock.epoch_from_mono(info.start));
        format!(
            "--from and --to are outside the recording {file}: it lasts from {} to {} {offset}",
            shown(info.start),
            shown(info.end)
        )
    })
}

fn usage(option: &str, error: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("{option}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{ImportArgs, MeaningArgs};

    /// The sum of a view's weights in the recording of this text; or the error, with its exit code.
    fn sum(text: &str, view: View, thread: Option<&str>) -> Result<u64, (Exit, String)> {
        let folder = tempfile::tempdir().unwrap();
        let (input, output) = (folder.path().join("a.txt"), folder.path().join("a.db"));
        std::fs::write(&input, text).unwrap();
        let args = ImportArgs { file: Some(input), output: output.clone(), ..ImportArgs::default() };
        crate::import::run(&args).unwrap();
        let args = SelectionArgs {
            view,
            thread: thread.map(str::to_owned),
            container: None,
            user: false,
            kernel: false,
            meaning: MeaningArgs::default(),
        };
        let read = Selection::from_args(&args).unwrap().read(&output, &Zone::utc());
        let selected = read.map_err(|failure| (failure.exit, failure.message))?;
        Ok(selected.weights.stacks.iter().map(|stack| stack.weight).sum())
    }

    const INSTANT: &str = "app 12/12 7.1: 1000 instructions: \n\t 7f12 work (/bin/app)\n\n";

    #[test]
    fn counts_of_threads_seen_at_one_instant_are_in_their_view() {
        let event = || View::Event("instructions".into());
        assert_eq!(sum(INSTANT, event(), None), Ok(1_000));
        let other = "b 13/13 7.2: 10 instructions: \n\t 7f12 work (/bin/app)\n\n";
        let twice = INSTANT.to_owned() + other + &other.replace("7.2", "7.3");
        assert_eq!((sum(&twice, event(), None), sum(&twice, event(), Some("app"))), (Ok(1_020), Ok(1_000)));
    }

    #[test]
    fn advice_names_no_option_that_was_not_given() {
        let (exit, text) = sum(INSTANT, View::Wall, None).unwrap_err();
        assert!(
            exit == Exit::Failed && text.ends_with("`wallprof flame --view event:instructions` shows them")
        );
        let two = INSTANT.to_owned() + "b 13/13 7.2: 10 faults: \n\t 7f12 work (/bin/app)\n\n";
        let (_, text) = sum(&two, View::Event("faults".into()), Some("app")).unwrap_err();
        assert!(text.ends_with(": omit --thread"), "{text}");
    }
}
