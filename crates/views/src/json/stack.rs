//! Stacks in JSON: one entry a function, leaf first, inlined ones by themselves.

use std::fmt;

use serde::{Serialize, Serializer};
use wallprof_model::SymbolLine;
use wallprof_model::profile::{ResolvedFrame, ResolvedStack};

use super::Hex;

/// A stack as a list of functions.
pub(crate) struct StackJson<'a>(pub &'a ResolvedStack);

impl Serialize for StackJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.frames.iter().flat_map(|frame| functions_of(frame)))
    }
}

fn functions_of(frame: &ResolvedFrame) -> impl Iterator<Item = FunctionJson<'_>> {
    frame.lines.iter().map(move |line| FunctionJson::of(frame, line))
}

#[derive(Serialize)]
struct FunctionJson<'a> {
    symbol: Option<&'a str>,
    offset: Option<u64>,
    module: Option<&'a str>,
    build_id: Option<BuildId<'a>>,
    address: Hex,
    file: Option<&'a str>,
    line: Option<u32>,
    inlined: bool,
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
