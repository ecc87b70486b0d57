// SPDX-License-Identifier: Apache-2.0
//! `wallprof runs` and `wallprof check` on recordings written for the purpose.

use std::path::Path;
use std::process::Output;

use crate::program::wallprof;
use crate::written::Written;

/// Five seconds of a thread that waits this long for a lock in each.
fn write(folder: &Path, name: &str, process: &str, lock_ms: u64, labels: &[(&str, &str)]) {
    Written { process, function: "take", seconds: 5, lock_ms }.write_labelled(folder, name, labels);
}

/// Three runs a version, the second one with longer waits.
fn versions(folder: &Path) {
    for (version, lock_ms) in [("1.3", 100), ("1.4", 150)] {
        for run in 0..3 {
            write(folder, &format!("{version}-{run}.db"), "app", lock_ms + run, &[("version", version)]);
        }
    }
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    wallprof().current_dir(folder).args(arguments).output().expect("the binary runs")
}

fn text(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The sentence of a command that ends with this code.
fn refused(folder: &Path, arguments: &[&str], code: i32) -> String {
    let output = run(folder, arguments);
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    assert!(error.lines().count() == 1 && error.starts_with("wallprof: "), "{arguments:?}: {error}");
    error
}

#[test]
fn longer_waits_of_a_version_are_news_and_equal_versions_have_none() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    versions(folder.path());
    let compared = text(folder.path(), &["runs", ".", "--compare", "version"]);
    let title = "version=1.4 (3 runs) against version=1.3 (3 runs)";
    assert!(compared.contains(title), "{compared}");
    assert!(compared.contains("+50 %") && compared.contains("app/app: blocked:lock"), "{compared}");
    let equal = tempfile::tempdir().expect("a temporary directory");
    for run in 0..6 {
        let version = if run % 2 == 0 { "a" } else { "b" };
        write(equal.path(), &format!("{run}.db"), "app", 100 + 3 * (run / 2), &[("version", version)]);
    }
    let compared = text(equal.path(), &["runs", ".", "--compare", "version"]);
    assert!(compared.contains("no difference beyond the noise between equal runs"), "{compared}");
    let trend = text(folder.path(), &["runs", ".", "--trend", "version", "--json"]);
    let figures: serde_json::Value = serde_json::from_str(&trend).expect("JSON");
    assert_eq!(figures["blocked:lock"]["time-per-second"]["value"], 151_000_000.0, "the newest version's");
}

#[test]
fn runs_without_a_common_thread_or_label_are_named() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    write(folder.path(), "a.db", "app", 100, &[("version", "1")]);
    write(folder.path(), "b.db", "other", 100, &[("version", "2")]);
    let compare = |key| refused(folder.path(), &["runs", ".", "--compare", key], 1);
    let error = compare("version");
    assert!(error.contains("version=1 and version=2 have no thread in common"), "{error}");
    let error = compare("arm");
    assert!(error.contains("no recording has the label arm, they have the labels version"), "{error}");
    let error = refused(folder.path(), &["runs", ".", "--only", "version=3"], 1);
    assert!(error.contains("there is no recording with these labels"), "{error}");
    write(folder.path(), "b.db", "other", 100, &[("version", "1")]);
    assert!(compare("version").contains("all recordings with the label version have the value `1`"));
}

#[test]
fn label_of_10_kb_or_with_hostile_text_does_no_harm() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let long = format!("'; DROP TABLE stall; --\u{202e}\u{1b}[31m{}", "x".repeat(10_000));
    let label = |value: &str| format!("--label=version={value}");
    let error = refused(folder.path(), &["record", &label(&long), "-a", "-d", "1", "-o", "never.db"], 2);
    assert!(error.contains("use at most 256") && error.len() < 1_000 && !error.contains('\u{1b}'), "{error}");
    // A foreign recording has it nonetheless.
    for (name, value) in [("a.db", "1"), ("b.db", &long)] {
        write(folder.path(), name, "app", 100, &[("version", value)]);
    }
    for arguments in [&["runs", "."][..], &["runs", ".", "--compare", "version"], &["report", "b.db"]] {
        let shown = text(folder.path(), arguments);
        assert!(shown.contains("DROP TABLE stall") && shown.len() < 10_000, "{arguments:?}: {shown}");
        assert!(!shown.contains('\u{202e}') && !shown.contains('\u{1b}'), "{arguments:?}: {shown}");
    }
    let exported = text(folder.path(), &["export", "b.db", "--to", "parquet", "-o", "tables"]);
    assert_eq!(exported, "");
}

#[test]
fn gate_ends_with_5_and_a_sentence_for_each_limit_that_does_not_hold() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    write(folder.path(), "r.db", "app", 100, &[]);
    let check = |arguments: &[&str]| run(folder.path(), &[&["check", "r.db"], arguments].concat());
    let holds =
        check(&["--max", "reason:lock=100ms/s", "--max", "reason:disk=0/s", "--no-finding", "deadlock"]);
    let error = String::from_utf8_lossy(&holds.stderr);
    assert_eq!((holds.status.code(), error.as_ref()), (Some(0), ""));
    let violated =
        check(&["--max", "reason:lock=99ms/s", "--max", "reason:sleep=1us/s", "--max", "reason:poll=1s/s"]);
    let error = String::from_utf8_lossy(&violated.stderr);
    assert_eq!(violated.status.code(), Some(5), "{error}");
    let sentences: Vec<&str> = error.lines().collect();
    assert_eq!(sentences.len(), 2, "{error}");
    assert!(sentences[0].contains("the reason lock took 100 ms of each second"), "{error}");
    assert!(sentences[0].contains("more than the limit of 99"), "{error}");
    let missing = refused(folder.path(), &["check", "r.db", "--max", "span:order:p99=1ms"], 1);
    assert!(missing.contains("there is no span of this kind"), "{missing}");
}
