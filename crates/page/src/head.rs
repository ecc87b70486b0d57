// SPDX-License-Identifier: Apache-2.0
//! The part of the data that is JSON: the recording as a whole, findings, names, and what is not on the page.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;
use wallprof_analysis::interest::{self, Class};
use wallprof_analysis::spans::KindTail;
use wallprof_analysis::text_from_ns;
use wallprof_analysis::totals::accounts;
use wallprof_model::profile::{Finding, FoldedStalls, RecordingInfo, Thread};
use wallprof_model::{Labels, Loss, MonoNs, StallReason, State, ThreadKey};
use wallprof_views::escape;

use crate::columns::Columns;
use crate::counters::{self, CounterHead};
use crate::names::Names;
use crate::spans::{self, KindHead};
use crate::stalls;

/// Bits of the column `thread_flags`.
const IDLE: u64 = 1;
const KERNEL_THREAD: u64 = 2;

#[derive(Serialize)]
pub struct Head<'a> {
    /// The version of the data's form.
    page: u32,
    version: &'static str,
    recording: RecordingHead<'a>,
    states: Vec<StateHead>,
    reasons: Vec<ReasonHead>,
    findings: Vec<FindingHead>,
    kinds: Vec<KindHead>,
    kinds_left_out: usize,
    counters: Vec<CounterHead>,
    /// Name, number and meaning of each.
    losses: Vec<(&'a str, u64, &'a str)>,
    unwinding: UnwindingHead<'a>,
    overhead: OverheadHead,
    left_out: Vec<String>,
    ledger_seconds: u64,
    weight_seconds: u64,
    strings: &'a [String],
}

/// Times of day in two numbers, because JavaScript's are not exact for nanoseconds since the epoch.
#[derive(Serialize)]
struct RecordingHead<'a> {
    command: String,
    hostname: String,
    kernel: String,
    arch: String,
    cpus: u32,
    source: &'a str,
    labels: &'a Labels,
    min_stall_ns: u64,
    ended_cleanly: bool,
    duration_ns: u64,
    /// Offset from the start, and the time of day there: milliseconds since the epoch and nanoseconds.
    anchors: Vec<(u64, u64, u64)>,
    is_sampled: bool,
}

#[derive(Serialize)]
struct StateHead {
    code: u8,
    name: String,
    class: &'static str,
}

#[derive(Serialize)]
struct ReasonHead {
    code: u8,
    name: &'static str,
    /// The state that time of this reason is in.
    state: u8,
}

#[derive(Serialize)]
struct FindingHead {
    rule: String,
    title: String,
    advice: String,
    threads: Vec<u32>,
    count: u64,
    total_ns: u64,
    max_ns: u64,
    /// Those that are on the page.
    stalls: Vec<u64>,
}

#[derive(Serialize)]
struct UnwindingHead<'a> {
    stacks: u64,
    complete: u64,
    incomplete: &'a BTreeMap<String, u64>,
}

#[derive(Serialize)]
struct OverheadHead {
    process_cpu_ns: u64,
    probe_ns: u64,
    probe_runs: u64,
}

/// What the recording has and the page has not.
pub struct LeftOut<'a> {
    pub stalls: stalls::LeftOut,
    pub counters: counters::LeftOut,
    pub folded: &'a [FoldedStalls],
    pub cut_stacks: u64,
    pub cut_names: u64,
    /// The recording has the calls of traced threads.
    pub calls: bool,
    pub ledger_seconds: u64,
    pub weight_seconds: u64,
}

impl<'a> Head<'a> {
    pub fn new(
        info: &'a RecordingInfo,
        (threads, index): (&[Thread], &HashMap<ThreadKey, u32>),
        (findings, (kinds, more_kinds)): (&[Finding], (&[KindTail], usize)),
        on_page: &HashSet<u64>,
        counters: Vec<CounterHead>,
        left_out: &LeftOut<'_>,
        names: &'a Names,
    ) -> Self {
        let states = (0..=u8::MAX).filter_map(State::from_code);
        let finding = |finding: &Finding| FindingHead {
            rule: escape(&finding.rule).into_owned(),
            title: escape(&finding.title).into_owned(),
            advice: escape(&finding.advice).into_owned(),
            threads: finding.threads.iter().filter_map(|key| index.get(key).copied()).collect(),
            count: finding.count,
            total_ns: finding.total_ns,
            max_ns: finding.max_ns,
            stalls: finding.stalls.iter().copied().filter(|id| on_page.contains(id)).collect(),
        };
        Head {
            page: 1,
            version: env!("CARGO_PKG_VERSION"),
            recording: RecordingHead::new(info, threads),
            states: states.map(StateHead::new).collect(),
            reasons: StallReason::ALL.iter().map(|reason| ReasonHead::new(*reason)).collect(),
            findings: findings.iter().map(finding).collect(),
            kinds: spans::heads(kinds, info, index),
            kinds_left_out: more_kinds + kinds.len().saturating_sub(spans::MOST_KINDS),
            counters,
            losses: info.losses.iter().map(|(name, count)| (&**name, *count, meaning_of(name))).collect(),
            unwinding: UnwindingHead {
                stacks: info.unwinding.stacks,
                complete: info.unwinding.complete,
                incomplete: &info.unwinding.incomplete,
            },
            overhead: OverheadHead {
                process_cpu_ns: info.overhead.process_cpu_ns,
                probe_ns: info.overhead.probe_ns,
                probe_runs: info.overhead.probe_runs,
            },
            left_out: sentences(left_out),
            ledger_seconds: left_out.ledger_seconds,
            weight_seconds: left_out.weight_seconds,
            strings: names.texts(),
        }
    }
}

fn meaning_of(loss: &str) -> &str {
    Loss::from_name(loss).map_or(loss, |known| known.meaning())
}

impl<'a> RecordingHead<'a> {
    fn new(info: &'a RecordingInfo, threads: &[Thread]) -> Self {
        let at = |mono: MonoNs| {
            let epoch = info.clock.epoch_from_mono(mono).0;
            (mono.0.saturating_sub(info.start.0), epoch / 1_000_000, epoch % 1_000_000)
        };
        let later =
            info.clock.anchors().iter().filter(|anchor| anchor.mono > info.start && anchor.mono < info.end);
        let anchors = match info.clock.anchors().is_empty() {
            true => Vec::new(),
            false => [at(info.start)].into_iter().chain(later.map(|anchor| at(anchor.mono))).collect(),
        };
        RecordingHead {
            command: escape(&info.command).into_owned(),
            hostname: escape(&info.hostname).into_owned(),
            kernel: escape(&info.kernel).into_owned(),
            arch: escape(&info.arch).into_owned(),
            cpus: info.cpus,
            source: &info.source,
            labels: &info.labels,
            min_stall_ns: info.min_stall_ns,
            ended_cleanly: info.ended_cleanly,
            duration_ns: info.end.0.saturating_sub(info.start.0),
            anchors,
            is_sampled: threads.iter().all(|thread| thread.ledger.cpu_ns == 0),
        }
    }
}

impl StateHead {
    fn new(state: State) -> Self {
        let class = match Class::of(state) {
            Class::Running => "running",
            Class::Late => "late",
            Class::Peer => "peer",
            Class::Voluntary => "voluntary",
        };
        StateHead { code: state.code(), name: state.label(), class }
    }
}

impl ReasonHead {
    fn new(reason: StallReason) -> Self {
        let state = match reason {
            StallReason::Preempted => State::Preempted,
            StallReason::Runnable => State::Runnable,
            StallReason::Minor => State::FaultMinor,
            StallReason::Major => State::FaultMajor,
            StallReason::Blocked(reason) => State::Blocked(reason),
        };
        ReasonHead { code: reason.code(), name: reason.name(), state: state.code() }
    }
}

pub fn write_threads(info: &RecordingInfo, threads: &[Thread], names: &mut Names, columns: &mut Columns) {
    let all = || threads.iter();
    let offset = |at: MonoNs| at.0.saturating_sub(info.start.0).cast_signed();
    let flags = all().zip(accounts(threads)).map(|(thread, account)| {
        let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
        bit(interest::is_idle(&account), IDLE) | bit(thread.info.kernel_thread, KERNEL_THREAD)
    });
    columns.unsigned("thread_flags", flags);
    columns.deltas("thread_id", all().map(|thread| i64::from(thread.info.key.0)));
    columns.deltas("thread_pid", all().map(|thread| i64::from(thread.info.pid)));
    columns.deltas("thread_tid", all().map(|thread| i64::from(thread.info.tid)));
    columns.deltas("thread_start", all().map(|thread| offset(thread.start)));
    columns.deltas("thread_end", all().map(|thread| offset(thread.end)));
    columns.unsigned("thread_comm", all().map(|thread| u64::from(names.number(&thread.info.comm))));
    columns.unsigned("thread_process", all().map(|thread| u64::from(names.number(&thread.info.process))));
    let cgroups = all().map(|thread| u64::from(names.optional(thread.info.cgroup.as_deref())));
    columns.unsigned("thread_cgroup", cgroups);
}

/// What a reader should know about what is missing.
fn sentences(left_out: &LeftOut<'_>) -> Vec<String> {
    let mut sentences = Vec::new();
    let stalls = left_out.stalls;
    if stalls.others + stalls.voluntary > 0 {
        let longest = text_from_ns(stalls.longest_ns, "µs");
        sentences.push(format!(
            "Single stalls: {} and {} voluntary waits of the recording, the longest of {longest}, are not on this page. \
             Their time is in the sums. `wallprof stalls --each --all` prints them.",
            counted(stalls.others, "stall"),
            stalls.voluntary
        ));
    }
    if left_out.calls {
        sentences.push(
            "Calls: the functions that Intel PT traced, their counts and times are not on this page. \
             `wallprof flame --view calls` draws them."
                .to_owned(),
        );
    }
    let folded: u64 = left_out.folded.iter().map(|folded| folded.count).fold(0, u64::saturating_add);
    if folded > 0 {
        sentences.push(format!(
            "The size limit of the recording folded {} into sums: they have no place in time.",
            counted(folded, "short wait")
        ));
    }
    if left_out.ledger_seconds > 1 {
        sentences.push(format!(
            "The time between single stalls is known by {} s: there are too many threads or seconds for less.",
            left_out.ledger_seconds
        ));
    }
    if left_out.weight_seconds > 1 {
        sentences.push(format!(
            "Stacks of running time and short waits are added up over {} s.",
            left_out.weight_seconds
        ));
    }
    if left_out.counters.every > 1 {
        sentences.push(format!("Of the values of counters one in {} is shown.", left_out.counters.every));
    }
    if left_out.counters.marks > 0 {
        sentences.push(format!(
            "The last {} are not on this page.",
            counted(left_out.counters.marks as u64, "mark")
        ));
    }
    if left_out.cut_stacks > 0 {
        sentences.push(format!("{} cut at the inner end.", are(left_out.cut_stacks, "stack")));
    }
    if left_out.cut_names > 0 {
        sentences.push(format!("{} cut after 1,000 characters.", are(left_out.cut_names, "name")));
    }
    sentences
}

/// `1 stall`, `2 stalls`.
fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// `1 stall is`, `2 stalls are`.
fn are(count: u64, noun: &str) -> String {
    format!("{} {}", counted(count, noun), if count == 1 { "is" } else { "are" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_missing_is_said() {
        let mut left_out = LeftOut {
            stalls: stalls::LeftOut::default(),
            counters: counters::LeftOut { every: 1, marks: 0 },
            folded: &[],
            cut_stacks: 0,
            cut_names: 0,
            ledger_seconds: 1,
            weight_seconds: 1,
            calls: false,
        };
        assert!(sentences(&left_out).is_empty());
        left_out.stalls = stalls::LeftOut { voluntary: 7, others: 1, longest_ns: 2_500_000 };
        left_out.counters = counters::LeftOut { every: 3, marks: 2 };
        (left_out.cut_stacks, left_out.cut_names) = (1, 2);
        (left_out.ledger_seconds, left_out.weight_seconds) = (4, 8);
        let sentences = sentences(&left_out);
        assert!(sentences[0].starts_with("Single stalls: 1 stall and 7 voluntary waits"), "{sentences:?}");
        assert!(sentences[0].contains("2.50 ms"), "{sentences:?}");
        assert_eq!(sentences.len(), 7);
        assert_eq!(
            sentences[5..],
            ["1 stack is cut at the inner end.", "2 names are cut after 1,000 characters."]
        );
    }

    #[test]
    fn every_state_has_a_colour() {
        let colours = include_str!("../web/colours.js");
        for state in (0..=u8::MAX).filter_map(State::from_code) {
            let label = state.label();
            let is_listed =
                [format!("  {label}: \"#"), format!("  \"{label}\": \"#"), format!("\"{label}\"")]
                    .iter()
                    .any(|text| colours.contains(text));
            assert!(is_listed, "web/colours.js has no colour of {label}");
        }
    }

    #[test]
    fn each_reason_has_the_state_of_its_time() {
        for reason in StallReason::ALL {
            let head = ReasonHead::new(reason);
            let state = State::from_code(head.state).unwrap();
            assert!(state.label().ends_with(head.name), "{} {}", state.label(), head.name);
        }
    }
}
