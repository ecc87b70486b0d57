//! `irq-time`: interrupts took a thread's time while it had the CPU. Says which.
//!
//! One finding a thread that lost a tenth of its running time to hardware interrupts, or a third to softirqs,
//! and a hundredth of its wall time; or one that lost 10 ms to a single interrupt. Softirqs have the higher limit
//! because a thread's own sending over a socket runs them in its name.
//!
//! False positives: a thread that sends much over loopback; a machine whose hypervisor stopped it in an interrupt.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use wallprof_model::ThreadKey;
use wallprof_model::event::InterruptKind;
use wallprof_model::profile::InterruptRow;

use super::conclusion::Conclusion;
use super::evidence::{Evidence, ThreadTotals};
use super::limits::{Toll, is_share};
use super::wording;

pub(super) const RULE: &str = "irq-time";

pub(super) fn find(evidence: &Evidence) -> Vec<Conclusion<'_>> {
    let mut rows: BTreeMap<ThreadKey, Vec<&InterruptRow>> = BTreeMap::new();
    for row in evidence.interrupts() {
        if let Some(victim) = row.victim {
            rows.entry(victim).or_default().push(row);
        }
    }
    let threads = evidence.threads();
    threads.filter_map(|(key, thread)| conclude(key, thread, rows.get(&key)?, evidence)).collect()
}

fn conclude<'e>(
    key: ThreadKey,
    thread: &ThreadTotals,
    rows: &[&InterruptRow],
    evidence: &Evidence,
) -> Option<Conclusion<'e>> {
    let toll = toll(rows.iter().copied());
    let hard = toll_of(rows, |kind| kind != InterruptKind::Softirq);
    let soft = toll_of(rows, |kind| kind == InterruptKind::Softirq);
    let many = is_share(hard.total_ns, 10, thread.on_cpu_ns) || is_share(soft.total_ns, 3, thread.on_cpu_ns);
    let heavy = many && toll.total_ns > 0 && is_share(toll.total_ns, 100, thread.wall_ns);
    if !heavy && toll.max_ns < evidence.unit_ns().saturating_mul(100) {
        return None;
    }
    let of = if thread.process == thread.comm { String::new() } else { format!(" of {}", thread.process) };
    let title = format!(
        "{}{of} lost {} of its running time to {} interrupts, {} in all, up to {}: {}.",
        wording::shown(&thread.comm),
        wording::percent(toll.total_ns, thread.on_cpu_ns),
        toll.count,
        wording::time(toll.total_ns),
        wording::time(toll.max_ns),
        causes(rows)
    );
    let advice = advice(rows).into();
    Some(Conclusion { rule: RULE, title, advice, threads: vec![key], toll, cases: Vec::new() })
}

fn toll<'r>(rows: impl Iterator<Item = &'r InterruptRow>) -> Toll {
    rows.fold(Toll::default(), |toll, row| Toll {
        count: toll.count.saturating_add(row.count),
        total_ns: toll.total_ns.saturating_add(row.total_ns),
        max_ns: toll.max_ns.max(row.max_ns),
    })
}

fn toll_of(rows: &[&InterruptRow], of: impl Fn(InterruptKind) -> bool) -> Toll {
    toll(rows.iter().copied().filter(|row| of(row.kind)))
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
    use super::super::fixture::{Play, WALL_NS};
    use super::*;
    use wallprof_model::profile::Finding;

    const MS: u64 = 1_000_000;

    fn row(kind: InterruptKind, name: &str, total_ns: u64, max_ns: u64) -> InterruptRow {
        let victim = Some(ThreadKey(1));
        InterruptRow { cpu: 1, kind, name: name.into(), victim, count: 1_000, total_ns, max_ns }
    }

    fn found(rows: Vec<InterruptRow>) -> Vec<Finding> {
        let mut play = Play::new();
        play.interrupts = rows;
        findings(&play.evidence())
    }

    #[test]
    fn says_which_interrupts_and_how_much() {
        let flood = row(InterruptKind::Vector, "call_function", 600 * MS, MS / 10);
        let findings = found(vec![flood, row(InterruptKind::Vector, "local_timer", 10 * MS, MS / 10)]);
        assert_eq!(findings.len(), 1);
        assert_eq!(
            findings[0].title,
            "thread-1 of app lost 12 % of its running time to 2000 interrupts, 610 ms in all, up to 0.10 ms: \
             call_function 600 ms, local_timer 10.0 ms."
        );
        assert!(findings[0].advice.contains("munmap"), "{}", findings[0].advice);
        assert_eq!((findings[0].threads.as_slice(), findings[0].stalls.len()), (&[ThreadKey(1)][..], 0));
    }

    #[test]
    fn what_every_cpu_has_is_none_and_softirqs_have_their_own_limit() {
        let on_cpu_ns = WALL_NS / 2;
        let timer = |total| vec![row(InterruptKind::Vector, "local_timer", total, MS / 10)];
        assert_eq!(found(timer(on_cpu_ns / 10 - 1)), []);
        assert_eq!(found(timer(on_cpu_ns / 10)).len(), 1);
        assert_eq!(found(vec![row(InterruptKind::Softirq, "net_rx", on_cpu_ns / 4, MS / 10)]), []);
        assert_eq!(found(vec![row(InterruptKind::Softirq, "net_rx", on_cpu_ns / 2, MS / 10)]).len(), 1);
    }

    #[test]
    fn one_very_long_interrupt_is_enough_and_nobodys_is_none() {
        let long = row(InterruptKind::Irq, "nvme0q1", 11 * MS, 10 * MS);
        assert!(found(vec![long.clone()])[0].advice.contains("smp_affinity"));
        assert_eq!(found(vec![InterruptRow { victim: None, ..long }]), []);
    }
}
