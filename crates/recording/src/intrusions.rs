// SPDX-License-Identifier: Apache-2.0
//! Runs and interrupts on guarded CPUs. Rows of one thread are merged.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rusqlite::Result as SqlResult;
use wallprof_model::profile::IntrusionRow;
use wallprof_model::{IntrusionKind, ThreadRef};

use crate::reader::Reader;
use crate::row::{named, nonzero, unsigned};

pub(crate) fn read(reader: &Reader) -> SqlResult<Vec<IntrusionRow>> {
    let rows = reader.collect(
        "SELECT cpu, kind, what, mention, allowed, sum(count) AS count, sum(total_ns) AS total_ns,
             max(max_ns) AS max_ns
         FROM intrusion GROUP BY cpu, kind, what, mention, allowed
         ORDER BY cpu, kind, what, mention, allowed",
        |row| {
            let mention = nonzero(row, "mention")?;
            Ok(IntrusionRow {
                cpu: row.get("cpu")?,
                kind: named(row, "kind", IntrusionKind::from_name)?,
                what: reader.text_to_keep(nonzero(row, "what")?)?.unwrap_or_default(),
                thread: mention.map(|mention| reader.mention_to_keep(mention)).transpose()?,
                allowed: row.get("allowed")?,
                count: unsigned(row, "count")?,
                total_ns: unsigned(row, "total_ns")?,
                max_ns: unsigned(row, "max_ns")?,
            })
        },
    )?;
    Ok(merged(rows))
}

/// An intruder may be reported before its thread is: the rows from before and after that are added up.
fn merged(rows: Vec<IntrusionRow>) -> Vec<IntrusionRow> {
    let mut places = HashMap::new();
    let mut merged: Vec<IntrusionRow> = Vec::with_capacity(rows.len());
    for row in rows {
        let thread = row.thread.as_ref().map(|thread| (thread.pid, thread.tid, thread.comm.clone()));
        match places.entry((row.cpu, row.kind.name(), row.what.clone(), row.allowed, thread)) {
            Entry::Vacant(place) => {
                place.insert(merged.len());
                merged.push(row);
            }
            Entry::Occupied(place) => add(&mut merged[*place.get()], row),
        }
    }
    merged
}

fn add(sum: &mut IntrusionRow, row: IntrusionRow) {
    sum.count = sum.count.saturating_add(row.count);
    sum.total_ns = sum.total_ns.saturating_add(row.total_ns);
    sum.max_ns = sum.max_ns.max(row.max_ns);
    if sum.thread.as_ref().and_then(key).is_none() {
        sum.thread = row.thread;
    }
}

fn key(thread: &ThreadRef) -> Option<u32> {
    thread.key.map(|key| key.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::ThreadKey;

    fn row(tid: u32, key: Option<u32>, total_ns: u64) -> IntrusionRow {
        let thread = ThreadRef { key: key.map(ThreadKey), pid: 7, tid, comm: "cron".into(), title: None };
        IntrusionRow {
            cpu: 3,
            kind: IntrusionKind::Task,
            what: String::new(),
            thread: Some(thread),
            allowed: false,
            count: 1,
            total_ns,
            max_ns: total_ns,
        }
    }

    #[test]
    fn thread_that_became_known_is_one_row() {
        let rows = merged(vec![row(8, None, 5), row(9, Some(2), 1), row(8, Some(4), 3)]);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0], IntrusionRow { count: 2, total_ns: 8, max_ns: 5, ..row(8, Some(4), 0) });
        let elsewhere = IntrusionRow { cpu: 2, ..row(8, None, 5) };
        assert_eq!(merged(vec![elsewhere.clone(), row(8, None, 5)]), [elsewhere, row(8, None, 5)]);
    }
}
