// SPDX-License-Identifier: Apache-2.0
//! `watch --parquet`: its files have what the flight recording has, and each of them is whole.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use rusqlite::{Connection, OpenFlags};
use rustix::process::{Pid, Signal, kill_process};
use wallprof_testkit::lines::TIMEOUT;
use wallprof_testkit::machine;
use wallprof_testkit::scenario::Scenario;

use crate::watcher::Watcher;

/// Parts are of 15 s, and the flight recording has all of them until the test has read it.
const KEEP: &str = "59s";
const FOLDER: &str = "tables";
const TABLES: [&str; 3] = ["recordings", "ledger", "stalls"];

/// Nanoseconds, and rows.
type Sums = BTreeMap<String, (i64, i64)>;

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

fn is_table(file: &Path) -> bool {
    file.extension().is_some_and(|end| end == "parquet")
}

/// The files that a reader's pattern `TABLE/**/*.parquet` finds.
fn table(folder: &Path, name: &str) -> Vec<PathBuf> {
    files(&folder.join(FOLDER).join(name)).into_iter().filter(|file| is_table(file)).collect()
}

/// Calls `row` for each row of the table, with the values of these columns. Each file has to be whole.
fn each_row(folder: &Path, name: &str, columns: &[&str], mut row: impl FnMut(&[Field])) {
    for path in table(folder, name) {
        let file = File::open(&path).expect("a table");
        let reader = SerializedFileReader::new(file).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        for found in reader.get_row_iter(None).expect("rows") {
            let found = found.unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let values: BTreeMap<&String, &Field> = found.get_column_iter().collect();
            let values = columns.iter().map(|column| values[&(*column).to_owned()].clone());
            row(&values.collect::<Vec<_>>());
        }
    }
}

fn number(field: &Field) -> i64 {
    match field {
        Field::Long(number) => *number,
        other => panic!("a number: {other:?}"),
    }
}

fn text(field: &Field) -> &str {
    match field {
        Field::Str(text) => text,
        other => panic!("a text: {other:?}"),
    }
}

/// Time in each state, which the ledgers have second by second. `user` and `kernel` are exact as a sum.
fn states_in_tables(folder: &Path) -> Sums {
    let mut sums = Sums::new();
    each_row(folder, "ledger", &["state", "ns"], |row| {
        let state = text(&row[0]);
        let state = if matches!(state, "user" | "kernel") { "running" } else { state };
        sums.entry(state.to_owned()).or_default().0 += number(&row[1]);
    });
    sums.retain(|_, (ns, _)| *ns != 0);
    sums
}

fn stalls_in_tables(folder: &Path) -> Sums {
    let mut sums = Sums::new();
    each_row(folder, "stalls", &["reason", "asked_ns", "late_ns"], |row| {
        let (ns, count) = sums.entry(text(&row[0]).to_owned()).or_default();
        *ns += number(&row[1]) + number(&row[2]);
        *count += 1;
    });
    sums
}

const STATES: &str =
    "SELECT CASE WHEN state IN ('user', 'kernel') THEN 'running' ELSE state END AS part, sum(ns), 0
    FROM ledger GROUP BY part HAVING sum(ns) <> 0";
const STALLS: &str = "SELECT reason, sum(duration_ns), count(*) FROM stalls GROUP BY reason";

fn in_recording(folder: &Path, sql: &str) -> Sums {
    let file = folder.join("flight.db");
    let recording =
        Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).expect("the recording");
    let mut statement = recording.prepare(sql).expect("a statement");
    let rows = statement.query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?)))).expect("rows");
    rows.collect::<Result<_, _>>().expect("sums")
}

/// A watcher of the scenario, which writes tables.
fn watch(scenario: &Scenario) -> Watcher {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let tables = folder.path().join(FOLDER);
    let tables = tables.to_str().expect("a UTF-8 path").to_owned();
    Watcher::start_in(folder, &["-p", &scenario.pid(), "--keep", KEEP, "--parquet", &tables])
}

/// Waits for a file of a part.
fn wait_for_file(folder: &Path, pause: Duration, is_it: impl Fn(&Path) -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !files(&folder.join(FOLDER)).iter().any(|file| is_it(file)) {
        assert!(Instant::now() < deadline, "no part was written: {:?}", files(folder));
        std::thread::sleep(pause);
    }
}

fn check_tables_are_there(folder: &Path) {
    for name in TABLES {
        assert!(!table(folder, name).is_empty(), "{name}: {:?}", files(folder));
    }
}

/// The children of all threads of a process.
fn children(pid: u32) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the watcher's threads");
    let lists = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    let numbers: Vec<i32> = lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    numbers.into_iter().filter_map(Pid::from_raw).collect()
}

/// The tables of a watcher that SIGTERM ended.
fn check_whole_tables(folder: &Path) {
    check_tables_are_there(folder);
    assert!(table(folder, "ledger").len() >= 2, "a part, and the last one");
    let left: Vec<_> =
        files(folder).into_iter().filter(|file| file.to_string_lossy().ends_with(".part")).collect();
    assert!(left.is_empty(), "{left:?}");
    let (states, stalls) = (in_recording(folder, STATES), in_recording(folder, STALLS));
    assert!(stalls["lock"].1 > 0, "{stalls:?}");
    assert_eq!(states_in_tables(folder), states);
    assert_eq!(stalls_in_tables(folder), stalls);
}

/// The tables of a watcher that was killed with its writer.
fn check_tables_of_killed(folder: &Path) {
    for file in files(&folder.join(FOLDER)) {
        let name = file.file_name().and_then(|name| name.to_str()).expect("a UTF-8 name");
        assert!(is_table(&file) != name.starts_with('.'), "{name}");
    }
    let (states, stalls) = (in_recording(folder, STATES), in_recording(folder, STALLS));
    for (found, recorded) in [(states_in_tables(folder), states), (stalls_in_tables(folder), stalls)] {
        for (name, (ns, count)) in found {
            let (whole_ns, whole_count) = recorded.get(&name).copied().unwrap_or_default();
            // Unaccounted time may be negative.
            assert!(
                count <= whole_count && (ns <= whole_ns || name == "unaccounted"),
                "{name}: {ns}, {whole_ns}"
            );
        }
    }
}

/// SIGTERM ends one watcher after its first part. SIGKILL ends the other one with its writer as soon as a file of that
/// part is there, finished or not.
#[test]
fn tables_add_up_to_the_flight_recording_and_a_killed_watcher_leaves_none_unfinished() {
    let test = "tables_add_up_to_the_flight_recording_and_a_killed_watcher_leaves_none_unfinished";
    let Some(_guard) = machine::reserve(test) else { return };
    let mut scenario = Scenario::ready("lock", &["-d", "60", "-n", "20"]);
    let (watcher, killed) = (watch(&scenario), watch(&scenario));
    scenario.open_gate();
    wait_for_file(killed.folder.path(), Duration::from_millis(1), |_| true);
    let writers = children(killed.pid());
    let (_, left) = killed.kill();
    for writer in writers {
        // It may have ended.
        let _ = kill_process(writer, Signal::KILL);
    }
    wait_for_file(watcher.folder.path(), Duration::from_millis(200), is_table);
    let (status, folder) = watcher.stop();
    assert!(status.success());
    check_whole_tables(folder.path());
    check_tables_of_killed(left.path());
}
