// SPDX-License-Identifier: Apache-2.0
//! Recordings of older schemas. `tests/old` has one that each earlier layout's own writer wrote, from the
//! same events as far as it knew them.

mod fixture;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use fixture::*;
use rusqlite::Connection;
use wallprof_model::profile::{Cause, Finding};
use wallprof_model::{MonoNs, StallKind, ThreadKey};
use wallprof_recording::{
    Additions, BlameRow, Conclusions, Error, Naming, Recording, SCHEMA, StallFilter, write_findings,
};

/// Schema 1 had nine layouts.
const LAYOUTS: std::ops::RangeInclusive<u32> = 1..=9;

fn stored(place: &Place, layout: u32) -> PathBuf {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/old/layout_{layout}.db.gz"));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(fs::File::open(packed).unwrap()).read_to_end(&mut bytes).unwrap();
    let path = place.folder().join(format!("{layout}.db"));
    fs::write(&path, bytes).unwrap();
    path
}

/// `count` if `layout` has the kind of row that came with layout `since`.
fn since(since: u32, layout: u32, count: usize) -> usize {
    if layout >= since { count } else { 0 }
}

/// Reads everything that a recording offers, and compares it with the events.
fn assert_read(recording: &Recording, layout: u32) {
    let info = recording.info().unwrap();
    assert_eq!((info.start, info.end, info.ended_cleanly), (START, at(2_000_000_000), true));
    assert_eq!((info.losses["stacks_full"], info.overhead.probe_runs), (3, 13));
    assert_eq!(info.overhead.table_bytes, if layout >= 2 { 14 } else { 0 });
    assert_eq!(info.call_resolution_ns, (layout >= 3).then_some(5));
    assert_eq!(info.events, ["cycles"]);

    let threads = recording.threads().unwrap();
    assert_eq!(threads.len(), 1);
    let traced = u64::from(layout >= 9);
    let ledger = &threads[0].ledger;
    assert_eq!((ledger.wall_ns, ledger.runnable_ns), (1_000 + 100 * traced, 300));
    assert_eq!((ledger.failed_faults, ledger.traced_user_ns), (2 * u64::from(layout >= 4), 50 * traced));
    assert_eq!(threads[0].latency.len(), 1);
    assert_eq!(recording.ledger(..).unwrap().count(), 1 + since(9, layout, 1));
    let samples: Vec<_> = recording.samples(..).unwrap().map(|sample| sample.unwrap()).collect();
    assert_eq!(samples.len(), 1);
    assert!(samples[0].waker.as_ref().is_some_and(|waker| waker.interrupt));
    assert_eq!(recording.resolve(samples[0].user.unwrap()).unwrap().frames.len(), 2);

    assert_stalls(recording, layout);
    assert_eq!(recording.interrupts().unwrap()[0].total_ns, 3_000);
    assert_eq!(recording.folded().unwrap().len(), 0);
    assert_eq!(recording.threads_with_calls().unwrap().len(), since(3, layout, 1));
    assert_eq!(recording.calls(threads[0].info.key).unwrap().paths.len(), since(3, layout, 1));
    assert_eq!(recording.intrusions().unwrap().len(), since(6, layout, 1));
    assert_eq!(recording.kernel_delays().unwrap().len(), since(7, layout, 1));
    assert_eq!(recording.cross_calls().unwrap().len(), since(7, layout, 1));
    assert_eq!(recording.throttled().unwrap().len(), since(7, layout, 1));
    let mut counters = recording.counters().unwrap();
    assert_eq!(counters.around(1000, at(0)..at(200)).unwrap().len(), since(8, layout, 1));
}

fn assert_stalls(recording: &Recording, layout: u32) {
    let all = StallFilter { include_voluntary: true, ..StallFilter::default() };
    let stalls: Vec<_> = recording.stalls(&all).unwrap().map(|stall| stall.unwrap()).collect();
    assert_eq!(stalls.len(), 2 + since(7, layout, 1));
    let wait = &stalls[0];
    assert_eq!((wait.blocked_ns, wait.runnable_ns, wait.cpu), (2_100_000, 400_000, Some(1)));
    assert_eq!(wait.lock.as_ref().unwrap().owner.as_ref().unwrap().comm, "neighbour");
    assert_eq!(wait.ran_instead[0].1, 400_000);
    assert_eq!(wait.binding.is_some(), layout >= 7);
    let fault = stalls[1].fault.as_ref().unwrap();
    assert_eq!((stalls[1].kind, fault.address), (StallKind::Fault, 0xffff_0000_1234_0000));
    assert_eq!(fault.mapping.is_some(), layout >= 4);
    if let Some(disk) = stalls.get(2) {
        assert_eq!(disk.file.as_ref().unwrap().path, "/log");
    }
}

#[test]
fn each_layout_is_read_and_its_file_does_not_change() {
    for layout in LAYOUTS {
        let place = place();
        let path = stored(&place, layout);
        let before = fs::read(&path).unwrap();
        let recording = Recording::open(&path).unwrap();
        assert_read(&recording, layout);
        assert_eq!(fs::read_dir(place.folder()).unwrap().count(), 1, "layout {layout}: a file beside it");
        drop(recording);
        assert!(fs::read(&path).unwrap() == before, "layout {layout}: the file changed");
    }
}

#[test]
fn copy_of_a_killed_writers_file_is_read_in_each_layout() {
    for layout in LAYOUTS {
        let place = place();
        let path = stored(&place, layout);
        // Write-ahead-log mode without the log: SQLite would have to write beside the file.
        let mut bytes = fs::read(&path).unwrap();
        bytes[18..20].copy_from_slice(&[2, 2]);
        fs::write(&path, &bytes).unwrap();
        assert_read(&Recording::open(&path).unwrap(), layout);
        assert_eq!(fs::read(&path).unwrap(), bytes, "layout {layout}: the file changed");
    }
}

fn schema_of(path: &Path) -> u32 {
    Connection::open(path).unwrap().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

#[test]
fn change_brings_each_layout_to_the_current_schema_and_keeps_its_rows() {
    let finding = Finding {
        rule: "lock".into(),
        cause: Cause::Program,
        title: "t".into(),
        advice: "a".into(),
        threads: vec![ThreadKey(1)],
        most_late: Vec::new(),
        most_late_ns: 2,
        count: 1,
        total_ns: 2,
        max_ns: 2,
        stalls: vec![1],
    };
    for layout in LAYOUTS {
        let place = place();
        let path = stored(&place, layout);
        assert_eq!(schema_of(&path), 1);
        let (findings, blame) = (vec![finding.clone()], vec![BlameRow::default()]);
        let conclusions = Conclusions { findings, blame, ..Conclusions::default() };
        write_findings(&path, &conclusions).unwrap();
        assert_eq!(schema_of(&path), SCHEMA);
        assert_read(&Recording::open(&path).unwrap(), layout);
        assert_same_schema(&path);
    }
}

/// Compares tables with their columns, indexes and views with those of a new recording, and queries every
/// view.
fn assert_same_schema(path: &Path) {
    let place = place();
    recorder(&place.file()).finish(at(1)).unwrap();
    let schema = |path: &Path| -> Vec<(String, String)> {
        let connection = Connection::open(path).unwrap();
        let sql = "SELECT name, CASE type WHEN 'view' THEN sql ELSE
                 (SELECT group_concat(name || ' ' || type || ' ' || \"notnull\" || ' ' || pk)
                  FROM pragma_table_info(sqlite_schema.name)) END AS sql
             FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name";
        let mut find = connection.prepare(sql).unwrap();
        let rows = find.query_map([], |row| {
            Ok((row.get("name")?, row.get::<_, Option<String>>("sql")?.unwrap_or_default()))
        });
        rows.unwrap().collect::<rusqlite::Result<_>>().unwrap()
    };
    assert_eq!(schema(path), schema(&place.file()));
    let connection = Connection::open(path).unwrap();
    for (view, _) in schema(path).iter().filter(|(_, sql)| sql.starts_with("CREATE VIEW")) {
        let sql = format!("SELECT count(*) FROM (SELECT * FROM {view})");
        let rows: i64 = connection.query_row(&sql, [], |row| row.get(0)).unwrap();
        assert!(
            rows > 0
                || ["marks", "folded_stalls", "labels", "span_budgets"].contains(&view.as_str())
                || layout_lacks(view),
            "{view}"
        );
    }
}

/// Views of which early layouts have no rows.
fn layout_lacks(view: &str) -> bool {
    let later = "calls functions call_latency intrusions bindings disk_waits wait_words wait_peers kernel_works \
                 cross_calls throttling counters spans late_samples span_latency traced_stalls";
    later.split(' ').any(|name| name == view)
}

#[test]
fn names_and_marks_are_added_to_each_layout() {
    for layout in LAYOUTS {
        let place = place();
        let path = stored(&place, layout);
        let naming = Naming::open(&path).unwrap();
        let modules = naming.modules().unwrap();
        let frame = modules[0].frames.iter().find(|frame| frame.address == 0x2000).unwrap().frame;
        naming.write(&[(frame, vec![line("wait_for_it")])]).unwrap();
        let mut additions = Additions::open(&path).unwrap();
        assert!(additions.metric("orders", at(5), 2.5).unwrap());
        additions.commit().unwrap();
        let recording = Recording::open(&path).unwrap();
        let stall = recording.stall(1).unwrap().unwrap();
        assert_eq!(stall.user.unwrap().frames[0].lines[0].symbol.as_deref(), Some("wait_for_it"));
        let whole = recording.counters().unwrap().whole(|name| name == "orders").unwrap();
        assert_eq!(whole[0].points, [(at(5), 2.5)], "layout {layout}");
    }
}

#[test]
fn later_schema_is_refused_and_the_current_one_is_not_migrated() {
    let place = place();
    recorder(&place.file()).finish(MonoNs(START.0 + 1)).unwrap();
    let before = fs::read(place.file()).unwrap();
    Additions::open(&place.file()).unwrap().commit().unwrap();
    assert_eq!(fs::read(place.file()).unwrap(), before);
    Connection::open(place.file()).unwrap().pragma_update(None, "user_version", SCHEMA + 1).unwrap();
    assert!(matches!(Recording::open(&place.file()), Err(Error::NewerSchema { .. })));
}

#[test]
fn table_that_every_layout_has_may_not_be_missing() {
    let place = place();
    let path = stored(&place, 1);
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("DROP TABLE stall").unwrap();
    drop(connection);
    let Err(Error::Corrupt { detail, .. }) = Recording::open(&path) else { panic!("it was opened") };
    assert_eq!(detail, "there is no table stall");
}
