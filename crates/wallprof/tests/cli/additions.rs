// SPDX-License-Identifier: Apache-2.0
//! `import --metrics` and `--marks`: numbers and events of the application beside the stalls.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use wallprof_testkit::program::{refused, run};

use crate::fixture;

/// A recording with one stall, and a CSV file with these lines.
fn prepared(lines: &str) -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (recording, csv) = (folder.path().join("fixture.db"), folder.path().join("rows.csv"));
    fixture::write(&recording, 1);
    fs::write(&csv, lines).unwrap();
    (folder, recording, csv)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn said(arguments: &[&str]) -> String {
    let output = run(arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

fn shown(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn marks_stand_beside_the_stalls_and_in_the_report() {
    let (_folder, recording, csv) = prepared("time,text,duration\n+0.1s,gap \u{1b}[31malarm,20ms\n");
    assert!(said(&["import", "--marks", text(&csv), text(&recording)]).contains("added 1 mark to "));
    // Again, with the recording named by -o: the mark is the same.
    said(&["import", "--marks", text(&csv), "-o", text(&recording)]);
    for command in ["stalls", "report"] {
        let text = shown(&[command, text(&recording)]);
        assert_eq!(text.matches("gap \\x1b[31malarm").count(), 1, "{text}");
    }
    let json = shown(&["stalls", "--json", text(&recording)]);
    let stall: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(stall["marks"][0]["duration_ns"], 20_000_000);
    assert_eq!(stall["counters"], serde_json::Value::Null, "it has none");
}

#[test]
fn a_metric_that_moved_is_a_counter_of_the_stall() {
    let (_folder, recording, csv) = prepared("");
    let before = shown(&["stalls", "--json", text(&recording)]);
    let stall: serde_json::Value = serde_json::from_str(before.lines().next().unwrap()).unwrap();
    let start = stall["start_ns"].as_u64().unwrap();
    let rows: [(i64, f64); 4] =
        [(-900_000_000, 10.0), (-100_000_000, 11.0), (1_000, 900.0), (600_000_000, 12.0)];
    let lines = rows.map(|(after, value)| format!("{},depth,{value}\n", start.saturating_add_signed(after)));
    fs::write(&csv, lines.concat()).unwrap();
    assert!(said(&["import", "--metrics", text(&csv), text(&recording)]).contains("added 4 values to "));
    let json = shown(&["stalls", "--json", text(&recording)]);
    let stall: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    let depth = &stall["counters"]["depth"];
    assert_eq!([&depth["before"], &depth["at"], &depth["after"]], [10.5, 900.0, 12.0], "{stall}");
    assert!(shown(&["stalls", text(&recording)]).contains("depth 10.5"));
}

#[test]
fn bad_rows_are_named_and_the_good_ones_kept() {
    let (_folder, recording, csv) =
        prepared("+1ms,a,1\nsoon,a,2\n+3ms,a,x\n\n+5ms,,1\n1999-01-01T00:00:00Z,a,1\n+7ms,b,1\n");
    let said = said(&["import", "--metrics", text(&csv), text(&recording)]);
    for line in [2, 3, 5] {
        assert!(said.contains(&format!("line {line} of ")), "{said}");
    }
    assert!(said.contains("1 rows of ") && said.contains("outside the recording"), "{said}");
    assert!(said.ends_with("shows them\n") && said.contains("added 2 values to "), "{said}");
}

#[test]
fn nothing_good_is_a_failure_and_leaves_the_recording_as_it_was() {
    let (folder, recording, csv) = prepared("+1ms,a,1\n");
    let whole = shown(&["stalls", "--json", text(&recording)]);
    for lines in ["", "time,name,value\n", "1999-01-01T00:00:00Z,a,1\n"] {
        let bad = folder.path().join("bad.csv");
        fs::write(&bad, lines).unwrap();
        let sentence =
            refused(&["import", "--metrics", text(&csv), "--metrics", text(&bad), text(&recording)], 1);
        assert!(sentence.starts_with("nothing was added: "), "{sentence}");
    }
    assert_eq!(shown(&["stalls", "--json", text(&recording)]), whole, "not the good file's either");
    refused(&["import", "--metrics", "/nonexistent.csv", text(&recording)], 1);
    refused(&["import", "--metrics", text(&csv), "/nonexistent.db"], 1);
    refused(&["import"], 2);
    refused(&["import", "--metrics", text(&csv), text(&recording), "-o", "other.db"], 2);
}
