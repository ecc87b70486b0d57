// SPDX-License-Identifier: Apache-2.0
//! `wallprof record` as a child process, and what the readers print about its file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::contract::{Report, Stall};
use crate::lines::Lines;
use crate::program::without_settings;
use crate::{assert_always, keep, stored};

/// The binary under test, without a terminal and without the developer's own settings.
pub fn wallprof() -> Command {
    wallprof_through(&[])
}

fn wallprof_through(through: &[&str]) -> Command {
    let mut command = match through {
        [] => Command::new(binary()),
        [program, args @ ..] => {
            let mut command = Command::new(program);
            command.args(args).arg(binary());
            command
        }
    };
    without_settings(&mut command).env("NO_COLOR", "1");
    command
}

/// The binary under test. Cargo builds it for the integration tests of its package, next to their folder
/// `deps`.
pub fn binary() -> PathBuf {
    build_folder().join("wallprof")
}

/// A folder for what tests build, on the disk of the build.
pub fn scratch_folder() -> PathBuf {
    let folder = build_folder().parent().expect("the target folder").join("tmp");
    fs::create_dir_all(&folder).expect("a folder for what tests build");
    folder
}

/// `target/PROFILE`: this test program is in its folder `deps`.
fn build_folder() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test program");
    test.ancestors().nth(2).expect("a build folder").to_owned()
}

/// Programs that mark spans: scenarios, and children of a thread with that name.
const MARKING: [&str; 3] = ["requests", "marks", "forker"];

/// A recorder that is armed. Killed when dropped.
pub struct Recorder {
    /// `None` in a stored run.
    process: Option<Process>,
    /// With `--span`.
    probes: bool,
    /// It starts a program, whose output is kept.
    of_command: bool,
}

struct Process {
    child: Child,
    stderr: Lines,
    file: RecordingFile,
}

impl Recorder {
    /// Starts `wallprof record ARGS -o FILE [-- COMMAND]` and returns when it reports that it is recording.
    pub fn armed(args: &[&str], command: &[&str]) -> Self {
        Self::armed_through(&[], args, command)
    }

    /// The same through a program and its arguments, `through`, which executes what follows them.
    pub fn armed_through(through: &[&str], args: &[&str], command: &[&str]) -> Self {
        let probes = args.iter().any(|argument| argument.starts_with("--span"));
        let process = (!stored::is_replayed()).then(|| Process::armed(through, args, command));
        Recorder { process, probes, of_command: !command.is_empty() }
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("a stored run has no recorder")
    }

    pub fn pid(&self) -> u32 {
        self.process().child.id()
    }

    /// Ends the recording as Ctrl-C does.
    pub fn stop(self) -> RecordingFile {
        self.signal(Signal::INT);
        let probes = self.probes;
        let (status, file) = self.wait();
        assert_always!(status.success(), "the recorder ended with {status}");
        file.check_kinds(probes);
        file
    }

    /// Ends the recording as Ctrl-C does. Returns how it ended, and everything on stderr.
    pub fn interrupt(mut self) -> (ExitStatus, Vec<String>) {
        self.signal(Signal::INT);
        let Process { child, stderr, .. } = self.process.as_mut().expect("a stored run has no recorder");
        let status = child.wait().expect("the recorder is waited for");
        stderr.find(|_| false);
        assert_always!(!is_crash(status), "the recorder ended with {status}: {:#?}", stderr.seen());
        (status, stderr.seen().to_vec())
    }

    /// Waits for a recorder that ends by itself, with its duration or its command.
    pub fn wait(self) -> (ExitStatus, RecordingFile) {
        let Some(mut process) = self.process else {
            let status = stored::number("status", || unreachable!("a stored run has it"));
            let bytes = stored::replay("recording").expect("a recorder without a process is of a stored run");
            let file = RecordingFile::with(&bytes);
            if self.of_command {
                let output = stored::replay("output").expect("a stored run has it");
                fs::write(file.stdout(), output).expect("a temporary file");
            }
            stored::read_all(&file);
            return (ExitStatus::from_raw(status as i32), file);
        };
        let status = process.child.wait().expect("the recorder is waited for");
        assert_always!(!is_crash(status), "the recorder ended with {status}: {:#?}", process.stderr.seen());
        let file = std::mem::replace(&mut process.file, RecordingFile::new());
        stored::number("status", || status.into_raw() as u64);
        stored::keep("recording", || fs::read(file.path()).expect("the recording"));
        if self.of_command {
            stored::keep("output", || fs::read(file.stdout()).expect("the command's output"));
        }
        (status, file)
    }

    /// Ends the recorder without giving it a chance to do anything.
    pub fn kill(self) -> RecordingFile {
        self.signal(Signal::KILL);
        self.wait().1
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(Process { child, .. }) = &self.process {
            kill_process(Pid::from_child(child), signal).expect("the recorder takes a signal");
        }
    }
}

/// A panic, or a signal that nobody sent.
pub fn is_crash(status: ExitStatus) -> bool {
    let sent = [Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP].map(Signal::as_raw);
    status.code() == Some(101) || status.signal().is_some_and(|signal| !sent.contains(&signal))
}

impl Process {
    fn armed(through: &[&str], args: &[&str], command: &[&str]) -> Self {
        let mut process = Self::spawn(through, args, command);
        let armed = process.stderr.find(|line| line.contains("recording"));
        assert_always!(
            armed.is_some(),
            "the recorder ended before it was armed: {:#?}",
            process.stderr.seen()
        );
        process
    }

    fn spawn(through: &[&str], args: &[&str], command: &[&str]) -> Self {
        let file = RecordingFile::new();
        let mut recorder = wallprof_through(through);
        recorder.arg("record").args(args).arg("-o").arg(file.path());
        if !command.is_empty() {
            recorder.arg("--").args(command);
        }
        let stdout = File::create(file.stdout()).expect("a file for the command's output");
        let mut child =
            recorder.stdout(stdout).stderr(Stdio::piped()).spawn().expect("the wallprof binary runs");
        let stderr = Lines::from_pipe("the recorder", child.stderr.take().expect("a piped stderr"));
        Process { child, stderr, file }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A recording in a temporary directory, deleted with it.
pub struct RecordingFile {
    folder: TempDir,
}

impl Drop for RecordingFile {
    fn drop(&mut self) {
        keep::if_failing(&self.path());
    }
}

impl RecordingFile {
    fn new() -> Self {
        RecordingFile { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub(crate) fn with(bytes: &[u8]) -> Self {
        let file = Self::new();
        fs::write(file.path(), bytes).expect("a temporary file");
        file
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("recording.db")
    }

    /// Busy periods, spans of the programs that mark some, and those of probes where there are any: nothing else is a
    /// span.
    fn check_kinds(&self, probes: bool) {
        let tail: Value = serde_json::from_str(&self.read("tail", &["--json"])).expect("JSON");
        for kind in tail["kinds"].as_array().expect("kinds") {
            let is_expected = match kind["source"].as_str() {
                Some("busy") => kind["kind"] == "busy",
                Some("uprobe" | "usdt") => probes,
                Some("code") => kind["process"].as_str().is_some_and(|name| MARKING.contains(&name)),
                _ => false,
            };
            assert!(is_expected, "nobody asked for spans of this kind: {kind}");
        }
    }

    /// By kind, how many spans of this source there are, in all processes.
    pub fn span_counts(&self, source: &str) -> BTreeMap<String, u64> {
        let tail: Value = serde_json::from_str(&self.read("tail", &["--json"])).expect("JSON");
        let mut counts = BTreeMap::new();
        for kind in tail["kinds"].as_array().expect("kinds").iter().filter(|kind| kind["source"] == source) {
            let name = kind["kind"].as_str().expect("a name").to_owned();
            *counts.entry(name).or_default() += kind["count"].as_u64().expect("a count");
        }
        counts
    }

    fn stdout(&self) -> PathBuf {
        self.folder.path().join("stdout")
    }

    /// The output of the recorded command.
    pub fn command_output(&self) -> String {
        fs::read_to_string(self.stdout()).expect("UTF-8 from the command")
    }

    pub fn report(&self) -> Report {
        report_from(&self.path())
    }

    /// The stalls, oldest first; `args` as `wallprof stalls` takes them.
    pub fn stalls(&self, args: &[&str]) -> Vec<Stall> {
        self.read("stalls", &[&["--json"], args].concat())
            .lines()
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in the stall {line}"))
            })
            .collect()
    }

    /// The output of a reading command on the recording.
    pub fn read(&self, command: &str, args: &[&str]) -> String {
        read(Command::arg(wallprof().arg(command), self.path()).args(args))
    }
}

pub fn report_from(file: &Path) -> Report {
    let text = read(Command::arg(wallprof().arg("report"), file).arg("--json"));
    parse_report(&text)
}

/// The report, whose ledgers add up.
pub fn parse_report(text: &str) -> Report {
    let report: Report =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in the report {text}"));
    for thread in &report.threads {
        let sum_ns = thread.states.sum() + thread.unaccounted_ns;
        assert_always!(sum_ns == thread.wall_ns, "the ledger adds up to {sum_ns} ns: {thread:#?}");
    }
    report
}

/// The output of a reading command, which must succeed: a recording opens, however it ended.
fn read(command: &mut Command) -> String {
    let output = command.output().expect("the wallprof binary runs");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_always!(output.status.success(), "{command:?} ended with {}: {message}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8 on stdout")
}
