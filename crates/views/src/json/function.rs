// SPDX-License-Identifier: Apache-2.0
//! Functions, and their difference in two recordings, in JSON.

use schemars::JsonSchema;
use serde::Serialize;
use wallprof_analysis::Latency;
use wallprof_analysis::calls::{CallChange, CallComparison, CalledFunction, FunctionCalls};
use wallprof_model::CallNumbers;

use super::report::BucketJson;

/// A function of a recording in which every call is known.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CalledFunction")]
pub(super) struct FunctionJson<'a> {
    symbol: Option<&'a str>,
    module: Option<&'a str>,
    #[serde(flatten)]
    numbers: NumbersJson,
    histogram: Vec<BucketJson>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CallNumbers")]
struct NumbersJson {
    calls: u64,
    /// Calls of which the start or the end is not in the recording.
    incomplete: u64,
    /// With the functions that it called.
    total_ns: u64,
    self_ns: u64,
    avg_ns: Option<u64>,
    min_ns: Option<u64>,
    max_ns: Option<u64>,
}

/// `wallprof diff A B --view calls --json`: one object, of two recordings in which every call is known.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CallDiff")]
pub(super) struct CallComparisonJson<'a> {
    functions: Vec<ChangeJson<'a>>,
    only_a: Vec<FunctionJson<'a>>,
    only_b: Vec<FunctionJson<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CallChange")]
struct ChangeJson<'a> {
    symbol: Option<&'a str>,
    module: Option<&'a str>,
    per_call_ns: Option<i64>,
    a: NumbersJson,
    b: NumbersJson,
}

impl<'a> FunctionJson<'a> {
    pub(super) fn of(calls: &'a FunctionCalls) -> Self {
        let CalledFunction { symbol, module, .. } = &calls.function;
        let histogram = Latency::of(&calls.numbers.latency).histogram;
        FunctionJson {
            symbol: symbol.as_deref(),
            module: module.as_deref(),
            numbers: NumbersJson::of(&calls.numbers),
            histogram: histogram.into_iter().map(BucketJson::of).collect(),
        }
    }
}

impl NumbersJson {
    fn of(numbers: &CallNumbers) -> Self {
        let complete = |ns| (numbers.calls > 0).then_some(ns);
        NumbersJson {
            calls: numbers.calls,
            incomplete: numbers.incomplete,
            total_ns: numbers.total_ns,
            self_ns: numbers.self_ns,
            avg_ns: numbers.average_ns(),
            min_ns: complete(numbers.min_ns),
            max_ns: complete(numbers.max_ns),
        }
    }
}

impl<'a> CallComparisonJson<'a> {
    pub(super) fn of(comparison: &'a CallComparison) -> Self {
        CallComparisonJson {
            functions: comparison.changes.iter().map(ChangeJson::of).collect(),
            only_a: comparison.only_a.iter().map(FunctionJson::of).collect(),
            only_b: comparison.only_b.iter().map(FunctionJson::of).collect(),
        }
    }
}

impl<'a> ChangeJson<'a> {
    fn of(change: &'a CallChange) -> Self {
        let CalledFunction { symbol, module, .. } = &change.function;
        ChangeJson {
            symbol: symbol.as_deref(),
            module: module.as_deref(),
            per_call_ns: change.per_call_ns().and_then(|ns| i64::try_from(ns).ok()),
            a: NumbersJson::of(&change.a),
            b: NumbersJson::of(&change.b),
        }
    }
}
