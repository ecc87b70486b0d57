// SPDX-License-Identifier: Apache-2.0
//! A format as the registry knows it. Each format has one in the file of its writer.

use std::io::{self, Write};
use std::ops::Range;

use wallprof_analysis::weights::Weights;
use wallprof_model::MonoNs;
use wallprof_model::profile::RecordingInfo;

use super::timeline::StartTimeline;

/// A format of another tool.
#[derive(Debug)]
pub struct ExportFormat {
    /// The name by which users ask for it.
    pub name: &'static str,
    /// The line that help and completions show.
    pub about: &'static str,
    /// Whether a function that was called has the number of calls in its name, because the format has no
    /// other place for it.
    pub counts_calls_in_names: bool,
    /// What it is made of, and its writer.
    pub rows: Rows,
}

/// The contents of a format.
#[derive(Clone, Copy, Debug)]
pub enum Rows {
    /// Weighted stacks.
    Stacks(fn(&mut dyn Write, &Export<'_>) -> io::Result<()>),
    /// Weighted stacks by second, single stalls, and values over time.
    Timeline(StartTimeline),
    /// Tables in a folder, which the crate `tables` writes.
    Tables,
}

pub(super) const PARQUET: ExportFormat = ExportFormat {
    name: "parquet",
    about: "Tables in a folder for ClickHouse, DuckDB and Spark, by host, date and hour",
    counts_calls_in_names: false,
    rows: Rows::Tables,
};

/// What an exporter writes.
#[derive(Clone, Debug)]
pub struct Export<'a> {
    pub weights: &'a Weights,
    pub info: &'a RecordingInfo,
    /// The name of the program, for formats that have a title.
    pub title: &'a str,
    /// The part of the recording that `weights` are of.
    pub range: Range<MonoNs>,
}
