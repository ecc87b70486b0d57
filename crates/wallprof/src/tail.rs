// SPDX-License-Identifier: Apache-2.0
//! `wallprof tail`: why the slow spans are slow.

use std::process::ExitCode;

use wallprof_analysis::spans::{TailOptions, Tails};
use wallprof_meaning::Glob;
use wallprof_model::StackId;
use wallprof_recording::Recording;
use wallprof_views::{TailText, tail_json, tail_svg};

use crate::args::TailArgs;
use crate::failure::Failure;
use crate::meanings::open_recording;
use crate::output::{check_picture, to_file, to_stdout};
use crate::terminal::style_for_stdout;
use crate::threads::Threads;

/// Runs the command. The options are checked before the file is opened.
pub fn run(args: &TailArgs) -> Result<ExitCode, Failure> {
    let glob = |option: &str, text: Option<&str>| {
        text.map(Glob::new).transpose().map_err(|error| Failure::usage(format!("{option}: {error}")))
    };
    let selected = Threads::from_args(args.thread.as_deref(), args.container.as_deref())?;
    let kind = glob("--kind", args.kind.as_deref())?;
    let options = options(args)?;
    if let Some(file) = &args.output {
        check_picture(file, &[&args.file])?;
    }
    let recording = open_recording(&args.file, &args.meaning.rules()?)?;
    let accepts = |glob: &Option<Glob>, name: &str| glob.as_ref().is_none_or(|glob| glob.matches(name));
    let mut threads = recording.threads()?;
    selected.retain(&mut threads, &args.file)?;
    let (sums, spans) = (recording.span_sums()?, recording.spans()?);
    let has_spans = !sums.is_empty() || !spans.is_empty();
    let mut tails = Tails::new(&threads, &sums, spans, &options, |name| accepts(&kind, name));
    if tails.looks_for_waits() {
        recording.each_stall(|stall| tails.add(&stall))?;
        add_late(&mut tails, &recording)?;
    }
    let info = recording.info()?;
    let left_out = tails.left_out();
    let kinds = tails.finish();
    if let Some(file) = &args.output {
        to_file(file, &[&args.file], |mut out| Ok(tail_svg(&mut out, &kinds)?))?;
    }
    to_stdout(|mut out| {
        match args.json {
            true => tail_json(&mut out, &kinds, &info.clock)?,
            false => TailText { kinds: &kinds, left_out, has_spans, options, info: &info }
                .write(&mut out, &style_for_stdout())?,
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Adds what threads did late in long spans.
pub fn add_late(tails: &mut Tails, recording: &Recording) -> Result<(), Failure> {
    for sample in recording.late_samples()? {
        let stack = |id: Option<StackId>| id.map(|id| recording.resolve(id)).transpose();
        let (user, kernel) = (stack(sample.user)?, stack(sample.kernel)?);
        tails.add_late(&sample, user.as_ref(), kernel.as_ref());
    }
    Ok(())
}

fn options(args: &TailArgs) -> Result<TailOptions, Failure> {
    let tail = args.tail.as_deref().map(percentile).transpose();
    let tail = tail.map_err(|error| Failure::usage(format!("--tail: {error}")))?;
    let wrong = || {
        Failure::usage(format!(
            "--body: {:?} is no range of percentiles: give two, such as P45-P55",
            args.body
        ))
    };
    let (from, to) = args.body.split_once('-').ok_or_else(wrong)?;
    let body = (percentile(from).map_err(|_| wrong())?, percentile(to).map_err(|_| wrong())?);
    match body.0 <= body.1 {
        true => Ok(TailOptions {
            tail: tail.unwrap_or(TailOptions::default().tail),
            body,
            // A percentile that is given is compared, or refused.
            or_lower: tail.is_none(),
        }),
        false => Err(wrong()),
    }
}

/// `P99.9`, `99.9`: as a share.
fn percentile(text: &str) -> Result<f64, String> {
    let digits = text.trim().trim_start_matches(['p', 'P']);
    let number = digits.parse::<f64>().ok().filter(|number| (0.0..100.0).contains(number));
    number
        // 99.9 / 100.0 is not the number nearest to 0.999.
        .map(|number| (number * 1e6).round() / 1e8)
        .ok_or_else(|| format!("{text:?} is no percentile: give one below 100, such as P99.9"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_have_a_p_or_none() {
        assert_eq!(percentile("P99.9"), Ok(0.999));
        assert_eq!(percentile("50"), Ok(0.5));
        for wrong in ["P100", "-1", "nan", "", "P"] {
            assert!(percentile(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn percentile_that_is_named_is_not_lowered() {
        let of = |tail: Option<&str>| {
            let args =
                TailArgs { tail: tail.map(str::to_owned), body: "P45-P55".into(), ..TailArgs::default() };
            options(&args).map(|options| (options.tail, options.or_lower)).ok()
        };
        assert_eq!(of(None), Some((0.999, true)));
        assert_eq!(of(Some("P99.9")), Some((0.999, false)));
    }

    #[test]
    fn body_is_a_range_in_order() {
        let args =
            |body: &str| TailArgs { body: body.into(), tail: Some("P99".into()), ..TailArgs::default() };
        assert_eq!(options(&args("P40-P60")).map(|options| options.body).ok(), Some((0.4, 0.6)));
        for wrong in ["P60-P40", "P50", "a-b"] {
            let failure = options(&args(wrong)).expect_err(wrong);
            assert!(failure.message.contains("such as P45-P55"), "{failure:?}");
        }
    }
}
