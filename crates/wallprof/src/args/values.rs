// SPDX-License-Identifier: Apache-2.0
//! Options with a fixed set of values: each set has one list, which completions, help and errors show.

use std::ffi::OsStr;

use clap::builder::{EnumValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error, ValueEnum};
use wallprof_analysis::weights::View;
use wallprof_model::{Reason, StallKind, StallReason, trace_id_from_text};
use wallprof_views::{EXPORT_FORMATS, ExportFormat};

/// How user stacks are walked, by perf's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CallGraph {
    /// Unwind tables, and frame pointers where code has none
    #[default]
    Auto,
    /// Frame pointers alone
    Fp,
    /// The same as auto; no stack is dumped, so a size behind a comma is ignored
    Dwarf,
    /// The CPU's branch records
    Lbr,
}

/// How much of an Intel PT trace is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TraceMode {
    /// All of it
    Full,
    /// The contents of the buffers at the end
    Snapshot,
}

/// Formats that `import` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ImportFormat {
    /// A file or a pipe of perf record
    #[value(name = "perf.data")]
    PerfData,
    /// Text of perf script
    #[value(name = "perf-script")]
    PerfScript,
}

/// Which time `diff` compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiffView {
    /// All wall time
    Wall,
    /// Running time
    OnCpu,
    /// Waiting time
    OffCpu,
    /// The time of each function's calls, of Intel PT
    Calls,
}

/// The views with a fixed name, in the order of the help.
const VIEWS: [(&str, View); 6] = [
    ("wall", View::Wall),
    ("on-cpu", View::OnCpu),
    ("off-cpu", View::OffCpu),
    ("faults", View::Faults),
    ("wakers", View::Wakers),
    ("calls", View::Calls),
];
/// The form of the view that counts an event.
const EVENT_VIEW: &str = "event:NAME";

const STALL_KINDS: [StallKind; 2] = [StallKind::OffCpu, StallKind::Fault];
/// Reasons other than that of a blocked thread.
const OTHER_REASONS: [StallReason; 4] =
    [StallReason::Preempted, StallReason::Runnable, StallReason::Minor, StallReason::Major];

/// Parses `--to`.
pub(super) fn export_format() -> impl TypedValueParser<Value = &'static ExportFormat> {
    let value = |format: &ExportFormat| PossibleValue::new(format.name).help(format.about);
    PossibleValuesParser::new(EXPORT_FORMATS.iter().map(value))
        .try_map(|name| wallprof_views::export_format(&name).ok_or("this is no format"))
}

/// The formats of `export` as a list: `folded, speedscope, pprof`.
pub fn export_formats() -> String {
    EXPORT_FORMATS.iter().map(|format| format.name).collect::<Vec<_>>().join(", ")
}

/// Parses `--kind`.
pub(super) fn stall_kind() -> impl TypedValueParser<Value = StallKind> {
    PossibleValuesParser::new(STALL_KINDS.map(StallKind::name))
        .try_map(|name| StallKind::from_name(&name).ok_or("this is no kind of stall"))
}

/// Parses `--reason`.
pub(super) fn stall_reason() -> impl TypedValueParser<Value = StallReason> {
    let blocked = Reason::ALL.into_iter().map(StallReason::Blocked);
    let names: Vec<_> = OTHER_REASONS.into_iter().chain(blocked).map(StallReason::name).collect();
    PossibleValuesParser::new(names)
        .try_map(|name| StallReason::from_name(&name).ok_or("this is no reason of a stall"))
}

/// Parses the id of a trace.
pub(super) fn trace_id(text: &str) -> Result<String, &'static str> {
    trace_id_from_text(text).ok_or("the id of a trace is 32 hexadecimal digits, not all of them 0")
}

/// Parses `--call-graph`: perf's users may give the size of a stack dump with `dwarf`.
#[derive(Clone)]
pub(super) struct CallGraphParser;

impl TypedValueParser for CallGraphParser {
    type Value = CallGraph;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<CallGraph, Error> {
        let name = match value.to_str().and_then(|text| text.split_once(',')) {
            Some((name, size)) if name.trim() == "dwarf" && size.trim().parse::<u32>().is_ok() => {
                "dwarf".as_ref()
            }
            _ => value,
        };
        EnumValueParser::<CallGraph>::new().parse_ref(command, arg, name)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(CallGraph::value_variants().iter().filter_map(ValueEnum::to_possible_value)))
    }
}

/// Parses `--view`: a view with a fixed name, or `event:NAME`.
#[derive(Clone)]
pub(super) struct ViewParser;

impl TypedValueParser for ViewParser {
    type Value = View;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<View, Error> {
        let text = value.to_string_lossy();
        View::parse(&text).map_err(|_| {
            let known = VIEWS.iter().map(|(name, _)| *name).chain([EVENT_VIEW]).map(str::to_owned).collect();
            let mut error = Error::new(ErrorKind::InvalidValue).with_cmd(command);
            if let Some(arg) = arg {
                error.insert(ContextKind::InvalidArg, ContextValue::String(arg.to_string()));
            }
            error.insert(ContextKind::InvalidValue, ContextValue::String(text.into_owned()));
            error.insert(ContextKind::ValidValue, ContextValue::Strings(known));
            error
        })
    }

    /// Without `event:NAME`, which is no value that a shell could complete.
    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(VIEWS.iter().map(|(name, _)| PossibleValue::new(*name))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every view that has a fixed name is in the list: a new one does not compile until it is named here.
    #[test]
    fn every_fixed_view_is_listed() {
        let is_listed = |view: &View| match view {
            View::Wall | View::OnCpu | View::OffCpu | View::Faults | View::Wakers | View::Calls => {
                VIEWS.iter().any(|(_, listed)| listed == view)
            }
            View::Event(_) => true,
        };
        assert!(VIEWS.iter().all(|(_, view)| is_listed(view)));
        for (name, view) in &VIEWS {
            assert_eq!((View::parse(name).as_ref(), view.to_string().as_str()), (Ok(view), *name));
        }
    }

    #[test]
    fn every_reason_and_kind_is_listed() {
        for code in 0..=u8::MAX {
            let Some(reason) = StallReason::from_code(code) else { continue };
            let listed = stall_reason()
                .possible_values()
                .expect("a fixed set")
                .any(|value| value.matches(reason.name(), false));
            assert!(listed, "{}", reason.name());
        }
        for kind in STALL_KINDS {
            assert_eq!(StallKind::from_name(kind.name()), Some(kind));
        }
    }
}
