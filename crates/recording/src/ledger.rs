//! The numbers of a ledger's bucket: one list, which makes every statement over table `bucket` and is its
//! order.

use std::sync::LazyLock;

use rusqlite::{Result, Row};
use wallprof_model::event::LedgerDelta;
use wallprof_model::{EpochSecond, Reason, ThreadKey};

use crate::row::unsigned;
use Number::Field;

/// A column of table `bucket` that is a sum, and where the sum is in memory.
#[derive(Clone, Copy)]
enum Number {
    Field(&'static str, fn(&mut LedgerDelta) -> &mut u64),
    Blocked(Reason),
}

/// In the order of the columns: times of states, then [`Number::Blocked`] of each reason, then [`COUNTS`].
const STATES: [Number; 8] = [
    Field("wall_ns", |delta| &mut delta.wall_ns),
    Field("on_cpu_ns", |delta| &mut delta.on_cpu_ns),
    Field("irq_ns", |delta| &mut delta.irq_ns),
    Field("fault_minor_ns", |delta| &mut delta.fault_minor_ns),
    Field("fault_major_ns", |delta| &mut delta.fault_major_ns),
    Field("fault_on_cpu_ns", |delta| &mut delta.fault_on_cpu_ns),
    Field("runnable_ns", |delta| &mut delta.runnable_ns),
    Field("preempted_ns", |delta| &mut delta.preempted_ns),
];

const COUNTS: [Number; 10] = [
    Field("voluntary_switches", |delta| &mut delta.voluntary_switches),
    Field("involuntary_switches", |delta| &mut delta.involuntary_switches),
    Field("user_samples", |delta| &mut delta.user_samples),
    Field("kernel_samples", |delta| &mut delta.kernel_samples),
    Field("minor_faults", |delta| &mut delta.minor_faults),
    Field("major_faults", |delta| &mut delta.major_faults),
    Field("failed_faults", |delta| &mut delta.failed_faults),
    Field("traced_user_ns", |delta| &mut delta.traced_user_ns),
    Field("traced_kernel_ns", |delta| &mut delta.traced_kernel_ns),
    Field("undivided_ns", |delta| &mut delta.undivided_ns),
];

impl Number {
    fn all() -> impl Iterator<Item = Number> {
        STATES.into_iter().chain(Reason::ALL.map(Number::Blocked)).chain(COUNTS)
    }

    fn column(self) -> String {
        match self {
            Field(column, _) => column.to_owned(),
            Number::Blocked(reason) => format!("{}_ns", reason.name()),
        }
    }

    fn of(self, delta: &mut LedgerDelta) -> &mut u64 {
        match self {
            Field(_, field) => field(delta),
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

/// Adds all of `other`'s numbers to `sum`, whatever thread and second they are of.
pub(crate) fn add_ledger(sum: &mut LedgerDelta, other: &LedgerDelta) {
    for (number, more) in Number::all().zip(numbers(other)) {
        let number = number.of(sum);
        *number = number.saturating_add(more);
    }
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
        assert_eq!(numbers(&read).collect::<Vec<_>>(), (1..=18 + Reason::COUNT as u64).collect::<Vec<_>>());
        assert_eq!((read.thread, read.second), (delta.thread, delta.second));
    }
}
