// SPDX-License-Identifier: Apache-2.0
//! Findings: a sentence each, the stalls that it rests on, and an advice.

use std::borrow::Cow;
use std::io::{self, Write};

use wallprof_model::profile::{Cause, Finding};

use super::{write_note, write_title};
use crate::line::{Word, write_wrapped};
use crate::report::Report;
use crate::style::{Ink, Style};
use crate::units::{counted, percent};

/// Findings shown; JSON has all.
const MOST_FINDINGS: usize = 8;
/// Stalls named below one.
const MOST_STALLS: usize = 3;

/// Columns before a sentence, and before the facts about it.
const INDENT: usize = 5;
const FACT_INDENT: usize = 19;

/// Writes nothing where no rule found anything.
pub(super) fn write(out: &mut impl Write, report: &Report<'_>, style: &Style) -> io::Result<()> {
    if report.findings.is_empty() {
        return Ok(());
    }
    write_title(out, "Findings", "`wallprof help findings` says what each rule means", style)?;
    for (rank, finding) in report.findings.iter().take(MOST_FINDINGS).enumerate() {
        write_finding(out, (rank + 1, finding), &share(finding, report), style)?;
    }
    let hidden = report.findings.len().saturating_sub(MOST_FINDINGS) as u64;
    if hidden > 0 {
        let more = counted(hidden, "more finding", "more findings");
        write_note(out, INDENT, &format!("{more}: `wallprof report --json` has all"), style)?;
    }
    match own_share(report) {
        Some(share) => write_note(out, INDENT, &share, style),
        None => Ok(()),
    }
}

/// Among all threads of the machine, wallprof's own are no findings: their share is one line, where it is a
/// hundredth of the CPU time or more.
fn own_share(report: &Report<'_>) -> Option<String> {
    let capacity_ns = report.duration_ns().saturating_mul(report.info.cpus.into());
    let own_ns = report.info.overhead.process_cpu_ns;
    let counts = report.info.is_of_all_threads() && capacity_ns > 0 && own_ns >= capacity_ns / 100;
    counts.then(|| format!("wallprof itself used {} of the CPU time meanwhile", percent(own_ns, capacity_ns)))
}

fn write_finding(
    out: &mut impl Write,
    (rank, finding): (usize, &Finding),
    share: &str,
    style: &Style,
) -> io::Result<()> {
    let title = words(&style.name(&with_units(&finding.title, style)), Ink::Strong);
    write_wrapped(out, (&format!("{rank:>3}  "), INDENT), &title, style)?;
    write_wrapped(out, ("     rule", FACT_INDENT), &[Word::plain(style.name(&finding.rule))], style)?;
    if finding.cause == Cause::Machine {
        let machines = words("the machine, not the recorded program", Ink::Plain);
        write_wrapped(out, ("     cause", FACT_INDENT), &machines, style)?;
    }
    write_wrapped(out, ("     share", FACT_INDENT), &words(share, Ink::Plain), style)?;
    write_wrapped(out, ("     stalls", FACT_INDENT), &evidence(finding), style)?;
    let advice = words(&style.name(&finding.advice), Ink::Plain);
    write_wrapped(out, ("     advice", FACT_INDENT), &advice, style)
}

/// `12.1 % of the time of 4 threads`, `3.2 % of the thread's time`: what it cost them, by which findings are
/// ordered. Where it hardly touched some of them, `67.0 % of the time of 1 of 5 threads`. Of threads that lived for less than the recording together, `0.7 % of the recording (21.9 % of
/// the thread's time)`.
fn share(finding: &Finding, report: &Report<'_>) -> String {
    let theirs =
        report.threads.iter().filter(|thread| finding.most_late.binary_search(&thread.info.key).is_ok());
    let wall_ns = theirs.fold(0u64, |sum, thread| sum.saturating_add(thread.ledger.wall_ns));
    let share = percent(finding.most_late_ns, wall_ns);
    let of_threads = match finding.threads.len() {
        _ if wall_ns == 0 => return String::new(),
        1 => format!("{share} of the thread's time"),
        threads if threads > finding.most_late.len() => {
            format!("{share} of the time of {} of {threads} threads", finding.most_late.len())
        }
        threads => format!("{share} of the time of {threads} threads"),
    };
    let recording_ns = report.duration_ns();
    // A thread that lived as long as the recording may be seen a moment later.
    match wall_ns < recording_ns / 10 * 9 {
        true => format!("{} of the recording ({of_threads})", percent(finding.most_late_ns, recording_ns)),
        false => of_threads,
    }
}

/// Times in a sentence are in `µs`, which not every screen can show.
fn with_units<'t>(title: &'t str, style: &Style) -> Cow<'t, str> {
    if style.unicode {
        return Cow::Borrowed(title);
    }
    let mut parts = title.split(" µs");
    let first = parts.next().unwrap_or_default().to_owned();
    Cow::Owned(parts.fold(first, |text, part| {
        let is_unit = !part.starts_with(|next: char| next.is_alphanumeric() || next == '_');
        text + if is_unit { " us" } else { " µs" } + part
    }))
}

/// `3, 17, 29 and 4 more`: nothing for a finding that rests on sums.
fn evidence(finding: &Finding) -> Vec<Word> {
    let ids: Vec<String> = finding.stalls.iter().take(MOST_STALLS).map(u64::to_string).collect();
    let mut words = words(&ids.join(", "), Ink::Plain);
    let more = finding.count.saturating_sub(ids.len() as u64);
    if more > 0 && !ids.is_empty() {
        words.push(Word::plain(format!("and {more} more")));
    }
    words
}

fn words(text: &str, ink: Ink) -> Vec<Word> {
    text.split(' ').map(|word| Word { text: word.into(), ink }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_analysis::StallDigest;
    use wallprof_model::MonoNs;
    use wallprof_model::profile::{Overhead, RecordingInfo};

    fn finding(title: &str, stalls: Vec<u64>, count: u64) -> Finding {
        Finding {
            rule: "lock-wait".into(),
            cause: Cause::Program,
            title: title.into(),
            advice: "Hold it for less time.".into(),
            threads: Vec::new(),
            most_late: Vec::new(),
            most_late_ns: 1,
            count,
            total_ns: 1,
            max_ns: 1,
            stalls,
        }
    }

    fn written(finding: &Finding) -> String {
        let mut out = Vec::new();
        write_finding(&mut out, (1, finding), "", &Style::plain()).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_finding_is_its_sentence_its_stalls_and_an_advice() {
        assert_eq!(
            written(&finding("engine waited.", vec![3, 17, 29, 40], 147)),
            "  1  engine waited.\n     rule          lock-wait\n     stalls        3, 17, 29 and 144 more\n     \
             advice        Hold it for less time.\n"
        );
        assert!(!written(&finding("t", vec![], 9)).contains("stalls"), "it rests on sums");
        assert!(!written(&finding("t", vec![1], 1)).contains("more"));
    }

    #[test]
    fn the_machine_is_named_where_it_is_the_cause() {
        let found = Finding { cause: Cause::Machine, ..finding("engine waited.", vec![3], 1) };
        let text = written(&found);
        assert!(
            text.contains("lock-wait\n     cause         the machine, not the recorded program\n"),
            "{text}"
        );
        assert!(!written(&finding("t", vec![1], 1)).contains("cause"));
    }

    #[test]
    fn microseconds_are_ascii_where_nothing_else_can_be_shown() {
        let found = finding("engine waited for 50.0 µs in µsleep, up to 870 µs.", vec![1], 1);
        assert!(written(&found).contains("for 50.0 µs in µsleep, up to 870 µs."));
        let mut out = Vec::new();
        write_finding(&mut out, (1, &found), "", &Style { unicode: false, ..Style::plain() }).unwrap();
        let ascii = String::from_utf8(out).unwrap();
        assert!(ascii.is_ascii() && ascii.contains("for 50.0 us in \\u{b5}sleep, up to 870 us."), "{ascii}");
    }

    #[test]
    fn own_share_is_said_where_all_threads_were_recorded() {
        let share = |command: &str, own_ns| {
            let info = RecordingInfo {
                end: MonoNs(1_000),
                cpus: 2,
                command: command.into(),
                overhead: Overhead { process_cpu_ns: own_ns, ..Overhead::default() },
                ..RecordingInfo::default()
            };
            let stalls = StallDigest::new(0);
            own_share(&Report {
                info: &info,
                threads: &[],
                interrupts: &[],
                intrusions: &[],
                folded: &[],
                marks: &[],
                stalls: &stalls,
                findings: &[],
            })
        };
        let said = "wallprof itself used 5.0 % of the CPU time meanwhile";
        assert_eq!(share("all threads", 100).as_deref(), Some(said));
        assert_eq!((share("all threads", 19), share("app", 100)), (None, None));
    }

    #[test]
    fn names_in_it_are_harmless() {
        let hostile = written(&finding("\x1b[31mred\nname waited.", vec![1], 1));
        assert!(hostile.starts_with("  1  \\x1b[31mred\\nname waited.\n"), "{hostile}");
    }
}
