// SPDX-License-Identifier: Apache-2.0
//! The recording as a whole: its source and times, its losses, its cost.

use rusqlite::{Connection, Result as SqlResult, Row};
use wallprof_model::profile::{Overhead, RecordingInfo, Unwinding};
use wallprof_model::{
    ClockAnchor, ClockMap, EpochNs, Labels, MAX_BUDGET_KIND, MAX_LABEL_KEY, MAX_LABEL_VALUE, MAX_LABELS,
    MAX_SPAN_BUDGETS, MonoNs, SpanBudgets, StackEnd,
};

use crate::reader::Reader;
use crate::row::{columns, optional_unsigned, unsigned};

columns! {
    /// A user stack of samples or of a stall, and how often it was taken.
    mod taken { STACK = "user_stack", COUNT = "count" }
}

pub(crate) fn read(reader: &Reader) -> SqlResult<RecordingInfo> {
    let mut info = reader.connection().query_row(
        "SELECT start_ns, coalesce(end_ns, last_ns) AS last_ns, end_ns IS NOT NULL AS ended_cleanly, source,
             kernel, arch, cpus, hostname,
             machine_id, boot_id, command, min_stall_ns, call_resolution_ns, has_turns FROM recording",
        [],
        info_from_row,
    )?;
    info.clock = clock_of(reader.connection())?;
    info.events = event_names(reader)?;
    info.labels = labels(reader)?;
    info.budgets = budgets(reader)?;
    info.losses = reader
        .collect("SELECT reason, sum(count) AS count FROM loss GROUP BY reason", |row| {
            Ok((row.get("reason")?, unsigned(row, "count")?))
        })?
        .into_iter()
        .collect();
    info.overhead = reader.connection().query_row(
        "SELECT coalesce(sum(process_cpu_ns), 0) AS process_cpu_ns, coalesce(sum(probe_ns), 0) AS probe_ns,
             coalesce(sum(probe_runs), 0) AS probe_runs,
             coalesce(sum(behind_ns), 0) AS behind_ns, coalesce(max(table_bytes), 0) AS table_bytes
             FROM overhead",
        [],
        |row| {
            Ok(Overhead {
                process_cpu_ns: unsigned(row, "process_cpu_ns")?,
                probe_ns: unsigned(row, "probe_ns")?,
                probe_runs: unsigned(row, "probe_runs")?,
                behind_ns: unsigned(row, "behind_ns")?,
                table_bytes: unsigned(row, "table_bytes")?,
            })
        },
    )?;
    info.unwinding = unwinding(reader)?;
    Ok(info)
}

pub(crate) fn clock_of(connection: &Connection) -> SqlResult<ClockMap> {
    let mut readings = connection.prepare("SELECT mono_ns, epoch_ns FROM clock")?;
    let anchor = |row: &Row<'_>| {
        Ok(ClockAnchor {
            mono: MonoNs(unsigned(row, "mono_ns")?),
            epoch: EpochNs(unsigned(row, "epoch_ns")?),
        })
    };
    Ok(ClockMap::new(readings.query_map([], anchor)?.collect::<SqlResult<_>>()?))
}

fn event_names(reader: &Reader) -> SqlResult<Vec<String>> {
    let rows: Vec<(u16, String)> = reader
        .collect("SELECT id, name FROM event ORDER BY id", |row| Ok((row.get("id")?, row.get("name")?)))?;
    let mut names = Vec::new();
    for (index, name) in rows {
        names.resize(usize::from(index), String::new());
        names.push(name);
    }
    Ok(names)
}

/// Of a foreign file no more than a recording of this program has.
fn labels(reader: &Reader) -> SqlResult<Labels> {
    let sql = format!(
        "SELECT substr(key, 1, {MAX_LABEL_KEY}) AS key, substr(value, 1, {MAX_LABEL_VALUE}) AS value
             FROM label ORDER BY key LIMIT {MAX_LABELS}"
    );
    Ok(reader.collect(&sql, |row| Ok((row.get("key")?, row.get("value")?)))?.into_iter().collect())
}

fn budgets(reader: &Reader) -> SqlResult<SpanBudgets> {
    let sql = format!(
        "SELECT substr(kind, 1, {MAX_BUDGET_KIND}) AS kind, ns FROM span_budget ORDER BY kind
             LIMIT {MAX_SPAN_BUDGETS}"
    );
    Ok(reader.collect(&sql, |row| Ok((row.get("kind")?, unsigned(row, "ns")?)))?.into_iter().collect())
}

/// Counted by how often each user stack was taken: by samples, and by stalls.
fn unwinding(reader: &Reader) -> SqlResult<Unwinding> {
    let mut unwinding = Unwinding::default();
    for rows in [
        "sample WHERE user_stack <> 0",
        "(SELECT user_stack, 1 AS count FROM stall) WHERE user_stack IS NOT NULL",
    ] {
        let query = format!("SELECT {} FROM {rows}", taken::LIST);
        let mut statement = reader.connection().prepare(&query)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let end = reader.stack_end(row.get(taken::STACK)?)?;
            add_stacks(&mut unwinding, end, unsigned(row, taken::COUNT)?);
        }
    }
    Ok(unwinding)
}

fn info_from_row(row: &Row<'_>) -> SqlResult<RecordingInfo> {
    let text =
        |column: &str| Ok::<_, rusqlite::Error>(row.get::<_, Option<String>>(column)?.unwrap_or_default());
    Ok(RecordingInfo {
        start: MonoNs(unsigned(row, "start_ns")?),
        end: MonoNs(unsigned(row, "last_ns")?),
        ended_cleanly: row.get("ended_cleanly")?,
        source: text("source")?,
        kernel: text("kernel")?,
        arch: text("arch")?,
        cpus: row.get::<_, Option<u32>>("cpus")?.unwrap_or(0),
        hostname: text("hostname")?,
        machine_id: text("machine_id")?,
        boot_id: text("boot_id")?,
        command: text("command")?,
        min_stall_ns: unsigned(row, "min_stall_ns")?,
        call_resolution_ns: optional_unsigned(row, "call_resolution_ns")?,
        has_turns: row.get("has_turns")?,
        ..RecordingInfo::default()
    })
}

fn add_stacks(unwinding: &mut Unwinding, end: StackEnd, count: u64) {
    unwinding.stacks = unwinding.stacks.saturating_add(count);
    let part = match end {
        StackEnd::Complete => &mut unwinding.complete,
        _ => unwinding.incomplete.entry(end.name().to_owned()).or_default(),
    };
    *part = part.saturating_add(count);
}
