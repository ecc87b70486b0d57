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

pub(crate) fn read(recording: &Recording) -> SqlResult<Vec<Thread>> {
    let (start, end) = recording.connection().query_row(
        "SELECT start_ns, coalesce(end_ns, last_ns) FROM recording",
        [],
        |row| Ok((MonoNs(unsigned(row, 0)?), MonoNs(unsigned(row, 1)?))),
    )?;
    let mut threads: BTreeMap<ThreadKey, Thread> = recording
        .collect(
            "SELECT id, tid, pid, ns_tid, ns_pid, start_boot_ns, comm, process, cgroup, kernel_thread, start_ns,
                 end_ns FROM thread",
            |row| thread_from_row(recording, row, start, end),
        )?
        .into_iter()
        .map(|thread| (thread.info.key, thread))
        .collect();
    add_ledgers(recording, &mut threads)?;
    add_latencies(recording, &mut threads)?;
    add_stall_counts(recording, &mut threads)?;
    Ok(threads.into_values().collect())
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
            comm: recording.text(row.get(6)?)?.unwrap_or_default(),
            process: recording.text(row.get(7)?)?.unwrap_or_default(),
            cgroup: recording.text(row.get(8)?)?,
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
        if let Some(thread) = threads.get_mut(&bucket.thread) {
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
        if let Some(thread) = threads.get_mut(&ThreadKey(row.get(0)?)) {
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
        if let Some(thread) = threads.get_mut(&ThreadKey(row.get(0)?)) {
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
