// SPDX-License-Identifier: Apache-2.0
//! A valid recording of two seconds, and changes to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use tempfile::TempDir;
use wallprof_model::event::{LedgerDelta, RanInstead, SampleDelta, Stall, WakerStacks, Weighted};
use wallprof_model::{
    ClockAnchor, EpochNs, EpochSecond, Event, Frame, FrameId, FrameKind, Module, ModuleId, MonoNs, Reason,
    StackEnd, StackId, StallReason, State, SymbolLine, ThreadInfo, ThreadKey, ThreadRef,
};
use wallprof_recording::{Recorder, RecordingStart};

const START: MonoNs = MonoNs(1_000_000_000);
const END: MonoNs = MonoNs(3_000_000_000);
const SECOND: u32 = 1_795_248_000;
const USER: StackId = StackId(1);
const KERNEL: StackId = StackId(2);
/// Rows of a flood if [`FLOOD_ROWS`] is not set: enough to reach every limit.
const ENOUGH: u64 = 120_000;
/// The same of a table whose rows have no limit: enough to see that the output is bounded.
const ENOUGH_OF_A_TABLE: u64 = 20_000;
/// The environment variable with another number of rows: `make hostile` sets a million.
const FLOOD_ROWS: &str = "WALLPROF_FLOOD_ROWS";

/// The number of rows of a flood.
pub fn flood_rows() -> u64 {
    rows_from_environment().unwrap_or(ENOUGH)
}

/// The number of rows of a flood of a table whose rows have no limit.
pub fn flood_rows_of_a_table() -> u64 {
    rows_from_environment().unwrap_or(ENOUGH_OF_A_TABLE)
}

/// Whether this is `make hostile`, which takes its time.
pub fn is_thorough() -> bool {
    rows_from_environment().is_some()
}

fn rows_from_environment() -> Option<u64> {
    std::env::var(FLOOD_ROWS).ok().map(|rows| rows.parse().expect("a number of rows"))
}

/// The numbers from 1 to `rows`, as the `n` of a statement: `INSERT INTO … SELECT … FROM n`.
pub fn numbers(rows: u64) -> String {
    format!("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {rows})")
}

/// A recording in its own folder. The folder is removed when the value is dropped.
pub struct Hostile {
    folder: TempDir,
}

impl Hostile {
    /// The valid recording.
    pub fn twin() -> Self {
        static TWIN: OnceLock<Vec<u8>> = OnceLock::new();
        let hostile = Hostile { folder: tempfile::tempdir().expect("a temporary folder") };
        let recorded = TWIN.get_or_init(|| {
            record(&hostile.file());
            fs::read(hostile.file()).expect("the recording")
        });
        fs::write(hostile.file(), recorded).expect("a temporary file");
        hostile
    }

    /// The valid recording, changed by `sql`.
    pub fn new(sql: &str) -> Self {
        let hostile = Self::twin();
        hostile.change(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        hostile
    }

    pub fn change(&self, sql: &str) -> rusqlite::Result<()> {
        let connection = Connection::open(self.file())?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, false)?;
        connection.execute_batch(
            "PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536",
        )?;
        connection.execute_batch(sql)
    }

    /// The same rows in a file of schema 1.
    pub fn in_schema_1(self) -> Self {
        let connection = Connection::open(self.file()).expect("the recording");
        let names = |sql: &str| -> Vec<String> {
            let mut find = connection.prepare(sql).expect("a query");
            find.query_map([], |row| row.get(0)).expect("rows").collect::<Result<_, _>>().expect("names")
        };
        let views = names("SELECT name FROM sqlite_schema WHERE type = 'view'");
        let tables = names(
            "SELECT m.name FROM sqlite_schema m JOIN pragma_table_info(m.name) c
             WHERE m.type = 'table' AND c.name = 'flush_second'",
        );
        // Renaming a table would put its name in quotes, which no recorder writes.
        let delays = names("SELECT sql FROM sqlite_schema WHERE name = 'kernel_delay'").join("");
        let mut sql: String = views.iter().map(|view| format!("DROP VIEW {view};")).collect();
        sql += &delays.replacen("kernel_delay", "kernel_work", 1);
        sql += "; INSERT INTO kernel_work SELECT * FROM kernel_delay; DROP TABLE kernel_delay;";
        for table in tables {
            let table = table.replace("kernel_delay", "kernel_work");
            sql += &format!("ALTER TABLE {table} RENAME COLUMN flush_second TO slice;");
        }
        sql += "ALTER TABLE sample RENAME COLUMN state_or_event TO what;
             UPDATE recording SET schema = 1; PRAGMA user_version = 1";
        connection.execute_batch(&sql).expect("former names");
        drop(connection);
        self
    }

    pub fn file(&self) -> PathBuf {
        self.path("hostile.db")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Two threads of one process. One waits for the other's lock; both run; each event has stacks.
fn record(path: &Path) {
    let start = RecordingStart {
        start: START,
        clock: Some(ClockAnchor { mono: START, epoch: EpochNs(u64::from(SECOND) * 1_000_000_000) }),
        source: "live".into(),
        command: "server".into(),
        min_stall_ns: 100_000,
        ..RecordingStart::default()
    };
    let mut recorder = Recorder::create(path, &start).expect("the recording is created");
    let mut take = |event| recorder.take(event).expect("the event is taken");
    stacks().into_iter().for_each(&mut take);
    for key in [ThreadKey(1), ThreadKey(2)] {
        thread(key).into_iter().for_each(&mut take);
    }
    recorder.finish(END).expect("the recording is finished");
}

fn stacks() -> Vec<Event> {
    let module = Module { path: "/usr/bin/server".into(), build_id: Some(vec![0xab; 20]) };
    let mut events = vec![Event::Module { id: ModuleId(1), module }];
    let frames = [
        (FrameKind::Native, Some(ModuleId(1))),
        (FrameKind::Native, Some(ModuleId(1))),
        (FrameKind::Kernel, None),
    ];
    for (number, (kind, module)) in (0u32..).zip(frames) {
        let frame = Frame { kind, module, address: 0x1000 * (1 + u64::from(number)) };
        events.push(Event::Frame { id: FrameId(number), frame });
        if number != 1 {
            let line =
                SymbolLine { symbol: Some(format!("f{number}")), offset: Some(4), ..SymbolLine::default() };
            events.push(Event::Symbol { frame: FrameId(number), lines: vec![line] });
        }
    }
    events.push(Event::Stack { id: USER, frames: vec![FrameId(1), FrameId(0)], end: StackEnd::Complete });
    events.push(Event::Stack { id: KERNEL, frames: vec![FrameId(2)], end: StackEnd::Complete });
    events
}

fn thread(key: ThreadKey) -> Vec<Event> {
    let info = ThreadInfo {
        start_boot_ns: 1,
        cgroup: Some("/system.slice".into()),
        ..ThreadInfo::new(key, (100, "server"), (100 + key.0, format!("worker-{}", key.0)))
    };
    let mut blocked_ns = [0; Reason::COUNT];
    blocked_ns[Reason::Lock as usize] = 100_000_000;
    let ledger = LedgerDelta {
        blocked_ns,
        wall_ns: 2_000_000_000,
        on_cpu_ns: 1_900_000_000,
        user_samples: 190,
        ..LedgerDelta::new(key, EpochSecond(SECOND))
    };
    let lock = StallReason::Blocked(Reason::Lock);
    let other = ThreadRef {
        key: Some(key),
        pid: 100,
        tid: 9,
        comm: "other".into(),
        title: Some("other: \u{202e}\u{1b}[2Jtitle\n".into()),
    };
    let stall = Stall {
        comm: info.comm.clone(),
        syscall: Some("futex".into()),
        cpu: Some(0),
        user: Some(USER),
        kernel: Some(KERNEL),
        ran_instead: vec![RanInstead { thread: other, ns: 5 }],
        ..Stall::new(key, lock, MonoNs(START.0 + 500_000_000), 100_000_000)
    };
    let sample = |state, weight, waker| SampleDelta {
        thread: key,
        second: EpochSecond(SECOND),
        what: Weighted::State(state),
        user: Some(USER),
        kernel: Some(KERNEL),
        waker,
        weight,
        count: 1,
    };
    let waker = WakerStacks { thread: Some(key), interrupt: false, user: Some(USER), kernel: None };
    vec![
        Event::Thread(info),
        Event::ThreadSeen { thread: key, from: START },
        Event::Ledger(ledger),
        Event::Sample(sample(State::User, 1_900_000_000, None)),
        Event::Sample(sample(State::Blocked(Reason::Lock), 100_000_000, Some(waker))),
        Event::Stall(Box::new(stall)),
    ]
}
