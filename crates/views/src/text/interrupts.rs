// SPDX-License-Identifier: Apache-2.0
//! Interrupts by cause, and the thread that each cause interrupted most.

use std::collections::HashMap;
use std::io::{self, Write};

use wallprof_analysis::interrupts::{InterruptCause, causes};
use wallprof_model::ThreadKey;

use super::{write_note, write_title};
use crate::line::{cut, left, right};
use crate::report::Report;
use crate::style::{Ink, Style};
use crate::units::{count, counted, time};

const MOST_CAUSES: usize = 6;

pub(super) fn write(out: &mut impl Write, report: &Report<'_>, style: &Style) -> io::Result<()> {
    let causes = causes(report.interrupts);
    if causes.is_empty() {
        return Ok(());
    }
    let total = causes.iter().fold(0u64, |sum, cause| sum.saturating_add(cause.total_ns));
    write_title(out, "Interrupts", &format!("{} on all CPUs", time(total, style)), style)?;
    let names =
        [("count", 9), ("total", 10), ("longest", 10)].map(|(name, columns)| right(name, columns)).concat();
    let head = format!("  {}{names}  hit most", left("cause", 28, style));
    writeln!(out, "{}", style.paint(Ink::Faint, &head))?;
    let names: HashMap<ThreadKey, &str> =
        report.threads.iter().map(|thread| (thread.info.key, thread.info.comm.as_str())).collect();
    for cause in causes.iter().take(MOST_CAUSES) {
        write_cause(out, cause, &names, style)?;
    }
    if let Some(hidden) = causes.len().checked_sub(MOST_CAUSES).filter(|&hidden| hidden > 0) {
        let more = counted(hidden as u64, "more cause", "more causes");
        write_note(out, 2, &format!("{more}: `wallprof report --json` has all"), style)?;
    }
    Ok(())
}

fn write_cause(
    out: &mut impl Write,
    cause: &InterruptCause,
    names: &HashMap<ThreadKey, &str>,
    style: &Style,
) -> io::Result<()> {
    let name = format!("{} {}", cause.kind.name(), style.name(&cause.name));
    let victim = cause
        .victim
        .and_then(|(key, ns)| Some(format!("{} {}", style.comm(names.get(&key)?), time(ns, style))));
    let line = format!(
        "  {}{}{}{}  {}",
        left(&name, 28, style),
        right(&count(cause.count), 9),
        right(&time(cause.total_ns, style), 10),
        right(&time(cause.max_ns, style), 10),
        victim.unwrap_or_default()
    );
    writeln!(out, "{}", cut(line.trim_end(), style.columns(), style))
}
