// SPDX-License-Identifier: Apache-2.0
//! The sums by second, which are the buckets of the ledger and the samples. One second is loaded at a time.

use std::ops::{Bound, Range, RangeBounds};

use rusqlite::{Connection, Result as SqlResult, Row};
use wallprof_model::event::{WakerStacks, Weighted};
use wallprof_model::profile::{LedgerRow, SampleRow};
use wallprof_model::state::State;
use wallprof_model::{EpochSecond, Reason, StackId, ThreadKey, YIELDS};

use crate::error::Result;
use crate::ledger;
use crate::reader::Reader;
use crate::row::{columns, decoded, nonzero, unsigned};
use crate::schema::FIRST_EVENT;

columns! {
    mod sample {
        THREAD = "sample.thread",
        STATE_OR_EVENT = "state_or_event",
        USER_STACK = "sample.user_stack",
        KERNEL_STACK = "sample.kernel_stack",
        WEIGHT = "weight",
        COUNT = "count",
        HAS_WAKER = "sample_waker.id IS NOT NULL",
        WAKER_THREAD = "sample_waker.thread",
        WAKER_INTERRUPT = "sample_waker.interrupt",
        WAKER_USER_STACK = "sample_waker.user_stack",
        WAKER_KERNEL_STACK = "sample_waker.kernel_stack",
    }
}

/// Rows of some seconds. One second is loaded at a time.
pub struct Seconds<'r, T> {
    reader: &'r Reader,
    table: &'static str,
    /// The number of all seconds.
    most: usize,
    seconds: std::vec::IntoIter<u32>,
    rows: std::vec::IntoIter<T>,
    load: fn(&Connection, EpochSecond) -> SqlResult<Vec<T>>,
}

impl<'r> Seconds<'r, LedgerRow> {
    pub(crate) fn of_ledger(reader: &'r Reader, range: impl RangeBounds<EpochSecond>) -> SqlResult<Self> {
        Self::new(reader, "bucket", range, read_ledger)
    }
}

impl<'r> Seconds<'r, SampleRow> {
    pub(crate) fn of_samples(reader: &'r Reader, range: impl RangeBounds<EpochSecond>) -> SqlResult<Self> {
        Self::new(reader, "sample", range, read_samples)
    }
}

impl<'r, T> Seconds<'r, T> {
    fn new(
        reader: &'r Reader,
        table: &'static str,
        range: impl RangeBounds<EpochSecond>,
        load: fn(&Connection, EpochSecond) -> SqlResult<Vec<T>>,
    ) -> SqlResult<Self> {
        let (first, last) = inclusive(range);
        // Seconds lead the key: this steps from one to the next without reading the rows between.
        let sql = format!(
            "WITH RECURSIVE present (second) AS (
                 SELECT min(second) FROM {table} WHERE second >= ?1
                 UNION ALL
                 SELECT (SELECT min(second) FROM {table} WHERE second > present.second) FROM present
                 WHERE present.second <= ?2
             ) SELECT second FROM present WHERE second <= ?2"
        );
        let seconds: SqlResult<Vec<u32>> =
            reader.connection().prepare(&sql)?.query_map([first, last], |row| row.get(0))?.collect();
        let seconds = seconds?.into_iter();
        Ok(Seconds { reader, table, most: seconds.len(), seconds, rows: Vec::new().into_iter(), load })
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
            let done = self.most - self.seconds.len();
            self.reader.read_second(self.table, done as u64, self.most as u64);
            match (self.load)(self.reader.connection(), second) {
                Ok(rows) => self.rows = rows.into_iter(),
                Err(error) => return Some(Err(self.reader.failed(error))),
            }
        }
    }
}

/// The first and the last second of a range. An empty range ends before it starts.
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
        .prepare_cached(&format!(
            "SELECT {} FROM bucket WHERE second = ? ORDER BY thread",
            ledger::columns()
        ))?
        .query_map([second.0], ledger::from_row)?
        .collect()
}

fn read_samples(connection: &Connection, second: EpochSecond) -> SqlResult<Vec<SampleRow>> {
    connection
        .prepare_cached(&format!(
            "SELECT {} FROM sample LEFT JOIN sample_waker ON sample_waker.id = sample.waker WHERE second = ?
             ORDER BY sample.thread, state_or_event, sample.user_stack, sample.kernel_stack, sample.waker",
            sample::LIST
        ))?
        .query_map([second.0], |row| sample_from_row(row, second))?
        .collect()
}

/// The blocked time of all seconds.
pub(crate) fn read_blocked(connection: &Connection) -> SqlResult<Vec<SampleRow>> {
    read_sums(connection, State::Blocked(Reason::ALL[0]).code().into()..FIRST_EVENT)
}

/// The time in page faults without I/O of all seconds.
pub(crate) fn read_minor_faults(connection: &Connection) -> SqlResult<Vec<SampleRow>> {
    let code = State::FaultMinor.code().into();
    read_sums(connection, code..code + 1)
}

/// The time in which threads ran, or could have, of all seconds, where the innermost function is one of [`YIELDS`].
pub(crate) fn read_yields(connection: &Connection) -> SqlResult<Vec<SampleRow>> {
    // The number of a stack is that of its innermost frame's node. Joined, each node is looked up in `line` and `text`.
    let stacks = connection
        .prepare_cached(&format!(
            "SELECT id FROM node WHERE frame IN (
                SELECT frame FROM line WHERE symbol IN (SELECT id FROM text WHERE text IN ('{}')))",
            YIELDS.join("', '"),
        ))?
        .query_map([], |row| row.get(0))?
        .collect::<SqlResult<Vec<u32>>>()?;
    if stacks.is_empty() {
        return Ok(Vec::new());
    }
    let stacks: Vec<String> = stacks.iter().map(u32::to_string).collect();
    let codes = [State::User, State::Kernel, State::Preempted].map(|state| i64::from(state.code()));
    // In the order of `sample::LIST`, without wakers.
    connection
        .prepare(&format!(
            "SELECT thread, state_or_event, user_stack, kernel_stack, sum(weight), sum(count), 0, min(second)
             FROM sample WHERE state_or_event IN (?1, ?2, ?3) AND user_stack IN ({})
             GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
            stacks.join(", "),
        ))?
        .query_map(codes, |row| sample_from_row(row, EpochSecond(row.get(7)?)))?
        .collect()
}

/// The time in the states with these codes, of all seconds.
fn read_sums(connection: &Connection, codes: Range<i64>) -> SqlResult<Vec<SampleRow>> {
    // In the order of `sample::LIST`, without wakers.
    connection
        .prepare_cached(
            "SELECT thread, state_or_event, user_stack, kernel_stack, sum(weight), sum(count), 0, min(second)
             FROM sample WHERE state_or_event >= ?1 AND state_or_event < ?2
             GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
        )?
        .query_map([codes.start, codes.end], |row| sample_from_row(row, EpochSecond(row.get(7)?)))?
        .collect()
}

fn sample_from_row(row: &Row<'_>, second: EpochSecond) -> SqlResult<SampleRow> {
    let stack = |id: Option<u32>| id.map(|id| StackId(u64::from(id)));
    let waker = if row.get(sample::HAS_WAKER)? {
        Some(WakerStacks {
            thread: row.get::<_, Option<u32>>(sample::WAKER_THREAD)?.map(ThreadKey),
            interrupt: row.get(sample::WAKER_INTERRUPT)?,
            user: stack(row.get(sample::WAKER_USER_STACK)?),
            kernel: stack(row.get(sample::WAKER_KERNEL_STACK)?),
        })
    } else {
        None
    };
    let code: i64 = row.get(sample::STATE_OR_EVENT)?;
    Ok(SampleRow {
        thread: ThreadKey(row.get(sample::THREAD)?),
        second,
        what: decoded(code, weighted_from_code(code))?,
        user: stack(nonzero(row, sample::USER_STACK)?),
        kernel: stack(nonzero(row, sample::KERNEL_STACK)?),
        waker,
        weight: unsigned(row, sample::WEIGHT)?,
        count: unsigned(row, sample::COUNT)?,
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
        for wrong in [-1, 8, 255, 256 + 65_536, i64::MAX] {
            assert_eq!(weighted_from_code(wrong), None, "{wrong}");
        }
    }
}
