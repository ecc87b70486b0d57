// SPDX-License-Identifier: Apache-2.0
//! Why threads were late: groups of stalls with the threads that ended them, and the longest stalls.

use std::io::{self, Write};

use wallprof_analysis::stalls::Release;
use wallprof_analysis::{Class, StallDigest, StallGroup};
use wallprof_meaning::Site;
use wallprof_model::profile::StallRecord;
use wallprof_model::{Reason, StallReason};

use super::{idle, write_note, write_title};
use crate::function::{meaning_name, short_name, site_words};
use crate::line::{Word, cut, left, right, width, write_wrapped};
use crate::report::Report;
use crate::style::{Ink, Style};
use crate::timestamps::Timestamps;
use crate::units::{TimeColumn, columns_for, count, counted, percent, time};

/// Groups and stalls shown; the `stalls` command has all.
const MOST_GROUPS: usize = 5;
const MOST_STALLS: usize = 5;

/// Columns of the facts below a group, and of their labels.
const FACT_INDENT: usize = 19;

pub(super) fn write(out: &mut impl Write, report: &Report<'_>, style: &Style) -> io::Result<()> {
    let stalls = report.stalls;
    let limit = time(report.info.min_stall_ns, style);
    if stalls.count == 0 {
        write_title(out, "Why threads were late", "", style)?;
        writeln!(out, "  No thread was kept waiting for {limit} or longer.")?;
        return idle::write(out, report, style);
    }
    let rows = Rows::of(stalls, style);
    let about = format!(
        "{} of {limit} or longer, {} in all",
        counted(stalls.count, "stall", "stalls"),
        rows.times.text(stalls.total_ns)
    );
    write_title(out, "Why threads were late", &about, style)?;
    write_groups(out, &rows, report, style)?;
    write_longest(out, report, style)?;
    idle::write(out, report, style)
}

/// The groups of a report's table, and the stalls of all others in one row.
struct Rows<'r> {
    groups: Vec<&'r StallGroup>,
    times: TimeColumn,
    /// Of each group, and of the others: they add up to the total as printed.
    totals: Vec<String>,
    others: u64,
}

impl<'r> Rows<'r> {
    fn of(stalls: &'r StallDigest, style: &Style) -> Self {
        let mut groups = stalls.groups();
        groups.truncate(MOST_GROUPS);
        let shown = groups.iter().fold((0u64, 0u64), |(count, ns), group| {
            (count.saturating_add(group.count), ns.saturating_add(group.total_ns))
        });
        let others = stalls.count.saturating_sub(shown.0);
        let others_ns = stalls.total_ns.saturating_sub(shown.1);
        let mut parts: Vec<u64> = groups.iter().map(|group| group.total_ns).collect();
        parts.extend((others > 0).then_some(others_ns));
        let longest = groups.iter().map(|group| group.longest.late_ns);
        let times = TimeColumn::of(parts.iter().copied().chain(longest), style);
        Rows { totals: times.adding_up(&parts), groups, times, others }
    }
}

fn write_groups(out: &mut impl Write, rows: &Rows<'_>, report: &Report<'_>, style: &Style) -> io::Result<()> {
    let longest: Vec<String> =
        rows.groups.iter().map(|group| rows.times.text(group.longest.late_ns)).collect();
    let columns = [9, columns_for(&rows.totals, 10), columns_for(&longest, 10)];
    let head = format!("     {} {}", left("thread", 16, style), left("reason", 9, style));
    let names = ["stalls", "total", "longest"].iter().zip(columns);
    let numbers: String = names.map(|(name, columns)| right(name, columns)).collect();
    writeln!(out, "{}", style.paint(Ink::Faint, &format!("{head}{numbers}")))?;
    for (at, group) in rows.groups.iter().enumerate() {
        let ink = Ink::Of(Class::of_stall(group.key.reason, false, group.key.meaning.as_deref()));
        writeln!(
            out,
            "{:>3}  {} {}{}{}{}",
            at + 1,
            style.paint(Ink::Strong, &left(&style.comm(&group.key.comm), 16, style)),
            style.paint(ink, &left(group.key.reason.name(), 9, style)),
            right(&count(group.count), columns[0]),
            style.paint(ink, &right(&rows.totals[at], columns[1])),
            right(&longest[at], columns[2]),
        )?;
        write_facts(out, group, report, style)?;
    }
    if rows.others == 0 {
        return Ok(());
    }
    let total = rows.totals.last().map_or("", String::as_str);
    let numbers = format!("{}{}", right(&count(rows.others), columns[0]), right(total, columns[1]));
    writeln!(out, "     {}{numbers}", left("others", 16 + 1 + 9, style))?;
    write_note(out, 5, "`wallprof stalls` shows them all", style)
}

fn write_facts(
    out: &mut impl Write,
    group: &StallGroup,
    report: &Report<'_>,
    style: &Style,
) -> io::Result<()> {
    let timestamps = Timestamps::new(report.info, &style.zone);
    for (label, words) in facts(group, &timestamps, style) {
        write_wrapped(out, (&format!("     {label}"), FACT_INDENT), &words, style)?;
    }
    Ok(())
}

/// The known facts about a group, in the order of a report.
fn facts(group: &StallGroup, timestamps: &Timestamps<'_>, style: &Style) -> Vec<(&'static str, Vec<Word>)> {
    let mut facts = Vec::new();
    if let Some(meaning) = &group.key.meaning {
        facts.push(("meaning", vec![Word::plain(meaning_name(meaning, style))]));
    }
    if let Some(site) = &group.key.site {
        facts.push(("waiting in", site_words(site, style)));
    }
    if let Some(lock) = lock_words(group, style) {
        facts.push(("lock", lock));
    }
    if let Some((release, times)) = group.releases.top() {
        let released = group.key.reason == StallReason::Blocked(Reason::Lock) && release.comm.is_some();
        let label = if released { "released by" } else { "woken by" };
        let mut words = release_words(release, style);
        if times < group.count {
            words.push(Word::plain(format!("({} of {})", count(times), count(group.count))));
        }
        facts.push((label, words));
    }
    if let Some((file, _)) = group.files.top() {
        facts.push(("file", vec![Word::plain(style.name(file))]));
    }
    if let Some(words) = ran_instead_words(group, style) {
        facts.push(("ran instead", words));
    }
    if group.overslept > 0 {
        let text = format!(
            "the timeout asked for, {} of {}; the times are those after it",
            count(group.overslept),
            count(group.count)
        );
        facts.push(("overslept", vec![Word::plain(text)]));
    }
    if group.open > 0 {
        let text =
            format!("{} of {} had not ended when the recording did", count(group.open), count(group.count));
        facts.push(("still waiting", vec![Word { text, ink: Ink::Warning }]));
    }
    let example = format!("stall {} at {}", group.longest.id, timestamps.time(group.longest.start));
    facts.push(("longest", vec![Word::plain(example)]));
    facts
}

/// Nothing where most of the stalls were no waits for a lock: a thread that waited for a CPU also did so after a
/// few of those.
fn lock_words(group: &StallGroup, style: &Style) -> Option<Vec<Word>> {
    let (&address, _) = group.lock_addresses.top()?;
    if group.lock_addresses.total() < group.count.div_ceil(2) {
        return None;
    }
    let mut words = Vec::new();
    if address != 0 {
        words.push(Word::plain(format!("{address:#x}")));
    }
    if group.lock_addresses.len() > 1 {
        words.push(Word::plain(format!(
            "and {}",
            counted(group.lock_addresses.len() as u64 - 1, "other", "others")
        )));
    }
    if let Some((owner, times)) = group.owners.top() {
        words.push(Word::plain("held by"));
        words.push(Word::strong(style.comm(owner)));
        if times < group.count {
            words.push(Word::plain(format!("({} of {})", count(times), count(group.count))));
        }
    }
    (!words.is_empty()).then_some(words)
}

fn release_words(release: &Release, style: &Style) -> Vec<Word> {
    let mut words = vec![match &release.comm {
        Some(comm) => Word::strong(style.comm(comm)),
        None => Word::plain("an interrupt"),
    }];
    if let Some(site) = &release.site {
        words.push(Word::plain("in"));
        words.extend(site_words(site, style));
    }
    words
}

/// The threads that had the CPU, where waiting for one was a tenth of the group's time or more.
fn ran_instead_words(group: &StallGroup, style: &Style) -> Option<Vec<Word>> {
    if group.ran_instead.is_empty() || group.runnable_ns < group.total_ns / 10 {
        return None;
    }
    let whole = group.runnable_ns.max(group.ran_instead.total());
    let names = group
        .ran_instead
        .ranked()
        .into_iter()
        .take(3)
        .map(|(comm, ns)| Word::plain(format!("{} {}", style.comm(comm), percent(ns, whole))));
    let mut words: Vec<Word> = names.collect();
    let last = words.len() - 1;
    words[..last].iter_mut().for_each(|word| word.text.push(','));
    if !matches!(group.key.reason, StallReason::Preempted | StallReason::Runnable) {
        words.push(Word::plain(format!("(of {} spent waiting for a CPU)", time(group.runnable_ns, style))));
    }
    Some(words)
}

fn write_longest(out: &mut impl Write, report: &Report<'_>, style: &Style) -> io::Result<()> {
    let longest = report.stalls.longest();
    // Where every stall is a group of its own, the groups show them all.
    if report.stalls.count <= report.stalls.groups().len() as u64 {
        return Ok(());
    }
    write_title(out, "Longest stalls", "`wallprof stalls --each` shows each with its stacks", style)?;
    let timestamps = Timestamps::new(report.info, &style.zone);
    let longest = &longest[..longest.len().min(MOST_STALLS)];
    let times = TimeColumn::of(longest.iter().map(StallRecord::late_ns), style);
    for stall in longest {
        write_long_stall(out, stall, times, &timestamps, style)?;
    }
    Ok(())
}

fn write_long_stall(
    out: &mut impl Write,
    stall: &StallRecord,
    times: TimeColumn,
    timestamps: &Timestamps<'_>,
    style: &Style,
) -> io::Result<()> {
    let ink = Ink::Of(Class::of_stall(stall.reason, stall.voluntary, stall.meaning.as_deref()));
    let site = Site::of(stall.user.as_ref(), stall.kernel.as_ref());
    let mut function = site.map(|site| short_name(&site.functions[0])).unwrap_or_default();
    if let Some(asked_ns) = stall.asked_ns.filter(|_| stall.overslept_ns().is_some()) {
        function.push_str(&format!(", asked for {}", time(asked_ns, style)));
    }
    let open = if stall.open { style.pick("… ", ">") } else { "" };
    let late = right(&format!("{open}{}", times.text(stall.late_ns())), 12);
    let fixed = 5 + 2 + 15 + width(&late) + 2 + 16 + 1 + 10;
    writeln!(
        out,
        "{}  {}{}  {} {}{}",
        right(&stall.id.to_string(), 5),
        left(&timestamps.time(stall.start), 15, style),
        style.paint(ink, &late),
        left(&style.comm(&stall.comm), 16, style),
        style.paint(ink, &left(stall.reason.name(), 10, style)),
        cut(&style.name(&function), style.columns().saturating_sub(fixed), style),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::profile::LockRecord;
    use wallprof_model::{MonoNs, ThreadKey};

    #[test]
    fn lock_of_a_few_stalls_is_not_that_of_their_group() {
        let words = |with_lock: u64| {
            let mut digest = StallDigest::new(0);
            for id in 1..=10 {
                let stall =
                    StallRecord::new(id, ThreadKey(1), StallReason::Runnable, MonoNs(id * 1_000), 500);
                let lock = (id <= with_lock).then_some(LockRecord { address: 0x10, owner: None });
                digest.add(&StallRecord { lock, ..stall });
            }
            lock_words(digest.groups()[0], &Style::plain()).is_some()
        };
        assert_eq!([0, 1, 4, 5, 10].map(words), [false, false, false, true, true]);
    }
}
