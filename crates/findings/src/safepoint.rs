// SPDX-License-Identifier: Apache-2.0
//! The thread that stops last for a safepoint. Compiled loops may have no safepoint poll: a thread in such a loop stops
//! when the loop has ended. All threads that wait for the VM operation, or for the end of the safepoint, wait for this
//! thread first.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use wallprof_analysis::tally::Tally;
use wallprof_meaning::short_name;
use wallprof_model::{MonoNs, StallReason, ThreadKey};

use super::callers::Function;
use super::case::Case;
use super::evidence::Evidence;
use super::limits::is_share;
use super::{known, lock, wording};

/// The function of `libjvm.so` in which the virtual machine's thread looks again and again whether all have stopped.
const STOPS: &str = "SafepointSynchronize::synchronize_threads";

/// The meanings of waits that begin with that.
const MEANINGS: [&str; 3] = ["safepoint", "VM operation", "garbage collection"];

/// `: VM Thread waited until report stopped, which ran in T.sumTable for 97 % of that time`. `None`: it waited for
/// something else for half of the time, or no thread ran for half of it.
pub(super) fn late_thread(cases: &[&Case], evidence: &Evidence) -> Option<String> {
    let is_one = |case: &Case| case.said().is_some_and(|said| MEANINGS.contains(&said));
    let first = cases.first().filter(|_| cases.iter().all(|case| is_one(case)))?;
    let (mut stops, mut stops_ns) = (BTreeMap::new(), 0u64);
    let mut machines: Tally<ThreadKey> = Tally::default();
    for held in lock::held(cases, evidence) {
        for absence in evidence.during(held.holder, held.since, held.released).filter(|case| is_stop(case)) {
            let ns = absence.overlap_ns(held.since, held.released);
            machines.add(held.holder, ns);
            stops_ns = stops_ns.saturating_add(ns);
            stops.insert(absence.id, (absence.start, absence.end));
        }
    }
    let machine = evidence.thread(*machines.top()?.0)?;
    let whole_ns =
        stops.values().fold(0u64, |sum, (from, to)| sum.saturating_add(to.0.saturating_sub(from.0)));
    if !known::is_most(stops_ns, known::waited_ns(cases)) {
        return None;
    }
    let waiters: HashSet<ThreadKey> = cases.iter().map(|case| case.thread).collect();
    let others = evidence.threads_of(first.pid).into_iter().filter(|thread| !waiters.contains(thread));
    let ran = others.filter_map(|key| {
        let (ran_ns, thread) = (ran_ns(key, &stops, evidence), evidence.thread(key)?);
        // Short waits, and idle ones, are not kept one by one.
        (thread.on_cpu_ns >= ran_ns).then_some((ran_ns, key, thread))
    });
    let (ran_ns, late, thread) = ran.max_by_key(|(ran_ns, ..)| *ran_ns)?;
    if !is_share(ran_ns, 2, whole_ns) {
        return None;
    }
    let place =
        function(late, evidence).map(|function| format!(" in {}", short_name(&function))).unwrap_or_default();
    Some(format!(
        ": {} waited until {} stopped, which ran{place} for {} of that time",
        wording::shown(&machine.comm),
        wording::shown(&thread.comm),
        wording::percent(ran_ns, whole_ns)
    ))
}

fn is_stop(case: &Case) -> bool {
    let is_one = |function: &Function| function.symbol().is_some_and(|symbol| symbol.starts_with(STOPS));
    case.callers.as_deref().is_some_and(|callers| callers.functions().any(is_one))
}

/// For how long a thread was there and not off the CPU in these times, ns.
fn ran_ns(thread: ThreadKey, times: &BTreeMap<u64, (MonoNs, MonoNs)>, evidence: &Evidence) -> u64 {
    let one = |&(from, to): &(MonoNs, MonoNs)| {
        let (from, to) = evidence.lived(thread, from, to);
        let away_ns = evidence.during(thread, from, to).map(|case| case.overlap_ns(from, to)).sum::<u64>();
        to.0.saturating_sub(from.0).saturating_sub(away_ns)
    };
    times.values().map(one).fold(0, u64::saturating_add)
}

/// Where it ran: the function of most stacks with which it lost its CPU, and of samples late in its busy periods.
fn function(thread: ThreadKey, evidence: &Evidence) -> Option<Arc<str>> {
    let mut functions: Tally<Arc<str>> = Tally::default();
    for case in evidence.cases().filter(|case| case.thread == thread && case.reason == StallReason::Preempted)
    {
        if let Some(function) = case.site.as_ref().and_then(|site| site.functions.first()) {
            functions.add(Arc::clone(function), 1);
        }
    }
    for period in evidence.periods().filter(|period| period.thread == thread) {
        let innermost =
            period.samples.iter().filter_map(|(callers, _)| callers.functions().last()?.symbol().cloned());
        innermost.for_each(|function| functions.add(function, 1));
    }
    let (function, count) = functions.top()?;
    is_share(count, 2, functions.total()).then(|| Arc::clone(function))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::fixture::{Fixture, at, case, stack, woken_by};
    use wallprof_model::profile::StallRecord;
    use wallprof_model::{Meaning, MeaningSource, Reason, StallReason};

    const MS: u64 = 1_000_000;

    /// A thread waits for 100 ms for thread 2, which sleeps below this function for most of it. Thread 3 has `away` ms of
    /// waits in that time, and loses its CPU at the end.
    fn title(function: &str, away_ms: u64) -> String {
        let (software, source) = (Some("hotspot".into()), MeaningSource::Stack);
        let meaning = Meaning { name: "safepoint".into(), software, idle: false, holder: true, source };
        let wait = StallRecord {
            voluntary: false,
            meaning: Some(Arc::new(meaning)),
            user: Some(stack(&["SafepointSynchronize::block", "take_order", "run"])),
            waker: Some(woken_by(2, "VMThread::wait_for_operation")),
            ..case(1, 1, StallReason::Blocked(Reason::Wait), 100 * MS)
        };
        let sleep = |id: u64| {
            let user = Some(stack(&["nanosleep", "os::naked_short_sleep", function, "VMThread::run"]));
            let sleep = case(10 + id, 2, StallReason::Blocked(Reason::Sleep), 9 * MS);
            at(id * 10 * MS, StallRecord { user, voluntary: true, ..sleep })
        };
        let waits = case(2, 3, StallReason::Blocked(Reason::Disk), away_ms * MS);
        let user = Some(stack(&["sum_table", "run"]));
        let lost = at(99 * MS, StallRecord { user, ..case(3, 3, StallReason::Preempted, MS) });
        let mut fixture = Fixture::new();
        fixture.threads.iter_mut().for_each(|thread| thread.ledger.on_cpu_ns = 0);
        fixture.threads[2].ledger.on_cpu_ns = 200 * MS;
        let stalls = [at(0, wait), at(0, waits), lost];
        stalls.into_iter().chain((0..10).map(sleep)).for_each(|stall| fixture.stall(stall));
        let found = super::super::findings(&fixture.evidence());
        found.into_iter().find(|found| found.rule == "lock-wait").map(|found| found.title).unwrap_or_default()
    }

    #[test]
    fn thread_that_stops_late_is_named() {
        let stops = "SafepointSynchronize::synchronize_threads(long, int, int*)";
        let title_of_late = title(stops, 5);
        assert!(
            title_of_late.ends_with(
                ": thread-2 waited until thread-3 stopped, which ran in sum_table for 94 % of that time."
            ),
            "{title_of_late}"
        );
        assert!(!title(stops, 80).contains("stopped"), "it waited for a disk");
        assert!(!title("VM_GC_Operation::doit()", 5).contains("stopped"), "the virtual machine works");
    }
}
