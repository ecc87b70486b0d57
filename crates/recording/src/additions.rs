// SPDX-License-Identifier: Apache-2.0
//! Additions to a complete recording: metrics and marks of the application, in one transaction.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, Result as SqlResult, params};
use wallprof_model::counter::{CounterKind, CounterUnit, Mark};
use wallprof_model::{MonoNs, Span, SpanDelta, SpanSource};

use crate::error::{Action, Error, Result};
use crate::foreign;
use crate::header;
use crate::intern::clipped;
use crate::pending::SpanSum;
use crate::spans;
use crate::write;

/// Limit on metric names. With more, the column that was read as names is most likely another one.
pub const MAX_METRICS: usize = 1000;

/// Whether the first bytes of a file are those of a recording.
pub fn is_recording(path: &Path) -> bool {
    matches!(header::kind_of_file(path), Ok(header::Kind::Recording(_)))
}

/// An open transaction. Dropped without [`Additions::commit`], it adds nothing.
pub struct Additions {
    path: PathBuf,
    connection: Connection,
    series: HashMap<String, i64>,
}

impl Additions {
    /// Opens a complete recording, which no other process may be writing.
    pub fn open(path: &Path) -> Result<Self> {
        let (path, connection) = foreign::open_to_change(path)?;
        let begun = connection.execute_batch("BEGIN IMMEDIATE");
        begun.map_err(|source| Error::from_sqlite(&path, Action::Write, source))?;
        Ok(Additions { path, connection, series: HashMap::new() })
    }

    /// Adds a value of a metric, or replaces the value of that metric at that time. Returns false if the
    /// value was not added because there are too many names.
    pub fn metric(&mut self, name: &str, at: MonoNs, value: f64) -> Result<bool> {
        let series = match self.series.get(name) {
            Some(series) => *series,
            None if self.series.len() >= MAX_METRICS => return Ok(false),
            None => {
                let series = self.or_failed(series_of(&self.connection, clipped(name)))?;
                self.series.insert(name.to_owned(), series);
                series
            }
        };
        let insert = |connection: &Connection| {
            connection
                .prepare_cached("INSERT OR REPLACE INTO counter (series, mono_ns, value) VALUES (?, ?, ?)")?
                .execute(params![series, integer(at.0), value])
        };
        self.or_failed(insert(&self.connection)).map(|_| true)
    }

    /// Adds a mark, or replaces the mark with the same time and text.
    pub fn mark(&mut self, mark: &Mark) -> Result<()> {
        let insert = |connection: &Connection| {
            connection
                .prepare_cached("DELETE FROM mark WHERE mono_ns = ?1 AND text = ?2")?
                .execute(params![integer(mark.at.0), clipped(&mark.text)])?;
            write::write_mark(connection, mark)
        };
        self.or_failed(insert(&self.connection))
    }

    /// Adds spans of one kind: single ones, and the sums of all. They replace the imported spans of that kind.
    pub fn spans(&mut self, kind: &str, spans: &[&Span], sums: &[SpanDelta]) -> Result<()> {
        self.or_failed(write_spans(&self.connection, clipped(kind), spans, sums))
    }

    pub fn commit(self) -> Result<()> {
        self.or_failed(self.connection.execute_batch("COMMIT"))
    }

    fn or_failed<T>(&self, result: SqlResult<T>) -> Result<T> {
        result.map_err(|source| Error::from_sqlite(&self.path, Action::Write, source))
    }
}

fn write_spans(connection: &Connection, kind: &str, spans: &[&Span], sums: &[SpanDelta]) -> SqlResult<()> {
    let kind = text_row(connection, kind)?;
    for table in ["span", "span_cell"] {
        connection
            .prepare_cached(&format!("DELETE FROM {table} WHERE kind = ? AND source = ?"))?
            .execute(params![kind, SpanSource::Import.name()])?;
    }
    let sums = sums.iter().map(|delta| {
        let sum = SpanSum { count: delta.count, max_ns: delta.max_ns, states: delta.states };
        ((delta.thread.0, SpanSource::Import, kind, delta.bucket), sum)
    });
    spans::write_sums(connection, sums, 0)?;
    spans.iter().try_for_each(|span| spans::write_span(connection, span, kind, 0))
}

/// The row of a text.
fn text_row(connection: &Connection, text: &str) -> SqlResult<u32> {
    let found = connection.query_row("SELECT id FROM text WHERE text = ?", [text], |row| row.get("id"));
    match found {
        Err(rusqlite::Error::QueryReturnedNoRows) => {
            connection.execute("INSERT INTO text (text) VALUES (?)", [text])?;
            let row = connection.last_insert_rowid();
            u32::try_from(row).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(0, row))
        }
        found => found,
    }
}

/// The row of a metric.
fn series_of(connection: &Connection, name: &str) -> SqlResult<i64> {
    let (kind, unit) = (CounterKind::Level.name(), CounterUnit::Plain.name());
    let known = connection.query_row(
        "SELECT id FROM counter_series WHERE name = ?1 AND thread IS NULL AND kind = ?2 AND unit = ?3",
        params![name, kind, unit],
        |row| row.get("id"),
    );
    match known {
        Err(rusqlite::Error::QueryReturnedNoRows) => {
            connection.execute(
                "INSERT INTO counter_series (name, thread, kind, unit) VALUES (?, NULL, ?, ?)",
                params![name, kind, unit],
            )?;
            Ok(connection.last_insert_rowid())
        }
        known => known,
    }
}

/// SQLite's integers end at 2^63 - 1.
fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
