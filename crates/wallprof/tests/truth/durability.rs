// SPDX-License-Identifier: Apache-2.0
//! A recorder that is killed leaves a file that opens, with all but the last second in it, and nothing in the
//! kernel.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use tempfile::TempDir;
use wallprof_testkit::assert_always;
use wallprof_testkit::bpf_objects::BpfObjects;
use wallprof_testkit::contract::Report;
use wallprof_testkit::machine;
use wallprof_testkit::recorder::{Recorder, RecordingFile, parse_report};
use wallprof_testkit::scenario::Scenario;

use crate::ledger::assert_adds_up;

/// One in each part of [`LATEST_MS`].
const KILLS: u64 = 6;
/// The recorder is killed within this time after arming: before the first write, between writes, and in one.
const LATEST_MS: u64 = 2_500;
/// A second is written when it is over, and may be missing until its write is over: on a busy machine as much
/// again.
const MAY_BE_MISSING: Duration = Duration::from_secs(2);
/// The sampling clock has ticked by then, on a CPU that runs: several of its periods.
const FIRST_TICK_NS: u64 = 50_000_000;
const NOBODY: u32 = 65_534;

fn epoch_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    now.as_nanos() as u64
}

/// A time in each part, the same on every run: a linear congruential sequence (Knuth's MMIX constants).
fn delays() -> impl Iterator<Item = Duration> {
    let step =
        |state: &u64| state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let states = std::iter::successors(Some(42u64), move |state| Some(step(state)));
    let part_ms = LATEST_MS / KILLS;
    states
        .skip(1)
        .zip(0..KILLS)
        .map(move |(state, part)| Duration::from_millis(part * part_ms + (state >> 33) % part_ms))
}

/// Another user, with the program and a copy of the recording's files in folders that this user cannot write
/// to.
struct Reader {
    folder: TempDir,
}

impl Reader {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::copy(wallprof_testkit::recorder::binary(), folder.path().join("wallprof"))
            .expect("a copy of the program");
        set_mode(folder.path(), 0o555);
        Reader { folder }
    }

    fn report(&self, recording: &RecordingFile) -> Report {
        let copy = read_only_copy(recording);
        let output = Command::new(self.folder.path().join("wallprof"))
            .args(["report", "--json"])
            .arg(copy.path().join("recording.db"))
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .expect("the copied program runs");
        assert_always!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        parse_report(&String::from_utf8(output.stdout).expect("UTF-8 on stdout"))
    }
}

fn read_only_copy(recording: &RecordingFile) -> TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder");
    for file in files_of(recording) {
        let to = copy.path().join(file.file_name().expect("a name"));
        fs::copy(&file, &to).expect("a copy of a recording's file");
        set_mode(&to, 0o444);
    }
    set_mode(copy.path(), 0o555);
    copy
}

/// The recording and the files that SQLite keeps beside it.
fn files_of(recording: &RecordingFile) -> Vec<PathBuf> {
    let path = recording.path();
    let beside = fs::read_dir(path.parent().expect("a folder")).expect("the recording's folder");
    let is_its = |file: &PathBuf| file.to_string_lossy().starts_with(&*path.to_string_lossy());
    beside.flatten().map(|entry| entry.path()).filter(is_its).collect()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("permissions can be set");
}

/// The spinner did not run its loop: something held its CPU up.
#[derive(Debug, Deserialize)]
struct Gap {
    start_ns: u64,
    end_ns: u64,
}

/// What a killed recorder left. All times are of the epoch.
struct Left {
    report: Report,
    armed_at: u64,
}

impl Left {
    /// Kills a recorder `delay` after it armed, and reads what it left.
    fn after(delay: Duration, pid: &str, reader: &Reader) -> Self {
        let recorder = Recorder::armed(&["-p", pid], &[]);
        let armed_at = epoch_ns();
        let objects = BpfObjects::of_process(recorder.pid());
        assert!(objects.has_programs_and_maps(), "{objects:?}");
        std::thread::sleep(delay);
        let killed_at = epoch_ns();
        let recording = recorder.kill();
        let by_another_user = reader.report(&recording);
        let report = recording.report();
        assert_eq!(report.recording.end_ns, by_another_user.recording.end_ns, "a copy holds the same");
        objects.wait_until_gone();
        let missing_ns = killed_at.saturating_sub(report.recording.end_ns.max(armed_at));
        assert!(
            missing_ns <= MAY_BE_MISSING.as_nanos() as u64,
            "{missing_ns} ns are missing of {:?}",
            report.recording
        );
        for thread in &report.threads {
            assert_adds_up(thread);
        }
        Left { report, armed_at }
    }

    /// The spinner ran all the time, so nothing is missing in the seconds of the file. Its first tick, with
    /// which it appears, may come after the end of a first second that started just before it, or in which its
    /// CPU was held up.
    fn assert_has_all_of_its_seconds(&self, gaps: &[(u64, u64)]) {
        let (start, end) = (self.armed_at, self.report.recording.end_ns);
        let held_up = gaps.iter().map(|gap| gap.1.min(end).saturating_sub(gap.0.max(start))).sum::<u64>();
        let written_ns = end.saturating_sub(start);
        if written_ns < FIRST_TICK_NS + held_up {
            return;
        }
        let ran_ns: u64 =
            self.report.threads.iter().map(|thread| thread.on_cpu_ns + thread.run_queue_ns).sum();
        assert!(
            ran_ns >= written_ns * 99 / 100,
            "{ran_ns} ns of {written_ns}, {held_up} held up: {:#?}",
            self.report.threads
        );
    }
}

#[test]
fn a_killed_recorder_loses_the_last_second() {
    let Some(_guard) = machine::reserve("a_killed_recorder_loses_the_last_second") else { return };
    let mut scenario = Scenario::ready("spin", &["-d", "600", "-t", "user"]);
    scenario.open_gate();
    let (pid, reader) = (scenario.pid(), Reader::new());
    let left: Vec<Left> = delays().map(|delay| Left::after(delay, &pid, &reader)).collect();
    let truth = scenario.end();
    let in_epoch = |gap: Gap| (truth.epoch_from_mono(gap.start_ns), truth.epoch_from_mono(gap.end_ns));
    let gaps: Vec<(u64, u64)> = truth.all("gap").into_iter().map(in_epoch).collect();
    left.iter().for_each(|left| left.assert_has_all_of_its_seconds(&gaps));
}
