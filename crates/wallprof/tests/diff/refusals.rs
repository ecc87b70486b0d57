// SPDX-License-Identifier: Apache-2.0
//! Files that cannot be compared are refused in one sentence. Others are compared, whatever their names
//! contain.

use std::fs::{self, File};
use std::path::Path;

use crate::program::{diff, json, text, wallprof};
use crate::written::Written;

const APP: Written<'_> = Written { process: "app", function: "take_lock", seconds: 10, lock_ms: 20 };

/// One sentence on stderr, nothing on stdout.
fn refused(a: &Path, b: &Path, arguments: &[&str], code: i32) -> String {
    let output = diff(a, b, arguments);
    let sentence = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {sentence}");
    assert_eq!(sentence.lines().count(), 1, "{sentence}");
    assert!(output.stdout.is_empty() && sentence.starts_with("wallprof: "), "{sentence}");
    sentence
}

#[test]
fn files_that_are_no_recordings() {
    let folder = tempfile::tempdir().unwrap();
    let whole = APP.write(folder.path(), "whole.db");
    let bytes = fs::read(&whole).unwrap();
    let cut = folder.path().join("cut.db");
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    for wrong in [folder.path().join("missing.db"), cut, folder.path().to_path_buf()] {
        assert!(refused(&wrong, &whole, &[], 1).contains(wrong.to_str().unwrap()));
        assert!(refused(&whole, &wrong, &[], 1).contains(wrong.to_str().unwrap()));
    }
}

#[test]
fn wrong_options_are_refused_before_anything_is_read() {
    let missing = Path::new("/nonexistent/a.db");
    for (arguments, says) in [
        (&["--view", "faults"][..], "wall, on-cpu, off-cpu or calls"),
        (&["--view", "event:cycles"], "wall, on-cpu, off-cpu or calls"),
        (&["-o", "x.png"], ".svg"),
        (&["third.db"], "third.db"),
    ] {
        assert!(refused(missing, missing, arguments, 2).contains(says));
    }
    let output = wallprof().args(["diff", "only.db"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_picture_never_replaces_a_recording_however_it_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (APP.write(folder.path(), "a.svg"), APP.write(folder.path(), "b.db"));
    let before = fs::read(&a).unwrap();
    let again = folder.path().join(".").join("a.svg");
    let link = folder.path().join("link.svg");
    std::os::unix::fs::symlink(&a, &link).unwrap();
    for output in [&a, &again, &link] {
        assert!(refused(&a, &b, &["-o", output.to_str().unwrap()], 2).contains("one of the recordings"));
    }
    assert!(fs::read(&a).unwrap() == before);
}

#[test]
fn programs_without_a_thread_in_common_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let other = Written { process: "other\x1b[31m", ..APP }.write(folder.path(), "other.db");
    let sentence = refused(&APP.write(folder.path(), "app.db"), &other, &[], 1);
    assert!(sentence.contains("app/app") && sentence.contains("other\\x1b[31m/other"), "{sentence}");
}

#[test]
fn a_view_without_time_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (APP.write(folder.path(), "a.db"), APP.write(folder.path(), "b.db"));
    assert!(refused(&a, &b, &["--view", "on-cpu"], 1).contains("on-cpu view"));
    assert!(text(&a, &b, &["--view", "off-cpu"]).contains("No difference"));
}

#[test]
fn a_full_disk_is_a_failure_and_a_closed_pipe_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (APP.write(folder.path(), "a.db"), APP.write(folder.path(), "b.db"));
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = wallprof().arg("diff").args([&a, &b]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard output"));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = wallprof().arg("diff").args([&a, &b]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

#[test]
fn a_longer_recording_with_longer_waits() {
    let folder = tempfile::tempdir().unwrap();
    let a = APP.write(folder.path(), "a.db");
    let b = Written { seconds: 25, lock_ms: 45, ..APP }.write(folder.path(), "b.db");
    let found = json(&a, &b);
    let lock = found["stacks"].as_array().unwrap().iter().find(|stack| stack["stack"][0] == "take_lock");
    let lock = lock.unwrap();
    assert_eq!((&lock["a_ns"], &lock["b_ns"]), (&20_000_000.into(), &45_000_000.into()));
    assert_eq!((&lock["difference_ns"], &lock["news"]), (&25_000_000.into(), &true.into()));
    assert_eq!(lock["rank"], serde_json::Value::Null, "its leaf, the state, is ranked");
    let back = json(&b, &a);
    let lock = back["states"].as_array().unwrap().iter().find(|state| state["state"] == "blocked:lock");
    assert_eq!(lock.unwrap()["difference_ns"], -25_000_000);
    assert_eq!(lock.unwrap()["meaning"], serde_json::Value::Null);
    assert_eq!(text(&a, &b, &["--json"]), text(&a, &b, &["--json"]));
    assert!(text(&a, &b, &[]).contains("+25.0 ms"));
}

#[test]
fn hostile_names_reach_neither_terminal_nor_markup() {
    let folder = tempfile::tempdir().unwrap();
    let hostile = "</text><script>alert(1)</script>]]>&\x1b[31m\u{202e}";
    let long = format!("{hostile}{}", "x".repeat(10_000));
    let a = Written { process: "app", function: &long, ..APP }.write(folder.path(), "a.db");
    let b = Written { process: "app", function: &long, lock_ms: 90, ..APP }.write(folder.path(), "b.db");
    let svg = folder.path().join("x.svg");
    let shown = text(&a, &b, &["-o", svg.to_str().unwrap()]);
    assert!(!shown.contains('\x1b') && !shown.contains('\u{202e}') && shown.contains("+70.0 ms"));
    assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
    let svg = fs::read_to_string(svg).unwrap();
    assert_eq!(svg.matches("<script>").count(), 1, "its own");
    assert!(!svg.contains('\x1b') && svg.contains("&lt;script&gt;alert"));
    assert!(svg.len() < 20_000, "long names are cut: {}", svg.len());
}
