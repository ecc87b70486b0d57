// SPDX-License-Identifier: Apache-2.0
//! Recordings of unknown origin: no code in a file runs, neither when it is read nor when it is changed.
//!
//! SQLite evaluates parts of a schema: triggers and views, conditions and defaults of tables, expressions of
//! indexes. Triggers and the file's views are off. The definitions of tables that are read or written may
//! consist of the few words of a recording's schema. Anything else is refused before SQLite evaluates it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags, Result as SqlResult};

use crate::error::{Action, Error, Result};
use crate::header;
use crate::new_file::is_in_use;
use crate::{older, schema};

/// No value in a recording is near this long.
const MAX_VALUE_BYTES: i32 = 1 << 20;
/// How long a change waits for a reader or a second writer.
const BUSY: Duration = Duration::from_secs(5);

/// Opens a complete recording to change it, or one whose recorder was killed, but none that is being written.
/// A recording of an older schema is first brought to the current one. Returns the path with links resolved.
pub(crate) fn open_to_change(path: &Path) -> Result<(PathBuf, Connection)> {
    let header = header::read(path)?;
    let path = path.canonicalize().map_err(|error| Error::from_io(path, Action::Write, error))?;
    if header.is_wal && is_in_use(&path) {
        return Err(Error::BeingWritten { path });
    }
    let connection = open(&path).map_err(|source| Error::from_sqlite(&path, Action::Write, source))?;
    let mut connection = checked(&path, connection)?;
    older::upgrade(&mut connection).map_err(|source| Error::from_sqlite(&path, Action::Write, source))?;
    Ok((path, connection))
}

fn open(path: &Path) -> SqlResult<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    harden(&connection)?;
    Ok(connection)
}

/// Before the first statement on a connection.
pub(crate) fn harden(connection: &Connection) -> SqlResult<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    // Without it, SQLite may plan a statement with `WHERE id = ?` anew for each value. That was two thirds of
    // the time that a frame took.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "cache_size", -8192)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(())
}

/// Refuses files in which a table of the schema is missing, or has more than plain columns.
pub(crate) fn checked(path: &Path, connection: Connection) -> Result<Connection> {
    match objection(&connection).map_err(|error| Error::from_sqlite(path, Action::Read, error))? {
        None => Ok(connection),
        Some(detail) => Err(Error::Corrupt { path: path.to_owned(), detail }),
    }
}

/// Why a file is refused. Triggers are looked for first, because their text may have any length.
fn objection(connection: &Connection) -> SqlResult<Option<String>> {
    let has_trigger: bool = connection.query_row(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'trigger')",
        [],
        |row| row.get(0),
    )?;
    if has_trigger {
        return Ok(Some("it has a trigger, which no recording has".into()));
    }
    let mut find =
        connection.prepare("SELECT type, name, sql FROM sqlite_schema WHERE tbl_name = ?1 COLLATE NOCASE")?;
    let schema = older::schema_of(connection)?;
    for current in schema::table_names() {
        let table = older::table_in(schema, current);
        let mut is_there = false;
        let mut rows = find.query([table])?;
        while let Some(row) = rows.next()? {
            let (kind, name, sql): (String, String, Option<String>) =
                (row.get("type")?, row.get("name")?, row.get("sql")?);
            let is_plain = match (kind.as_str(), sql.as_deref()) {
                ("table", Some(sql)) => is_plain_table(sql),
                ("index", Some(sql)) => is_plain_index(sql),
                ("index", None) => true,
                _ => false,
            };
            if !is_plain {
                return Ok(Some(format!("the {kind} {name} is not a recording's")));
            }
            is_there |= kind == "table";
        }
        if !is_there && !older::may_be_missing(schema, current) {
            return Ok(Some(format!("there is no table {table}")));
        }
    }
    Ok(None)
}

/// The only condition in the schema: table `recording` has one row.
const OWN_CONDITION: &str = "CHECK (id = 1)";

/// Words before which SQLite expects something to evaluate: conditions, defaults, generated columns,
/// collations, foreign keys.
const EVALUATED: [&str; 9] =
    ["CHECK", "DEFAULT", "GENERATED", "AS", "COLLATE", "REFERENCES", "FOREIGN", "CONSTRAINT", "WHERE"];

fn is_plain_table(sql: &str) -> bool {
    let sql = without_comments(sql).replacen(OWN_CONDITION, "", 1);
    sql.starts_with("CREATE TABLE ") && has_plain_words(&sql)
}

/// An index over columns. It has one pair of parentheses, so that no expression is in it.
fn is_plain_index(sql: &str) -> bool {
    let sql = without_comments(sql);
    let is_index = sql.starts_with("CREATE INDEX ") || sql.starts_with("CREATE UNIQUE INDEX ");
    is_index && sql.matches('(').count() == 1 && has_plain_words(&sql)
}

/// Allows names, types, commas and parentheses, but no quotes or operators, so that no text or value hides a
/// word.
fn has_plain_words(sql: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || "(), \n\t\r".contains(c);
    let evaluated: HashSet<&str> = EVALUATED.into();
    sql.chars().all(is_plain)
        && !sql
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .any(|word| evaluated.contains(word.to_ascii_uppercase().as_str()))
}

/// A `--` within quotes starts no comment, but what remains of the quotes is refused.
fn without_comments(sql: &str) -> String {
    sql.lines().map(|line| line.split("--").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;

    #[test]
    fn current_schema_is_accepted() {
        let connection = Connection::open_in_memory().unwrap();
        schema::create(&connection).unwrap();
        assert_eq!(objection(&connection).unwrap(), None);
        connection
            .execute_batch("CREATE TABLE notes (x DEFAULT (abs(-1))); CREATE VIEW v AS SELECT 1")
            .unwrap();
        assert_eq!(objection(&connection).unwrap(), None, "other tables are not read");
        connection.execute_batch("CREATE INDEX mine ON stall (start_ns, thread)").unwrap();
        assert_eq!(objection(&connection).unwrap(), None, "a user may want one");
    }

    #[test]
    fn evaluated_parts_are_refused() {
        for sql in [
            "CREATE TRIGGER t AFTER INSERT ON mark BEGIN SELECT 1; END",
            "CREATE INDEX i ON mark (abs(mono_ns))",
            "CREATE INDEX i ON mark (mono_ns) WHERE mono_ns > 1",
            "CREATE INDEX i ON mark (text COLLATE nocase)",
            "DROP TABLE mark; CREATE TABLE mark (mono_ns, duration_ns, text DEFAULT (randomblob(1000000)))",
            "DROP TABLE mark; CREATE TABLE mark (mono_ns, duration_ns, text, x generated always as (abs(mono_ns)))",
            "DROP TABLE mark; CREATE TABLE mark (mono_ns, duration_ns, text CHECK (length(text) > 1))",
            "DROP TABLE mark; CREATE TABLE mark (mono_ns, duration_ns, text /* as */ check (1))",
            "DROP TABLE mark; CREATE TABLE mark (mono_ns, duration_ns, 'text--' TEXT CHECK (abs(1)))",
            "DROP TABLE mark; CREATE VIRTUAL TABLE mark USING dbstat",
            "DROP TABLE mark; CREATE VIEW mark AS SELECT 1 AS mono_ns, 2 AS duration_ns, 'x' AS text",
            "DROP TABLE mark",
        ] {
            let connection = Connection::open_in_memory().unwrap();
            schema::create(&connection).unwrap();
            if connection.execute_batch(sql).is_ok() {
                assert!(objection(&connection).unwrap().is_some(), "{sql}");
            } else {
                assert!(sql.contains("VIRTUAL"), "{sql}");
            }
        }
    }

    /// A recording of an older schema may be without such a table, but not with another thing of its name.
    #[test]
    fn evaluated_parts_are_refused_in_tables_that_an_older_file_may_lack() {
        for (sql, is_refused) in [
            ("", false),
            ("CREATE TABLE MARK (mono_ns, duration_ns, text)", false),
            ("CREATE VIEW mark AS SELECT 1 AS mono_ns, 2 AS duration_ns, 'x' AS text", true),
            ("CREATE TABLE MARK (mono_ns, duration_ns, text AS (abs(mono_ns)))", true),
        ] {
            let connection = Connection::open_in_memory().unwrap();
            schema::create(&connection).unwrap();
            connection.execute_batch("DROP TABLE mark; PRAGMA user_version = 1").unwrap();
            connection.execute_batch(sql).unwrap();
            assert_eq!(objection(&connection).unwrap().is_some(), is_refused, "{sql}");
        }
    }

    #[test]
    fn statement_is_planned_once_for_all_values() {
        let connection = Connection::open_in_memory().unwrap();
        schema::create(&connection).unwrap();
        harden(&connection).unwrap();
        let sql = "SELECT address FROM frame LEFT JOIN module ON module.id = frame.module WHERE frame.id = ?";
        let mut find = connection.prepare(sql).unwrap();
        for id in 0..5 {
            assert!(!find.exists([id]).unwrap());
        }
        assert_eq!(find.get_status(StatementStatus::RePrepare), 0);
    }

    #[test]
    fn triggers_do_not_run_on_a_hardened_connection() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE a (x); CREATE TABLE b (x)").unwrap();
        connection
            .execute_batch("CREATE TRIGGER t AFTER INSERT ON a BEGIN INSERT INTO b VALUES (1); END")
            .unwrap();
        harden(&connection).unwrap();
        connection.execute("INSERT INTO a VALUES (1)", []).unwrap();
        let rows: i64 = connection.query_row("SELECT count(*) FROM b", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 0);
    }
}
