// SPDX-License-Identifier: Apache-2.0
//! Text for people.

mod findings;
mod guard;
mod header;
mod idle;
mod interrupts;
mod latencies;
mod lateness;
mod ledgers;
mod marks;
mod quality;
mod stack;
mod stall;
mod stall_groups;

use std::io::{self, Write};

pub(crate) use stack::write_stack;
pub use stall::StallsText;
pub(crate) use stall::named;
pub use stall_groups::StallGroupsText;

use crate::line::{Word, write_wrapped};
use crate::report::Report;
use crate::style::{Ink, Style};

/// Writes the report: the recording, the findings, the groups of stalls, the ledgers, the lengths of waits,
/// and the quality of the recording itself.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn report_text(out: &mut impl Write, report: &Report<'_>, style: &Style) -> io::Result<()> {
    header::write(out, report, style)?;
    findings::write(out, report, style)?;
    lateness::write(out, report, style)?;
    marks::write(out, report, style)?;
    let selection = ledgers::Selection::of(report);
    ledgers::write(out, report, &selection, style)?;
    latencies::write(out, report, &selection, style)?;
    interrupts::write(out, report, style)?;
    guard::write(out, report, style)?;
    quality::write(out, report, &selection, style)
}

/// A blank line and a section's title with a remark.
pub(crate) fn write_title(out: &mut impl Write, title: &str, about: &str, style: &Style) -> io::Result<()> {
    let columns = style.columns().saturating_sub(crate::line::width(title) + 2);
    let about = crate::line::cut(about, columns, style);
    writeln!(out)?;
    let separator = if about.is_empty() { "" } else { "  " };
    writeln!(out, "{}{separator}{}", style.paint(Ink::Title, title), style.paint(Ink::Faint, &about))
}

/// A remark below a table, wrapped.
pub(crate) fn write_note(out: &mut impl Write, indent: usize, text: &str, style: &Style) -> io::Result<()> {
    let words: Vec<Word> = text.split(' ').map(|word| Word { text: word.into(), ink: Ink::Faint }).collect();
    write_wrapped(out, ("", indent), &words, style)
}
