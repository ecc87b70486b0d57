// SPDX-License-Identifier: Apache-2.0
//! Names while recording and importing.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use wallprof_testkit::machine;
use wallprof_testkit::recorder::wallprof;

use crate::program::Split;
use crate::server::{Debuginfod, Silent};

/// Records the program. Returns what was on stderr.
fn record(split: &Split, program: &Path, urls: Option<&str>) -> String {
    let mut recorder = wallprof();
    with_servers(&mut recorder, split, urls);
    said(recorder.args(["record", "-o"]).arg(file(split)).arg("--").arg(program).output())
}

fn with_servers(command: &mut Command, split: &Split, urls: Option<&str>) {
    if let Some(urls) = urls {
        command.env("DEBUGINFOD_URLS", urls).env("DEBUGINFOD_CACHE_PATH", split.folder().join("cache"));
    }
}

fn said(output: std::io::Result<Output>) -> String {
    let output = output.expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    stderr
}

fn file(split: &Split) -> std::path::PathBuf {
    split.folder().join("recorded.db")
}

/// The functions of these that are in the recording's stacks, which are printed for a failed test. Inlined ones depend
/// on where samples hit.
fn known(split: &Split) -> Vec<&'static str> {
    let output = wallprof().args(["export", "--to", "folded", "-o", "-"]).arg(file(split)).output();
    let output = output.expect("the binary runs");
    assert!(output.status.success(), "{output:?}");
    let folded = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{folded}");
    let has = |name: &&str| folded.lines().any(|line| line.split(';').any(|frame| frame == *name));
    ["exported", "hidden"].into_iter().filter(has).collect()
}

#[test]
fn a_stripped_program_is_named_by_its_dynamic_symbols_and_by_servers() {
    let Some(_guard) = machine::reserve("a stripped program and servers") else { return };
    let split = Split::new();
    record(&split, &split.stripped(), None);
    assert_eq!(known(&split), ["exported"], "without a server");
    let folder = split.copy_in("served", "app.debug", &split.debug());
    let server = Debuginfod::serving(&folder, &split.hex());
    let said = record(&split, &split.stripped(), Some(&server.url()));
    assert!(said.contains("debug files: 1 downloaded"), "{said}");
    assert_eq!(known(&split), ["exported", "hidden"]);
}

#[test]
fn mini_debug_info_names_a_stripped_program() {
    let Some(_guard) = machine::reserve("MiniDebugInfo") else { return };
    let split = Split::new();
    record(&split, &split.with_mini_debug_info(), None);
    assert_eq!(known(&split), ["exported", "hidden"]);
}

#[test]
fn a_recording_ends_without_a_servers_answer() {
    let Some(_guard) = machine::reserve("a server without an answer") else { return };
    let split = Split::new();
    let silent = Silent::start();
    let said = record(&split, &split.stripped(), Some(&silent.url));
    assert!(said.contains("not complete in time") && said.contains("wallprof symbolize"), "{said}");
    assert_eq!(known(&split), ["exported"]);
}

#[test]
fn a_program_that_lacks_nothing_is_not_asked_for() {
    let Some(_guard) = machine::reserve("a program that lacks nothing") else { return };
    let split = Split::new();
    let silent = Silent::start();
    record(&split, &split.whole(), Some(&silent.url));
    assert_eq!(known(&split), ["exported", "hidden"]);
    let asked: Vec<String> = silent.requests.try_iter().collect();
    assert!(asked.iter().all(|path| !path.contains(&split.hex())), "{asked:?}");
}

#[test]
fn an_import_is_named_by_servers_too() {
    let split = Split::new();
    let data = split.folder().join("perf.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-B", "-N", "-g", "-e", "cpu-clock", "-o"])
        .arg(&data)
        .arg("--")
        .arg(split.stripped());
    let recorded = perf.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !recorded.is_ok_and(|status| status.success()) {
        let required = std::env::var_os("WALLPROF_REQUIRE_BPF").is_some_and(|value| value == "1");
        assert!(!required, "perf cannot record");
        return wallprof_testkit::skip("an import and servers", "perf does not work here");
    }
    let import = |urls: Option<&str>| {
        let mut command = wallprof();
        with_servers(&mut command, &split, urls);
        said(command.arg("import").arg(&data).arg("-o").arg(file(&split)).output())
    };
    import(None);
    assert_eq!(known(&split), ["exported"]);
    let folder = split.copy_in("served", "app.debug", &split.debug());
    let server = Debuginfod::serving(&folder, &split.hex());
    import(Some(&server.url()));
    assert_eq!(known(&split), ["exported", "hidden"]);
}
