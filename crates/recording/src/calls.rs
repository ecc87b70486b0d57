//! The call paths of a thread, each with its function and its numbers.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Result as SqlResult, Row};
use wallprof_model::calls::ResolvedCallPath;
use wallprof_model::histogram::{self, Cell};
use wallprof_model::profile::ResolvedFrame;
use wallprof_model::{CallFrame, CallNumbers, Outside, ThreadCalls, ThreadKey};

use crate::recording::Recording;
use crate::row::{decoded, optional_unsigned, unsigned};

/// The threads that have call paths, in order.
pub(crate) fn threads(recording: &Recording) -> SqlResult<Vec<ThreadKey>> {
    recording.collect(
        "SELECT id FROM thread WHERE EXISTS (SELECT 1 FROM call_path WHERE thread = thread.id) ORDER BY id",
        |row| Ok(ThreadKey(row.get(0)?)),
    )
}

pub(crate) fn read(recording: &Recording, thread: ThreadKey) -> SqlResult<ThreadCalls> {
    let mut places = HashMap::new();
    let mut paths = Vec::new();
    let mut all = recording.connection().prepare_cached(
        "SELECT id, parent, frame, outside_code, calls, incomplete, entered_before, unwound, self_ns, total_ns,
             complete_ns, min_ns, max_ns FROM call_path WHERE thread = ? ORDER BY id",
    )?;
    let mut rows = all.query([thread.0])?;
    while let Some(row) = rows.next()? {
        let (id, parent): (u32, Option<u32>) = (row.get(0)?, row.get(1)?);
        let parent = match parent {
            Some(parent) => Some(decoded(1, parent, places.get(&parent).copied())?),
            None => None,
        };
        places.insert(id, paths.len());
        paths.push(ResolvedCallPath { parent, frame: frame(recording, row)?, numbers: numbers(row)? });
    }
    add_latencies(recording, thread, &places, &mut paths)?;
    Ok(ThreadCalls { thread, paths })
}

fn frame(recording: &Recording, row: &Row<'_>) -> SqlResult<CallFrame<Arc<ResolvedFrame>>> {
    if let Some(frame) = row.get::<_, Option<u32>>(2)? {
        return Ok(CallFrame::Code(recording.frame(frame)?));
    }
    let code: u8 = row.get(3)?;
    Ok(CallFrame::Outside(decoded(3, code, Outside::from_code(code))?))
}

fn numbers(row: &Row<'_>) -> SqlResult<CallNumbers> {
    Ok(CallNumbers {
        calls: unsigned(row, 4)?,
        incomplete: unsigned(row, 5)?,
        entered_before: unsigned(row, 6)?,
        unwound: unsigned(row, 7)?,
        self_ns: unsigned(row, 8)?,
        total_ns: unsigned(row, 9)?,
        complete_ns: unsigned(row, 10)?,
        min_ns: optional_unsigned(row, 11)?.unwrap_or(0),
        max_ns: optional_unsigned(row, 12)?.unwrap_or(0),
        ..CallNumbers::default()
    })
}

fn add_latencies(
    recording: &Recording,
    thread: ThreadKey,
    places: &HashMap<u32, usize>,
    paths: &mut [ResolvedCallPath],
) -> SqlResult<()> {
    let mut all = recording.connection().prepare_cached(
        "SELECT path, bucket, count, cell.total_ns, cell.max_ns
         FROM call_path CROSS JOIN call_cell AS cell ON cell.path = call_path.id WHERE call_path.thread = ?",
    )?;
    let mut rows = all.query([thread.0])?;
    while let Some(row) = rows.next()? {
        let (path, bucket): (u32, u16) = (row.get(0)?, row.get(1)?);
        let place = decoded(0, path, places.get(&path))?;
        decoded(1, bucket, (bucket < histogram::BUCKETS).then_some(()))?;
        let cell = Cell { count: unsigned(row, 2)?, total_ns: unsigned(row, 3)?, max_ns: unsigned(row, 4)? };
        paths[*place].numbers.latency.add_cell(bucket, cell);
    }
    Ok(())
}
