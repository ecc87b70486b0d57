// SPDX-License-Identifier: Apache-2.0
//! `docs/recording.md` is complete: it has every view with its columns, every table, and queries that work.

mod fixture;

use fixture::*;
use rusqlite::Connection;
use wallprof_model::event::{
    InterruptDelta, InterruptKind, LatencyDelta, RanInstead, SampleDelta, Stall, Waker,
};
use wallprof_model::histogram::{Cell, bucket_from_ns};
use wallprof_model::state::Metric;
use wallprof_model::{
    CallFrame, CallNumbers, CallPath, CallPathId, Event, FrameId, Outside, ThreadKey, ThreadRef,
};

const DOCUMENT: &str = include_str!("../../../docs/recording.md");

/// A recording with answers to all questions.
fn recorded() -> (Place, Connection) {
    let place = place();
    let mut recorder = recorder(&place.file());
    take_all(&mut recorder, definitions());
    let neighbour = ThreadRef { key: None, pid: 4, tid: 5, comm: "neighbour".into(), title: None };
    let cell = |ns| Cell { count: 1, total_ns: ns, max_ns: ns };
    let latency = |ns| LatencyDelta {
        thread: ThreadKey(7),
        metric: Metric::RunQueue,
        bucket: bucket_from_ns(ns),
        cell: cell(ns),
    };
    let timer = InterruptDelta {
        cpu: 0,
        kind: InterruptKind::Vector,
        name: "local_timer".into(),
        victim: Some(ThreadKey(7)),
        count: 2,
        total_ns: 3_000,
        max_ns: 2_000,
    };
    let stall = Stall {
        user: Some(USER),
        runnable_ns: 400_000,
        waker: Some(Waker { thread: Some(neighbour.clone()), user: Some(USER), kernel: None }),
        ran_instead: vec![RanInstead { thread: neighbour, ns: 400_000 }],
        ..stall(750_000_000, 2_500_000)
    };
    let bucket = wallprof_model::event::LedgerDelta {
        on_cpu_ns: 600,
        runnable_ns: 300,
        user_samples: 1,
        kernel_samples: 2,
        ..ledger(0, 1_000)
    };
    take_all(
        &mut recorder,
        vec![
            Event::Stall(Box::new(stall)),
            Event::Ledger(bucket),
            Event::Sample(SampleDelta { kernel: Some(KERNEL), ..sample(0, 10_000_000) }),
            Event::Sample(sample(0, 20_000_000)),
            Event::Latency(latency(1_100)),
            Event::Latency(latency(81_000)),
            Event::Interrupt(timer),
        ],
    );
    take_all(&mut recorder, calls());
    recorder.finish(at(2_000_000_000)).unwrap();
    let connection = Connection::open(place.file()).unwrap();
    (place, connection)
}

/// `main` calls a function twice, which calls itself once and is blocked in that.
fn calls() -> Vec<Event> {
    let millis = |half: u64| half * 500_000;
    let path = |id: u32, frame, [calls, open, own, total, min, max]: [u64; 6]| {
        let numbers = CallNumbers {
            calls,
            incomplete: open,
            self_ns: millis(own),
            total_ns: millis(total),
            complete_ns: millis(total),
            min_ns: millis(min),
            max_ns: millis(max),
            ..CallNumbers::default()
        };
        let parent = id.checked_sub(1).map(CallPathId);
        Event::CallPath(Box::new(CallPath {
            id: CallPathId(id),
            thread: ThreadKey(7),
            parent,
            frame,
            numbers,
        }))
    };
    let (main, function) = (CallFrame::Code(FrameId(0)), CallFrame::Code(FrameId(1)));
    vec![
        path(0, main, [1, 0, 2, 6, 6, 6]),
        path(1, function.clone(), [2, 0, 2, 4, 1, 3]),
        path(2, function, [1, 1, 0, 1, 1, 1]),
        path(3, CallFrame::Outside(Outside::Blocked), [1, 0, 1, 1, 1, 1]),
    ]
}

/// The rows of a query, each as one text.
fn rows(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection.prepare(sql).unwrap_or_else(|error| panic!("{error} in {sql}"));
    let columns = statement.column_count();
    let row = |row: &rusqlite::Row<'_>| {
        let shown = |column| match row.get_ref(column)? {
            rusqlite::types::ValueRef::Null => Ok("-".to_owned()),
            rusqlite::types::ValueRef::Text(text) => Ok(String::from_utf8_lossy(text).into_owned()),
            _ => row.get::<_, f64>(column).map(|number| number.to_string()),
        };
        Ok((0..columns).map(shown).collect::<rusqlite::Result<Vec<_>>>()?.join("|"))
    };
    statement.query_map([], row).unwrap().collect::<rusqlite::Result<_>>().unwrap()
}

#[test]
fn queries_of_the_document_have_these_answers() {
    let (_place, connection) = recorded();
    let queries: Vec<&str> =
        DOCUMENT.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let answers: [&[&str]; 12] = [
        &["worker|kernel|0", "worker|runnable|0", "worker|unaccounted|0", "worker|user|0"],
        &["2027-01-15 08:00:00|0"],
        &["1|2027-01-15 08:00:01|worker|lock|2.5|-|neighbour"],
        &["lock|1|2.5|2.5|/usr/bin/server+0x2000 < main"],
        &["0|-|/usr/bin/server|0x2000|-|-", "1|main|/usr/bin/server|0x1000|src/a.c|42"],
        &["/usr/bin/server+0x2000|20", "0xffffffff81000000|10"],
        &["worker|neighbour|1|2.5|/usr/bin/server+0x2000 < main"],
        &["neighbour|1|0.4"],
        &["worker|1|81.9"],
        &["local_timer|worker|2|0.003|2"],
        &["/usr/bin/server+0x2000|3|1|2|1|1500000", "[blocked]|1|0|0.5|0.5|500000", "main|1|0|3|1|3000000"],
        &[
            "/usr/bin/server+0x2000|/usr/bin/server+0x2000|1|500000",
            "/usr/bin/server+0x2000|[blocked]|1|500000",
            "main|/usr/bin/server+0x2000|2|1000000",
        ],
    ];
    assert_eq!(queries.len(), answers.len());
    for (query, expected) in queries.into_iter().zip(answers) {
        let mut got = rows(&connection, query);
        got.sort();
        let mut expected: Vec<_> = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(got, expected, "{query}");
    }
}

#[test]
fn every_view_every_column_and_every_table_is_documented() {
    let (_place, connection) = recorded();
    for view in rows(&connection, "SELECT name FROM sqlite_schema WHERE type = 'view'") {
        let line = DOCUMENT.lines().find(|line| line.starts_with(&format!("| `{view}` |")));
        let line = line.unwrap_or_else(|| panic!("view {view} is not documented"));
        for column in rows(&connection, &format!("SELECT name FROM pragma_table_info('{view}')")) {
            assert!(line.contains(&format!("`{column}`")), "{view}.{column} is not documented");
        }
    }
    let tables = DOCUMENT.split("## Tables").nth(1).unwrap();
    for table in rows(&connection, "SELECT name FROM sqlite_schema WHERE type = 'table'") {
        assert!(tables.contains(&format!("`{table}`")), "table {table} is not documented");
    }
}

#[test]
fn every_reason_is_documented() {
    let reasons = DOCUMENT.split("**Reasons** of stalls").nth(1).unwrap().split("\n\n").next().unwrap();
    for reason in wallprof_model::StallReason::ALL {
        assert!(reasons.contains(&format!("`{}`", reason.name())), "{} is not documented", reason.name());
    }
}

#[test]
fn states_of_a_thread_add_up_to_its_wall_time() {
    let (_place, connection) = recorded();
    assert_eq!(
        rows(&connection, "SELECT state, ns FROM ledger ORDER BY state"),
        ["kernel|400", "runnable|300", "unaccounted|100", "user|200"]
    );
    assert_eq!(rows(&connection, "SELECT wall_ns, on_cpu_ns, run_queue_ns FROM threads"), ["1000|600|300"]);
}

#[test]
fn time_that_a_trace_divides_is_exact_in_the_view() {
    let bucket = wallprof_model::event::LedgerDelta {
        on_cpu_ns: 600,
        traced_user_ns: 150,
        traced_kernel_ns: 31,
        undivided_ns: 119,
        user_samples: 2,
        kernel_samples: 1,
        ..ledger(0, 1_000)
    };
    let place = place();
    let mut recorder = recorder(&place.file());
    take_all(&mut recorder, definitions());
    take_all(&mut recorder, vec![Event::Ledger(bucket)]);
    recorder.finish(at(2_000_000_000)).unwrap();
    let connection = Connection::open(place.file()).unwrap();
    let states = rows(&connection, "SELECT state, ns FROM ledger ORDER BY state");
    assert_eq!(states, ["kernel|131", "unaccounted|519", "user|350"]);
}

#[test]
fn times_of_day_follow_the_clock() {
    let (_place, connection) = recorded();
    let epoch_ns = u64::from(SECOND.0) * 1_000_000_000 + 250_000_000 + 750_000_000;
    let found: i64 = connection.query_row("SELECT start_epoch_ns FROM stalls", [], |row| row.get(0)).unwrap();
    assert_eq!(found as u64, epoch_ns);
}
