// SPDX-License-Identifier: Apache-2.0
//! `wallprof symbolize`: what it finds, what it keeps, and how it ends.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Output;

use rustix::process::{Pid, Signal, kill_process};

use crate::program::{Split, run};
use crate::server::{Debuginfod, Silent};
use crate::unnamed::{command, frames, import_without_the_program, recording, symbolize};

const UNNAMED: [&str; 3] = ["? ?", "? ?", "exported ?"];
const NAMED: [&str; 3] = ["hidden split.c", "main split.c", "exported split.c"];

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The one sentence of a failure.
fn sentence(output: &Output, code: i32) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(code), 1), "{stderr}");
    assert!(output.stdout.is_empty());
    stderr
}

#[test]
fn a_debug_file_in_any_place_names_frames_with_their_lines() {
    let split = Split::new();
    let hex = split.hex();
    let by_id = format!(".build-id/{}/{}.debug", &hex[..2], &hex[2..]);
    let folders = [
        split.copy_in("tree", &by_id, &split.debug()),
        split.copy_in("plain", "deep/under any name", &split.debug()),
        split.copy_in("originals", "bin/app", &split.whole()),
    ];
    for folder in folders {
        let file = recording(&split, Some(split.build_id.clone()));
        assert_eq!(frames(&file), UNNAMED);
        let printed = stdout(&symbolize(&file, Some(&folder)));
        assert!(printed.contains("2 frames named, 0 remain"), "{printed}");
        assert!(printed.contains("       2        0  /nowhere/app"), "{printed}");
        assert!(printed.contains("1 more had a name and got file and line"), "{printed}");
        assert_eq!(frames(&file), NAMED, "{}", folder.display());
    }
}

#[test]
fn a_debug_file_names_an_import_that_had_no_program() {
    let split = Split::new();
    for (folder, from) in [("debug-file", split.debug()), ("unstripped", split.whole())] {
        let folder = split.copy_in(folder, "any name", &from);
        let file = import_without_the_program(&split, split.build_id.clone());
        assert_eq!(frames(&file), UNNAMED);
        let printed = stdout(&symbolize(&file, Some(&folder)));
        assert!(printed.contains("2 frames named, 0 remain"), "{printed}");
        assert_eq!(frames(&file), NAMED);
        let file = import_without_the_program(&split, vec![7; 20]);
        let printed = stdout(&symbolize(&file, Some(&folder)));
        assert!(printed.contains("0 frames named, 2 remain"), "{printed}");
    }
}

#[test]
fn a_second_run_changes_nothing_and_mode_and_owner_stay() {
    let split = Split::new();
    let folder = split.copy_in("plain", "x", &split.debug());
    let file = recording(&split, Some(split.build_id.clone()));
    fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("changed");
    let before = file.metadata().expect("there");
    stdout(&symbolize(&file, Some(&folder)));
    let after = file.metadata().expect("there");
    assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
    let bytes = fs::read(&file).expect("readable");
    assert!(stdout(&symbolize(&file, Some(&folder))).is_empty());
    assert!(fs::read(&file).expect("readable") == bytes);
}

#[test]
fn files_of_another_build_id_and_frames_without_one_name_nothing() {
    let split = Split::new();
    let folder = split.copy_in("plain", "app", &split.debug());
    let file = recording(&split, Some(vec![7; 20]));
    let printed = stdout(&symbolize(&file, Some(&folder)));
    assert!(printed.contains("0 frames named, 2 remain"), "{printed}");
    assert_eq!(frames(&file), UNNAMED);
    let file = recording(&split, None);
    let said = sentence(&symbolize(&file, Some(&folder)), 1);
    assert!(said.contains("its 2 frames without a name have no build id"), "{said}");
    assert_eq!(frames(&file), UNNAMED);
}

#[test]
fn a_damaged_debug_file_is_counted_and_left_out() {
    let split = Split::new();
    let image = fs::read(split.debug()).expect("readable");
    let cut = split.folder().join("cut");
    fs::write(&cut, &image[..image.len() - image.len() / 4]).expect("written");
    let folder = split.copy_in("plain", "a", &cut);
    let file = recording(&split, Some(split.build_id.clone()));
    let output = symbolize(&file, Some(&folder));
    assert!(stdout(&output).contains("0 frames named, 2 remain"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("1 file of a program or of its debug information is damaged"), "{said}");
    // The twin: a sound file beside it serves.
    let folder = split.copy_in("plain", "b", &split.debug());
    assert!(stdout(&symbolize(&file, Some(&folder))).contains("2 frames named, 0 remain"));
    assert_eq!(frames(&file), NAMED);
}

#[test]
fn missing_debug_files_are_requested_from_servers() {
    let split = Split::new();
    let folder = split.copy_in("served", "app.debug", &split.debug());
    let server = Debuginfod::serving(&folder, &split.hex());
    let file = recording(&split, Some(split.build_id.clone()));
    let cache = split.folder().join("cache");
    let output = command(&file, None)
        .env("DEBUGINFOD_URLS", server.url())
        .env("DEBUGINFOD_CACHE_PATH", &cache)
        .output()
        .expect("the binary runs");
    assert!(stdout(&output).contains("2 frames named, 0 remain"), "{output:?}");
    assert_eq!(frames(&file), NAMED);
    assert!(cache.join(split.hex()).join("debuginfo").is_file());
}

#[test]
fn a_server_without_an_answer_is_said_and_the_recording_stays() {
    let split = Split::new();
    let silent = Silent::start();
    let file = recording(&split, Some(split.build_id.clone()));
    let before = fs::read(&file).expect("readable");
    let mut asking = command(&file, None);
    asking.env("DEBUGINFOD_URLS", &silent.url).env("DEBUGINFOD_CACHE_PATH", split.folder().join("cache"));
    let output = asking.env("DEBUGINFOD_TIMEOUT", "1").output().expect("the binary runs");
    assert!(stdout(&output).contains("0 frames named, 2 remain"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("1 failed") && said.contains("no answer came in time"), "{said}");
    assert!(fs::read(&file).expect("readable") == before);
}

#[test]
fn a_killed_run_leaves_the_recording_whole() {
    let split = Split::new();
    let silent = Silent::start();
    let file = recording(&split, Some(split.build_id.clone()));
    let before = fs::read(&file).expect("readable");
    let mut asking = command(&file, None);
    asking.env("DEBUGINFOD_URLS", &silent.url).env("DEBUGINFOD_CACHE_PATH", split.folder().join("cache"));
    let mut child = asking.spawn().expect("the binary runs");
    let request = silent.requests.recv().expect("it asks");
    assert!(request.contains(&split.hex()), "{request}");
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a pid");
    kill_process(pid, Signal::KILL).expect("killed");
    assert!(!child.wait().expect("it ends").success());
    assert!(fs::read(&file).expect("readable") == before);
    let folder = split.copy_in("plain", "x", &split.debug());
    assert!(stdout(&symbolize(&file, Some(&folder))).contains("2 frames named"));
}

#[test]
fn failure_is_one_sentence() {
    let split = Split::new();
    let file = recording(&split, Some(split.build_id.clone()));
    let here = split.folder();
    assert!(sentence(&symbolize(&here.join("none.db"), Some(here)), 1).contains("there is no recording at"));
    assert!(sentence(&symbolize(&split.whole(), Some(here)), 1).contains("is not a wallprof recording"));
    assert!(sentence(&symbolize(&file, Some(Path::new("/nowhere"))), 2).contains("is not a folder"));
    run(std::process::Command::new("mkdir").arg(here.join("empty")));
    assert!(stdout(&symbolize(&file, Some(&here.join("empty")))).contains("0 frames named, 2 remain"));
}
