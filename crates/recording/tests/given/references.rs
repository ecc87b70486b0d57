//! What rows refer to is there: asked of the file itself.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

/// Column of a table, and the table that it numbers rows of.
const REFERENCES: [(&str, &str, &str); 44] = [
    ("thread", "comm", "text"),
    ("thread", "process", "text"),
    ("thread", "cgroup", "text"),
    ("mention", "thread", "thread"),
    ("mention", "comm", "text"),
    ("module", "path", "text"),
    ("frame", "module", "module"),
    ("line", "frame", "frame"),
    ("line", "symbol", "text"),
    ("line", "file", "text"),
    ("node", "parent", "node"),
    ("node", "frame", "frame"),
    ("bucket", "thread", "thread"),
    ("latency_cell", "thread", "thread"),
    ("sample_waker", "thread", "thread"),
    ("sample_waker", "user_stack", "node"),
    ("sample_waker", "kernel_stack", "node"),
    ("sample", "thread", "thread"),
    ("sample", "user_stack", "node"),
    ("sample", "kernel_stack", "node"),
    ("sample", "waker", "sample_waker"),
    ("stall", "thread", "thread"),
    ("stall", "comm", "text"),
    ("stall", "syscall", "text"),
    ("stall", "user_stack", "node"),
    ("stall", "kernel_stack", "node"),
    ("stall", "waker", "mention"),
    ("stall", "waker_user_stack", "node"),
    ("stall", "lock_owner", "mention"),
    ("stall_ran", "stall", "stall"),
    ("stall_ran", "mention", "mention"),
    ("interrupt", "name", "text"),
    ("interrupt", "victim", "thread"),
    ("intrusion", "what", "text"),
    ("intrusion", "mention", "mention"),
    ("kernel_work", "thread", "thread"),
    ("cross_call", "caller", "mention"),
    ("cross_call", "syscall", "text"),
    ("cross_call", "function", "text"),
    ("throttled", "cgroup", "text"),
    ("binding", "stack", "node"),
    ("binding", "symbol", "text"),
    ("binding", "library", "text"),
    ("stall_file", "path", "text"),
];

pub fn rows(path: &Path, sql: &str) -> i64 {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// References that lead nowhere, one line for each column with some.
pub fn dangling(path: &Path) -> Vec<String> {
    let count = |(table, column, target): &(&str, &str, &str)| {
        let sql = format!(
            "SELECT count(*) FROM {table} WHERE {column} IS NOT NULL AND {column} <> 0
             AND {column} NOT IN (SELECT id FROM {target})"
        );
        (rows(path, &sql), format!("{table}.{column}"))
    };
    let counts = REFERENCES.iter().map(count).filter(|(count, _)| *count > 0);
    counts.map(|(count, of)| format!("{of}: {count}")).collect()
}

/// Rows of what others refer to, that nobody refers to.
pub fn unused_rows(path: &Path, table: &str) -> i64 {
    let users = REFERENCES.iter().filter(|(_, _, target)| *target == table);
    let used: Vec<String> = users
        .map(|(from, column, _)| format!("SELECT {column} FROM {from} WHERE {column} IS NOT NULL"))
        .collect();
    rows(path, &format!("SELECT count(*) FROM {table} WHERE id NOT IN ({})", used.join(" UNION ")))
}
