// SPDX-License-Identifier: Apache-2.0
//! Recordings of a former shape: of an older schema, or of the current one before a column was added.
//!
//! Schema 1 was written in nine layouts, which differ in tables and columns. A reader sees each in the
//! current shape: where a table differs, a temporary view of the current name replaces it, and nothing is
//! written to the file. A program that changes such a recording first brings the file to the current shape.

use rusqlite::{Connection, Result, TransactionBehavior};

use crate::schema::{self, SCHEMA};

/// Tables that have another name in schema 1.
const RENAMED_TABLES: [(&str, &str); 1] = [("kernel_delay", "kernel_work")];

/// Columns that have another name in schema 1: table (`*`: any), column, former name.
const RENAMED_COLUMNS: [(&str, &str, &str); 2] =
    [("*", "flush_second", "slice"), ("sample", "state_or_event", "what")];

/// Tables that some layouts of schema 1 do not have.
const ADDED: [&str; 11] = [
    "outside_name",
    "call_path",
    "call_cell",
    "intrusion",
    "binding",
    "stall_file",
    "kernel_delay",
    "cross_call",
    "throttled",
    "counter_series",
    "mark",
];

/// Tables that files of the current schema may not have yet.
const ADDED_LAST: [&str; 12] = [
    "meaning",
    "stall_meaning",
    "stall_word",
    "stall_peer",
    "stall_owner",
    "stall_trace",
    "label",
    "span_budget",
    "span_cell",
    "span",
    "late_sample",
    "blame_edge",
];

/// The name that a table of the current schema has in a file of schema `found`.
pub(crate) fn table_in(found: u32, table: &str) -> &str {
    let renamed = RENAMED_TABLES.iter().find(|(now, _)| found < SCHEMA && *now == table);
    renamed.map_or(table, |(_, before)| before)
}

/// Whether a file of schema `found` may be whole without this table.
pub(crate) fn may_be_missing(found: u32, table: &str) -> bool {
    found < SCHEMA && ADDED.contains(&table) || ADDED_LAST.contains(&table)
}

pub(crate) fn schema_of(connection: &Connection) -> Result<u32> {
    connection.query_row("SELECT user_version FROM pragma_user_version", [], |row| row.get("user_version"))
}

/// Shows a recording of a former shape in the current one on this connection.
pub(crate) fn show(connection: &Connection) -> Result<()> {
    for table in differing_tables(connection)? {
        let (columns, rows) = (table.columns.join(", "), table.rows());
        connection.execute_batch(&format!("CREATE TEMP VIEW {} ({columns}) AS {rows}", table.name))?;
    }
    Ok(())
}

/// Brings the file of a recording to the current shape, in one transaction.
pub(crate) fn upgrade(connection: &mut Connection) -> Result<()> {
    if schema_of(connection)? >= SCHEMA && differing_tables(connection)?.is_empty() {
        return Ok(());
    }
    // Views are made anew, so they need not be adapted to each renaming on the way.
    connection.pragma_update(None, "legacy_alter_table", true)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for view in schema::view_names() {
        transaction.execute_batch(&format!("DROP VIEW IF EXISTS {view}"))?;
    }
    for table in differing_tables(&transaction)? {
        table.rebuild(&transaction)?;
    }
    schema::finish(&transaction)?;
    transaction.execute("UPDATE recording SET schema = ?", [SCHEMA])?;
    transaction.commit()
}

/// A table of the current schema that a file does not have, or that lacks some of its columns there.
struct Table {
    name: String,
    /// Its name in the file. `None`: the file does not have it.
    in_file: Option<String>,
    columns: Vec<String>,
    /// The SQL of each column: a column of the file, or a literal.
    values: Vec<String>,
    /// The statements that make it, with its indexes.
    statements: Vec<String>,
}

impl Table {
    /// A SELECT of the rows in the current shape.
    fn rows(&self) -> String {
        let values = self.values.join(", ");
        match &self.in_file {
            Some(table) => format!("SELECT {values} FROM main.{table}"),
            None => format!("SELECT {values} WHERE 0"),
        }
    }

    fn rebuild(mut self, connection: &Connection) -> Result<()> {
        if let Some(table) = self.in_file.take() {
            let before = format!("{}_before", self.name);
            connection.execute_batch(&format!("ALTER TABLE {table} RENAME TO {before}"))?;
            self.in_file = Some(before);
        }
        connection.execute_batch(&self.statements.join(";"))?;
        let columns = self.columns.join(", ");
        connection.execute_batch(&format!("INSERT INTO {} ({columns}) {}", self.name, self.rows()))?;
        match self.in_file {
            Some(table) => connection.execute_batch(&format!("DROP TABLE {table}")),
            None => Ok(()),
        }
    }
}

fn differing_tables(connection: &Connection) -> Result<Vec<Table>> {
    let current = schema::tables_alone()?;
    let found = schema_of(connection)?;
    let mut differing = Vec::new();
    for name in schema::table_names() {
        let columns = columns_of(&current, name)?;
        let in_file = table_in(found, name);
        let known = schema::columns(connection, in_file)?;
        let names = columns.iter().map(|column| &column.name);
        // In a file of this schema, a newer program may have added columns, and their order means nothing.
        let has_all = if found < SCHEMA {
            known.iter().eq(names)
        } else {
            names.clone().all(|name| known.contains(name))
        };
        if in_file == name && has_all {
            continue;
        }
        differing.push(Table {
            name: name.to_owned(),
            in_file: (!known.is_empty()).then(|| in_file.to_owned()),
            values: columns.iter().map(|column| column.value_from(name, &known)).collect(),
            columns: columns.into_iter().map(|column| column.name).collect(),
            statements: statements_of(&current, name)?,
        });
    }
    Ok(differing)
}

struct Column {
    name: String,
    may_be_null: bool,
}

impl Column {
    /// The column under its current or its former name; else the value of something that was not recorded.
    fn value_from(&self, table: &str, known: &[String]) -> String {
        let before =
            RENAMED_COLUMNS.iter().find(|(of, now, _)| [table, "*"].contains(of) && *now == self.name);
        let names = [Some(self.name.as_str()), before.map(|(_, _, before)| *before)];
        let found = names.into_iter().flatten().find(|name| known.iter().any(|column| column == name));
        found.unwrap_or(if self.may_be_null { "NULL" } else { "0" }).to_owned()
    }
}

fn columns_of(current: &Connection, table: &str) -> Result<Vec<Column>> {
    let sql = "SELECT name, \"notnull\" OR pk <> 0 AS is_needed FROM pragma_table_info(?) ORDER BY cid";
    let column = |row: &rusqlite::Row<'_>| {
        let is_needed: bool = row.get("is_needed")?;
        Ok(Column { name: row.get("name")?, may_be_null: !is_needed })
    };
    current.prepare(sql)?.query_map([table], column)?.collect()
}

/// The statements that make a table: itself first, then its indexes.
fn statements_of(current: &Connection, table: &str) -> Result<Vec<String>> {
    let sql = "SELECT sql FROM sqlite_schema WHERE tbl_name = ? AND sql IS NOT NULL ORDER BY type DESC";
    current.prepare(sql)?.query_map([table], |row| row.get("sql"))?.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_schema_needs_no_views_and_no_upgrade() {
        let mut connection = Connection::open_in_memory().unwrap();
        schema::create(&connection).unwrap();
        assert!(differing_tables(&connection).unwrap().is_empty());
        show(&connection).unwrap();
        upgrade(&mut connection).unwrap();
        let views: i64 =
            connection.query_row("SELECT count(*) FROM sqlite_temp_schema", [], |row| row.get(0)).unwrap();
        assert_eq!(views, 0);
    }

    /// A recording of this schema without a column that was added later, with a bucket and a wait.
    fn without_a_column(sql: &str) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        schema::create(&connection).unwrap();
        connection.execute("INSERT INTO stall (id, thread, comm, reason_code, flags, start_ns, duration_ns, blocked_ns, runnable_ns, asked_ns) VALUES (1, 2, 3, 16, 0, 5, 6, 6, 0, 9)", []).unwrap();
        connection.execute_batch(sql).unwrap();
        connection
    }

    #[test]
    fn column_that_a_file_of_this_schema_lacks_is_shown_and_added() {
        let mut connection = without_a_column(
            "DROP VIEW stalls; DROP VIEW faults; DROP VIEW disk_waits; DROP VIEW wait_words; DROP VIEW wait_peers;
             DROP VIEW traced_stalls;
             ALTER TABLE stall DROP COLUMN asked_ns; ALTER TABLE stall DROP COLUMN runnable_ns",
        );
        assert_eq!(differing_tables(&connection).unwrap().len(), 1);
        let read = |connection: &Connection| {
            let sql = "SELECT asked_ns, runnable_ns, duration_ns FROM stall";
            connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap()
        };
        let expected: (Option<i64>, i64, i64) = (None, 0, 6);
        show(&connection).unwrap();
        assert_eq!(read(&connection), expected);
        connection.execute_batch("DROP VIEW temp.stall").unwrap();
        connection.execute("INSERT INTO recording (id, schema, start_ns, last_ns, source, min_stall_ns, has_turns, writer) VALUES (1, 2, 0, 0, 'live', 1, 0, '')", []).unwrap();
        upgrade(&mut connection).unwrap();
        assert!(differing_tables(&connection).unwrap().is_empty());
        assert_eq!(read(&connection), expected);
    }

    #[test]
    fn column_that_a_newer_program_added_stays() {
        let mut connection = without_a_column("ALTER TABLE stall ADD COLUMN later INTEGER");
        show(&connection).unwrap();
        upgrade(&mut connection).unwrap();
        assert!(schema::columns(&connection, "stall").unwrap().contains(&"later".to_owned()));
    }

    #[test]
    fn former_names_are_those_of_tables_that_exist() {
        for table in RENAMED_TABLES.iter().map(|(now, _)| now).chain(&ADDED) {
            assert!(schema::table_names().any(|name| name == *table), "{table}");
        }
        assert_eq!(table_in(1, "kernel_delay"), "kernel_work");
        assert_eq!(table_in(SCHEMA, "kernel_delay"), "kernel_delay");
        assert!(may_be_missing(1, "mark") && !may_be_missing(1, "stall") && !may_be_missing(SCHEMA, "mark"));
    }
}
