// SPDX-License-Identifier: Apache-2.0
//! Marks by time of day, each with the longest stall at that time.

use std::io::{self, Write};

use wallprof_analysis::counters::marks_around;
use wallprof_model::Mark;
use wallprof_model::profile::StallRecord;

use super::{write_note, write_title};
use crate::line::{Word, left, write_wrapped};
use crate::report::Report;
use crate::style::Style;
use crate::timestamps::Timestamps;
use crate::units::{counted, time};

/// Marks shown; the view `marks` of the file has all.
const MOST_MARKS: usize = 10;

/// Columns of the time of day.
const TIME_COLUMNS: usize = 18;

pub(super) fn write(out: &mut impl Write, report: &Report<'_>, style: &Style) -> io::Result<()> {
    if report.marks.is_empty() {
        return Ok(());
    }
    write_title(out, "Marks", &counted(report.marks.len() as u64, "was imported", "were imported"), style)?;
    let timestamps = Timestamps::new(report.info, &style.zone);
    for mark in report.marks.iter().take(MOST_MARKS) {
        let at = format!("  {}", left(&timestamps.time(mark.at), TIME_COLUMNS - 2, style));
        write_wrapped(out, (&at, TIME_COLUMNS), &words(mark, report, style), style)?;
    }
    let hidden = report.marks.len().saturating_sub(MOST_MARKS) as u64;
    if hidden > 0 {
        let more = counted(hidden, "more mark", "more marks");
        write_note(out, 2, &format!("{more}: the file's view `marks` has them"), style)?;
    }
    Ok(())
}

fn words(mark: &Mark, report: &Report<'_>, style: &Style) -> Vec<Word> {
    let mut words = vec![Word::strong(style.name(&mark.text))];
    if let Some(ns) = mark.duration_ns {
        words.push(Word::plain(format!("for {}", time(ns, style))));
    }
    let is_near = |stall: &&StallRecord| {
        marks_around(std::slice::from_ref(mark), stall.start..stall.end).next().is_some()
    };
    if let Some(stall) = report.stalls.longest().iter().find(is_near) {
        let (comm, took) = (style.comm(&stall.comm), time(stall.late_ns(), style));
        words.push(Word::plain(format!("(stall {}: {comm} {} {took})", stall.id, stall.reason.name())));
    }
    words
}
