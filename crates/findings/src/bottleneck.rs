// SPDX-License-Identifier: Apache-2.0
//! `bottleneck`: in the end, most waiting was for one thread, or threads that wait for each other, and these waited for nobody
//! else: a knot of
//! the graph of who costs whom (wPerf, OSDI 2018). Reports that group, who waited for it, directly or not, and
//! where it let them continue. Whatever else is made faster, they still wait for it.
//!
//! At least two other threads must have waited for it, and half of all waiting must have ended there.
//! A part of it must have come along a chain: where all wait for it directly, the finding about its lock says so.
//! Waits for a CPU do not count: `cpu-saturated` says who had them.
//!
//! False positives: a thread that exists to let others wait, such as a rate limiter.

use std::collections::BTreeMap;
use std::sync::Arc;

use wallprof_analysis::blame::{Blame, Group, PlainWait, Waits};
use wallprof_model::{StallReason, ThreadKey};

use super::case::Case;
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::Evidence;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec};
use super::wording;

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "bottleneck",
    topic: None,
    excludes: &[],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

/// Threads that wait for the bottleneck.
const LEAST_WAITERS: usize = 2;
/// The part of the waiting that must come through another thread.
const LEAST_INDIRECT: u64 = 4;
/// Names of threads of one process that are listed.
const MOST_NAMES: usize = 4;
/// A thread that waited for less than this part of what all waited does not count.
const SMALLEST_PART: u64 = 100;

/// The waiting of other threads that ends in a knot.
struct Ends<'b> {
    waiters: BTreeMap<ThreadKey, u64>,
    /// By the place where the knot let go.
    places: BTreeMap<&'b Arc<str>, u64>,
    ns: u64,
}

fn find<'e>(evidence: &'e Evidence, _: &Reported) -> Vec<Conclusion<'e>> {
    if !evidence.cases().any(waits_for_a_thread) {
        return Vec::new();
    }
    let blame = waits(evidence).blame(|_| true);
    blame.knots.iter().filter_map(|knot| conclude(knot, &blame, evidence)).collect()
}

fn waits(evidence: &Evidence) -> Waits {
    let mut waits = Waits::default();
    for (key, thread) in evidence.threads_by_key() {
        // Each thread is a group: what threads are called says nothing about who waits.
        waits.add_thread(*key, key.0.to_string().into(), thread.comm.clone());
    }
    let had_cpu = |case: &&Case| !matches!(case.reason, StallReason::Preempted | StallReason::Runnable);
    for case in evidence.cases().filter(had_cpu) {
        let blocked_ns = case.without_run_queue_ns();
        let waited_for = case.waited_for().and_then(|party| party.key);
        waits.add_plain(&PlainWait {
            thread: case.thread,
            start: case.start.0,
            end: case.woken().0,
            reason: case.reason,
            waited_for: waited_for.filter(|_| case.fault.is_none() && !case.is_for_a_disk()),
            release: case.release().map(|site| wording::place(Some(site)).into()),
            late_ns: if case.voluntary { 0 } else { case.late_ns().min(blocked_ns) },
        });
    }
    waits
}

/// `None`: no thread.
fn thread_of(group: &Group) -> Option<ThreadKey> {
    match group {
        Group::Threads { process, .. } => process.parse().ok().map(ThreadKey),
        _ => None,
    }
}

fn waits_for_a_thread(case: &Case) -> bool {
    case.is_for_a_lock() && case.waited_for().is_some_and(|party| party.key.is_some())
}

fn ends<'b>(knot: &[ThreadKey], blame: &'b Blame) -> Ends<'b> {
    let mut ends = Ends { waiters: BTreeMap::new(), places: BTreeMap::new(), ns: 0 };
    let is_in_knot = |group: &Group| thread_of(group).is_some_and(|thread| knot.contains(&thread));
    for edge in blame.edges.iter().filter(|edge| is_in_knot(&edge.culprit) && !is_in_knot(&edge.waiter)) {
        let Some(waiter) = thread_of(&edge.waiter) else { continue };
        let sum = ends.waiters.entry(waiter).or_default();
        *sum = sum.saturating_add(edge.ns);
        ends.ns = ends.ns.saturating_add(edge.ns);
        if let Some(place) = &edge.place {
            let sum = ends.places.entry(place).or_default();
            *sum = sum.saturating_add(edge.ns);
        }
    }
    ends.waiters.retain(|_, ns| *ns >= blame.waiting_ns / SMALLEST_PART);
    ends
}

fn conclude<'e>(knot: &[Group], blame: &Blame, evidence: &'e Evidence) -> Option<Conclusion<'e>> {
    let knot: Vec<ThreadKey> = knot.iter().map(thread_of).collect::<Option<_>>()?;
    let ends = ends(&knot, blame);
    if ends.waiters.len() < LEAST_WAITERS || ends.ns < blame.waiting_ns / 2 {
        return None;
    }
    let is_waiter = |thread: ThreadKey| ends.waiters.contains_key(&thread);
    let is_one = |case: &&Case| waits_for_a_thread(case) && is_waiter(case.thread);
    let cases: Vec<&Case> = evidence.cases().filter(is_one).collect();
    let through = |case: &&&Case| case.waited_for().and_then(|party| party.key).is_some_and(is_waiter);
    let indirect_ns = cases.iter().filter(through).fold(0u64, |sum, case| sum.saturating_add(case.late_ns()));
    if indirect_ns < ends.ns / LEAST_INDIRECT {
        return None;
    }
    let mut charged = Charged::over(cases, Case::late_ns);
    charged.delays.total_ns = ends.ns;
    let problem = Problem::heavy(charged, evidence)?;
    let place = ends.places.iter().max_by_key(|(place, ns)| (**ns, std::cmp::Reverse(*place)));
    let place = place.map(|(place, _)| format!(", which let go{place}"));
    let names = names(knot, evidence);
    let title = format!(
        "In the end, {} waited for {names}{}: {} of them, {} of all waiting for threads, locks and devices.",
        names_by_weight(&ends.waiters, evidence),
        place.unwrap_or_default(),
        wording::time(ends.ns),
        wording::percent(ends.ns, blame.waiting_ns)
    );
    let advice = format!(
        "Make {names} faster, or let the others need it less often: nothing else shortens this waiting. \
         `wallprof blame` has the chains."
    );
    Some(problem.conclude(title, advice))
}

/// Most time first.
fn names_by_weight(threads: &BTreeMap<ThreadKey, u64>, evidence: &Evidence) -> String {
    let mut ranked: Vec<(&ThreadKey, &u64)> = threads.iter().collect();
    ranked.sort_by_key(|(key, ns)| (std::cmp::Reverse(**ns), **key));
    names(ranked.into_iter().map(|(key, _)| *key), evidence)
}

/// `front, second and third of shop`.
fn names(keys: impl IntoIterator<Item = ThreadKey>, evidence: &Evidence) -> String {
    let mut named: Vec<(Arc<str>, Vec<String>)> = Vec::new();
    for thread in keys.into_iter().filter_map(|key| evidence.thread(key)) {
        let name = wording::shown(&thread.comm).to_owned();
        match named.iter_mut().find(|(process, _)| *process == thread.process) {
            Some((_, names)) if names.contains(&name) => {}
            Some((_, names)) => names.push(name),
            None => named.push((thread.process.clone(), vec![name])),
        }
    }
    let of = |(process, mut names): (Arc<str>, Vec<String>)| {
        let others = names.len().saturating_sub(MOST_NAMES);
        names.truncate(MOST_NAMES);
        if others > 0 {
            names.push(format!("{others} more"));
        }
        match names.as_slice() {
            [name] if name == wording::shown(&process) => name.clone(),
            _ => format!("{} of {}", wording::list(&names), wording::shown(&process)),
        }
    };
    wording::list(&named.into_iter().map(of).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, at, case, lock_case};
    use super::*;
    use wallprof_model::profile::{Finding, StallRecord};
    use wallprof_model::{Reason, StallReason};

    const MS: u64 = 1_000_000;

    /// Thread 1 waits for 2, which waits for 3, ten times.
    fn chain() -> Vec<StallRecord> {
        let rounds = (0..10).map(|round| round * 30 * MS);
        let pair = |start| {
            [at(start, lock_case(start + 1, 1, 2, 20 * MS)), at(start, lock_case(start + 2, 2, 3, 20 * MS))]
        };
        rounds.flat_map(pair).collect()
    }

    fn bottlenecks(stalls: impl IntoIterator<Item = StallRecord>) -> Vec<Finding> {
        let found = Fixture::findings(stalls);
        found.into_iter().filter(|found| found.rule == RULE.name).collect()
    }

    #[test]
    fn last_thread_of_a_chain_is_named_with_those_who_waited() {
        let found = bottlenecks(chain());
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(
            found[0].title.starts_with("In the end, thread-1 and thread-2 of app waited for thread-3 of app"),
            "{}",
            found[0].title
        );
        assert_eq!((found[0].total_ns, found[0].count), (400 * MS, 20));
    }

    #[test]
    fn lock_that_all_wait_for_directly_is_a_matter_of_its_finding() {
        let direct = |stall: StallRecord| match stall.lock.as_ref().and_then(|lock| lock.owner.as_ref()) {
            Some(owner) if owner.tid == 102 => StallRecord {
                id: stall.id,
                start: stall.start,
                end: stall.end,
                ..lock_case(1, 1, 3, 20 * MS)
            },
            _ => stall,
        };
        assert_eq!(bottlenecks(chain().into_iter().map(direct)), []);
    }

    #[test]
    fn one_group_of_waiters_is_a_matter_of_its_lock() {
        let alone = chain().into_iter().filter(|stall| stall.tid == chain()[1].tid);
        assert_eq!(bottlenecks(alone), []);
    }

    #[test]
    fn device_is_no_bottleneck_of_threads() {
        let disk =
            |id: u64, thread| at(id * 50 * MS, case(id, thread, StallReason::Blocked(Reason::Disk), 40 * MS));
        assert_eq!(bottlenecks((1..=9).map(|id| disk(id, 1 + id as u32 % 2))), []);
    }

    #[test]
    fn waiting_that_mostly_ends_elsewhere_has_no_bottleneck() {
        let disk =
            |id: u64| at(id * 100 * MS, case(900 + id, 9, StallReason::Blocked(Reason::Disk), 90 * MS));
        assert_eq!(bottlenecks(chain().into_iter().chain((0..9).map(disk))), []);
    }
}
