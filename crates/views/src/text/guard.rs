// SPDX-License-Identifier: Apache-2.0
//! Threads and interrupts on each guarded CPU: first those that should not be there.

use std::cmp::Reverse;
use std::io::{self, Write};

use wallprof_model::IntrusionKind;
use wallprof_model::profile::IntrusionRow;

use super::{write_note, write_title};
use crate::line::{cut, left, right};
use crate::report::Report;
use crate::style::{Ink, Style};
use crate::units::{count, counted, time};

/// Rows of one CPU.
const MOST_ROWS: usize = 12;

/// Real recordings guard fewer CPUs. A hostile file may have any number.
const MOST_CPUS: usize = 256;

/// Columns of a name: `kernel-thread kworker/1:2-events`.
const WHAT: usize = 44;

pub(super) fn write(out: &mut impl Write, report: &Report<'_>, style: &Style) -> io::Result<()> {
    let mut cpus: Vec<u32> = report.intrusions.iter().map(|row| row.cpu).collect();
    cpus.sort_unstable();
    cpus.dedup();
    let more_cpus = cpus.len().saturating_sub(MOST_CPUS) as u64;
    for cpu in cpus.into_iter().take(MOST_CPUS) {
        let rows = rows_of(report.intrusions, cpu);
        write_title(out, &format!("Guarded CPU {cpu}"), "threads that ran there, and interrupts", style)?;
        let names =
            [("count", 9), ("total", 10), ("longest", 10)].map(|(name, columns)| right(name, columns));
        let head = format!("  {}{}", left("what", WHAT, style), names.concat());
        writeln!(out, "{}", style.paint(Ink::Faint, &head))?;
        for row in rows.iter().take(MOST_ROWS) {
            let line = format!("  {}", line_of(row, style));
            let ink = if row.allowed { Ink::Faint } else { Ink::Plain };
            writeln!(out, "{}", style.paint(ink, &cut(line.trim_end(), style.columns(), style)))?;
        }
        if let Some(hidden) = rows.len().checked_sub(MOST_ROWS).filter(|&hidden| hidden > 0) {
            let more = counted(hidden as u64, "more row", "more rows");
            write_note(out, 2, &format!("{more}: `wallprof report --json` has all"), style)?;
        }
    }
    if more_cpus > 0 {
        let more = counted(more_cpus, "more guarded CPU", "more guarded CPUs");
        write_note(out, 2, &format!("{more}: `wallprof report --json` has all"), style)?;
    }
    Ok(())
}

/// Threads that should not be there come first, then interrupts, then the allowed threads; most time first.
fn rows_of(rows: &[IntrusionRow], cpu: u32) -> Vec<&IntrusionRow> {
    let mut rows: Vec<&IntrusionRow> = rows.iter().filter(|row| row.cpu == cpu).collect();
    let is_thread =
        |row: &IntrusionRow| matches!(row.kind, IntrusionKind::Task | IntrusionKind::KernelThread);
    rows.sort_by_key(|row| (row.allowed, !is_thread(row), Reverse(row.total_ns), Reverse(row.count)));
    rows
}

fn line_of(row: &IntrusionRow, style: &Style) -> String {
    // An interrupt that was sent takes its time where it is handled: another row.
    let (total, longest) = match row.kind {
        IntrusionKind::Ipi => (String::new(), String::new()),
        IntrusionKind::Probe => (time(row.total_ns, style), String::new()),
        _ => (time(row.total_ns, style), time(row.max_ns, style)),
    };
    format!(
        "{}{}{}{}",
        left(&what(row, style), WHAT, style),
        right(&count(row.count), 9),
        right(&total, 10),
        right(&longest, 10)
    )
}

fn what(row: &IntrusionRow, style: &Style) -> String {
    let who = row.thread.as_ref().map(|thread| format!("{} ({})", style.comm(&thread.comm), thread.tid));
    let what = style.name(&row.what);
    match (row.kind, who) {
        (IntrusionKind::Ipi, Some(who)) => format!("ipi {what} from {who}"),
        (IntrusionKind::Ipi, None) => format!("ipi {what}"),
        (kind, Some(who)) => format!("{} {who}{}", kind.name(), if row.allowed { ", allowed" } else { "" }),
        (kind, None) => format!("{} {what}", kind.name()),
    }
}
