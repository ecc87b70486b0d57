//! `wallprof blame`: who costs whom.

use std::process::ExitCode;

use wallprof_analysis::Glob;
use wallprof_analysis::blame::Waits;
use wallprof_views::{blame_json, blame_svg, blame_text};

use crate::args::BlameArgs;
use crate::failure::Failure;
use crate::meanings::open_recording;
use crate::output::{check_picture, to_file, to_stdout};
use crate::terminal::style_for_stdout;

/// Runs the command. The options are checked before the file is opened.
pub fn run(args: &BlameArgs) -> Result<ExitCode, Failure> {
    let thread = args.thread.as_deref().map(Glob::new).transpose();
    let thread = thread.map_err(|error| Failure::usage(format!("--thread: {error}")))?;
    if let Some(file) = &args.output {
        check_picture(file, &[&args.file])?;
    }
    let recording = open_recording(&args.file, &args.meaning.rules()?)?;
    let mut waits = Waits::new(&recording.threads()?);
    recording.each_stall(|stall| waits.add(&stall))?;
    if waits.dropped() > 0 {
        eprintln!("wallprof: {} waits are left out: the recording has more than are kept.", waits.dropped());
    }
    let blame = waits.blame(|name| thread.as_ref().is_none_or(|glob| glob.matches(name)));
    if let Some(file) = &args.output {
        to_file(file, &[&args.file], |mut out| Ok(blame_svg(&mut out, &blame)?))?;
    }
    to_stdout(|mut out| {
        match args.json {
            true => blame_json(&mut out, &blame)?,
            false => blame_text(&mut out, &blame, &style_for_stdout())?,
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}
