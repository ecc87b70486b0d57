// SPDX-License-Identifier: Apache-2.0
//! `blocked-loop`: a thread with an event loop waited or computed inside a callback, so that the loop did not
//! return to its poll. Names the function that the loop called.
//!
//! One finding a program, kind of wait and called function, where the waits took a hundredth of the threads'
//! time, or one took 20 ms. Only waits of 10 ms or longer count.
//!
//! A loop is known by its waits: a place of epoll or io_uring to which the thread returns, or a place of poll
//! or select where it spends most of its time. Loops whose functions are known wait on condition variables,
//! too. Polls of one connection are no loop: a client that wants a timeout waits so for its answers, and a server's
//! thread for its one client. Only kinds of waits count that are no other idle place of a loop: runtimes park the
//! threads of their loops on condition variables, and nested loops poll.
//!
//! A loop that is blocked nearly all the time hardly waits for work: it is found then if its functions are known.
//!
//! What computes is found by busy periods that last much longer than the thread's others, and named by the
//! samples late in them. A loop under load may find the next events ready, and go on without a wait: its period is
//! long, too, but its samples are in one callback and then in another. So nearly all of them must be in the same
//! one, and there must be several. Before the first sample the thread may have been anywhere: the samples must
//! stand for most of the time that it ran. A period that would be short if the hypervisor had run the thread all the
//! time is none.
//!
//! False positives: a thread that uses epoll for one thing among others, and is not waited for in between.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use wallprof_meaning::short_name;
use wallprof_model::event::{Awaited, Peer, PeerKind};
use wallprof_model::{Reason, StallReason, ThreadKey};

use super::callers::{Called, Callers};
use super::case::{Case, grouped};
use super::conclusion::{Conclusion, Problem};
use super::evidence::{Evidence, Period};
use super::limits::{Delays, LEAST_LOOP_WAITS, SHORTEST_BLOCK_NS};
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::wording;

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "blocked-loop",
    topic: None,
    excludes: &[Topic::Waits],
    cause: Cause::Program,
    evidence: EvidenceKind::StallsOrSpans,
    find,
};

/// The place of a known loop that waits on a condition variable.
const WAIT_FOR_WORK: &str = "its wait for work";

/// The meaning of a wait for the one client of a database's backend.
const CLIENT_IDLE: &str = "client idle";

/// The meanings of Node.js' calls that wait.
const CHILD_PROCESS: &str = "child process";
const ATOMICS_WAIT: &str = "Atomics.wait";
const CALLS_OF_NODE: [&str; 2] = [CHILD_PROCESS, ATOMICS_WAIT];

/// Of the samples of what computed, those that have a function in which it is said to have been.
const LEAST_PERCENT_INSIDE: usize = 80;

/// Samples of a callback that is said to have computed, over all its periods. Two or three are in one callback by
/// chance where a busy loop spends half of its time there.
const LEAST_SAMPLES: usize = 5;

/// Of the running time of the periods, that of the samples inside of the callback.
const LEAST_PERCENT_OF_TIME: u128 = 60;

/// Where a thread's loop waits.
struct Loop<'e> {
    /// `epoll_wait`, `its wait for work`
    place: &'e str,
    callers: &'e Callers,
}

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let loops = loops(evidence);
    let mut blocks: HashMap<u64, (Called, &str)> = HashMap::new();
    let mut cases = Vec::new();
    for case in evidence.cases().filter(|case| is_block(case, evidence) && !reported.has(case)) {
        let callers = case.callers.as_ref().filter(|callers| !callers.has_left_its_loop());
        let called = callers.and_then(|callers| match loops.get(&case.thread) {
            Some(known) => Some((callers.first_beyond(known.callers)?, known.place)),
            // A loop that is blocked nearly all the time hardly waits for work.
            None => Some((callers.called_by_known_loop()?, WAIT_FOR_WORK)),
        });
        if let Some(called) = called {
            blocks.insert(case.id, called);
            cases.push(case);
        }
    }
    let key =
        |case: &Case| (evidence.program(case), case.comm.clone(), case.reason, blocks[&case.id].clone());
    let groups = grouped(cases, key);
    let conclusions = groups
        .into_iter()
        .filter_map(|((_, _, _, (called, place)), cases)| conclude(cases, &called, place, evidence));
    conclusions.chain(computing(evidence, &loops)).collect()
}

/// A period in which a callback computed.
struct Computed<'e> {
    period: &'e Period,
    /// The part that the thread itself ran, and the hypervisor ran it, ns: at least that.
    own_ns: u64,
    /// The running time for which the samples inside of the callback stand.
    inside_ns: u64,
}

/// Callbacks that computed.
fn computing<'e>(evidence: &'e Evidence, loops: &HashMap<ThreadKey, Loop<'e>>) -> Vec<Conclusion<'e>> {
    let mut groups: BTreeMap<_, Vec<Computed>> = BTreeMap::new();
    for period in evidence.periods() {
        let stolen_ns = evidence.most_stolen_ns(period.thread, period.start, period.end);
        let own_ns = period.ran_ns.saturating_sub(stolen_ns);
        let known = loops.get(&period.thread);
        if own_ns >= SHORTEST_BLOCK_NS
            && let (Some(known), Some(thread)) = (known, evidence.thread(period.thread))
            && let Some((called, inside_ns)) = nearly_always_called(period, known.callers)
        {
            let key = (thread.process.clone(), thread.comm.clone(), called, known.place);
            groups.entry(key).or_default().push(Computed { period, own_ns, inside_ns });
        }
    }
    let conclusions = groups.into_iter().filter_map(|((_, _, called, place), computed)| {
        let own = Delays::of(computed.iter().map(|computed| computed.own_ns));
        let periods: Vec<&Period> = computed.iter().map(|computed| computed.period).collect();
        let delays = Delays::of(periods.iter().map(|period| period.duration_ns()));
        let keys: BTreeSet<ThreadKey> = periods.iter().map(|period| period.thread).collect();
        let threads: Vec<ThreadKey> = keys.into_iter().collect();
        if !is_mostly_inside(&computed) || !own.is_heavy(evidence, &threads) {
            return None;
        }
        let totals: Vec<_> = threads.iter().filter_map(|thread| evidence.thread(*thread)).collect();
        let title = format!(
            "{} did not return to {place} {}: its event loop was running in {}{}.",
            wording::threads(&totals),
            wording::delays(&delays),
            words(&called),
            mostly_inside(&periods, &called.name),
        );
        let advice = "Let another thread do what takes so long, or divide it: all else that the loop serves is late \
                      by as much.";
        let (cases, interrupts) = (Vec::new(), Vec::new());
        Some(Conclusion { title, advice: advice.into(), threads, delays, cases, interrupts })
    });
    conclusions.collect()
}

/// Whether there are enough samples, and those inside of the callback stand for most of the time that the threads
/// ran.
fn is_mostly_inside(computed: &[Computed]) -> bool {
    let samples: usize = computed.iter().map(|computed| computed.period.samples.len()).sum();
    let sum = |ns: fn(&Computed) -> u64| computed.iter().fold(0u128, |sum, one| sum + u128::from(ns(one)));
    let (ran_ns, inside_ns) = (sum(|computed| computed.period.ran_ns), sum(|computed| computed.inside_ns));
    samples >= LEAST_SAMPLES && inside_ns * 100 >= ran_ns * LEAST_PERCENT_OF_TIME
}

/// The function that the loop had called in nearly all samples of the period, and the running time for which these
/// stand, ns.
fn nearly_always_called(period: &Period, of_loop: &Callers) -> Option<(Called, u64)> {
    let mut counts: BTreeMap<Called, (usize, u64)> = BTreeMap::new();
    for (callers, ns) in &period.samples {
        if let Some(called) = callers.first_beyond(of_loop) {
            let (count, sum) = counts.entry(called).or_default();
            (*count, *sum) = (*count + 1, sum.saturating_add(*ns));
        }
    }
    let (called, (count, ns)) = counts.into_iter().max_by_key(|(_, (count, _))| *count)?;
    (count * 100 >= period.samples.len() * LEAST_PERCENT_INSIDE).then_some((called, ns))
}

/// `, inside PKCS5_PBKDF2_HMAC`: the innermost function that nearly all samples below this one have.
fn mostly_inside(periods: &[&Period], function: &str) -> String {
    let samples = periods.iter().flat_map(|period| &period.samples);
    let mut paths: Vec<_> = samples.filter_map(|(callers, _)| callers.inwards_of(function)).collect();
    let least = paths.len() * LEAST_PERCENT_INSIDE / 100;
    let mut innermost = None;
    loop {
        let mut by_next: BTreeMap<&Arc<str>, Vec<_>> = BTreeMap::new();
        for mut path in paths {
            if let Some(next) = path.next() {
                by_next.entry(next).or_default().push(path);
            }
        }
        let most = by_next.into_iter().max_by_key(|(_, paths)| paths.len());
        let Some((next, rest)) = most.filter(|(_, rest)| rest.len() > least) else { break };
        (innermost, paths) = (Some(next), rest);
    }
    innermost.map(|function| format!(", inside {}", short_name(function))).unwrap_or_default()
}

/// `the command keysCommand`. Of Node's bindings the type says more than the function:
/// `CryptoJob<PBKDF2Traits>::Run`.
fn words(called: &Called) -> String {
    match called.word {
        Some("binding") => {
            format!("the binding {}", called.name.rsplit_once('(').map_or(&*called.name, |(name, _)| name))
        }
        Some(word) => format!("the {word} {}", short_name(&called.name)),
        None => short_name(&called.name),
    }
}

fn conclude<'e>(
    cases: Vec<&'e Case>,
    called: &Called,
    place: &str,
    evidence: &Evidence,
) -> Option<Conclusion<'e>> {
    let waiting = waiting(cases.first()?);
    let delays = Delays::over(&cases, Case::duration_ns);
    let problem = Problem::heavy(cases, delays, evidence)?;
    let title = format!(
        "{} did not return to {place} {}: its event loop was {waiting} in {}{}.",
        wording::who(&problem.cases, evidence),
        wording::delays(&delays),
        words(called),
        inside(&problem, &called.name),
    );
    let advice = "Let another thread do what waits, or use a call that does not wait: all else that the loop \
                  serves is late by as much.";
    Some(problem.conclude(title, advice))
}

/// `, inside back_off`: the innermost function, where it is another one, and no part of a call that is named.
fn inside(problem: &Problem<'_>, function: &str) -> String {
    if is_call_of_node(problem.cases[0]) {
        return String::new();
    }
    let site = problem.site();
    let innermost = site.as_ref().and_then(|site| site.functions.first());
    innermost
        .filter(|innermost| &***innermost != function)
        .map(|innermost| format!(", inside {}", short_name(innermost)))
        .unwrap_or_default()
}

pub(super) fn waiting(case: &Case) -> &'static str {
    match case.reason {
        _ if means(case, CHILD_PROCESS) => "waiting for a child process",
        _ if means(case, ATOMICS_WAIT) => "waiting for another thread (Atomics.wait)",
        _ if case.is_asleep() => "asleep",
        StallReason::Blocked(Reason::Child) => "waiting for a child process",
        StallReason::Blocked(Reason::Network) => "waiting for the network",
        StallReason::Blocked(Reason::Pipe) => "waiting for a pipe",
        _ => "waiting for another process",
    }
}

fn means(case: &Case, name: &str) -> bool {
    case.meaning.as_ref().is_some_and(|meaning| meaning.name == name)
}

/// Whether its thread is in one of Node.js' calls that wait.
pub(super) fn is_call_of_node(case: &Case) -> bool {
    CALLS_OF_NODE.iter().any(|name| means(case, name))
}

/// Whether its thread is in a call that waits for as long as it takes, which is voluntary outside of a loop. Workers
/// wait for work in Atomics.wait, the first thread of Node.js does not.
fn is_blocking_call(case: &Case, evidence: &Evidence) -> bool {
    let is_first = || evidence.thread(case.thread).is_some_and(|thread| thread.tid == thread.pid);
    means(case, CHILD_PROCESS) || means(case, ATOMICS_WAIT) && is_first()
}

/// A long wait that no other rule is about, and at which no loop is idle.
fn is_block(case: &Case, evidence: &Evidence) -> bool {
    let blocks = matches!(
        case.reason,
        StallReason::Blocked(Reason::Child | Reason::Network | Reason::Pipe | Reason::Ipc)
    );
    let is_wanted = case.is_asleep() || blocks && case.meaning.is_none() || is_blocking_call(case, evidence);
    is_wanted && case.duration_ns() >= SHORTEST_BLOCK_NS
}

/// How a thread waits at one place of a poll.
#[derive(Default)]
struct Polls {
    count: u64,
    ns: u64,
    /// Of one connection: with the client that it serves, or with its server.
    of_one: bool,
}

/// The loops of the threads, each at the place where its thread polls for the longest time.
fn loops(evidence: &Evidence) -> HashMap<ThreadKey, Loop<'_>> {
    let mut places: BTreeMap<ThreadKey, BTreeMap<(&Callers, &str), Polls>> = BTreeMap::new();
    for case in evidence.cases() {
        let callers = case.callers.as_deref().filter(|_| case.voluntary && !is_blocking_call(case, evidence));
        let place = callers.zip(case.syscall.as_deref()).and_then(|(callers, syscall)| match case.reason {
            StallReason::Blocked(Reason::Poll) => Some((callers, syscall)),
            StallReason::Blocked(Reason::Wait) => callers.wait_for_work().then_some((callers, WAIT_FOR_WORK)),
            _ => None,
        });
        if let Some(place) = place {
            let polls = places.entry(case.thread).or_default().entry(place).or_default();
            polls.count += 1;
            polls.of_one |= is_of_one_connection(case);
            polls.ns = polls.ns.saturating_add(case.duration_ns());
        }
    }
    let mut loops = HashMap::new();
    for (thread, places) in places {
        let longest = places.into_iter().max_by_key(|(_, polls)| polls.ns);
        let wall_ns = evidence.thread(thread).map_or(0, |thread| thread.wall_ns);
        if let Some(((callers, place), polls)) = longest
            && !polls.of_one
            && polls.count >= LEAST_LOOP_WAITS
            && (place == WAIT_FOR_WORK || is_for_events(place) || polls.ns >= wall_ns / 2)
        {
            loops.insert(thread, Loop { place, callers });
        }
    }
    loops
}

fn is_of_one_connection(case: &Case) -> bool {
    let is_connected = |peer: &Peer| {
        matches!(peer.kind, PeerKind::Tcp | PeerKind::Unix) && peer.awaited != Awaited::Connection
    };
    case.meaning.as_ref().is_some_and(|meaning| meaning.name == CLIENT_IDLE)
        || case.peer.as_deref().is_some_and(is_connected)
}

/// System calls that are made for loops over many events. A client that waits for one answer uses poll.
fn is_for_events(syscall: &str) -> bool {
    syscall.starts_with("epoll_") || syscall == "io_uring_enter"
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, at, case, stack, steal};
    use super::*;
    use wallprof_model::profile::{Finding, StallRecord};
    use wallprof_model::{Meaning, MeaningSource, MonoNs};

    use wallprof_analysis::spans::LongPeriod;

    const MS: u64 = 1_000_000;

    /// A turn of the loop every 100 ms: an idle wait of `idle_ms`.
    fn idle(turn: u64, syscall: &str, idle_ms: u64) -> StallRecord {
        let poll = StallRecord {
            voluntary: true,
            syscall: Some(syscall.into()),
            user: Some(stack(&["epoll_wait", "wait_for_events", "run_loop", "main"])),
            ..case(turn, 1, StallReason::Blocked(Reason::Poll), idle_ms * MS)
        };
        at(turn * 100 * MS, poll)
    }

    /// What the loop's callback waits for in the same turn, after the idle wait.
    fn block(turn: u64, reason: Reason, ms: u64) -> StallRecord {
        let block = StallRecord {
            voluntary: reason.is_voluntary(),
            user: Some(stack(&["nanosleep", "back_off", "serve_request", "run_loop", "main"])),
            ..case(1_000 + turn, 1, StallReason::Blocked(reason), ms * MS)
        };
        at((turn * 100 + 60) * MS, block)
    }

    fn found(turns: u64, syscall: &str, idle_ms: u64, block: impl Fn(u64) -> StallRecord) -> Vec<Finding> {
        let mut fixture = Fixture::new();
        for turn in 0..turns {
            fixture.stall(idle(turn, syscall, idle_ms));
            if turn % 2 == 1 {
                fixture.stall(block(turn));
            }
        }
        findings(&fixture.evidence())
    }

    #[test]
    fn callback_that_sleeps_is_named() {
        let found = found(20, "epoll_wait", 50, |turn| block(turn, Reason::Sleep, 30));
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(
            found[0].title,
            "thread-1 of app did not return to epoll_wait 10 times, 300 ms in all, up to 30.0 ms: its event \
             loop was asleep in serve_request, inside back_off. They recur every 200.0 ms."
        );
        assert_eq!((found[0].rule.as_str(), found[0].stalls.len()), (RULE.name, 10));
    }

    /// A loop of which one turn lasted for 370 ms.
    struct LongTurn {
        meaning: &'static str,
        /// Samples of another callback than that of four.
        others: usize,
        /// Running time for which each sample stands.
        sample_ms: u64,
        ran_ms: u64,
        stolen_ms: u64,
    }

    const LONG_TURN: LongTurn =
        LongTurn { meaning: "event loop", others: 1, sample_ms: 70, ran_ms: 370, stolen_ms: 0 };

    impl LongTurn {
        fn titles(&self) -> Vec<String> {
            let mut fixture = Fixture::new();
            let meaning = Meaning {
                name: self.meaning.into(),
                software: None,
                idle: true,
                holder: false,
                source: MeaningSource::Stack,
            };
            for turn in 0..20 {
                let (meaning, cpu) = (Some(Arc::new(meaning.clone())), Some(2));
                fixture.stall(StallRecord { meaning, cpu, ..idle(turn, "epoll_wait", 50) });
            }
            fixture.counters.push(steal(2, &[(1_000, 0), (1_500, self.stolen_ms)]));
            let (keys, other) = (
                stack(&["stringmatch", "keysCommand", "call", "processCommand", "run_loop", "main"]),
                stack(&["write", "flush", "run_loop", "main"]),
            );
            let matching = stack(&[
                "stringmatchlen_impl",
                "stringmatch",
                "keysCommand",
                "call",
                "processCommand",
                "run_loop",
                "main",
            ]);
            let stacks = [vec![other; self.others], vec![keys; 2], vec![matching; 2]].concat();
            let samples = stacks.into_iter().map(|stack| (stack, self.sample_ms * MS)).collect();
            let (start, end) = (MonoNs(1_050 * MS), MonoNs(1_420 * MS));
            let (thread, ran_ns) = (ThreadKey(1), self.ran_ms * MS);
            fixture.periods.push(LongPeriod { thread, start, end, ran_ns, samples });
            findings(&fixture.evidence()).into_iter().map(|found| found.title).collect()
        }
    }

    #[test]
    fn callback_that_computes_is_named_unless_the_thread_serves_one_client() {
        let found = LONG_TURN.titles();
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].starts_with("thread-1 of app did not return to epoll_wait "), "{found:#?}");
        let expected = "its event loop was running in the command keysCommand, inside stringmatch.";
        assert!(found[0].ends_with(expected), "{found:#?}");
        assert_eq!(LongTurn { meaning: CLIENT_IDLE, ..LONG_TURN }.titles(), [""; 0]);
        assert_eq!(LongTurn { others: 0, ..LONG_TURN }.titles(), [""; 0], "too few samples");
        let went_on = LongTurn { others: 2, ..LONG_TURN };
        assert_eq!(went_on.titles(), [""; 0], "the loop went on to another callback");
    }

    #[test]
    fn samples_late_in_a_turn_do_not_speak_for_its_beginning() {
        assert_eq!(LongTurn { sample_ms: 50, ..LONG_TURN }.titles(), [""; 0]);
        assert_eq!(
            LongTurn { sample_ms: 50, ran_ms: 210, ..LONG_TURN }.titles().len(),
            1,
            "it hardly ran before"
        );
    }

    /// The counters say how long the hypervisor did not run the CPU, but not when.
    #[test]
    fn turn_that_the_hypervisor_made_long_is_none() {
        assert_eq!(LongTurn { stolen_ms: 200, ..LONG_TURN }.titles().len(), 1, "it ran for 170 ms");
        assert_eq!(LongTurn { stolen_ms: 361, ..LONG_TURN }.titles(), [""; 0]);
    }

    #[test]
    fn binding_keeps_its_type() {
        let name = "node::crypto::CryptoJob<node::crypto::PBKDF2Traits>::Run(v8::Info<v8::Value> const&)";
        let called = Called { name: name.into(), word: Some("binding") };
        assert_eq!(words(&called), "the binding node::crypto::CryptoJob<node::crypto::PBKDF2Traits>::Run");
    }

    #[test]
    fn command_of_a_known_loop_is_named() {
        let command = |turn| StallRecord {
            user: Some(stack(&["nanosleep", "debugCommand", "call", "processCommand", "run_loop", "main"])),
            ..block(turn, Reason::Sleep, 30)
        };
        let found = found(20, "epoll_wait", 50, command);
        assert!(found[0].title.contains("was asleep in the command debugCommand."), "{}", found[0].title);
    }

    /// A thread of tokio that waits for work, on a condition variable, and one that runs what blocks.
    #[test]
    fn worker_with_a_task_that_sleeps_is_blocked_and_a_thread_for_blocking_calls_is_not() {
        const WORKER: &str = "tokio::runtime::scheduler::multi_thread::worker::Context::";
        let titles = |park: &str, run: &str| -> Vec<String> {
            let mut fixture = Fixture::new();
            for turn in 0..20 {
                let wait = StallRecord {
                    reason: StallReason::Blocked(Reason::Wait),
                    user: Some(stack(&["futex_wait", "tokio::runtime::park::Inner::park", park, "run"])),
                    ..idle(turn, "futex", 50)
                };
                fixture.stall(wait);
                let task = "tokio::runtime::task::core::Core<T,S>::poll";
                let sleep = StallRecord {
                    user: Some(stack(&["nanosleep", "app::resize::{{closure}}", task, run, "run"])),
                    ..block(turn, Reason::Sleep, 30)
                };
                fixture.stall(sleep);
            }
            findings(&fixture.evidence()).into_iter().map(|found| found.title).collect()
        };
        let (park, run) = (format!("{WORKER}park_internal"), format!("{WORKER}run_task"));
        let blocked = titles(&park, &run);
        assert_eq!(blocked.len(), 1, "{blocked:#?}");
        let words = "did not return to its wait for work 20 times, 600 ms in all, up to 30.0 ms: its event loop was \
            asleep in the task app::resize::{{closure}}.";
        assert!(blocked[0].contains(words), "{blocked:#?}");
        let pool = "tokio::runtime::blocking::pool::Inner::run";
        assert_eq!(titles(pool, pool), [""; 0]);
    }

    #[test]
    fn known_loop_that_never_waits_for_work_is_blocked_and_an_unknown_one_is_no_loop() {
        const TASK: &str = "tokio::runtime::task::core::Core<T,S>::poll";
        const CELL: &str = "tokio::loom::std::unsafe_cell::UnsafeCell<T>::with_mut";
        const RUN: &str = "tokio::runtime::scheduler::multi_thread::worker::Context::run_task";
        const IN_PLACE: &str = "tokio::runtime::scheduler::multi_thread::worker::block_in_place";
        let titles = |callers: &[&str]| -> Vec<String> {
            let functions = [&["nanosleep", "app::resize::{{closure}}"], callers, &["run"]].concat();
            let mut fixture = Fixture::new();
            for turn in 0..20 {
                let user = Some(stack(&functions));
                fixture.stall(StallRecord { user, ..block(turn, Reason::Sleep, 30) });
            }
            findings(&fixture.evidence()).into_iter().map(|found| found.title).collect()
        };
        let found = titles(&[CELL, TASK, RUN]);
        assert_eq!(found.len(), 1, "{found:#?}");
        let words = "did not return to its wait for work 20 times, 600 ms in all, up to 30.0 ms: its event loop was \
            asleep in the task app::resize::{{closure}}.";
        assert!(found[0].contains(words), "{found:#?}");
        assert_eq!(titles(&[IN_PLACE, CELL, TASK, RUN]), [""; 0], "another thread has the loop");
        assert_eq!(titles(&[CELL, TASK, "tokio::runtime::blocking::pool::Inner::run"]), [""; 0]);
        assert_eq!(titles(&["serve"]), [""; 0]);
    }

    /// Node.js waits for a child in a loop inside of the loop, and for other threads on a condition variable.
    #[test]
    fn call_of_node_that_waits_is_named_and_a_worker_waits_for_work_there() {
        let titles = |name: &str, reason: Reason, is_first: bool| -> Vec<String> {
            let meaning = Meaning {
                name: name.into(),
                software: Some("node".into()),
                idle: true,
                holder: true,
                source: MeaningSource::Stack,
            };
            let mut fixture = Fixture::new();
            let info = &mut fixture.threads[0].info;
            info.tid = if is_first { info.pid } else { info.tid };
            for turn in 0..20 {
                fixture.stall(idle(turn, "epoll_pwait", 50));
                let call = StallRecord {
                    user: Some(stack(&["epoll_pwait", "run", "Spawn", "serve_request", "run_loop", "main"])),
                    syscall: Some("epoll_pwait".into()),
                    meaning: Some(Arc::new(meaning.clone())),
                    ..block(turn, reason, 30)
                };
                fixture.stall(call);
            }
            findings(&fixture.evidence()).into_iter().map(|found| found.title).collect()
        };
        for is_first in [true, false] {
            let found = titles(CHILD_PROCESS, Reason::Poll, is_first);
            assert_eq!(found.len(), 1, "{found:#?}");
            assert!(found[0].contains(" 20 times, 600 ms in all"), "{found:#?}");
            assert!(found[0].contains("was waiting for a child process in serve_request. "), "{found:#?}");
        }
        let found = titles(ATOMICS_WAIT, Reason::Wait, true);
        assert!(
            found[0].contains("waiting for another thread (Atomics.wait) in serve_request."),
            "{found:#?}"
        );
        assert_eq!(titles(ATOMICS_WAIT, Reason::Wait, false), [""; 0]);
    }

    #[test]
    fn each_kind_of_wait_has_its_words() {
        for (reason, words) in [
            (Reason::Child, "was waiting for a child process in serve_request"),
            (Reason::Network, "was waiting for the network in serve_request"),
            (Reason::Pipe, "was waiting for a pipe in serve_request"),
            (Reason::Ipc, "was waiting for another process in serve_request"),
        ] {
            let found = found(20, "io_uring_enter", 5, |turn| block(turn, reason, 30));
            assert!(found.len() == 1 && found[0].title.contains(words), "{reason:?}: {found:#?}");
        }
    }

    #[test]
    fn short_callbacks_and_the_loop_itself_are_no_finding() {
        assert_eq!(found(20, "epoll_wait", 50, |turn| block(turn, Reason::Sleep, 9)), [], "short");
        let own = |turn| StallRecord {
            user: Some(stack(&["nanosleep", "run_loop", "main"])),
            ..block(turn, Reason::Sleep, 30)
        };
        assert_eq!(found(20, "epoll_wait", 50, own), [], "the loop's own sleep");
        let elsewhere = |turn| StallRecord {
            user: Some(stack(&["nanosleep", "back_off", "work"])),
            ..block(turn, Reason::Sleep, 30)
        };
        assert_eq!(found(20, "epoll_wait", 50, elsewhere), [], "outside of the loop");
    }

    #[test]
    fn idle_threads_of_runtimes_and_nested_loops_are_none() {
        for reason in [Reason::Wait, Reason::Poll] {
            assert_eq!(found(20, "epoll_wait", 50, |turn| block(turn, reason, 30)), [], "{reason:?}");
        }
        let idle = Meaning {
            name: "vacuum delay".into(),
            software: None,
            idle: true,
            holder: false,
            source: MeaningSource::Stack,
        };
        let known =
            |turn| StallRecord { meaning: Some(Arc::new(idle.clone())), ..block(turn, Reason::Sleep, 30) };
        assert_eq!(found(20, "epoll_wait", 50, known), []);
    }

    #[test]
    fn polls_of_one_connection_are_no_loop() {
        let polls_of = |peer: Option<Peer>| {
            let mut fixture = Fixture::new();
            for turn in 0..98 {
                let peer = peer.clone().map(Box::new);
                fixture.stall(StallRecord { peer, ..idle(turn, "poll", 55) });
                fixture.stall(block(turn, Reason::Sleep, 30));
            }
            findings(&fixture.evidence()).into_iter().filter(|found| found.rule == RULE.name).count()
        };
        let peer = |kind, awaited| Peer {
            kind,
            awaited,
            role: None,
            asked: None,
            local: None,
            remote: None,
            inode: 7,
            by_child: false,
            process: None,
        };
        assert_eq!(polls_of(Some(peer(PeerKind::Tcp, Awaited::Data))), 0, "its answers");
        assert_eq!(polls_of(Some(peer(PeerKind::Unix, Awaited::Data))), 0);
        assert_eq!(polls_of(Some(peer(PeerKind::Tcp, Awaited::Connection))), 1, "its next client");
        assert_eq!(polls_of(Some(peer(PeerKind::Udp, Awaited::Data))), 1, "datagrams of anybody");
        assert_eq!(polls_of(None), 1, "several descriptors");
    }

    #[test]
    fn client_that_polls_for_answers_has_no_loop() {
        let sleep = |turn| block(turn, Reason::Sleep, 30);
        assert_eq!(found(60, "poll", 40, sleep), [], "a quarter of its time");
        assert_eq!(found(98, "poll", 55, sleep).len(), 1, "it mostly polls");
        assert_eq!(found(7, "epoll_wait", 50, sleep), [], "too few waits for a loop");
    }
}
