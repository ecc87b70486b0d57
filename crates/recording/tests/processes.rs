// SPDX-License-Identifier: Apache-2.0
//! Tests that need a second process: a recorder that is killed at any time, readers of another user, a
//! recording that is read while it is written, and the owner of the file under sudo.
//!
//! A program of its own instead of the test harness, because it starts itself as the writer and as the
//! reader.

mod fixture;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fixture::*;
use wallprof_model::Event;
use wallprof_model::event::Stall;
use wallprof_recording::{Recorder, Recording, StallFilter};

const NOBODY: u32 = 65_534;
const STALLS_A_COMMIT: u64 = 50;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "write", path] => write_until_killed(Path::new(path)),
        [_, "read", path] => println!("{}", describe(Path::new(path))),
        _ => run_all(),
    }
}

fn run_all() {
    type Test = (&'static str, fn());
    let tests: [Test; 6] = [
        ("killed_at_once_it_is_a_recording", killed_at_once),
        ("killed_at_any_moment_it_holds_all_but_the_last_commit", killed_at_any_moment),
        ("a_recording_is_read_while_it_is_written", read_while_written),
        ("a_killed_recorders_file_is_replaced", killed_and_replaced),
        ("another_user_reads_copies_without_writing_anything", another_user_reads),
        ("under_sudo_the_file_belongs_to_the_caller", owned_by_the_caller),
    ];
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
}

/// Commits 50 stalls at a time, as fast as it can, and prints each finished commit.
fn write_until_killed(path: &Path) {
    let mut recorder = recorder(path);
    take_all(&mut recorder, definitions());
    for commit in 1.. {
        for index in 0..STALLS_A_COMMIT {
            let stall = Stall { user: Some(USER), kernel: Some(KERNEL), ..stall(commit * 1_000 + index, 10) };
            recorder.take(Event::Stall(Box::new(stall))).unwrap();
            recorder.take(Event::Ledger(ledger(commit as u32, 20))).unwrap();
        }
        recorder.commit(at(commit * 1_000)).unwrap();
        println!("{commit}");
    }
}

/// Reads everything and returns `END STALLS LEDGER CLEAN`, or the error.
fn describe(path: &Path) -> String {
    match try_describe(path) {
        Ok(text) => text,
        Err(error) => format!("error: {error}"),
    }
}

fn try_describe(path: &Path) -> wallprof_recording::Result<String> {
    let recording = Recording::open(path)?;
    let info = recording.info()?;
    let mut stalls = 0;
    for stall in recording.stalls(&StallFilter::default())? {
        assert_eq!(stall?.user.expect("every stall has a stack").frames.len(), 2);
        stalls += 1;
    }
    let wall_ns: u64 = recording.threads()?.iter().map(|thread| thread.ledger.wall_ns).sum();
    Ok(format!("{} {stalls} {wall_ns} {}", info.end.0 - START.0, info.ended_cleanly))
}

fn expected_after(commits: u64) -> String {
    let stalls = commits * STALLS_A_COMMIT;
    format!("{} {stalls} {} false", commits * 1_000, stalls * 20)
}

struct Writer {
    child: Child,
    commits: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Writer {
    fn start(path: &Path) -> Writer {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg("write")
            .arg(path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commits = BufReader::new(child.stdout.take().unwrap()).lines();
        Writer { child, commits }
    }

    /// Waits until the writer has printed this many commits.
    fn wait_for(&mut self, commits: u64) {
        for line in self.commits.by_ref() {
            if line.unwrap() == commits.to_string() {
                return;
            }
        }
        panic!("the writer ended before commit {commits}");
    }

    /// Kills the writer. Returns the number of commits that it printed.
    fn kill(mut self, mut said: u64) -> u64 {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        for line in self.commits {
            said = line.unwrap().parse().unwrap_or(said);
        }
        said
    }
}

fn killed_at_any_moment() {
    for round in 0..24u64 {
        let place = place();
        let mut writer = Writer::start(&place.file());
        // The kill hits some point of the next commits. The scheduler decides which.
        let wanted = 1 + round * round;
        writer.wait_for(wanted);
        let said = writer.kill(wanted);
        let read = describe(&place.file());
        let possible = [expected_after(said), expected_after(said + 1)];
        assert!(possible.contains(&read), "round {round}: {read}, but expected one of {possible:?}");
    }
}

/// From the time at which the name exists, the file is a whole recording.
fn killed_at_once() {
    for _ in 0..8 {
        let place = place();
        let writer = Writer::start(&place.file());
        while !place.file().exists() {
            std::thread::yield_now();
        }
        let said = writer.kill(0);
        let read = describe(&place.file());
        assert!([expected_after(said), expected_after(said + 1)].contains(&read), "{read} after {said}");
    }
}

fn read_while_written() {
    let place = place();
    let mut writer = Writer::start(&place.file());
    let mut last_end = 0;
    for commits in [1, 20, 60, 300] {
        writer.wait_for(commits);
        let read = describe(&place.file());
        let end: u64 = read.split(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{read}"));
        assert_eq!(read, expected_after(end / 1_000), "a whole number of commits");
        // The writer may have had no CPU since the last reading, which can have been of later commits than were waited for.
        assert!(end >= commits * 1_000 && end >= last_end, "{end} after commit {commits}, {last_end} before");
        last_end = end;
    }
    let error = Recorder::create(&place.file(), &start()).err().expect("it is being written");
    assert!(matches!(error, wallprof_recording::Error::InUse { .. }), "{error}");
    writer.kill(300);
}

fn killed_and_replaced() {
    let place = place();
    let mut writer = Writer::start(&place.file());
    writer.wait_for(30);
    writer.kill(30);
    recorder(&place.file()).finish(at(7)).unwrap();
    assert_eq!(describe(&place.file()), "7 0 0 true");
    assert_eq!(names_in(place.folder()), ["wallprof.db"]);
}

fn another_user_reads() {
    if !am_root() {
        let test = "another_user_reads_copies_without_writing_anything";
        return wallprof_testkit::skip(test, "reading as another user takes root");
    }
    let place = place();
    let mut writer = Writer::start(&place.file());
    writer.wait_for(40);
    let expected = {
        let said = writer.kill(40);
        [expected_after(said), expected_after(said + 1)]
    };
    let private = as_nobody(place.folder(), &place.file());
    assert!(private.contains("permission denied to read"), "{private}");

    // The file with all, some or none of its side files.
    for (suffixes, holds_all) in
        [(&["", "-wal", "-shm"][..], true), (&["", "-wal"], true), (&["", "-shm"], false), (&[""], false)]
    {
        let copy = tempfile::tempdir().unwrap();
        for suffix in suffixes {
            let name = format!("wallprof.db{suffix}");
            fs::copy(place.folder().join(&name), copy.path().join(&name)).unwrap();
            fs::set_permissions(copy.path().join(&name), fs::Permissions::from_mode(0o444)).unwrap();
        }
        fs::set_permissions(copy.path(), fs::Permissions::from_mode(0o555)).unwrap();
        let before = names_in(copy.path());
        let read = as_nobody(copy.path(), &copy.path().join("wallprof.db"));
        if holds_all {
            assert!(expected.contains(&read), "{suffixes:?}: {read}, but expected one of {expected:?}");
        } else {
            assert!(read.ends_with(" false"), "{suffixes:?}: {read}");
        }
        assert_eq!(names_in(copy.path()), before, "nothing is left beside the copy");
    }
}

fn owned_by_the_caller() {
    if !am_root() {
        let test = "under_sudo_the_file_belongs_to_the_caller";
        return wallprof_testkit::skip(test, "giving a file to another user takes root");
    }
    let place = place();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("write")
        .arg(place.file())
        .env("SUDO_UID", NOBODY.to_string())
        .env("SUDO_GID", NOBODY.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    said.next().unwrap().unwrap();
    for suffix in ["", "-wal", "-shm"] {
        let metadata = fs::metadata(place.folder().join(format!("wallprof.db{suffix}"))).unwrap();
        let owner = (metadata.uid(), metadata.gid(), metadata.permissions().mode() & 0o777);
        assert_eq!(owner, (NOBODY, NOBODY, 0o600), "wallprof.db{suffix}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The result of a read by another user at `path`. The user's temporary folder must be unchanged.
fn as_nobody(folder: &Path, path: &Path) -> String {
    let scratch = tempfile::tempdir().unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = copy_of_this_program(scratch.path());
    fs::set_permissions(folder, fs::Permissions::from_mode(0o555)).unwrap();
    let output = Command::new(program)
        .arg("read")
        .arg(path)
        .env("TMPDIR", scratch.path())
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    assert_eq!(names_in(scratch.path()), ["program"], "nothing is left in the temporary folder");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// A copy of the program in a folder that every user can enter.
fn copy_of_this_program(folder: &Path) -> PathBuf {
    let program = folder.join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    program
}

fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn am_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}
