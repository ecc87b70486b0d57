//! `wallprof export`: a recording for other tools.

use std::process::ExitCode;

use wallprof_analysis::weights::CallNames;
use wallprof_views::{folded, pprof, speedscope};

use crate::args::{ExportArgs, ExportFormat};
use crate::failure::Failure;
use crate::output::to_file;
use crate::selection::Selection;
use crate::terminal::zone;

/// Runs the command. The options are checked before the file is opened.
pub fn run(args: &ExportArgs) -> Result<ExitCode, Failure> {
    let names = if args.format == ExportFormat::Folded { CallNames::Counted } else { CallNames::Plain };
    let selection = Selection::from_args(&args.selection)?.naming_calls(names);
    let selected = selection.read(&args.file, &zone())?;
    let weights = if args.anonymize { selected.weights.anonymized() } else { selected.weights };
    let command = selected.info.command.as_str();
    let name = if args.anonymize || command.is_empty() { "wallprof" } else { command };
    let (start, end) = (selected.range.start, selected.range.end);
    to_file(&args.output, &[&args.file], |mut out| {
        match args.format {
            ExportFormat::Folded => folded(&mut out, &weights)?,
            ExportFormat::Speedscope => speedscope(&mut out, &weights, name)?,
            ExportFormat::Pprof => {
                pprof(&mut out, &weights, &selected.info, start, end.0.saturating_sub(start.0))?;
            }
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}
