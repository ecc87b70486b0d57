// SPDX-License-Identifier: Apache-2.0
//! `wallprof flame`: a recording as a flame graph.

use std::path::Path;
use std::process::ExitCode;

use wallprof_views::{Flame, flame_svg, folded};

use crate::args::FlameArgs;
use crate::failure::{Failure, say};
use crate::output::to_file;
use crate::selection::Selection;
use crate::terminal::zone;

/// The format, by the extension of the output's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Svg,
    Folded,
}

/// Runs the command. The options are checked before the file is opened.
pub fn run(args: &FlameArgs) -> Result<ExitCode, Failure> {
    let format = format(&args.output)?;
    let selection =
        Selection::from_args(&args.selection)?.between(args.from.as_deref(), args.to.as_deref())?;
    let zone = zone();
    let selected = selection.read(&args.file, &zone)?;
    let flame = Flame {
        info: &selected.info,
        weights: &selected.weights,
        side: selection.side,
        range: selected.range,
        thread_glob: selection.thread_glob(),
        zone: &zone,
    };
    to_file(&args.output, &[&args.file], |mut out| {
        match format {
            Format::Svg => flame_svg(&mut out, &flame)?,
            Format::Folded => folded(&mut out, &selected.weights)?,
        }
        Ok(())
    })?;
    selected.note.iter().for_each(|note| say(note));
    Ok(ExitCode::SUCCESS)
}

fn format(output: &Path) -> Result<Format, Failure> {
    let extension = output.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("svg") => Ok(Format::Svg),
        Some("folded" | "txt") => Ok(Format::Folded),
        None if output == Path::new("-") => Ok(Format::Svg),
        _ => Err(Failure::usage(format!(
            "-o {} has no extension of a known format: use .svg for a picture, .folded or .txt for folded stacks",
            output.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extension_decides_the_format() {
        let of = |name: &str| format(Path::new(name)).map_err(|failure| failure.message);
        assert_eq!(of("a.svg"), Ok(Format::Svg));
        assert_eq!(of("-"), Ok(Format::Svg));
        assert_eq!(of("A.SVG"), Ok(Format::Svg));
        assert_eq!(of("a.folded"), Ok(Format::Folded));
        assert_eq!(of("a.txt"), Ok(Format::Folded));
        for wrong in ["a.db", "a", "svg"] {
            assert!(of(wrong).unwrap_err().contains(".svg"), "{wrong}");
        }
    }
}
