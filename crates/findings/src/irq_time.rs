// SPDX-License-Identifier: Apache-2.0
//! `irq-time`: interrupts took time of a thread while it had the CPU. Reports which ones. Where they are
//! function calls from other CPUs, it also reports the thread that sends most of those.
//!
//! One finding a thread that lost more than a limit of its running time to one class of interrupts, and a
//! hundredth of its wall time. The limit is a third for softirqs, because a thread that sends over a socket
//! runs them in its own name. It is a tenth for the timer, which every CPU has and of which profilers add
//! some, and a fiftieth for all others. All threads of one name must have lost 2 ms, or a thousandth of the
//! recording, too. A single long interrupt is no finding: on a virtual machine each one may be long when the
//! hypervisor does not run the machine (12.7 ms in a timer interrupt were seen).
//!
//! False positives: a thread that sends much over loopback; a profiler that samples ten thousand times a
//! second.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use wallprof_analysis::tally::Tally;
use wallprof_model::event::InterruptKind;
use wallprof_model::profile::InterruptRow;

use super::conclusion::Conclusion;
use super::evidence::Evidence;
use super::interrupted::Interrupted;
use super::limits::{Delays, is_share};
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{tlb_shootdown, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "irq-time",
    topic: None,
    excludes: &[Topic::CrossCalls],
    cause: Cause::Machine,
    evidence: EvidenceKind::Sums,
    find,
};

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let is_reported = |row: &InterruptRow| {
        row.victim.is_some_and(|victim| reported.has_thread(victim)) && tlb_shootdown::is_call(row)
    };
    let victims = Interrupted::find(evidence, |row| !is_reported(row));
    let victims = victims.into_iter().filter(|victim| conclude(victim, evidence).is_some());
    let conclusions =
        Interrupted::merged(victims).into_iter().filter_map(|victims| conclude(&victims, evidence));
    conclusions.filter(|one| Interrupted::is_worth_saying(&one.delays, evidence)).collect()
}

fn conclude<'e>(victim: &Interrupted<'e>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let rows: Vec<&'e InterruptRow> = classes(&victim.rows)
        .into_iter()
        .filter(|(nth, rows)| is_share(Delays::of_interrupts(rows).total_ns, *nth, victim.on_cpu_ns()))
        .flat_map(|(_, rows)| rows)
        .collect();
    let delays = Delays::of_interrupts(&rows);
    let why = format!(": {}{}", causes(&rows), callers(&rows, evidence));
    if !victim.is_significant(&delays) {
        return None;
    }
    let mut conclusion = victim.conclude(delays, &why, advice(&rows));
    conclusion.interrupts = rows;
    Some(conclusion)
}

/// Rows by which part of the running time, one n-th, their class may take.
fn classes<'r>(rows: &[&'r InterruptRow]) -> BTreeMap<u64, Vec<&'r InterruptRow>> {
    let mut classes: BTreeMap<u64, Vec<&InterruptRow>> = BTreeMap::new();
    for row in rows {
        classes.entry(class(row)).or_default().push(row);
    }
    classes
}

fn class(row: &InterruptRow) -> u64 {
    match (row.kind, row.name.as_str()) {
        (InterruptKind::Softirq, _) => 3,
        (_, "local_timer") => 10,
        _ => 50,
    }
}

/// Causes over all CPUs, most time first.
fn ranked<'r>(rows: &[&'r InterruptRow]) -> Vec<(&'r str, u64)> {
    let mut causes: BTreeMap<&str, u64> = BTreeMap::new();
    for row in rows {
        let sum = causes.entry(&row.name).or_default();
        *sum = sum.saturating_add(row.total_ns);
    }
    let mut causes: Vec<_> = causes.into_iter().collect();
    causes.sort_by_key(|&(name, ns)| (Reverse(ns), name));
    causes
}

fn causes(rows: &[&InterruptRow]) -> String {
    let names = ranked(rows).into_iter().take(2);
    names.map(|(name, ns)| format!("{name} {}", wording::time(ns))).collect::<Vec<_>>().join(", ")
}

/// `; of the calls on other CPUs kworker/0:1 made 80 % (do_sync_core)`; nothing for other interrupts.
fn callers(rows: &[&InterruptRow], evidence: &Evidence) -> String {
    if !rows.iter().any(|row| tlb_shootdown::is_call(row)) {
        return String::new();
    }
    let mut callers: Tally<(String, Option<String>)> = Tally::default();
    for call in evidence.cross_calls() {
        callers.add((call.caller.comm.clone(), call.function.clone()), call.count);
    }
    let Some(((caller, function), count)) = callers.top() else { return String::new() };
    let function = function.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    let share = wording::percent(count, callers.total());
    format!("; of all calls on other CPUs {} made {share}{function}", wording::shown(caller))
}

fn advice(rows: &[&InterruptRow]) -> &'static str {
    match ranked(rows).first().map_or("", |&(name, _)| name) {
        "call_function" | "call_function_single" | "tlb_flush" => {
            "Other CPUs interrupt this one: threads of the same process that unmap or protect memory (munmap, \
             mprotect, madvise) do, as do others' requests; keep such calls off the hot phase or give the memory a \
             process of its own."
        }
        "local_timer" => "Isolate the CPU from the timer (nohz_full), or move the thread to one that is.",
        _ => {
            "Move the interrupt to another CPU (/proc/irq/N/smp_affinity, receive queues), or the thread to one \
             without it."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, WALL_NS, untracked};
    use super::*;
    use wallprof_model::ThreadKey;
    use wallprof_model::profile::{CrossCallRow, Finding};

    const MS: u64 = 1_000_000;

    fn row(kind: InterruptKind, name: &str, total_ns: u64, max_ns: u64) -> InterruptRow {
        let victim = Some(ThreadKey(1));
        InterruptRow { cpu: 1, kind, name: name.into(), victim, count: 1_000, total_ns, max_ns }
    }

    fn found(rows: Vec<InterruptRow>) -> Vec<Finding> {
        let mut fixture = Fixture::new();
        fixture.interrupts = rows;
        findings(&fixture.evidence())
    }

    #[test]
    fn title_names_the_interrupts_and_their_time() {
        let flood = row(InterruptKind::Vector, "call_function", 600 * MS, MS / 10);
        let findings = found(vec![flood, row(InterruptKind::Vector, "local_timer", 10 * MS, MS / 10)]);
        assert_eq!(findings.len(), 1);
        assert_eq!(
            findings[0].title,
            "thread-1 of app lost 12 % of its running time to 1000 interrupts, 600 ms in all, up to 100 µs: \
             call_function 600 ms."
        );
        assert!(findings[0].advice.contains("munmap"), "{}", findings[0].advice);
        assert_eq!((findings[0].threads.as_slice(), findings[0].stalls.len()), (&[ThreadKey(1)][..], 0));
    }

    #[test]
    fn title_names_the_caller_on_other_cpus() {
        let mut fixture = Fixture::new();
        fixture.interrupts = vec![row(InterruptKind::Vector, "call_function", 600 * MS, MS / 10)];
        for (comm, count) in [("tuned", 300), ("other", 100)] {
            let (caller, function) = (untracked(comm), Some("do_sync_core".to_owned()));
            fixture.cross_calls.push(CrossCallRow { caller, syscall: None, function, count });
        }
        let found = findings(&fixture.evidence());
        assert_eq!(found.len(), 1);
        assert!(
            found[0].title.ends_with(
                ": call_function 600 ms; of all calls on other CPUs tuned made 75 % (do_sync_core)."
            ),
            "{}",
            found[0].title
        );
    }

    #[test]
    fn each_class_has_its_limit() {
        let on_cpu_ns = WALL_NS / 2;
        let timer = |total| vec![row(InterruptKind::Vector, "local_timer", total, MS / 10)];
        assert_eq!(found(timer(on_cpu_ns / 10 - 1)), []);
        assert_eq!(found(timer(on_cpu_ns / 10)).len(), 1);
        let calls = |total| vec![row(InterruptKind::Vector, "call_function", total, MS / 10)];
        assert_eq!(found(calls(on_cpu_ns / 50 - 1)), []);
        assert_eq!(found(calls(on_cpu_ns / 50)).len(), 1);
        assert_eq!(found(vec![row(InterruptKind::Softirq, "net_rx", on_cpu_ns / 4, MS / 10)]), []);
        assert_eq!(found(vec![row(InterruptKind::Softirq, "net_rx", on_cpu_ns / 2, MS / 10)]).len(), 1);
    }

    #[test]
    fn one_long_interrupt_and_one_without_a_victim_are_none() {
        assert_eq!(found(vec![row(InterruptKind::Vector, "local_timer", 13 * MS, 13 * MS)]), []);
        let flood = row(InterruptKind::Irq, "nvme0q1", WALL_NS / 10, MS / 10);
        assert!(found(vec![flood.clone()])[0].advice.contains("smp_affinity"));
        assert_eq!(found(vec![InterruptRow { victim: None, ..flood }]), []);
    }
}
