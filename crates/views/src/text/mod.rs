//! Text for eyes.

mod findings;
mod guard;
mod header;
mod interrupts;
mod latencies;
mod lateness;
mod ledgers;
mod marks;
mod quality;
mod stack;
mod stall;

use std::io::{self, Write};

pub use stall::StallsText;

use crate::line::{Word, write_wrapped};
use crate::report::Report;
use crate::style::{Ink, Style};

/// Writes the report: what was recorded, what the rules found, why threads were late, where their time went,
/// how long waits took, and how far the recording itself can be trusted.
///
/// # Errors
/// What `out` returns; a broken pipe among it.
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

/// A blank line and a section's title with what it is about.
pub(crate) fn write_title(out: &mut impl Write, title: &str, about: &str, style: &Style) -> io::Result<()> {
    let room = style.columns().saturating_sub(crate::line::width(title) + 2);
    let about = crate::line::cut(about, room, style);
    writeln!(out)?;
    let separator = if about.is_empty() { "" } else { "  " };
    writeln!(out, "{}{separator}{}", style.paint(Ink::Title, title), style.paint(Ink::Faint, &about))
}

/// A remark below a table, wrapped.
pub(crate) fn write_note(out: &mut impl Write, indent: usize, text: &str, style: &Style) -> io::Result<()> {
    let words: Vec<Word> = text.split(' ').map(|word| Word { text: word.into(), ink: Ink::Faint }).collect();
    write_wrapped(out, ("", indent), &words, style)
}
