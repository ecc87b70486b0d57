// SPDX-License-Identifier: Apache-2.0
//! Runs for programs: one object on one line. Rates are nanoseconds per second of wall time over all threads,
//! lengths nanoseconds.
//!
//! ```text
//! runs: { "schema": 1, "runs": [ { "file", "labels": {…}, "start_ns": null|ns, "duration_ns", "threads",
//!     "states": { "<state>": ns per second }, "findings": [ { "rule", "title", "total_ns" } ] } ] }
//! compare: { "schema": 1, "key", "first": { "value", "runs" }, "left_out", "groups": [ { "value", "runs", "judged",
//!     "differs", "figures": [ { "process", "thread": null where a figure is of all threads, "figure", "unit",
//!     "before", "after", "spread_before", "spread_after", "p", "beyond_noise" } ], "findings": [ { "rule", "title",
//!     "before", "after", "p", "beyond_noise" } ], "only_before": [G], "only_after": [G] } ] }
//! ```

use std::collections::BTreeMap;
use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;
use wallprof_analysis::diff::Group;
use wallprof_analysis::runs::{Difference, FindingChange, Unit};
use wallprof_model::Labels;

use super::{ComparedGroup, ComparedRuns, FoundRun, key_figures};
use crate::json::{schema, write_line};

/// Writes the list of recordings.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn runs_json(out: &mut impl Write, runs: &[FoundRun]) -> io::Result<()> {
    write_line(out, &ListJson { schema: schema::VERSION, runs: runs.iter().map(RunJson::of).collect() })
}

/// Writes every compared figure.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn compared_json(out: &mut impl Write, compared: &ComparedRuns<'_>) -> io::Result<()> {
    let object = ComparedJson {
        schema: schema::VERSION,
        key: compared.key,
        first: ValueJson { value: compared.first.value, runs: compared.first.runs.len() },
        left_out: compared.left_out,
        groups: compared.others.iter().map(GroupJson::of).collect(),
    };
    write_line(out, &object)
}

/// `wallprof runs DIR --json`: one object. Rates are nanoseconds per second of wall time over all threads.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Runs")]
pub(crate) struct ListJson<'a> {
    #[schemars(schema_with = "schema::version")]
    schema: u32,
    runs: Vec<RunJson<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct RunJson<'a> {
    file: &'a str,
    labels: &'a Labels,
    start_ns: Option<u64>,
    duration_ns: u64,
    threads: usize,
    states: BTreeMap<String, u64>,
    findings: Vec<FoundJson<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RunFinding")]
struct FoundJson<'a> {
    rule: &'a str,
    title: &'a str,
    total_ns: u64,
}

impl<'a> RunJson<'a> {
    fn of(found: &'a FoundRun) -> Self {
        let run = &found.run;
        let findings = run.findings.iter();
        RunJson {
            file: &found.file,
            labels: &run.labels,
            start_ns: run.start.map(|start| start.0),
            duration_ns: run.duration_ns,
            threads: run.threads.values().map(|time| time.threads).sum(),
            states: key_figures(run).into_iter().map(|(name, ns)| (name, ns.round() as u64)).collect(),
            findings: findings
                .map(|found| FoundJson { rule: &found.rule, title: &found.title, total_ns: found.total_ns })
                .collect(),
        }
    }
}

/// `wallprof runs DIR --compare KEY --json`: one object.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ComparedRuns")]
pub(crate) struct ComparedJson<'a> {
    #[schemars(schema_with = "schema::version")]
    schema: u32,
    key: &'a str,
    first: ValueJson<'a>,
    left_out: usize,
    groups: Vec<GroupJson<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FirstGroup")]
struct ValueJson<'a> {
    value: &'a str,
    runs: usize,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ComparedGroup")]
struct GroupJson<'a> {
    value: &'a str,
    runs: usize,
    judged: bool,
    differs: bool,
    figures: Vec<FigureJson<'a>>,
    findings: Vec<FindingJson<'a>>,
    only_before: Vec<ThreadsJson<'a>>,
    only_after: Vec<ThreadsJson<'a>>,
}

impl<'a> GroupJson<'a> {
    fn of(ComparedGroup { group, comparison }: &'a ComparedGroup<'a>) -> Self {
        GroupJson {
            value: group.value,
            runs: group.runs.len(),
            judged: comparison.can_judge,
            differs: comparison.figures.iter().any(|figure| figure.is_news)
                || comparison.findings.iter().any(|finding| finding.is_news),
            figures: comparison.figures.iter().map(FigureJson::of).collect(),
            findings: comparison.findings.iter().map(FindingJson::of).collect(),
            only_before: comparison.only_a.iter().map(ThreadsJson::of).collect(),
            only_after: comparison.only_b.iter().map(ThreadsJson::of).collect(),
        }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ThreadNames")]
struct ThreadsJson<'a> {
    process: &'a str,
    thread: &'a str,
}

impl<'a> ThreadsJson<'a> {
    fn of(group: &'a Group) -> Self {
        ThreadsJson { process: &group.process, thread: &group.thread }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Figure")]
struct FigureJson<'a> {
    process: Option<&'a str>,
    thread: Option<&'a str>,
    figure: String,
    unit: &'static str,
    before: f64,
    after: f64,
    spread_before: f64,
    spread_after: f64,
    p: f64,
    beyond_noise: bool,
}

impl<'a> FigureJson<'a> {
    fn of(difference: &'a Difference) -> Self {
        let group = difference.figure.group.as_ref();
        FigureJson {
            process: group.map(|group| group.process.as_str()),
            thread: group.map(|group| group.thread.as_str()),
            figure: difference.figure.what.to_string(),
            unit: match difference.figure.what.unit() {
                Unit::NsPerSecond => "ns/s",
                Unit::NsPerWait => "ns",
            },
            before: difference.a,
            after: difference.b,
            spread_before: difference.spread_a,
            spread_after: difference.spread_b,
            p: difference.p,
            beyond_noise: difference.is_news,
        }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FindingChange")]
struct FindingJson<'a> {
    rule: &'a str,
    title: &'a str,
    before: usize,
    after: usize,
    p: f64,
    beyond_noise: bool,
}

impl<'a> FindingJson<'a> {
    fn of(change: &'a FindingChange) -> Self {
        FindingJson {
            rule: &change.rule,
            title: &change.title,
            before: change.a,
            after: change.b,
            p: change.p,
            beyond_noise: change.is_news,
        }
    }
}
