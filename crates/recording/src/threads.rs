//! The threads of a recording, each with its ledger, its latencies and the number of its stalls.

use std::collections::BTreeMap;

use rusqlite::{Result as SqlResult, Row};
use wallprof_model::event::LedgerDelta;
use wallprof_model::histogram::{self, Cell};
use wallprof_model::profile::Thread;
use wallprof_model::state::Metric;
use wallprof_model::{EpochSecond, Histogram, MonoNs, ThreadInfo, ThreadKey};

use crate::pending::add_ledger;
use crate::recording::Recording;
use crate::row::{decoded, optional_unsigned, unsigned};
use crate::schema::flag;
use crate::seconds::ledger_from_row;

/// Each takes about a kilobyte here, and three in a flame graph.
const MAX_THREADS: i64 = 100_000;

pub(crate) fn read(recording: &Recording) -> SqlResult<Vec<Thread>> {
    let time = recording.connection().query_row(
        "SELECT start_ns, coalesce(end_ns, last_ns) FROM recording",
        [],
        |row| Ok((MonoNs(unsigned(row, 0)?), MonoNs(unsigned(row, 1)?))),
    )?;
    let mut threads = listed(recording, time)?;
    add_ledgers(recording, &mut threads)?;
    add_latencies(recording, &mut threads)?;
    add_stall_counts(recording, &mut threads)?;
    Ok(threads.into_values().collect())
}

/// All threads; of too many those that lived longest, and one for the others.
fn listed(recording: &Recording, (start, end): (MonoNs, MonoNs)) -> SqlResult<BTreeMap<ThreadKey, Thread>> {
    let connection = recording.connection();
    let count: i64 = connection.query_row("SELECT count(*) FROM thread", [], |row| row.get(0))?;
    let which = if count <= MAX_THREADS { "" } else { LONGEST_LIVED };
    let mut find = connection.prepare(&format!(
        "SELECT id, tid, pid, ns_tid, ns_pid, start_boot_ns, comm, process, cgroup, kernel_thread, start_ns, end_ns
         FROM thread {which}"
    ))?;
    let mut threads = BTreeMap::new();
    let limit: &[i64] = if which.is_empty() { &[] } else { &[MAX_THREADS] };
    let mut rows = find.query(rusqlite::params_from_iter(limit))?;
    while let Some(row) = rows.next()? {
        let thread = thread_from_row(recording, row, start, end)?;
        decoded(0, thread.info.key.0, (thread.info.key != ThreadKey::OTHERS).then_some(()))?;
        threads.insert(thread.info.key, thread);
    }
    let left_out = count - threads.len() as i64;
    if left_out > 0 {
        threads.insert(ThreadKey::OTHERS, others(left_out, start, end));
    }
    Ok(threads)
}

/// SQLite sorts in a temporary file what is much. `total` cannot overflow.
const LONGEST_LIVED: &str = "WHERE id IN
    (SELECT thread FROM bucket GROUP BY thread ORDER BY total(wall_ns) DESC, thread LIMIT ?1)";

/// The threads that are not listed. They are of many processes.
fn others(count: i64, start: MonoNs, end: MonoNs) -> Thread {
    Thread {
        info: ThreadInfo {
            key: ThreadKey::OTHERS,
            tid: 0,
            pid: 0,
            ns_tid: 0,
            ns_pid: 0,
            start_boot_ns: 0,
            comm: format!("[{count} more threads]"),
            process: "[more threads]".into(),
            cgroup: None,
            kernel_thread: false,
        },
        start,
        end: end.max(start),
        ledger: LedgerDelta::new(ThreadKey::OTHERS, EpochSecond(0)),
        latency: BTreeMap::new(),
        stalls: 0,
    }
}

/// The thread of a row, or the one for the others where the row's is not listed.
fn of_row(threads: &mut BTreeMap<ThreadKey, Thread>, key: ThreadKey) -> Option<&mut Thread> {
    let key = if threads.contains_key(&key) { key } else { ThreadKey::OTHERS };
    threads.get_mut(&key)
}

fn thread_from_row(recording: &Recording, row: &Row<'_>, start: MonoNs, end: MonoNs) -> SqlResult<Thread> {
    let key = ThreadKey(row.get(0)?);
    // In a bounded recording a thread may have been there before what is kept.
    let own_start = optional_unsigned(row, 10)?.map_or(start, MonoNs).max(start);
    let own_end = optional_unsigned(row, 11)?.map_or(end, MonoNs);
    Ok(Thread {
        info: ThreadInfo {
            key,
            tid: row.get(1)?,
            pid: row.get(2)?,
            ns_tid: row.get(3)?,
            ns_pid: row.get(4)?,
            start_boot_ns: unsigned(row, 5)?,
            comm: recording.text_to_keep(row.get(6)?)?.unwrap_or_default(),
            process: recording.text_to_keep(row.get(7)?)?.unwrap_or_default(),
            cgroup: recording.text_to_keep(row.get(8)?)?,
            kernel_thread: row.get(9)?,
        },
        start: own_start,
        end: own_end.min(end).max(own_start),
        ledger: LedgerDelta::new(key, EpochSecond(0)),
        latency: BTreeMap::new(),
        stalls: 0,
    })
}

fn add_ledgers(recording: &Recording, threads: &mut BTreeMap<ThreadKey, Thread>) -> SqlResult<()> {
    let mut statement = recording.connection().prepare("SELECT * FROM bucket")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let bucket = ledger_from_row(row)?;
        if let Some(thread) = of_row(threads, bucket.thread) {
            add_ledger(&mut thread.ledger, &bucket);
        }
    }
    Ok(())
}

fn add_latencies(recording: &Recording, threads: &mut BTreeMap<ThreadKey, Thread>) -> SqlResult<()> {
    let mut statement = recording
        .connection()
        .prepare("SELECT thread, metric_code, bucket, count, total_ns, max_ns FROM latency_cell")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (metric, bucket, cell) = latency_from_row(row)?;
        if let Some(thread) = of_row(threads, ThreadKey(row.get(0)?)) {
            let histogram: &mut Histogram = thread.latency.entry(metric).or_default();
            histogram.add_cell(bucket, cell);
        }
    }
    Ok(())
}

fn add_stall_counts(recording: &Recording, threads: &mut BTreeMap<ThreadKey, Thread>) -> SqlResult<()> {
    let mut statement = recording.connection().prepare("SELECT thread FROM stall WHERE flags & ? = 0")?;
    let mut rows = statement.query([flag::VOLUNTARY])?;
    while let Some(row) = rows.next()? {
        if let Some(thread) = of_row(threads, ThreadKey(row.get(0)?)) {
            thread.stalls += 1;
        }
    }
    Ok(())
}

fn latency_from_row(row: &Row<'_>) -> SqlResult<(Metric, u16, Cell)> {
    let code: u8 = row.get(1)?;
    let bucket: u16 = row.get(2)?;
    let cell = Cell { count: unsigned(row, 3)?, total_ns: unsigned(row, 4)?, max_ns: unsigned(row, 5)? };
    let bucket = decoded(2, bucket, (bucket < histogram::BUCKETS).then_some(bucket))?;
    Ok((decoded(1, code, Metric::from_code(code))?, bucket, cell))
}
