// SPDX-License-Identifier: Apache-2.0
//! The JSON Schema of every `--json` output, made from the types that are written.

use std::io::{self, Write};

use schemars::generate::{Contract, SchemaSettings};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};
use wallprof_analysis::HolderFrom;
use wallprof_model::profile::Cause;
use wallprof_model::{Activity, FrameKind, MeaningSource, Reason, SpanSource, StallKind, StallReason};

use super::{function, report, stall, tail};
use crate::{blame, diff, now, runs};

/// The version of the contract that the JSON keeps: the member `schema` of each object that is an output by itself.
pub(crate) const VERSION: u32 = 1;

/// How the Rust types of outputs end. Names in the schema do not.
const SUFFIX: &str = "Json";

const REFERENCE: &str = "#/$defs/";

/// Writes one schema (JSON Schema, draft 2020-12) that accepts every `--json` output, or a line of it where the
/// output has an object a line. `$defs` has a type for each output: `Report`, `Stall`, `Tail`, `Diff`, `CallDiff`,
/// `Blame`, `Runs`, `ComparedRuns`, `ThreadNow`.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn schema_json(out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &document())?;
    out.write_all(b"\n")
}

fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.contract = Contract::Serialize);
    let mut generator = settings.into_generator();
    let outputs = [
        generator.subschema_for::<report::ReportJson>(),
        generator.subschema_for::<stall::StallJson>(),
        generator.subschema_for::<tail::TailJson>(),
        generator.subschema_for::<diff::DiffJson>(),
        generator.subschema_for::<function::CallComparisonJson>(),
        generator.subschema_for::<blame::BlameJson>(),
        generator.subschema_for::<runs::ListJson>(),
        generator.subschema_for::<runs::ComparedJson>(),
        generator.subschema_for::<now::ThreadJson>(),
    ];
    let definitions: Map<String, Value> = generator
        .take_definitions(true)
        .into_iter()
        .map(|(name, definition)| (without_suffix(&name), definition))
        .collect();
    let mut document = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "wallprof --json",
        "description": "What each command prints with --json, one of $defs. Times are integer nanoseconds, times of day \
            since the Unix epoch; what is unknown is null. A later version may add members; what stands here keeps its \
            meaning.",
        "anyOf": outputs,
        "$defs": definitions,
    });
    shorten_references(&mut document);
    document
}

fn without_suffix(name: &str) -> String {
    name.strip_suffix(SUFFIX).unwrap_or(name).to_owned()
}

fn shorten_references(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::String(target) if name == "$ref" => {
                        if let Some(definition) = target.strip_prefix(REFERENCE) {
                            *target = format!("{REFERENCE}{}", without_suffix(definition));
                        }
                    }
                    other => shorten_references(other),
                }
            }
        }
        Value::Array(members) => members.iter_mut().for_each(shorten_references),
        _ => {}
    }
}

pub(crate) fn version(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "const": VERSION })
}

/// A text that is one of these.
fn one_of(names: impl IntoIterator<Item = &'static str>) -> Schema {
    json_schema!({ "type": "string", "enum": names.into_iter().collect::<Vec<_>>() })
}

pub(crate) fn causes(_: &mut SchemaGenerator) -> Schema {
    one_of([Cause::Program, Cause::Machine].map(Cause::name))
}

pub(crate) fn clocks(_: &mut SchemaGenerator) -> Schema {
    one_of(["epoch", "unknown"])
}

pub(crate) fn span_sources(_: &mut SchemaGenerator) -> Schema {
    one_of(SpanSource::ALL.map(SpanSource::name))
}

pub(crate) fn frame_kinds(_: &mut SchemaGenerator) -> Schema {
    one_of([FrameKind::Native, FrameKind::Kernel, FrameKind::Jit].map(FrameKind::name))
}

pub(crate) fn meaning_sources(_: &mut SchemaGenerator) -> Schema {
    let all = [MeaningSource::Stack, MeaningSource::Word, MeaningSource::Wakers, MeaningSource::User];
    one_of(all.map(MeaningSource::name))
}

pub(crate) fn stall_kinds(_: &mut SchemaGenerator) -> Schema {
    one_of(StallKind::ALL.map(StallKind::name))
}

pub(crate) fn stall_reasons(_: &mut SchemaGenerator) -> Schema {
    one_of(StallReason::ALL.map(StallReason::name))
}

pub(crate) fn contexts(_: &mut SchemaGenerator) -> Schema {
    one_of(["task", "interrupt"])
}

pub(crate) fn activities(_: &mut SchemaGenerator) -> Schema {
    let all = [Activity::Running, Activity::Runnable, Activity::Blocked(Reason::Other)];
    one_of(all.map(|activity| activity.name()))
}

/// Where the holder's stack is from; `null` where it has none.
pub(crate) fn holder_sources(_: &mut SchemaGenerator) -> Schema {
    let names = [HolderFrom::Wait, HolderFrom::Sample, HolderFrom::Release].map(HolderFrom::name);
    let names: Vec<Value> = names.into_iter().map(Value::from).chain([Value::Null]).collect();
    json_schema!({ "enum": names })
}

/// An object with a member for every reason for which threads are blocked.
pub(crate) fn reasons_with<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut object = some_reasons_with::<T>(generator);
    object.insert("required".into(), Reason::ALL.map(Reason::name).to_vec().into());
    object
}

/// An object with members for those reasons that occurred.
pub(crate) fn some_reasons_with<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let member = generator.subschema_for::<T>();
    let members: Map<String, Value> =
        Reason::ALL.into_iter().map(|reason| (reason.name().to_owned(), member.clone().into())).collect();
    json_schema!({ "type": "object", "properties": members })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str));
                members.values().for_each(|member| references(member, found));
            }
            Value::Array(members) => members.iter().for_each(|member| references(member, found)),
            _ => {}
        }
    }

    #[test]
    fn each_output_is_a_definition_and_says_which_command_prints_it() {
        let document = document();
        let definitions = &document["$defs"];
        let names =
            ["Report", "Stall", "Tail", "Diff", "CallDiff", "Blame", "Runs", "ComparedRuns", "ThreadNow"];
        let outputs: Vec<&str> = document["anyOf"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|output| output["$ref"].as_str())
            .collect();
        assert_eq!(outputs, names.map(|name| format!("{REFERENCE}{name}")));
        for name in names {
            let description = definitions[name]["description"].as_str().unwrap_or_default();
            assert!(description.starts_with("`wallprof "), "{name}: {description}");
        }
    }

    #[test]
    fn names_are_those_of_the_user() {
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        for reference in found {
            let name = reference.strip_prefix(REFERENCE).expect("a definition");
            assert!(document["$defs"][name].is_object(), "{name} is missing");
        }
        for name in document["$defs"].as_object().unwrap().keys() {
            let last = name.chars().next_back().unwrap();
            assert!(
                last.is_ascii_alphabetic() && !name.ends_with(SUFFIX),
                "two types have the name of {name}"
            );
        }
    }

    #[test]
    fn members_that_are_always_written_are_required_and_may_be_null() {
        let document = document();
        let stall = &document["$defs"]["Stall"];
        let members = stall["properties"].as_object().unwrap();
        assert_eq!(stall["required"].as_array().unwrap().len(), members.len());
        assert_eq!(members["cpu"]["type"], json!(["integer", "null"]));
        assert_eq!(document["$defs"]["Report"]["properties"]["schema"]["const"], VERSION);
        let blocked = &document["$defs"]["States"]["properties"]["blocked"];
        assert_eq!(blocked["required"].as_array().unwrap().len(), Reason::COUNT);
    }
}
