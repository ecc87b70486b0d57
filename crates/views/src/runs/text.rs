// SPDX-License-Identifier: Apache-2.0
//! Runs for people.

use std::io::{self, Write};

use wallprof_analysis::diff::Group;
use wallprof_analysis::runs::{Comparison, Difference, FALSE_DIFFERENCES, LEAST_RUNS, Run, Unit};

use super::{ComparedGroup, ComparedRuns, FoundRun, key_figures};
use crate::line::{Word, cut, left, right, write_wrapped};
use crate::style::{Ink, Style};
use crate::text::{write_note, write_title};
use crate::units::{counted, time};

/// Figures of a run in the list.
const MOST_FIGURES: usize = 5;
/// Differences within the noise that are shown.
const MOST_WITHIN: usize = 3;
const MOST_NEWS: usize = 30;
const MOST_NAMES: usize = 8;

/// Writes one block for each recording, in the order given.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn runs_text(out: &mut impl Write, runs: &[FoundRun], style: &Style) -> io::Result<()> {
    write_title(out, "Recordings", &counted(runs.len() as u64, "recording", "recordings"), style)?;
    for FoundRun { file, run } in runs {
        writeln!(out)?;
        let head = format!("{}  {}", style.name(file), labels(run, style));
        writeln!(out, "{}", style.paint(Ink::Strong, &cut(head.trim_end(), style.columns(), style)))?;
        let start = run.start.map_or_else(
            || "the time of day is not known".to_owned(),
            |start| format!("{} {}", style.zone.date_at(start), style.zone.time_of_day_at(start, 0)),
        );
        let lasted = time(run.duration_ns, style);
        let threads: usize = run.threads.values().map(|time| time.threads).sum();
        let about = format!("{lasted} from {start}, {}", counted(threads as u64, "thread", "threads"));
        write_wrapped(out, ("  recorded", 12), &words(&about), style)?;
        let mut figures = key_figures(run);
        figures.sort_by(|x, y| y.1.total_cmp(&x.1));
        figures.truncate(MOST_FIGURES);
        let figures: Vec<String> =
            figures.iter().map(|(name, ns)| format!("{name} {}/s", time(ns.round() as u64, style))).collect();
        write_wrapped(out, ("  time", 12), &words(&figures.join(", ")), style)?;
        let mut findings: Vec<_> = run.findings.iter().collect();
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.total_ns));
        for finding in findings.iter().take(2) {
            let title = format!("{}: {}", finding.rule, style.name(&finding.title));
            write_wrapped(out, ("  finding", 12), &words(&title), style)?;
        }
    }
    Ok(())
}

/// Writes what differs between groups of runs.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn compared_text(out: &mut impl Write, compared: &ComparedRuns<'_>, style: &Style) -> io::Result<()> {
    for other in &compared.others {
        write_group(out, compared, other, style)?;
    }
    if compared.left_out > 0 {
        let recordings = counted(compared.left_out as u64, "recording", "recordings");
        writeln!(out)?;
        write_note(
            out,
            0,
            &format!("{recordings} without the label {} left out", style.name(compared.key)),
            style,
        )?;
    }
    Ok(())
}

fn write_group(
    out: &mut impl Write,
    compared: &ComparedRuns<'_>,
    ComparedGroup { group, comparison }: &ComparedGroup<'_>,
    style: &Style,
) -> io::Result<()> {
    let named = |value: &str, runs: usize| {
        format!(
            "{}={} ({})",
            style.name(compared.key),
            style.name(value),
            counted(runs as u64, "run", "runs")
        )
    };
    let title = format!(
        "{} against {}",
        named(group.value, comparison.runs_b),
        named(compared.first.value, comparison.runs_a)
    );
    write_title(out, &title, "", style)?;
    let news: Vec<&Difference> = comparison.figures.iter().filter(|figure| figure.is_news).collect();
    let findings: Vec<_> = comparison.findings.iter().filter(|finding| finding.is_news).collect();
    if !comparison.can_judge {
        let text = format!(
            "Not judged: the noise between equal runs is known from {LEAST_RUNS} runs a group on, better from five."
        );
        write_note(out, 0, &text, style)?;
    } else if news.is_empty() && findings.is_empty() {
        writeln!(out, "no difference beyond the noise between equal runs")?;
    }
    for figure in news.iter().take(MOST_NEWS) {
        write_difference(out, figure, style)?;
    }
    for finding in findings {
        let text = format!(
            "{} in {} of {} runs, before in {} of {}: {}",
            finding.rule,
            finding.b,
            comparison.runs_b,
            finding.a,
            comparison.runs_a,
            style.name(&finding.title)
        );
        write_wrapped(out, ("finding", 9), &words(&text), style)?;
    }
    write_rest(out, comparison, style)
}

/// What is not news, in short: the largest differences, and what was not compared.
fn write_rest(out: &mut impl Write, comparison: &Comparison, style: &Style) -> io::Result<()> {
    let within: Vec<&Difference> = comparison.figures.iter().filter(|figure| !figure.is_news).collect();
    if !within.is_empty() {
        let what = if comparison.can_judge { "Within the noise" } else { "Differences" };
        write_note(out, 0, &format!("{what}, the largest of {}:", within.len()), style)?;
        for figure in within.iter().take(MOST_WITHIN) {
            write_difference(out, figure, style)?;
        }
    }
    if !comparison.has_places {
        let text = "Places are not compared: the runs have unlike --min-stall, or waits that were too many to \
                    be kept one by one.";
        write_note(out, 0, text, style)?;
    }
    for (which, only) in [("first", &comparison.only_a), ("second", &comparison.only_b)] {
        if only.is_empty() {
            continue;
        }
        let shown = only.iter().take(MOST_NAMES);
        let names: Vec<String> = shown
            .map(|group| format!("{}/{}", style.comm(&group.process), style.comm(&group.thread)))
            .collect();
        let more = if only.len() > MOST_NAMES {
            format!(", {} more", only.len() - MOST_NAMES)
        } else {
            String::new()
        };
        write_note(out, 0, &format!("Only in the {which} group: {}{more}", names.join(", ")), style)?;
    }
    if comparison.can_judge {
        let percent = (FALSE_DIFFERENCES * 100.0).round();
        let text = format!(
            "Equal groups differ by this test in at most {percent} % of comparisons (Welch, Fisher; Holm)."
        );
        write_note(out, 0, &text, style)?;
    }
    Ok(())
}

fn write_difference(out: &mut impl Write, difference: &Difference, style: &Style) -> io::Result<()> {
    let value = |ns: f64, spread: f64| {
        let unit = match difference.figure.what.unit() {
            Unit::NsPerSecond => "/s",
            Unit::NsPerWait => "",
        };
        let (ns, spread) = (time(ns.round() as u64, style), time(spread.round() as u64, style));
        format!("{ns}{unit} {}{spread}", style.pick("±", "+-"))
    };
    let percent =
        format!("{:+.0} %", 100.0 * (difference.b - difference.a) / difference.a.max(f64::MIN_POSITIVE));
    let percent = if difference.a == 0.0 { "new".to_owned() } else { percent };
    let ink = if difference.b > difference.a { Ink::More } else { Ink::Less };
    let ink = if difference.is_news { ink } else { Ink::Faint };
    let values = format!(
        "{} {} {}",
        left(&value(difference.a, difference.spread_a), 26, style),
        style.pick("→", "->"),
        left(&value(difference.b, difference.spread_b), 26, style)
    );
    writeln!(out, "{}  {}", style.paint(ink, &right(&percent, 8)), values.trim_end())?;
    let of_group = |group: &Group| format!("{}/{}: ", style.comm(&group.process), style.comm(&group.thread));
    let group = difference.figure.group.as_ref().map(of_group).unwrap_or_default();
    let what = format!("{group}{}", style.name(&difference.figure.what.to_string()));
    write_wrapped(out, ("", 10), &words(&what), style)
}

fn labels(run: &Run, style: &Style) -> String {
    let label = |(key, value): (&String, &String)| format!("{}={}", style.name(key), style.name(value));
    run.labels.iter().map(label).collect::<Vec<_>>().join(" ")
}

fn words(text: &str) -> Vec<Word> {
    text.split(' ').map(Word::plain).collect()
}
