// SPDX-License-Identifier: Apache-2.0
//! Runs the commands that read a recording and checks their outcomes.

use std::fs;

use crate::limits;
use crate::recording::Hostile;

/// The output file of a command, in the folder of the recording.
const OUT: &str = "OUT";
const FILE: &str = "FILE";
const FOLDER: &str = "FOLDER";
const TWIN: &str = "TWIN";
const MARKS: &str = "MARKS";

/// Every reader. `FILE` is the hostile recording, `FOLDER` the folder it is in, `TWIN` a valid one, `OUT` a new file.
const READERS: [&[&str]; 29] = [
    &["report", FILE],
    &["report", "--json", FILE],
    &["report", FILE, "-o", "OUT.html"],
    &["stalls", "--all", FILE],
    &["stalls", "--all", "--each", FILE],
    &["stalls", "--json", "--all", FILE],
    &["stalls", "--thread", "worker-*", "--from", "+0.1s", FILE],
    &["flame", FILE, "-o", "OUT.svg"],
    &["flame", FILE, "--view", "wakers", "-o", "OUT.svg"],
    &["flame", FILE, "--from", "+0.5s", "-o", "OUT.folded"],
    &["export", FILE, "--to", "folded", "-o", OUT],
    &["export", FILE, "--to", "pprof", "-o", OUT],
    &["export", FILE, "--to", "speedscope", "--anonymize", "-o", OUT],
    &["export", FILE, "--to", "perfetto", "-o", OUT],
    &["export", FILE, "--to", "firefox", "-o", OUT],
    &["export", FILE, "--to", "parquet", "-o", "OUT.tables"],
    &["diff", TWIN, FILE, "--all", "-o", "OUT.svg"],
    &["diff", FILE, FILE, "--json"],
    &["blame", FILE, "-o", "OUT.svg"],
    &["blame", FILE, "--json", "--thread", "worker-*", "--what-if", "lock:*=-50%"],
    &["runs", FOLDER],
    &["runs", FOLDER, "--json"],
    &["runs", FOLDER, "--trend", "version", "-o", "OUT.svg"],
    &["check", FILE, "--max", "reason:lock=1000s/s"],
    &["tail", FILE, "--tail", "P50", "-o", "OUT.svg"],
    &["tail", FILE, "--json", "--kind", "b*"],
    &["flame", FILE, "--view", "calls", "-o", "OUT.svg"],
    &["import", "--marks", MARKS, FILE],
    &["symbolize", FILE, "--debug-dir", "/proc/self/fdinfo"],
];

/// The commands that read no recording.
const OTHERS: [&str; 9] = ["record", "watch", "top", "ctl", "doctor", "demo", "stacks", "waits", "help"];

/// The outcome of one command.
pub struct Outcome {
    pub command: String,
    /// `None`: a signal ended it.
    pub code: Option<i32>,
    pub stderr: String,
    pub printed: u64,
}

impl Outcome {
    /// Describes an outcome that is not orderly. An orderly one is exit code 0; or exit code 1, 4 or 5 with one
    /// sentence on stderr. It has neither a panic nor a control character.
    pub fn disorder(&self) -> Option<String> {
        let Outcome { command, code, stderr, .. } = self;
        let is_sentence = stderr.lines().count() == 1 && stderr.starts_with("wallprof: ");
        let ended = match code {
            Some(0) => true,
            Some(1 | 4 | 5) => is_sentence,
            _ => false,
        };
        let has_controls = stderr.contains(|c: char| c.is_control() && c != '\n');
        let is_orderly = ended && !has_controls && !stderr.contains("panicked");
        (!is_orderly).then(|| format!("`{command}` ended with {code:?}: {stderr:?}"))
    }
}

/// Asserts that all outcomes are orderly.
pub fn assert_orderly(about: &str, outcomes: &[Outcome]) {
    let found: Vec<String> = outcomes.iter().filter_map(Outcome::disorder).collect();
    assert!(found.is_empty(), "{about}: {}", found.join("\n"));
}

/// Runs all readers on the recording. Those that add rows run last.
pub fn read(hostile: &Hostile) -> Vec<Outcome> {
    read_by(hostile, |_| true)
}

/// Runs the readers whose arguments `is_selected` accepts.
pub fn read_by(hostile: &Hostile, is_selected: impl Fn(&[&str]) -> bool) -> Vec<Outcome> {
    let twin = Hostile::twin();
    fs::write(hostile.path("marks.csv"), "time,text\n+0.5s,noted\n").expect("a file is written");
    READERS.iter().filter(|reader| is_selected(reader)).map(|reader| run(hostile, &twin, reader)).collect()
}

fn run(hostile: &Hostile, twin: &Hostile, arguments: &[&str]) -> Outcome {
    let text = |path: std::path::PathBuf| path.to_str().expect("a path in UTF-8").to_owned();
    let replaced: Vec<String> = arguments
        .iter()
        .map(|argument| match *argument {
            FILE => text(hostile.file()),
            FOLDER => text(hostile.path("")),
            TWIN => text(twin.file()),
            MARKS => text(hostile.path("marks.csv")),
            argument if argument.starts_with(OUT) => text(hostile.path(&argument.to_lowercase())),
            argument => argument.to_owned(),
        })
        .collect();
    let replaced: Vec<&str> = replaced.iter().map(String::as_str).collect();
    let output = limits::run(&replaced).expect("bash sets limits");
    Outcome {
        command: arguments.join(" "),
        code: output.status.code(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        printed: output.stdout.len() as u64,
    }
}

/// The names of the commands that the help lists.
fn commands() -> Vec<String> {
    let help = String::from_utf8(limits::run(&["--help"]).expect("bash sets limits").stdout).expect("UTF-8");
    let list = help.split("Commands:\n").nth(1).expect("a list of commands");
    let lines = list.lines().take_while(|line| !line.is_empty());
    // The lines of a long description are indented further.
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[test]
fn each_command_reads_hostile_recordings_here_or_reads_none() {
    let commands = commands();
    assert!(commands.len() > 10, "{commands:?}");
    for command in &commands {
        let is_reader = READERS.iter().any(|reader| reader[0] == command);
        let is_other = OTHERS.contains(&command.as_str());
        assert!(is_reader != is_other, "{command} is in one of READERS and OTHERS");
    }
    let listed = READERS.iter().map(|reader| reader[0]).chain(OTHERS);
    for name in listed {
        assert!(commands.iter().any(|command| command == name), "no command is named {name}");
    }
}
