// SPDX-License-Identifier: Apache-2.0
//! Imports `perf script`'s text of ordinary samples: threads, stacks and the time of samples. What is not in
//! the text (switches, waits, mappings) is not known.
//!
//! Each event has a view of its own, with the periods that the text has, or one for each sample. The first
//! event that is a clock gives running time, as in perf.data. Several texts are merged by time.

mod clock;
mod frames;
mod line;
mod text;

use std::io;
use std::path::Path;

use wallprof_model::Loss;

use super::line::{Head as TraceHead, Line as TraceLine};
use super::read::Text;
use crate::delivery::Delivery;
use crate::error::ImportError;
use crate::options::{ImportOptions, Outcome};
use crate::session::Session;
use crate::sink::Sink;
pub(crate) use clock::{ClockOfText, EventClock, event_clock};
use frames::Frames;
pub(crate) use frames::PrintedStack;
use line::{Expected, Line, split_modifiers};
pub(crate) use text::PrintedSample;
use text::Samples;

/// Whether `perf script` printed a text of samples with this start.
pub(super) fn is_samples(start: &[u8]) -> bool {
    let mut expected = Expected::Sample;
    start.split(|byte| *byte == b'\n').any(|text| {
        let line = Line::parse(text, expected);
        // Behind a line that cannot be read, frames show that it was a sample of a form that is not known.
        expected = if matches!(line, Line::Unread) { Expected::Either } else { Expected::Sample };
        matches!(line, Line::Sample(_))
    })
}

/// Whether the line is of a traced branch.
pub(super) fn is_branch(line: &[u8]) -> bool {
    matches!(TraceLine::parse(line), TraceLine::Branch(..) | TraceLine::Unflagged | TraceLine::Untargeted)
}

/// What another line is in a text of branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AmongBranches {
    Sample,
    Unread,
    /// A record, a packet of the trace, or a frame of a sample.
    Nothing,
}

pub(super) fn kind_among_branches(line: &[u8]) -> AmongBranches {
    /// What perf makes of packets of a trace (perf-intel-pt(1), `--itrace`).
    const PACKETS: [&[u8]; 9] =
        [b"cbr", b"psb", b"ptwrite", b"pwre", b"pwrx", b"exstop", b"mwait", b"evt", b"iflag"];
    match Line::parse(line, Expected::Frame) {
        Line::Sample(head) if PACKETS.contains(&split_modifiers(head.event).0) => AmongBranches::Nothing,
        Line::Sample(_) => AmongBranches::Sample,
        Line::Unread if TraceHead::parse(line).is_some() => AmongBranches::Unread,
        _ => AmongBranches::Nothing,
    }
}

/// Imports texts of samples. `start`: the first part of the first text.
pub(super) fn import<S: Sink>(
    inputs: &[&Path],
    texts: Vec<Text<'_>>,
    start: &[u8],
    total: Option<u64>,
    sink: &mut S,
) -> Result<Outcome, ImportError<S::Error>> {
    let mut delivery = Delivery::new(sink);
    delivery.total = total;
    let session = Session::of_text(ImportOptions::default(), ClockOfText::from_start(start));
    let texts = texts.into_iter().map(|text| Source { samples: Samples::new(text), next: None }).collect();
    let mut import = Import { inputs, texts, frames: Frames::default(), session, delivery };
    for number in 0..import.texts.len() {
        import.advance(number)?;
    }
    import.run()
}

/// A text, with its first sample that was not taken.
struct Source<'a> {
    samples: Samples<Text<'a>>,
    next: Option<PrintedSample>,
}

struct Import<'a, S> {
    inputs: &'a [&'a Path],
    texts: Vec<Source<'a>>,
    frames: Frames,
    session: Session,
    delivery: Delivery<'a, S>,
}

impl<S: Sink> Import<'_, S> {
    fn run(mut self) -> Result<Outcome, ImportError<S::Error>> {
        for text in &self.texts {
            self.session.take_text_facts(&text.samples.rest.facts);
        }
        while let Some(number) = self.earliest() {
            let sample = self.texts[number].next.take().unwrap_or_default();
            self.session.out.append(&mut self.frames.out);
            self.session.take_printed(&sample);
            self.delivery.report_progress(self.texts.iter().map(|text| text.samples.position).sum());
            self.delivery.deliver_batch(&mut self.session).map_err(ImportError::Sink)?;
            self.advance(number)?;
        }
        self.finish()
    }

    fn advance(&mut self, number: usize) -> Result<(), ImportError<S::Error>> {
        let text = &mut self.texts[number];
        let next: io::Result<_> = text.samples.next(&mut self.frames);
        text.next = next.map_err(|cause| ImportError::unreadable(self.inputs[number], cause))?;
        Ok(())
    }

    /// The text with the earliest sample. Samples without a time come as they are printed.
    fn earliest(&self) -> Option<usize> {
        let waiting =
            self.texts.iter().enumerate().filter_map(|(number, text)| Some((number, text.next.as_ref()?)));
        waiting.min_by_key(|(_, sample)| sample.ns).map(|(number, _)| number)
    }

    fn finish(mut self) -> Result<Outcome, ImportError<S::Error>> {
        let Import { texts, frames, session, delivery, .. } = &mut self;
        let sum = |of: fn(&text::Rest) -> u64| {
            texts.iter().map(|text| of(&text.samples.rest)).fold(0, u64::saturating_add)
        };
        session.lose(Loss::PrintedLinesUnread, sum(|rest| rest.unread));
        session.lose(Loss::BranchesAmongSamples, sum(|rest| rest.branches));
        session.lose(Loss::PerfLostRecords, sum(|rest| rest.lost));
        session.lose(Loss::FramesFull, frames.refused);
        session.finish();
        delivery.deliver_all(session).map_err(ImportError::Sink)?;
        Ok(session.outcome(None))
    }
}
