// SPDX-License-Identifier: Apache-2.0
//! SQL that the file contains: no command runs it, neither when it reads nor when it adds rows.

use std::fs;

use crate::readers::{Outcome, assert_orderly, read};
use crate::recording::Hostile;

/// SQL that SQLite would run or evaluate when a table is read or a row is added. Each statement would never
/// end, or would change the file.
const HOSTILE: [(&str, &str); 9] = [
    (
        "an endless trigger",
        "CREATE TRIGGER t AFTER INSERT ON mark BEGIN INSERT INTO text
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, i FROM n; END",
    ),
    ("a trigger that deletes", "CREATE TRIGGER t AFTER INSERT ON mark BEGIN DELETE FROM stall; END"),
    (
        "an endless view for a table",
        "DROP TABLE loss; CREATE VIEW loss AS
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 0 AS flush_second, 'x'
             AS reason, i AS count FROM n",
    ),
    (
        "an endless view of the file's views",
        "DROP VIEW stalls; CREATE VIEW stalls AS
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id FROM n",
    ),
    (
        "a virtual table for a table",
        "DROP TABLE mark; CREATE VIRTUAL TABLE mark USING fts5(mono_ns,
             duration_ns, text)",
    ),
    ("an index over an expression", "CREATE INDEX i ON line (length(printf('%.*c', 100000000, 'x')))"),
    (
        "a generated column",
        "DROP TABLE mark; CREATE TABLE mark (id, mono_ns, duration_ns,
         text AS (printf('%.*c', 100000000, 'x')))",
    ),
    (
        "a costly default",
        "DROP TABLE mark; CREATE TABLE mark (id DEFAULT (printf('%.*c', 100000000,
             'x')), mono_ns, duration_ns, text)",
    ),
    (
        "a costly condition",
        "DROP TABLE mark; CREATE TABLE mark (id, mono_ns, duration_ns,
         text CHECK (length(printf('%.*c', 100000000, 'x')) > 1))",
    ),
];

#[test]
fn no_command_runs_sql_of_the_file() {
    for (about, sql) in HOSTILE {
        let hostile = Hostile::twin();
        if hostile.change(sql).is_err() {
            // This build of SQLite cannot write such a table.
            assert!(sql.contains("VIRTUAL"), "{about}");
            continue;
        }
        let before = fs::read(hostile.file()).unwrap();
        let is_in_place_of_a_table = !sql.contains("VIEW stalls");
        let outcomes = read(&hostile);
        assert_orderly(about, &outcomes);
        if is_in_place_of_a_table {
            for Outcome { command, code, stderr, .. } in outcomes {
                assert_eq!(code, Some(1), "{about}: {command}: {stderr}");
            }
            assert_eq!(fs::read(hostile.file()).unwrap(), before, "{about}: the file is unchanged");
        }
    }
}
