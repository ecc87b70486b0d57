//! What was added up by second: the ledger's buckets and the samples, loaded a second at a time.

use std::ops::{Bound, RangeBounds};

use rusqlite::{Connection, Result as SqlResult, Row};
use wallprof_model::event::{LedgerDelta, WakerStacks, Weighted};
use wallprof_model::profile::{LedgerRow, SampleRow};
use wallprof_model::state::State;
use wallprof_model::{EpochSecond, StackId, ThreadKey};

use crate::error::Result;
use crate::pending::ledger_numbers_mut;
use crate::recording::Recording;
use crate::row::{decoded, nonzero, unsigned};
use crate::schema::FIRST_EVENT;

/// Rows of some seconds, loaded a second at a time.
pub struct Seconds<'r, T> {
    recording: &'r Recording,
    seconds: std::vec::IntoIter<u32>,
    rows: std::vec::IntoIter<T>,
    load: fn(&Connection, EpochSecond) -> SqlResult<Vec<T>>,
}

impl<'r> Seconds<'r, LedgerRow> {
    pub(crate) fn of_ledger(
        recording: &'r Recording,
        range: impl RangeBounds<EpochSecond>,
    ) -> SqlResult<Self> {
        Self::new(recording, "bucket", range, read_ledger)
    }
}

impl<'r> Seconds<'r, SampleRow> {
    pub(crate) fn of_samples(
        recording: &'r Recording,
        range: impl RangeBounds<EpochSecond>,
    ) -> SqlResult<Self> {
        Self::new(recording, "sample", range, read_samples)
    }
}

impl<'r, T> Seconds<'r, T> {
    fn new(
        recording: &'r Recording,
        table: &str,
        range: impl RangeBounds<EpochSecond>,
        load: fn(&Connection, EpochSecond) -> SqlResult<Vec<T>>,
    ) -> SqlResult<Self> {
        let (first, last) = inclusive(range);
        // Seconds lead the key: this steps from one to the next without reading what is between.
        let sql = format!(
            "WITH RECURSIVE present (second) AS (
                 SELECT min(second) FROM {table} WHERE second >= ?1
                 UNION ALL
                 SELECT (SELECT min(second) FROM {table} WHERE second > present.second) FROM present
                 WHERE present.second <= ?2
             ) SELECT second FROM present WHERE second <= ?2"
        );
        let seconds: SqlResult<Vec<u32>> =
            recording.connection().prepare(&sql)?.query_map([first, last], |row| row.get(0))?.collect();
        Ok(Seconds { recording, seconds: seconds?.into_iter(), rows: Vec::new().into_iter(), load })
    }
}

impl<T> Iterator for Seconds<'_, T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.rows.next() {
                return Some(Ok(row));
            }
            let second = EpochSecond(self.seconds.next()?);
            match (self.load)(self.recording.connection(), second) {
                Ok(rows) => self.rows = rows.into_iter(),
                Err(error) => return Some(Err(self.recording.failed(error))),
            }
        }
    }
}

/// The first and the last second of a range; an empty range ends before it begins.
fn inclusive(range: impl RangeBounds<EpochSecond>) -> (i64, i64) {
    let first = match range.start_bound() {
        Bound::Included(second) => i64::from(second.0),
        Bound::Excluded(second) => i64::from(second.0) + 1,
        Bound::Unbounded => 0,
    };
    let last = match range.end_bound() {
        Bound::Included(second) => i64::from(second.0),
        Bound::Excluded(second) => i64::from(second.0) - 1,
        Bound::Unbounded => i64::from(u32::MAX),
    };
    (first, last)
}

fn read_ledger(connection: &Connection, second: EpochSecond) -> SqlResult<Vec<LedgerRow>> {
    connection
        .prepare_cached("SELECT * FROM bucket WHERE second = ? ORDER BY thread")?
        .query_map([second.0], ledger_from_row)?
        .collect()
}

fn read_samples(connection: &Connection, second: EpochSecond) -> SqlResult<Vec<SampleRow>> {
    connection
        .prepare_cached(
            "SELECT sample.thread, what, sample.user_stack, sample.kernel_stack, weight, count,
                 sample_waker.id IS NOT NULL, sample_waker.thread, interrupt, sample_waker.user_stack,
                 sample_waker.kernel_stack
             FROM sample LEFT JOIN sample_waker ON sample_waker.id = sample.waker
             WHERE second = ? ORDER BY sample.thread, what, sample.user_stack, sample.kernel_stack, sample.waker",
        )?
        .query_map([second.0], |row| sample_from_row(row, second))?
        .collect()
}

pub(crate) fn ledger_from_row(row: &Row<'_>) -> SqlResult<LedgerDelta> {
    let mut delta = LedgerDelta::new(ThreadKey(row.get(1)?), EpochSecond(row.get(0)?));
    // Files from before a number was added have fewer columns.
    let known = row.as_ref().column_count().saturating_sub(2);
    for (index, number) in ledger_numbers_mut(&mut delta).into_iter().enumerate().take(known) {
        *number = unsigned(row, index + 2)?;
    }
    Ok(delta)
}

fn sample_from_row(row: &Row<'_>, second: EpochSecond) -> SqlResult<SampleRow> {
    let stack = |id: Option<u32>| id.map(|id| StackId(u64::from(id)));
    let waker = if row.get(6)? {
        Some(WakerStacks {
            thread: row.get::<_, Option<u32>>(7)?.map(ThreadKey),
            interrupt: row.get(8)?,
            user: stack(row.get(9)?),
            kernel: stack(row.get(10)?),
        })
    } else {
        None
    };
    let what: i64 = row.get(1)?;
    Ok(SampleRow {
        thread: ThreadKey(row.get(0)?),
        second,
        what: decoded(1, what, weighted_from_code(what))?,
        user: stack(nonzero(row, 2)?),
        kernel: stack(nonzero(row, 3)?),
        waker,
        weight: unsigned(row, 4)?,
        count: unsigned(row, 5)?,
    })
}

fn weighted_from_code(code: i64) -> Option<Weighted> {
    if code >= FIRST_EVENT {
        return u16::try_from(code - FIRST_EVENT).ok().map(Weighted::Event);
    }
    State::from_code(u8::try_from(code).ok()?).map(Weighted::State)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_seconds() {
        assert_eq!(inclusive(..), (0, i64::from(u32::MAX)));
        assert_eq!(inclusive(EpochSecond(5)..EpochSecond(7)), (5, 6));
        assert_eq!(inclusive(EpochSecond(5)..=EpochSecond(7)), (5, 7));
        assert_eq!(inclusive(EpochSecond(0)..EpochSecond(0)), (0, -1));
    }

    #[test]
    fn codes_of_samples() {
        assert_eq!(weighted_from_code(6), Some(Weighted::State(State::Preempted)));
        assert_eq!(weighted_from_code(256 + 9), Some(Weighted::Event(9)));
        for wrong in [-1, 7, 255, 256 + 65_536, i64::MAX] {
            assert_eq!(weighted_from_code(wrong), None, "{wrong}");
        }
    }
}
