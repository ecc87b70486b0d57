// SPDX-License-Identifier: Apache-2.0
//! `report` and `stalls`: files that are no recordings, readers that close the pipe, hostile names, filters.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;
use wallprof_testkit::program::{refused, run, sentence_of, wallprof};
use wallprof_testkit::recorder::RecordingFile;
use wallprof_testkit::stored;

use crate::fixture::{self, HOSTILE_NAME};

/// More than a pipe holds, so that a writer meets its closed end.
const MANY: u32 = 3_000;

fn recording(threads: u32) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fixture.db");
    fixture::write(&path, threads);
    (folder, path)
}

fn text(arguments: &[&str], file: &Path) -> String {
    let output = wallprof(arguments).arg(file).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn files_that_are_no_recordings() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (_story, whole) = recording(2);
    let bytes = fs::read(whole).unwrap();
    let files = [
        folder.path().join("missing.db").to_str().unwrap().to_owned(),
        file("empty.db", b""),
        file("text.db", b"this is no recording\n"),
        file("cut.db", &bytes[..bytes.len() / 2]),
        file("header.db", &bytes[..100]),
        folder.path().to_str().unwrap().to_owned(),
    ];
    for path in &files {
        for command in ["report", "stalls"] {
            let sentence = refused(&[command, path], 1);
            assert!(sentence.contains(path.as_str()), "{sentence}");
        }
    }
}

#[test]
fn the_default_file_is_in_the_working_directory() {
    let folder = tempfile::tempdir().unwrap();
    let output = wallprof(&["report"]).current_dir(&folder).output().unwrap();
    assert!(sentence_of(&output, 1, &["report"]).contains("wallprof.db"));
    fixture::write(&folder.path().join("wallprof.db"), 1);
    assert!(wallprof(&["report"]).current_dir(&folder).output().unwrap().status.success());
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let (_folder, path) = recording(MANY);
    for arguments in [&["report", "--json"][..], &["stalls"], &["stalls", "--json"]] {
        let mut child =
            wallprof(arguments).arg(&path).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::with_capacity(64, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
    }
}

#[test]
fn a_full_disk_is_a_failure() {
    let (_folder, path) = recording(1);
    for arguments in [["report"], ["stalls"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = wallprof(&arguments).arg(&path).stdout(full).output().unwrap();
        assert!(sentence_of(&output, 1, &arguments).contains("standard output"));
    }
}

#[test]
fn hostile_names_do_not_reach_the_terminal() {
    let (_folder, path) = recording(2);
    for arguments in [&["report"][..], &["stalls"], &["report", "--json"], &["stalls", "--json"]] {
        let text = text(arguments, &path);
        assert!(!text.contains('\x1b') && !text.contains(HOSTILE_NAME), "{arguments:?}: {text}");
        assert!(text.contains("[31mred"), "{arguments:?}: the name is shown in some form: {text}");
    }
}

#[test]
fn json_is_json() {
    let (_folder, path) = recording(3);
    let report: serde_json::Value = serde_json::from_str(&text(&["report", "--json"], &path)).unwrap();
    assert_eq!(report["schema"], 1);
    assert_eq!(report["threads"].as_array().map(Vec::len), Some(3));
    assert_eq!(report["threads"][0]["comm"], HOSTILE_NAME);
    assert_eq!(stalls(&path, &[]).len(), 3);
}

#[test]
fn filters_choose_stalls() {
    let (_folder, path) = recording(4);
    let count = |arguments: &[&str]| stalls(&path, arguments).len();
    assert_eq!(count(&["--all"]), 5);
    assert_eq!(count(&["--reason", "sleep"]), 1);
    assert_eq!(count(&["--reason", "disk"]), 0);
    assert_eq!(count(&["--longer-than", "2ms"]), 1);
    assert_eq!(count(&["--kind", "fault"]), 0);
    assert_eq!(count(&["--thread", "*evil"]), 4);
    assert_eq!(count(&["--thread", "good*"]), 0);
    assert_eq!(count(&["--from", "08:00:00.502"]), 1);
    assert_eq!(count(&["--from", "+502ms"]), 1);
    assert_eq!(count(&["--to", "2026-11-21T08:00:00.4Z"]), 0);
    assert_eq!(count(&["--from", "1795248000.4", "--to", "1795248000.6"]), 4);
}

#[test]
fn text_shows_groups_or_each_stall() {
    let (_folder, path) = recording(4);
    let text = |arguments: &[&str]| text(&[&["stalls"], arguments].concat(), &path);
    let groups = text(&[]);
    assert!(groups.starts_with("1. lock, 4 stalls, 8.00 ms in all, longest 5.00 ms"), "{groups}");
    assert!(groups.contains("4 stalls, 8.00 ms in all, in 1 group of equal stacks"), "{groups}");
    let heads = |text: &str| text.lines().filter(|line| line.starts_with("stall ")).count();
    assert_eq!((heads(&groups), heads(&text(&["--each"])), heads(&text(&["--id", "1"]))), (0, 4, 1));
    for (filter, stalls) in
        [("--all", 5), ("--longer-than=2ms", 1), ("--thread=*evil", 4), ("--thread=good*", 0)]
    {
        let total = format!("{stalls} stall");
        let is_total = |line: &str| line.starts_with(&total) || (stalls == 0 && line.starts_with("No stall"));
        assert!(text(&[filter]).lines().any(is_total), "{filter}");
        assert_eq!(heads(&text(&[filter, "--each"])), stalls, "{filter}");
    }
    let one = text(&["--all", "--top", "1"]);
    assert!(one.contains("1 group with 4 stalls, 8.00 ms, not shown: --top N"), "{one}");
}

fn stalls(path: &Path, arguments: &[&str]) -> Vec<serde_json::Value> {
    let text = text(&[&["stalls", "--json"], arguments].concat(), path);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn colour_is_for_terminals_only() {
    let (_folder, path) = recording(1);
    let coloured = wallprof(&["report"]).arg(&path).env("TERM", "xterm-256color").output().unwrap();
    assert!(!coloured.stdout.contains(&b'\x1b'));
}

#[test]
fn lines_keep_to_the_width_asked_for() {
    let (_folder, path) = recording(2);
    for columns in ["80", "100", "140"] {
        let output = wallprof(&["report"]).arg(&path).env("COLUMNS", columns).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(longest <= columns.parse().unwrap(), "{columns}: {longest}\n{text}");
    }
}

#[test]
fn the_same_recording_gives_the_same_bytes() {
    let (_folder, path) = recording(20);
    let path = path.to_str().unwrap();
    assert_eq!(run(&["report", "--json", path]).stdout, run(&["report", "--json", path]).stdout);
}

/// A machine that others use excuses what it does itself, and nothing that a program does.
#[test]
fn check_excuses_on_a_shared_machine_what_the_machine_did() {
    let stored = |cause: &str| stored::file(&stored::folder().join(format!("causes/{cause}.cause.zst")));
    let code = |recording: &RecordingFile, more: &[&str]| {
        let path = recording.path();
        let path = path.to_str().unwrap();
        run(&[&["check", path, "--no-finding", "any"], more].concat()).status.code()
    };
    let (quota, lock) = (stored("cgroup-cpu-quota"), stored("cxx-rwlock"));
    assert_eq!([code(&quota, &[]), code(&quota, &["--shared-machine"])], [Some(5), Some(0)]);
    assert_eq!([code(&lock, &[]), code(&lock, &["--shared-machine"])], [Some(5), Some(5)]);
}

/// A limit on waits that do not occur holds, one on a name that no wait can have does not.
#[test]
fn check_refuses_a_meaning_that_nothing_has() {
    let recording = stored::file(&stored::folder().join("causes/cxx-rwlock.cause.zst"));
    let path = recording.path().to_str().unwrap().to_owned();
    let check = |limit: &str| run(&["check", &path, "--max", limit]);
    assert_eq!(check("meaning:row lock=0/s").status.code(), Some(0));
    let refused = check("meaning:rowlock=0/s");
    assert_eq!(refused.status.code(), Some(2));
    let words = String::from_utf8_lossy(&refused.stderr);
    assert!(
        words.contains("--max meaning:rowlock: no wait that made a thread late ")
            && words.contains("`wallprof waits`"),
        "{words}"
    );
}
