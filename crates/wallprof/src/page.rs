//! `wallprof report -o FILE.html`: the recording as a page.

use std::io::Write;
use std::path::Path;

use wallprof_analysis::rules::Collector;
use wallprof_analysis::waits::Rules;
use wallprof_page::{Ledgers, Page, Samples, Slots, Stalls, ordered, page_html};
use wallprof_recording::Recording;

use crate::failure::Failure;
use crate::findings::Background;
use crate::meanings::open_recording;
use crate::output::{WriteFailure, to_file};
use crate::stages::Stages;

/// Writes the page of the recording in `file`.
///
/// # Errors
/// `output` does not end in `.html`; the recording cannot be read; the page cannot be written.
pub fn write(file: &Path, output: &Path, rules: &Rules) -> Result<(), Failure> {
    check_name(output)?;
    let mut stages = Stages::on_stderr();
    stages.start("reading waits");
    let recording = open_recording(file, rules)?;
    to_file(output, &[file], |out| write_page(out, &recording, &mut stages))
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
fn write_page(out: &mut dyn Write, recording: &Recording, stages: &mut Stages) -> Result<(), WriteFailure> {
    stages.start("reading threads");
    let background = Background::read(recording)?;
    let threads = ordered(&background.threads);
    let mut ledgers = Ledgers::new(&background.info, &threads);
    for row in recording.ledger(..).map_err(Failure::from)? {
        ledgers.add(&row.map_err(Failure::from)?);
        stages.row();
    }
    let ledger = ledgers.finish();
    let slots = Slots::new(&background.info, &threads, &ledger);
    let mut samples = Samples::new(&slots);
    stages.start("reading samples");
    for sample in recording.samples(..).map_err(Failure::from)? {
        let sample = sample.map_err(Failure::from)?;
        stages.row();
        let meaning = recording.meaning(&sample);
        samples.add(&sample, meaning, |stack| recording.resolve(stack)).map_err(Failure::from)?;
    }
    let (mut stalls, mut collector) = (Stalls::default(), Collector::default());
    stages.start("reading stalls");
    recording
        .each_stall(|stall| {
            stages.row();
            collector.add(&stall);
            samples.add_wait(&stall);
            stalls.add(stall);
        })
        .map_err(Failure::from)?;
    stages.start("searching for causes");
    let findings = background.findings(collector);
    stages.start("writing the page");
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
        ledger,
        samples,
        stalls,
    };
    Ok(page_html(out, page)?)
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
