// SPDX-License-Identifier: Apache-2.0
//! Many rows, and few rows that expand to many: the memory and the output of a reader are bounded. The output
//! states the number of rows that it leaves out.

use std::fs;

use serde_json::Value;
use wallprof_model::Reason;
use wallprof_model::event::LedgerDelta;

use crate::readers::{Outcome, assert_orderly, read_by};
use crate::recording::{Hostile, flood_rows, flood_rows_of_a_table, numbers};

/// Adds threads that differ in their numbers.
const THREADS: &str =
    "INSERT INTO thread (id, tid, pid, ns_tid, ns_pid, start_boot_ns, comm, process, kernel_thread)
    SELECT 1000 + i, i, i, i, i, 1, 1, 1, 0 FROM n";

/// One command of each kind: the others read the same rows in the same way.
const ONE_OF_EACH: [&str; 5] =
    ["report FILE", "report --json FILE", "stalls --all FILE", "flame FILE -o OUT.svg", DIFF];
const DIFF: &str = "diff TWIN FILE --all -o OUT.svg";

fn orderly(about: &str, sql: &str, commands: &[&str]) -> (Hostile, Vec<Outcome>) {
    let hostile = Hostile::new(&format!("BEGIN; {sql}; COMMIT"));
    let outcomes = read_by(&hostile, |reader| commands.contains(&reader.join(" ").as_str()));
    assert_orderly(about, &outcomes);
    assert_eq!(outcomes.len(), commands.len(), "every command is among the readers");
    (hostile, outcomes)
}

fn code(outcomes: &[Outcome], command: &str) -> Option<i32> {
    outcomes.iter().find(|outcome| outcome.command.starts_with(command)).and_then(|outcome| outcome.code)
}

/// Threads that lived for a microsecond each, beside two that lived for two seconds.
#[test]
fn very_many_threads_are_listed_in_part_and_summed_in_full() {
    let others = other_columns();
    let zeroes = vec!["0"; others.split(',').count()].join(", ");
    let (flood, rows) = (numbers(flood_rows()), flood_rows());
    let (hostile, outcomes) = orderly(
        "very many threads",
        &format!(
            "{flood} {THREADS};
             {flood} INSERT INTO bucket (second, thread, wall_ns, on_cpu_ns, runnable_ns, {others})
                 SELECT (SELECT min(second) FROM bucket), 1000 + i, 1000, 600, 400, {zeroes} FROM n"
        ),
        &[&ONE_OF_EACH[..], &["export FILE --to pprof -o OUT"]].concat(),
    );
    for Outcome { command, code, stderr, .. } in &outcomes {
        assert_eq!(*code, Some(0), "{command}: {stderr}");
    }
    let threads = threads_in_report(&hostile);
    assert_eq!(threads.len(), 100_001);
    assert_eq!(
        [&threads[0]["comm"], &threads[1]["comm"]],
        ["worker-1", "worker-2"],
        "the longest are listed"
    );
    assert_eq!(threads[100_000]["comm"], format!("[{} more threads]", rows + 2 - 100_000));
    let wall_ns: u64 = threads.iter().map(|thread| thread["wall_ns"].as_u64().unwrap()).sum();
    assert_eq!(wall_ns, 2 * 2_000_000_000 + rows * 1_000, "nothing is missing from the sum");
    let picture = fs::metadata(hostile.path("out.svg")).unwrap();
    assert!(picture.len() < 8 << 20, "a picture of {} bytes", picture.len());
}

/// Every column of `bucket` that the flood does not set.
fn other_columns() -> String {
    let named = ["wall_ns", "on_cpu_ns", "runnable_ns"];
    let sums = LedgerDelta::SUMS.iter().map(|(name, _)| (*name).to_owned());
    let others = sums.filter(|name| !named.contains(&name.as_str()));
    let blocked = Reason::ALL.into_iter().map(|reason| format!("{}_ns", reason.name()));
    others.chain(blocked).collect::<Vec<_>>().join(", ")
}

fn threads_in_report(hostile: &Hostile) -> Vec<Value> {
    let output = crate::limits::run(&["report", "--json", hostile.file().to_str().unwrap()]).unwrap();
    let mut report: Value = serde_json::from_slice(&output.stdout).unwrap();
    match report["threads"].take() {
        Value::Array(threads) => threads,
        other => panic!("{other}"),
    }
}

#[test]
fn threads_up_to_the_limit_are_all_listed() {
    let flood = numbers(99_998);
    let sql = format!("{flood} {THREADS}");
    let threads = threads_in_report(&Hostile::new(&sql));
    assert_eq!(threads.len(), 100_000);
    assert_eq!(threads[99_999]["tid"], 99_998);
}

#[test]
fn very_many_inline_rows_on_a_frame_are_few_functions() {
    let flood = numbers(flood_rows());
    let sql = format!("{flood} INSERT OR IGNORE INTO line SELECT 1, i, 1, 0, 1, i, 1 FROM n");
    let (hostile, outcomes) = orderly("very many inline rows", &sql, &ONE_OF_EACH);
    assert!(outcomes.iter().all(|outcome| outcome.printed < 8 << 20));
    assert!(fs::metadata(hostile.path("out.svg")).is_ok_and(|picture| picture.len() < 8 << 20));
}

/// A name of a megabyte is stored once; very many rows refer to it.
#[test]
fn one_long_name_of_very_many_functions_is_refused() {
    let flood = numbers(flood_rows());
    let sql = format!(
        "INSERT INTO text VALUES (5000, replace(hex(zeroblob(450000)), '0', 'n'));
         {flood} INSERT INTO frame SELECT 10 + i, 0, NULL, i FROM n;
         {flood} INSERT INTO line SELECT 10 + i, 0, 5000, 0, 5000, 1, 0 FROM n;
         {flood} INSERT INTO node SELECT 1000 + i, (SELECT min(node) FROM root), 10 + i, 1 FROM n;
         {flood} INSERT INTO sample SELECT (SELECT min(second) FROM bucket), 1, 0, 1000 + i, 0, 0, 1000,
             1 FROM n"
    );
    let (_, outcomes) = orderly("a long name", &sql, &ONE_OF_EACH);
    let flame = outcomes.iter().find(|outcome| outcome.command.starts_with("flame")).unwrap();
    assert_eq!(flame.code, Some(1));
    assert!(flame.stderr.contains("names of more than 256 MiB"), "{}", flame.stderr);
}

/// Chains of two thousand frames in which every node is a stack: a million rows are 10⁹ frames.
#[test]
fn very_many_deep_stacks_are_refused_with_advice() {
    let flood = numbers(flood_rows());
    let sql = format!(
        "{flood} INSERT INTO node SELECT 1000 + i, CASE WHEN i % 2000 = 1 THEN (SELECT min(node) FROM root)
             ELSE 999 + i END, 1, 1 FROM n;
         {flood} INSERT INTO sample SELECT (SELECT min(second) FROM bucket), 1, 0, 1000 + i, 0, 0, 1000,
             1 FROM n"
    );
    let (_, outcomes) = orderly("deep stacks", &sql, &["report FILE", "flame FILE -o OUT.svg"]);
    let flame = outcomes.iter().find(|outcome| outcome.command.starts_with("flame")).unwrap();
    assert_eq!(flame.code, Some(1));
    assert!(flame.stderr.contains("stacks of more than 67 million functions"), "{}", flame.stderr);
    assert!(flame.stderr.contains("--thread"), "{}", flame.stderr);
    assert_eq!(code(&outcomes, "report FILE"), Some(0), "a report needs no stack of a sample");
}

/// As many stacks as samples: tables have a row for each.
#[test]
fn tables_of_very_many_distinct_stacks_are_written_in_bounded_memory() {
    let flood = numbers(flood_rows());
    let sql = format!(
        "{flood} INSERT INTO frame SELECT 1000 + i, (SELECT min(kind_code) FROM frame),
             (SELECT min(module) FROM frame), 4096 * i FROM n;
         {flood} INSERT INTO node SELECT 1000 + i, (SELECT min(node) FROM root), 1000 + i, 1 FROM n;
         {flood} INSERT INTO sample SELECT (SELECT min(second) FROM bucket), 1, 0, 1000 + i, 0, 0, 1000,
             1 FROM n"
    );
    let (hostile, outcomes) = orderly("distinct stacks", &sql, &["export FILE --to parquet -o OUT.tables"]);
    assert_eq!(outcomes[0].code, Some(0), "{}", outcomes[0].stderr);
    let stacks = hostile.path("out.tables/stacks");
    let bytes: u64 = files(&stacks).iter().map(|file| fs::metadata(file).expect("a file").len()).sum();
    // The hash of a stack is 16 bytes that no other one has.
    assert!(bytes > 16 * flood_rows(), "{bytes} bytes");
}

fn files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// One path of calls as deep as a trace can be.
#[test]
fn very_deep_call_paths_end_in_order() {
    let flood = numbers(flood_rows());
    let sql = format!(
        "{flood} INSERT INTO call_path SELECT 1, i, nullif(i - 1, 0), 1, NULL, 1, 0, 0, 0, 1, 1, 1, 1,
             1 FROM n"
    );
    let (_, outcomes) =
        orderly("deep call paths", &sql, &["report FILE", "flame FILE --view calls -o OUT.svg"]);
    let flame = outcomes.iter().find(|outcome| outcome.command.contains("--view calls")).unwrap();
    assert!(flame.stderr.contains("call paths") && flame.stderr.contains("--thread"), "{}", flame.stderr);
}

#[test]
fn floods_of_every_other_table_end_in_order() {
    let flood = numbers(flood_rows_of_a_table());
    for (about, sql) in [
        ("losses", "INSERT INTO loss SELECT 0, 'reason ' || i, 1 FROM n"),
        ("interrupts", "INSERT INTO interrupt SELECT 0, i, 'irq', 1, 0, 1, 1, 1 FROM n"),
        ("intrusions", "INSERT INTO intrusion SELECT 0, i, 'task', 0, 1, 0, 1, 1, 1 FROM n"),
        ("marks", "INSERT INTO mark SELECT i, i * 2000, NULL, 'mark ' || i FROM n"),
        ("counters", "INSERT INTO counter_series SELECT i, 'memory.x' || i, NULL, 'level', 'bytes' FROM n"),
        (
            "values",
            "INSERT INTO counter SELECT 1, i * 2000, i FROM n;
             INSERT INTO counter_series VALUES (1, 'memory.free', NULL, 'level', 'bytes')",
        ),
        ("clock readings", "INSERT OR REPLACE INTO clock SELECT i * 1000, i * 999 FROM n"),
        ("folded stalls", "INSERT INTO folded SELECT i, 1, 0, 0, 1, 1, 1 FROM n"),
        ("throttling", "INSERT INTO throttled SELECT 0, i, 1, i, i + 5, 1, 1, 1, 1 FROM n"),
        ("kernel delays", "INSERT INTO kernel_delay SELECT 0, 1, 'reclaim', i * 2000, 1000 FROM n"),
        (
            "spans",
            "INSERT INTO span SELECT i, 0, 1, 'busy', 1, i, i, 1,1,1,1,1,1, 1,1,1,1,1,1,1,1,1,1,1,1, 1 FROM n",
        ),
        (
            "sums of spans",
            "INSERT INTO span_cell SELECT i, 1, 'busy', i % 1000, i % 976, 1, i,
                 1,1,1,1,1,1, 1,1,1,1,1,1,1,1,1,1,1,1, 1 FROM n",
        ),
        ("cross calls", "INSERT INTO cross_call SELECT i, 1, 1, 1, 1 FROM n"),
    ] {
        let (_, outcomes) = orderly(about, &format!("{flood} {sql}"), &ONE_OF_EACH[..3]);
        let report = outcomes.iter().find(|outcome| outcome.command == "report FILE").unwrap();
        assert!(report.printed < 1 << 20, "{about}: a report of {} bytes", report.printed);
    }
}
