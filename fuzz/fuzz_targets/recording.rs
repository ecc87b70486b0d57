// SPDX-License-Identifier: Apache-2.0
//! Recordings with the right schema and hostile rows: numbers out of range, unknown ids, cycles, texts and
//! blobs in place of integers. Every reader ends with a view or with an error.
//!
//! Changed bytes fail at the first check of SQLite or of the schema. Here only rows are wrong.
#![no_main]

mod views;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use rusqlite::Connection;
use rusqlite::types::Value;
use wallprof_model::event::{LedgerDelta, SampleDelta, Stall, Weighted};
use wallprof_model::{
    EpochSecond, Event, Frame, FrameId, FrameKind, MonoNs, Reason, StackEnd, StackId, StallReason, State,
    SymbolLine, ThreadInfo, ThreadKey,
};
use wallprof_recording::{Recorder, RecordingStart};

/// More changes find no further defects.
const MOST_CHANGES: usize = 24;
const NUMBERS: [i64; 18] =
    [-1, 0, 1, 2, 3, 63, 64, 65, 66, 67, 255, 256, 4096, 65_536, 1 << 32, 1 << 40, i64::MAX, i64::MIN];
const TEXTS: [&str; 9] =
    ["", "x", "irq", "task", "reclaim", "complete", "level", "a\n\u{1b}[31m;b", "\u{202e}\u{0}"];

struct Table {
    name: String,
    columns: Vec<String>,
}

/// A valid recording and its tables.
struct Template {
    bytes: Vec<u8>,
    tables: Vec<Table>,
}

fuzz_target!(|bytes: &[u8]| {
    static TEMPLATE: OnceLock<Template> = OnceLock::new();
    let path = scratch("rows");
    let template = TEMPLATE.get_or_init(|| Template::new(&scratch("template")));
    std::fs::write(&path, &template.bytes).expect("a file in memory");
    change(&path, &template.tables, &mut Unstructured::new(bytes));
    let _ = views::read_all(&path);
    let _ = std::fs::remove_file(path);
});

fn scratch(name: &str) -> PathBuf {
    format!("/dev/shm/wallprof-{name}-{}.db", std::process::id()).into()
}

impl Template {
    fn new(path: &Path) -> Self {
        record(path);
        let connection = Connection::open(path).expect("the recording");
        let tables = names(&connection, "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name");
        let tables = tables.into_iter().map(|name| {
            let columns = names(&connection, &format!("SELECT name FROM pragma_table_info('{name}')"));
            Table { name, columns }
        });
        let tables = tables.collect();
        drop(connection);
        let bytes = std::fs::read(path).expect("the recording");
        let _ = std::fs::remove_file(path);
        Template { bytes, tables }
    }
}

fn names(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection.prepare(sql).expect("a query");
    statement.query_map([], |row| row.get(0)).expect("rows").collect::<rusqlite::Result<_>>().expect("names")
}

/// Two threads with a stack of two functions each, samples and waits.
fn record(path: &Path) {
    let start = RecordingStart {
        start: MonoNs(1_000),
        source: "live".into(),
        min_stall_ns: 10,
        ..Default::default()
    };
    let mut recorder = Recorder::create(path, &start).expect("a recording");
    let mut take = |event| recorder.take(event).expect("an event");
    let (user, kernel) = (StackId(1), StackId(2));
    for number in 0..3 {
        let kind = if number == 2 { FrameKind::Kernel } else { FrameKind::Native };
        let frame = Frame { kind, module: None, address: 0x1000 * (1 + u64::from(number)) };
        take(Event::Frame { id: FrameId(number), frame });
        let line =
            SymbolLine { symbol: Some(format!("f{number}")), offset: Some(1), ..SymbolLine::default() };
        take(Event::Symbol { frame: FrameId(number), lines: vec![line] });
    }
    take(Event::Stack { id: user, frames: vec![FrameId(1), FrameId(0)], end: StackEnd::Complete });
    take(Event::Stack { id: kernel, frames: vec![FrameId(2)], end: StackEnd::Complete });
    for number in 0..2 {
        let thread = ThreadKey(number);
        take(Event::Thread(ThreadInfo { start_boot_ns: 1, ..ThreadInfo::new(thread, (10, "server"), (10 + number, "worker")) }));
        take(Event::ThreadSeen { thread, from: MonoNs(1_000) });
        let ledger = LedgerDelta::new(thread, EpochSecond(0));
        take(Event::Ledger(LedgerDelta { wall_ns: 9_000, on_cpu_ns: 9_000, user_samples: 1, ..ledger }));
        take(Event::Sample(SampleDelta {
            thread,
            second: EpochSecond(0),
            what: Weighted::State(State::User),
            user: Some(user),
            kernel: Some(kernel),
            waker: None,
            weight: 9_000,
            count: 1,
        }));
        let lock = StallReason::Blocked(Reason::Lock);
        let stall =
            Stall { user: Some(user), kernel: Some(kernel), ..Stall::new(thread, lock, MonoNs(2_000), 500) };
        take(Event::Stall(Box::new(stall)));
    }
    recorder.finish(MonoNs(10_000)).expect("a whole recording");
}

/// Adds, changes and removes rows. Statements that SQLite refuses have no effect.
fn change(path: &Path, tables: &[Table], input: &mut Unstructured<'_>) {
    let connection = Connection::open(path).expect("the recording");
    let _ = connection.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN");
    for _ in 0..MOST_CHANGES {
        let Ok((sql, values)) = statement(tables, input) else { break };
        let _ = connection.execute(&sql, rusqlite::params_from_iter(values));
    }
    let _ = connection.execute_batch("COMMIT");
}

fn statement(tables: &[Table], input: &mut Unstructured<'_>) -> Result<(String, Vec<Value>)> {
    if input.is_empty() {
        return Err(libfuzzer_sys::arbitrary::Error::NotEnoughData);
    }
    let table = input.choose(tables)?;
    let (name, columns) = (&table.name, &table.columns);
    Ok(match input.choose_index(8)? {
        0 => (format!("DELETE FROM {name} WHERE {} = ?", input.choose(columns)?), vec![value(input)?]),
        1..4 => {
            let (column, other) = (input.choose(columns)?, input.choose(columns)?);
            (format!("UPDATE {name} SET {column} = ? WHERE {other} >= ?"), vec![value(input)?, value(input)?])
        }
        4 => {
            // Inserts many rows that differ in one number.
            let counting = input.choose_index(columns.len())?;
            let each: Result<Vec<String>> = (0..columns.len())
                .map(|at| Ok(if at == counting { "i".to_owned() } else { literal(input)? }))
                .collect();
            let rows = "WITH RECURSIVE n(i) AS (SELECT 60 UNION ALL SELECT i + 1 FROM n LIMIT 300)";
            (format!("INSERT OR REPLACE INTO {name} {rows} SELECT {} FROM n", each?.join(", ")), vec![])
        }
        _ => {
            let places = vec!["?"; columns.len()].join(", ");
            let values: Result<Vec<Value>> = columns.iter().map(|_| value(input)).collect();
            (format!("INSERT OR REPLACE INTO {name} VALUES ({places})"), values?)
        }
    })
}

/// A literal: the counter, the number before it, NULL, or a small number.
fn literal(input: &mut Unstructured<'_>) -> Result<String> {
    Ok(match input.choose_index(6)? {
        0 => "i".to_owned(),
        1 => "i - 1".to_owned(),
        2 => "NULL".to_owned(),
        _ => input.choose(&NUMBERS)?.to_string(),
    })
}

fn value(input: &mut Unstructured<'_>) -> Result<Value> {
    Ok(match input.choose_index(12)? {
        0 => Value::Null,
        1 => Value::Real(*input.choose(&[0.5, -1.0, 1e300, f64::INFINITY, f64::NEG_INFINITY, f64::NAN])?),
        2 => Value::Text((*input.choose(&TEXTS)?).to_owned()),
        3 => Value::Blob(vec![0xff; input.int_in_range(0..=70)?]),
        4 => Value::Text("long ".repeat(input.int_in_range(1..=4000)?)),
        5 => Value::Integer(input.arbitrary()?),
        6..9 => Value::Integer(input.int_in_range(0..=70)?),
        _ => Value::Integer(*input.choose(&NUMBERS)?),
    })
}
