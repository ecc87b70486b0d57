// SPDX-License-Identifier: Apache-2.0
//! `demo`: the workload that comes with the binary.

use wallprof_testkit::machine;
use wallprof_testkit::program::run;

#[test]
fn an_unknown_scenario_is_refused_with_those_there_are() {
    let output = run(&["demo", "lokc"]);
    let says = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{says}");
    assert!(says.contains("`lokc`") && says.contains("preempted, fsync"), "{says}");
}

#[test]
fn demo_records_reports_draws_and_explains() {
    let Some(_guard) = machine::reserve("demo_records_reports_draws_and_explains") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("demo.db");
    let output = run(&["demo", "-d", "2s", "-o", file.to_str().unwrap()]);
    let (text, says) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{says}");
    assert!(text.contains("housekeeper") && text.contains("What to look at"), "{text}");
    assert!(!text.contains("\"event\""), "the scenario's own truth is no part of a demo: {text}");
    let picture = std::fs::read_to_string(folder.path().join("demo.svg")).unwrap();
    assert!(picture.contains("<svg") && picture.contains("take_registry_lock"));
    assert!(run(&["stalls", file.to_str().unwrap()]).status.success());
}
