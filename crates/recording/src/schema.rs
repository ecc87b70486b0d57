// SPDX-License-Identifier: Apache-2.0
//! The schema: the contents of a new file before the first event, and the marks of a recording.
//!
//! A column that is added keeps the schema number: in a file without it, readers see 0, or NULL where the
//! column may be NULL. Any other change of a table takes the next number. A reader refuses larger numbers
//! than its own, and reads files of a former shape by `older`.

use std::io::Read;
use std::sync::LazyLock;

use flate2::read::GzDecoder;
use rusqlite::{Connection, params};
use wallprof_model::state::{Metric, StallReason, State};
use wallprof_model::{FrameKind, Outside, StackEnd};

use crate::lists;

/// `WPRF`: at offset 68 of the file, where SQLite and file(1) look for the kind of a database.
pub const APPLICATION_ID: u32 = 0x5750_5246;

/// The schema that this version writes, and the newest that it reads.
pub const SCHEMA: u32 = 2;

static TABLES: LazyLock<String> =
    LazyLock::new(|| text(include_bytes!(concat!(env!("OUT_DIR"), "/tables.sql.gz"))));
static VIEWS: LazyLock<String> =
    LazyLock::new(|| text(include_bytes!(concat!(env!("OUT_DIR"), "/views.sql.gz"))));

/// What build.rs compressed.
fn text(compressed: &[u8]) -> String {
    let mut text = String::new();
    GzDecoder::new(compressed).read_to_string(&mut text).expect("build.rs compressed it");
    text
}

/// Nodes below this number are roots. Table `root` has their meaning.
pub(crate) const FIRST_NODE: u32 = 64;

/// `sample.state_or_event` of an extra event is this plus the event's index.
pub(crate) const FIRST_EVENT: i64 = 256;

/// Bits of `stall.flags`.
pub(crate) mod flag {
    pub const VOLUNTARY: i64 = 1;
    pub const OPEN: i64 = 2;
    pub const FAULT: i64 = 4;
    pub const RAN_INSTEAD: i64 = 8;
    pub const WOKEN_BY_INTERRUPT: i64 = 16;
}

pub(crate) fn root_from_end(end: StackEnd) -> u32 {
    1 + end as u32
}

pub(crate) fn end_from_root(node: u32) -> Option<StackEnd> {
    StackEnd::from_code(u8::try_from(node.checked_sub(1)?).ok()?)
}

/// Writes tables, views and name tables into an empty database.
pub(crate) fn create(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&lists::expand(&TABLES))?;
    finish(connection)
}

/// A database in memory with the empty tables of the current shape.
pub(crate) fn tables_alone() -> rusqlite::Result<Connection> {
    let connection = Connection::open_in_memory()?;
    connection.execute_batch(&lists::expand(&TABLES))?;
    Ok(connection)
}

/// Writes views, name tables and the marks of a recording into a database that has the tables.
pub(crate) fn finish(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&views())?;
    fill_names(connection)?;
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    connection.pragma_update(None, "user_version", SCHEMA)
}

/// The names of the tables that a reader relies on.
pub(crate) fn table_names() -> impl Iterator<Item = &'static str> {
    names_after("CREATE TABLE ", &TABLES)
}

pub(crate) fn view_names() -> impl Iterator<Item = &'static str> {
    names_after("CREATE VIEW ", &VIEWS)
}

fn names_after(statement: &'static str, sql: &'static str) -> impl Iterator<Item = &'static str> {
    sql.lines().filter_map(move |line| line.strip_prefix(statement)?.split(' ').next())
}

/// The columns of a table of the file, in order. Empty: there is no such table.
pub(crate) fn columns(connection: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT name FROM pragma_table_info(?, 'main') ORDER BY cid";
    connection.prepare(sql)?.query_map([table], |row| row.get("name"))?.collect()
}

/// Replaces names that are there: an older recording may have fewer.
fn fill_names(connection: &Connection) -> rusqlite::Result<()> {
    let name = |table: &str, code: u8, name: &str| {
        let sql = format!("INSERT OR REPLACE INTO {table} (code, name) VALUES (?, ?)");
        connection.execute(&sql, params![code, name]).map(drop)
    };
    for code in 0..=u8::MAX {
        if let Some(state) = State::from_code(code) {
            name("state_name", code, &state.label())?;
        }
        if let Some(reason) = StallReason::from_code(code) {
            name("reason_name", code, reason.name())?;
        }
        if let Some(metric) = Metric::from_code(code) {
            name("metric_name", code, &metric.name())?;
        }
        if let Some(kind) = FrameKind::from_code(code) {
            name("kind_name", code, kind.name())?;
        }
    }
    for outside in Outside::ALL {
        name("outside_name", outside.code(), outside.label())?;
    }
    for end in StackEnd::ALL {
        let node = root_from_end(end);
        let root = "INSERT OR IGNORE INTO node (id, parent, frame, is_stack) VALUES (?, NULL, NULL, 0)";
        connection.execute(root, [node])?;
        let ending = "INSERT OR REPLACE INTO root (node, ending) VALUES (?, ?)";
        connection.execute(ending, params![node, end.name()])?;
    }
    Ok(())
}

/// The views with every `EPOCH(x)` written out: x shifted by the last clock reading at or before it, by
/// the first one for earlier times, NULL without any.
fn views() -> String {
    let mut sql = String::new();
    let mut rest = VIEWS.as_str();
    while let Some((before, call)) = rest.split_once(" EPOCH(") {
        let (time, after) = split_at_closing(call);
        sql.push_str(before);
        sql.push_str(&format!(
            " ({time} + coalesce(\
             (SELECT epoch_ns - mono_ns FROM clock WHERE mono_ns <= {time} ORDER BY mono_ns DESC LIMIT 1), \
             (SELECT epoch_ns - mono_ns FROM clock ORDER BY mono_ns LIMIT 1)))"
        ));
        rest = after;
    }
    sql.push_str(rest);
    lists::expand(&sql)
}

/// Splits at the closing parenthesis: returns the text inside it, and the rest.
fn split_at_closing(text: &str) -> (&str, &str) {
    let mut depth = 0;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' if depth == 0 => return (&text[..at], &text[at + 1..]),
            ')' => depth -= 1,
            _ => {}
        }
    }
    (text, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_view_answers_on_an_empty_recording() {
        let connection = Connection::open_in_memory().unwrap();
        create(&connection).unwrap();
        let views: Vec<String> = connection
            .prepare("SELECT name FROM sqlite_schema WHERE type = 'view'")
            .unwrap()
            .query_map([], |row| row.get(0))
            .unwrap()
            .collect::<rusqlite::Result<_>>()
            .unwrap();
        for promised in
            "threads ledger samples stalls faults stacks frames counters marks findings losses meta calls functions"
                .split(' ')
        {
            assert!(views.iter().any(|view| view == promised), "no view {promised}");
        }
        for view in views {
            let rows: i64 = connection
                .query_row(&format!("SELECT count(*) FROM (SELECT * FROM {view})"), [], |row| row.get(0))
                .unwrap_or_else(|error| panic!("{view}: {error}"));
            assert!(rows <= 23, "{view} has {rows} rows");
        }
    }

    #[test]
    fn no_marker_is_left_in_the_views() {
        assert_eq!(views().matches("EPOCH(").count(), 1, "only the comment that explains it");
        assert_eq!(views().matches("EACH_").count(), 0);
        assert!(views().contains("WHERE mono_ns <= coalesce(recording.end_ns, recording.last_ns) ORDER"));
    }

    #[test]
    fn roots_and_ends_convert_both_ways() {
        for end in StackEnd::ALL {
            assert!(root_from_end(end) < FIRST_NODE);
            assert_eq!(end_from_root(root_from_end(end)), Some(end));
        }
        assert_eq!(end_from_root(0), None);
        assert_eq!(end_from_root(FIRST_NODE), None);
    }

    #[test]
    fn tables_are_listed() {
        let names: Vec<_> = table_names().collect();
        assert!(names.contains(&"stall") && names.contains(&"recording"));
        assert_eq!(names.len(), TABLES.matches("CREATE TABLE").count());
    }
}
