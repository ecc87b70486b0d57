// SPDX-License-Identifier: Apache-2.0
//! `wallprof demo`: runs a built-in workload, records it, prints the report, and explains what to look at.

mod program;
mod scenario;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use wallprof_analysis::ns_from_duration;

use crate::args::{self, DemoArgs};
use crate::failure::Failure;
use crate::output::to_stdout;
use crate::terminal::{style_for_stdout, wrap};
use program::{ShippedProgram, places};
pub use scenario::Scenario;

/// Runs the command, through the same commands that a user would type. `started` is the start of the process.
pub fn run(args: &DemoArgs, started: Instant) -> Result<ExitCode, Failure> {
    let seconds = seconds(&args.duration)?;
    let picture = args.output.with_extension("svg");
    let program = ShippedProgram::write(args.scenario.name(), &places()).map_err(|error| {
        Failure::failed(format!(
            "no folder for the demo's program: {error}: set TMPDIR to a folder where programs may be executed"
        ))
    })?;
    let run_line = |words: &[OsString]| {
        let line = std::iter::once("wallprof".into()).chain(words.iter().cloned());
        crate::run(args::parse(line)?, started)
    };
    let file = || args.output.clone().into_os_string();
    let mut record = vec![
        "record".into(),
        option("--output", &args.output),
        "--".into(),
        program.path(),
        "-d".into(),
        seconds,
    ];
    record.extend(args.scenario.options().iter().map(OsString::from));
    let recorded = run_line(&record)?;
    if recorded != ExitCode::SUCCESS {
        return Ok(recorded);
    }
    run_line(&["report".into(), "--".into(), file()])?;
    run_line(&["flame".into(), option("--output", &picture), "--".into(), file()])?;
    let width = style_for_stdout().width;
    to_stdout(|out| {
        writeln!(out)?;
        let lines = closing_lines(args.scenario, &args.output, &picture, width);
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `--name=value`, so that the value may start with any character.
fn option(name: &str, value: &Path) -> OsString {
    let mut word = OsString::from(name);
    word.push("=");
    word.push(value);
    word
}

/// In the form of the scenario's -d.
fn seconds(duration: &str) -> Result<OsString, Failure> {
    match ns_from_duration(duration) {
        Ok(0) => Err(Failure::usage("-d 0 would show nothing: give a duration such as 10s, or omit -d")),
        Ok(ns) => Ok((ns as f64 / 1e9).to_string().into()),
        Err(error) => Err(Failure::usage(format!("-d: {error}"))),
    }
}

fn closing_lines(scenario: Scenario, recording: &Path, picture: &Path, width: usize) -> Vec<String> {
    let mut lines = vec!["What to look at".to_string()];
    let name = |path: &Path| wallprof_views::escape(&path.to_string_lossy()).into_owned();
    let all_in_one = format!("All of it in one picture, for any browser: {}", name(picture));
    let by_stacks = format!("The stalls by equal stacks: wallprof stalls {}", name(recording));
    let elsewhere = "The same on a process of your own: sudo wallprof record -p PID";
    for paragraph in [scenario.what_to_look_at(), &all_in_one, &by_stacks, elsewhere] {
        lines.extend(
            wrap(paragraph, width.saturating_sub(2).max(30)).into_iter().map(|line| format!("  {line}")),
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn duration_is_in_seconds_for_the_scenario() {
        let read = |text| seconds(text).map_err(|failure| failure.exit);
        assert_eq!(read("1500ms"), Ok("1.5".into()));
        assert_eq!(read("10"), Ok("10".into()));
        for text in ["0", "soon", ""] {
            assert_eq!(read(text), Err(crate::failure::Exit::Usage), "{text:?}");
        }
    }

    #[test]
    fn closing_lines_fit_and_escape_the_file_name() {
        for scenario in Scenario::value_variants() {
            let lines = closing_lines(*scenario, Path::new("a\x1b[31m.db"), Path::new("b.svg"), 80);
            assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
            let text = lines.join("\n");
            assert!(text.contains("wallprof stalls a") && !text.contains('\x1b'), "{text}");
        }
    }
}
