// SPDX-License-Identifier: Apache-2.0
//! The numbers of a ledger's bucket: one list, which makes table `bucket` and every statement over it, and is
//! their order.

use std::sync::LazyLock;

use rusqlite::{Result, Row};
use wallprof_model::event::LedgerDelta;
use wallprof_model::{EpochSecond, Reason, ThreadKey};

use crate::row::unsigned;

/// A column of table `bucket` that is a sum, and where the sum is in memory.
#[derive(Clone, Copy)]
enum Number {
    Sum(&'static str, fn(&mut LedgerDelta) -> &mut u64),
    Blocked(Reason),
}

impl Number {
    fn all() -> impl Iterator<Item = Number> {
        let sums = LedgerDelta::SUMS.iter().map(|(name, sum)| Number::Sum(name, *sum));
        sums.chain(Reason::ALL.map(Number::Blocked))
    }

    fn column(self) -> String {
        match self {
            Number::Sum(name, _) => name.to_owned(),
            Number::Blocked(reason) => format!("{}_ns", reason.name()),
        }
    }

    fn of(self, delta: &mut LedgerDelta) -> &mut u64 {
        match self {
            Number::Sum(_, sum) => sum(delta),
            Number::Blocked(reason) => &mut delta.blocked_ns[reason as usize],
        }
    }
}

fn joined(item: impl Fn(&str) -> String) -> String {
    Number::all().map(|number| item(&number.column())).collect::<Vec<_>>().join(", ")
}

static COLUMNS: LazyLock<String> =
    LazyLock::new(|| format!("second, thread, {}", joined(|column| column.to_owned())));

static ADD: LazyLock<String> = LazyLock::new(|| {
    let (values, sums) =
        (joined(|_| "?".to_owned()), joined(|column| format!("{column} = {column} + excluded.{column}")));
    format!("INSERT INTO bucket ({}) VALUES (?, ?, {values}) ON CONFLICT DO UPDATE SET {sums}", *COLUMNS)
});

/// The columns of table `bucket` for a SELECT whose rows [`from_row`] reads.
pub(crate) fn columns() -> &'static str {
    &COLUMNS
}

/// Adds a bucket to its row. Parameters are the second, the thread, and [`numbers`].
pub(crate) fn statement_that_adds() -> &'static str {
    &ADD
}

/// The numbers in the order of the statements.
pub(crate) fn numbers(delta: &LedgerDelta) -> impl Iterator<Item = u64> + use<> {
    let mut delta = delta.clone();
    Number::all().map(move |number| *number.of(&mut delta))
}

pub(crate) fn from_row(row: &Row<'_>) -> Result<LedgerDelta> {
    let mut delta = LedgerDelta::new(ThreadKey(row.get(1)?), EpochSecond(row.get(0)?));
    for (position, number) in (2..).zip(Number::all()) {
        *number.of(&mut delta) = unsigned(row, position)?;
    }
    Ok(delta)
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::schema;

    #[test]
    fn every_column_of_the_table_has_its_number() {
        let connection = Connection::open_in_memory().unwrap();
        schema::create(&connection).unwrap();
        let of_table: Vec<String> = schema::columns(&connection, "bucket").unwrap();
        assert_eq!(of_table.join(", "), columns());
    }

    #[test]
    fn bucket_is_read_as_it_was_added() {
        let connection = Connection::open_in_memory().unwrap();
        schema::create(&connection).unwrap();
        let mut delta = LedgerDelta::new(ThreadKey(7), EpochSecond(3));
        for (value, number) in (1..).zip(Number::all()) {
            *number.of(&mut delta) = value;
        }
        let mut add = connection.prepare(statement_that_adds()).unwrap();
        let key = [3, 7];
        let values = key.into_iter().chain(numbers(&delta));
        add.execute(rusqlite::params_from_iter(values.map(|value| value as i64))).unwrap();
        let sql = format!("SELECT {} FROM bucket", columns());
        let read = connection.query_row(&sql, [], from_row).unwrap();
        assert_eq!(
            numbers(&read).collect::<Vec<_>>(),
            (1..=Number::all().count() as u64).collect::<Vec<_>>()
        );
        assert_eq!((read.thread, read.second), (delta.thread, delta.second));
    }
}
