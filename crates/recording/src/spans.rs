// SPDX-License-Identifier: Apache-2.0
//! Spans: their sums by thread, kind and duration, and single ones. Written here and read here.

use std::sync::Arc;

use rusqlite::types::Value;
use rusqlite::{Connection, Result as SqlResult, Row, Statement, params_from_iter};
use wallprof_model::histogram::Cell;
use wallprof_model::{
    LateSample, MonoNs, Span, SpanDelta, SpanSource, SpanStates, StackId, State, ThreadKey,
};

use crate::file_sums::FileSums;
use crate::lists::{expand, span_columns};
use crate::pending::{LateRow, Pending, SpanKey, SpanSum};
use crate::reader::Reader;
use crate::row::{coded, named, nonzero, unsigned};

/// Single spans that a reader keeps, at 250 bytes each; and rows of sums, or late samples. A recorder writes as many in a
/// quarter of an hour of a busy machine.
const MOST_SPANS: usize = 100_000;
const MOST_SUMS: usize = 1_000_000;

pub(crate) fn write(
    to: &Connection,
    pending: &Pending,
    known: Option<&FileSums>,
    flush_second: u32,
) -> SqlResult<()> {
    if !pending.span_cells.is_empty() {
        let mut add = to.prepare_cached(&adding())?;
        let mut replace = to.prepare_cached(&inserting("INSERT OR REPLACE", ""))?;
        for (key, more) in &pending.span_cells {
            match known.and_then(|known| known.span_with(*key, more)) {
                Some(sum) => execute(&mut replace, *key, &sum, flush_second)?,
                None => execute(&mut add, *key, more, flush_second)?,
            }
        }
    }
    pending.spans.iter().try_for_each(|(span, kind)| write_span(to, span, *kind, flush_second))?;
    pending.late.iter().try_for_each(|row| write_late(to, row, flush_second))
}

fn write_late(to: &Connection, row: &LateRow, flush_second: u32) -> SqlResult<()> {
    let LateSample { thread, source, at, state, ns, .. } = row.sample;
    let sql =
        "INSERT INTO late_sample (flush_second, thread, at_ns, state_code, ns, user_stack, kernel_stack, source)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
    let numbers = [u64::from(flush_second), u64::from(thread.0), at.0, u64::from(state.code()), ns];
    let stacks = [u64::from(row.user), u64::from(row.kernel)];
    let values = numbers.into_iter().chain(stacks).map(number).chain([text(source)]);
    to.prepare_cached(sql)?.execute(params_from_iter(values)).map(drop)
}

/// Adds to the sums that the file may have.
pub(crate) fn write_sums(
    to: &Connection,
    sums: impl IntoIterator<Item = (SpanKey, SpanSum)>,
    flush_second: u32,
) -> SqlResult<()> {
    let mut add = to.prepare_cached(&adding())?;
    sums.into_iter().try_for_each(|(key, sum)| execute(&mut add, key, &sum, flush_second))
}

fn adding() -> String {
    let conflict =
        "ON CONFLICT DO UPDATE SET count = count + excluded.count, max_ns = max(max_ns, excluded.max_ns),
             EACH_SPAN_STATE[, ][#_ns = #_ns + excluded.#_ns]";
    inserting("INSERT", conflict)
}

/// The statement for one sum, as [`execute`] binds it.
fn inserting(verb: &str, conflict: &str) -> String {
    let values = vec!["?"; 7 + span_columns().len()].join(", ");
    expand(&format!(
        "{verb} INTO span_cell (flush_second, thread, source, kind, bucket, count, max_ns,
             EACH_SPAN_STATE[, ][#_ns])
         VALUES ({values}) {conflict}"
    ))
}

fn execute(
    statement: &mut Statement<'_>,
    (thread, source, kind, bucket): SpanKey,
    sum: &SpanSum,
    flush_second: u32,
) -> SqlResult<()> {
    let key = [integer(flush_second), integer(thread), text(source), integer(kind), integer(bucket)];
    let numbers = [sum.count, sum.max_ns].into_iter().chain(sum.states.0).map(number);
    statement.execute(params_from_iter(key.into_iter().chain(numbers))).map(drop)
}

pub(crate) fn write_span(to: &Connection, span: &Span, kind: u32, flush_second: u32) -> SqlResult<()> {
    let values = vec!["?"; 6 + span_columns().len()].join(", ");
    let sql = format!(
        "INSERT INTO span (flush_second, thread, source, kind, start_ns, duration_ns, EACH_SPAN_STATE[, ][#_ns])
         VALUES ({values})"
    );
    let head = [integer(flush_second), integer(span.thread.0), text(span.source), integer(kind)];
    let numbers = [span.start.0, span.duration_ns()].into_iter().chain(span.states.0).map(number);
    to.prepare_cached(&expand(&sql))?.execute(params_from_iter(head.into_iter().chain(numbers))).map(drop)
}

/// By kind, thread and duration.
pub(crate) fn sums(reader: &Reader) -> SqlResult<Vec<SpanDelta>> {
    let sql = format!(
        "SELECT source, kind, thread, bucket, sum(count) AS count, max(max_ns) AS max_ns,
             EACH_SPAN_STATE[, ][sum(#_ns) AS #_ns]
         FROM span_cell GROUP BY source, kind, thread, bucket ORDER BY source, kind, thread, bucket
         LIMIT {MOST_SUMS}"
    );
    reader.collect(&expand(&sql), |row| {
        Ok(SpanDelta {
            thread: ThreadKey(row.get("thread")?),
            source: named(row, "source", SpanSource::from_name)?,
            kind: kind(reader, row)?,
            bucket: row.get("bucket")?,
            count: unsigned(row, "count")?,
            max_ns: unsigned(row, "max_ns")?,
            states: states(row)?,
        })
    })
}

/// Spans of one thread, kind and length that were recorded in one second; 0: imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanCell {
    pub second: u64,
    pub thread: ThreadKey,
    pub source: SpanSource,
    pub kind: Arc<str>,
    /// A [`wallprof_model::histogram`] bucket.
    pub bucket: u16,
    pub cell: Cell,
}

/// In any order.
pub(crate) fn each_cell(reader: &Reader, mut found: impl FnMut(SpanCell)) -> SqlResult<()> {
    let sql = "SELECT flush_second, source, kind, thread, bucket, count, max_ns, EACH_SPAN_STATE[ + ][#_ns] AS total_ns
         FROM span_cell";
    let mut statement = reader.connection().prepare(&expand(sql))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        found(SpanCell {
            second: unsigned(row, "flush_second")?,
            thread: ThreadKey(row.get("thread")?),
            source: named(row, "source", SpanSource::from_name)?,
            kind: kind(reader, row)?,
            bucket: row.get("bucket")?,
            cell: Cell {
                count: unsigned(row, "count")?,
                total_ns: unsigned(row, "total_ns")?,
                max_ns: unsigned(row, "max_ns")?,
            },
        });
    }
    Ok(())
}

/// Single spans with their ids, longest first. Of too many, each kind has its longest and as many others, which tell what
/// the longest have in addition.
pub(crate) fn longest(reader: &Reader) -> SqlResult<Vec<(u64, Span)>> {
    let count: i64 = reader.connection().query_row("SELECT count(*) FROM span", [], |row| row.get(0))?;
    let condition = match count > MOST_SPANS as i64 {
        false => String::new(),
        // The product scatters ids that follow each other.
        true => format!(
            "WHERE id IN (
                 SELECT id FROM (
                     SELECT id,
                         row_number() OVER (PARTITION BY source, kind ORDER BY duration_ns DESC, id) AS by_length,
                         row_number() OVER (PARTITION BY source, kind ORDER BY id * 2654435761 % 4294967296) AS by_chance
                     FROM span)
                 ORDER BY min(by_length, by_chance) LIMIT {MOST_SPANS})"
        ),
    };
    let sql = format!(
        "SELECT id, source, kind, thread, start_ns, duration_ns, EACH_SPAN_STATE[, ][#_ns]
         FROM span {condition} ORDER BY duration_ns DESC, id"
    );
    reader.collect(&expand(&sql), |row| {
        let start = unsigned(row, "start_ns")?;
        let span = Span {
            thread: ThreadKey(row.get("thread")?),
            source: named(row, "source", SpanSource::from_name)?,
            kind: kind(reader, row)?,
            start: MonoNs(start),
            end: MonoNs(start.saturating_add(unsigned(row, "duration_ns")?)),
            states: states(row)?,
        };
        Ok((unsigned(row, "id")?, span))
    })
}

/// What threads did late in busy periods and marked spans: one in so many of too many, for as many times its length. Stacks
/// are as in samples.
pub(crate) fn late(reader: &Reader) -> SqlResult<Vec<LateSample>> {
    let count: u64 =
        reader
            .connection()
            .query_row("SELECT count(*) AS count FROM late_sample", [], |row| unsigned(row, "count"))?;
    let one_in = count.div_ceil(MOST_SUMS as u64).max(1);
    // The product scatters times that follow each other.
    let sql = format!(
        "SELECT thread, at_ns, state_code, ns, user_stack, kernel_stack, coalesce(source, 'busy') AS source
         FROM late_sample WHERE {one_in} = 1 OR at_ns / 1000 % 1000003 * 2654435761 / 65536 % {one_in} = 0
         ORDER BY thread, at_ns"
    );
    let stack =
        |row: &Row<'_>, column| nonzero(row, column).map(|node| node.map(|node| StackId(u64::from(node))));
    reader.collect(&sql, |row| {
        Ok(LateSample {
            thread: ThreadKey(row.get("thread")?),
            source: named(row, "source", SpanSource::from_name)?,
            at: MonoNs(unsigned(row, "at_ns")?),
            state: coded(row, "state_code", State::from_code)?,
            ns: unsigned(row, "ns")?.saturating_mul(one_in),
            user: stack(row, "user_stack")?,
            kernel: stack(row, "kernel_stack")?,
        })
    })
}

fn kind(reader: &Reader, row: &Row<'_>) -> SqlResult<Arc<str>> {
    Ok(reader.shared_text(row.get("kind")?)?.unwrap_or_default())
}

/// Of a row in which they come behind six other columns. By position: a name would be compared with those of
/// all columns.
fn states(row: &Row<'_>) -> SqlResult<SpanStates> {
    let mut states = SpanStates::default();
    for (ns, column) in states.0.iter_mut().zip(6..) {
        *ns = unsigned(row, column)?;
    }
    Ok(states)
}

/// SQLite's integers end at 2^63 - 1.
fn number(value: u64) -> Value {
    Value::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

fn integer(value: impl Into<i64>) -> Value {
    Value::Integer(value.into())
}

fn text(source: SpanSource) -> Value {
    Value::Text(source.name().into())
}
