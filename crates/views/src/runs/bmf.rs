// SPDX-License-Identifier: Apache-2.0
//! Figures of a group of runs in Bencher's Metric Format: the mean, the smallest and the largest of the runs.
//!
//! `{ "benchmark": { "measure": { "value", "lower_value", "upper_value" } } }`, as
//! <https://bencher.dev/docs/reference/bencher-metric-format/> has it. The measure `time-per-second` is
//! nanoseconds per second of wall time, `latency` nanoseconds a span.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use serde::Serialize;
use wallprof_analysis::runs::{Figure, RunGroup};

use super::key_figures;
use crate::json::write_line;

const RATE: &str = "time-per-second";
const LATENCY: &str = "latency";

#[derive(Serialize)]
struct Metric {
    value: f64,
    lower_value: f64,
    upper_value: f64,
}

impl Metric {
    fn of(values: &[f64]) -> Metric {
        Metric {
            value: values.iter().sum::<f64>() / values.len().max(1) as f64,
            lower_value: values.iter().copied().fold(f64::INFINITY, f64::min),
            upper_value: values.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// Writes one benchmark for each state, and one for each percentile of spans that all runs know.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn bmf_json(out: &mut impl Write, group: &RunGroup<'_>) -> io::Result<()> {
    let figures: Vec<BTreeMap<String, f64>> =
        group.runs.iter().map(|run| key_figures(run).into_iter().collect()).collect();
    let names: BTreeSet<&String> = figures.iter().flat_map(BTreeMap::keys).collect();
    let rates = names.into_iter().map(|name| {
        let values: Vec<f64> = figures.iter().map(|run| run.get(name).copied().unwrap_or(0.0)).collect();
        (name.clone(), [(RATE, Metric::of(&values))].into())
    });
    let of_spans = |figure: &Figure| figure.group.is_none();
    let spans: BTreeSet<Figure> = group.runs.iter().flat_map(|run| run.figures().filter(of_spans)).collect();
    let latencies = spans.into_iter().filter_map(|figure| {
        let values: Option<Vec<f64>> = group.runs.iter().map(|run| run.value(&figure)).collect();
        Some((figure.what.to_string(), [(LATENCY, Metric::of(&values?))].into()))
    });
    let report: BTreeMap<String, BTreeMap<&str, Metric>> = rates.chain(latencies).collect();
    write_line(out, &report)
}
