//! Recordings of older schemas.
//!
//! Schema 1 was written in nine layouts, which differ in tables and columns. A reader sees each in the
//! current shape: where a table differs, a temporary view of the current name replaces it, and nothing is
//! written to the file. A program that changes such a recording first brings the file to the current schema.

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

/// The name that a table of the current schema has in a file of schema `found`.
pub(crate) fn table_in(found: u32, table: &str) -> &str {
    let renamed = RENAMED_TABLES.iter().find(|(now, _)| found < SCHEMA && *now == table);
    renamed.map_or(table, |(_, before)| before)
}

/// Whether a file of schema `found` may be whole without this table.
pub(crate) fn may_be_missing(found: u32, table: &str) -> bool {
    found < SCHEMA && ADDED.contains(&table)
}

pub(crate) fn schema_of(connection: &Connection) -> Result<u32> {
    connection.query_row("SELECT user_version FROM pragma_user_version", [], |row| row.get("user_version"))
}

/// Shows an older recording in the current shape on this connection.
pub(crate) fn show(connection: &Connection) -> Result<()> {
    if schema_of(connection)? >= SCHEMA {
        return Ok(());
    }
    for table in differing_tables(connection)? {
        let (columns, rows) = (table.columns.join(", "), table.rows());
        connection.execute_batch(&format!("CREATE TEMP VIEW {} ({columns}) AS {rows}", table.name))?;
    }
    Ok(())
}

/// Brings the file of an older recording to the current schema, in one transaction.
pub(crate) fn upgrade(connection: &mut Connection) -> Result<()> {
    if schema_of(connection)? >= SCHEMA {
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

/// A table of the current schema that an older file does not have, or has with other columns.
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
    let current = Connection::open_in_memory()?;
    schema::create(&current)?;
    let found = schema_of(connection)?;
    let mut differing = Vec::new();
    for name in schema::table_names() {
        let columns = columns_of(&current, name)?;
        let in_file = table_in(found, name);
        let known = schema::columns(connection, in_file)?;
        if in_file == name && known.iter().eq(columns.iter().map(|column| &column.name)) {
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
