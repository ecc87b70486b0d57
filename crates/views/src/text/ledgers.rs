// SPDX-License-Identifier: Apache-2.0
//! Where the time went: full ledgers of the latest threads, a line for each other one, and the number of
//! idle ones.

use std::io::{self, Write};

use wallprof_analysis::interest::{class_ns, is_idle, order};
use wallprof_analysis::totals::{ProcessTotal, accounts, process_totals, total};
use wallprof_analysis::{Account, Class};
use wallprof_model::State;
use wallprof_model::profile::Thread;

use super::{write_note, write_title};
use crate::bar::{Segment, bar, glyph, stacked};
use crate::line::{cut, left, right, width};
use crate::report::Report;
use crate::style::{Ink, Style};
use crate::units::{TimeColumn, columns_for, counted, percent, time};

/// Threads with a ledger of their own, threads with a line, processes with a line.
const MOST_DETAILED: usize = 3;
const MOST_LINES: usize = 15;
const MOST_PROCESSES: usize = 8;

/// The threads that are shown in full, on a line, or not at all.
pub(super) struct Selection {
    /// Those of all threads, in the report's order.
    pub accounts: Vec<Account>,
    pub detailed: Vec<usize>,
    lines: Vec<usize>,
    /// Left out although they did something, and because they did nothing.
    left_out: usize,
    idle: usize,
}

impl Selection {
    pub fn of(report: &Report<'_>) -> Self {
        let accounts = accounts(report.threads);
        let order = order(report.threads, &accounts);
        // A handful of threads is shown whole; among hundreds the idle ones are noise.
        let hides_idle = order.len() > MOST_DETAILED + MOST_LINES;
        let (idle, active): (Vec<usize>, Vec<usize>) =
            order.into_iter().partition(|&index| hides_idle && is_idle(&accounts[index]));
        let shown = if active.is_empty() { &idle } else { &active };
        let is_interesting = |index: &&usize| !is_idle(&accounts[**index]);
        let interesting =
            shown.iter().filter(is_interesting).count().clamp(1, MOST_DETAILED).min(shown.len());
        let (detailed, rest) = shown.split_at(interesting);
        let lines = &rest[..rest.len().min(MOST_LINES)];
        let idle_left_out = if active.is_empty() { rest.len() - lines.len() } else { idle.len() };
        Selection {
            left_out: if active.is_empty() { 0 } else { rest.len() - lines.len() },
            idle: idle_left_out,
            detailed: detailed.to_vec(),
            lines: lines.to_vec(),
            accounts,
        }
    }
}

pub(super) fn write(
    out: &mut impl Write,
    report: &Report<'_>,
    selection: &Selection,
    style: &Style,
) -> io::Result<()> {
    if report.threads.is_empty() {
        write_title(out, "Where the time went", "", style)?;
        return writeln!(out, "  No thread was recorded.");
    }
    write_title(out, "Where the time went", "most lateness first", style)?;
    for (at, &index) in selection.detailed.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        write_ledger(out, &report.threads[index], &selection.accounts[index], style)?;
    }
    if !selection.lines.is_empty() {
        write_lines(out, report, selection, style)?;
    }
    write_left_out(out, selection, style)?;
    let has_processes = write_processes(out, report, selection, style)?;
    if has_processes || !selection.lines.is_empty() { write_legend(out, style) } else { Ok(()) }
}

fn write_ledger(out: &mut impl Write, thread: &Thread, account: &Account, style: &Style) -> io::Result<()> {
    let name = cut(&style.comm(&thread.info.comm), 32, style);
    let about = format!("{}  {}", who(thread, style), what(thread, account, style));
    let about = cut(&about, style.columns().saturating_sub(width(&name) + 3), style);
    writeln!(out, "  {} {}", style.paint(Ink::Strong, &name), style.paint(Ink::Faint, &about))?;
    let states: Vec<_> = account.states.iter().filter(|(_, ns)| *ns > 0).collect();
    let mut parts: Vec<u64> = states.iter().map(|(_, ns)| *ns).collect();
    parts.push(account.unaccounted_ns);
    let texts = TimeColumn::of(parts.iter().copied(), style).adding_up(&parts);
    let row = |ns, text| Row { ns, text, columns: columns_for(&texts, 9), wall_ns: account.wall_ns };
    for ((state, ns), text) in states.iter().zip(&texts) {
        write_state(out, (&state.label(), ink_from_state(*state)), row(*ns, text), style)?;
    }
    if let Some(text) = texts.last() {
        write_state(out, ("unaccounted", Ink::Faint), row(account.unaccounted_ns, text), style)?;
    }
    for found in &account.inconsistencies {
        writeln!(out, "    {}", style.paint(Ink::Warning, &found.to_string()))?;
    }
    Ok(())
}

fn who(thread: &Thread, style: &Style) -> String {
    let info = &thread.info;
    if info.tid == info.pid {
        return info.tid.to_string();
    }
    format!("{} of {} {}", info.tid, style.comm(&info.process), info.pid)
}

fn what(thread: &Thread, account: &Account, style: &Style) -> String {
    let stalls = counted(thread.stalls, "stall", "stalls");
    let involuntary = counted(thread.ledger.involuntary_switches, "preemption", "preemptions");
    let failed = match thread.ledger.failed_faults {
        0 => String::new(),
        number => format!(", {}", counted(number, "failed page fault", "failed page faults")),
    };
    format!("lived {}, {stalls}, {involuntary}{failed}", time(account.wall_ns, style))
}

/// The time of a state.
struct Row<'r> {
    ns: u64,
    text: &'r str,
    /// For the text.
    columns: usize,
    wall_ns: u64,
}

fn write_state(
    out: &mut impl Write,
    (label, ink): (&str, Ink),
    row: Row<'_>,
    style: &Style,
) -> io::Result<()> {
    let columns = style.columns().saturating_sub(4 + 16 + row.columns + 9 + 2).min(60);
    let bar = bar(row.ns, row.wall_ns, columns, style);
    let numbers = format!("{}{}", right(row.text, row.columns), right(&percent(row.ns, row.wall_ns), 9));
    let line = format!("    {}{numbers}", style.paint(ink, &left(label, 16, style)));
    if bar.is_empty() {
        return writeln!(out, "{line}");
    }
    writeln!(out, "{line}  {}", style.paint(ink, &bar))
}

fn ink_from_state(state: State) -> Ink {
    if state == State::Kernel { Ink::Kernel } else { Ink::Of(Class::of(state)) }
}

fn write_lines(
    out: &mut impl Write,
    report: &Report<'_>,
    selection: &Selection,
    style: &Style,
) -> io::Result<()> {
    writeln!(out)?;
    let table = Lines::of(selection.lines.iter().map(|&index| &selection.accounts[index]), style);
    table.write_head(out, ("other threads", "tid"), style)?;
    for &index in &selection.lines {
        let info = &report.threads[index].info;
        table.write(out, (&info.comm, &info.tid.to_string()), &selection.accounts[index], style)?;
    }
    Ok(())
}

/// A table with one line for each account.
struct Lines {
    times: TimeColumn,
    /// For each class.
    columns: [usize; Class::ALL.len()],
}

impl Lines {
    fn of<'a>(accounts: impl Iterator<Item = &'a Account> + Clone, style: &Style) -> Self {
        let all =
            accounts.flat_map(|account| Class::ALL.map(|class| (class, class_ns(&account.states, class))));
        let times = TimeColumn::of_sums(all.clone().map(|(_, ns)| ns), style);
        let columns = Class::ALL.map(|class| {
            let texts: Vec<String> =
                all.clone().filter(|(of, _)| *of == class).map(|(_, ns)| times.text(ns)).collect();
            columns_for(&texts, class_columns(class) + 1) - 1
        });
        Lines { times, columns }
    }

    /// Columns for the stacked bar beside names and numbers; too few are none.
    fn bar_columns(&self, style: &Style) -> usize {
        let numbers: usize = self.columns.iter().sum();
        let columns = style.columns().saturating_sub(2 + 16 + 8 + numbers + 2).min(40);
        if columns < 8 { 0 } else { columns }
    }

    fn write_head(&self, out: &mut impl Write, (name, id): (&str, &str), style: &Style) -> io::Result<()> {
        let mut head = format!("  {}{}", left(name, 16, style), right(id, 8));
        for (class, columns) in Class::ALL.into_iter().zip(self.columns) {
            let label = format!("{} {}", glyph(class, style), class_name(class));
            head.push_str(&right(&label, columns));
        }
        writeln!(out, "{}", style.paint(Ink::Faint, head.trim_end()))
    }

    fn write(
        &self,
        out: &mut impl Write,
        (name, id): (&str, &str),
        account: &Account,
        style: &Style,
    ) -> io::Result<()> {
        write!(out, "  {}{}", left(&style.comm(name), 16, style), right(id, 8))?;
        let segments = Class::ALL.map(|class| Segment { class, ns: class_ns(&account.states, class) });
        for (segment, columns) in segments.iter().zip(self.columns) {
            let text = if segment.ns == 0 { "-".to_string() } else { self.times.text(segment.ns) };
            write!(out, "{}", style.paint(Ink::Of(segment.class), &right(&text, columns)))?;
        }
        match stacked(&segments, account.wall_ns, self.bar_columns(style), style) {
            bar if bar.is_empty() => writeln!(out),
            bar => writeln!(out, "  {bar}"),
        }
    }
}

fn class_columns(class: Class) -> usize {
    if class == Class::Voluntary { 13 } else { 10 }
}

fn class_name(class: Class) -> &'static str {
    match class {
        Class::Running => "running",
        Class::Late => "late",
        Class::Peer => "peers",
        Class::Voluntary => "voluntary",
    }
}

fn write_left_out(out: &mut impl Write, selection: &Selection, style: &Style) -> io::Result<()> {
    let mut parts = Vec::new();
    if selection.left_out > 0 {
        parts.push(counted(selection.left_out as u64, "more thread", "more threads"));
    }
    if selection.idle > 0 {
        parts.push(counted(selection.idle as u64, "idle thread", "idle threads"));
    }
    if parts.is_empty() {
        return Ok(());
    }
    let text = format!("not shown: {} (`wallprof report --json` has every thread)", parts.join(" and "));
    write_note(out, 2, &text, style)
}

/// Totals by process, where the threads of many are mixed.
fn write_processes(
    out: &mut impl Write,
    report: &Report<'_>,
    selection: &Selection,
    style: &Style,
) -> io::Result<bool> {
    let mut processes = process_totals(report.threads, &selection.accounts);
    if processes.len() < 2 {
        return Ok(false);
    }
    processes.sort_by_cached_key(|process| (std::cmp::Reverse(activity(process)), process.pid));
    let all = total(&selection.accounts);
    let shown = &processes[..processes.len().min(MOST_PROCESSES)];
    writeln!(out)?;
    let table = Lines::of(shown.iter().map(|process| &process.account).chain([&all]), style);
    table.write_head(out, ("processes", "pid"), style)?;
    for process in shown {
        table.write(out, (&process.process, &process.pid.to_string()), &process.account, style)?;
    }
    table.write(out, (&format!("all {}", processes.len()), ""), &all, style)?;
    Ok(true)
}

fn write_legend(out: &mut impl Write, style: &Style) -> io::Result<()> {
    let text = "late: run queue, lock, disk, memory, faults, interrupts; peers: network, pipe, ipc, other";
    write_note(out, 2, text, style)
}

fn activity(process: &ProcessTotal) -> u64 {
    let states = &process.account.states;
    class_ns(states, Class::Running).saturating_add(class_ns(states, Class::Late))
}
