// SPDX-License-Identifier: Apache-2.0
//! A diff as text: the two sides, the states and the stacks that differ, the largest difference first.

use std::cmp::Reverse;
use std::io::{self, Write};

use wallprof_analysis::Class;
use wallprof_analysis::diff::{
    Change, Floor, GroupRate, Headline, KindChange, LEAST_WINDOWS, Matched, Part, PartChange,
    PercentileChange, Step,
};

use wallprof_model::State;

use super::amount::{margin, mark, rate, signed, whole_ns};
use super::{Diff, DiffSide, group_name};
use crate::function::site_words;
use crate::line::{Word, cut, left, right, width, write_wrapped};
use crate::style::{Ink, Style};
use crate::text::{write_note, write_title};
use crate::timestamps::Timestamps;
use crate::units::{counted, time};

/// Rows of a table and threads of one side that are shown.
const MOST_ROWS: usize = 20;
const MOST_THREADS: usize = 8;
const MOST_UNSURE: usize = 5;

/// The largest p of a difference that is shown although it is no news.
const UNLIKELY: f64 = 0.001;

/// Columns of a line's thread and state, and of both in a narrow terminal.
const NAME: usize = 24;
const STATE: usize = 20;
const NARROW: usize = 16;

const ORDER: &str = "largest difference first, voluntary waits last";

/// How many rows to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiffRows {
    /// The largest differences.
    Largest,
    All,
}

impl DiffRows {
    fn most(self, rows: usize) -> usize {
        if self == DiffRows::All { usize::MAX } else { rows }
    }
}

/// Writes the diff.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn diff_text(out: &mut impl Write, diff: &Diff<'_>, rows: DiffRows, style: &Style) -> io::Result<()> {
    let about = format!("wallprof diff: {} view, time per second of wall time", diff.comparison.view);
    writeln!(out, "{}", style.paint(Ink::Strong, &about))?;
    write_side(out, ("A", &diff.a, diff.comparison.wall_a_s), style)?;
    write_side(out, ("B", &diff.b, diff.comparison.wall_b_s), style)?;
    write_kinds(out, diff, rows, style)?;
    write_parts(out, diff, rows, style)?;
    write_stacks(out, diff, rows, style)?;
    write_unsure(out, diff, style)?;
    write_verdict(out, diff, style)?;
    write_numbers(out, diff, rows, style)?;
    write_unmatched(out, diff, rows, style)
}

fn write_side(
    out: &mut impl Write,
    (label, side, wall_s): (&str, &DiffSide<'_>, f64),
    style: &Style,
) -> io::Result<()> {
    let timestamps = Timestamps::new(side.info, &style.zone);
    let lasted = time(whole_ns(wall_s * 1e9), style);
    let when = match timestamps.date(side.info.start) {
        Some(date) => format!(", {lasted} from {} on {date}", timestamps.time(side.info.start)),
        None => format!(", {lasted}"),
    };
    let command = match side.info.command.as_str() {
        "" => String::new(),
        command => format!("  {}", style.name(command)),
    };
    let file = style.name(side.file);
    let line = format!("  {label}  {file}{}", cut(&command, 40, style));
    writeln!(out, "{}", cut(&format!("{line}{when}"), style.columns(), style))
}

/// The percentiles that differ, the largest change of a kind first.
fn write_kinds(out: &mut impl Write, diff: &Diff<'_>, rows: DiffRows, style: &Style) -> io::Result<()> {
    let news = |kind: &&KindChange| rows == DiffRows::All || kind.is_news();
    let mut kinds: Vec<&KindChange> = diff.kinds.iter().filter(news).collect();
    if kinds.is_empty() {
        return Ok(());
    }
    let size = |kind: &KindChange| kind.percentiles.iter().map(factor).fold(1.0, f64::max);
    kinds.sort_by(|x, y| y.is_news().cmp(&x.is_news()).then(size(y).total_cmp(&size(x))));
    write_title(out, "Spans", "the kinds whose durations differ", style)?;
    let numbers = [right("A", 10), right("B", 10), right("change", 9)].concat();
    let names = name_columns(style);
    let head = format!(
        "  {} {}{numbers}",
        left("kind", names, style),
        left("percentile", state_columns(style), style)
    );
    writeln!(out, "{}", style.paint(Ink::Faint, &head))?;
    let most = rows.most(MOST_ROWS);
    for kind in kinds.iter().take(most) {
        let name = format!("{} of {}", style.name(&kind.kind.kind), style.comm(&kind.kind.process));
        let shown = kind.percentiles.iter().filter(|found| rows == DiffRows::All || found.is_news);
        for found in shown {
            write_percentile(out, &name, found, style)?;
        }
    }
    write_left_out(out, kinds.len().saturating_sub(most), style)
}

/// How many times longer the longer side is.
fn factor(found: &PercentileChange) -> f64 {
    let (least, most) = (found.a_ns.min(found.b_ns), found.a_ns.max(found.b_ns));
    most as f64 / least.max(1) as f64
}

fn write_percentile(
    out: &mut impl Write,
    name: &str,
    found: &PercentileChange,
    style: &Style,
) -> io::Result<()> {
    let times = [found.a_ns, found.b_ns].map(|ns| right(&time(ns, style), 10)).concat();
    let ink = match found.is_news {
        false => Ink::Faint,
        true if found.b_ns > found.a_ns => Ink::More,
        true => Ink::Less,
    };
    let percent = (found.relative() * 100.0).round();
    let sign = if percent < 0.0 { style.pick("−", "-") } else { "+" };
    let verdict = match (found.is_news, found.p) {
        (true, _) => "",
        (false, Some(_)) => " within the noise",
        (false, None) => " too few to tell",
    };
    writeln!(
        out,
        "  {} {}{times}{}{}",
        style.paint(Ink::Strong, &left(name, name_columns(style), style)),
        left(&format!("P{}", found.share * 100.0), state_columns(style), style),
        style.paint(ink, &right(&format!("{sign}{} %", percent.abs()), 9)),
        style.paint(Ink::Faint, verdict),
    )
}

fn write_parts(out: &mut impl Write, diff: &Diff<'_>, rows: DiffRows, style: &Style) -> io::Result<()> {
    let parts = sorted_parts(diff, |part| part.is_news);
    if parts.is_empty() {
        return Ok(());
    }
    write_title(out, "States", ORDER, style)?;
    write_head(out, style)?;
    let most = rows.most(MOST_ROWS);
    write_part_lines(out, parts.iter().take(most), style)?;
    write_left_out(out, parts.len().saturating_sub(most), style)
}

/// States that would differ so much in one of a thousand equal recordings, of which many are asked about.
fn write_unsure(out: &mut impl Write, diff: &Diff<'_>, style: &Style) -> io::Result<()> {
    let floor = diff.comparison.floor;
    let mut parts = sorted_parts(diff, |part| is_unsure(part, floor));
    parts.sort_by(|x, y| size(y).total_cmp(&size(x)));
    if parts.is_empty() {
        return Ok(());
    }
    write_title(out, "Perhaps", "too few seconds to be sure, with so many states: record for longer", style)?;
    write_head(out, style)?;
    write_part_lines(out, parts.iter().take(MOST_UNSURE), style)
}

/// Not the states that depend on the other load of the machine, nor those into which samples divide running time.
fn is_unsure(part: &PartChange, floor: Floor) -> bool {
    let is_unlikely = part.change.uncertainty.is_some_and(|found| found.p <= UNLIKELY);
    let is_left_out = matches!(
        part.part,
        Part::State(State::User | State::Kernel | State::Irq | State::Runnable | State::Preempted)
    );
    !part.is_news && is_unlikely && !is_left_out && floor.is_reached(&part.change)
}

/// The largest difference first, voluntary waits last.
fn sorted_parts<'d>(diff: &Diff<'d>, wants: impl Fn(&PartChange) -> bool) -> Vec<&'d PartChange> {
    let mut parts: Vec<&PartChange> = diff.comparison.parts.iter().filter(|part| wants(part)).collect();
    parts.sort_by(|x, y| is_voluntary(x).cmp(&is_voluntary(y)).then(size(y).total_cmp(&size(x))));
    parts
}

fn size(part: &PartChange) -> f64 {
    part.change.difference_ns().abs()
}

fn write_part_lines<'d>(
    out: &mut impl Write,
    parts: impl Iterator<Item = &'d &'d PartChange>,
    style: &Style,
) -> io::Result<()> {
    for part in parts {
        let label =
            part.part.meant().map_or_else(|| part.part.label(), |meant| style.name(&meant.name).into());
        write_line(out, (&group_name(&part.group, style), &label), &part.change, style)?;
    }
    Ok(())
}

/// Whether a part is a voluntary wait.
fn is_voluntary(part: &PartChange) -> bool {
    part.part.class() == Class::Voluntary
}

fn write_stacks(out: &mut impl Write, diff: &Diff<'_>, rows: DiffRows, style: &Style) -> io::Result<()> {
    let headlines = &diff.comparison.headlines;
    if headlines.is_empty() {
        return Ok(());
    }
    write_title(out, "Stacks", ORDER, style)?;
    write_head(out, style)?;
    let most = rows.most(MOST_ROWS);
    for headline in headlines.iter().take(most) {
        let group = diff.comparison.tree.group(headline.node);
        let name = group.map_or_else(|| "all".into(), |group| group_name(group, style));
        write_line(out, (&name, &state_label(diff, headline, style)), &headline.change, style)?;
        write_wrapped(out, ("", 4), &place_words(diff, headline, style), style)?;
    }
    write_left_out(out, headlines.len().saturating_sub(most), style)
}

/// What a stack's waits mean, or the state that a stack ends in; a function's time may be in several.
fn state_label(diff: &Diff<'_>, headline: &Headline, style: &Style) -> String {
    let tree = &diff.comparison.tree;
    match (tree.step(headline.node), tree.meant(headline.node)) {
        (_, Some(meant)) => style.name(&meant.name).into(),
        (Some(Step::State(state)), None) => state.label(),
        _ if headline.is_rest => "other below".into(),
        _ => "all below".into(),
    }
}

fn place_words(diff: &Diff<'_>, headline: &Headline, style: &Style) -> Vec<Word> {
    let Some(site) = &headline.site else { return vec![Word::plain("without a stack")] };
    let mut words = vec![Word::plain("in")];
    words.extend(site_words(site, style));
    let leaf = diff.comparison.tree.step(headline.node);
    if leaf.is_some_and(|step| !matches!(step, Step::State(_))) {
        words.push(Word::plain("and below"));
    }
    words
}

fn write_head(out: &mut impl Write, style: &Style) -> io::Result<()> {
    let numbers = [right("A", 10), right("B", 10), right("change", 11)].concat();
    let head = format!(
        "  {} {}{numbers}",
        left("thread", name_columns(style), style),
        left("state", state_columns(style), style)
    );
    writeln!(out, "{}", style.paint(Ink::Faint, &head))
}

fn name_columns(style: &Style) -> usize {
    if style.columns() < 100 { NARROW } else { NAME }
}

fn state_columns(style: &Style) -> usize {
    if style.columns() < 100 { NARROW } else { STATE }
}

fn write_line(
    out: &mut impl Write,
    (name, state): (&str, &str),
    change: &Change,
    style: &Style,
) -> io::Result<()> {
    let rates = format!("{}{}", right(&rate(change.a_ns, style), 10), right(&rate(change.b_ns, style), 10));
    let ink = if change.difference_ns() > 0.0 { Ink::More } else { Ink::Less };
    let names = format!(
        "  {} {}",
        style.paint(Ink::Strong, &left(name, name_columns(style), style)),
        left(state, state_columns(style), style)
    );
    let margin = margin(change, style);
    let margin = left(&margin, width(&margin).max(if mark(change).is_empty() { 0 } else { 10 }), style);
    writeln!(
        out,
        "{names}{rates}{} {}{}",
        style.paint(ink, &right(&signed(change, style), 11)),
        style.paint(Ink::Faint, &margin),
        style.paint(ink, &format!(" {}", mark(change)).trim_end().replace("  ", " ")),
    )
}

fn write_left_out(out: &mut impl Write, hidden: usize, style: &Style) -> io::Result<()> {
    if hidden == 0 {
        return Ok(());
    }
    let text = format!("{}: --all shows them", counted(hidden as u64, "more difference", "more differences"));
    write_note(out, 2, &text, style)
}

fn write_verdict(out: &mut impl Write, diff: &Diff<'_>, style: &Style) -> io::Result<()> {
    let comparison = diff.comparison;
    writeln!(out)?;
    if !comparison.can_judge {
        let text = format!(
            "A recording is too short to distinguish a difference from noise: each needs {LEAST_WINDOWS} seconds, better 10. \
             --json has the rates."
        );
        return write_wrapped(out, ("", 2), &words(&text, Ink::Warning), style);
    }
    if diff.has_no_news() {
        writeln!(out, "  {}", style.paint(Ink::Strong, "No difference beyond noise."))?;
    }
    let text = format!(
        "Left out: differences within the noise of each recording, of less than {} per second, or of less than",
        time(whole_ns(comparison.floor.ns), style)
    );
    let share = format!("{} %", (comparison.floor.share * 100.0).round());
    let parts = [
        words(&text, Ink::Faint),
        vec![Word { text: share, ink: Ink::Faint }],
        words("of the larger side.", Ink::Faint),
    ];
    write_wrapped(out, ("", 2), &parts.concat(), style)
}

fn words(text: &str, ink: Ink) -> Vec<Word> {
    text.split(' ').map(|word| Word { text: word.into(), ink }).collect()
}

/// The names that another number of threads has on each side.
fn write_numbers(out: &mut impl Write, diff: &Diff<'_>, rows: DiffRows, style: &Style) -> io::Result<()> {
    let mut others: Vec<&Matched> = diff.comparison.matched.iter().collect();
    others.retain(|matched| matched.threads_a != matched.threads_b);
    if others.is_empty() {
        return Ok(());
    }
    others.sort_by_key(|matched| Reverse(matched.threads_a.abs_diff(matched.threads_b)));
    write_title(out, "Threads in other numbers", "the times of threads of one name are added up", style)?;
    let most = rows.most(MOST_THREADS);
    for Matched { group, threads_a, threads_b } in others.iter().take(most) {
        let name = left(&group_name(group, style), 44, style);
        let line = format!("{name}  {threads_a} in A, {threads_b} in B");
        writeln!(out, "  {}", cut(&line, style.columns() - 2, style))?;
    }
    write_left_out(out, others.len().saturating_sub(most), style)
}

fn write_unmatched(out: &mut impl Write, diff: &Diff<'_>, rows: DiffRows, style: &Style) -> io::Result<()> {
    let unmatched = &diff.comparison.unmatched;
    for (label, groups) in [("A", &unmatched.only_a), ("B", &unmatched.only_b)] {
        if groups.is_empty() {
            continue;
        }
        write_title(out, &format!("Threads in {label} only"), "not compared", style)?;
        let most = rows.most(MOST_THREADS);
        for group in groups.iter().take(most) {
            writeln!(out, "  {}", cut(&unmatched_line(group, style), style.columns() - 2, style))?;
        }
        if groups.len() > most {
            write_note(out, 2, &format!("and {} more: --all shows them", groups.len() - most), style)?;
        }
    }
    Ok(())
}

fn unmatched_line(group: &GroupRate, style: &Style) -> String {
    let several = match group.threads {
        1 => String::new(),
        threads => format!(" ({threads} threads)"),
    };
    format!(
        "{}  running {}, late {}",
        left(&(group_name(&group.group, style) + &several), 44, style),
        rate(group.running_ns, style),
        rate(group.late_ns, style)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_analysis::diff::{Group, Uncertainty};
    use wallprof_model::Reason;

    #[test]
    fn unlikely_difference_of_a_wait_is_unsure() {
        let unsure = |part, (a_ms, b_ms): (f64, f64), p, is_news| {
            let group = Group { process: "app".into(), thread: "feed".into() };
            let uncertainty = Some(Uncertainty { margin_ns: 1e6, p });
            let change = Change { a_ns: a_ms * 1e6, b_ns: b_ms * 1e6, uncertainty };
            is_unsure(&PartChange { group, part, change, is_news }, Floor::default())
        };
        let wait = || Part::State(State::Blocked(Reason::Wait));
        assert!(unsure(wait(), (1.0, 779.0), 0.000_42, false));
        assert!(!unsure(wait(), (1.0, 779.0), 0.000_42, true), "it is news");
        assert!(!unsure(wait(), (1.0, 779.0), 0.002, false));
        assert!(!unsure(wait(), (100.0, 103.0), 0.000_42, false), "below the floor");
        assert!(!unsure(Part::State(State::Preempted), (1.0, 779.0), 0.000_42, false));
    }

    #[test]
    fn percentiles_say_by_how_much_they_differ() {
        let line = |share, a_ns, b_ns, p, is_news| {
            let found = PercentileChange { share, a_ns, b_ns, p, is_news };
            let mut out = Vec::new();
            write_percentile(&mut out, "order of shop", &found, &Style::plain()).unwrap();
            String::from_utf8(out).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            line(0.999, 18_200_000, 27_300_000, Some(0.001), true),
            "order of shop P99.9 18.2 ms 27.3 ms +50 %"
        );
        assert_eq!(
            line(0.99, 2_000_000, 1_000_000, Some(0.001), true),
            "order of shop P99 2.00 ms 1.00 ms −50 %"
        );
        assert_eq!(
            line(0.5, 1_000, 1_100, Some(0.4), false),
            "order of shop P50 1.00 µs 1.10 µs +10 % within the noise"
        );
        assert_eq!(
            line(0.9, 1_000, 1_000, None, false),
            "order of shop P90 1.00 µs 1.00 µs +0 % too few to tell"
        );
    }
}
