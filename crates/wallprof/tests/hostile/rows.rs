// SPDX-License-Identifier: Apache-2.0
//! Rows that no recorder writes, in a file that SQLite accepts.

use crate::readers::{Outcome, assert_orderly, read, read_by};
use crate::recording::{Hostile, is_thorough};

/// Each is a recording of its own.
const HOSTILE_ROWS: [(&str, &str); 42] = [
    ("a stack is its own parent", "UPDATE node SET parent = id WHERE frame IS NOT NULL"),
    ("two stacks are each other's parent", "UPDATE node SET parent = 129 - id WHERE id IN (64, 65)"),
    ("a parent comes later", "UPDATE node SET parent = id + 1 WHERE frame IS NOT NULL"),
    ("an unknown frame", "UPDATE node SET frame = 4000000000 WHERE frame IS NOT NULL"),
    ("an unknown stack", "UPDATE stall SET user_stack = 4294967295, kernel_stack = 4294967296"),
    ("a negative stack", "UPDATE stall SET user_stack = -1"),
    ("an unknown thread", "UPDATE stall SET thread = 77; UPDATE bucket SET thread = thread + 77"),
    ("a thread without a number", "UPDATE thread SET id = 4294967295 WHERE id = 2"),
    ("a thread beyond all numbers", "UPDATE thread SET id = 1 << 40 WHERE id = 2"),
    ("texts in columns of integers", "UPDATE stall SET start_ns = 'soon', duration_ns = 'long'"),
    ("a blob in a column of integers", "UPDATE bucket SET wall_ns = x'00ff'"),
    ("an integer in a column of texts", "UPDATE text SET text = 7; UPDATE loss SET reason = 7"),
    ("text that is no UTF-8", "UPDATE text SET text = CAST(x'ff00fe' AS TEXT)"),
    (
        "NULL in a sum",
        "DROP TABLE bucket; CREATE TABLE bucket (second, thread, wall_ns);
             INSERT INTO bucket VALUES (1, 1, NULL)",
    ),
    ("negative times", "UPDATE stall SET start_ns = -5, duration_ns = -5"),
    (
        "the largest times",
        "UPDATE stall SET start_ns = 9223372036854775807,
             duration_ns = 9223372036854775807",
    ),
    (
        "the recording ends before it starts",
        "UPDATE recording SET start_ns = 9000000000000000000,
             end_ns = 1, last_ns = 1",
    ),
    ("the recording lasts for ever", "UPDATE recording SET start_ns = 0, end_ns = 9223372036854775807"),
    ("the recording has no end", "UPDATE recording SET end_ns = NULL, last_ns = 9223372036854775807"),
    (
        "NaN and infinity as counters",
        "INSERT INTO counter_series VALUES (1, 'memory.free', NULL, 'level',
             'bytes');
         DROP TABLE counter; CREATE TABLE counter (series, mono_ns, value);
         INSERT INTO counter VALUES (1, 1400000000, 9e999), (1, 1500000000, -9e999), (1, 1500000001,
             9e999 - 9e999)",
    ),
    (
        "a counter of text",
        "INSERT INTO counter_series VALUES (1, 'x', NULL, 'level', '');
             INSERT INTO counter VALUES (1, 5, 'NaN')",
    ),
    (
        "sums that overflow",
        "UPDATE bucket SET wall_ns = 9223372036854775807, on_cpu_ns = 9223372036854775807;
         UPDATE sample SET weight = 9223372036854775807, count = 9223372036854775807",
    ),
    (
        "losses that overflow",
        "INSERT INTO loss VALUES (0, 'x', 9223372036854775807), (1, 'x',
             9223372036854775807)",
    ),
    (
        "interrupts that overflow",
        "INSERT INTO interrupt VALUES (0, 1, 'irq', 1, 0, 9223372036854775807,
             9223372036854775807, 1),
         (1, 1, 'irq', 1, 0, 9223372036854775807, 9223372036854775807, 1)",
    ),
    (
        "latencies that overflow",
        "INSERT INTO latency_cell VALUES (0, 1, 0, 5, 9223372036854775807,
             9223372036854775807, 1),
         (1, 1, 0, 5, 9223372036854775807, 9223372036854775807, 1), (0, 1, 0, 65535, 1, 1, 1)",
    ),
    (
        "intervals that overlap",
        "INSERT INTO stall SELECT 1000 + value, 1, 1, (SELECT reason_code
             FROM stall LIMIT 1), 0,
         1500000000, 400000000, 400000000, 0, NULL, 1, 0, 65, 66, NULL, NULL, NULL, NULL, NULL, 120
         FROM json_each('[1,2,3,4,5,6,7,8,9]')",
    ),
    (
        "more blocked time than time",
        "UPDATE stall SET blocked_ns = 9223372036854775807,
             runnable_ns = 9223372036854775807",
    ),
    ("unknown reason codes", "UPDATE stall SET reason_code = 200"),
    ("all flags", "UPDATE stall SET flags = -1"),
    ("an unknown state", "UPDATE sample SET state_or_event = 9223372036854775807"),
    ("an unknown event", "UPDATE OR REPLACE sample SET state_or_event = 256 + 65535"),
    ("events with wild numbers", "INSERT INTO event VALUES (65535, 'x'), (3, 'y'), (-1, 'z')"),
    ("unknown wakers", "UPDATE sample SET waker = 1 << 33; UPDATE stall SET waker = 4294967295"),
    (
        "clocks that jump",
        "INSERT OR REPLACE INTO clock VALUES (0, 9223372036854775807),
             (9223372036854775807, 0), (5, 5)",
    ),
    (
        "seconds out of range",
        "UPDATE OR REPLACE bucket SET second = 1 << 33;
             UPDATE OR REPLACE sample SET second = -1",
    ),
    (
        "marks at times out of range",
        "INSERT INTO mark VALUES (1, -1, NULL, 'x'), (2, 9223372036854775807,
             9223372036854775807, 'y')",
    ),
    (
        "throttling at times out of range",
        "INSERT INTO throttled VALUES (0, 100, 1, 9223372036854775807, 0, 0, 0,
             9223372036854775807, 1)",
    ),
    (
        "a kernel delay without an end",
        "INSERT INTO kernel_delay VALUES (0, 1, 'reclaim', 9223372036854775807,
             9223372036854775807)",
    ),
    (
        "call paths in a cycle",
        "INSERT INTO call_path VALUES (1, 1, 2, 1, NULL, 1, 0, 0, 0, 1, 1, 1, 1,
             1), (1, 2, 1, 1, NULL, 1, 0, 0, 0, 1, 1, 1, 1, 1)",
    ),
    (
        "calls with more time than time",
        "INSERT INTO call_path VALUES (1, 1, NULL, 1, NULL,
             9223372036854775807, 0, 0, 0, 9223372036854775807, 9223372036854775807, 9223372036854775807,
             9223372036854775807, 0);
         INSERT INTO call_cell VALUES (1, 9, 9223372036854775807, 9223372036854775807, 9223372036854775807)",
    ),
    ("build ids that are too long", "UPDATE module SET build_id = zeroblob(900000)"),
    (
        "two recordings in one",
        "DROP TABLE recording; CREATE TABLE recording (id, schema, start_ns,
             last_ns, end_ns, source, kernel, arch, cpus, hostname,
         machine_id, boot_id, command, min_stall_ns, sample_period_ns, writer, call_resolution_ns)",
    ),
];

#[test]
fn readers_of_a_valid_recording_succeed() {
    for twin in [Hostile::twin(), Hostile::twin().in_schema_1()] {
        let outcomes = read(&twin);
        assert_orderly("the twin", &outcomes);
        for Outcome { command, code, stderr, .. } in outcomes {
            let has_none = command.contains("--view calls") || command.contains("--trend");
            assert_eq!(code, Some(i32::from(has_none)), "{command}: {stderr}");
        }
    }
}

#[test]
fn readers_of_hostile_rows_end_in_order() {
    assert_orderly_for(&HOSTILE_ROWS[..HOSTILE_ROWS.len() / 2], |hostile| read(&hostile));
}

#[test]
fn readers_of_more_hostile_rows_end_in_order() {
    assert_orderly_for(&HOSTILE_ROWS[HOSTILE_ROWS.len() / 2..], |hostile| read(&hostile));
}

/// Readers see such rows through views over the tables of the file, and a change copies them. The views are the same
/// for all readers: without `make hostile`, those run that read every table, and those that change the file.
#[test]
fn readers_of_hostile_rows_in_schema_1_end_in_order() {
    const SOME: [&str; 6] = [
        "report FILE",
        "report --json FILE",
        "stalls --all FILE",
        "flame FILE -o OUT.svg",
        "import --marks MARKS FILE",
        "symbolize FILE --debug-dir /proc/self/fdinfo",
    ];
    assert_orderly_for(&HOSTILE_ROWS, |hostile| {
        let outcomes = read_by(&Hostile::in_schema_1(hostile), |reader| {
            is_thorough() || SOME.contains(&reader.join(" ").as_str())
        });
        assert!(outcomes.len() >= SOME.len(), "each is among the readers");
        outcomes
    });
}

fn assert_orderly_for(rows: &[(&str, &str)], read: impl Fn(Hostile) -> Vec<Outcome>) {
    let mut found = Vec::new();
    for (about, sql) in rows {
        let outcomes = read(Hostile::new(sql));
        found.extend(outcomes.iter().filter_map(|outcome| Some(format!("{about}: {}", outcome.disorder()?))));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
