// SPDX-License-Identifier: Apache-2.0
//! The quality of the recording: whether the ledgers add up, how stacks ended, the losses, and the cost of
//! recording.

use std::io::{self, Write};

use wallprof_analysis::Account;

use super::ledgers::Selection;
use super::write_title;
use crate::line::{Word, write_wrapped};
use crate::report::Report;
use crate::style::{Ink, Style};
use crate::units::{bytes, count, counted, percent, time};

const LABEL_COLUMNS: usize = 14;

/// Reasons of losses: more than there are.
const MOST_LOSSES: usize = 64;

pub(super) fn write(
    out: &mut impl Write,
    report: &Report<'_>,
    selection: &Selection,
    style: &Style,
) -> io::Result<()> {
    write_title(out, "This recording", "", style)?;
    let fact = |out: &mut _, label: &str, words: Vec<Word>| {
        write_wrapped(out, (&format!("  {label}"), LABEL_COLUMNS), &words, style)
    };
    fact(out, "ledgers", ledger_words(report, &selection.accounts, style))?;
    if report.info.unwinding.stacks > 0 {
        fact(out, "stacks", unwinding_words(report))?;
    }
    for words in loss_words(report, style) {
        fact(out, "lost", words)?;
    }
    if let Some(words) = folded_words(report, style) {
        fact(out, "folded", words)?;
    }
    fact(out, "own cost", cost_words(report, &selection.accounts, style))
}

/// Time of a thread that its ledger cannot explain: unaccounted, or counted twice.
fn unexplained_ns(account: &Account) -> u64 {
    account
        .inconsistencies
        .iter()
        .fold(account.unaccounted_ns, |sum, found| sum.saturating_add(found.by_ns()))
}

fn ledger_words(report: &Report<'_>, accounts: &[Account], style: &Style) -> Vec<Word> {
    let off: Vec<usize> = (0..accounts.len())
        .filter(|&index| unexplained_ns(&accounts[index]) > accounts[index].wall_ns / 1_000)
        .collect();
    let share = |index: &usize| percent(unexplained_ns(&accounts[*index]), accounts[*index].wall_ns);
    let worst = off.iter().max_by_key(|&&index| (unexplained_ns(&accounts[index]), std::cmp::Reverse(index)));
    let Some(worst) = worst else {
        return vec![Word::plain("add up: less than 0.1 % of any thread's time is unaccounted")];
    };
    let info = &report.threads[*worst].info;
    let text = format!(
        "{} of {} leave more than 0.1 % of their time unexplained; worst: {} {} with {}",
        count(off.len() as u64),
        counted(accounts.len() as u64, "thread", "threads"),
        style.comm(&info.comm),
        info.tid,
        share(worst)
    );
    sentence(&text, Ink::Warning)
}

fn unwinding_words(report: &Report<'_>) -> Vec<Word> {
    let unwinding = &report.info.unwinding;
    let stacks = counted(unwinding.stacks, "user stack", "user stacks");
    let mut text = format!("{stacks}, {} proven complete", percent(unwinding.complete, unwinding.stacks));
    for (reason, number) in unwinding.incomplete.iter().filter(|(_, number)| **number > 0) {
        let what = match reason.as_str() {
            "frame_pointer_end" => "by frame pointers, their end not proven",
            "truncated" => "deeper than is kept",
            "read_failed" => "not readable to the end",
            "no_mappings" => "of processes too new to be known",
            "no_table" => "through files without unwind tables",
            "unsupported_rule" => "by unwind rules that cannot be followed",
            "bad_frame" => "with frames that contradict each other",
            "jit" => "through code made at run time without frame pointers",
            _ => "incomplete for other reasons",
        };
        text.push_str(&format!(", {} {what}", percent(*number, unwinding.stacks)));
    }
    sentence(&text, Ink::Plain)
}

/// One line for each reason for which anything was lost.
fn loss_words(report: &Report<'_>, style: &Style) -> Vec<Vec<Word>> {
    let losses =
        report.info.losses.iter().filter(|(reason, number)| **number > 0 && *reason != "stalls_folded");
    let line = |(reason, number): (&String, &u64)| {
        let what = loss_name(reason).map_or_else(|| style.name(reason).replace('_', " "), String::from);
        sentence(&format!("{} {} {what}", count(*number), style.pick("×", "x")), Ink::Warning)
    };
    let mut lines: Vec<Vec<Word>> = losses.clone().take(MOST_LOSSES).map(line).collect();
    let hidden = losses.count().saturating_sub(MOST_LOSSES) as u64;
    if hidden > 0 {
        let more = counted(hidden, "more reason", "more reasons");
        lines.push(sentence(&format!("{more}: `wallprof report --json` has all"), Ink::Warning));
    }
    lines
}

/// The meaning of the losses of the recorder and of the kernel side.
fn loss_name(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "stalls_ring_full" => "a stall, because the buffer from the kernel was full",
        "thread_ends_ring_full" => "the end of a thread, because the buffer from the kernel was full",
        "stacks_full" => "a stack, because the kernel's table of stacks was full",
        "samples_full" => "a sample, because the kernel's table of samples was full",
        "latency_full" => "a latency, because the kernel's table of latencies was full",
        "interrupts_full" => "an interrupt, because the kernel's table of interrupts was full",
        "guests_full" => {
            "a thread or interrupt on a guarded CPU, because the kernel's table of them was full"
        }
        "threads_no_memory" => "a thread, because the kernel had no memory for it",
        "stack_scratch_busy" => "a stack, because probes were nested too deep",
        "sleeps_without_wakeup" => "a sleep that ended without a wakeup being seen",
        "cpus_came_online" => "a CPU that came online, of which the first second is not sampled",
        "interrupt_depth" => "an interrupt nested too deep",
        "unknown_reference" => "an event about something that was never described",
        _ => return None,
    })
}

fn folded_words(report: &Report<'_>, style: &Style) -> Option<Vec<Word>> {
    let folded = report.folded.iter();
    let (number, total_ns, max_ns) = folded.fold((0u64, 0u64, 0u64), |(number, total_ns, max_ns), one| {
        (number.saturating_add(one.count), total_ns.saturating_add(one.total_ns), max_ns.max(one.max_ns))
    });
    let text = format!(
        "{} only counted, to keep the file small: {} in all, none longer than {}",
        counted(number, "stall", "stalls"),
        time(total_ns, style),
        time(max_ns, style)
    );
    (number > 0).then(|| sentence(&text, Ink::Plain))
}

fn cost_words(report: &Report<'_>, accounts: &[Account], style: &Style) -> Vec<Word> {
    let overhead = &report.info.overhead;
    let process = time(overhead.process_cpu_ns, style);
    let share = percent(overhead.process_cpu_ns, report.duration_ns());
    let mut text = format!("{process} of CPU time, {share} of one CPU");
    if overhead.probe_runs > 0 {
        text.push_str(&format!(
            "; probes {} in {}, {} each",
            time(overhead.probe_ns, style),
            counted(overhead.probe_runs, "run", "runs"),
            time(overhead.probe_ns / overhead.probe_runs, style)
        ));
    }
    if overhead.behind_ns > 0 {
        let waited: u64 = accounts.iter().map(|account| account.run_queue_ns).sum();
        text.push_str(&format!(
            "; threads waited {} for a CPU that wallprof had, {} of their waiting for one",
            time(overhead.behind_ns, style),
            percent(overhead.behind_ns, waited)
        ));
    }
    if overhead.table_bytes > 0 {
        text.push_str(&format!("; unwind tables {}", bytes(overhead.table_bytes)));
    }
    sentence(&text, Ink::Plain)
}

/// A text that may wrap at every space, but not between a number and its unit.
fn sentence(text: &str, ink: Ink) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    for text in text.split(' ') {
        match words.last_mut() {
            Some(number) if is_unit(text) => number.text.extend([" ", text]),
            _ => words.push(Word { text: text.into(), ink }),
        }
    }
    words
}

/// Whether a word stays on one line with the number before it.
fn is_unit(word: &str) -> bool {
    let unit = word.trim_end_matches([',', ';', ':']);
    matches!(unit, "ns" | "µs" | "us" | "ms" | "s" | "h" | "d" | "%" | "×" | "x")
}
