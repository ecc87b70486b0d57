// SPDX-License-Identifier: Apache-2.0
//! `tlb-shootdown`: a thread was interrupted again and again to flush its TLB, because another thread of the
//! process unmapped or protected memory.
//!
//! One finding a thread that lost a fiftieth of its running time, and a hundredth of its wall time, to
//! functions called from other CPUs, when at least half of those were calls of its own process that flush
//! memory maps. All threads of one name must have lost 2 ms, or a thousandth of the recording. The evidence is
//! sums; there are no stalls.
//!
//! False positives: none known. Kernels before 6.4 do not report the caller; `irq-time` reports the
//! interrupts there.

use wallprof_analysis::tally::Tally;
use wallprof_model::profile::{CrossCallRow, InterruptRow};

use super::conclusion::Conclusion;
use super::evidence::Evidence;
use super::interrupted::Interrupted;
use super::limits::{Delays, is_share};
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::wording;

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "tlb-shootdown",
    topic: Some(Topic::CrossCalls),
    excludes: &[],
    cause: Cause::Program,
    evidence: EvidenceKind::Sums,
    find,
};

const ADVICE: &str = "Unmap, protect and give back memory less often or in larger pieces while this thread runs \
    (keep buffers; raise M_TRIM_THRESHOLD and M_MMAP_THRESHOLD), or do it in another process.";

fn find<'e>(evidence: &'e Evidence, _reported: &Reported) -> Vec<Conclusion<'e>> {
    let victims = Interrupted::find(evidence, is_call);
    let victims = victims.into_iter().filter(|victim| conclude(victim, evidence).is_some());
    let conclusions =
        Interrupted::merged(victims).into_iter().filter_map(|victims| conclude(&victims, evidence));
    conclusions.filter(|one| Interrupted::is_worth_saying(&one.delays, evidence)).collect()
}

/// Whether an interrupt's cause is a function that another CPU called.
pub(super) fn is_call(row: &InterruptRow) -> bool {
    matches!(row.name.as_str(), "call_function" | "call_function_single")
}

fn conclude<'e>(victim: &Interrupted<'e>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let delays = Delays::of_interrupts(&victim.rows);
    if !victim.is_significant(&delays) || !is_share(delays.total_ns, 50, victim.on_cpu_ns()) {
        return None;
    }
    let is_own = |call: &&CrossCallRow| victim.is_of_process(call.caller.pid) && flushes_tlb(call);
    let mut callers: Tally<(String, Option<String>)> = Tally::default();
    for call in evidence.cross_calls().iter().filter(is_own) {
        callers.add((call.caller.comm.clone(), call.syscall.clone()), call.count);
    }
    if callers.total() < delays.count / 2 {
        return None;
    }
    let ((caller, syscall), _) = callers.top()?;
    let syscall = syscall.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    let why = format!(", because {}{syscall} changed the memory that they share", wording::shown(caller));
    Some(victim.conclude(delays, &why, ADVICE))
}

/// `flush_tlb_func` and its kin, on x86 and arm.
fn flushes_tlb(call: &CrossCallRow) -> bool {
    call.function.as_deref().is_some_and(|name| name.contains("flush_tlb"))
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, WALL_NS, thread, thread_ref};
    use super::*;
    use wallprof_model::ThreadKey;
    use wallprof_model::event::InterruptKind;
    use wallprof_model::profile::Finding;

    const MS: u64 = 1_000_000;

    fn found(total_ns: u64, calls: &[(&str, u32, u64)]) -> Vec<Finding> {
        let mut fixture = Fixture::new();
        let name = "call_function".to_owned();
        let victim = Some(ThreadKey(1));
        let kind = InterruptKind::Vector;
        fixture.interrupts =
            vec![InterruptRow { cpu: 1, kind, name, victim, count: 1_000, total_ns, max_ns: MS / 10 }];
        for &(function, pid, count) in calls {
            let mut caller = thread_ref(2);
            caller.pid = pid;
            let (function, syscall) = (Some(function.to_owned()), Some("munmap".to_owned()));
            fixture.cross_calls.push(CrossCallRow { caller, syscall, function, count });
        }
        findings(&fixture.evidence())
    }

    #[test]
    fn sibling_and_its_call_are_named() {
        let found = found(600 * MS, &[("flush_tlb_func", 100, 900), ("ipi_mb", 100, 50)]);
        assert_eq!(found.len(), 1, "reported once: {found:#?}");
        assert_eq!(
            found[0].title,
            "thread-1 of app lost 12 % of its running time to 1000 interrupts, 600 ms in all, up to 100 µs, because \
             thread-2 (munmap) changed the memory that they share."
        );
        assert_eq!((found[0].rule.as_str(), found[0].count), (RULE.name, 1_000));
    }

    #[test]
    fn other_functions_and_other_processes_are_irq_time() {
        for calls in [
            &[("ipi_mb", 100, 900)][..],
            &[("flush_tlb_func", 900, 900)],
            &[("flush_tlb_func", 100, 499)],
            &[],
        ] {
            let found = found(600 * MS, calls);
            assert_eq!((found.len(), found[0].rule.as_str()), (1, "irq-time"), "{calls:?}");
        }
    }

    /// A thread that lives for 0.1 ms loses a fiftieth of that to one interrupt.
    #[test]
    fn microseconds_of_short_lives_are_none() {
        let of_lives = |count: u32, total_ns: u64| {
            let mut fixture = Fixture::new();
            let row = |number| InterruptRow {
                cpu: 1,
                kind: InterruptKind::Vector,
                name: "call_function".to_owned(),
                victim: Some(ThreadKey(number)),
                count: 1,
                total_ns,
                max_ns: total_ns,
            };
            fixture.interrupts = (1..=count).map(row).collect();
            fixture.threads = (1..=count)
                .map(|number| {
                    let mut thread = thread(number);
                    thread.info.comm = "engine".into();
                    thread.ledger.wall_ns = total_ns * 50;
                    thread.ledger.on_cpu_ns = total_ns * 40;
                    thread
                })
                .collect();
            let mut caller = thread_ref(2);
            caller.pid = 100;
            let (function, syscall) = (Some("flush_tlb_func".to_owned()), Some("madvise".to_owned()));
            fixture.cross_calls.push(CrossCallRow { caller, syscall, function, count: u64::from(count) });
            findings(&fixture.evidence()).len()
        };
        assert_eq!(of_lives(9, 1_800), 0);
        assert_eq!(of_lives(1_000, 1_800), 0);
        assert_eq!(of_lives(1_200, 1_800), 1, "2.2 ms in all");
    }

    #[test]
    fn a_few_interrupts_are_none() {
        assert_eq!(found(WALL_NS / 100 - 1, &[("flush_tlb_func", 100, 1_000)]), []);
    }
}
