// SPDX-License-Identifier: Apache-2.0
//! Snapshots: some seconds of a recording that is being written, as a recording of their own.
//!
//! This module reads the one file and writes the other. The recorder takes no part and does not wait, and it
//! may run in this same process: only SQLite opens the flight recording, and SQLite keeps the locks of a
//! process together.

use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use wallprof_model::MonoNs;

use crate::error::{Action, Error, Result};
use crate::lists;
use crate::new_file;
use crate::schema;
use crate::start::RecordingStart;

const NS_PER_SECOND: i64 = 1_000_000_000;

/// Snapshots that may start in the same second.
const SAME_SECOND: u32 = 1_000;

/// Writes the whole seconds around `during` of the bounded recording `flight` into a new recording in
/// `folder`, which is named by its start. Stalls keep their ids. After an error, nothing is left in the
/// folder.
pub fn write_snapshot(flight: &Path, during: Range<MonoNs>, folder: &Path) -> Result<PathBuf> {
    let flight = flight.canonicalize().map_err(|error| Error::from_io(flight, Action::Read, error))?;
    let part = folder.join(format!(".wallprof-{}.part", std::process::id()));
    let part = new_file::create(&part, &RecordingStart::default())?;
    let written = fill(&flight, &part, &during).and_then(|name| put_in_place(&part, folder, &name));
    if written.is_err() {
        // The first error explains more than an error of the cleanup.
        let _ = new_file::remove_with_side_files(&part);
    }
    written
}

/// Returns the name of the snapshot, without its extension.
fn fill(flight: &Path, part: &Path, during: &Range<MonoNs>) -> Result<String> {
    let writing = |source| Error::from_sqlite(part, Action::Write, source);
    let connection = connect(part).map_err(writing)?;
    attach(&connection, flight).map_err(|source| Error::from_sqlite(flight, Action::Read, source))?;
    let name = copy(&connection, during).map_err(writing)?;
    connection.close().map_err(|(_, source)| writing(source))?;
    name.ok_or_else(|| Error::NothingKept { path: flight.to_owned() })
}

fn connect(part: &Path) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(part, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(()))?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(connection)
}

fn attach(to: &Connection, flight: &Path) -> rusqlite::Result<()> {
    // A path need not be text.
    to.execute("ATTACH ? AS flight", [flight.as_os_str().as_bytes()])?;
    to.query_row("SELECT count(*) FROM flight.recording", [], |_| Ok(()))
}

/// Returns `None` if the recording holds nothing of that time.
fn copy(connection: &Connection, during: &Range<MonoNs>) -> rusqlite::Result<Option<String>> {
    // Deferred: it must not lock the flight recording against its recorder.
    connection.execute_batch("BEGIN")?;
    let Some(cut) = Cut::find(connection, during)? else { return Ok(None) };
    connection.execute_batch(
        "CREATE TEMP TABLE cut (start_ns INTEGER, end_ns INTEGER);
         CREATE TEMP TABLE cut_second (second INTEGER PRIMARY KEY)",
    )?;
    connection
        .execute("INSERT INTO cut (start_ns, end_ns) VALUES (?, ?)", params![cut.start_ns, cut.end_ns])?;
    let mut insert = connection.prepare("INSERT OR IGNORE INTO cut_second (second) VALUES (?)")?;
    for second in cut.seconds.iter().flat_map(|(first, last)| *first..=*last) {
        insert.execute([second])?;
    }
    connection.execute_batch(&copying(connection)?)?;
    let time = "SELECT strftime('wallprof-%Y%m%dT%H%M%SZ', ?, 'unixepoch')";
    let name = connection.query_row(time, [cut.seconds[0].0], |row| row.get(0))?;
    connection.execute_batch("COMMIT")?;
    Ok(Some(name))
}

/// The statements of snapshot.sql with every `COPY` expanded.
fn copying(connection: &Connection) -> rusqlite::Result<String> {
    let mut sql = String::new();
    for line in include_str!("../sql/snapshot.sql").lines() {
        match line
            .strip_prefix("COPY ")
            .map(|copied| copied.split_at(copied.find([' ', ';']).unwrap_or(copied.len())))
        {
            None => sql.push_str(line),
            Some((table, rest)) => {
                let columns = schema::columns(connection, table)?.join(", ");
                sql.push_str(&format!(
                    "INSERT INTO main.{table} ({columns}) SELECT {columns} FROM flight.{table}{rest}"
                ));
            }
        }
        sql.push('\n');
    }
    Ok(lists::expand(&sql))
}

/// Whole seconds, cut at the start and the end of the recording.
struct Cut {
    /// The first and the last second: once, and once more after each step of the wall clock.
    seconds: Vec<(i64, i64)>,
    start_ns: i64,
    end_ns: i64,
}

impl Cut {
    fn find(connection: &Connection, during: &Range<MonoNs>) -> rusqlite::Result<Option<Cut>> {
        let signed = |at: MonoNs| i64::try_from(at.0).unwrap_or(i64::MAX);
        let (kept_from, kept_to): (i64, i64) = connection.query_row(
            "SELECT start_ns, coalesce(end_ns, last_ns) AS last_ns FROM flight.recording",
            [],
            |row| Ok((row.get("start_ns")?, row.get("last_ns")?)),
        )?;
        let (from, to) = (signed(during.start).max(kept_from), signed(during.end).min(kept_to));
        if from >= to {
            return Ok(None);
        }
        let mut steps = connection.prepare(
            "SELECT mono_ns, epoch_ns - mono_ns FROM flight.clock WHERE mono_ns > ? AND mono_ns < ? ORDER BY mono_ns",
        )?;
        let steps = steps.query_map([from, to], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut pieces: Vec<(i64, i64)> = vec![(from, offset_at(connection, from)?)];
        pieces.extend(steps.collect::<rusqlite::Result<Vec<(i64, i64)>>>()?);
        let ends = pieces.iter().skip(1).map(|(start, _)| *start).chain([to]);
        let second = |at: i64, offset: i64| at.saturating_add(offset).div_euclid(NS_PER_SECOND);
        let seconds: Vec<(i64, i64)> = pieces
            .iter()
            .zip(ends)
            .map(|((start, offset), end)| (second(*start, *offset), second(end.saturating_sub(1), *offset)))
            .collect();
        let start = |second: i64, offset: i64| second.saturating_mul(NS_PER_SECOND).saturating_sub(offset);
        let ((first, _), (_, last)) = (seconds[0], seconds[seconds.len() - 1]);
        let start_ns = start(first, pieces[0].1).max(kept_from);
        let end_ns = start(last.saturating_add(1), pieces[pieces.len() - 1].1).min(kept_to);
        Ok(Some(Cut { seconds, start_ns, end_ns }))
    }
}

/// The wall clock's distance from the monotonic one.
fn offset_at(connection: &Connection, at: i64) -> rusqlite::Result<i64> {
    let before =
        "SELECT epoch_ns - mono_ns FROM flight.clock WHERE mono_ns <= ? ORDER BY mono_ns DESC LIMIT 1";
    let first = "SELECT epoch_ns - mono_ns FROM flight.clock ORDER BY mono_ns LIMIT 1";
    let known = connection.query_row(before, [at], |row| row.get(0)).optional()?;
    match known {
        Some(offset) => Ok(offset),
        None => Ok(connection.query_row(first, [], |row| row.get(0)).optional()?.unwrap_or(0)),
    }
}

/// Gives the whole snapshot the first free name.
fn put_in_place(part: &Path, folder: &Path, name: &str) -> Result<PathBuf> {
    let names = (1..=SAME_SECOND).map(|number| match number {
        1 => folder.join(format!("{name}.db")),
        number => folder.join(format!("{name}-{number}.db")),
    });
    let failed = |error| Error::from_io(part, Action::Write, error);
    for path in names {
        if fs::symlink_metadata(&path).is_err() {
            fs::rename(part, &path).map_err(failed)?;
            return Ok(path);
        }
    }
    Err(Error::InUse { path: folder.join(name) })
}

#[cfg(test)]
mod tests {
    use crate::schema;

    /// Tables of which a snapshot takes no rows: their rows are the same in every recording, or only complete
    /// recordings have any.
    const NOT_TAKEN: [&str; 14] = [
        "state_name",
        "reason_name",
        "metric_name",
        "kind_name",
        "outside_name",
        "root",
        "call_path",
        "call_cell",
        "finding",
        "finding_thread",
        "finding_stall",
        "meaning",
        "stall_meaning",
        "blame_edge",
    ];

    #[test]
    fn snapshot_copies_every_table_that_has_rows_of_its_own() {
        let sql = include_str!("../sql/snapshot.sql");
        for table in schema::table_names() {
            let is_taken = ["COPY ", "INSERT INTO main."].iter().any(|start| {
                let statements = sql.lines().filter_map(|line| line.strip_prefix(start));
                statements
                    .map(|line| line.trim_end_matches(';'))
                    .any(|line| line.split(' ').next() == Some(table))
            });
            assert_eq!(is_taken, !NOT_TAKEN.contains(&table), "{table}");
        }
    }
}
