// SPDX-License-Identifier: Apache-2.0
//! Where threads waited voluntarily: the largest groups of such waits. A wait that the program does not mean
//! to be idle (a lock made of a poll) shows here.

use std::collections::HashSet;
use std::io::{self, Write};

use wallprof_analysis::stalls::{IdleGroup, IdleWait};

use super::stall::reason_name;
use super::{write_note, write_title};
use crate::function::{meaning_name, site_words};
use crate::line::{Word, left, right, width, write_wrapped};
use crate::report::Report;
use crate::style::{Ink, Style};
use crate::units::{TimeColumn, columns_for, count, counted, time};

const MOST_GROUPS: usize = 3;

/// The most columns of the name of a wait.
const MOST_COLUMNS: usize = 32;

const FACT_INDENT: usize = 19;

/// Writes nothing where no thread waited voluntarily.
pub(super) fn write(out: &mut impl Write, report: &Report<'_>, style: &Style) -> io::Result<()> {
    if report.stalls.voluntary == 0 {
        return Ok(());
    }
    let about = format!(
        "{} of {} or longer; they are no stalls",
        counted(report.stalls.voluntary, "voluntary wait", "voluntary waits"),
        time(report.info.min_stall_ns, style)
    );
    write_title(out, "Idle waits", &about, style)?;
    let hidden = hidden_tids(report);
    let is_shown = |group: &&IdleGroup| group.tids.top().is_none_or(|(tid, _)| !hidden.contains(tid));
    let groups: Vec<&IdleGroup> =
        report.stalls.idle_groups().into_iter().filter(is_shown).take(MOST_GROUPS).collect();
    if !groups.is_empty() {
        write_groups(out, &groups, style)?;
    }
    write_note(out, 5, "`wallprof stalls --all` shows them all", style)
}

/// Threads of the kernel, and wallprof's own among all threads: no user waits for what they wait for.
fn hidden_tids(report: &Report<'_>) -> HashSet<u32> {
    let is_own = |process: &str| report.info.is_of_all_threads() && process == "wallprof";
    let hidden = report.threads.iter().map(|thread| &thread.info);
    hidden.filter(|info| info.kernel_thread || is_own(&info.process)).map(|info| info.tid).collect()
}

fn write_groups(out: &mut impl Write, groups: &[&IdleGroup], style: &Style) -> io::Result<()> {
    let times = TimeColumn::of(groups.iter().map(|group| group.total_ns), style);
    let totals: Vec<String> = groups.iter().map(|group| times.text(group.total_ns)).collect();
    let columns = [9, 9, columns_for(&totals, 10)];
    let names: String = ["waits", "threads", "total"]
        .iter()
        .zip(columns)
        .map(|(name, columns)| right(name, columns))
        .collect();
    let waits: Vec<String> = groups.iter().map(|group| wait_name(&group.key.what, style)).collect();
    let wide = waits.iter().map(|wait| width(wait)).max().unwrap_or(0).clamp(9, MOST_COLUMNS);
    let head = format!("     {} {}{names}", left("thread", 16, style), left("waits for", wide, style));
    writeln!(out, "{}", style.paint(Ink::Faint, &head))?;
    for (at, ((group, wait), total)) in groups.iter().zip(&waits).zip(&totals).enumerate() {
        writeln!(
            out,
            "{:>3}  {} {}{}{}{}",
            at + 1,
            style.paint(Ink::Strong, &left(&style.comm(&group.key.comm), 16, style)),
            left(wait, wide, style),
            right(&count(group.count), columns[0]),
            right(&count(group.tids.len() as u64), columns[1]),
            right(total, columns[2]),
        )?;
        for (label, words) in facts(group, style) {
            write_wrapped(out, (&format!("     {label}"), FACT_INDENT), &words, style)?;
        }
    }
    Ok(())
}

/// The meaning, or the kernel's word where none is known.
fn wait_name(what: &IdleWait, style: &Style) -> String {
    match what {
        IdleWait::Meaning(meaning) => meaning_name(meaning, style),
        IdleWait::Reason(reason) => reason_name(*reason).to_owned(),
    }
}

fn facts(group: &IdleGroup, style: &Style) -> Vec<(&'static str, Vec<Word>)> {
    group.key.site.iter().map(|site| ("waiting in", site_words(site, style))).collect()
}
