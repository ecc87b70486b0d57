// SPDX-License-Identifier: Apache-2.0
//! The JSON that programs read, exactly as promised: integer nanoseconds, hex addresses as strings,
//! `null` for unknown values, keys in one order.

mod finding;
mod function;
mod mark;
mod report;
pub(crate) mod schema;
mod span;
mod stack;
mod stall;
mod tail;
mod visible;

use std::borrow::Cow;
use std::io::{self, Write};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use wallprof_analysis::calls::{CallComparison, FunctionCalls};
use wallprof_analysis::spans::KindTail;
use wallprof_model::profile::StallRecord;
use wallprof_model::{ClockMap, Labels};

use crate::report::Report;
use crate::surroundings::Surroundings;

pub(crate) use stack::StackJson;
pub(crate) use stall::MeaningJson;
pub(crate) use visible::to_writer;

/// Labels as one object.
///
/// # Errors
/// None: keys and values are texts.
pub fn labels_json(labels: &Labels) -> io::Result<String> {
    Ok(serde_json::to_string(labels)?)
}

/// Writes the report as one line holding one object.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn report_json(out: &mut impl Write, report: &Report<'_>) -> io::Result<()> {
    write_line(out, &report::ReportJson::of(report, None))
}

/// As [`report_json`], of a recording in which every call is known.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn report_json_with_functions(
    out: &mut impl Write,
    report: &Report<'_>,
    functions: &[FunctionCalls],
) -> io::Result<()> {
    write_line(out, &report::ReportJson::of(report, Some(functions)))
}

/// Writes the time of calls in two recordings as one line that holds one object.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn calls_diff_json(out: &mut impl Write, comparison: &CallComparison) -> io::Result<()> {
    write_line(out, &function::CallComparisonJson::of(comparison))
}

/// Writes one stall as one line holding one object. `clock` is the recording's.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn stall_json(
    out: &mut impl Write,
    stall: &StallRecord,
    surroundings: &Surroundings,
    clock: &ClockMap,
) -> io::Result<()> {
    write_line(out, &stall::StallJson::of(stall, surroundings, clock))
}

/// Writes the spans of all kinds as one line holding one object. `clock` is the recording's.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn tail_json(out: &mut impl Write, kinds: &[KindTail], clock: &ClockMap) -> io::Result<()> {
    write_line(out, &tail::TailJson::of(kinds, clock))
}

pub(crate) fn write_line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    to_writer(out, value)?;
    out.write_all(b"\n")
}

/// An address: `"0x7f00"`.
pub(crate) struct Hex(pub u64);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

impl JsonSchema for Hex {
    fn schema_name() -> Cow<'static, str> {
        "Hex".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^0x[0-9a-f]+$" })
    }
}

/// A text that is absent when empty.
pub(crate) fn known(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
