//! Shared code of the rules about locks: the stalls that they read, the owner of the lock and its activity
//! meanwhile, the place where the lock was released, and the finding about it.

use std::sync::Arc;

use wallprof_model::{Reason, StallReason};

use super::case::{Case, Party, mostly};
use super::conclusion::{Conclusion, Problem};
use super::evidence::Evidence;
use super::limits::Delays;
use super::spec::Reported;
use super::wording;
use crate::site::Site;
use crate::tally::Tally;

/// Waits for a lock that no earlier rule has reported.
pub(super) fn waits<'e: 't, 't>(
    evidence: &'e Evidence,
    reported: &'t Reported,
) -> impl Iterator<Item = &'e Case> + use<'e, 't> {
    evidence.cases().filter(|case| is_wait(case) && !reported.has(case))
}

pub(super) fn is_wait(case: &Case) -> bool {
    case.reason == StallReason::Blocked(Reason::Lock) && !case.voluntary
}

/// `engine waited for WHAT in take_order 7 times, …: housekeeper held it …`, where that is unusual.
pub(super) fn conclude<'e>(
    cases: Vec<&'e Case>,
    evidence: &Evidence,
    what: &str,
    advice: impl Into<String>,
) -> Option<Conclusion<'e>> {
    let delays = Delays::over(&cases, Case::duration_ns);
    let problem = Problem::unusual(cases, delays, evidence)?;
    let title = format!(
        "{} waited for {what}{} {}{}.",
        wording::who(&problem.cases, evidence),
        wording::place(problem.site().as_ref()),
        wording::delays(&delays),
        holder(&problem.cases, evidence)
    );
    Some(problem.conclude(title, advice))
}

/// `: housekeeper held it, itself off the CPU for 55 % of that time (sleep in sweep), and released it in
/// release`.
pub(super) fn holder(cases: &[&Case], evidence: &Evidence) -> String {
    let release = mostly(cases, |case| case.release().cloned());
    let release = wording::spot(release.as_ref());
    let owner = mostly(cases, |case| Some(wording::name(case.lock.as_ref()?.owner.as_ref()?)));
    if let Some(owner) = owner {
        let away = away(cases, evidence);
        let ended = match release.as_str() {
            "" if mostly_interrupted(cases) => " until the waits timed out".to_owned(),
            "" => String::new(),
            spot => format!(" and released it{spot}"),
        };
        return format!(": {owner} held it{away}{ended}");
    }
    match mostly(cases, |case| Some(wording::name(case.waker.as_ref()?.by.as_ref()?))) {
        Some(waker) => format!(": {waker} released it{release}"),
        None => String::new(),
    }
}

/// Whether interrupts ended most of the waits: of waits for a lock only timers do.
fn mostly_interrupted(cases: &[&Case]) -> bool {
    let interrupted = |case: &&&Case| case.waker.as_ref().is_some_and(|waker| waker.by.is_none());
    cases.iter().filter(interrupted).count() * 2 > cases.len()
}

/// The reason why the owner of the lock was off the CPU, where that was a fifth of the time or more.
fn away(cases: &[&Case], evidence: &Evidence) -> String {
    let mut why: Tally<(&'static str, Option<Arc<Site>>)> = Tally::default();
    let mut whole_ns = 0u64;
    for case in cases {
        let Some(owner) = owner(case).and_then(|owner| owner.key) else { continue };
        whole_ns = whole_ns.saturating_add(case.duration_ns());
        for absence in evidence.during(owner, case.start, case.end) {
            let by_chance = matches!(absence.reason, StallReason::Preempted | StallReason::Runnable);
            let site = absence.site.clone().filter(|_| !by_chance);
            why.add((wording::reason(absence.reason), site), absence.overlap_ns(case.start, case.end));
        }
    }
    if why.total() < whole_ns / 5 {
        return String::new();
    }
    let Some(((reason, site), _)) = why.top() else { return String::new() };
    let share = wording::percent(why.total(), whole_ns);
    format!(", itself off the CPU for {share} of that time ({reason}{}),", wording::spot(site.as_ref()))
}

fn owner(case: &Case) -> Option<&Party> {
    case.lock.as_ref()?.owner.as_ref()
}
