// SPDX-License-Identifier: Apache-2.0
//! A finding in JSON.

use schemars::JsonSchema;
use serde::Serialize;
use wallprof_model::profile::Finding;

use super::schema;

/// What made threads late, and what to do about it.
#[derive(Serialize, JsonSchema)]
pub(super) struct FindingJson<'a> {
    /// As in `wallprof help findings`.
    rule: &'a str,
    /// Whose doing it is: the program's own, or that of the machine and of its other programs.
    #[schemars(schema_with = "schema::causes")]
    cause: &'static str,
    /// What happened, in words.
    title: &'a str,
    advice: &'a str,
    /// Ids of threads of the report.
    threads: Vec<u32>,
    /// How often threads were late.
    count: u64,
    total_ns: u64,
    max_ns: u64,
    /// Ids of stalls.
    stalls: &'a [u64],
}

impl<'a> FindingJson<'a> {
    pub fn of(finding: &'a Finding) -> Self {
        FindingJson {
            rule: &finding.rule,
            cause: finding.cause.name(),
            title: &finding.title,
            advice: &finding.advice,
            threads: finding.threads.iter().map(|thread| thread.0).collect(),
            count: finding.count,
            total_ns: finding.total_ns,
            max_ns: finding.max_ns,
            stalls: &finding.stalls,
        }
    }
}
