// SPDX-License-Identifier: Apache-2.0
//! A part of a bounded recording: what a watcher writes into tables while the recording goes on.
//!
//! Consecutive parts have each second, sum and stall once. Temporary views of the tables' names show the part,
//! so that every reader reads it as if it were a recording of its own. Nothing is written to the file.

use std::ops::Range;

use rusqlite::{Connection, Result};
use wallprof_model::{ClockMap, MonoNs};

use crate::info::clock_of;
use crate::schema;

const SECOND_NS: u64 = 1_000_000_000;

/// Which part of a recording is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// From the end of the part before (0: the first one) to the end of a second that is flushed
    /// (`u64::MAX`: the last one, which has the stalls that have not ended).
    pub during: Range<MonoNs>,
}

impl Part {
    fn is_last(&self) -> bool {
        self.during.end.0 == u64::MAX
    }
}

/// Tables whose rows have a second.
const BY_SECOND: [&str; 2] = ["bucket", "sample"];
/// Tables whose rows have the second of the flush that wrote them.
const BY_FLUSH: [&str; 11] = [
    "latency_cell",
    "interrupt",
    "intrusion",
    "kernel_delay",
    "cross_call",
    "throttled",
    "span_cell",
    "span",
    "folded",
    "loss",
    "overhead",
];

/// Shows the part alone on this connection.
pub(crate) fn show(connection: &Connection, part: &Part) -> Result<()> {
    connection.pragma_update(None, "query_only", false)?;
    let seconds = seconds(&clock_of(connection)?, &part.during);
    let of_seconds = |column: &str| {
        let each = seconds.iter().map(|(first, last)| format!("{column} BETWEEN {first} AND {last}"));
        each.collect::<Vec<_>>().join(" OR ")
    };
    for table in BY_SECOND {
        show_rows(connection, table, &of_seconds("second"))?;
    }
    for table in BY_FLUSH {
        show_rows(connection, table, &of_seconds("flush_second"))?;
    }
    let signed = |at: MonoNs| i64::try_from(at.0).unwrap_or(i64::MAX);
    let (start, end) = (signed(part.during.start), signed(part.during.end));
    let ended = format!("start_ns + duration_ns >= {start} AND start_ns + duration_ns < {end}");
    let open = if part.is_last() { "OR flags & 2" } else { "AND NOT flags & 2" };
    show_rows(connection, "stall", &format!("({ended}) {open}"))?;
    let columns: Vec<String> = schema::columns(connection, "recording")?;
    let cut = columns.iter().map(|column| match column.as_str() {
        "start_ns" => format!("max(start_ns, {start}) AS start_ns"),
        "last_ns" => format!("min(last_ns, {end}) AS last_ns"),
        "end_ns" if !part.is_last() => "NULL AS end_ns".to_owned(),
        column => column.to_owned(),
    });
    let cut = cut.collect::<Vec<_>>().join(", ");
    connection.execute_batch(&format!("CREATE TEMP VIEW recording AS SELECT {cut} FROM main.recording"))?;
    connection.pragma_update(None, "query_only", true)
}

fn show_rows(connection: &Connection, table: &str, condition: &str) -> Result<()> {
    connection
        .execute_batch(&format!("CREATE TEMP VIEW {table} AS SELECT * FROM main.{table} WHERE {condition}"))
}

/// The first and last seconds of the part: one range, and one more after each step of the wall clock. A part
/// ends at the end of a second, from which the clock may have drifted by microseconds.
fn seconds(clock: &ClockMap, during: &Range<MonoNs>) -> Vec<(u64, u64)> {
    let steps = clock.anchors().iter().map(|anchor| anchor.mono);
    let steps = steps.filter(|at| *at > during.start && *at < during.end);
    let starts: Vec<MonoNs> = std::iter::once(during.start).chain(steps).collect();
    let ends = starts.iter().skip(1).copied().chain([during.end]);
    let mut seconds: Vec<(u64, u64)> = Vec::new();
    for (start, end) in starts.iter().zip(ends) {
        let first = match start.0 {
            0 => 0,
            _ if *start == during.start => (clock.epoch_from_mono(*start).0 + SECOND_NS / 2) / SECOND_NS,
            _ => clock.epoch_from_mono(*start).0 / SECOND_NS,
        };
        let length = end.0.saturating_sub(start.0);
        let end_ns = clock.epoch_from_mono(*start).0.saturating_add(length);
        let last = match end.0 {
            u64::MAX => u64::from(u32::MAX),
            _ if end == during.end => ((end_ns + SECOND_NS / 2) / SECOND_NS).saturating_sub(1),
            _ => end_ns.saturating_sub(1) / SECOND_NS,
        };
        match seconds.last_mut() {
            Some((_, before)) if first <= *before + 1 && last >= *before => *before = last,
            _ => seconds.push((first, last)),
        }
    }
    seconds
}

#[cfg(test)]
mod tests {
    use wallprof_model::{ClockAnchor, EpochNs};

    use super::*;

    const T: u64 = 1_800_000_000;

    fn clock(anchors: &[(u64, u64)]) -> ClockMap {
        let anchor = |(mono, epoch): &(u64, u64)| ClockAnchor { mono: MonoNs(*mono), epoch: EpochNs(*epoch) };
        ClockMap::new(anchors.iter().map(anchor).collect())
    }

    fn at(seconds: f64) -> MonoNs {
        MonoNs((seconds * 1e9) as u64)
    }

    #[test]
    fn parts_have_each_second_once_although_the_clock_drifts() {
        let drifting = clock(&[(at(0.0).0, T * SECOND_NS), (at(20.0).0, (T + 20) * SECOND_NS - 7_000)]);
        assert_eq!(seconds(&drifting, &(MonoNs(0)..at(10.0))), [(0, T + 9)]);
        assert_eq!(seconds(&drifting, &(at(10.0)..at(30.0))), [(T + 10, T + 29)]);
        assert_eq!(seconds(&drifting, &(at(30.0)..MonoNs(u64::MAX))), [(T + 30, u64::from(u32::MAX))]);
    }

    #[test]
    fn step_of_the_clock_makes_a_second_range() {
        let forward = clock(&[(at(0.0).0, T * SECOND_NS), (at(20.5).0, (T + 3_600) * SECOND_NS)]);
        assert_eq!(seconds(&forward, &(at(10.0)..at(30.5))), [(T + 10, T + 20), (T + 3_600, T + 3_609)]);
        let back = clock(&[(at(0.0).0, T * SECOND_NS), (at(20.5).0, (T - 3_600) * SECOND_NS)]);
        assert_eq!(seconds(&back, &(at(10.0)..at(30.5))), [(T + 10, T + 20), (T - 3_600, T - 3_591)]);
        assert_eq!(seconds(&back, &(at(30.5)..at(40.5))), [(T - 3_590, T - 3_581)]);
    }
}
