// SPDX-License-Identifier: Apache-2.0
//! `wake-chain`: a thread waited for a lock whose holder was itself waiting for a third thread, and so on.
//! Names every link, and where the last thread of the chain let the others continue.
//!
//! A link counts where it covers half of the first wait or more. The holder may wait for a lock, for an
//! answer (pipe, socket) or for a signal (condition variable): it holds a lock that others need, so its wait
//! is not idle. A thread that asks another one wakes it, and may lose its CPU to it before it starts to
//! wait: that is a link, too. A holder that sleeps, waits for a disk or lost its CPU to any other thread is
//! no chain; `holder-blocked`, `holder-preempted` or `lock-wait` reports it.
//!
//! False positives: a holder that waits for a helper which does exactly what the lock protects.

use std::sync::Arc;

use wallprof_meaning::site::Site;
use wallprof_model::{MonoNs, Reason, StallReason, ThreadKey};

use super::case::{Case, Party, grouped};
use super::conclusion::{Charged, Conclusion};
use super::evidence::Evidence;
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::{lock, wording};

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "wake-chain",
    topic: Some(Topic::Waits),
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::Stalls,
    find,
};

const ADVICE: &str =
    "Start at the end of the chain: make that faster, or do not hold the lock while waiting for it.";

const RESULT_ADVICE: &str =
    "Start at the end of the chain: make that faster, or do other work until the result is there.";

/// Links that are followed: a longer chain ends there.
const MOST_LINKS: usize = 8;

/// The waits behind one wait for a lock: that of the holder, that of the thread that the holder waited for,
/// and so on.
struct Chain<'e> {
    first: &'e Case,
    holder: &'e Party,
    /// What the holder's process called itself.
    title: Option<&'e Arc<str>>,
    links: Vec<Link<'e>>,
}

/// The wait of a thread that others waited for, and the thread that it depended on.
struct Link<'e> {
    case: &'e Case,
    to: &'e Party,
}

/// Chains with the same key are one finding, whichever threads of a pool they went through: the program that waited, for
/// what and where, and of each link where its thread waited and for which kind of thread. A thread's name is in place of a
/// function that is not known.
type ChainKey = (Arc<str>, Option<String>, Arc<str>, Vec<(Arc<str>, String)>);

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let chains: Vec<Chain<'e>> =
        lock::waits(evidence, reported).filter_map(|case| chain(case, evidence)).collect();
    let by_first = |case: &Case| {
        chains.binary_search_by_key(&(case.start, case.id), |chain| (chain.first.start, chain.first.id))
    };
    let groups = grouped(chains.iter().map(|chain| chain.first), |case| {
        by_first(case).ok().map(|at| chains[at].key(evidence))
    });
    let conclusions = groups.into_values().filter_map(|cases| {
        let chain_of = |case: &&Case| by_first(case).ok().map(|at| &chains[at]);
        let detail = |chain: &&Chain| (chain.end().is_some(), chain.first.duration_ns());
        let chains = || cases.iter().filter_map(chain_of);
        let example = chains().max_by_key(detail)?;
        let titled = chains().filter(|chain| chain.title.is_some()).max_by_key(detail).unwrap_or(example);
        let name = wording::name(example.holder);
        if chains().any(|chain| chain.holder.comm != example.holder.comm) {
            return conclude(cases, example, &format!("{name} and others"), ", the longest while", evidence);
        }
        // Of several processes of one name the name alone.
        let holder = match chains().all(|chain| chain.holder.pid == titled.holder.pid) {
            true => wording::titled(titled.holder, titled.title.map(|title| &**title), example.first),
            false => name,
        };
        conclude(cases, example, &holder, ", while", evidence)
    });
    conclusions.collect()
}

fn chain<'e>(first: &'e Case, evidence: &'e Evidence) -> Option<Chain<'e>> {
    let mut links = Vec::new();
    let mut seen = vec![first.thread];
    let (mut holder, mut title) = (first.waited_for()?, first.title_waited_for());
    let mut next = holder.key?;
    while links.len() < MOST_LINKS && !seen.contains(&next) {
        seen.push(next);
        // A thread further on in the queue for the same lock is no other cause, but leads to the holder.
        if links.is_empty()
            && let Some(ahead) = ahead(next, first, evidence)
        {
            let Some((party, key)) = ahead.waited_for().and_then(|party| Some((party, party.key?))) else {
                break;
            };
            (holder, title, next) = (party, ahead.title_waited_for(), key);
            continue;
        }
        let Some(link) = link(next, first, evidence) else { break };
        let after = link.to.key;
        if after.is_some_and(|key| seen.contains(&key)) {
            break;
        }
        links.push(link);
        let Some(key) = after else { break };
        next = key;
    }
    (!links.is_empty()).then_some(Chain { first, holder, title, links })
}

/// The wait of `thread` in the queue for the lock of `first`, for half of it or more.
fn ahead<'e>(thread: ThreadKey, first: &Case, evidence: &'e Evidence) -> Option<&'e Case> {
    let half_ns = first.duration_ns() / 2;
    let mut waits = evidence.during(thread, first.start, first.end);
    let is_ahead =
        |case: &&Case| case.overlap_ns(first.start, first.end) >= half_ns && lock::is_same_lock(case, first);
    waits.find(is_ahead)
}

/// The wait of `thread` for half of `first` or more, where it depended on another thread.
fn link<'e>(thread: ThreadKey, first: &Case, evidence: &'e Evidence) -> Option<Link<'e>> {
    let half_ns = first.duration_ns() / 2;
    let mut long = evidence
        .during(thread, first.start, first.end)
        .filter(|case| case.overlap_ns(first.start, first.end) >= half_ns)
        .filter(|case| !lock::is_same_lock(case, first) && !lets_go_of(case, first));
    long.find_map(|case| {
        let to = match case.reason {
            // A kernel thread may end a wait for a disk. It is no link: the disk kept the holder.
            StallReason::Blocked(_) if case.is_for_a_disk() => None,
            // A worker without work holds nothing, and handed on what another thread had.
            StallReason::Blocked(_) if case.is_without_work() => None,
            StallReason::Blocked(reason) => case.waited_for().filter(|party| !party.only_passes_on(reason)),
            StallReason::Preempted => displaced_by(case, evidence),
            _ => None,
        };
        Some(Link { case, to: to? })
    })
}

/// The innermost function of a place; without one, the name of the thread.
fn function_or(site: Option<&Arc<Site>>, comm: &Arc<str>) -> Arc<str> {
    site.and_then(|site| site.functions.first()).unwrap_or(comm).clone()
}

/// Whether the thread does not have the lock of its interpreter while it waits: it has given that to others before it
/// waits on a condition variable.
fn lets_go_of(wait: &Case, first: &Case) -> bool {
    lock::of_process(first).is_some() && wait.reason == StallReason::Blocked(Reason::Wait)
}

/// The thread that had the CPU for most of a preemption, where the preempted thread had woken it.
fn displaced_by<'e>(case: &'e Case, evidence: &Evidence) -> Option<&'e Party> {
    let (party, ns) = case.ran_instead.first()?;
    let just_before = MonoNs(case.start.0.saturating_sub(1));
    let mut waits = evidence.during(party.key?, just_before, case.start);
    let woken = waits.any(|wait| wait.waker_key() == Some(case.thread));
    (woken && *ns >= case.duration_ns() / 2).then_some(party)
}

impl Chain<'_> {
    fn key(&self, evidence: &Evidence) -> ChainKey {
        let links = self
            .links
            .iter()
            .map(|Link { case, to }| (function_or(case.site.as_ref(), &case.comm), to.kind()));
        let what = self.first.meaning.as_ref().map(|meaning| meaning.name.clone());
        let place = function_or(self.first.site.as_ref(), &self.first.comm);
        (evidence.program(self.first), what, place, links.collect())
    }

    /// Where the last link ended. An address in a program that is not recorded is no place.
    fn end(&self) -> Option<&Arc<Site>> {
        let site = self.links.last()?.case.release()?;
        site.functions.first().is_some_and(|function| !function.starts_with("0x")).then_some(site)
    }

    /// `worker was waiting for logger (pipe in ask); the chain ended in flush`.
    fn words(&self) -> String {
        let steps = self.links.iter().map(Link::words);
        let end = match wording::place(self.end()).as_str() {
            "" => String::new(),
            place => format!("; the chain ended{place}"),
        };
        format!("{}{end}", steps.collect::<Vec<_>>().join(", "))
    }
}

impl Link<'_> {
    fn words(&self) -> String {
        let (name, party) = (wording::shown(&self.case.comm), wording::other(self.to, self.case));
        let spot = wording::spot(self.case.site.as_ref());
        match self.case.reason {
            StallReason::Preempted => format!("{name} had lost its CPU to {party}, which it had woken{spot}"),
            _ => format!("{name} was waiting for {party} ({}{spot})", wording::what(self.case)),
        }
    }
}

fn conclude<'e>(
    cases: Vec<&'e Case>,
    example: &Chain<'_>,
    holder: &str,
    when: &str,
    evidence: &Evidence,
) -> Option<Conclusion<'e>> {
    let problem = lock::problem(Charged::over(cases, Case::duration_ns), evidence)?;
    let delays = problem.delays;
    let title = format!(
        "{} waited for {} of {}{} {}{when} {}.",
        wording::who(&problem.cases, evidence),
        lock::what(&problem.cases),
        holder,
        wording::place(problem.site().as_ref()),
        wording::delays(&delays),
        example.words()
    );
    let advice = if lock::is_for_results(&problem.cases) { RESULT_ADVICE } else { ADVICE };
    Some(problem.conclude(title, advice))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, at, case, lock_case, stack, thread_ref, untracked, woken_by};
    use super::*;
    use wallprof_model::profile::{StallRecord, WakerRecord};
    use wallprof_model::{Meaning, MeaningSource, Reason, ThreadRef};

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
    fn end_of_the_chain_is_named_and_reported_once() {
        let found = Fixture::only_finding([wait(), ask(MS, 8 * MS)]);
        assert_eq!(
            found.title,
            "thread-1 of app waited for a lock of thread-2 in take_order (called by handle_tick) for 10.0 ms, while \
             thread-2 was waiting for thread-3 (pipe in ask_backend); the chain ended in answer \
             (called by run)."
        );
        assert_eq!((found.rule.as_str(), found.stalls.as_slice()), (RULE.name, &[1][..]));
    }

    #[test]
    fn holder_in_another_process_has_its_pid_and_title() {
        let of = |thread: u32, pid: u32, stall: StallRecord| StallRecord {
            pid,
            thread: ThreadKey(thread),
            comm: "postgres".into(),
            ..stall
        };
        let by = |title: Option<&str>| {
            let comm = "postgres".into();
            let title = title.map(Into::into);
            let thread = Some(ThreadRef { pid: 102, tid: 102, comm, title, ..thread_ref(2) });
            Some(WakerRecord { thread, ..woken_by(2, "release") })
        };
        let wait = |id, ns, title| StallRecord {
            lock: None,
            waker: by(title),
            ..at(0, of(1, 101, lock_case(id, 1, 2, ns)))
        };
        let ask = of(2, 102, ask(MS, 8 * MS));
        let idle = Some("postgres: app shop [local] idle in transaction");
        let found = Fixture::only_finding([wait(1, 10 * MS, idle), ask.clone()]);
        assert!(
            found.title.contains("a lock of postgres 102 (app shop [local] idle in transaction) in"),
            "{}",
            found.title
        );
        let found = Fixture::only_finding([wait(1, 10 * MS, None), ask]);
        assert!(found.title.contains("a lock of postgres 102 in"), "{}", found.title);
        let found = Fixture::only_finding([wait(1, 10 * MS, Some("worker.py"))]);
        assert!(found.title.contains("postgres 102 (worker.py) released it"), "{}", found.title);
    }

    #[test]
    fn longer_chains_are_followed_also_to_threads_that_are_not_recorded() {
        let flush =
            WakerRecord { thread: Some(untracked("logger")), user: Some(stack(&["flush"])), kernel: None };
        let third =
            StallRecord { waker: Some(flush), ..case(3, 3, StallReason::Blocked(Reason::Wait), 9 * MS) };
        let found = Fixture::only_finding([wait(), ask(MS, 8 * MS), at(0, third)]);
        assert!(
            found.title.contains("thread-3 was waiting for logger 900 (wait in work)"),
            "{}",
            found.title
        );
        assert!(found.title.ends_with("the chain ended in flush."), "{}", found.title);
    }

    /// Thread 1 waits in a queue behind thread 2, which waits for the lock of thread 3.
    #[test]
    fn holder_is_found_behind_the_queue_for_its_lock() {
        let queued = at(0, lock_case(2, 2, 3, 10 * MS));
        let asks = StallRecord {
            waker: Some(WakerRecord { thread: Some(untracked("client")), user: None, kernel: None }),
            ..at(MS, case(3, 3, StallReason::Blocked(Reason::Network), 9 * MS))
        };
        let found = Fixture::findings([wait(), queued, asks]);
        assert_eq!(found.iter().map(|found| found.stalls.as_slice()).collect::<Vec<_>>(), [[1, 2]]);
        let expected = "thread-1 and another thread of app waited for a lock of thread-3 in take_order";
        assert!(found[0].title.starts_with(expected), "{}", found[0].title);
        assert!(found[0].title.contains(", while thread-3 was waiting for client"), "{}", found[0].title);
    }

    /// Workers 1 and 2 wait for locks of workers 3 and 4, which wait at one place for workers 5 and 6.
    #[test]
    fn one_cause_is_one_finding_whichever_threads_of_a_pool_it_went_through() {
        let waits =
            [(1, 3, 10), (2, 4, 12)].map(|(id, holder, ms)| at(0, lock_case(id, id as u32, holder, ms * MS)));
        let asks = [(3, 5), (4, 6)].map(|(thread, other)| StallRecord {
            waker: Some(woken_by(other, "answer")),
            ..at(MS, case(thread.into(), thread, StallReason::Blocked(Reason::Pipe), 8 * MS))
        });
        let found = Fixture::only_finding(waits.into_iter().chain(asks.clone()));
        assert!(
            found.title.contains(
                "thread-2 and another thread of app waited for a lock of thread-4 and others in take_order (called by \
                 handle_tick) 2 times, 22.0 ms in all, up to 12.0 ms, the longest while thread-4 was waiting for thread-6 \
                 (pipe in work); the chain ended in answer"
            ),
            "{}",
            found.title
        );
        assert_eq!(found.stalls, [1, 2]);
    }

    #[test]
    fn worker_without_work_holds_nothing() {
        let without = |name: &str, idle| {
            let (software, source) = (Some("pools".into()), MeaningSource::Stack);
            let meaning = Meaning { name: name.into(), software, idle, holder: !idle, source };
            let found =
                Fixture::findings([wait(), StallRecord { meaning: Some(meaning.into()), ..ask(MS, 8 * MS) }]);
            found.iter().any(|found| found.rule == RULE.name)
        };
        assert!(!without("tasks", true));
        assert!(!without("turn to wait for work", true));
        assert!(without("client idle", true), "it may be in a transaction");
        assert!(without("row lock", false));
    }

    #[test]
    fn packet_that_a_thread_of_the_kernel_brought_is_no_link() {
        let brought = |comm: &str, reason| {
            let waker = WakerRecord { thread: Some(untracked(comm)), user: None, kernel: None };
            let ask = at(MS, case(2, 2, StallReason::Blocked(reason), 8 * MS));
            let found = Fixture::findings([wait(), StallRecord { waker: Some(waker), ..ask }]);
            found.iter().any(|found| found.rule == RULE.name)
        };
        assert!(!brought("ksoftirqd/0", Reason::Network) && !brought("kworker/0:1", Reason::Network));
        assert!(brought("kworker/0:1", Reason::Wait) && brought("client", Reason::Network));
    }

    #[test]
    fn wait_without_a_chain_is_none() {
        let asleep = StallRecord { waker: None, ..ask(0, 9 * MS) };
        let by_interrupt = Some(WakerRecord { thread: None, user: None, kernel: None });
        let answered_by_the_waiter = StallRecord { waker: Some(woken_by(1, "x")), ..ask(0, 9 * MS) };
        for other in [
            asleep,
            StallRecord { waker: by_interrupt, ..ask(0, 9 * MS) },
            answered_by_the_waiter,
            ask(6 * MS, 9 * MS),
            StallRecord { reason: StallReason::Runnable, ..ask(0, 4 * MS) },
            displaced(MS, 9 * MS),
        ] {
            let found = Fixture::findings([wait(), other.clone()]);
            assert!(!found.is_empty() && found.iter().all(|found| found.rule != RULE.name), "{other:#?}");
        }
    }

    /// Thread 2 loses its CPU to thread 3 meanwhile.
    fn displaced(from_ns: u64, ns: u64) -> StallRecord {
        StallRecord {
            user: Some(stack(&["write", "ask_backend", "refresh"])),
            ran_instead: vec![(thread_ref(3), ns - MS), (untracked("build"), MS)],
            ..at(from_ns, case(2, 2, StallReason::Preempted, ns))
        }
    }

    /// Thread 3 waits for a question of `asker`, which comes 2 ms after the first wait began.
    fn idle(asker: u32) -> StallRecord {
        let wait = StallRecord { voluntary: true, ..case(3, 3, StallReason::Blocked(Reason::Pipe), 2 * MS) };
        StallRecord { waker: Some(woken_by(asker, "ask_backend")), ..at(0, wait) }
    }

    #[test]
    fn holder_that_loses_its_cpu_to_the_thread_it_asks_is_a_link() {
        let found = Fixture::only_finding([wait(), displaced(2 * MS, 8 * MS), idle(2)]);
        assert_eq!(
            found.title,
            "thread-1 of app waited for a lock of thread-2 in take_order (called by handle_tick) for 10.0 ms, while \
             thread-2 had lost its CPU to thread-3, which it had woken in ask_backend."
        );
        assert_eq!(found.rule, RULE.name);
    }

    #[test]
    fn holder_that_loses_its_cpu_to_another_thread_is_none() {
        for (displaced, idle) in [
            (displaced(2 * MS, 8 * MS), idle(4)),
            (displaced(3 * MS, 7 * MS), idle(2)),
            (StallRecord { ran_instead: vec![], ..displaced(2 * MS, 8 * MS) }, idle(2)),
            (displaced(6 * MS, 9 * MS), at(4 * MS, idle(2))),
        ] {
            let found = Fixture::only_finding([wait(), displaced.clone(), idle]);
            assert_ne!(found.rule, RULE.name, "{displaced:#?}");
        }
        let mut crowd = displaced(2 * MS, 8 * MS);
        crowd.ran_instead[0].1 = 4 * MS - 1;
        assert_eq!(Fixture::only_finding([wait(), crowd, idle(2)]).rule, "holder-preempted");
    }

    #[test]
    fn of_equal_chains_one_with_a_known_end_is_reported() {
        let later = |start_ns: u64, id: u64, stall: StallRecord| StallRecord { id, ..at(start_ns, stall) };
        let found = Fixture::only_finding([
            wait(),
            displaced(2 * MS, 8 * MS),
            idle(2),
            later(30 * MS, 4, lock_case(4, 1, 2, 6 * MS)),
            later(30 * MS, 5, ask(0, 6 * MS)),
        ]);
        assert_eq!((found.count, found.total_ns), (2, 16 * MS));
        assert!(found.title.ends_with("the chain ended in answer (called by run)."), "{}", found.title);
    }

    #[test]
    fn a_circle_of_waits_comes_to_an_end() {
        let back = lock_case(3, 3, 2, 10 * MS);
        let found = Fixture::findings([wait(), ask(0, 10 * MS), at(0, back)]);
        assert!(found.iter().any(|found| found.rule == RULE.name), "{found:#?}");
    }
}
