// SPDX-License-Identifier: Apache-2.0
//! Files that cannot be drawn: one sentence, the right exit code, and no file.

use std::fs;

use wallprof_recording::Recorder;
use wallprof_testkit::program::{refused, sentence_of, wallprof};

use crate::fixture::{Fixture, SECOND, after, start};

#[test]
fn wrong_usage_is_two() {
    for (arguments, says) in [
        (&["flame", "--view", "sideways"][..], "on-cpu"),
        (&["flame", "--view", "returns"], "on-cpu"),
        (&["flame", "--view", "event:"], "event:NAME"),
        (&["flame", "--thread", "[a"], "--thread: "),
        (&["flame", "--container", "[a"], "--container: "),
        (&["flame", "--from", "noon"], "--from: "),
        (&["flame", "--user", "--kernel"], "--kernel"),
        (&["flame", "-o", "x.png"], ".svg"),
        (&["flame", "-o", "picture"], ".svg"),
        (&["export", "-o", "x"], "--to"),
        (&["export", "--to", "folded"], "--output"),
        (&["export", "--to", "svg", "-o", "x"], "--to takes folded, speedscope"),
        (&["export", "--to", "flamegraph", "-o", "x"], "speedscope"),
        (&["export", "--to", "perfetto", "--view", "wakers", "-o", "x"], "omit --view"),
        (&["export", "--to", "firefox", "--view", "wakers", "-o", "x"], "omit --view"),
        (&["export", "--to", "firefox", "--anonymize", "-o", "x"], "omit --anonymize"),
        (&["export", "--to", "parquet", "--thread", "x", "-o", "x"], "omit --thread"),
        (&["export", "--to", "parquet", "-o", "-"], "-o DIR"),
        (&["export", "--to", "perfetto", "--anonymize", "-o", "x"], "omit --anonymize"),
    ] {
        let sentence = refused(arguments, 2);
        assert!(sentence.contains(says), "{arguments:?}: {sentence}");
    }
}

#[test]
fn missing_data_is_exit_code_one() {
    let fixture = Fixture::new();
    let out = fixture.folder.path().join("out.svg");
    for (options, code, says) in [
        (&["--view", "faults"][..], 1, "no page faults"),
        (&["--view", "event:cycles"], 1, "it has cs, never"),
        (&["--view", "event:never"], 1, "never counted"),
        (&["--view", "on-cpu", "--thread", "stuck"], 1, "no on-cpu time"),
        (&["--view", "wakers", "--thread", "stuck"], 1, "no waker"),
        (&["--thread", "worker-*"], 1, "there are engine, stuck"),
        (&["--container", "3f4a*"], 1, "omit --container"),
        (&["--from", "09:00:00"], 1, "from 2026-11-21 08:00:00.000 to 2026-11-21 08:00:04.000 UTC"),
        (&["--to", "2026-11-20T08:00:00Z"], 1, "outside"),
        (&["--from", "+3s", "--to", "+1s"], 2, "--from is not before --to"),
    ] {
        let arguments = [&["flame", fixture.path(), "-o", out.to_str().unwrap()], options].concat();
        let sentence = refused(&arguments, code);
        assert!(sentence.contains(says), "{options:?}: {sentence}");
        assert!(!out.exists(), "{options:?}");
    }
}

#[test]
fn a_recording_of_nothing_is_four() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("empty.db");
    Recorder::create(&file, &start()).unwrap().finish(after(SECOND)).unwrap();
    for command in [&["flame"][..], &["export", "--to", "perfetto"]] {
        let sentence = refused(&[command, &[file.to_str().unwrap(), "-o", "-"]].concat(), 4);
        assert!(sentence.contains("nothing was recorded"), "{sentence}");
    }
}

#[test]
fn files_that_are_no_recordings_are_one() {
    for command in [&["flame"][..], &["export", "--to", "pprof"], &["export", "--to", "perfetto"]] {
        for (file, says) in [("/nonexistent/x.db", "no recording"), ("/dev/null", "/dev/null")] {
            let sentence = refused(&[command, &[file, "-o", "-"]].concat(), 1);
            assert!(sentence.contains(says), "{sentence}");
        }
    }
}

#[test]
fn a_recording_is_never_written_over() {
    let fixture = Fixture::new();
    let before = fs::read(&fixture.file).unwrap();
    let other_name = fixture.folder.path().join(".").join("fixture.db");
    let arguments = ["export", "--to", "folded", fixture.path(), "-o", other_name.to_str().unwrap()];
    let sentence = refused(&arguments, 2);
    assert!(sentence.contains("the recording itself"), "{sentence}");
    assert_eq!(fs::read(&fixture.file).unwrap(), before);
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let fixture = Fixture::new();
    let sentence = refused(&["flame", fixture.path(), "-o", "/nonexistent/x.svg"], 1);
    assert!(sentence.contains("/nonexistent/x.svg"), "{sentence}");
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = wallprof(&["flame", fixture.path(), "-o", "-"]).stdout(full).output().unwrap();
    assert!(sentence_of(&output, 1, &["flame"]).contains("standard output"));
    let sentence = refused(&["export", fixture.path(), "--to", "pprof", "-o", "/dev/full"], 1);
    assert!(sentence.contains("/dev/full"), "{sentence}");
}
