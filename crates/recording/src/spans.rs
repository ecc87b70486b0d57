//! Spans: their sums by thread, kind and duration, and single ones. Written here and read here.

use std::sync::Arc;

use rusqlite::types::Value;
use rusqlite::{Connection, Result as SqlResult, Row, params_from_iter};
use wallprof_model::{MonoNs, Span, SpanDelta, SpanSource, SpanStates, ThreadKey};

use crate::lists::{expand, span_columns};
use crate::pending::{Pending, SpanKey, SpanSum};
use crate::reader::Reader;
use crate::row::{named, unsigned};

/// Single spans that a reader keeps, at 250 bytes each; and rows of sums. A recorder writes far fewer.
const MOST_SPANS: usize = 100_000;
const MOST_SUMS: usize = 1_000_000;

pub(crate) fn write(to: &Connection, pending: &Pending, flush_second: u32) -> SqlResult<()> {
    if !pending.span_cells.is_empty() {
        write_sums(to, pending.span_cells.iter().map(|(key, sum)| (*key, *sum)), flush_second)?;
    }
    pending.spans.iter().try_for_each(|(span, kind)| write_span(to, span, *kind, flush_second))
}

pub(crate) fn write_sums(
    to: &Connection,
    sums: impl IntoIterator<Item = (SpanKey, SpanSum)>,
    flush_second: u32,
) -> SqlResult<()> {
    let values = vec!["?"; 7 + span_columns().len()].join(", ");
    let sql = format!(
        "INSERT INTO span_cell (flush_second, thread, source, kind, bucket, count, max_ns,
             EACH_SPAN_STATE[, ][#_ns])
         VALUES ({values})
         ON CONFLICT DO UPDATE SET count = count + excluded.count, max_ns = max(max_ns, excluded.max_ns),
             EACH_SPAN_STATE[, ][#_ns = #_ns + excluded.#_ns]"
    );
    let mut upsert = to.prepare_cached(&expand(&sql))?;
    for ((thread, source, kind, bucket), sum) in sums {
        let key = [integer(flush_second), integer(thread), text(source), integer(kind), integer(bucket)];
        let numbers = [sum.count, sum.max_ns].into_iter().chain(sum.states.0).map(number);
        upsert.execute(params_from_iter(key.into_iter().chain(numbers)))?;
    }
    Ok(())
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

/// Single spans with their ids, longest first.
pub(crate) fn longest(reader: &Reader) -> SqlResult<Vec<(u64, Span)>> {
    let sql = format!(
        "SELECT id, source, kind, thread, start_ns, duration_ns, EACH_SPAN_STATE[, ][#_ns]
         FROM span ORDER BY duration_ns DESC, id LIMIT {MOST_SPANS}"
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

fn kind(reader: &Reader, row: &Row<'_>) -> SqlResult<Arc<str>> {
    Ok(reader.shared_text(row.get("kind")?)?.unwrap_or_default())
}

fn states(row: &Row<'_>) -> SqlResult<SpanStates> {
    let mut states = SpanStates::default();
    for (ns, column) in states.0.iter_mut().zip(span_columns()) {
        *ns = unsigned(row, format!("{column}_ns").as_str())?;
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
