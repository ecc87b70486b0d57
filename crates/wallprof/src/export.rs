//! `wallprof export`: a recording for other tools.

use std::process::ExitCode;

use wallprof_analysis::weights::CallNames;
use wallprof_views::Export;

use crate::args::ExportArgs;
use crate::failure::Failure;
use crate::output::to_file;
use crate::selection::Selection;
use crate::terminal::zone;

/// Runs the command. The options are checked before the file is opened.
pub fn run(args: &ExportArgs) -> Result<ExitCode, Failure> {
    let counted = args.format.counts_calls_in_names;
    let names = if counted { CallNames::Counted } else { CallNames::Plain };
    let selection = Selection::from_args(&args.selection)?.naming_calls(names);
    let selected = selection.read(&args.file, &zone())?;
    let weights = if args.anonymize { selected.weights.anonymized() } else { selected.weights };
    let command = selected.info.command.as_str();
    let name = if args.anonymize || command.is_empty() { "wallprof" } else { command };
    let export =
        Export { weights: &weights, info: &selected.info, title: name, range: selected.range.clone() };
    to_file(&args.output, &[&args.file], |mut out| Ok((args.format.write)(&mut out, &export)?))?;
    Ok(ExitCode::SUCCESS)
}
