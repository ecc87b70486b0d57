// SPDX-License-Identifier: Apache-2.0
//! `watch --parquet`: parts of the flight recording as Parquet tables, each written by a child process. Its memory
//! is freed when it ends, and SQLite's locks belong to a process (see `flame`).
//!
//! Owns the time and the extent of a part. Consecutive parts have each second and each stall once. A part that
//! could not be written is in the next one, as long as the flight recording has it.

use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

use wallprof_model::{ClockMap, EpochNs, Loss, MonoNs};
use wallprof_probe::clock;
use wallprof_recording::{Part, Recording};
use wallprof_tables::{Kept, recording_id};

use crate::args::{MeaningArgs, TablesArgs};
use crate::failure::{Failure, say};
use crate::meanings::with_meanings;
use crate::output::to_stdout;
use crate::tables::{self, Names, write};

/// The hidden subcommand of the child.
pub const SUBCOMMAND: &str = "__tables";

const SECOND_NS: u64 = 1_000_000_000;
/// Lengths of a part in seconds, which divide an hour. The longest that the flight recording covers twice is used.
const LENGTHS: [u64; 5] = [300, 120, 60, 30, 15];
/// When a counter changes, the recorder also adds the value before with the time at which it was read last. Such
/// a row may be added after the part of its time was written. Parts of counters therefore end this much earlier.
const COUNTERS_LATE_NS: u64 = 10 * SECOND_NS;
/// The time after a failure until the next attempt.
const PAUSE_NS: u64 = 10 * SECOND_NS;

/// Where tables go, and how many bytes of them are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSettings {
    pub folder: PathBuf,
    pub keep_bytes: u64,
}

/// A part that was written since the last call of [`Tables::proceed`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// CPU time of the child.
    pub cpu_ns: u64,
    /// Seconds that the flight recording had lost before.
    pub lost_seconds: u64,
}

struct Running {
    child: Child,
    until: MonoNs,
}

/// Writes one part at a time.
pub struct Tables {
    settings: TableSettings,
    recording: PathBuf,
    /// `--idle` and the like, for the child.
    meaning: Vec<OsString>,
    /// The identity of this watcher's recording.
    started: MonoNs,
    length: u64,
    /// The end of the last part that was written. 0: there is none.
    from: MonoNs,
    /// While nothing is measured, since when.
    paused: Option<MonoNs>,
    /// The times before in which nothing was measured, those that no part has yet.
    pauses: Vec<Range<MonoNs>>,
    running: Option<Running>,
    not_before: MonoNs,
    has_failed: bool,
}

impl Tables {
    pub fn new(settings: TableSettings, recording: PathBuf, keep_ns: u64, meaning: &MeaningArgs) -> Self {
        let started = clock::mono_now();
        let is_covered = |length: &u64| length * SECOND_NS * 2 <= keep_ns;
        Tables {
            settings,
            recording,
            meaning: meaning.as_options(),
            started,
            length: LENGTHS.into_iter().find(is_covered).unwrap_or(LENGTHS[LENGTHS.len() - 1]),
            from: MonoNs(0),
            paused: Some(started),
            pauses: Vec::new(),
            running: None,
            not_before: MonoNs(0),
            has_failed: false,
        }
    }

    /// From now on nothing is measured, or from now on it is.
    pub fn set_armed(&mut self, armed: bool, now: MonoNs) {
        match self.paused {
            Some(since) if armed => {
                self.pauses.push(since..now);
                self.paused = None;
            }
            None if !armed => self.paused = Some(now),
            _ => {}
        }
    }

    /// Starts a part that is due, and returns the one that has ended; the recording is complete up to `flushed`.
    pub fn proceed(&mut self, flushed: MonoNs, clock: &ClockMap) -> Option<Outcome> {
        let outcome = self.collect(flushed);
        if self.running.is_none() && flushed >= self.not_before {
            let until = end_of_part(flushed, clock, self.length);
            // The first part starts with the recording, not earlier.
            if until > self.from.max(self.started) {
                self.start(until, flushed);
            }
        }
        outcome
    }

    /// Writes the rest of the recording, which is complete. Waits for it.
    pub fn finish(&mut self) {
        self.wait(MonoNs(u64::MAX));
        self.start(MonoNs(u64::MAX), MonoNs(u64::MAX));
        self.wait(MonoNs(u64::MAX));
    }

    fn start(&mut self, until: MonoNs, now: MonoNs) {
        let child = Command::new("/proc/self/exe")
            .arg(SUBCOMMAND)
            .args(&self.meaning)
            .args(["--from", &self.from.0.to_string(), "--until", &until.0.to_string()])
            .args(["--started", &self.started.0.to_string()])
            .args(self.pauses.iter().flat_map(|pause| {
                ["--paused".to_owned(), pause.start.0.to_string(), pause.end.0.to_string()]
            }))
            .args(["--keep-bytes", &self.settings.keep_bytes.to_string()])
            .args([&self.recording, &self.settings.folder])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C on a terminal is for the watcher, which writes the last part then.
            .process_group(0)
            .spawn();
        match child {
            Ok(child) => self.running = Some(Running { child, until }),
            Err(error) => self.fail(&format!("no process could be started: {error}"), now),
        }
    }

    /// The outcome of a child that has ended.
    fn collect(&mut self, now: MonoNs) -> Option<Outcome> {
        match self.running.as_mut()?.child.try_wait() {
            Ok(None) => None,
            _ => self.wait(now),
        }
    }

    fn wait(&mut self, now: MonoNs) -> Option<Outcome> {
        let Running { child, until } = self.running.take()?;
        let ended = child.wait_with_output();
        match ended {
            Ok(output) if output.status.success() => {
                (self.from, self.has_failed) = (until, false);
                self.pauses.retain(|pause| pause.end > until);
                Some(outcome_from_text(&String::from_utf8_lossy(&output.stdout)))
            }
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                let text = text.trim().trim_start_matches("wallprof: ");
                let ended = if text.is_empty() { output.status.to_string() } else { text.to_owned() };
                self.fail(&ended, now);
                None
            }
            Err(error) => {
                self.fail(&error.to_string(), now);
                None
            }
        }
    }

    /// The first failure in a row is printed.
    fn fail(&mut self, why: &str, now: MonoNs) {
        if !std::mem::replace(&mut self.has_failed, true) {
            say(&format!("a part of the tables could not be written: {why}"));
        }
        self.not_before = MonoNs(now.0.saturating_add(PAUSE_NS));
    }
}

/// The last multiple of `length` on the wall clock that is flushed: no part has rows of two hours.
fn end_of_part(flushed: MonoNs, clock: &ClockMap, length: u64) -> MonoNs {
    let second = clock.epoch_from_mono(flushed).0 / SECOND_NS;
    clock.mono_from_epoch(EpochNs(second / length * length * SECOND_NS))
}

fn outcome_from_text(text: &str) -> Outcome {
    let mut numbers = text.split_whitespace().map(|number| number.parse().unwrap_or(0));
    Outcome { cpu_ns: numbers.next().unwrap_or(0), lost_seconds: numbers.next().unwrap_or(0) }
}

/// The child: writes a part and deletes the oldest parts. Prints its CPU time and the seconds that it did not
/// find.
pub fn write_part(args: &TablesArgs) -> Result<ExitCode, Failure> {
    let rules = args.meaning.rules()?;
    let part = Part { during: MonoNs(args.from)..MonoNs(args.until) };
    let recording = with_meanings(Recording::open_part(&args.recording, &part)?, &rules)?;
    let mut info = recording.info()?;
    let paused_ns = paused_ns(&args.paused, &(info.start..info.end));
    let lost_seconds = lost_ns(args, info.start) / SECOND_NS;
    // The start of the file moves with what it forgets, and its clock with it.
    (info.start, info.clock) = (MonoNs(args.started), ClockMap::default());
    let id = recording_id(&info);
    let kept = Kept::of_watcher(&args.folder, &info.hostname);
    let part = tables::Part {
        counters: counters(args.from, args.until),
        lost: (lost_seconds > 0).then_some((Loss::SecondsNotInTables, lost_seconds)),
        paused_ns,
    };
    let file = kept.file_name(&id, args.from);
    // With the stacks that the earlier parts of the hour have not, else with all.
    for watcher in [Some(kept.watcher(&id)), None] {
        let names = Names { id: id.clone(), file: file.clone(), watcher };
        let (written, stacks) = write(&recording, &args.folder, &names, &part)?;
        if kept.publish(written, stacks, args.keep_bytes).map_err(Failure::failed)? {
            break;
        }
    }
    to_stdout(|out| Ok(writeln!(out, "{} {lost_seconds}", clock::process_cpu_ns())?))?;
    Ok(ExitCode::SUCCESS)
}

/// What the flight recording has forgotten since the end of the part before, or since the watcher was started, ns.
fn lost_ns(args: &TablesArgs, start: MonoNs) -> u64 {
    let from = MonoNs(args.from.max(args.started));
    let paused_ns = paused_ns(&args.paused, &(from..start));
    start.0.saturating_sub(from.0).saturating_sub(paused_ns)
}

/// For how long nothing was measured in this time, ns; `pauses` are starts and ends in turn.
fn paused_ns(pauses: &[u64], during: &Range<MonoNs>) -> u64 {
    let part = |pause: &[u64; 2]| pause[1].min(during.end.0).saturating_sub(pause[0].max(during.start.0));
    pauses.as_chunks().0.iter().map(part).fold(0, u64::saturating_add)
}

/// The time of the counters' values in a part: those of consecutive parts have each value once.
fn counters(from: u64, until: u64) -> Range<MonoNs> {
    let end = if until == u64::MAX { until } else { until.saturating_sub(COUNTERS_LATE_NS) };
    MonoNs(from.saturating_sub(COUNTERS_LATE_NS))..MonoNs(end)
}

#[cfg(test)]
mod tests {
    use wallprof_model::ClockAnchor;

    use super::*;

    /// 12:00:00 at 100 s of the monotonic clock.
    const NOON: u64 = 1_800_014_400;

    fn clock(anchors: &[(u64, u64)]) -> ClockMap {
        let anchor = |(mono, epoch): &(u64, u64)| ClockAnchor {
            mono: MonoNs(mono * SECOND_NS),
            epoch: EpochNs(epoch * SECOND_NS),
        };
        ClockMap::new(anchors.iter().map(anchor).collect())
    }

    fn at(second: u64) -> MonoNs {
        MonoNs(second * SECOND_NS)
    }

    #[test]
    fn parts_end_at_multiples_of_their_length_on_the_wall_clock() {
        let clock = clock(&[(100, NOON)]);
        assert_eq!(end_of_part(at(100), &clock, 300), at(100));
        assert_eq!(end_of_part(at(399), &clock, 300), at(100));
        assert_eq!(end_of_part(MonoNs(at(400).0 + 7), &clock, 300), at(400));
    }

    #[test]
    fn step_of_the_clock_ends_parts_where_the_new_clock_says() {
        let forward = clock(&[(100, NOON), (150, NOON + 7_200)]);
        assert_eq!(end_of_part(at(160), &forward, 300), at(150));
        let back = clock(&[(100, NOON), (150, NOON - 7_199)]);
        let before = end_of_part(at(160), &back, 300);
        assert!(before <= at(100), "no part is due: {before:?}");
        assert_eq!(end_of_part(at(449), &back, 300), at(449));
    }

    #[test]
    fn parts_have_each_value_of_a_counter_once() {
        let (first, last) = (counters(0, at(300).0), counters(at(300).0, u64::MAX));
        assert_eq!((first.start, first.end, last.end), (MonoNs(0), at(290), MonoNs(u64::MAX)));
        assert_eq!(last.start, first.end);
    }

    #[test]
    fn part_is_half_of_what_the_flight_recording_covers() {
        let length = |keep_seconds: u64| {
            let settings = TableSettings { folder: "t".into(), keep_bytes: 1 };
            Tables::new(settings, "f.db".into(), keep_seconds * SECOND_NS, &MeaningArgs::default()).length
        };
        assert_eq!([length(600), length(599), length(60), length(30)], [300, 120, 30, 15]);
    }

    #[test]
    fn pauses_end_when_it_measures_again() {
        let settings = TableSettings { folder: "t".into(), keep_bytes: 1 };
        let mut tables = Tables::new(settings, "f.db".into(), 600 * SECOND_NS, &MeaningArgs::default());
        tables.paused = Some(at(100));
        for (armed, second) in
            [(true, 130), (true, 131), (false, 200), (false, 201), (true, 320), (false, 500)]
        {
            tables.set_armed(armed, at(second));
        }
        assert_eq!(tables.pauses, [at(100)..at(130), at(200)..at(320)], "the last one has not ended");
    }

    #[test]
    fn parts_are_shorter_by_the_pauses_in_them() {
        let pauses = [100, 130, 200, 320].map(|second| at(second).0);
        let paused_s = |from, to| paused_ns(&pauses, &(at(from)..at(to))) / SECOND_NS;
        assert_eq!(
            [paused_s(100, 300), paused_s(120, 300), paused_s(300, 600), paused_s(600, 900)],
            [130, 110, 20, 0]
        );
    }

    #[test]
    fn what_the_recording_forgot_is_lost_from_the_start_on() {
        let lost_s = |from, start| {
            let paused = vec![at(100).0, at(130).0];
            let (meaning, keep_bytes) = (MeaningArgs::default(), 1);
            let [from, started] = [from, 100].map(|second| at(second).0);
            let (recording, folder) = ("f.db".into(), "t".into());
            let args = TablesArgs { recording, folder, from, until: 0, started, paused, keep_bytes, meaning };
            lost_ns(&args, at(start)) / SECOND_NS
        };
        assert_eq!([lost_s(0, 130), lost_s(0, 190), lost_s(400, 400), lost_s(400, 407)], [0, 60, 0, 7]);
    }

    #[test]
    fn failed_part_is_tried_again_with_what_came_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let settings = TableSettings { folder: folder.path().into(), keep_bytes: 1 << 30 };
        let mut tables = Tables::new(settings, "missing.db".into(), 600 * SECOND_NS, &MeaningArgs::default());
        tables.started = at(100);
        tables.fail("the disk is full", at(410));
        assert_eq!((tables.from, tables.not_before), (MonoNs(0), at(420)));
        assert!(tables.proceed(at(415), &clock(&[(100, NOON)])).is_none() && tables.running.is_none());
    }

    #[test]
    fn numbers_of_the_child_are_read() {
        assert_eq!(outcome_from_text("1500 2\n"), Outcome { cpu_ns: 1_500, lost_seconds: 2 });
        assert_eq!(outcome_from_text(""), Outcome::default());
    }
}
