// SPDX-License-Identifier: Apache-2.0
//! Recordings as Parquet tables that ClickHouse, DuckDB and Spark read as they are.
//!
//! A table is a folder, with a file for each recording and hour:
//! `TABLE/host=H/date=YYYY-MM-DD/hour=HH/RECORDING.parquet`. The crate `parquet` is used here alone, without
//! arrow: rows are gathered by column and written with its column writers.

mod column;
mod file;
mod folder;
mod kept;
mod known;
mod rows;
mod schema;
mod stack_id;
mod value;

pub use folder::{Error, Folder, Hour, Partition, TableWriter, Written};
pub use kept::Kept;
pub use known::Known;
pub use rows::{
    CounterColumns, StallStacks, ThreadColumns, finding_row, loss_row, ran_longest, recording_row,
    span_latency_row, span_row, stack_row, stall_row, thread_row, throttling_row,
};
pub use schema::{
    COUNTERS, FINDINGS, LATENCY, LEDGER, LOSSES, RECORDINGS, SAMPLES, SPAN_LATENCY, SPANS, STACKS, STALLS,
    TABLES, THROTTLING, Table,
};
pub use stack_id::{StackHash, StackHasher, recording_id};
pub use value::{Kind, Value};
