// SPDX-License-Identifier: Apache-2.0
//! `wallprof top` in a terminal, driven through tmux.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use wallprof_testkit::bpf_objects::BpfObjects;
use wallprof_testkit::machine;
use wallprof_testkit::recorder::{binary, wallprof};
use wallprof_testkit::scenario::Scenario;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A terminal of 80x24 with a server of its own, which ends when dropped.
struct Terminal {
    folder: tempfile::TempDir,
}

impl Terminal {
    /// Runs `line` in a shell, in a new folder.
    fn run(line: &str) -> Self {
        let terminal = Terminal { folder: tempfile::tempdir().unwrap() };
        let folder = terminal.folder.path().to_str().unwrap().to_owned();
        terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-s",
            "t",
            "-x",
            "80",
            "-y",
            "24",
            "-c",
            &folder,
            "sh",
        ]);
        terminal.tmux(&["send-keys", "-t", "t", line, "Enter"]);
        terminal
    }

    fn tmux(&self, args: &[&str]) -> Output {
        let socket = self.folder.path().join("tmux");
        let output =
            Command::new("tmux").arg("-S").arg(socket).args(args).output().expect("tmux is installed");
        assert!(output.status.success(), "tmux {args:?}: {output:?}");
        output
    }

    fn key(&self, key: &str) {
        self.tmux(&["send-keys", "-t", "t", key]);
    }

    fn screen(&self) -> String {
        String::from_utf8(self.tmux(&["capture-pane", "-p", "-t", "t"]).stdout).unwrap()
    }

    /// The first screen for which `is_shown` holds.
    fn wait(&self, what: &str, is_shown: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let screen = self.screen();
            if is_shown(&screen) {
                return screen;
            }
            assert!(Instant::now() < deadline, "{what} is not shown:\n{screen}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ =
            Command::new("tmux").arg("-S").arg(self.folder.path().join("tmux")).arg("kill-server").output();
    }
}

fn line(screen: &str, number: usize) -> &str {
    screen.lines().nth(number).unwrap_or_default()
}

#[test]
fn late_thread_is_followed_and_recorded() {
    let Some(_guard) = machine::reserve("late_thread_is_followed_and_recorded") else { return };
    let mut scenario = Scenario::ready("lock", &["-d", "120", "-n", "20"]);
    let top = format!("{} top -p {}", binary().display(), scenario.pid());
    let terminal = Terminal::run(&format!("stty -g > before; {top}; echo CODE=$?; stty -g > after"));
    terminal.wait("the screen", |screen| screen.contains("TID  LATE ms/s"));
    scenario.open_gate();

    let is_lock = |line: &str| line.contains(" lock ") && line.contains("lock_mutex");
    let first = terminal.wait("the engine's wait for the lock", |screen| {
        line(screen, 2).starts_with("engine ") && screen.lines().any(is_lock)
    });
    assert!(first.contains("Latest stalls of engine "), "{first}");

    terminal.key("k");
    terminal.wait("kernel stacks", |screen| screen.contains("    kernel: "));
    terminal.key("s");
    terminal.wait("the order by CPU", |screen| line(screen, 0).contains(" by cpu "));
    terminal.key("s");
    let by_name = terminal.wait("the order by name", |screen| line(screen, 0).contains(" by name "));
    assert!(line(&by_name, 3).starts_with("housekeeper "), "{by_name}");

    terminal.key("/");
    terminal.key("house");
    terminal.key("Enter");
    let filtered = terminal.wait("one thread", |screen| line(screen, 0).contains("1 threads of name house"));
    assert!(line(&filtered, 2).starts_with("housekeeper ") && line(&filtered, 3).is_empty(), "{filtered}");

    terminal.key("f");
    let frozen = terminal.wait("a frozen screen", |screen| screen.starts_with("FROZEN "));
    thread::sleep(Duration::from_secs(3));
    assert_eq!(terminal.screen(), frozen, "a frozen screen does not change");
    terminal.key("f");
    terminal.wait("a live screen", |screen| !screen.contains("FROZEN") && screen != frozen);

    terminal.tmux(&["resize-window", "-t", "t", "-x", "20", "-y", "5"]);
    let small = terminal.wait("a small screen", |screen| line(screen, 4).starts_with("q quit  s sort"));
    assert!(line(&small, 1).ends_with(" LATE ms/s") && line(&small, 2).starts_with("housek"), "{small}");
    terminal.tmux(&["resize-window", "-t", "t", "-x", "80", "-y", "24"]);
    terminal.wait("a large screen", |screen| line(screen, 23).starts_with("q quit  s sort"));

    terminal.key("w");
    terminal.wait("the recording's name", |screen| screen.contains("Written: ./"));
    terminal.key("q");
    terminal.wait("exit code 0", |screen| screen.contains("CODE=0"));
    let folder = terminal.folder.path();
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    terminal.wait("the state after", |_| folder.join("after").exists() && !read("after").is_empty());
    assert_eq!(read("before"), read("after"), "the terminal is restored");

    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let recording = files.into_iter().find(|path| path.extension().is_some_and(|name| name == "db"));
    let report = wallprof().arg("report").arg(recording.expect("a recording")).output().unwrap();
    let text = String::from_utf8(report.stdout).unwrap();
    assert!(report.status.success() && text.contains("engine"), "{text}");
}

/// A late thread that is not selected is red, and bold without colour.
#[test]
fn screen_without_colour_has_none() {
    let Some(_guard) = machine::reserve("screen_without_colour_has_none") else { return };
    for (variable, is_red) in [("NO_COLOR=1", false), ("NO_COLOR=", true)] {
        let mut scenario = Scenario::ready("lock", &["-d", "60", "-n", "20"]);
        let top = format!("{variable} {} top -p {}", binary().display(), scenario.pid());
        let terminal = Terminal::run(&format!("{top}; echo CODE=$?"));
        terminal.wait("the screen", |screen| screen.contains("TID  LATE ms/s"));
        scenario.open_gate();
        terminal.wait("the engine's wait for the lock", |screen| {
            line(screen, 2).starts_with("engine ") && screen.contains(" lock_mutex")
        });
        terminal.key("s");
        terminal.key("s");
        terminal.wait("the order by name", |screen| line(screen, 0).contains(" by name "));
        terminal.key("Down");
        terminal.wait("another thread's stalls", |screen| !screen.contains("Latest stalls of engine "));
        let screen = terminal.tmux(&["capture-pane", "-e", "-p", "-t", "t"]).stdout;
        let screen = String::from_utf8(screen).unwrap();
        assert_eq!(screen.contains("\x1b[31m"), is_red, "{variable} {screen:?}");
        terminal.key("q");
        terminal.wait("exit code 0", |screen| screen.contains("CODE=0"));
    }
}

#[test]
fn signal_restores_the_terminal() {
    let Some(_guard) = machine::reserve("signal_restores_the_terminal") else { return };
    let top = format!("{} top -p $$", binary().display());
    let terminal = Terminal::run(&format!(
        "stty -g > before; sh -c 'echo $$ > pid; exec {top}'; echo CODE=$?; stty -g > after"
    ));
    terminal.wait("the screen", |screen| screen.contains("TID  LATE ms/s"));
    let folder = terminal.folder.path();
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    let killed = Command::new("kill").arg(read("pid").trim()).status().unwrap();
    assert!(killed.success());
    terminal.wait("exit code 0", |screen| screen.contains("CODE=0") && !screen.contains("LATE ms/s"));
    terminal.wait("the state after", |_| !read("after").is_empty());
    assert_eq!(read("before"), read("after"));
}

/// A closed window, or a connection that broke: the kernel sends SIGHUP.
#[test]
fn closed_terminal_ends_it_and_leaves_whole_recordings_alone() {
    let test = "closed_terminal_ends_it_and_leaves_whole_recordings_alone";
    let Some(_guard) = machine::reserve(test) else { return };
    let mut scenario = Scenario::ready("lock", &["-d", "120", "-n", "20"]);
    let top = format!("{} top -p {}", binary().display(), scenario.pid());
    let terminal = Terminal::run(&format!("mkdir tmp; TMPDIR=$PWD/tmp sh -c 'echo $$ > pid; exec {top}'"));
    terminal.wait("the screen", |screen| screen.contains("TID  LATE ms/s"));
    scenario.open_gate();
    terminal.wait("the engine's wait for the lock", |screen| {
        line(screen, 2).starts_with("engine ") && screen.contains(" lock_mutex")
    });
    terminal.key("w");
    terminal.wait("the recording's name", |screen| screen.contains("Written: ./"));
    let folder = terminal.folder.path();
    let pid: u32 = std::fs::read_to_string(folder.join("pid")).unwrap().trim().parse().unwrap();
    let objects = BpfObjects::of_process(pid);
    assert!(objects.has_programs_and_maps());
    let names = |folder: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    assert_eq!(names(&folder.join("tmp")).len(), 1, "the folder of the flight recording");
    // The second recording is being written when the terminal is closed.
    terminal.key("w");
    terminal.tmux(&["kill-session", "-t", "t"]);

    let deadline = Instant::now() + TIMEOUT;
    while Path::new(&format!("/proc/{pid}")).exists() {
        assert!(Instant::now() < deadline, "it runs without a terminal");
        thread::sleep(Duration::from_millis(20));
    }
    objects.wait_until_gone();
    assert!(names(&folder.join("tmp")).is_empty(), "{:?}", names(&folder.join("tmp")));
    let recordings: Vec<_> =
        names(folder).into_iter().filter(|path| path.extension().is_some_and(|end| end == "db")).collect();
    assert!(!recordings.is_empty(), "{:?}", names(folder));
    for recording in &recordings {
        let report = wallprof().arg("report").arg(recording).output().unwrap();
        let text = String::from_utf8(report.stdout).unwrap();
        assert!(report.status.success() && text.contains("engine"), "{}: {text}", recording.display());
    }
    // Neither journals nor unfinished recordings.
    let others = names(folder).len() - recordings.len();
    let expected = ["pid", "tmp", "tmux"].iter().filter(|name| folder.join(name).exists()).count();
    assert_eq!(others, expected, "{:?}", names(folder));
}

#[test]
fn refusals_say_what_to_do() {
    let output = wallprof().arg("top").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("-p PID") && error.contains("--name GLOB"), "{error}");
    let output = wallprof().args(["top", "-a"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("needs a terminal"), "{error}");
}
