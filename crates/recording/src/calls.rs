// SPDX-License-Identifier: Apache-2.0
//! The call paths of a thread, each with its function and its numbers.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Result as SqlResult, Row};
use wallprof_model::calls::ResolvedCallPath;
use wallprof_model::histogram::{self, Cell};
use wallprof_model::profile::ResolvedFrame;
use wallprof_model::{CallFrame, CallNumbers, Outside, ThreadCalls, ThreadKey};

use crate::reader::Reader;
use crate::row::{coded, columns, decoded, optional_unsigned, unsigned};

columns! {
    mod path {
        ID = "id",
        PARENT = "parent",
        FRAME = "frame",
        OUTSIDE_CODE = "outside_code",
        CALLS = "calls",
        INCOMPLETE = "incomplete",
        ENTERED_BEFORE = "entered_before",
        UNWOUND = "unwound",
        SELF_NS = "self_ns",
        TOTAL_NS = "total_ns",
        COMPLETE_NS = "complete_ns",
        MIN_NS = "min_ns",
        MAX_NS = "max_ns",
    }
}

columns! {
    mod latency {
        PATH = "cell.path",
        BUCKET = "cell.bucket",
        COUNT = "cell.count",
        TOTAL_NS = "cell.total_ns",
        MAX_NS = "cell.max_ns",
    }
}

/// The threads that have call paths, in order.
pub(crate) fn threads(reader: &Reader) -> SqlResult<Vec<ThreadKey>> {
    reader.collect(
        "SELECT id FROM thread WHERE EXISTS (SELECT 1 FROM call_path WHERE thread = thread.id) ORDER BY id",
        |row| Ok(ThreadKey(row.get("id")?)),
    )
}

pub(crate) fn read(reader: &Reader, thread: ThreadKey) -> SqlResult<ThreadCalls> {
    let mut places = HashMap::new();
    let mut paths = Vec::new();
    let mut all = reader
        .connection()
        .prepare_cached(&format!("SELECT {} FROM call_path WHERE thread = ? ORDER BY id", path::LIST))?;
    let mut rows = all.query([thread.0])?;
    while let Some(row) = rows.next()? {
        let (id, parent): (u32, Option<u32>) = (row.get(path::ID)?, row.get(path::PARENT)?);
        let parent = match parent {
            Some(parent) => Some(decoded(parent, places.get(&parent).copied())?),
            None => None,
        };
        places.insert(id, paths.len());
        paths.push(ResolvedCallPath { parent, frame: frame(reader, row)?, numbers: numbers(row)? });
    }
    add_latencies(reader, thread, &places, &mut paths)?;
    Ok(ThreadCalls { thread, paths })
}

fn frame(reader: &Reader, row: &Row<'_>) -> SqlResult<CallFrame<Arc<ResolvedFrame>>> {
    if let Some(frame) = row.get::<_, Option<u32>>(path::FRAME)? {
        return Ok(CallFrame::Code(reader.frame(frame)?));
    }
    Ok(CallFrame::Outside(coded(row, path::OUTSIDE_CODE, Outside::from_code)?))
}

fn numbers(row: &Row<'_>) -> SqlResult<CallNumbers> {
    Ok(CallNumbers {
        calls: unsigned(row, path::CALLS)?,
        incomplete: unsigned(row, path::INCOMPLETE)?,
        entered_before: unsigned(row, path::ENTERED_BEFORE)?,
        unwound: unsigned(row, path::UNWOUND)?,
        self_ns: unsigned(row, path::SELF_NS)?,
        total_ns: unsigned(row, path::TOTAL_NS)?,
        complete_ns: unsigned(row, path::COMPLETE_NS)?,
        min_ns: optional_unsigned(row, path::MIN_NS)?.unwrap_or(0),
        max_ns: optional_unsigned(row, path::MAX_NS)?.unwrap_or(0),
        ..CallNumbers::default()
    })
}

fn add_latencies(
    reader: &Reader,
    thread: ThreadKey,
    places: &HashMap<u32, usize>,
    paths: &mut [ResolvedCallPath],
) -> SqlResult<()> {
    let mut all = reader.connection().prepare_cached(&format!(
        "SELECT {} FROM call_path CROSS JOIN call_cell AS cell ON cell.path = call_path.id
         WHERE call_path.thread = ?",
        latency::LIST
    ))?;
    let mut rows = all.query([thread.0])?;
    while let Some(row) = rows.next()? {
        let (path, bucket): (u32, u16) = (row.get(latency::PATH)?, row.get(latency::BUCKET)?);
        let place = decoded(path, places.get(&path))?;
        decoded(bucket, (bucket < histogram::BUCKETS).then_some(()))?;
        let cell = Cell {
            count: unsigned(row, latency::COUNT)?,
            total_ns: unsigned(row, latency::TOTAL_NS)?,
            max_ns: unsigned(row, latency::MAX_NS)?,
        };
        paths[*place].numbers.latency.add_cell(bucket, cell);
    }
    Ok(())
}
