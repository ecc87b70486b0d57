// SPDX-License-Identifier: Apache-2.0
//! `blocked-loop`: a thread with an event loop waited or computed inside a callback, so that the loop did not
//! return to its poll. Names the function that the loop called.
//!
//! One finding a program, kind of wait and called function, where the waits took a hundredth of the threads'
//! time, or one took 20 ms. Only times of 10 ms or longer count: one wait, or many that one called function made one after
//! the other, as a driver does that asks a server again and again.
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
//! one, and there must be several. Nor may the callback be what the thread does in its usual periods, too: then a
//! long period may be many usual callbacks. With `--span loop` each period is one turn, and this condition does not
//! apply. Before the first sample the thread may have been anywhere: the samples must stand for most of the time that
//! it ran. A period that would be short if the hypervisor had run the thread all the time is none. Single periods are
//! examples: the sums of all periods say how many there were.
//!
//! What a loop waits for before its thread ends, without another turn, is its own end: a pool that waits for its workers.
//!
//! False positives: a thread that uses epoll for one thing among others, and is not waited for in between.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use wallprof_meaning::short_name;
use wallprof_model::event::{Awaited, Peer, PeerKind};
use wallprof_model::histogram::bucket_from_ns;
use wallprof_model::{MonoNs, Reason, StallReason, ThreadKey};

use super::callers::{Called, Callers};
use super::case::{Case, mostly};
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::{Evidence, Loss, Period};
use super::limits::{Delays, LEAST_LOOP_WAITS, SHORTEST_BLOCK_NS, is_share};
use super::spec::{Cause, EvidenceKind, Reported, RuleSpec, Topic};
use super::wording;

pub(super) const RULE: RuleSpec = RuleSpec {
    name: "blocked-loop",
    topic: Some(Topic::Loops),
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

/// A callback is a thread's usual work where the thread spends this percentage of its usual running time in it.
const LEAST_PERCENT_OF_USUAL: u128 = 50;

/// Between two waits of one turn, the thread ran for at most one of this many parts of both. In a longer gap the loop may have
/// returned to its poll, and found the next events ready: Redis under load does so between two commands that sleep.
const SHORT_GAP: u64 = 10;

/// Periods with one sample elsewhere are few where those of the main callback are more than this many times as many.
const FEW: usize = 3;

/// Where a thread's loop waits.
struct Loop<'e> {
    /// `epoll_wait`, `its wait for work`
    place: &'e str,
    callers: &'e Callers,
}

fn find<'e>(evidence: &'e Evidence, reported: &Reported) -> Vec<Conclusion<'e>> {
    let loops = loops(evidence);
    let mut groups: BTreeMap<_, Vec<Block>> = BTreeMap::new();
    let mut in_periods: HashSet<u64> = HashSet::new();
    let mut add = |block: Block<'e>| {
        if let Some(case) = block.longest().filter(|_| !block.is_end(&loops, evidence)) {
            let key =
                (evidence.program(case), case.comm.clone(), case.reason, block.called.clone(), block.place);
            groups.entry(key).or_default().push(block);
        }
    };
    let mut threads: Vec<_> = loops.iter().collect();
    threads.sort_by_key(|(thread, _)| **thread);
    for (thread, known) in threads {
        for block in waiting_periods(*thread, known, evidence, reported) {
            in_periods.extend(block.cases.iter().map(|case| case.id));
            add(block);
        }
    }
    let is_alone = |case: &&Case| {
        is_block(case, evidence)
            && case.duration_ns() >= SHORTEST_BLOCK_NS
            && !reported.has(case)
            && !in_periods.contains(&case.id)
    };
    for case in evidence.cases().filter(is_alone) {
        let callers = case.callers.as_ref().filter(|callers| !callers.has_left_its_loop());
        let called = callers.and_then(|callers| match loops.get(&case.thread) {
            Some(known) => Some((callers.first_beyond(known.callers)?, known.place)),
            // A loop that is blocked nearly all the time hardly waits for work.
            None => Some((callers.called_by_known_loop()?, WAIT_FOR_WORK)),
        });
        if let Some((called, place)) = called {
            add(Block { cases: vec![case], ns: case.duration_ns(), called, place });
        }
    }
    let conclusions = groups.into_values().filter_map(|blocks| conclude(blocks, evidence));
    conclusions.chain(computing(evidence, &loops)).collect()
}

/// A time in which a loop did not return to its poll, because what it called waited: once, or again and again.
struct Block<'e> {
    cases: Vec<&'e Case>,
    /// From the start of the first wait to the end of the last one, without other waits in between.
    ns: u64,
    called: Called,
    place: &'e str,
}

impl<'e> Block<'e> {
    /// A wait of the kind that took the most time.
    fn longest(&self) -> Option<&'e Case> {
        let reason = mostly(&self.cases, |case| Some(case.reason))?;
        let of_it = self.cases.iter().copied().filter(|case| case.reason == reason);
        of_it.max_by_key(|case| (case.duration_ns(), case.id))
    }

    /// Whether the thread ended afterwards, and its loop never came back to its poll.
    fn is_end(&self, loops: &HashMap<ThreadKey, Loop<'_>>, evidence: &Evidence) -> bool {
        let Some((last, known)) = self.cases.last().and_then(|last| Some((*last, loops.get(&last.thread)?)))
        else {
            return false;
        };
        let ends = evidence
            .thread(last.thread)
            .is_some_and(|thread| thread.end.0 < evidence.start().0 + evidence.duration_ns());
        let is_turn = |case: &Case| case.start >= last.end && case.callers.as_deref() == Some(known.callers);
        ends && !last.open && !evidence.cases_of(last.thread).any(is_turn)
    }
}

/// The times in which a loop waited again and again in one called function, and not in its poll. Where long waits are most
/// of such a time, each is a block of its own.
fn waiting_periods<'e>(
    thread: ThreadKey,
    known: &Loop<'e>,
    evidence: &'e Evidence,
    reported: &Reported,
) -> Vec<Block<'e>> {
    let called = |case: &Case| {
        let callers = case.callers.as_ref().filter(|callers| !callers.has_left_its_loop())?;
        let called = callers.first_beyond(known.callers)?;
        (is_block(case, evidence) && !reported.has(case)).then_some(called)
    };
    let (mut periods, mut waits) = (Vec::new(), Vec::<(&Case, Called)>::new());
    let mut known_to = MonoNs(0);
    for case in evidence.cases_of(thread) {
        let next = called(case);
        let waits_for_events =
            case.voluntary && matches!(case.reason, StallReason::Blocked(Reason::Poll | Reason::Wait));
        let is_idle = next.is_none() && (waits_for_events || case.callers.as_deref() == Some(known.callers));
        let goes_on = waits.last().is_none_or(|(last, of)| {
            let gap_ns = case.start.0.saturating_sub(known_to.0);
            let is_same = next.as_ref().is_none_or(|next| next == of);
            is_same && gap_ns <= last.duration_ns().saturating_add(case.duration_ns()) / SHORT_GAP
        });
        if is_idle || !goes_on {
            periods.extend(waiting_period(std::mem::take(&mut waits), known.place, evidence));
        }
        waits.extend(next.map(|next| (case, next)));
        known_to = known_to.max(case.end);
    }
    periods.extend(waiting_period(waits, known.place, evidence));
    periods
}

/// Of these waits, if they took most of the time that other waits, for locks and CPUs, left to the callback.
fn waiting_period<'e>(
    waits: Vec<(&'e Case, Called)>,
    place: &'e str,
    evidence: &Evidence,
) -> Option<Block<'e>> {
    let (first, called) = waits.first()?;
    let (thread, from, to) = (first.thread, first.start, waits.last()?.0.end);
    let (ns, called) = (to.0.saturating_sub(from.0), called.clone());
    let cases: Vec<&Case> = waits.into_iter().map(|(case, _)| case).collect();
    let waited = Delays::of(cases.iter().map(|case| case.duration_ns()));
    let away: Delays = Delays::of(evidence.during(thread, from, to).map(|case| case.overlap_ns(from, to)));
    let own_ns = ns.saturating_sub(away.total_ns.saturating_sub(waited.total_ns));
    let long = Delays::of(cases.iter().map(|case| case.duration_ns()).filter(|ns| *ns >= SHORTEST_BLOCK_NS));
    let are_long = long.count > 0 && is_share(long.total_ns, 2, waited.total_ns);
    let is_one = waited.total_ns >= SHORTEST_BLOCK_NS && is_share(waited.total_ns, 2, own_ns) && !are_long;
    is_one.then_some(Block { cases, ns: own_ns, called, place })
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
    let mut examples: BTreeMap<ThreadKey, Vec<&Period>> = BTreeMap::new();
    for period in evidence.periods().filter(|period| !period.is_running || !period.samples.is_empty()) {
        examples.entry(period.thread).or_default().push(period);
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
    for (thread, examples) in &mut examples {
        leave_out_chance(*thread, examples, &mut groups);
    }
    let conclusions = groups.into_iter().filter_map(|((_, _, called, place), computed)| {
        let periods: Vec<&Period> = computed.iter().map(|computed| computed.period).collect();
        if periods.is_empty() {
            return None;
        }
        let keys: BTreeSet<ThreadKey> = periods.iter().map(|period| period.thread).collect();
        let threads: Vec<ThreadKey> = keys.into_iter().collect();
        let all = threads.iter().map(|thread| {
            let of_it = periods.iter().copied().filter(|period| period.thread == *thread);
            LikePeriods::of(*thread, &of_it.collect::<Vec<_>>(), &examples[thread], evidence)
        });
        let all = all.fold(LikePeriods::default(), LikePeriods::with);
        let kept = Delays::of(periods.iter().map(|period| period.duration_ns()));
        let own = Delays::of(computed.iter().map(|computed| computed.own_ns));
        let own = Delays { total_ns: scaled(own.total_ns, all.delays.total_ns, kept.total_ns), ..own };
        if !is_mostly_inside(&computed) || !own.is_heavy(evidence, &threads) {
            return None;
        }
        let totals: Vec<_> = threads.iter().filter_map(|thread| evidence.thread(*thread)).collect();
        let inside = mostly_inside(&periods, &called.name);
        let share = (all.delays.total_ns, kept.total_ns);
        if !evidence.has_turns() && is_usual_work(&computed, share, &called, inside, evidence, loops) {
            return None;
        }
        let inside = inside.map(|function| format!(", inside {}", short_name(function)));
        let title = format!(
            "{} did not return to {place} {}{}: its event loop was running in {}{}.",
            wording::threads(&totals),
            if all.is_estimate && all.delays.count > 1 { "about " } else { "" },
            wording::delays(&all.delays),
            words(&called),
            inside.unwrap_or_default(),
        );
        let advice = "Let another thread do what takes so long, or divide it: all else that the loop serves is late \
                      by as much.";
        Some(Problem::of_all(threads, all.delays).conclude(title, advice))
    });
    conclusions.collect()
}

/// One sample says where a thread was at one time: late in a period of one callback, the loop may be in the next one. So
/// periods with one sample elsewhere are no examples, where they are few beside those of the thread's main callback.
fn leave_out_chance<K: Ord>(
    thread: ThreadKey,
    examples: &mut Vec<&Period>,
    groups: &mut BTreeMap<K, Vec<Computed<'_>>>,
) {
    let of_thread = |group: &[Computed]| -> BTreeSet<MonoNs> {
        let periods = group.iter().map(|computed| computed.period);
        periods.filter(|period| period.thread == thread).map(|period| period.start).collect()
    };
    let main = groups.values().map(|group| of_thread(group)).max_by_key(BTreeSet::len).unwrap_or_default();
    let is_chance = |period: &Period| {
        period.thread == thread && period.samples.len() == 1 && !main.contains(&period.start)
    };
    let count = examples.iter().filter(|period| is_chance(period)).count();
    if count * FEW < main.len() {
        examples.retain(|period| !is_chance(period));
        groups.values_mut().for_each(|group| group.retain(|computed| !is_chance(computed.period)));
    }
}

/// All long periods of threads that are like some examples.
#[derive(Default)]
struct LikePeriods {
    delays: Delays,
    /// Whether other examples were unlike these, so that the number is a share of all.
    is_estimate: bool,
}

impl LikePeriods {
    /// Of one thread: of its long periods of each length, as many as there are `alike` ones among the `examples`. One that
    /// ran and has no sample is no example, and taken for one like the others.
    fn of(thread: ThreadKey, alike: &[&Period], examples: &[&Period], evidence: &Evidence) -> Self {
        let by_bucket = |periods: &[&Period]| {
            let mut lengths: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
            for ns in periods.iter().map(|period| period.duration_ns()) {
                lengths.entry(bucket_from_ns(ns)).or_default().push(ns);
            }
            lengths
        };
        let (mut alike_by, examples_by) = (by_bucket(alike), by_bucket(examples));
        let mut all = LikePeriods::default();
        for sum in evidence.long_sums(thread) {
            let lengths = alike_by.remove(&sum.bucket).unwrap_or_default();
            let of_it = examples_by.get(&sum.bucket).map_or(0, Vec::len);
            // Without an example of this length, those of all lengths have to do.
            let (part, whole) =
                if of_it == 0 { (alike.len(), examples.len()) } else { (lengths.len(), of_it) };
            let kept = Delays::of(lengths);
            if of_it as u64 == sum.count {
                all.delays = all.delays.with(kept);
                continue;
            }
            let is_whole = part == whole;
            let share = |ns: u64| scaled(ns, part as u64, whole as u64);
            let scaled = Delays {
                count: share(sum.count).max(kept.count),
                total_ns: share(sum.total_ns).max(kept.total_ns),
                max_ns: if is_whole { sum.max_ns } else { kept.max_ns },
            };
            all.is_estimate |= !is_whole && part > 0;
            all.delays = all.delays.with(scaled);
        }
        // Lengths at the limit, of whose bucket not all periods are long.
        let at_limit = Delays::of(alike_by.into_values().flatten());
        all.delays = all.delays.with(at_limit);
        all
    }

    fn with(self, other: Self) -> Self {
        let is_estimate = self.is_estimate || other.is_estimate;
        LikePeriods { delays: self.delays.with(other.delays), is_estimate }
    }
}

/// The part of `ns` that `part` is of `whole`, to the nearest.
fn scaled(ns: u64, part: u64, whole: u64) -> u64 {
    let whole = u128::from(whole.max(1));
    u64::try_from((u128::from(ns) * u128::from(part) + whole / 2) / whole).unwrap_or(u64::MAX)
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

/// Whether the threads are in the callback, and `inside` it, for most of their usual running time, too. Of that, the time
/// before the first samples in long periods is none: the examples are `share.1` of the `share.0` ns of all of these.
fn is_usual_work(
    computed: &[Computed],
    share: (u64, u64),
    called: &Called,
    inside: Option<&Arc<str>>,
    evidence: &Evidence,
    loops: &HashMap<ThreadKey, Loop<'_>>,
) -> bool {
    let heads = computed.iter().map(|computed| {
        let sampled: u64 = computed.period.samples.iter().map(|(_, ns)| ns).sum();
        computed.period.ran_ns.saturating_sub(sampled)
    });
    let heads_ns = scaled(heads.sum(), share.0, share.1);
    let threads: BTreeSet<ThreadKey> = computed.iter().map(|computed| computed.period.thread).collect();
    let (mut usual_ns, mut same_ns, mut samples) = (0u64, 0u64, 0);
    for sum in evidence.sums().filter(|sum| matches!(sum.loss, Loss::Usual) && threads.contains(&sum.thread))
    {
        usual_ns += sum.ns;
        let is_same = sum.callers.as_deref().zip(loops.get(&sum.thread)).is_some_and(|(callers, known)| {
            let is_inside = |function: &Arc<str>| {
                let mut inwards = callers.inwards_of(&called.name).into_iter().flatten();
                inwards.any(|inner| inner == function)
            };
            callers.first_beyond(known.callers).as_ref() == Some(called) && inside.is_none_or(is_inside)
        });
        if is_same {
            (same_ns, samples) = (same_ns + sum.ns, samples + sum.count);
        }
    }
    let own_ns = same_ns.saturating_sub(heads_ns);
    scaled(samples, own_ns, same_ns) >= LEAST_SAMPLES as u64
        && u128::from(own_ns) * 100 >= u128::from(usual_ns.saturating_sub(heads_ns)) * LEAST_PERCENT_OF_USUAL
}

/// The innermost function that nearly all samples below this one have.
fn mostly_inside<'e>(periods: &[&'e Period], function: &str) -> Option<&'e Arc<str>> {
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
    innermost
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

fn conclude<'e>(blocks: Vec<Block<'e>>, evidence: &Evidence) -> Option<Conclusion<'e>> {
    let (first, delays) = (blocks.first()?, Delays::of(blocks.iter().map(|block| block.ns)));
    let (waiting, called, place) = (waiting(first.longest()?), first.called.clone(), first.place);
    let cases: Vec<&Case> = blocks.into_iter().flat_map(|block| block.cases).collect();
    let waits = match cases.len() as u64 > delays.count {
        true => format!(", {} waits in all", cases.len()),
        false => String::new(),
    };
    let mut charged = Charged::over(cases, Case::duration_ns);
    charged.delays = delays;
    let problem = Problem::heavy(charged, evidence)?;
    let title = format!(
        "{} did not return to {place} {}: its event loop was {waiting} in {}{}{waits}.",
        wording::who(&problem.cases, evidence),
        wording::delays(&delays),
        words(&called),
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

/// A wait that no other rule is about, and at which no loop is idle.
fn is_block(case: &Case, evidence: &Evidence) -> bool {
    let blocks = matches!(
        case.reason,
        StallReason::Blocked(Reason::Child | Reason::Network | Reason::Pipe | Reason::Ipc)
    );
    case.is_asleep() || blocks && case.meaning.is_none() || is_blocking_call(case, evidence)
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
        let is_idle = case.voluntary && !case.is_asleep() && !is_blocking_call(case, evidence);
        let callers = case.callers.as_deref().filter(|_| is_idle);
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
    use super::super::fixture::{Fixture, WALL_NS, at, case, stack, steal};
    use super::*;
    use wallprof_model::profile::{Finding, StallRecord};
    use wallprof_model::{Meaning, MeaningSource};

    use super::super::SumRow;
    use wallprof_analysis::spans::{LongPeriod, LongSum};

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
            self.titles_of_all(&[])
        }

        /// Where these are the sums of all periods of 370 ms, and of such examples that waited.
        fn titles_of_all(&self, all: &[(u64, usize)]) -> Vec<String> {
            let mut fixture = Fixture::new();
            for &(count, waiting) in all {
                let (thread, bucket, ns) = (ThreadKey(1), bucket_from_ns(370 * MS), 370 * MS);
                fixture.long_sums.push(LongSum { thread, bucket, count, total_ns: count * ns, max_ns: ns });
                for turn in 1..=waiting as u64 {
                    let (start, end) = (MonoNs(turn * 2_000 * MS), MonoNs((turn * 2_000 + 370) * MS));
                    fixture.periods.push(LongPeriod { thread, start, end, ran_ns: MS, samples: Vec::new() });
                }
            }
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
    fn turns_of_which_one_is_an_example_count_all() {
        let found = LONG_TURN.titles_of_all(&[(19, 0)]);
        let words =
            "did not return to epoll_wait 19 times, 7.03 s in all, up to 370 ms: its event loop was running";
        assert!(found[0].contains(words), "{found:#?}");
        let found = LONG_TURN.titles_of_all(&[(1, 0)]);
        assert!(found[0].contains("did not return to epoll_wait for 370 ms: "), "{found:#?}");
        let found = LONG_TURN.titles_of_all(&[(20, 3)]);
        let words = "did not return to epoll_wait about 5 times, 1.85 s in all, up to 370 ms: ";
        assert!(found[0].contains(words), "three of four examples waited: {found:#?}");
        let found = LONG_TURN.titles_of_all(&[(4, 3)]);
        assert!(
            found[0].contains("did not return to epoll_wait for 370 ms: "),
            "all are examples: {found:#?}"
        );
    }

    /// Twelve long periods in `rebuild`, and `usual` samples of `function` at other times beside ten of `tick`.
    fn titles_beside_usual(usual: u64, functions: [&str; 2], has_turns: bool) -> Vec<String> {
        let mut fixture = Fixture::new();
        (0..20).for_each(|turn| fixture.stall(idle(turn, "epoll_wait", 50)));
        for turn in 0..12 {
            let samples = vec![(stack(&["mix", "rebuild", "run_loop", "main"]), 10 * MS)];
            let (start, end) = (MonoNs((turn * 100 + 60) * MS), MonoNs((turn * 100 + 72) * MS));
            let thread = ThreadKey(1);
            fixture.periods.push(LongPeriod { thread, start, end, ran_ns: 12 * MS, samples });
        }
        let [inner, called] = functions;
        for (count, functions) in
            [(usual, [inner, called, "run_loop", "main"]), (10, ["check", "tick", "run_loop", "main"])]
        {
            let (thread, user, ns) = (ThreadKey(1), Some(stack(&functions)), count * 10 * MS);
            fixture.sums.push(SumRow { thread, loss: Loss::Usual, user, kernel: None, ns, count });
        }
        fixture.info.has_turns = has_turns;
        findings(&fixture.evidence()).into_iter().map(|found| found.title).collect()
    }

    #[test]
    fn usual_work_of_many_turns_is_no_callback_that_computes() {
        let of_the_callback = ["mix", "rebuild"];
        assert_eq!(
            titles_beside_usual(13, of_the_callback, false),
            [""; 0],
            "more than half of what is usual"
        );
        // Of twelve periods, 24 ms in all passed before the first samples.
        assert_eq!(titles_beside_usual(12, of_the_callback, false).len(), 1, "less");
        assert_eq!(titles_beside_usual(4, of_the_callback, false).len(), 1, "too few samples");
        assert_eq!(titles_beside_usual(30, ["mix", "redraw"], false).len(), 1, "another callback");
        assert_eq!(
            titles_beside_usual(30, ["look_up", "rebuild"], false).len(),
            1,
            "elsewhere in the callback"
        );
        assert_eq!(titles_beside_usual(30, of_the_callback, true).len(), 1, "each is one turn");
    }

    #[test]
    fn one_sample_of_the_next_callback_is_no_other_turn() {
        let titles = |elsewhere: u64| -> Vec<String> {
            let mut fixture = Fixture::new();
            (0..20).for_each(|turn| fixture.stall(idle(turn, "epoll_wait", 50)));
            for turn in 0..12 + elsewhere {
                let callback = if turn < 12 { "rebuild" } else { "tick" };
                let samples = vec![(stack(&["mix", callback, "run_loop", "main"]), 10 * MS)];
                let (start, end) = (MonoNs((turn * 100 + 60) * MS), MonoNs((turn * 100 + 72) * MS));
                fixture.periods.push(LongPeriod {
                    thread: ThreadKey(1),
                    start,
                    end,
                    ran_ns: 12 * MS,
                    samples,
                });
            }
            let (thread, bucket) = (ThreadKey(1), bucket_from_ns(12 * MS));
            let (count, total_ns, max_ns) = (40, 480 * MS, 12 * MS);
            fixture.long_sums.push(LongSum { thread, bucket, count, total_ns, max_ns });
            findings(&fixture.evidence()).into_iter().map(|found| found.title).collect()
        };
        let found = titles(3);
        assert!(found.len() == 1 && found[0].contains("epoll_wait 40 times, 480 ms in all"), "{found:#?}");
        let found = titles(8);
        assert!(
            found.len() == 2 && found[0].contains("epoll_wait about 24 times, 288 ms in all"),
            "{found:#?}"
        );
        assert!(found[1].contains("epoll_wait about 16 times, 192 ms in all"), "{found:#?}");
    }

    /// Turns of the loop in which its callback waits `waits` times for 4 ms, and after each wait runs for `gap_us`, `polls_us`
    /// of which it polls.
    fn many_short(waits: u64, polls_us: u64, gap_us: u64) -> Vec<Finding> {
        let mut fixture = Fixture::new();
        for turn in 0..20 {
            fixture.stall(idle(turn * 2, "epoll_wait", 50));
            for number in 0..waits {
                let start_ns = (turn * 200 + 51) * MS + number * (4_000 + gap_us) * 1_000;
                let id = 1_000 + turn * 100 + number;
                fixture.stall(at(start_ns, StallRecord { id, ..block(turn, Reason::Network, 4) }));
                if polls_us > 0 {
                    let poll = StallRecord { id: id + 10_000, ..idle(turn, "epoll_wait", 1) };
                    let end = MonoNs(poll.start.0 + polls_us * 1_000);
                    fixture.stall(at(start_ns + 4_050_000, StallRecord { end, ..poll }));
                }
            }
        }
        let mut found = findings(&fixture.evidence());
        found.retain(|found| found.rule == RULE.name);
        found
    }

    #[test]
    fn turn_of_many_short_waits_is_one() {
        let found = many_short(20, 0, 600);
        assert_eq!(found.len(), 1, "{found:#?}");
        let words = "did not return to epoll_wait 20 times, 1.83 s in all, up to 91.4 ms: its event loop was waiting for the \
            network in serve_request, inside back_off, 400 waits in all.";
        assert!(found[0].title.contains(words), "{found:#?}");
        assert_eq!((found[0].count, found[0].stalls.len()), (20, 400));
        assert_eq!(many_short(20, 500, 600), [], "it polled after each of them");
        assert_eq!(many_short(20, 0, 900), [], "it may have polled, and found events");
        assert_eq!(many_short(2, 0, 600), [], "8 ms");
        assert_eq!(many_short(0, 0, 600), []);
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
    fn wait_before_the_end_of_the_thread_is_none() {
        let titles = |end_ms: u64, turns_afterwards: u64| -> Vec<String> {
            let mut fixture = Fixture::new();
            (0..20).for_each(|turn| fixture.stall(idle(turn, "epoll_wait", 50)));
            fixture.stall(block(20, Reason::Child, 400));
            (25..25 + turns_afterwards).for_each(|turn| fixture.stall(idle(turn, "epoll_wait", 50)));
            fixture.threads[0].end = MonoNs(end_ms * MS);
            findings(&fixture.evidence()).into_iter().map(|found| found.title).collect()
        };
        let whole_ms = WALL_NS / MS;
        assert_eq!(titles(2_500, 0), [""; 0]);
        assert_eq!(titles(whole_ms, 0).len(), 1, "the thread goes on");
        assert_eq!(titles(2_700, 1).len(), 1, "the loop went on");
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
