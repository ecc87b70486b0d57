// SPDX-License-Identifier: Apache-2.0
//! `pool-exhausted`: all threads of libuv's pool were busy, so that further requests of the program had none. Node.js
//! gives files, names (`dns.lookup`), cryptography and compression to that pool, which has four threads unless
//! `UV_THREADPOOL_SIZE` says otherwise. The event loop is idle meanwhile, so no stall shows that a request waits.
//!
//! A thread of the pool is known by a stall anywhere below the pool's loop, and is busy while it does not wait for
//! work there. The pool is exhausted while all of its threads are busy. Half of the threads may look up names at a
//! time: where so many do, further names wait although other threads are idle.
//!
//! One finding a program, where that was so for a tenth of the recording and for 1,000 times the shortest stall at
//! once, or ten times as long at once. Idle waits below the shortest stall are not known one by one: a pool with many
//! of them has no finding.
//!
//! False positives: a program that gives the pool so much work on purpose, and asks it for nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;

use wallprof_analysis::spans::words_of_state;
use wallprof_analysis::tally::Tally;
use wallprof_meaning::short_name;
use wallprof_meaning::site::base_name;
use wallprof_model::{MonoNs, Reason, SpanState, StallReason, State, ThreadKey};

use super::blocked_loop;
use super::callers::{Callers, Function};
use super::case::{Case, grouped};
use super::conclusion::{Conclusion, Problem};
use super::evidence::{Evidence, ThreadTotals};
use super::limits::{Delays, is_share};
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec};
use super::wording;

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "pool-exhausted",
    topic: None,
    excludes: &[],
    cause: Cause::Program,
    evidence: EvidenceKind::Sums,
    find,
};

/// At once, in multiples of the shortest stall, where it was so for this part of the recording,
const LONG: u64 = 1_000;
const LEAST_PART: u64 = 10;
/// and for however small a part of it.
const VERY_LONG: u64 = 10_000;

/// The function of libuv that each thread of the pool runs. Debian's libuv.so.1 has no name for it.
const LOOP: &str = "worker";
const LIBRARY: &str = "libuv.so";
/// The loop's wait for work.
const IDLE: &str = "uv_cond_wait";
/// The functions that look up names.
const NAMES: [&str; 2] = ["uv__getaddrinfo_work", "uv__getnameinfo_work"];
/// Other functions that the loop calls. Programs have functions that are called `worker`, too, but these not below.
const WORK: [&str; 4] = ["uv__fs_work", "uv__random_work", "uv__queue_work", "node::ThreadPoolWork::"];
/// A function that a compiler adds to a virtual one.
const THUNK: &str = "{virtual override thunk";

const REQUESTS: &str = "further requests for files, names, cryptography or compression";

const ADVICE_RUNNING: &str = "Give what computes to worker_threads or to another process, or do less of it at a \
                              time; a larger UV_THREADPOOL_SIZE helps only while CPUs are idle.";
const ADVICE_WAITING: &str = "Raise UV_THREADPOOL_SIZE: more threads can wait at a time. Or ask the pool for less at \
                              a time.";
const ADVICE_NAMES: &str = "Use dns.resolve, which needs no thread of the pool, or keep the answers in a cache; with \
                            a larger UV_THREADPOOL_SIZE, half of whose threads look up names, more can wait at a \
                            time.";

type Span = (MonoNs, MonoNs);

/// Where a thread of the pool was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the loop's wait for work.
    Idle,
    Names,
    /// In other work.
    Work,
    /// In the loop, or in work that has no name.
    Loop,
}

/// The pool of one process.
struct Pool<'e> {
    /// Each with its stalls below the pool's loop, by start.
    threads: BTreeMap<ThreadKey, Vec<(&'e Case, Place)>>,
    /// While all of its threads existed.
    life: Span,
}

/// The time in which a pool had no thread for a further request.
struct Exhausted<'p, 'e> {
    pool: &'p Pool<'e>,
    spans: Vec<Span>,
    /// As many threads were busy at a time.
    busy: usize,
}

fn find<'e>(evidence: &'e Evidence, _: &Reported) -> Vec<Conclusion<'e>> {
    let mut pools: BTreeMap<Arc<str>, Vec<Pool>> = BTreeMap::new();
    for (program, pool) in pools_of(evidence) {
        pools.entry(program).or_default().push(pool);
    }
    let of_program = |(program, pools): (Arc<str>, Vec<Pool<'e>>)| {
        let program = wording::shown(&program);
        let all: Vec<Exhausted> = pools.iter().filter_map(|pool| all_busy(pool, evidence)).collect();
        let names = || pools.iter().filter_map(|pool| names_busy(pool, evidence)).collect::<Vec<_>>();
        match all.is_empty() {
            true => conclude_names(program, &names(), evidence),
            false => conclude_all(program, &all, evidence),
        }
    };
    pools.into_iter().filter_map(of_program).collect()
}

/// The pools, each with its program.
fn pools_of(evidence: &Evidence) -> Vec<(Arc<str>, Pool<'_>)> {
    let in_pool = evidence.cases().filter(|case| case.callers.as_deref().is_some_and(is_of_pool));
    let mut pools = Vec::new();
    for cases in grouped(in_pool, |case| case.pid).into_values() {
        if cases.iter().any(|case| case.callers.as_deref().is_some_and(is_surely_of_pool)) {
            let Some(first) = cases.first() else { continue };
            let program = evidence.program(first);
            let mut threads = grouped(cases, |case| case.thread);
            threads.retain(|thread, cases| is_most_of(cases, *thread, evidence));
            let life = life(threads.keys(), evidence);
            let threads = threads.into_iter().map(|(thread, cases)| {
                let places = cases.into_iter().map(|case| (case, place(case)));
                (thread, places.collect())
            });
            pools.push((program, Pool { threads: threads.collect(), life }));
        }
    }
    pools
}

/// Whether these are most stalls of their thread in the program: the root of another thread's stack may be missing.
fn is_most_of(cases: &[&Case], thread: ThreadKey, evidence: &Evidence) -> bool {
    let all = evidence.during(thread, MonoNs(0), MonoNs(u64::MAX));
    all.filter(|case| case.callers.is_some()).count() <= cases.len() * 2
}

/// Whether these are functions of a thread whose first one is the pool's loop.
fn is_of_pool(callers: &Callers) -> bool {
    callers.functions().next().is_some_and(|outermost| match outermost.symbol() {
        Some(symbol) => &**symbol == LOOP,
        None => is_of_library(outermost),
    })
}

/// Whether no other program has such functions. In a library that is libuv's, no other thread starts.
fn is_surely_of_pool(callers: &Callers) -> bool {
    let mut functions = callers.functions();
    let is_in_library = functions.next().is_some_and(is_of_library);
    let called = functions.next().and_then(Function::symbol);
    is_in_library || called.is_some_and(|symbol| NAMES.contains(&&**symbol) || is_work(symbol))
}

fn is_of_library(function: &Function) -> bool {
    function.module().is_some_and(|module| base_name(module).starts_with(LIBRARY))
}

fn is_work(symbol: &str) -> bool {
    WORK.iter().any(|work| symbol.starts_with(work))
}

fn place(case: &Case) -> Place {
    let called = case.callers.as_deref().and_then(|callers| Some((callers, callers.functions().nth(1)?)));
    let Some((callers, called)) = called else { return Place::Loop };
    match called.symbol().map(|symbol| &**symbol) {
        // A thread that was preempted there has left the wait.
        Some(IDLE) if case.fault.is_none() && case.reason != StallReason::Preempted => Place::Idle,
        Some(symbol) if NAMES.contains(&symbol) => Place::Names,
        Some(symbol) if symbol.starts_with("uv_") && !symbol.starts_with("uv__") => Place::Loop,
        None if looks_up(case) && callers.functions().all(is_of_library) => Place::Names,
        _ => Place::Work,
    }
}

fn looks_up(case: &Case) -> bool {
    let through = case.site.as_ref().and_then(|site| site.through.as_deref());
    matches!(through, Some("getaddrinfo" | "getnameinfo"))
}

/// libuv starts all threads of its pool at once, for the first request.
fn life<'k>(threads: impl Iterator<Item = &'k ThreadKey> + Clone, evidence: &Evidence) -> Span {
    let recorded = (evidence.start(), MonoNs(evidence.start().0.saturating_add(evidence.duration_ns())));
    let known = threads.filter_map(|key| evidence.thread(*key));
    known.fold(recorded, |(from, to), thread| (from.max(thread.start), to.min(thread.end)))
}

/// While all threads of the pool were busy.
fn all_busy<'p, 'e>(pool: &'p Pool<'e>, evidence: &Evidence) -> Option<Exhausted<'p, 'e>> {
    let cases = pool.threads.values().flatten();
    let idle = cases.filter(|(_, place)| *place == Place::Idle).map(|(case, _)| (case.start, case.woken()));
    let spans = between(idle.collect(), pool.life, evidence.unit_ns());
    let exhausted = Exhausted { pool, spans, busy: pool.threads.len() };
    let is_known = !is_share(pool.unseen_idle_ns(evidence).max(1), LEAST_PART, exhausted.elapsed_ns());
    (is_known && exhausted.is_long(evidence)).then_some(exhausted)
}

/// While half of the threads looked up names.
fn names_busy<'p, 'e>(pool: &'p Pool<'e>, evidence: &Evidence) -> Option<Exhausted<'p, 'e>> {
    let most = pool.threads.len().div_ceil(2);
    let lookups = pool.threads.values().flat_map(|cases| lookups(cases));
    let exhausted = Exhausted { pool, spans: at_a_time(lookups, most, evidence.unit_ns()), busy: most };
    exhausted.is_long(evidence).then_some(exhausted)
}

/// The time in which a thread looked up names: from its first stall there to the last one, with no other place of the
/// pool in between.
fn lookups(cases: &[(&Case, Place)]) -> Vec<Span> {
    let runs = cases.chunk_by(|(_, one), (_, next)| one == next);
    let of_names = runs.filter(|run| run.first().is_some_and(|(_, place)| *place == Place::Names));
    of_names.filter_map(|run| Some((run.first()?.0.start, run.last()?.0.end))).collect()
}

/// The parts of `life` outside of `idle` that are no shorter than `least_ns`.
fn between(mut idle: Vec<Span>, life: Span, least_ns: u64) -> Vec<Span> {
    idle.sort_unstable();
    idle.push((life.1, life.1));
    let mut busy_since = life.0;
    let mut spans = Vec::new();
    for (start, end) in idle {
        let until = start.min(life.1);
        if until.0.saturating_sub(busy_since.0) >= least_ns {
            spans.push((busy_since, until));
        }
        busy_since = busy_since.max(end);
    }
    spans
}

/// While at least `most` of these spans overlap.
fn at_a_time(spans: impl Iterator<Item = Span>, most: usize, least_ns: u64) -> Vec<Span> {
    // Of one that ends when another starts, the start comes first: they are one after the other without a pause.
    let mut edges: Vec<(MonoNs, bool)> = spans.flat_map(|(from, to)| [(from, false), (to, true)]).collect();
    edges.sort_unstable();
    let (mut open, mut since) = (0usize, None);
    let mut found = Vec::new();
    for (at, is_end) in edges {
        open = if is_end { open.saturating_sub(1) } else { open + 1 };
        match since {
            None if open >= most => since = Some(at),
            Some(from) if open < most => {
                found.push((from, at));
                since = None;
            }
            _ => {}
        }
    }
    found.retain(|span| length_ns(span) >= least_ns);
    found
}

fn length_ns((from, to): &Span) -> u64 {
    to.0.saturating_sub(from.0)
}

/// Whether the ledger has it as [`Reason::Wait`]. A wait that is mostly one for a CPU was one before.
fn is_wait(case: &Case) -> bool {
    matches!(case.reason, StallReason::Blocked(Reason::Wait) | StallReason::Runnable)
}

impl Pool<'_> {
    /// The time in waits of its threads that are not known one by one, ns: all of it may be idle.
    fn unseen_idle_ns(&self, evidence: &Evidence) -> u64 {
        let unseen = |(key, thread): (&ThreadKey, &ThreadTotals)| {
            let kept = evidence.during(*key, self.life.0, self.life.1).filter(|case| is_wait(case));
            let kept = kept.map(|case| case.overlap_ns(self.life.0, case.woken().min(self.life.1)));
            thread.waits_ns.saturating_sub(kept.fold(0, u64::saturating_add))
        };
        let known = self.threads.keys().filter_map(|key| Some((key, evidence.thread(*key)?)));
        known.map(unseen).fold(0, u64::saturating_add)
    }
}

impl Exhausted<'_, '_> {
    fn elapsed_ns(&self) -> u64 {
        self.spans.iter().map(length_ns).fold(0, u64::saturating_add)
    }

    /// The same, of each of the busy threads.
    fn threads_ns(&self) -> u64 {
        self.elapsed_ns().saturating_mul(self.busy as u64)
    }

    fn longest_ns(&self) -> u64 {
        self.spans.iter().map(length_ns).max().unwrap_or(0)
    }

    fn is_long(&self, evidence: &Evidence) -> bool {
        let (longest_ns, unit_ns) = (self.longest_ns(), evidence.unit_ns());
        let is_often = is_share(self.elapsed_ns(), LEAST_PART, evidence.duration_ns());
        is_often && longest_ns >= unit_ns.saturating_mul(LONG)
            || longest_ns >= unit_ns.saturating_mul(VERY_LONG)
    }

    /// The stalls of its threads then, each with the time for which it was blocked, and then waited for a CPU, ns.
    fn stalls<'e>(&self, evidence: &'e Evidence) -> impl Iterator<Item = (&'e Case, u64, u64)> {
        let threads = self.pool.threads.keys();
        let spans = threads.flat_map(|thread| self.spans.iter().map(|span| (*thread, *span)));
        let during = spans.flat_map(|(thread, (from, to))| {
            evidence.during(thread, from, to).map(move |case| (case, from, to))
        });
        during.map(|(case, from, to)| {
            let queued_from = case.queued_from();
            let blocked_ns = case.overlap_ns(from, to.min(queued_from));
            (case, blocked_ns, case.overlap_ns(from.max(queued_from), to))
        })
    }
}

fn conclude_all<'e>(program: &str, all: &[Exhausted], evidence: &'e Evidence) -> Option<Conclusion<'e>> {
    let whose = match all {
        [one] if one.busy == 1 => format!("The one thread of libuv's pool of {program} was"),
        [one] => format!("All {} threads of libuv's pool of {program} were", one.busy),
        _ => format!("All threads of libuv's pools of {} {program} processes were", all.len()),
    };
    let (doing, advice) = doing(all, evidence);
    let title =
        format!("{whose} busy {}, mostly {doing}: {REQUESTS} had no thread.", how_long(all, evidence));
    let threads = all.iter().flat_map(|one| one.pool.threads.keys().copied());
    conclude(all, threads.collect(), title, advice, evidence)
}

fn conclude_names<'e>(program: &str, all: &[Exhausted], evidence: &'e Evidence) -> Option<Conclusion<'e>> {
    let whose = match all {
        [] => return None,
        [one] => {
            format!("{} of the {} threads of libuv's pool of {program}", one.busy, one.pool.threads.len())
        }
        _ => format!("Half of the threads of libuv's pools of {} {program} processes", all.len()),
    };
    let mut waits = Tally::default();
    for (case, blocked_ns, _) in all.iter().flat_map(|one| one.stalls(evidence)) {
        if place(case) == Place::Names {
            waits.add(waiting(case), blocked_ns);
        }
    }
    let mostly = waits.top().map(|(words, _)| format!(", mostly {words}")).unwrap_or_default();
    let title = format!(
        "{whose}, as many as may look up names at a time, did so {}{mostly}: further lookups had no thread.",
        how_long(all, evidence),
    );
    let looked_up = |cases: &[(&Case, Place)]| cases.iter().any(|(_, place)| *place == Place::Names);
    let threads = all.iter().flat_map(|one| one.pool.threads.iter());
    let threads = threads.filter(|(_, cases)| looked_up(cases)).map(|(thread, _)| *thread);
    conclude(all, threads.collect(), title, ADVICE_NAMES, evidence)
}

/// `for 98 % of the time, up to 8.20 s at a time`.
fn how_long(all: &[Exhausted], evidence: &Evidence) -> String {
    let elapsed_ns = all.iter().map(Exhausted::elapsed_ns).fold(0, u64::saturating_add);
    let longest_ns = all.iter().map(Exhausted::longest_ns).max().unwrap_or(0);
    let share = wording::percent(elapsed_ns, evidence.duration_ns().saturating_mul(all.len() as u64));
    format!("for {share} of the time, up to {} at a time", wording::time(longest_ns))
}

fn conclude<'e>(
    all: &[Exhausted],
    threads: Vec<ThreadKey>,
    title: String,
    advice: &str,
    evidence: &Evidence,
) -> Option<Conclusion<'e>> {
    let of_one = |one: &Exhausted| Delays {
        count: one.spans.len() as u64,
        total_ns: one.threads_ns(),
        max_ns: one.longest_ns(),
    };
    let delays = all.iter().map(of_one).fold(Delays::default(), Delays::with);
    let problem = Problem::of_all(threads, delays);
    (!delays.is_negligible(evidence, &problem.threads)).then(|| problem.conclude(title, advice))
}

/// What the threads did for most of the time, and the advice for that.
fn doing(all: &[Exhausted], evidence: &Evidence) -> (String, &'static str) {
    let (mut waits, mut queued_ns) = (Tally::default(), 0u64);
    for (case, blocked_ns, cpu_wait_ns) in all.iter().flat_map(|one| one.stalls(evidence)) {
        waits.add((waiting(case), place(case) == Place::Names), blocked_ns);
        queued_ns = queued_ns.saturating_add(cpu_wait_ns);
    }
    let threads_ns = all.iter().map(Exhausted::threads_ns).fold(0, u64::saturating_add);
    let rest_ns = threads_ns.saturating_sub(waits.total()).saturating_sub(queued_ns);
    let threads = all.iter().flat_map(|one| one.pool.threads.keys());
    let on_cpu = threads.filter_map(|key| Some(evidence.thread(*key)?.on_cpu_ns));
    let ran_ns = rest_ns.min(on_cpu.fold(0, u64::saturating_add));
    let (short_ns, computed_ns) = (rest_ns - ran_ns, ran_ns.saturating_add(queued_ns));
    match waits.top() {
        Some(((words, is_names), ns)) if ns > computed_ns.max(short_ns) => {
            (words.clone(), if *is_names { ADVICE_NAMES } else { ADVICE_WAITING })
        }
        _ if short_ns > computed_ns => ("in waits below --min-stall".into(), ADVICE_WAITING),
        _ => {
            let without_cpu = if is_share(queued_ns, 4, computed_ns) { " or waiting for a CPU" } else { "" };
            (format!("running{without_cpu}{}", computing_in(all, evidence)), ADVICE_RUNNING)
        }
    }
}

/// `waiting for DNS in uv__getaddrinfo_work`, `waiting for a disk in uv__fs_read`.
pub(super) fn waiting(case: &Case) -> String {
    let words = match (&case.meaning, case.reason) {
        _ if case.is_asleep() => blocked_loop::waiting(case).into(),
        (Some(meaning), _) => format!("waiting for {}", meaning.name),
        (None, StallReason::Blocked(Reason::Network | Reason::Pipe | Reason::Ipc)) => {
            blocked_loop::waiting(case).into()
        }
        (None, StallReason::Blocked(reason)) => words_of_state(SpanState::Of(State::Blocked(reason))),
        (None, StallReason::Minor) => words_of_state(SpanState::Of(State::FaultMinor)),
        (None, StallReason::Major) => words_of_state(SpanState::Of(State::FaultMajor)),
        (None, StallReason::Preempted | StallReason::Runnable) => {
            words_of_state(SpanState::Of(State::Runnable))
        }
    };
    format!("{words}{}", wording::spot(case.site.as_ref()))
}

/// ` in node::crypto::PBKDF2Traits::DeriveBits`: the function of most stacks of threads that lost the CPU, and of the
/// samples late in busy periods. Nothing where no function has half of them.
fn computing_in(all: &[Exhausted], evidence: &Evidence) -> String {
    let mut functions = Tally::default();
    for (case, ..) in all.iter().flat_map(|one| one.stalls(evidence)) {
        if case.reason == StallReason::Preempted
            && let Some(callers) = case.callers.as_deref().filter(|callers| is_of_pool(callers))
        {
            functions.add(computing(callers), 1);
        }
    }
    let is_in_pool = |thread| all.iter().any(|one| one.pool.threads.contains_key(&thread));
    let samples = evidence.periods().filter(|period| is_in_pool(period.thread));
    for (callers, _) in samples.flat_map(|period| &period.samples).filter(|(callers, _)| is_of_pool(callers))
    {
        functions.add(computing(callers), 1);
    }
    match functions.top() {
        Some((Some(function), count)) if is_share(count, 2, functions.total()) => {
            format!(" in {}", short_name(function))
        }
        _ => String::new(),
    }
}

/// The first function that is the work's own, else the innermost one of libuv.
fn computing(callers: &Callers) -> Option<Arc<str>> {
    let functions = callers.functions().skip(1).filter_map(Function::symbol);
    let is_own = |symbol: &&Arc<str>| !is_work(symbol) && !symbol.starts_with(THUNK);
    functions.clone().find(is_own).or_else(|| functions.last()).cloned()
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::fixture::{Fixture, case, stack, thread};
    use super::*;
    use wallprof_model::profile::{Finding, ResolvedFrame, ResolvedStack, StallRecord};
    use wallprof_model::{Meaning, MeaningSource};

    const MS: u64 = 1_000_000;
    const POOL: std::ops::RangeInclusive<u32> = 2..=5;
    const IDLE_STACK: &[&str] = &["pthread_cond_wait", "uv_cond_wait", "worker"];
    const CRYPTO_STACK: &[&str] = &[
        "HMAC_Final",
        "PKCS5_PBKDF2_HMAC",
        "node::crypto::PBKDF2Traits::DeriveBits(node::Environment*)",
        "{virtual override thunk({offset(-56)}, node::crypto::DeriveBitsJob::DoThreadPoolWork())}",
        "node::ThreadPoolWork::ScheduleWork()::{lambda(uv_work_s*)#1}",
        "worker",
    ];

    fn stall(thread: u32, reason: StallReason, ms: (u64, u64), symbols: &[&str]) -> StallRecord {
        let (start, end) = (MonoNs(ms.0 * MS), MonoNs(ms.1 * MS));
        let id = ms.0 * 10 + u64::from(thread);
        StallRecord { start, end, user: Some(stack(symbols)), ..case(id, thread, reason, end.0 - start.0) }
    }

    fn idle(thread: u32, ms: (u64, u64)) -> StallRecord {
        StallRecord { voluntary: true, ..stall(thread, StallReason::Blocked(Reason::Wait), ms, IDLE_STACK) }
    }

    fn preempted(thread: u32, at_ms: u64) -> StallRecord {
        stall(thread, StallReason::Preempted, (at_ms, at_ms + 5), CRYPTO_STACK)
    }

    fn dns(thread: u32, ms: (u64, u64)) -> StallRecord {
        let meaning = Meaning {
            name: "DNS".into(),
            software: Some("glibc".into()),
            idle: false,
            holder: false,
            source: MeaningSource::Stack,
        };
        let symbols = &["uv__getaddrinfo_work", "worker"];
        let poll = stall(thread, StallReason::Blocked(Reason::Poll), ms, symbols);
        StallRecord { meaning: Some(Arc::new(meaning)), voluntary: false, ..poll }
    }

    /// A pool that is idle in the first and the last second, and computes in between.
    fn computing() -> Vec<StallRecord> {
        let of_thread = |thread| {
            let stalls = (1..8).map(move |n| preempted(thread, n * 1_000 + 100));
            stalls.chain([idle(thread, (0, 1_000)), idle(thread, (9_000, 10_000))])
        };
        POOL.flat_map(of_thread).collect()
    }

    fn found_in(mut fixture: Fixture, stalls: impl IntoIterator<Item = StallRecord>) -> Option<Finding> {
        stalls.into_iter().for_each(|stall| fixture.stall(stall));
        findings(&fixture.evidence()).into_iter().find(|finding| finding.rule == RULE.name)
    }

    fn found(stalls: impl IntoIterator<Item = StallRecord>) -> Option<Finding> {
        found_in(Fixture::new(), stalls)
    }

    fn title(stalls: impl IntoIterator<Item = StallRecord>) -> String {
        found(stalls).map(|finding| finding.title).unwrap_or_default()
    }

    #[test]
    fn pool_whose_threads_all_compute_is_exhausted() {
        let finding = found(computing()).expect("a finding");
        assert_eq!(
            finding.title,
            "All 4 threads of libuv's pool of app were busy for 80 % of the time, up to 8.00 s at a time, mostly \
             running in node::crypto::PBKDF2Traits::DeriveBits: further requests for files, names, cryptography or \
             compression had no thread."
        );
        assert!(finding.advice.contains("worker_threads"), "{}", finding.advice);
        assert_eq!(finding.threads, POOL.map(ThreadKey).collect::<Vec<_>>());
        assert_eq!((finding.count, finding.total_ns, finding.max_ns), (1, 32_000 * MS, 8_000 * MS));
        assert!(finding.stalls.is_empty());
    }

    #[test]
    fn pool_that_is_never_idle_is_exhausted() {
        let busy = computing().into_iter().filter(|stall| stall.reason == StallReason::Preempted);
        assert!(title(busy).contains("busy for 100 % of the time, up to 10.0 s at a time, mostly running"));
    }

    #[test]
    fn pool_with_an_idle_thread_is_not() {
        let with_one = computing().into_iter().filter(|stall| stall.thread != ThreadKey(3));
        assert_eq!(found(with_one.chain([idle(3, (0, 10_000))])), None);
        let in_turn = POOL.flat_map(|thread| {
            let from = u64::from(thread - 2) * 2_500;
            [idle(thread, (from, from + 2_500)), preempted(thread, (from + 5_000) % 10_000)]
        });
        assert_eq!(found(in_turn), None);
    }

    #[test]
    fn short_times_without_a_thread_are_none() {
        let turns = |busy_ms: u64, every_ms: u64| {
            let turn = move |at: u64| {
                POOL.flat_map(move |thread| {
                    [preempted(thread, at), idle(thread, (at + busy_ms, at + every_ms))]
                })
            };
            found((0..10_000 / every_ms).flat_map(move |n| turn(n * every_ms))).is_some()
        };
        assert!(turns(100, 1_000), "a tenth");
        assert!(!turns(99, 200), "half, and never long at once");
        assert!(!turns(150, 2_000), "less than a tenth");
        assert!(turns(1_000, 10_000) && !turns(900, 10_000), "once");
    }

    #[test]
    fn waiting_threads_are_said_to_wait() {
        let read = &["uv__fs_read", "uv__fs_work", "worker"];
        let disk = |thread| stall(thread, StallReason::Blocked(Reason::Disk), (2_000, 9_000), read);
        let stalls =
            POOL.flat_map(|thread| [idle(thread, (0, 1_000)), disk(thread), idle(thread, (9_100, 10_000))]);
        let finding = found(stalls).expect("a finding");
        let words =
            "busy for 81 % of the time, up to 8.10 s at a time, mostly waiting for a disk in uv__fs_read:";
        assert!(finding.title.contains(words), "{}", finding.title);
        assert!(finding.advice.starts_with("Raise UV_THREADPOOL_SIZE"), "{}", finding.advice);
    }

    #[test]
    fn half_of_the_threads_look_up_names_at_most() {
        let lookups = |threads: &[u32]| {
            let lookups = threads.iter().flat_map(|&thread| {
                [idle(thread, (0, 1_000)), dns(thread, (1_000, 3_500)), dns(thread, (3_502, 6_000))]
            });
            let others =
                POOL.filter(|thread| !threads.contains(thread)).map(|thread| idle(thread, (0, 10_000)));
            found(lookups.chain(others).collect::<Vec<_>>())
        };
        let finding = lookups(&[2, 4]).expect("a finding");
        assert_eq!(
            finding.title,
            "2 of the 4 threads of libuv's pool of app, as many as may look up names at a time, did so for 50 % of \
             the time, up to 5.00 s at a time, mostly waiting for DNS in uv__getaddrinfo_work: further lookups had \
             no thread."
        );
        assert_eq!(finding.threads, [ThreadKey(2), ThreadKey(4)]);
        assert_eq!(finding.total_ns, 10_000 * MS);
        assert_eq!(lookups(&[3]), None);
    }

    #[test]
    fn idle_waits_that_were_too_short_to_be_kept_are_idle() {
        let with_short_waits = |ns: u64| {
            let mut fixture = Fixture::new();
            fixture.threads[2].ledger.blocked_ns[usize::from(Reason::Wait.code())] = 2_000 * MS + ns;
            found_in(fixture, computing())
        };
        assert!(with_short_waits(500 * MS).is_some());
        assert_eq!(with_short_waits(900 * MS), None);
    }

    #[test]
    fn threads_are_busy_from_their_start_on() {
        let mut fixture = Fixture::new();
        fixture.threads[1..5].iter_mut().for_each(|thread| thread.start = MonoNs(6_000 * MS));
        let late = computing().into_iter().filter(|stall| stall.start.0 >= 6_000 * MS);
        let finding = found_in(fixture, late).expect("a finding");
        assert!(finding.title.contains("busy for 30 % of the time, up to 3.00 s"), "{}", finding.title);
    }

    #[test]
    fn woken_thread_is_not_idle() {
        let woken = |stall: StallRecord| match stall.voluntary && stall.start == MonoNs(0) {
            true => StallRecord { runnable_ns: 400 * MS, ..stall },
            false => stall,
        };
        assert!(
            title(computing().into_iter().map(woken)).contains("busy for 84 % of the time, up to 8.40 s")
        );
    }

    #[test]
    fn programs_own_threads_are_not_the_pool() {
        let own = |stall: StallRecord| {
            let symbols: &[&str] = if stall.voluntary { IDLE_STACK } else { &["parse", "worker"] };
            StallRecord { user: Some(stack(symbols)), ..stall }
        };
        assert_eq!(found(computing().into_iter().map(own)), None);
        let nodes = |stall: StallRecord| {
            let symbols: &[&str] =
                &["uv_cond_wait", "node::(anonymous namespace)::PlatformWorkerThread(void*)"];
            StallRecord { user: Some(stack(symbols)), ..stall }
        };
        assert_eq!(found(computing().into_iter().map(nodes)), None);
    }

    #[test]
    fn pool_of_a_library_without_names_is_known() {
        let in_library = |stall: StallRecord| {
            let symbols: &[&str] = if stall.voluntary { IDLE_STACK } else { &["hash", "", ""] };
            let mut user = stack(symbols);
            let of_library = |(at, frame): (usize, &Arc<ResolvedFrame>)| {
                let mut frame = ResolvedFrame::clone(frame);
                if at > 0 {
                    frame.module = Some("/usr/lib/x86_64-linux-gnu/libuv.so.1.0.0".into());
                }
                if at == 2 {
                    frame.lines[0].symbol = None;
                }
                Arc::new(frame)
            };
            user = ResolvedStack { frames: user.frames.iter().enumerate().map(of_library).collect(), ..user };
            StallRecord { user: Some(user), ..stall }
        };
        let title = title(computing().into_iter().map(in_library));
        assert!(title.contains("All 4 threads") && title.contains("mostly running in hash:"), "{title}");
    }

    #[test]
    fn main_thread_with_an_incomplete_stack_is_not_of_the_pool() {
        let main = |from| stall(1, StallReason::Preempted, (from, from + 1), &["uv_run", "main"]);
        let incomplete = stall(1, StallReason::Preempted, (3_000, 3_001), &["uv__fs_work", "worker"]);
        let stalls = computing().into_iter().chain((1..5).map(|n| main(n * 500))).chain([incomplete]);
        assert!(title(stalls).starts_with("All 4 threads"));
    }

    #[test]
    fn pools_of_one_program_are_one_finding() {
        let mut fixture = Fixture::new();
        fixture.threads.extend((12..=15).map(|number| {
            let mut thread = thread(number);
            thread.info.pid = 200;
            thread
        }));
        let other = |stall: StallRecord| StallRecord {
            id: stall.id + 1_000_000,
            pid: 200,
            thread: ThreadKey(stall.thread.0 + 10),
            ..stall
        };
        let finding =
            found_in(fixture, computing().into_iter().flat_map(|stall| [other(stall.clone()), stall]));
        let finding = finding.expect("a finding");
        let words = "All threads of libuv's pools of 2 app processes were busy for 80 % of the time,";
        assert!(finding.title.starts_with(words), "{}", finding.title);
        assert_eq!((finding.threads.len(), finding.total_ns), (8, 64_000 * MS));
    }
}
