//! `wallprof export`: a recording for other tools.

use std::process::ExitCode;

use wallprof_analysis::weights::CallNames;
use wallprof_views::{folded, pprof, speedscope};

use crate::args::ExportArgs;
use crate::failure::Failure;
use crate::output::to_file;
use crate::selection::Selection;
use crate::terminal::zone;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Folded,
    Speedscope,
    Pprof,
}

/// Runs the command. What was asked is read before the file is opened.
pub fn run(args: &ExportArgs) -> Result<ExitCode, Failure> {
    let format = format(&args.format)?;
    let names = if format == Format::Folded { CallNames::Counted } else { CallNames::Plain };
    let selection = Selection::from_args(&args.selection)?.naming_calls(names);
    let selected = selection.read(&args.file, &zone())?;
    let weights = if args.anonymize { selected.weights.anonymized() } else { selected.weights };
    let command = selected.info.command.as_str();
    let name = if args.anonymize || command.is_empty() { "wallprof" } else { command };
    let (start, end) = (selected.range.start, selected.range.end);
    to_file(&args.output, &[&args.file], |mut out| {
        match format {
            Format::Folded => folded(&mut out, &weights)?,
            Format::Speedscope => speedscope(&mut out, &weights, name)?,
            Format::Pprof => pprof(&mut out, &weights, &selected.info, start, end.0.saturating_sub(start.0))?,
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn format(name: &str) -> Result<Format, Failure> {
    match name {
        "folded" => Ok(Format::Folded),
        "speedscope" => Ok(Format::Speedscope),
        "pprof" => Ok(Format::Pprof),
        "firefox" | "perfetto" => {
            Err(Failure::usage(format!("--to {name} is not there yet: give folded, speedscope or pprof")))
        }
        _ => Err(Failure::usage(format!("--to takes folded, speedscope or pprof: `{name}` is none of them"))),
    }
}
