//! Recordings that may come from anywhere: nothing of a file's own runs, neither when it is read nor when something is
//! added to it.
//!
//! SQLite evaluates what a schema says: triggers and views, conditions and defaults of tables, expressions of indexes.
//! Triggers and views are off. Tables that are read or written are compared with the few words that the schema of a
//! recording is made of; anything else is refused before it is evaluated.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags, Result as SqlResult};

use crate::error::{Action, Error, Result};
use crate::header;
use crate::new_file::is_in_use;
use crate::schema;

/// No value in a recording is near this long.
const MAX_VALUE_BYTES: i32 = 1 << 20;
/// How long a reader or a second writer is waited for.
const BUSY: Duration = Duration::from_secs(5);

/// Opens a complete recording to add to it, or what a killed recorder left; not one that is being written. The path
/// comes back with links resolved.
pub(crate) fn open_to_change(path: &Path) -> Result<(PathBuf, Connection)> {
    let header = header::read(path)?;
    let path = path.canonicalize().map_err(|error| Error::from_io(path, Action::Write, error))?;
    if header.is_wal && is_in_use(&path) {
        return Err(Error::BeingWritten { path });
    }
    let connection = open(&path).map_err(|source| Error::from_sqlite(&path, Action::Write, source))?;
    let connection = checked(&path, connection)?;
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
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "cache_size", -8192)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(())
}

/// Refuses files in which a table of ours is missing, or is more than plain columns.
pub(crate) fn checked(path: &Path, connection: Connection) -> Result<Connection> {
    match objection(&connection).map_err(|error| Error::from_sqlite(path, Action::Read, error))? {
        None => Ok(connection),
        Some(detail) => Err(Error::Corrupt { path: path.to_owned(), detail }),
    }
}

/// Triggers come first: their text may be of any length.
fn objection(connection: &Connection) -> SqlResult<Option<String>> {
    let has_trigger: bool = connection.query_row(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'trigger')",
        [],
        |row| row.get(0),
    )?;
    if has_trigger {
        return Ok(Some("it has a trigger, which no recording has".into()));
    }
    let mut find = connection.prepare(
        "SELECT type, name, sql FROM sqlite_schema WHERE tbl_name = ?1 AND type IN ('table', 'index')",
    )?;
    for table in schema::table_names() {
        let mut is_there = false;
        let mut rows = find.query([table])?;
        while let Some(row) = rows.next()? {
            let (kind, name, sql): (String, String, Option<String>) = (row.get(0)?, row.get(1)?, row.get(2)?);
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
        if !is_there {
            return Ok(Some(format!("there is no table {table}")));
        }
    }
    Ok(None)
}

/// The one condition in the schema: table `recording` has one row.
const OWN_CONDITION: &str = "CHECK (id = 1)";

/// What SQLite would evaluate, whatever else a word is: conditions, defaults, generated columns, collations, foreign keys.
const EVALUATED: [&str; 9] =
    ["CHECK", "DEFAULT", "GENERATED", "AS", "COLLATE", "REFERENCES", "FOREIGN", "CONSTRAINT", "WHERE"];

fn is_plain_table(sql: &str) -> bool {
    let sql = without_comments(sql).replacen(OWN_CONDITION, "", 1);
    sql.starts_with("CREATE TABLE ") && has_plain_words(&sql)
}

/// An index over columns: there is one pair of parentheses, so no expression in it.
fn is_plain_index(sql: &str) -> bool {
    let sql = without_comments(sql);
    let begins = sql.starts_with("CREATE INDEX ") || sql.starts_with("CREATE UNIQUE INDEX ");
    begins && sql.matches('(').count() == 1 && has_plain_words(&sql)
}

/// Names, types, commas and parentheses. Quotes and operators are none of these, so no text or value hides a word.
fn has_plain_words(sql: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || "(), \n\t\r".contains(c);
    let evaluated: HashSet<&str> = EVALUATED.into();
    sql.chars().all(is_plain)
        && !sql
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .any(|word| evaluated.contains(word.to_ascii_uppercase().as_str()))
}

/// A `--` within quotes is none, but quotes are refused with what is left of them.
fn without_comments(sql: &str) -> String {
    sql.lines().map(|line| line.split("--").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_schema_is_plain() {
        let connection = Connection::open_in_memory().unwrap();
        schema::create(&connection).unwrap();
        assert_eq!(objection(&connection).unwrap(), None);
        connection
            .execute_batch("CREATE TABLE notes (x DEFAULT (abs(-1))); CREATE VIEW v AS SELECT 1")
            .unwrap();
        assert_eq!(objection(&connection).unwrap(), None, "what is not ours is not looked at");
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
