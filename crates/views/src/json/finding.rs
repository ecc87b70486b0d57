//! A finding in JSON.

use serde::Serialize;
use wallprof_model::profile::Finding;

#[derive(Serialize)]
pub(super) struct FindingJson<'a> {
    rule: &'a str,
    cause: &'static str,
    title: &'a str,
    advice: &'a str,
    threads: Vec<u32>,
    count: u64,
    total_ns: u64,
    max_ns: u64,
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
