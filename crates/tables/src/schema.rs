// SPDX-License-Identifier: Apache-2.0
//! The tables and their columns. `docs/parquet.md` describes them for users.
//!
//! A table may gain columns, at its end. A column keeps its name, type and meaning.

use crate::value::Kind;
use Kind::{Flag, Integer, Real, Text, Time};

/// A table: its folder, and its columns.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    pub name: &'static str,
    pub columns: &'static [(&'static str, Kind)],
    /// The columns by which the rows of a row group are ordered, so that equal values, and numbers of a size, are
    /// beside each other. Stalls of PostgreSQL by reason and stack take a third less than by thread.
    pub(crate) order: &'static [&'static str],
}

/// The columns that say which thread a row is about, and when, behind them the table's own, and the thread's pod.
macro_rules! of_threads {
    ($($column:expr),* $(,)?) => {
        &[
            ("recording", Text),
            ("time", Time),
            ("thread", Integer),
            ("pid", Integer),
            ("tid", Integer),
            ("process", Text),
            ("comm", Text),
            ("container", Text),
            $($column,)*
            ("pod", Text),
        ]
    };
}

pub const RECORDINGS: Table = Table {
    name: "recordings",
    columns: &[
        ("recording", Text),
        ("time", Time),
        ("start_ns", Integer),
        ("end_ns", Integer),
        ("duration_ns", Integer),
        ("labels", Text),
        ("command", Text),
        ("source", Text),
        ("kernel", Text),
        ("arch", Text),
        ("cpus", Integer),
        ("machine_id", Text),
        ("boot_id", Text),
        ("min_stall_ns", Integer),
        ("ended_cleanly", Flag),
        ("process_cpu_ns", Integer),
        ("probe_ns", Integer),
    ],
    order: &[],
};

pub const LEDGER: Table = Table {
    name: "ledger",
    columns: of_threads![("state", Text), ("ns", Integer),],
    order: &["state", "thread", "time"],
};

pub const STALLS: Table = Table {
    name: "stalls",
    columns: &[
        ("recording", Text),
        ("id", Integer),
        ("time", Time),
        ("start_ns", Integer),
        ("asked_ns", Integer),
        ("late_ns", Integer),
        ("open", Flag),
        ("thread", Integer),
        ("pid", Integer),
        ("tid", Integer),
        ("process", Text),
        ("comm", Text),
        ("container", Text),
        ("kind", Text),
        ("reason", Text),
        ("voluntary", Flag),
        ("meaning", Text),
        ("meaning_software", Text),
        ("wait_id", Integer),
        ("runnable_ns", Integer),
        ("syscall", Text),
        ("cpu", Integer),
        ("user_stack", Text),
        ("kernel_stack", Text),
        ("waker_context", Text),
        ("waker_pid", Integer),
        ("waker_tid", Integer),
        ("waker_comm", Text),
        ("waker_user_stack", Text),
        ("waker_kernel_stack", Text),
        ("lock_address", Text),
        ("lock_owner_tid", Integer),
        ("lock_owner_comm", Text),
        ("file", Text),
        ("trace_id", Text),
        ("span_id", Text),
        ("ran_comm", Text),
        ("ran_container", Text),
        ("pod", Text),
    ],
    order: &["reason", "user_stack", "start_ns"],
};

pub const SAMPLES: Table = Table {
    name: "samples",
    columns: of_threads![
        ("state", Text),
        ("weight", Integer),
        ("count", Integer),
        ("user_stack", Text),
        ("kernel_stack", Text),
    ],
    order: &["thread", "state", "user_stack", "kernel_stack", "time"],
};

pub const STACKS: Table = Table {
    name: "stacks",
    columns: &[
        ("recording", Text),
        ("stack", Text),
        ("text", Text),
        ("leaf", Text),
        ("frames", Integer),
        ("ending", Text),
    ],
    order: &["text"],
};

/// Columns about threads, and behind them the time in each state of a span, by [`wallprof_model::SpanState::index`].
macro_rules! with_span_states {
    ($($column:expr),* $(,)?) => {
        of_threads![
            $($column,)*
            ("cpu_ns", Integer),
            ("irq_ns", Integer),
            ("minor_ns", Integer),
            ("major_ns", Integer),
            ("runnable_ns", Integer),
            ("preempted_ns", Integer),
            ("lock_ns", Integer),
            ("wait_ns", Integer),
            ("disk_ns", Integer),
            ("network_ns", Integer),
            ("poll_ns", Integer),
            ("sleep_ns", Integer),
            ("pipe_ns", Integer),
            ("ipc_ns", Integer),
            ("child_ns", Integer),
            ("memory_ns", Integer),
            ("stopped_ns", Integer),
            ("other_ns", Integer),
            ("unknown_ns", Integer),
        ]
    };
}

pub const SPANS: Table = Table {
    name: "spans",
    columns: with_span_states![
        ("id", Integer),
        ("source", Text),
        ("kind", Text),
        ("start_ns", Integer),
        ("duration_ns", Integer),
    ],
    order: &["kind", "start_ns"],
};

pub const SPAN_LATENCY: Table = Table {
    name: "span_latency",
    columns: with_span_states![
        ("source", Text),
        ("kind", Text),
        ("from_ns", Integer),
        ("to_ns", Integer),
        ("count", Integer),
        ("total_ns", Integer),
        ("max_ns", Integer),
    ],
    order: &["thread", "kind", "from_ns"],
};

pub const LATENCY: Table = Table {
    name: "latency",
    columns: of_threads![
        ("metric", Text),
        ("from_ns", Integer),
        ("to_ns", Integer),
        ("count", Integer),
        ("total_ns", Integer),
        ("max_ns", Integer),
    ],
    order: &["thread", "metric", "from_ns"],
};

/// The only column of its kind.
pub(crate) const COUNTER_VALUE: &str = "value";

pub const COUNTERS: Table = Table {
    name: "counters",
    columns: of_threads![("name", Text), ("kind", Text), ("unit", Text), (COUNTER_VALUE, Real),],
    order: &["name", "thread", "time"],
};

pub const THROTTLING: Table = Table {
    name: "throttling",
    columns: &[
        ("recording", Text),
        ("time", Time),
        ("container", Text),
        ("cgroup", Text),
        ("from_ns", Integer),
        ("to_ns", Integer),
        ("quota_ns", Integer),
        ("period_ns", Integer),
        ("count", Integer),
        ("total_ns", Integer),
    ],
    order: &["cgroup", "from_ns"],
};

pub const FINDINGS: Table = Table {
    name: "findings",
    columns: &[
        ("recording", Text),
        ("time", Time),
        ("rule", Text),
        ("title", Text),
        ("advice", Text),
        ("count", Integer),
        ("total_ns", Integer),
        ("max_ns", Integer),
    ],
    order: &[],
};

pub const LOSSES: Table = Table {
    name: "losses",
    columns: &[("recording", Text), ("time", Time), ("reason", Text), ("count", Integer)],
    order: &[],
};

pub const TABLES: [&Table; 12] = [
    &RECORDINGS,
    &LEDGER,
    &STALLS,
    &SAMPLES,
    &STACKS,
    &LATENCY,
    &SPANS,
    &SPAN_LATENCY,
    &COUNTERS,
    &THROTTLING,
    &FINDINGS,
    &LOSSES,
];

#[cfg(test)]
mod tests {
    use wallprof_model::SpanState;

    use super::*;

    #[test]
    fn rows_are_ordered_by_columns_of_their_table() {
        for table in TABLES {
            let is_ordered = |kind| matches!(kind, Integer | Text | Time);
            let has =
                |name: &&str| table.columns.iter().any(|(column, kind)| column == name && is_ordered(*kind));
            assert!(table.order.iter().all(has), "{}: {:?}", table.name, table.order);
        }
    }

    #[test]
    fn states_of_spans_are_columns_before_the_pod() {
        let states: Vec<String> = SpanState::all()
            .iter()
            .map(|state| format!("{}_ns", state.label().rsplit(':').next().unwrap()))
            .collect();
        for table in [&SPANS, &SPAN_LATENCY] {
            let [before @ .., ("pod", _)] = table.columns else { panic!("{} has no pod", table.name) };
            let last = &before[before.len() - SpanState::COUNT..];
            assert_eq!(last.iter().map(|(name, _)| *name).collect::<Vec<_>>(), states, "{}", table.name);
        }
    }

    #[test]
    fn numbers_with_a_fraction_are_in_the_column_without_statistics() {
        let reals = TABLES.iter().flat_map(|table| table.columns).filter(|(_, kind)| *kind == Real);
        assert!(reals.map(|(name, _)| *name).eq([COUNTER_VALUE]));
    }

    #[test]
    fn every_table_and_column_is_documented() {
        let page = include_str!("../../../docs/parquet.md");
        for table in TABLES {
            let row = page.lines().find(|line| line.starts_with(&format!("| `{}` |", table.name)));
            let row = row.unwrap_or_else(|| panic!("docs/parquet.md has no row for {}", table.name));
            for (name, _) in table.columns {
                assert!(row.contains(&format!("`{name}`")), "{name} is not in the row of {}", table.name);
            }
        }
    }
}
