//! Shared code of the rules about locks: the stalls that they read, the owner of the lock and its activity
//! meanwhile, the place where the lock was released, and the finding about it.

use std::collections::HashSet;
use std::sync::Arc;

use wallprof_model::{MonoNs, Reason, StallReason, ThreadKey};

use super::case::{Case, Party, mostly};
use super::conclusion::{Conclusion, Problem};
use super::evidence::Evidence;
use super::holding::{Holding, Releases};
use super::limits::{Delays, is_share};
use super::spec::Reported;
use super::wording;
use crate::short_name::short_name;
use crate::site::Site;
use crate::tally::Tally;

/// Threads hold a lock in turn where they end one of this many parts of their own waiting for it.
const IN_TURN: u64 = 2;

/// Waits for a lock that no earlier rule has reported.
pub(super) fn waits<'e: 't, 't>(
    evidence: &'e Evidence,
    reported: &'t Reported,
) -> impl Iterator<Item = &'e Case> + use<'e, 't> {
    evidence.cases().filter(|case| is_wait(case) && !reported.has(case))
}

pub(super) fn is_wait(case: &Case) -> bool {
    case.is_for_a_lock()
}

/// Every program waits for its locks now and then. Waits that its rules name, such as those of a database for
/// the commit of another client, have to be a part of the time.
pub(super) fn problem<'e>(cases: Vec<&'e Case>, delays: Delays, evidence: &Evidence) -> Option<Problem<'e>> {
    match cases.iter().all(|case| case.said().is_some()) {
        true => Problem::heavy(cases, delays, evidence),
        false => Problem::unusual(cases, delays, evidence),
    }
}

/// `a lock`, `a row lock`, `DNS`: what the threads waited for.
pub(super) fn what(cases: &[&Case]) -> String {
    let name = mostly(cases, |case| Some(case.meaning.as_ref()?.name.clone()));
    match name.as_deref() {
        None => "a lock".to_owned(),
        Some(name) if name.ends_with("lock") => format!("a {name}"),
        // --not-idle names the functions, not what they wait for.
        Some("not idle") => "others".to_owned(),
        Some(name) => name.to_owned(),
    }
}

/// `engine waited for WHAT in take_order 7 times, …: housekeeper held it …`, where that is unusual.
pub(super) fn conclude<'e>(
    cases: Vec<&'e Case>,
    evidence: &Evidence,
    what: &str,
    advice: impl Into<String>,
) -> Option<Conclusion<'e>> {
    let (problem, waited) = waited(cases, evidence, what, "")?;
    let title = format!("{waited}{}.", holder(&problem.cases, evidence));
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
    let delays = Delays::over(&cases, Case::duration_ns);
    let problem = problem(cases, delays, evidence)?;
    let words = format!(
        "{}{note} waited for {what}{} {}",
        wording::who(&problem.cases, evidence),
        wording::place(problem.site().as_ref()),
        wording::delays(&delays)
    );
    Some((problem, words))
}

/// `: housekeeper held it, itself off the CPU for 55 % of that time (sleep in sweep), and released it in
/// release`.
pub(super) fn holder(cases: &[&Case], evidence: &Evidence) -> String {
    let release = mostly(cases, |case| case.release().cloned());
    let release = wording::spot(release.as_ref());
    let owner = owner_name(cases);
    if let Some(owner) = owner {
        let away = away(cases, evidence);
        let ended = match release.as_str() {
            "" if mostly_interrupted(cases) && !mostly_asked_again(cases) => {
                " until the waits timed out".to_owned()
            }
            "" => String::new(),
            spot => format!(" and released it{spot}"),
        };
        let function = Holding::of(cases, evidence).function().map(|function| short_name(function));
        let inside = function.map(|function| format!(" in {function}")).filter(|place| *place != release);
        return format!(": {owner} held it{}{away}{ended}", inside.unwrap_or_default());
    }
    let waker = mostly(cases, |case| case.waker.as_ref()?.by.clone());
    let Some(waker) = waker else { return String::new() };
    let titled = titled(&waker, cases);
    if !cases.iter().all(|case| case.meaning.is_some()) {
        return format!(": {titled} released it{release}");
    }
    if !cases.iter().any(|case| case.meaning.as_ref().is_some_and(|meaning| meaning.holder)) {
        return format!(": {titled} ended it{release}");
    }
    let away = away(cases, evidence);
    let ns = |cases: &mut dyn Iterator<Item = &&Case>| -> u64 { cases.map(|case| case.duration_ns()).sum() };
    let by_waker = |case: &&&Case| case.waker.as_ref().and_then(|woken| woken.by.as_ref()) == Some(&waker);
    let (whole_ns, by_it_ns) = (ns(&mut cases.iter()), ns(&mut cases.iter().filter(by_waker)));
    if by_it_ns <= whole_ns / 2 {
        let waiters: HashSet<ThreadKey> = cases.iter().map(|case| case.thread).collect();
        let by_waiter = |case: &&&Case| case.waker_key().is_some_and(|waker| waiters.contains(&waker));
        if is_share(ns(&mut cases.iter().filter(by_waiter)), IN_TURN, whole_ns) {
            let away = away.replacen(", itself", ", each", 1);
            return format!(": they held it in turn{away} and released it{release}");
        }
        let share = wording::percent(by_it_ns, whole_ns);
        let away = away.replacen(", itself", ", the holders", 1);
        let away = away.trim_end_matches(',');
        return format!(
            ": of several threads {titled} held it longest, for {share} of that time{away}, and released it{release}"
        );
    }
    format!(": {titled} held it{away} and released it{release}")
}

/// The owner of the lock in most of the waits. Threads of one name that have it in turn have no number.
fn owner_name(cases: &[&Case]) -> Option<String> {
    let mut owners: Tally<&Party> = Tally::default();
    for case in cases {
        if let Some(owner) = owner(case) {
            owners.add(owner, case.late_ns());
        }
    }
    let (most, ns) = owners.top()?;
    let waiter = cases.iter().find(|case| owner(case) == Some(*most))?;
    Some(match ns.saturating_mul(2) > owners.total() {
        true => wording::other(most, waiter),
        false => mostly(cases, |case| Some(wording::party(owner(case)?, case.pid)))?,
    })
}

/// The thread that ended waits, with what its process called itself.
fn titled(waker: &Party, cases: &[&Case]) -> String {
    let by_it: Vec<&Case> = cases.iter().copied().filter(|case| case.waited_for() == Some(waker)).collect();
    let title = mostly(&by_it, |case| case.title_waited_for().cloned());
    match cases.first() {
        Some(waiter) => wording::titled(waker, title.as_deref(), waiter),
        None => wording::name(waker),
    }
}

/// Whether interrupts ended most of the waits: of waits for a lock only timers do.
fn mostly_interrupted(cases: &[&Case]) -> bool {
    let interrupted = |case: &&&Case| case.waker.as_ref().is_some_and(|waker| waker.by.is_none());
    cases.iter().filter(interrupted).count() * 2 > cases.len()
}

/// Whether the threads slept, to ask again: the holder does not end such a wait.
fn mostly_asked_again(cases: &[&Case]) -> bool {
    mostly(cases, |case| Some(case.reason)) == Some(StallReason::Blocked(Reason::Sleep))
}

/// The reason why the owner of the lock was off the CPU, where that was a fifth of the time or more.
fn away(cases: &[&Case], evidence: &Evidence) -> String {
    let mut why: Tally<(String, Option<Arc<Site>>)> = Tally::default();
    let mut whole_ns = 0u64;
    for Held { holder, since, released } in held(cases, evidence) {
        whole_ns = whole_ns.saturating_add(released.0.saturating_sub(since.0));
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

/// Who held the lock in each wait of which that is known.
pub(super) fn held(cases: &[&Case], evidence: &Evidence) -> Vec<Held> {
    let releases = Releases::of(cases);
    let held = cases.iter().filter_map(|case| {
        let (holder, since) = held_by(case, evidence)?;
        // The holder of a lock that was handed on is not the reason for a wait for a CPU.
        let released = match owner(case) {
            Some(_) => releases.end_of_holding(case, holder),
            None => case.woken(),
        };
        Some(Held { holder, since, released })
    });
    held.collect()
}

/// The recorded thread that had the lock, and from when on. If no lock word contains the owner's tid, that
/// is the thread that released the lock, from the end of its own last wait for it.
fn held_by(case: &Case, evidence: &Evidence) -> Option<(ThreadKey, MonoNs)> {
    if let Some(owner) = owner(case) {
        return Some((owner.key?, case.start));
    }
    let holder = case.waker_key()?;
    let released = case.woken();
    let own_waits = evidence.during(holder, case.start, released).filter(|wait| is_same_lock(wait, case));
    let since = own_waits.map(|wait| wait.end).filter(|end| *end < released).max();
    Some((holder, since.unwrap_or(case.start)))
}

/// Whether both are waits for one lock, as far as that is known.
pub(super) fn is_same_lock(one: &Case, other: &Case) -> bool {
    let place = |case: &Case| case.site.as_ref().and_then(|site| site.functions.first().cloned());
    let address = |case: &Case| case.lock.as_ref().map(|lock| (case.pid, lock.address));
    is_wait(one) && is_wait(other) && address(one) == address(other) && place(one) == place(other)
}

fn owner(case: &Case) -> Option<&Party> {
    case.lock.as_ref()?.owner.as_ref()
}
