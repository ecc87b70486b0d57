// SPDX-License-Identifier: Apache-2.0
//! Stacks in JSON: one entry a function, leaf first, inlined ones by themselves.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};
use wallprof_model::SymbolLine;
use wallprof_model::profile::{ResolvedFrame, ResolvedStack};

use super::{Hex, schema};

/// A stack as a list of functions.
pub(crate) struct StackJson<'a>(pub &'a ResolvedStack);

impl Serialize for StackJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.frames.iter().flat_map(|frame| functions_of(frame)))
    }
}

impl JsonSchema for StackJson<'_> {
    fn schema_name() -> Cow<'static, str> {
        "Stack".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut functions = Vec::<FunctionJson>::json_schema(generator);
        functions.insert("description".into(), "Leaf first; each inlined function by itself.".into());
        functions
    }
}

fn functions_of(frame: &ResolvedFrame) -> impl Iterator<Item = FunctionJson<'_>> {
    frame.lines.iter().map(move |line| FunctionJson::of(frame, line))
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Frame")]
struct FunctionJson<'a> {
    /// `null`: unknown.
    symbol: Option<&'a str>,
    /// Of the address in the function.
    offset: Option<u64>,
    module: Option<&'a str>,
    #[schemars(with = "Option<String>")]
    build_id: Option<BuildId<'a>>,
    /// The ELF virtual address in the module.
    address: Hex,
    file: Option<&'a str>,
    line: Option<u32>,
    inlined: bool,
    #[schemars(schema_with = "schema::frame_kinds")]
    kind: &'static str,
}

impl<'a> FunctionJson<'a> {
    fn of(frame: &'a ResolvedFrame, line: &'a SymbolLine) -> Self {
        FunctionJson {
            symbol: line.symbol.as_deref(),
            offset: line.offset,
            module: frame.module.as_deref(),
            build_id: frame.build_id.as_deref().map(BuildId),
            address: Hex(frame.address),
            file: line.file.as_deref(),
            line: line.line,
            inlined: line.inlined,
            kind: frame.kind.name(),
        }
    }
}

/// The bytes of a build id as readelf prints them.
struct BuildId<'a>(&'a [u8]);

impl fmt::Display for BuildId<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl Serialize for BuildId<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
