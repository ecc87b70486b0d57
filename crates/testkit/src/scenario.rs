// SPDX-License-Identifier: Apache-2.0
//! A scenario as a child process, and the truth that it prints (see scenarios/truth.h).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use crate::lines::Lines;
use crate::recorder::scratch_folder;
use crate::{proc, stored};

/// A gated scenario: its threads exist, and run when the gate opens. Killed when dropped.
pub struct Scenario {
    /// `None` in a stored run.
    process: Option<Process>,
    pub start: Start,
}

struct Process {
    child: Child,
    gate: ChildStdin,
    lines: Lines,
}

/// The `start` line.
#[derive(Clone, Debug, Deserialize)]
pub struct Start {
    pub pid: u32,
    mono_ns: u64,
    epoch_ns: u64,
    pub threads: Vec<ScenarioThread>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ScenarioThread {
    pub tid: u32,
    pub name: String,
}

impl Start {
    /// The scenario's threads without its first, which only prints.
    pub fn workers(&self) -> &[ScenarioThread] {
        &self.threads[1..]
    }

    pub fn tid(&self, name: &str) -> u32 {
        self.threads
            .iter()
            .find(|thread| thread.name == name)
            .unwrap_or_else(|| panic!("a thread named {name}"))
            .tid
    }
}

impl Scenario {
    /// Returns when all of the scenario's threads wait at its gate.
    pub fn ready(name: &str, args: &[&str]) -> Self {
        Self::replayed().unwrap_or_else(|| Self::of_command(Command::new(program(name)), name, args))
    }

    /// As [`ready`](Self::ready), on the C library of Debian 13. None: it is not here.
    pub fn ready_on_trixie(name: &str, args: &[&str]) -> Option<Self> {
        let libraries = scratch_folder().join("../debian/trixie/usr/lib/x86_64-linux-gnu");
        let linker = libraries.join("ld-linux-x86-64.so.2");
        linker.exists().then(|| {
            let mut command = Command::new(linker);
            command.arg("--library-path").arg(libraries).arg(program(name));
            Self::of_command(command, name, args)
        })
    }

    fn replayed() -> Option<Self> {
        let start = stored::replay("start")?;
        Some(Scenario { process: None, start: parse(&String::from_utf8(start).expect("UTF-8")) })
    }

    fn of_command(mut command: Command, name: &str, args: &[&str]) -> Self {
        let mut child = command
            .arg("-g")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("the scenario {name} does not start: {error}"));
        let gate = child.stdin.take().expect("a piped stdin");
        let mut lines = Lines::from_pipe("the scenario", child.stdout.take().expect("a piped stdout"));
        let start = lines.find(|_| true).expect("a start line");
        stored::keep("start", || start.clone().into_bytes());
        let scenario = Scenario { process: Some(Process { child, gate, lines }), start: parse(&start) };
        scenario.wait_until_parked();
        scenario
    }

    pub fn pid(&self) -> String {
        self.start.pid.to_string()
    }

    /// Opens the gate.
    pub fn open_gate(&mut self) {
        let Some(Process { gate, .. }) = &mut self.process else { return };
        writeln!(gate).and_then(|()| gate.flush()).expect("the scenario reads its gate");
    }

    /// Opens the gate, and returns when the scenario has run and its threads are parked again.
    pub fn run(&mut self) -> Truth {
        self.open_gate();
        self.finish()
    }

    /// Returns when a scenario whose gate is open has run and its threads are parked again.
    pub fn finish(&mut self) -> Truth {
        let truth = self.finish_stuck();
        self.wait_until_parked();
        truth
    }

    /// As [`finish`](Self::finish), of threads that sleep uninterruptibly until the scenario is dropped.
    pub fn finish_stuck(&mut self) -> Truth {
        let Some(Process { lines, .. }) = &mut self.process else {
            let said = stored::replay("truth").expect("a scenario without a process is of a stored run");
            return Truth::from_output(&String::from_utf8(said).expect("UTF-8"));
        };
        let end = lines.find(|line| line.starts_with(r#"{"event":"end""#));
        assert!(end.is_some(), "the scenario ended before its end line: {:#?}", lines.seen());
        stored::keep("truth", || lines.seen().join("\n").into_bytes());
        Truth::from_lines(lines.seen().iter().map(String::as_str))
    }

    /// Ends a scenario whose gate is open before its time.
    pub fn end(&mut self) -> Truth {
        if let Some(Process { child, .. }) = &self.process {
            kill_process(Pid::from_child(child), Signal::TERM).expect("the scenario is there");
        }
        self.finish()
    }

    fn wait_until_parked(&self) {
        if self.process.is_some() {
            proc::wait_until_asleep(self.start.pid);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a scenario printed, from its start line to its end line.
pub struct Truth {
    pub start: Start,
    lines: Vec<String>,
}

/// A `thread` line: one thread's life between the scenario's gates.
#[derive(Debug, Deserialize)]
pub struct Life {
    pub tid: u32,
    pub name: String,
    pub start_ns: u64,
    pub end_ns: u64,
    pub cpu_ns: u64,
}

impl Truth {
    pub fn from_output(output: &str) -> Self {
        Self::from_lines(output.lines())
    }

    fn from_lines<'a>(lines: impl Iterator<Item = &'a str>) -> Self {
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        let start = parse(lines.first().expect("a start line"));
        Truth { start, lines }
    }

    /// All lines of one event.
    pub fn all<T: for<'a> Deserialize<'a>>(&self, event: &str) -> Vec<T> {
        let prefix = format!(r#"{{"event":"{event}","#);
        self.lines.iter().filter(|line| line.starts_with(&prefix)).map(|line| parse(line)).collect()
    }

    pub fn one<T: for<'a> Deserialize<'a>>(&self, event: &str) -> T {
        self.all(event).pop().unwrap_or_else(|| panic!("a line with the event {event}"))
    }

    pub fn lives(&self) -> Vec<Life> {
        self.all("thread")
    }

    /// The scenario's monotonic time as time of day. The scenario is short, and both clocks are slewed
    /// alike: one reading of both is enough.
    pub fn epoch_from_mono(&self, mono_ns: u64) -> u64 {
        mono_ns - self.start.mono_ns + self.start.epoch_ns
    }
}

fn parse<T: for<'a> Deserialize<'a>>(line: &str) -> T {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in the truth line {line}"))
}

/// The scenario's program. All are built when the first one is requested. A stored run needs none.
pub fn program(scenario: &str) -> PathBuf {
    if stored::is_replayed() {
        return scenario.into();
    }
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(build_scenarios).join(scenario)
}

fn build_scenarios() -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let folder = scratch_folder().join("scenarios");
    let status = Command::new("make")
        .args(["-s", "-C"])
        .arg(&sources)
        .arg(format!("OUT={}", folder.display()))
        .stdin(Stdio::null())
        .status()
        .expect("make runs");
    assert!(status.success(), "the scenarios in {} do not build", sources.display());
    folder
}
