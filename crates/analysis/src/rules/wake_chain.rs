//! `wake-chain`: a thread waited for a lock whose holder was itself waiting for a third thread, and so on. Names
//! every link and the end of the chain: the one that the whole chain waited for, with what it did.
//!
//! A link counts where it covers half of the first wait or more. What the holder waited for may be a lock, an answer
//! (pipe, socket) or a signal (condition variable): it holds what others need, so it is nobody's idle wait. A holder
//! that sleeps, waits for a disk or for a CPU is no chain; `lock-wait` says so.
//!
//! False positives: a holder that waits for a helper which does exactly the work that the lock protects.

use std::collections::HashSet;
use std::sync::Arc;

use wallprof_model::{StallReason, ThreadKey};

use super::case::{Case, grouped};
use super::conclusion::{Conclusion, Problem};
use super::evidence::Evidence;
use super::limits::Toll;
use super::{lock, wording};
use crate::site::Site;

pub(super) const RULE: &str = "wake-chain";

const ADVICE: &str =
    "Begin at the end of the chain: make that faster, or do not hold the lock while waiting for it.";

/// Links followed: what is longer ends there.
const MOST_LINKS: usize = 8;

/// The waits behind one wait for a lock: the holder's, that of whom the holder waited for, and so on.
struct Chain<'e> {
    first: &'e Case,
    links: Vec<&'e Case>,
}

/// What makes chains one finding: who waited, for whom in turn.
type ChainKey = (u32, Arc<str>, Vec<Arc<str>>);

pub(super) fn find<'e>(evidence: &'e Evidence, told: &HashSet<u64>) -> Vec<Conclusion<'e>> {
    let chains: Vec<Chain<'e>> =
        lock::waits(evidence, told).filter_map(|case| chain(case, evidence)).collect();
    let by_first = |case: &Case| {
        chains.binary_search_by_key(&(case.start, case.id), |chain| (chain.first.start, chain.first.id))
    };
    let groups = grouped(chains.iter().map(|chain| chain.first), |case| {
        by_first(case).ok().map(|at| chains[at].key())
    });
    let conclusions = groups.into_values().filter_map(|cases| {
        let longest = cases.iter().max_by_key(|case| case.duration_ns())?;
        let example = &chains[by_first(longest).ok()?];
        conclude(cases, example, evidence)
    });
    conclusions.collect()
}

fn chain<'e>(first: &'e Case, evidence: &'e Evidence) -> Option<Chain<'e>> {
    let mut links = Vec::new();
    let mut seen = vec![first.thread];
    let mut next = first.waited_for()?.key?;
    while links.len() < MOST_LINKS && !seen.contains(&next) {
        seen.push(next);
        let Some(link) = link(next, first, evidence) else { break };
        let after = link.waited_for();
        if after.is_some_and(|party| party.key.is_some_and(|key| seen.contains(&key))) {
            break;
        }
        links.push(link);
        let Some(key) = after.and_then(|party| party.key) else { break };
        next = key;
    }
    (!links.is_empty()).then_some(Chain { first, links })
}

/// The wait for another thread in which `thread` spent half of `first` or more.
fn link<'e>(thread: ThreadKey, first: &Case, evidence: &'e Evidence) -> Option<&'e Case> {
    let mut waits = evidence.during(thread, first.start, first.end);
    waits.find(|case| {
        matches!(case.reason, StallReason::Blocked(_))
            && case.waited_for().is_some()
            && case.overlap_ns(first.start, first.end) >= first.duration_ns() / 2
    })
}

impl Chain<'_> {
    fn key(&self) -> ChainKey {
        let parties = self.links.iter().filter_map(|link| link.waited_for());
        (self.first.pid, self.first.comm.clone(), parties.map(|party| party.comm.clone()).collect())
    }

    /// `; worker waited for an answer of logger (pipe in ask), which ended it in flush`.
    fn words(&self) -> String {
        let steps = self.links.iter().map(|link| {
            let party = link.waited_for().map(wording::name).unwrap_or_default();
            let (name, spot) = (wording::shown(&link.comm), wording::spot(link.site.as_ref()));
            format!("{name} was waiting for {party} ({}{spot})", wording::reason(link.reason))
        });
        let end: Option<&Arc<Site>> = self.links.last().and_then(|link| link.waker.as_ref()?.site.as_ref());
        let end = match wording::place(end).as_str() {
            "" => String::new(),
            place => format!("; the end of the chain came{place}"),
        };
        format!("{}{end}", steps.collect::<Vec<_>>().join(", "))
    }
}

fn conclude<'e>(cases: Vec<&'e Case>, example: &Chain<'_>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let toll = Toll::over(&cases, Case::duration_ns);
    let problem = Problem::unusual(cases, toll, evidence)?;
    let holder = example.first.waited_for().map(wording::name).unwrap_or_default();
    let title = format!(
        "{} waited for a lock of {holder}{} {}, while {}.",
        wording::who(&problem.cases, evidence),
        wording::place(problem.site().as_ref()),
        wording::toll(&toll),
        example.words()
    );
    Some(problem.conclude(RULE, title, ADVICE))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Play, at, case, lock_case, stack, stranger, woken_by};
    use super::*;
    use wallprof_model::Reason;
    use wallprof_model::profile::{StallRecord, WakerRecord};

    const MS: u64 = 1_000_000;

    /// Thread 1 waits for a lock of thread 2, from 0 to 10 ms.
    fn wait() -> StallRecord {
        at(0, lock_case(1, 1, 2, 10 * MS))
    }

    /// Thread 2 waits for an answer meanwhile.
    fn ask(from_ns: u64, ns: u64) -> StallRecord {
        StallRecord {
            user: Some(stack(&["read", "ask_backend", "refresh"])),
            waker: Some(woken_by(3, "answer")),
            ..at(from_ns, case(2, 2, StallReason::Blocked(Reason::Pipe), ns))
        }
    }

    #[test]
    fn the_end_of_the_chain_is_named_and_told_once() {
        let found = Play::only_finding([wait(), ask(MS, 8 * MS)]);
        assert_eq!(
            found.title,
            "thread-1 of app waited for a lock of thread-2 in take_order (called by handle_tick) for 10.0 ms, while \
             thread-2 was waiting for thread-3 (pipe in ask_backend); the end of the chain came in answer \
             (called by run)."
        );
        assert_eq!((found.rule.as_str(), found.stalls.as_slice()), (RULE, &[1][..]));
    }

    #[test]
    fn longer_chains_are_followed_also_to_threads_that_are_not_recorded() {
        let flush =
            WakerRecord { thread: Some(stranger("logger")), user: Some(stack(&["flush"])), kernel: None };
        let third =
            StallRecord { waker: Some(flush), ..case(3, 3, StallReason::Blocked(Reason::Wait), 9 * MS) };
        let found = Play::only_finding([wait(), ask(MS, 8 * MS), at(0, third)]);
        assert!(found.title.contains("thread-3 was waiting for logger (wait in work)"), "{}", found.title);
        assert!(found.title.ends_with("came in flush."), "{}", found.title);
    }

    #[test]
    fn what_is_no_chain_stays_a_wait_for_a_lock() {
        let asleep = StallRecord { waker: None, ..ask(0, 9 * MS) };
        let by_interrupt = Some(WakerRecord { thread: None, user: None, kernel: None });
        let answered_by_the_waiter = StallRecord { waker: Some(woken_by(1, "x")), ..ask(0, 9 * MS) };
        for other in [
            asleep,
            StallRecord { waker: by_interrupt, ..ask(0, 9 * MS) },
            answered_by_the_waiter,
            ask(6 * MS, 9 * MS),
            StallRecord { reason: StallReason::Runnable, ..ask(0, 4 * MS) },
        ] {
            assert_eq!(Play::only_finding([wait(), other.clone()]).rule, "lock-wait", "{other:#?}");
        }
    }

    #[test]
    fn a_circle_of_waits_comes_to_an_end() {
        let back = lock_case(3, 3, 2, 10 * MS);
        let found = Play::findings([wait(), ask(0, 10 * MS), at(0, back)]);
        assert!(found.iter().any(|found| found.rule == RULE), "{found:#?}");
    }
}
