// SPDX-License-Identifier: Apache-2.0
//! The threads of a recording, each with its ledger, its latencies and the number of its stalls.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Result as SqlResult, Row};
use wallprof_model::event::LedgerDelta;
use wallprof_model::histogram::{self, Cell};
use wallprof_model::profile::Thread;
use wallprof_model::state::Metric;
use wallprof_model::{EpochSecond, Histogram, MonoNs, Reason, ThreadInfo, ThreadKey};

use crate::ledger;
use crate::reader::Reader;
use crate::row::{coded, columns, decoded, optional_unsigned, unsigned};
use crate::stalls;

/// Each takes about a kilobyte here, and three in a flame graph.
const MAX_THREADS: i64 = 100_000;

columns! {
    mod latency {
        THREAD = "thread",
        METRIC_CODE = "metric_code",
        BUCKET = "bucket",
        COUNT = "count",
        TOTAL_NS = "total_ns",
        MAX_NS = "max_ns",
    }
}

pub(crate) fn read(reader: &Reader) -> SqlResult<Vec<Thread>> {
    let mut threads = listed(reader, time(reader)?)?;
    add_ledgers(reader, &mut threads)?;
    add_latencies(reader, &mut threads)?;
    add_stall_counts(reader, &mut threads)?;
    Ok(threads.into_values().collect())
}

/// The name of each listed thread's process.
pub(crate) fn processes(reader: &Reader) -> SqlResult<Vec<(ThreadKey, String)>> {
    let threads = listed(reader, time(reader)?)?;
    Ok(threads.into_iter().map(|(key, thread)| (key, thread.info.process)).collect())
}

/// What is known of each listed thread, without its sums.
pub(crate) fn infos(reader: &Reader) -> SqlResult<Vec<ThreadInfo>> {
    Ok(listed(reader, time(reader)?)?.into_values().map(|thread| thread.info).collect())
}

fn time(reader: &Reader) -> SqlResult<(MonoNs, MonoNs)> {
    reader.connection().query_row(
        "SELECT start_ns, coalesce(end_ns, last_ns) AS last_ns FROM recording",
        [],
        |row| Ok((MonoNs(unsigned(row, "start_ns")?), MonoNs(unsigned(row, "last_ns")?))),
    )
}

/// All threads. Of too many, the threads that lived longest, and one that stands for the others.
fn listed(reader: &Reader, (start, end): (MonoNs, MonoNs)) -> SqlResult<BTreeMap<ThreadKey, Thread>> {
    let connection = reader.connection();
    let count: i64 = connection.query_row("SELECT count(*) FROM thread", [], |row| row.get(0))?;
    let condition = if count <= MAX_THREADS { "" } else { LONGEST_LIVED };
    let mut find = connection.prepare(&format!(
        "SELECT id, tid, pid, ns_tid, ns_pid, start_boot_ns, comm, process, cgroup, pod, kernel_thread,
             start_ns, end_ns FROM thread {condition}"
    ))?;
    let mut threads = BTreeMap::new();
    let limit: &[i64] = if condition.is_empty() { &[] } else { &[MAX_THREADS] };
    let mut rows = find.query(rusqlite::params_from_iter(limit))?;
    while let Some(row) = rows.next()? {
        let thread = thread_from_row(reader, row, start, end)?;
        decoded(thread.info.key.0, (thread.info.key != ThreadKey::OTHERS).then_some(()))?;
        threads.insert(thread.info.key, thread);
    }
    let left_out = count - threads.len() as i64;
    if left_out > 0 {
        threads.insert(ThreadKey::OTHERS, others(left_out, start, end));
    }
    Ok(threads)
}

/// SQLite sorts large sets in a temporary file. `total` cannot overflow.
const LONGEST_LIVED: &str = "WHERE id IN
    (SELECT thread FROM bucket GROUP BY thread ORDER BY total(wall_ns) DESC, thread LIMIT ?1)";

/// The threads that are not listed. They are of many processes.
fn others(count: i64, start: MonoNs, end: MonoNs) -> Thread {
    Thread {
        info: ThreadInfo::new(
            ThreadKey::OTHERS,
            (0, "[more threads]"),
            (0, format!("[{count} more threads]")),
        ),
        start,
        end: end.max(start),
        ledger: LedgerDelta::new(ThreadKey::OTHERS, EpochSecond(0)),
        latency: BTreeMap::new(),
        stalls: 0,
    }
}

/// The thread of a row, or the one that stands for the others if that thread is not listed.
fn of_row(threads: &mut BTreeMap<ThreadKey, Thread>, key: ThreadKey) -> Option<&mut Thread> {
    let key = if threads.contains_key(&key) { key } else { ThreadKey::OTHERS };
    threads.get_mut(&key)
}

fn thread_from_row(reader: &Reader, row: &Row<'_>, start: MonoNs, end: MonoNs) -> SqlResult<Thread> {
    let key = ThreadKey(row.get("id")?);
    // In a bounded recording a thread may be older than the window.
    let own_start = optional_unsigned(row, "start_ns")?.map_or(start, MonoNs).max(start);
    let own_end = optional_unsigned(row, "end_ns")?.map_or(end, MonoNs);
    Ok(Thread {
        info: ThreadInfo {
            key,
            tid: row.get("tid")?,
            pid: row.get("pid")?,
            ns_tid: row.get("ns_tid")?,
            ns_pid: row.get("ns_pid")?,
            start_boot_ns: unsigned(row, "start_boot_ns")?,
            comm: reader.text_to_keep(row.get("comm")?)?.unwrap_or_default(),
            process: reader.text_to_keep(row.get("process")?)?.unwrap_or_default(),
            cgroup: reader.text_to_keep(row.get("cgroup")?)?,
            pod: reader.text_to_keep(row.get("pod")?)?.and_then(|text| text.parse().ok()).map(Arc::new),
            kernel_thread: row.get("kernel_thread")?,
        },
        start: own_start,
        end: own_end.min(end).max(own_start),
        ledger: LedgerDelta::new(key, EpochSecond(0)),
        latency: BTreeMap::new(),
        stalls: 0,
    })
}

fn add_ledgers(reader: &Reader, threads: &mut BTreeMap<ThreadKey, Thread>) -> SqlResult<()> {
    let mut statement = reader.connection().prepare(&format!("SELECT {} FROM bucket", ledger::columns()))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let bucket = ledger::from_row(row)?;
        if let Some(thread) = of_row(threads, bucket.thread) {
            thread.ledger.add(&bucket);
        }
    }
    Ok(())
}

fn add_latencies(reader: &Reader, threads: &mut BTreeMap<ThreadKey, Thread>) -> SqlResult<()> {
    let mut statement =
        reader.connection().prepare(&format!("SELECT {} FROM latency_cell", latency::LIST))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (metric, bucket, cell) = latency_from_row(row)?;
        if let Some(thread) = of_row(threads, ThreadKey(row.get(latency::THREAD)?)) {
            let histogram: &mut Histogram = thread.latency.entry(metric).or_default();
            histogram.add_cell(bucket, cell);
        }
    }
    Ok(())
}

/// How often each thread waited for each reason. One thread may have several counts of a reason.
pub(crate) fn each_wait_count(
    reader: &Reader,
    mut found: impl FnMut(ThreadKey, Reason, u64),
) -> SqlResult<()> {
    let sql = "SELECT thread, metric_code, sum(count) FROM latency_cell GROUP BY thread, metric_code";
    let mut statement = reader.connection().prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let code: u8 = row.get(1)?;
        if let Metric::Blocked(reason) = decoded(code, Metric::from_code(code))? {
            found(ThreadKey(row.get(0)?), reason, unsigned(row, 2)?);
        }
    }
    Ok(())
}

fn add_stall_counts(reader: &Reader, threads: &mut BTreeMap<ThreadKey, Thread>) -> SqlResult<()> {
    for (&thread, &count) in &*reader.late_stalls(|| stalls::late_by_thread(reader))? {
        if let Some(thread) = of_row(threads, thread) {
            thread.stalls += count;
        }
    }
    Ok(())
}

fn latency_from_row(row: &Row<'_>) -> SqlResult<(Metric, u16, Cell)> {
    let bucket: u16 = row.get(latency::BUCKET)?;
    let bucket = decoded(bucket, (bucket < histogram::BUCKETS).then_some(bucket))?;
    let cell = Cell {
        count: unsigned(row, latency::COUNT)?,
        total_ns: unsigned(row, latency::TOTAL_NS)?,
        max_ns: unsigned(row, latency::MAX_NS)?,
    };
    Ok((coded(row, latency::METRIC_CODE, Metric::from_code)?, bucket, cell))
}
