// SPDX-License-Identifier: Apache-2.0
//! Threads that pass results on. A thread that ended a wait for a result had no work itself until another thread woke it,
//! and that thread until an answer came from another process. So more such threads do not help.

use std::sync::Arc;

use wallprof_analysis::tally::Tally;
use wallprof_model::{Reason, StallReason, ThreadKey};

use super::case::{Case, Party};
use super::evidence::Evidence;
use super::{known, other_end, wording};

/// Threads that are followed from the end of one wait.
const MOST_LINKS: usize = 4;

/// What the threads waited for from which most results came.
pub(super) struct Relay<'e> {
    /// Of the longest wait: the wait of the thread that ended it, of the thread that ended that one, and so on.
    links: Vec<&'e Case>,
    /// The names of their threads. Of the workers of a pool with a star for each number.
    names: Vec<String>,
    /// The thread of another process that ended most of the last ones.
    end: Option<&'e Party>,
    pid: u32,
}

/// A place, and the name of the thread that waits there, for each link.
type Key = Vec<(Option<Arc<str>>, String)>;

impl<'e> Relay<'e> {
    /// `None` where the threads that ended most of these waits had work, or where that is not known.
    pub fn of(cases: &[&Case], evidence: &'e Evidence) -> Option<Self> {
        let waits = other_end::longest(cases.iter());
        let chains: Vec<(&Case, Vec<&Case>)> =
            waits.iter().map(|wait| (**wait, links(wait, evidence))).collect();
        let mut times: Tally<Key> = Tally::default();
        for (wait, links) in chains.iter().filter(|(_, links)| !links.is_empty()) {
            times.add(key(links), wait.without_run_queue_ns());
        }
        let (most, ns) = times.top()?;
        let all: Vec<&Case> = chains.iter().map(|(wait, _)| *wait).collect();
        if !known::is_most(ns, known::waited_ns(&all)) {
            return None;
        }
        let same = || chains.iter().filter(|(_, links)| key(links) == *most);
        let mut ends: Tally<u32> = Tally::default();
        for (wait, links) in same() {
            if let Some(end) = links.last().and_then(|last| outside(last, wait.pid)) {
                ends.add(end.pid, wait.without_run_queue_ns());
            }
        }
        let end = ends.top().filter(|(_, of_end)| known::is_most(*of_end, ns)).map(|(pid, _)| *pid);
        let (wait, links) = same().find(|(wait, links)| {
            end.is_none() || links.last().and_then(|last| outside(last, wait.pid)).map(|by| by.pid) == end
        })?;
        let name = |at: usize| {
            let one = wording::shown(&links[at].comm);
            let are_same = same().all(|(_, links)| *links[at].comm == *one);
            if are_same { one.to_owned() } else { most[at].1.clone() }
        };
        let names = (0..links.len()).map(name).collect();
        let end = end.and_then(|_| outside(links.last()?, wait.pid));
        Some(Relay { links: links.clone(), names, end, pid: wait.pid })
    }

    /// `, while worker was waiting for selector (pool in getTask), selector was waiting for quotes 4711 (poll in select)`.
    pub fn words(&self) -> String {
        let step = |(at, link): (usize, &&Case)| {
            let (name, what, spot) =
                (&self.names[at], wording::what(link), wording::spot(link.site.as_ref()));
            let by = match self.names.get(at + 1) {
                Some(next) => Some(next.clone()),
                None => self.end.or_else(|| inside(link, self.pid)).map(|by| wording::party(by, self.pid)),
            };
            match by {
                Some(by) => format!("{name} was waiting for {by} ({what}{spot})"),
                None => format!("{name} was in {what}{spot}"),
            }
        };
        let steps: Vec<String> = self.links.iter().enumerate().map(step).collect();
        format!(", while {}", steps.join(", "))
    }

    pub fn advice(&self) -> String {
        let look = match self.end.map(|end| wording::party(end, self.pid)) {
            Some(end) => format!("Look at what {end} does meanwhile, and make that faster"),
            None => "Look at what these threads wait for, and make that faster".to_owned(),
        };
        format!(
            "{look}; or do other work until the result is there. The threads that end the waits have no work meanwhile: more \
             of them do not help."
        )
    }
}

/// The waits behind a wait for a result, as far as the threads had no work, each for half of it or more.
fn links<'e>(wait: &Case, evidence: &'e Evidence) -> Vec<&'e Case> {
    let (from, to) = (wait.start, wait.woken());
    let half_ns = to.0.saturating_sub(from.0) / 2;
    let mut seen: Vec<ThreadKey> = vec![wait.thread];
    let mut links = Vec::new();
    let mut next = wait.waker_key();
    while let Some(thread) = next.filter(|thread| links.len() < MOST_LINKS && !seen.contains(thread)) {
        seen.push(thread);
        let mut during = evidence.during(thread, from, to);
        let Some(link) = during.find(|case| is_idle(case) && case.overlap_ns(from, to) >= half_ns) else {
            break;
        };
        links.push(link);
        next = inside(link, wait.pid).and_then(|by| by.key);
    }
    links
}

/// Whether a worker has no work, or a loop waits for whatever comes.
fn is_idle(case: &Case) -> bool {
    let is_loop = case.reason == StallReason::Blocked(Reason::Poll) && case.voluntary;
    case.is_without_work() || is_loop
}

fn key(links: &[&Case]) -> Key {
    let place = |case: &Case| case.site.as_ref().and_then(|site| site.functions.first()).cloned();
    links.iter().map(|case| (place(case), known::with_stars(&case.comm))).collect()
}

/// The thread of the same process that ended a wait.
fn inside(case: &Case, pid: u32) -> Option<&Party> {
    case.waker.as_ref()?.by.as_ref().filter(|by| by.pid == pid)
}

/// The thread of another process that ended a wait. A thread of the kernel brought what came from elsewhere.
fn outside(case: &Case, pid: u32) -> Option<&Party> {
    let by = case.waker.as_ref()?.by.as_ref()?;
    (by.pid != pid && !by.only_passes_on(Reason::Network)).then_some(by)
}
