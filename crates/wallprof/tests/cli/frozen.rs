// SPDX-License-Identifier: Apache-2.0
//! What released versions promised is still there: names that scripts, dashboards and queries use, and recordings.
//!
//! `tests/frozen/VERSION` has a list for each kind of name, and a recording. More names may come, and none may go
//! before a version whose first number is larger. `make freeze VERSION=0.2.0 RECORDING=FILE` makes the folder of a release
//! (docs/releasing.md).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use serde_json::Value;
use wallprof_testkit::program::wallprof;
use wallprof_testkit::stored;

use crate::fixture;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/frozen")
}

fn versions() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder()).expect("the folder of released versions");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

/// Compares the names of a kind with those of each released version, or writes the list of a version.
fn check(kind: &str, names: BTreeSet<String>) {
    if let Some(version) = std::env::var_os("WALLPROF_FREEZE") {
        let lines: String = names.iter().map(|name| format!("{name}\n")).collect();
        fs::create_dir_all(folder().join(&version)).expect("the folder of a version");
        fs::write(folder().join(version).join(format!("{kind}.txt")), lines).expect("a list");
    }
    let versions = versions();
    assert!(!versions.is_empty(), "no version is frozen");
    for version in versions {
        let path = version.join(format!("{kind}.txt"));
        let list = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(list.lines().count() > 10, "{} is nearly empty", path.display());
        let gone: Vec<&str> = list.lines().filter(|name| !names.contains(*name)).collect();
        assert!(gone.is_empty(), "{} promises these, and they are gone: {gone:#?}", path.display());
    }
}

fn printed(arguments: &[&str]) -> String {
    let output = wallprof(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The options of a help text: `-p`, `--pid`. They are further to the left than what is said of them.
fn options(help: &str) -> impl Iterator<Item = &str> {
    let is_option = |line: &&str| line.starts_with("  -") || line.starts_with("      --");
    help.lines().filter(is_option).flat_map(|line| {
        let words = line.split([' ', ',']).filter(|word| !word.is_empty());
        words.take_while(|word| word.starts_with('-'))
    })
}

#[test]
fn options_are_kept() {
    let help = printed(&["--help"]);
    let commands = help.split_once("Commands:\n").and_then(|(_, rest)| rest.split_once("\n\n")).unwrap().0;
    let commands = commands.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let mut names = BTreeSet::new();
    for command in commands.filter(|command| !command.is_empty() && *command != "help") {
        names.insert(command.to_owned());
        let help = printed(&[command, "--help"]);
        names.extend(options(&help).map(|option| format!("{command} {option}")));
    }
    check("options", names);
}

/// The fields of an object, those in them, and the values that a text may have.
fn add_fields(names: &mut BTreeSet<String>, at: &str, schema: &Value) {
    for (field, of) in schema["properties"].as_object().into_iter().flatten() {
        let name = format!("{at}.{field}");
        names.insert(name.clone());
        add_fields(names, &name, of);
    }
    for value in schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        names.insert(format!("{at} = {value}"));
    }
    for part in ["items", "additionalProperties"] {
        if schema[part].is_object() {
            add_fields(names, at, &schema[part]);
        }
    }
    for of in ["anyOf", "oneOf", "allOf"] {
        schema[of].as_array().into_iter().flatten().for_each(|part| add_fields(names, at, part));
    }
}

#[test]
fn fields_of_json_are_kept() {
    let schema: Value = serde_json::from_str(&printed(&["help", "schema"])).unwrap();
    let mut names = BTreeSet::new();
    for (name, of) in schema["$defs"].as_object().unwrap() {
        add_fields(&mut names, name, of);
    }
    check("json", names);
}

#[test]
fn columns_of_views_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fixture.db");
    fixture::write(&path, 1);
    let file = Connection::open(path).unwrap();
    let sql = "SELECT view.name || '.' || columns.name FROM sqlite_schema AS view
         JOIN pragma_table_info(view.name) AS columns WHERE view.type = 'view'";
    let mut columns = file.prepare(sql).unwrap();
    let columns = columns.query_map([], |row| row.get(0)).unwrap();
    check("views", columns.collect::<rusqlite::Result<_>>().unwrap());
}

#[test]
fn columns_of_parquet_tables_are_kept() {
    let columns = wallprof_tables::TABLES.iter().flat_map(|table| {
        table.columns.iter().map(|(column, kind)| format!("{}.{column} {kind:?}", table.name))
    });
    check("parquet", columns.collect());
}

#[test]
fn names_of_metrics_are_kept() {
    check("metrics", wallprof_watch::NAMES.map(str::to_owned).into());
}

#[test]
fn names_of_findings_are_kept() {
    check("findings", wallprof_findings::RULES.iter().map(|rule| rule.name.to_owned()).collect());
}

fn numbers_in(value: &Value) -> u64 {
    let inner = value.as_object().map(|fields| fields.values().map(numbers_in).sum());
    value.as_u64().or(inner).unwrap_or(0)
}

/// The recording of a version has a lock among its findings, and figures that add up.
#[test]
fn recordings_of_released_versions_open() {
    if let (Some(version), Some(recording)) =
        (std::env::var_os("WALLPROF_FREEZE"), std::env::var_os("WALLPROF_FREEZE_RECORDING"))
    {
        stored::store(&folder().join(version).join("recording.zst"), Path::new(&recording));
    }
    for version in versions() {
        let recording = stored::file(&version.join("recording.zst"));
        let report: Value = serde_json::from_str(&recording.read("report", &["--json"])).unwrap();
        let findings = report["findings"].as_array().unwrap();
        assert!(
            findings.iter().any(|finding| finding["rule"] == "lock-wait"),
            "{}: {findings:#?}",
            version.display()
        );
        let threads = report["threads"].as_array().unwrap();
        assert!(threads.len() > 2, "{} threads in {}", threads.len(), version.display());
        for thread in threads {
            let states = numbers_in(&thread["states"]) + thread["unaccounted_ns"].as_u64().unwrap();
            assert_eq!(thread["wall_ns"], states, "{}: {thread}", version.display());
        }
        for reader in ["stalls", "blame"] {
            assert!(!recording.read(reader, &[]).is_empty(), "{reader} of {}", version.display());
        }
        let view_file = Connection::open(recording.path()).unwrap();
        let columns = fs::read_to_string(version.join("views.txt")).unwrap();
        for column in columns.lines() {
            let (view, column) = column.split_once('.').unwrap();
            let sql = format!("SELECT count(\"{column}\") FROM {view}");
            view_file.query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap();
        }
    }
}
