//! The recording as a whole: who recorded what and when, what was lost, what it cost.

use rusqlite::{Result as SqlResult, Row};
use wallprof_model::profile::{Overhead, RecordingInfo, Unwinding};
use wallprof_model::{ClockAnchor, ClockMap, EpochNs, MonoNs, StackEnd};

use crate::recording::Recording;
use crate::row::{optional_unsigned, unsigned};

pub(crate) fn read(recording: &Recording) -> SqlResult<RecordingInfo> {
    let mut info = recording.connection().query_row(
        "SELECT start_ns, coalesce(end_ns, last_ns), end_ns IS NOT NULL, source, kernel, arch, cpus, hostname,
             machine_id, boot_id, command, min_stall_ns, call_resolution_ns FROM recording",
        [],
        info_from_row,
    )?;
    info.clock = ClockMap::new(recording.collect("SELECT mono_ns, epoch_ns FROM clock", |row| {
        Ok(ClockAnchor { mono: MonoNs(unsigned(row, 0)?), epoch: EpochNs(unsigned(row, 1)?) })
    })?);
    info.events = event_names(recording)?;
    info.losses = recording
        .collect("SELECT reason, sum(count) FROM loss GROUP BY reason", |row| {
            Ok((row.get(0)?, unsigned(row, 1)?))
        })?
        .into_iter()
        .collect();
    info.overhead = recording.connection().query_row(
        "SELECT coalesce(sum(process_cpu_ns), 0), coalesce(sum(probe_ns), 0), coalesce(sum(probe_runs), 0),
             coalesce(max(table_bytes), 0) FROM overhead",
        [],
        |row| {
            Ok(Overhead {
                process_cpu_ns: unsigned(row, 0)?,
                probe_ns: unsigned(row, 1)?,
                probe_runs: unsigned(row, 2)?,
                table_bytes: unsigned(row, 3)?,
            })
        },
    )?;
    info.unwinding = unwinding(recording)?;
    Ok(info)
}

fn event_names(recording: &Recording) -> SqlResult<Vec<String>> {
    let rows: Vec<(u16, String)> =
        recording.collect("SELECT id, name FROM event ORDER BY id", |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut names = Vec::new();
    for (index, name) in rows {
        names.resize(usize::from(index), String::new());
        names.push(name);
    }
    Ok(names)
}

/// Counted by how often each user stack was taken: by samples, and by stalls.
fn unwinding(recording: &Recording) -> SqlResult<Unwinding> {
    let mut unwinding = Unwinding::default();
    for query in [
        "SELECT user_stack, count FROM sample WHERE user_stack <> 0",
        "SELECT user_stack, 1 FROM stall WHERE user_stack IS NOT NULL",
    ] {
        let mut statement = recording.connection().prepare(query)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let end = recording.stack_end(row.get(0)?)?;
            add_stacks(&mut unwinding, end, unsigned(row, 1)?);
        }
    }
    Ok(unwinding)
}

fn info_from_row(row: &Row<'_>) -> SqlResult<RecordingInfo> {
    let text = |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<String>>(column)?.unwrap_or_default());
    Ok(RecordingInfo {
        start: MonoNs(unsigned(row, 0)?),
        end: MonoNs(unsigned(row, 1)?),
        ended_cleanly: row.get(2)?,
        source: text(3)?,
        kernel: text(4)?,
        arch: text(5)?,
        cpus: row.get::<_, Option<u32>>(6)?.unwrap_or(0),
        hostname: text(7)?,
        machine_id: text(8)?,
        boot_id: text(9)?,
        command: text(10)?,
        min_stall_ns: unsigned(row, 11)?,
        call_resolution_ns: optional_unsigned(row, 12)?,
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
