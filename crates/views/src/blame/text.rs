// SPDX-License-Identifier: Apache-2.0
//! Who costs whom, for people: a block for each waiter with its culprits.

use std::io::{self, Write};

use wallprof_analysis::blame::{Blame, Edge};

use super::{Waiter, culprit, group_name, waiters};
use crate::line::{Word, right, width, write_wrapped};
use crate::style::{Ink, Style};
use crate::text::{write_note, write_title};
use crate::units::{TimeColumn, columns_for, counted, percent, time};

const MOST_WAITERS: usize = 20;
const MOST_CULPRITS: usize = 8;

/// Writes the waiters with most time and their culprits.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn blame_text(out: &mut impl Write, blame: &Blame, style: &Style) -> io::Result<()> {
    let waiters = waiters(blame);
    if waiters.is_empty() {
        return writeln!(out, "no thread waited for anything that made it late");
    }
    let about = format!("{} of waiting, each at the end of its chain", time(blame.waiting_ns, style));
    write_title(out, "Who costs whom", &about, style)?;
    for waiter in waiters.iter().take(MOST_WAITERS) {
        write_waiter(out, waiter, style)?;
    }
    if let Some(hidden) = waiters.get(MOST_WAITERS..).filter(|hidden| !hidden.is_empty()) {
        let ns = hidden.iter().fold(0u64, |sum, waiter| sum.saturating_add(waiter.ns));
        let groups = counted(hidden.len() as u64, "group", "groups");
        writeln!(out)?;
        write_note(out, 0, &format!("{groups} more waited {}: --json has all", time(ns, style)), style)?;
    }
    for knot in blame.knots.iter().filter(|knot| knot.len() > 1).take(MOST_CULPRITS) {
        let names: Vec<String> = knot.iter().map(|group| group_name(group, style)).collect();
        writeln!(out)?;
        let text = format!("{} wait for each other, and the others for them in the end", names.join(", "));
        write_note(out, 0, &text, style)?;
    }
    if blame.cut_ns > 0 {
        let text =
            format!("{} of it is in chains too long to follow to their end", time(blame.cut_ns, style));
        write_note(out, 0, &text, style)?;
    }
    Ok(())
}

fn write_waiter(out: &mut impl Write, waiter: &Waiter<'_>, style: &Style) -> io::Result<()> {
    writeln!(out)?;
    let name = style.paint(Ink::Strong, &group_name(waiter.group, style));
    writeln!(out, "{name} waited {}", time(waiter.ns, style))?;
    let shown = &waiter.edges[..waiter.edges.len().min(MOST_CULPRITS)];
    let hidden: u64 = waiter.edges[shown.len()..].iter().map(|edge| edge.ns).sum();
    let times = shown.iter().map(|edge| edge.ns).chain((hidden > 0).then_some(hidden));
    let texts = TimeColumn::of(times.clone(), style).adding_up(&times.collect::<Vec<_>>());
    let columns = columns_for(&texts, 11);
    for (edge, text) in shown.iter().zip(&texts) {
        let label = format!("{}{}", right(text, columns), right(&percent(edge.ns, waiter.ns), 9));
        write_line(out, &label, &words(edge, style), style)?;
    }
    if let (Some(text), true) = (texts.get(shown.len()), hidden > 0) {
        let label = format!("{}{}", right(text, columns), right(&percent(hidden, waiter.ns), 9));
        let more = counted((waiter.edges.len() - shown.len()) as u64, "more culprit", "more culprits");
        write_line(out, &label, &[Word { text: more, ink: Ink::Faint }], style)?;
    }
    Ok(())
}

fn write_line(out: &mut impl Write, label: &str, words: &[Word], style: &Style) -> io::Result<()> {
    write_wrapped(out, (label, width(label) + 2), words, style)
}

fn words(edge: &Edge, style: &Style) -> Vec<Word> {
    let waits = counted(edge.count, "wait", "waits");
    let text = format!("{} ({waits})", culprit(edge, style));
    text.split(' ').map(Word::plain).collect()
}
