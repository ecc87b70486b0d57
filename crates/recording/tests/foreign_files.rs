// SPDX-License-Identifier: Apache-2.0
//! Files that are no recording, are damaged, or were made by an attacker give an error in one sentence and
//! never a panic.

mod fixture;

use std::fs;
use std::path::Path;

use fixture::*;
use rusqlite::Connection;
use wallprof_model::event::{Fault, Stall};
use wallprof_model::{CallFrame, CallNumbers, CallPath, CallPathId, Event, FrameId, Outside, ThreadKey};
use wallprof_recording::{
    Additions, Conclusions, Error, Naming, Recorder, Recording, Result, SCHEMA, StallFilter, write_findings,
};

/// A finished recording with rows in most tables.
fn recorded(path: &Path) {
    let mut recorder = recorder(path);
    take_all(&mut recorder, definitions());
    for index in 0..200 {
        let stall = Stall { user: Some(USER), kernel: Some(KERNEL), ..stall(index * 10, index) };
        recorder.take(Event::Stall(Box::new(stall))).unwrap();
        recorder.take(Event::Sample(sample(index as u32, 5))).unwrap();
        recorder.take(Event::Ledger(ledger(index as u32, 5))).unwrap();
    }
    let numbers = CallNumbers { calls: 1, ..CallNumbers::default() };
    let path = |id, parent, frame| CallPath {
        id: CallPathId(id),
        thread: ThreadKey(7),
        parent,
        frame,
        numbers: numbers.clone(),
    };
    recorder.take(Event::CallPath(Box::new(path(0, None, CallFrame::Code(FrameId(0)))))).unwrap();
    let outside = CallFrame::Outside(Outside::Lost);
    recorder.take(Event::CallPath(Box::new(path(1, Some(CallPathId(0)), outside)))).unwrap();
    recorder.finish(at(5_000)).unwrap();
}

/// Reads everything.
fn read_all(path: &Path) -> Result<()> {
    let recording = Recording::open(path)?;
    recording.info()?;
    recording.threads()?;
    recording.interrupts()?;
    recording.folded()?;
    for stall in recording.stalls(&StallFilter { include_voluntary: true, ..StallFilter::default() })? {
        stall?;
    }
    for row in recording.ledger(..)? {
        row?;
    }
    for row in recording.samples(..)? {
        if let Some(stack) = row?.user {
            recording.resolve(stack)?;
        }
    }
    for thread in recording.threads_with_calls()? {
        recording.calls(thread)?;
    }
    Ok(())
}

fn sqlite(path: &Path, sql: &str) {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_DEFENSIVE, false).unwrap();
    connection.execute_batch(sql).unwrap();
}

#[test]
fn missing_empty_and_foreign_files_are_named() {
    let place = place();
    let path = place.file();
    assert!(matches!(Recording::open(&path).err(), Some(Error::NotFound { .. })));
    fs::write(&path, "").unwrap();
    assert!(matches!(Recording::open(&path).err(), Some(Error::Empty { .. })));
    fs::write(&path, "PERFILE2 and so on, for more than a hundred bytes".repeat(9)).unwrap();
    assert!(matches!(Recording::open(&path).err(), Some(Error::NotARecording { .. })));
    assert!(matches!(Recording::open(place.folder()).err(), Some(Error::NotARecording { .. })));
    fs::remove_file(&path).unwrap();
    sqlite(&path, "CREATE TABLE of_others (x)");
    assert!(matches!(Recording::open(&path).err(), Some(Error::NotARecording { .. })));
}

#[test]
fn newer_schema_is_refused() {
    let place = place();
    recorded(&place.file());
    sqlite(&place.file(), "PRAGMA user_version = 7");
    let error = Recording::open(&place.file()).err().unwrap();
    assert!(matches!(error, Error::NewerSchema { found: 7, known: SCHEMA, .. }), "{error}");
}

#[test]
fn every_truncation_is_an_error() {
    let place = place();
    recorded(&place.file());
    read_all(&place.file()).unwrap();
    let whole = fs::read(place.file()).unwrap();
    let cut = place.folder().join("cut.db");
    for length in (1..whole.len()).step_by(509).chain([99, 100, 4096, whole.len() - 1]) {
        fs::write(&cut, &whole[..length]).unwrap();
        let error = read_all(&cut).expect_err("a truncated file");
        assert!(matches!(error, Error::Truncated { .. }), "{length} bytes: {error}");
    }
}

#[test]
fn truncated_log_loses_only_its_end() {
    let place = place();
    let mut recorder = recorder(&place.file());
    take_all(&mut recorder, definitions());
    recorder.commit(at(10)).unwrap();
    recorder.take(Event::Stall(Box::new(stall(0, 10)))).unwrap();
    recorder.commit(at(20)).unwrap();
    let (file, wal) = (place.folder().join("copy.db"), place.folder().join("copy.db-wal"));
    let whole = fs::read(place.folder().join("wallprof.db-wal")).unwrap();
    let mut lasts = Vec::new();
    for length in (0..=whole.len()).step_by(1031).chain([whole.len()]) {
        fs::copy(place.file(), &file).unwrap();
        fs::write(&wal, &whole[..length]).unwrap();
        read_all(&file).unwrap_or_else(|error| panic!("{length} bytes of the log: {error}"));
        lasts.push(Recording::open(&file).unwrap().info().unwrap().end);
    }
    assert!(lasts.is_sorted());
    lasts.dedup();
    assert_eq!(lasts, [START, at(10), at(20)]);
}

/// Garbage in any page gives an error or other values, but no panic and no endless loop.
#[test]
fn garbage_in_any_page_does_not_panic() {
    let place = place();
    recorded(&place.file());
    let whole = fs::read(place.file()).unwrap();
    let bad = place.folder().join("bad.db");
    let mut errors = 0;
    for page in 0..whole.len() / 4096 {
        for (offset, garbage) in [(0, 0xffu8), (8, 0x00), (100, 0x7f), (2000, 0xff), (4000, 0x80)] {
            let mut bytes = whole.clone();
            let at = (page * 4096 + offset).max(100);
            bytes[at..at + 90].fill(garbage);
            fs::write(&bad, &bytes).unwrap();
            errors += usize::from(read_all(&bad).is_err());
        }
    }
    assert!(errors > 10, "only {errors} damages were noticed");
}

#[test]
fn invalid_values_are_errors() {
    let place = place();
    for damage in [
        "UPDATE node SET parent = id",
        "UPDATE node SET id = id + 1000000 WHERE frame IS NOT NULL",
        "UPDATE node SET frame = 999 WHERE frame IS NOT NULL",
        "UPDATE node SET parent = 'x' WHERE frame IS NOT NULL",
        "UPDATE frame SET kind_code = 9",
        "UPDATE frame SET module = NULL, kind_code = -1",
        "UPDATE stall SET reason_code = 15",
        "UPDATE stall SET duration_ns = -1",
        "UPDATE stall SET thread = 99",
        "UPDATE stall SET user_stack = 99999999",
        "UPDATE stall SET comm = 99999",
        "UPDATE stall SET flags = flags | 4; \
         INSERT INTO stall_fault (stall, address, major) VALUES (1, 'x', 0)",
        "UPDATE sample SET state_or_event = 200",
        "UPDATE sample SET weight = 1e300",
        "UPDATE bucket SET wall_ns = -5",
        "UPDATE thread SET tid = 1 << 40",
        "UPDATE text SET text = x'ff00'",
        "UPDATE text SET text = zeroblob(3000000)",
        "INSERT INTO latency_cell (flush_second, thread, metric_code, bucket, count, total_ns, max_ns)
             VALUES (0, 1, 0, 60000, 1, 1, 1)",
        "INSERT INTO interrupt (flush_second, cpu, kind, name, victim, count, total_ns, max_ns)
             VALUES (0, 1, 'sparkle', 1, 0, 1, 1, 1)",
        "UPDATE call_path SET parent = 2 WHERE id = 1",
        "UPDATE call_path SET parent = 'x' WHERE id = 2",
        "UPDATE call_path SET frame = 99 WHERE frame IS NOT NULL",
        "UPDATE call_path SET outside_code = 9 WHERE frame IS NULL",
        "UPDATE call_path SET self_ns = -1",
        "INSERT INTO call_cell (path, bucket, count, total_ns, max_ns) VALUES (1, 60000, 1, 1, 1)",
        "DELETE FROM recording",
        "DROP TABLE sample",
        "DROP TABLE text; CREATE VIEW text AS SELECT 1 AS id, 'x' AS text",
    ] {
        recorded(&place.file());
        sqlite(&place.file(), damage);
        let error = read_all(&place.file()).err().unwrap_or_else(|| panic!("not noticed: {damage}"));
        assert!(matches!(error, Error::Corrupt { .. }), "{damage}: {error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn error_in_a_stall_is_reported_once() {
    let place = place();
    recorded(&place.file());
    sqlite(&place.file(), "UPDATE stall SET user_stack = 99999999 WHERE id = 5");
    let recording = Recording::open(&place.file()).unwrap();
    let results: Vec<bool> =
        recording.stalls(&StallFilter::default()).unwrap().map(|stall| stall.is_ok()).collect();
    assert_eq!(results.len(), 200);
    assert_eq!(results.iter().filter(|is_ok| !**is_ok).count(), 1);
}

#[test]
fn recording_in_use_is_not_replaced() {
    let place = place();
    let first = recorder(&place.file());
    // Another process would see the same, because SQLite's locks decide and not this recorder.
    let second = Recorder::create(&place.file(), &start()).err();
    assert!(matches!(second, Some(Error::InUse { .. })), "{second:?}");
    first.finish(at(1)).unwrap();
    recorder(&place.file()).finish(at(1)).unwrap();
}

#[test]
fn fault_without_its_row_lacks_only_its_facts() {
    let place = place();
    let mut recorder = recorder(&place.file());
    take_all(&mut recorder, definitions());
    let fault = Fault { address: 1, access: None, major: true, mapping: None, file: None, file_offset: None };
    let stall = Stall { kind: wallprof_model::StallKind::Fault, fault: Some(fault), ..stall(0, 10) };
    recorder.take(Event::Stall(Box::new(stall))).unwrap();
    recorder.finish(at(50)).unwrap();
    sqlite(&place.file(), "DELETE FROM stall_fault");
    read_all(&place.file()).unwrap();
}

/// Parts of a schema that SQLite would run or evaluate when a row is added or read.
const HOSTILE: [&str; 4] = [
    "CREATE TRIGGER evil AFTER INSERT ON mark BEGIN DELETE FROM thread; END",
    "CREATE TRIGGER endless AFTER INSERT ON finding BEGIN
         INSERT INTO text WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, i FROM n; END",
    "CREATE INDEX costly ON line (length(printf('%.*c', 100000000, 'x')))",
    "ALTER TABLE mark ADD COLUMN evil DEFAULT (length(randomblob(100000000)))",
];

#[test]
fn no_code_of_a_file_runs() {
    for sql in HOSTILE {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        recorded(&path);
        let file = Connection::open(&path).unwrap();
        if file.execute_batch(sql).is_err() {
            assert!(
                sql.starts_with("ALTER"),
                "{sql}: SQLite adds no such column; written by hand it would be there"
            );
            continue;
        }
        drop(file);
        let before = std::fs::read(&path).unwrap();
        assert!(matches!(Recording::open(&path), Err(Error::Corrupt { .. })), "{sql}");
        assert!(matches!(Additions::open(&path), Err(Error::Corrupt { .. })), "{sql}");
        assert!(matches!(Naming::open(&path), Err(Error::Corrupt { .. })), "{sql}");
        assert!(
            matches!(write_findings(&path, &Conclusions::default()), Err(Error::Corrupt { .. })),
            "{sql}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), before, "{sql}");
    }
}

#[test]
fn tables_and_indexes_of_users_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    recorded(&path);
    sqlite(&path, "CREATE TABLE notes (text TEXT DEFAULT 'none'); CREATE INDEX mine ON stall (start_ns)");
    assert!(Recording::open(&path).is_ok());
    assert!(Additions::open(&path).is_ok());
}

#[test]
fn lines_of_a_frame_are_limited() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    recorded(&path);
    sqlite(
        &path,
        "INSERT OR IGNORE INTO line WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000000)
         SELECT (SELECT min(id) FROM frame), i, NULL, 0, NULL, i, 1 FROM n",
    );
    let recording = Recording::open(&path).unwrap();
    let stalls = recording.stalls(&StallFilter::default()).unwrap();
    let longest = stalls
        .flat_map(|stall| stall.unwrap().user)
        .flat_map(|stack| stack.frames.iter().map(|frame| frame.lines.len()).collect::<Vec<_>>());
    assert_eq!(longest.max(), Some(256));
}
