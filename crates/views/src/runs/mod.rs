// SPDX-License-Identifier: Apache-2.0
//! Many recordings: a list of them, groups of them compared, figures over versions.

mod bmf;
mod json;
mod svg;
mod text;

use wallprof_analysis::runs::{Comparison, Run, RunGroup, What};

pub use bmf::bmf_json;
pub(crate) use json::{ComparedJson, ListJson};
pub use json::{compared_json, runs_json};
pub use svg::trend_svg;
pub use text::{compared_text, runs_text};

/// A recording that was found in the folder.
#[derive(Debug)]
pub struct FoundRun {
    /// Its path below the folder.
    pub file: String,
    pub run: Run,
}

/// A group of runs compared with the first group.
#[derive(Debug)]
pub struct ComparedGroup<'r> {
    pub group: &'r RunGroup<'r>,
    pub comparison: Comparison,
}

/// Groups of runs by the values of one label.
#[derive(Debug)]
pub struct ComparedRuns<'r> {
    pub key: &'r str,
    pub first: &'r RunGroup<'r>,
    pub others: Vec<ComparedGroup<'r>>,
    /// Recordings without this label.
    pub left_out: usize,
}

/// The figures of a whole run that a list and a trend show, with their names.
fn key_figures(run: &Run) -> Vec<(String, f64)> {
    let states: std::collections::BTreeSet<&What> =
        run.threads.values().flat_map(|threads| threads.states.keys()).collect();
    let rates = states.into_iter().map(|what| (what.to_string(), run.rate(run.state_ns(what))));
    rates.filter(|(_, rate)| *rate > 0.0).collect()
}
