// SPDX-License-Identifier: Apache-2.0
//! `wallprof report -o FILE.html`: the recording as a page.

use std::io::Write;
use std::path::Path;

use wallprof_analysis::bins::{Samples, Slots};
use wallprof_analysis::spans::Tails;
use wallprof_analysis::weights::Side;
use wallprof_findings::Collector;
use wallprof_meaning::waits::Rules;
use wallprof_model::profile::Thread;
use wallprof_page::{Page, SPAN_OPTIONS, Stalls, ordered, page_html};
use wallprof_recording::Recording;

use crate::bins;
use crate::failure::Failure;
use crate::findings::Background;
use crate::meanings::open_recording;
use crate::output::{WriteFailure, to_file, to_stdout};
use crate::stages;
use crate::tail;

/// Writes the page of the recording in `file`.
///
/// # Errors
/// `output` does not end in `.html`; the recording cannot be read; the page cannot be written.
pub fn write(file: &Path, output: &Path, rules: &Rules) -> Result<(), Failure> {
    check_name(output)?;
    let recording = open_recording(file, rules)?;
    to_file(output, &[file], |out| write_page(out, &recording, false))
}

/// Prints the page of the last minutes of a recording that goes on. The page ends where it was asked to.
///
/// # Errors
/// The recording cannot be read; stdout cannot be written.
pub fn print(recording: &Recording) -> Result<(), Failure> {
    to_stdout(|out| write_page(out, recording, true))
}

fn check_name(output: &Path) -> Result<(), Failure> {
    let is_html = output.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("html"));
    if is_html || output == Path::new("-") {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "-o {} is not a page: use a name that ends in .html; `wallprof flame` and `export` write other formats",
        output.display()
    )))
}

/// Reads each kind of row once.
fn write_page(out: &mut dyn Write, recording: &Recording, goes_on: bool) -> Result<(), WriteFailure> {
    let mut background = Background::read(recording)?;
    background.info.ended_cleanly |= goes_on;
    let threads = ordered(&background.threads);
    let ledger = bins::ledger(recording, &background.info, &threads)?;
    let slots = Slots::new(&background.info, &threads, &ledger);
    let mut samples = Samples::new(&slots, Side::Both);
    bins::add_samples(&mut samples, recording)?;
    let (mut stalls, mut collector) = (Stalls::default(), Collector::default());
    let mut tails = tails(recording, &threads)?;
    recording
        .each_stall(|stall| {
            collector.add(&stall);
            samples.add_wait(&stall);
            tails.add(&stall);
            stalls.add(stall);
        })
        .map_err(Failure::from)?;
    tail::add_late(&mut tails, recording)?;
    let more_kinds = tails.left_out();
    let kinds = tails.finish();
    stages::start("searching for causes");
    let findings = background.findings(collector);
    stages::start("writing the page");
    let counters = recording.counters().map_err(Failure::from)?;
    let mut tracks = counters.whole(|_| true).map_err(Failure::from)?;
    tracks.extend(counters.whole_of_processes(|_| true).map_err(Failure::from)?);
    let page = Page {
        info: &background.info,
        threads: &threads,
        findings: &findings,
        folded: &recording.folded().map_err(Failure::from)?,
        counters: &tracks,
        marks: &recording.marks().map_err(Failure::from)?,
        kinds: (&kinds, more_kinds),
        has_calls: !recording.threads_with_calls().map_err(Failure::from)?.is_empty(),
        ledger,
        samples: samples.finish(),
        stalls,
    };
    Ok(page_html(out, page)?)
}

fn tails(recording: &Recording, threads: &[Thread]) -> Result<Tails, Failure> {
    let (sums, spans) = (recording.span_sums()?, recording.spans()?);
    Ok(Tails::new(threads, &sums, spans, &SPAN_OPTIONS, |_| true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_html() {
        assert!(check_name(Path::new("a.HTML")).is_ok() && check_name(Path::new("-")).is_ok());
        let refused = check_name(Path::new("a.svg")).unwrap_err();
        assert!(refused.message.contains(".html"), "{}", refused.message);
    }
}
