//! Figures of a group of runs in Bencher's Metric Format: the mean, the smallest and the largest of the runs.
//!
//! `{ "benchmark": { "measure": { "value", "lower_value", "upper_value" } } }`, as
//! <https://bencher.dev/docs/reference/bencher-metric-format/> has it. The measure `time-per-second` is
//! nanoseconds per second of wall time.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use serde::Serialize;
use wallprof_analysis::runs::RunGroup;

use super::key_figures;
use crate::json::write_line;

const MEASURE: &str = "time-per-second";

#[derive(Serialize)]
struct Metric {
    value: f64,
    lower_value: f64,
    upper_value: f64,
}

/// Writes one benchmark for each state.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn bmf_json(out: &mut impl Write, group: &RunGroup<'_>) -> io::Result<()> {
    let figures: Vec<BTreeMap<String, f64>> =
        group.runs.iter().map(|run| key_figures(run).into_iter().collect()).collect();
    let names: BTreeSet<&String> = figures.iter().flat_map(BTreeMap::keys).collect();
    let metric = |name: &String| {
        let values: Vec<f64> = figures.iter().map(|run| run.get(name).copied().unwrap_or(0.0)).collect();
        Metric {
            value: values.iter().sum::<f64>() / values.len().max(1) as f64,
            lower_value: values.iter().copied().fold(f64::INFINITY, f64::min),
            upper_value: values.iter().copied().fold(0.0, f64::max),
        }
    };
    let report: BTreeMap<&String, BTreeMap<&str, Metric>> =
        names.into_iter().map(|name| (name, [(MEASURE, metric(name))].into())).collect();
    write_line(out, &report)
}
