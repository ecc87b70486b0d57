// SPDX-License-Identifier: Apache-2.0
//! Shared code of the rules about locks: the stalls that they read, the owner of the lock and its activity
//! meanwhile, the place where the lock was released, and the finding about it.

use std::collections::HashSet;
use std::sync::Arc;

use wallprof_analysis::tally::Tally;
use wallprof_meaning::short_name;
use wallprof_meaning::site::Site;
use wallprof_meaning::waits::{FUTURE, LATCH};
use wallprof_model::{MonoNs, Reason, StallReason, ThreadKey};

use super::case::{Case, Party, mostly};
use super::conclusion::{Charged, Conclusion, Problem};
use super::evidence::Evidence;
use super::holding::{Holding, Releases};
use super::known::RolledBack;
use super::limits::{SHORTEST_BLOCK_NS, is_four_fifths, is_share, wall_ns};
use super::relay::Relay;
use super::spec::Reported;
use super::{known, other_end, safepoint, wording};

/// Locks that an interpreter has one of, by software and name.
const OF_PROCESS: [(&str, &str); 2] = [("cpython", "GIL"), ("ruby", "GVL")];

/// Names of waits for space begin so, `full queue`.
pub(super) const FULL: &str = "full ";

/// Names of waits for one of several things that a pool lends begin so, `pooled connection`.
const OF_SEVERAL: &str = "pooled ";

/// Holders that are followed in one wait.
const MOST_HOLDERS: usize = 64;

/// Threads hold a lock in turn where they end one of this many parts of their own waiting for it.
const IN_TURN: u64 = 2;

/// The fewest threads that wait where two of them are said to have had the lock.
const FEWEST_BESIDE_TWO: usize = 4;

/// The fewest waits for results that are worth a finding, and the part of the threads' time that the long ones take: a program
/// waits for its tasks once at its end, and a client for its answers now and then.
const LEAST_RESULTS: u64 = 8;
const RESULTS_PART: u64 = 10;
/// Shorter waits for results count from this many times the shortest stall on. Without long ones they take this part.
const SHORT_RESULT: u64 = 10;
const SHORT_RESULTS_PART: u64 = 3;

/// Waits for a lock that no earlier rule has reported. Those for the results of other threads come as fast as they can: without
/// the shortest ones.
pub(super) fn waits<'e: 't, 't>(
    evidence: &'e Evidence,
    reported: &'t Reported,
) -> impl Iterator<Item = &'e Case> + use<'e, 't> {
    let least_ns = evidence.unit_ns().saturating_mul(SHORT_RESULT);
    let is_short = move |case: &Case| case.is_for_a_result() && case.without_run_queue_ns() < least_ns;
    evidence.cases().filter(move |case| is_wait(case) && !is_short(case) && !reported.has(case))
}

pub(super) fn is_wait(case: &Case) -> bool {
    case.is_for_a_lock()
}

/// Every program waits for its locks now and then. Waits that its rules name, such as those of a database for
/// the commit of another client, have to be a part of the time.
pub(super) fn problem<'e>(charged: Charged<'e>, evidence: &Evidence) -> Option<Problem<'e>> {
    if charged.cases.iter().all(|case| case.is_for_a_result()) {
        let problem = Problem::heavy(charged, evidence)?;
        let delays = problem.delays;
        let ended = problem.cases.iter().filter(|case| case.waker_key().is_some()).count() as u64;
        let wall_ns = wall_ns(evidence, &problem.threads);
        let long_ns = known::part_ns(&problem.cases, |case| case.without_run_queue_ns() >= SHORTEST_BLOCK_NS);
        let is_part = is_share(long_ns, RESULTS_PART, wall_ns)
            || is_share(delays.total_ns, SHORT_RESULTS_PART, wall_ns);
        return (ended >= LEAST_RESULTS && is_part).then_some(problem);
    }
    match charged.cases.iter().all(|case| case.said().is_some()) {
        true => Problem::heavy_or_frequent(charged, evidence),
        false => Problem::unusual(charged, evidence),
    }
}

/// `a lock`, `a row lock`, `DNS`, `a lock of the kernel (munmap)`: what the threads waited for.
pub(super) fn what(cases: &[&Case]) -> String {
    let name = mostly(cases, |case| Some(case.meaning.as_ref()?.name.clone()));
    name.map_or_else(|| by_call(cases), |name| named(&name))
}

/// The same of waits that a rule names.
pub(super) fn named(name: &str) -> String {
    if name.starts_with(OF_SEVERAL)
        || ["lock", "key", "virtual thread", "stall", "group", FUTURE, LATCH]
            .iter()
            .any(|noun| name.ends_with(noun))
    {
        // `a unique key`
        let article = if name.starts_with(['a', 'e', 'i', 'o']) { "an" } else { "a" };
        return format!("{article} {name}");
    }
    match (name.strip_prefix(FULL), name) {
        (Some(of), _) => format!("space in a {of}"),
        // --not-idle names the functions, not what they wait for.
        (None, "not idle") => "others".to_owned(),
        (None, name) => name.to_owned(),
    }
}

/// By the system call, where no rule names the wait: calls that take the program's own locks, and others, in which the kernel
/// takes its own.
fn by_call(cases: &[&Case]) -> String {
    const OWN: [&str; 3] = ["futex", "semop", "semtimedop"];
    const OF_FILES: [&str; 2] = ["flock", "fcntl"];
    let call = mostly(cases, |case| Some((case.fault.is_some(), case.syscall.clone())));
    match call {
        Some((true, _)) => "a lock of the kernel (page fault)".to_owned(),
        Some((_, Some(call))) if OF_FILES.contains(&&*call) => "a file lock".to_owned(),
        Some((_, Some(call))) if !OWN.contains(&&*call) => format!("a lock of the kernel ({call})"),
        _ => "a lock".to_owned(),
    }
}

/// Whether the waits are for space in what the waiting threads fill, and others empty.
pub(super) fn is_for_space(cases: &[&Case]) -> bool {
    is_called(cases, FULL)
}

/// Whether the waits are for what other threads bring about for the waiting ones.
pub(super) fn is_for_results(cases: &[&Case]) -> bool {
    mostly(cases, |case| Some(case.is_for_a_result())) == Some(true)
}

/// Whether the waits are for one of several things that a pool lends: several threads have one each.
pub(super) fn is_pooled(cases: &[&Case]) -> bool {
    is_called(cases, OF_SEVERAL)
}

/// Whether the name of what the waits are for begins so.
fn is_called(cases: &[&Case], start: &str) -> bool {
    mostly(cases, |case| Some(case.meaning.as_ref()?.name.clone()))
        .is_some_and(|name| name.starts_with(start))
}

/// `engine waited for WHAT in take_order 7 times, …: housekeeper held it …`, where that is unusual. `advice` is about
/// these waits, and whether timers ended them.
pub(super) fn conclude<'e>(
    cases: Vec<&'e Case>,
    evidence: &Evidence,
    what: &str,
    advice: impl FnOnce(&[&Case], bool) -> String,
) -> Option<Conclusion<'e>> {
    let (problem, waited) = waited(cases, evidence, what, "")?;
    let rolled_back = RolledBack::of(&problem.cases);
    let title = format!("{waited}{}.", holder(&problem.cases, evidence, rolled_back.as_ref()));
    let advice = advice(&problem.cases, rolled_back.is_some());
    Some(problem.conclude(title, advice))
}

/// `engine waited for WHAT in take_order 7 times, 4.00 ms in all`, with `note` behind the threads' name: where
/// the waits are unusual.
pub(super) fn waited<'e>(
    cases: Vec<&'e Case>,
    evidence: &Evidence,
    what: &str,
    note: &str,
) -> Option<(Problem<'e>, String)> {
    let problem = problem(Charged::over(cases, Case::duration_ns), evidence)?;
    let delays = problem.delays;
    let words = format!(
        "{}{note} waited for {what}{} {}",
        wording::who(&problem.cases, evidence),
        wording::place(problem.site().as_ref()),
        wording::delays(&delays)
    );
    Some((problem, words))
}

/// `: housekeeper held it, itself off the CPU for 55 % of that time (sleep in sweep), and released it in
/// release`. Where it is not known of most of the time who held it, for how much it is not.
pub(super) fn holder(cases: &[&Case], evidence: &Evidence, rolled_back: Option<&RolledBack>) -> String {
    if is_for_results(cases)
        && let Some(relay) = Relay::of(cases, evidence)
    {
        return other_end::ended_while(cases, evidence, &relay.words());
    }
    if is_for_space(cases) || is_for_results(cases) {
        return other_end::ended(cases, evidence);
    }
    if let Some((owner, named)) = owner_name(cases) {
        return owned(cases, evidence, &owner, named);
    }
    safepoint::late_thread(cases, evidence).unwrap_or_else(|| handed(cases, evidence, rolled_back))
}

/// What is done with the lock, and how it ends: of what a pool lends each thread has one of several.
fn verbs(cases: &[&Case]) -> (&'static str, &'static str) {
    if is_pooled(cases) { ("had one", "gave it back") } else { ("held it", "released it") }
}

/// Of a lock that names its owner.
fn owned(cases: &[&Case], evidence: &Evidence, owner: &str, named: Option<&Party>) -> String {
    let (held, released) = verbs(cases);
    let release = wording::spot(release_by(cases, named).as_ref());
    let away = away(cases, evidence, named);
    let ended = match release.as_str() {
        "" if known::is_interrupted(cases) && !mostly_asked_again(cases) => {
            " until the waits timed out".to_owned()
        }
        "" => String::new(),
        spot => format!(" and {released}{spot}"),
    };
    let away = if ended.is_empty() { away.trim_end_matches(',') } else { &away };
    let function = Holding::of(cases, evidence).function().map(|function| short_name(function));
    let inside = function.map(|function| format!(" in {function}")).filter(|place| *place != release);
    format!(": {owner} {held}{}{away}{ended}", inside.unwrap_or_default())
}

/// Of a lock without an owner word, by the threads that handed it on.
fn handed(cases: &[&Case], evidence: &Evidence, rolled_back: Option<&RolledBack>) -> String {
    let (held, released) = verbs(cases);
    let (times, waited_ns) = (holding_times(cases, evidence), known::waited_ns(cases));
    let has_meaning = cases.iter().all(|case| case.meaning.is_some());
    let has_holder = cases.iter().any(|case| case.meaning.as_ref().is_some_and(|meaning| meaning.holder));
    let Some((holder, longest_ns)) = times.top().filter(|_| known::is_most(times.total(), waited_ns)) else {
        let is_of_process = cases.first().is_some_and(|case| of_process(case).is_some());
        let computing = is_of_process.then(|| computing(cases, evidence)).flatten();
        return computing.unwrap_or_else(|| match has_meaning && !has_holder {
            true => known::no_end(cases, times.total()),
            false => rolled_back.map_or_else(|| known::no_holder(cases, times.total()), RolledBack::words),
        });
    };
    let release = wording::spot(release_of_holder(&times, cases, evidence).as_ref());
    let titled = with_title(holder, cases);
    let is_one = longest_ns > waited_ns / 2;
    if !has_meaning || !has_holder {
        let did = if has_meaning { "ended it" } else { released };
        if !is_one && let Some(name) = known::namesakes(&times, waited_ns) {
            let release = release_of(&times, cases, evidence, |party| party.comm == name);
            return format!(": {} {did}{}", known::several(&name), wording::spot(release.as_ref()));
        }
        if !is_one {
            let part = known::largest_part(longest_ns, waited_ns);
            return format!(": of several threads {titled} {did}{release}{part}");
        }
        let meanwhile = match has_meaning || cases.iter().any(|case| Some(case.thread) == holder.key) {
            true => String::new(),
            false => other_end::waited_meanwhile(holder, cases, evidence),
        };
        return format!(": {titled} {did}{release}{meanwhile}");
    }
    let released = match release.as_str() {
        "" => String::new(),
        spot => format!(" and {released}{spot}"),
    };
    if is_in_turn(&times, cases) {
        let away = away(cases, evidence, None).replacen(", itself", ", each", 1);
        let held = match two_holders(&times, cases) {
            Some([first, second]) => {
                format!("{} and {} {held}", with_title(first, cases), with_title(second, cases))
            }
            None => format!("they {held} in turn"),
        };
        return with_end(format!(": {held}{away}"), &released);
    }
    if !is_one {
        let share = wording::percent(longest_ns, waited_ns);
        let away = away(cases, evidence, None).replacen(", itself", ", the holders", 1);
        let away = away.trim_end_matches(',');
        let comma = if released.is_empty() { "" } else { "," };
        return format!(
            ": of several threads {titled} {held} longest, for {share} of that time{away}{comma}{released}"
        );
    }
    with_end(format!(": {titled} {held}{}", away(cases, evidence, Some(holder))), &released)
}

/// A comma stands between two parts only.
fn with_end(words: String, end: &str) -> String {
    match end {
        "" => words.trim_end_matches(',').to_owned(),
        end => words + end,
    }
}

/// Where the lock was released: by the thread that the words about it name as its holder, if they name one.
pub(super) fn release(cases: &[&Case], evidence: &Evidence) -> Option<Arc<Site>> {
    match owner_name(cases) {
        Some((_, named)) => release_by(cases, named),
        None => {
            let times = holding_times(cases, evidence);
            let is_known = known::is_most(times.total(), known::waited_ns(cases));
            is_known.then(|| release_of_holder(&times, cases, evidence)).flatten()
        }
    }
}

/// Of a lock without an owner word. The thread that is named may have let go for one that waited for the lock elsewhere
/// and handed it on.
fn release_of_holder(times: &Tally<Party>, cases: &[&Case], evidence: &Evidence) -> Option<Arc<Site>> {
    match named_of(times, cases) {
        Some(named) => release_of(times, cases, evidence, |party| party.is_same_thread(named)),
        None => release_by(cases, None),
    }
}

/// Where the holders that are `wanted` let go, if that is known of most of the time for which they had it.
fn release_of(
    times: &Tally<Party>,
    cases: &[&Case],
    evidence: &Evidence,
    wanted: impl Fn(&Party) -> bool,
) -> Option<Arc<Site>> {
    let mut places: Tally<Arc<Site>> = Tally::default();
    for held in cases.iter().flat_map(|case| holders(case, evidence)) {
        if let (true, Some(place)) = (wanted(held.holder), held.ended.release()) {
            places.add(place.clone(), held.ns());
        }
    }
    let of_wanted = times.ranked().into_iter().filter(|(party, _)| wanted(party));
    let held_ns = of_wanted.fold(0u64, |sum, (_, ns)| sum.saturating_add(ns));
    places.top().filter(|_| known::is_most(places.total(), held_ns)).map(|(place, _)| place.clone())
}

/// Where `holder` let go; without one, where most of the waits' time ended. A thread that has the lock for a moment, as
/// the next one that waited for it does, lets go of it elsewhere.
fn release_by(cases: &[&Case], holder: Option<&Party>) -> Option<Arc<Site>> {
    let by_it = |case: &Case| match (holder, case.waker.as_ref().and_then(|waker| waker.by.as_ref())) {
        (Some(holder), Some(waker)) => holder.is_same_thread(waker),
        (holder, _) => holder.is_none(),
    };
    mostly(cases, |case| case.release().filter(|_| by_it(case)).cloned())
}

/// The one thread that is named as the holder, where the words do not name all of them.
fn named_of<'t>(times: &'t Tally<Party>, cases: &[&Case]) -> Option<&'t Party> {
    times.top().map(|(party, _)| party).filter(|_| !is_in_turn(times, cases))
}

/// Whether no thread had the lock for most of the time, and those that waited for it had it meanwhile.
fn is_in_turn(times: &Tally<Party>, cases: &[&Case]) -> bool {
    let (longest_ns, whole_ns) = (times.top().map_or(0, |(_, ns)| ns), known::waited_ns(cases));
    let waiters: HashSet<ThreadKey> = cases.iter().map(|case| case.thread).collect();
    let by_waiter = |party: &Party| party.key.is_some_and(|holder| waiters.contains(&holder));
    let by_waiters = times.ranked().into_iter().filter(|(party, _)| by_waiter(party));
    longest_ns <= whole_ns / 2 && is_share(by_waiters.map(|(_, ns)| ns).sum(), IN_TURN, whole_ns)
}

/// The two threads that had the locks for nearly all of the time, where more threads than these waited: of rows or tables
/// that are waited for at one place each has one.
fn two_holders<'t>(times: &'t Tally<Party>, cases: &[&Case]) -> Option<[&'t Party; 2]> {
    let waiters: HashSet<ThreadKey> = cases.iter().map(|case| case.thread).collect();
    let ranked = times.ranked();
    let [(first, first_ns), (second, second_ns), ..] = ranked.as_slice() else { return None };
    let is_most = is_four_fifths(first_ns.saturating_add(*second_ns), known::waited_ns(cases));
    (waiters.len() >= FEWEST_BESIDE_TWO && is_most).then_some([*first, *second])
}

/// The thread of the interpreter that ran for most of the waits: it had the lock, without which it could not. Ruby
/// 3.1's waiting threads end their own waits by a timeout, so that nothing else says who that was. Threads that are
/// known to take the lock go before those of which only the process is known: a library's own threads run without.
fn computing(cases: &[&Case], evidence: &Evidence) -> Option<String> {
    let mut waits: Tally<ThreadKey> = Tally::default();
    cases.iter().for_each(|case| waits.add(case.thread, case.duration_ns()));
    let (first, (waiter, waited_ns)) = (cases.first()?, waits.top()?);
    let threads = evidence.threads_of(first.pid);
    let others: Vec<ThreadKey> = threads.into_iter().filter(|key| key != waiter).collect();
    let takes_it =
        |key: &&ThreadKey| evidence.cases_of(**key).any(|case| of_process(case) == of_process(first));
    let known: Vec<ThreadKey> = others.iter().filter(takes_it).copied().collect();
    let others = if known.is_empty() { others } else { known };
    let running = others.into_iter().filter_map(|key| evidence.thread(key));
    let ran = running.max_by_key(|thread| thread.on_cpu_ns)?;
    is_share(ran.on_cpu_ns, 2, waited_ns).then(|| {
        let share = wording::percent(ran.on_cpu_ns, evidence.duration_ns());
        format!(": {} held it, and ran for {share} of the recording", ran.comm)
    })
}

/// How long each thread had a lock without an owner word, of the waits' time of which the holder is known.
fn holding_times(cases: &[&Case], evidence: &Evidence) -> Tally<Party> {
    let mut times: Tally<Party> = Tally::default();
    for case in cases {
        for held in holders(case, evidence) {
            times.add(held.holder.clone(), held.ns());
        }
    }
    times
}

/// A thread that had what another one waited for, during that wait.
pub(super) struct HandedOn<'e> {
    holder: &'e Party,
    since: MonoNs,
    until: MonoNs,
    /// The wait that it ended by letting go.
    pub ended: &'e Case,
}

impl HandedOn<'_> {
    pub fn ns(&self) -> u64 {
        self.until.0.saturating_sub(self.since.0)
    }
}

/// The threads that had the lock during a wait, the last one first: the one that ended the wait had it since its own
/// last wait for it, and before that the one that ended that wait had it. A thread that wakes another one of its
/// interpreter has the lock of that, whatever the other one waits for.
fn holders<'e>(case: &'e Case, evidence: &'e Evidence) -> Vec<HandedOn<'e>> {
    handed_on(case, evidence, |wait| match of_process(case) {
        Some(_) => matches!(wait.reason, StallReason::Blocked(_) | StallReason::Runnable),
        None => is_same_lock(wait, case),
    })
}

/// The same, where `is_own` says whether another wait is for the same.
pub(super) fn handed_on<'e>(
    case: &'e Case,
    evidence: &'e Evidence,
    is_own: impl Fn(&Case) -> bool,
) -> Vec<HandedOn<'e>> {
    let mut holders = Vec::new();
    let (mut of, mut until) = (case, case.woken());
    while holders.len() < MOST_HOLDERS {
        let Some(party) = of.waker.as_ref().and_then(|waker| waker.by.as_ref()) else { break };
        let own = |wait: &&Case| wait.woken() < until && wait.id != of.id && is_own(wait);
        let own = party.key.and_then(|key| evidence.during(key, case.start, until).filter(own).last());
        let since = own.map_or(case.start, Case::woken).max(case.start);
        holders.push(HandedOn { holder: party, since, until, ended: of });
        let Some(own) = own.filter(|_| since > case.start) else { break };
        (of, until) = (own, since);
    }
    holders
}

/// The owner of the lock in most of the waits, as the words have it, and which thread that is. Threads of one name that
/// have it in turn have no number, and are none.
fn owner_name<'c>(cases: &[&'c Case]) -> Option<(String, Option<&'c Party>)> {
    let mut owners: Tally<&'c Party> = Tally::default();
    for &case in cases {
        if let Some(owner) = owner(case) {
            owners.add(owner, case.late_ns());
        }
    }
    let waited_ns = cases.iter().fold(0u64, |sum, case| sum.saturating_add(case.late_ns()));
    if !known::is_most(owners.total(), waited_ns) {
        return None;
    }
    let (most, ns) = owners.top()?;
    let waiter = cases.iter().find(|case| owner(case) == Some(*most))?;
    Some(match ns.saturating_mul(2) > owners.total() {
        true => (wording::other(most, waiter), Some(*most)),
        false => (mostly(cases, |case| Some(wording::party(owner(case)?, case.pid)))?, None),
    })
}

/// The thread that ended waits, with what its process called itself.
fn with_title(waker: &Party, cases: &[&Case]) -> String {
    let by_it: Vec<&Case> = cases.iter().copied().filter(|case| case.waited_for() == Some(waker)).collect();
    let title = mostly(&by_it, |case| case.title_waited_for().cloned());
    match cases.first() {
        Some(waiter) => wording::titled(waker, title.as_deref(), waiter),
        None => wording::name(waker),
    }
}

/// Whether the threads slept, to ask again: the holder does not end such a wait.
fn mostly_asked_again(cases: &[&Case]) -> bool {
    mostly(cases, |case| Some(case.reason)) == Some(StallReason::Blocked(Reason::Sleep))
}

/// The reason why the holder of the lock was off the CPU, where that was a fifth of the waiting time or more: `named`, or all
/// holders.
fn away(cases: &[&Case], evidence: &Evidence, named: Option<&Party>) -> String {
    let mut why: Tally<(String, Option<Arc<Site>>)> = Tally::default();
    let whole_ns = known::waited_ns(cases);
    let is_one = |held: &Held| named.is_none_or(|named| named.key == Some(held.holder));
    for Held { holder, since, released } in held(cases, evidence).into_iter().filter(is_one) {
        for absence in evidence.during(holder, since, released) {
            let by_chance = matches!(absence.reason, StallReason::Preempted | StallReason::Runnable);
            let site = absence.site.clone().filter(|_| !by_chance);
            why.add((wording::wait(absence), site), absence.overlap_ns(since, released));
        }
    }
    if why.total() < whole_ns / 5 {
        return String::new();
    }
    let Some(((reason, site), _)) = why.top() else { return String::new() };
    let share = wording::percent(why.total(), whole_ns);
    format!(", itself off the CPU for {share} of that time ({reason}{}),", wording::spot(site.as_ref()))
}

/// A recorded thread that had a lock while another one waited for it, and when.
pub(super) struct Held {
    pub holder: ThreadKey,
    pub since: MonoNs,
    pub released: MonoNs,
}

/// Who held the lock in each wait of which that is known: the owner that the lock names, else the threads that handed
/// it on. The holder of a lock that was handed on is not the reason for a wait for a CPU.
pub(super) fn held(cases: &[&Case], evidence: &Evidence) -> Vec<Held> {
    let releases = Releases::of(cases);
    let held = cases.iter().flat_map(|case| match owner(case) {
        Some(owner) => {
            let until = |holder| releases.end_of_holding(case, holder);
            owner
                .key
                .map(|holder| Held { holder, since: case.start, released: until(holder) })
                .into_iter()
                .collect()
        }
        None => {
            let of_known = |held: HandedOn<'_>| {
                Some(Held { holder: held.holder.key?, since: held.since, released: held.until })
            };
            holders(case, evidence).into_iter().filter_map(of_known).collect::<Vec<_>>()
        }
    });
    held.collect()
}

/// The name of the lock that an interpreter has for all of its threads, where the wait is for that one: whatever the
/// function, and whatever word of it the thread waits at.
pub(super) fn of_process(case: &Case) -> Option<&str> {
    let meaning = case.meaning.as_ref().filter(|meaning| !meaning.idle)?;
    let is_of_process = |&(software, name): &(&str, &str)| {
        meaning.software.as_deref() == Some(software) && meaning.name == name
    };
    OF_PROCESS.iter().any(is_of_process).then_some(&*meaning.name)
}

/// Whether both are waits for one lock, as far as that is known.
pub(super) fn is_same_lock(one: &Case, other: &Case) -> bool {
    if let (Some(one_name), Some(other_name)) = (of_process(one), of_process(other)) {
        return one.pid == other.pid && one_name == other_name;
    }
    let place = |case: &Case| case.site.as_ref().and_then(|site| site.functions.first().cloned());
    let address = |case: &Case| case.lock.as_ref().map(|lock| (case.pid, lock.address));
    is_wait(one) && is_wait(other) && address(one) == address(other) && place(one) == place(other)
}

fn owner(case: &Case) -> Option<&Party> {
    case.lock.as_ref()?.owner.as_ref()
}
