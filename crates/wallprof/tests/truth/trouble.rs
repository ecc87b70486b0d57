// SPDX-License-Identifier: Apache-2.0
//! Problems around a recording: a full disk, hostile names, damaged files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use wallprof_testkit::machine;
use wallprof_testkit::recorder::{Recorder, report_from, wallprof};
use wallprof_testkit::scenario::program;

use crate::ledger::assert_adds_up;

/// A small file system of its own. Unmounted when dropped.
struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(folder.path())
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(SmallDisk { folder })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.folder.path()).status();
    }
}

#[test]
fn full_disk_keeps_recorded_data() {
    let Some(_guard) = machine::reserve("full_disk_keeps_recorded_data") else { return };
    let Some(disk) = SmallDisk::mount("3m") else {
        return wallprof_testkit::skip("full_disk_keeps_recorded_data", "nothing can be mounted here");
    };
    let file = disk.folder.path().join("recording.db");
    let output = wallprof()
        .args(["record", "--min-stall", "1us", "-o"])
        .arg(&file)
        .arg("--")
        .arg(program("pingpong"))
        .args(["-d", "300", "-c", "0"])
        .output()
        .expect("the wallprof binary runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let complaint = String::from_utf8_lossy(&output.stderr);
    let [recording, sentence] = complaint.lines().collect::<Vec<_>>()[..] else {
        panic!("what is recorded, and one sentence: {complaint}");
    };
    assert!(recording.contains("recording"), "{complaint}");
    assert!(sentence.starts_with("wallprof: no space left"), "{complaint}");
    assert!(sentence.contains(file.to_str().expect("a UTF-8 path")), "{complaint}");
    let report = report_from(&file);
    assert!(report.threads.iter().any(|thread| thread.comm == "ping"), "{:#?}", report.threads);
    report.threads.iter().for_each(assert_adds_up);
}

/// No character that moves a cursor, ends a line too early or starts an escape sequence.
fn assert_harmless(what: &str, text: &str) {
    let control = text.chars().find(|character| character.is_control() && *character != '\n');
    assert_eq!(control, None, "a hostile name reaches the reader of {what}: {text:?}");
}

/// A thread of the lifecycle scenario has an escape sequence, a newline, a semicolon and markup in its name.
#[test]
fn hostile_names_are_escaped_everywhere() {
    let Some(_guard) = machine::reserve("hostile_names_are_escaped_everywhere") else { return };
    let lifecycle = program("lifecycle");
    let arguments = ["--min-stall", "20us"];
    let recorder = Recorder::armed(&arguments, &[lifecycle.to_str().expect("a UTF-8 path")]);
    let (status, recording) = recorder.wait();
    assert!(status.success());
    let report = recording.report();
    let is_hostile = |comm: &str| comm.contains('\x1b');
    let hostile = report.threads.iter().find(|thread| is_hostile(&thread.comm)).expect("the hostile thread");
    let visible = hostile.comm.split(char::is_control).max_by_key(|part| part.len()).expect("a part");
    let in_json = visible.replace('"', "\\\"");
    for (command, args, shown) in [
        // Its text has the busiest threads only.
        ("report", &[][..], ""),
        ("report", &["--json"], in_json.as_str()),
        ("stalls", &["--all", "--each"], visible),
        ("stalls", &["--all"], ""),
        ("stalls", &["--all", "--json"], in_json.as_str()),
    ] {
        let text = recording.read(command, args);
        assert_harmless(command, &text);
        assert!(text.contains(shown), "{command} {args:?} shows {shown}");
    }
    let lines = recording.read("stalls", &["--all", "--json"]);
    assert_eq!(lines.lines().count(), recording.stalls(&["--all"]).len(), "a stall is a line");
    let folded = recording.read("export", &["--to", "folded", "-o", "-"]);
    assert_harmless("export", &folded);
    assert!(
        folded.lines().all(|line| line.rsplit_once(' ').is_some_and(|(_, ns)| ns.parse::<u64>().is_ok()))
    );
}

/// `change` applied to the bytes of a sound recording, in a file of its own.
fn damaged(sound: &Path, folder: &Path, name: &str, change: impl Fn(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = fs::read(sound).expect("a recording");
    change(&mut bytes);
    let path = folder.join(name);
    fs::write(&path, bytes).expect("a file");
    path
}

/// One live recording, damaged in every way that a support request may show.
#[test]
fn damaged_recordings() {
    let Some(_guard) = machine::reserve("damaged_recordings") else { return };
    let spin = program("spin");
    let (_, recording) = Recorder::armed(&[], &[spin.to_str().expect("a UTF-8 path"), "-d", "0.2"]).wait();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (sound, folder) = (recording.path(), folder.path());
    // SQLite's user_version, a big-endian word at offset 60, is the schema.
    let newer =
        damaged(&sound, folder, "newer.db", |bytes| bytes[60..64].copy_from_slice(&99u32.to_be_bytes()));
    let files = [
        (damaged(&sound, folder, "empty.db", Vec::clear), "empty"),
        (damaged(&sound, folder, "foreign.db", |bytes| bytes[0] = b'x'), "foreign.db"),
        (damaged(&sound, folder, "half.db", |bytes| bytes.truncate(bytes.len() / 2)), "half.db"),
        (damaged(&sound, folder, "page.db", |bytes| bytes.truncate(4096)), "page.db"),
        (damaged(&sound, folder, "header.db", |bytes| bytes.truncate(99)), "header.db"),
        (newer, "newer wallprof"),
    ];
    for (file, says) in files {
        for command in ["report", "stalls"] {
            let output = wallprof().arg(command).arg(&file).output().expect("the wallprof binary runs");
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{command} {}: {complaint}", file.display());
            assert_eq!(complaint.trim_end().lines().count(), 1, "one sentence: {complaint}");
            assert!(complaint.starts_with("wallprof: ") && complaint.contains(says), "{complaint}");
            assert!(output.stdout.is_empty());
        }
    }
}
