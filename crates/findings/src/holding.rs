// SPDX-License-Identifier: Apache-2.0
//! Shared code of the rules about holders: what the threads that a lock names as its owners did while others
//! waited for it.

use std::ops::Range;
use std::sync::Arc;

use wallprof_analysis::tally::Tally;
use wallprof_meaning::short_name;
use wallprof_meaning::site::Site;
use wallprof_model::{FastMap, MonoNs, StallReason, ThreadKey};

use super::case::{Case, Party, mostly};
use super::evidence::Evidence;
use super::limits::{is_four_fifths, worth_naming};
use super::{known, wording};

/// Where a holder was, and the function that holds the lock, where it is known.
type Place = (Option<Arc<Site>>, Option<Arc<str>>);

/// The ends of holdings of one lock, as the waits for it show them.
pub(super) struct Releases {
    /// By thread, ascending: it woke another thread that waited for the lock, or began to wait for it itself.
    by_thread: FastMap<ThreadKey, Vec<MonoNs>>,
}

impl Releases {
    pub fn of(cases: &[&Case]) -> Self {
        let mut by_thread: FastMap<ThreadKey, Vec<MonoNs>> = FastMap::default();
        for case in cases {
            by_thread.entry(case.thread).or_default().push(case.start);
            if let Some(waker) = case.waker_key() {
                by_thread.entry(waker).or_default().push(case.woken());
            }
        }
        by_thread.values_mut().for_each(|ends| ends.sort_unstable());
        Releases { by_thread }
    }

    /// Until when the owner that a wait found held the lock. Where several threads wait, the release wakes
    /// one of them, and the others go on to wait for the next owner.
    pub fn end_of_holding(&self, wait: &Case, owner: ThreadKey) -> MonoNs {
        let ends = self.by_thread.get(&owner).map_or(&[][..], Vec::as_slice);
        let first = ends.get(ends.partition_point(|end| *end <= wait.start));
        first.map_or(wait.woken(), |end| wait.woken().min(*end))
    }
}

/// The time of waits for one lock in which the owners that they found held it, by what these did.
#[derive(Default)]
pub(super) struct Holding {
    /// Of all waits, those without a known owner, too.
    whole_ns: u64,
    holders: Tally<Party>,
    /// They slept, faulted or did I/O. Their waits for other locks are chains.
    blocked: Tally<(String, Place)>,
    /// They waited for a CPU: by the place where they lost it.
    without_cpu: Tally<Place>,
    /// The threads that had that CPU.
    ran: Tally<String>,
    /// The functions that hold the lock, where they are known.
    functions: Tally<Arc<str>>,
    /// The priorities of waiter and holder, where that of the holder was lower, by the time without a CPU.
    inverted: Tally<(i16, i16)>,
}

impl Holding {
    /// Of all waits for a lock. Of those whose owner is not known, what it did is not known.
    pub fn of(cases: &[&Case], evidence: &Evidence) -> Self {
        let mut holding = Holding { whole_ns: known::waited_ns(cases), ..Holding::default() };
        let releases = Releases::of(cases);
        let released = mostly(cases, |case| case.release().filter(|_| is_woken_by_owner(case)).cloned());
        for case in cases {
            let Some(owner) = case.lock.as_ref().and_then(|lock| lock.owner.as_ref()) else { continue };
            let Some(key) = owner.key else { continue };
            let until = releases.end_of_holding(case, key);
            let held_ns = until.0.saturating_sub(case.start.0);
            holding.holders.add(owner.clone(), held_ns);
            let inside =
                case.owner_callers.as_ref().and_then(|callers| callers.innermost_of(functions_of(&released)));
            if let Some(function) = inside {
                holding.functions.add(function, held_ns);
            }
            // A thread that released the lock was on a CPU then: its later waits are no part of its holding.
            let has_released = until < case.woken() || case.waker_key() == Some(key);
            for absence in evidence.during(key, case.start, until) {
                if !has_released || absence.end <= until {
                    let queued_ns = holding.add(absence, case.start..until, released.as_deref());
                    holding.compare(case, absence, queued_ns);
                }
            }
        }
        holding
    }

    /// `during` is the time of the holding; `released` is where such holdings ended. The innermost function in
    /// which the thread was both times is the one that holds the lock. Returns the time without a CPU.
    fn add(&mut self, absence: &Case, during: Range<MonoNs>, released: Option<&Site>) -> u64 {
        let (from, until) = (during.start, during.end);
        let functions = released.map_or(&[][..], |site| &site.functions[..]);
        let holding = absence.callers.as_ref().and_then(|callers| callers.innermost_of(functions));
        if let Some(function) = &holding {
            self.functions.add(function.clone(), absence.overlap_ns(from, until));
        }
        let place = (absence.site.clone(), holding);
        let queued_from = absence.queued_from();
        let queued_ns = absence.overlap_ns(from.max(queued_from), until);
        if queued_ns > 0 {
            self.without_cpu.add(place.clone(), queued_ns);
            for (party, ns) in &absence.ran_instead {
                self.ran.add(wording::party(party, absence.pid), (*ns).min(queued_ns));
            }
        }
        let blocked_ns = absence.overlap_ns(from, until.min(queued_from));
        if blocked_ns > 0 && !absence.is_for_a_lock() {
            self.blocked.add((doing(absence), place), blocked_ns);
        }
        queued_ns
    }

    /// A lower number goes first.
    fn compare(&mut self, wait: &Case, absence: &Case, queued_ns: u64) {
        if let (Some(waiter), Some(holder)) = (wait.priority, absence.priority)
            && waiter < holder
            && queued_ns > 0
        {
            self.inverted.add((waiter, holder), queued_ns);
        }
    }

    /// The priorities of waiters and holders, where for half of the time without a CPU the holder's was lower.
    pub fn inverted(&self) -> Option<(i16, i16)> {
        let ((waiter, holder), _) = self.inverted.top()?;
        (self.inverted.total() >= self.without_cpu.total() / 2).then_some((*waiter, *holder))
    }

    /// The function that holds the lock.
    pub fn function(&self) -> Option<&Arc<str>> {
        self.functions.top().map(|(function, _)| function)
    }

    /// Whether the holders slept, faulted or did I/O for four fifths of the time.
    pub fn is_blocked(&self) -> bool {
        is_four_fifths(self.blocked.total(), self.whole_ns)
    }

    /// Whether the holders had no CPU for half of the time: what a thread loses that shares its CPU with
    /// one other.
    pub fn is_without_cpu(&self) -> bool {
        self.whole_ns > 0 && self.without_cpu.total() >= self.whole_ns / 2
    }

    /// `held by housekeeper in sweep_registry, which was waiting for the disk in fdatasync`.
    pub fn blocked(&self) -> Option<String> {
        let ((doing, place), _) = self.blocked.top()?;
        let share = self.share(self.blocked.total());
        let (holder, inner) = self.holder(place)?;
        let through = place.0.as_ref().and_then(|site| site.through.as_deref()).map(short_name);
        let place = match (inner, through) {
            (Some(inner), Some(through)) => format!(" in {inner} ({through})"),
            (Some(only), None) => format!(" in {only}"),
            (None, Some(only)) => format!(" in {only}"),
            (None, None) => String::new(),
        };
        Some(format!("held by {holder}, which was {doing}{place}{share}"))
    }

    /// `held by writer in flush_index, which had no CPU: batch and indexer had it`.
    pub fn without_cpu(&self) -> Option<String> {
        let (place, _) = self.without_cpu.top()?;
        let share = self.share(self.without_cpu.total());
        let ran = match self.ran().as_slice() {
            [] => String::new(),
            ran => format!(": {} had it", wording::list(ran)),
        };
        let (holder, inner) = self.holder(place)?;
        let lost = inner.map(|inner| format!(" (lost in {inner})")).unwrap_or_default();
        Some(format!("held by {holder}, which had no CPU{lost}{share}{ran}"))
    }

    /// The two threads that had the holders' CPUs for the longest time. The second one only where it had them for a
    /// tenth of it: the names stand side by side, without shares.
    pub fn ran(&self) -> Vec<String> {
        let ranked = self.ran.ranked();
        let named = worth_naming(&ranked, 2, 10, self.ran.total());
        ranked[..named].iter().map(|(name, _)| (*name).clone()).collect()
    }

    /// The functions of the program in which the holders were blocked.
    pub fn blocked_in(&self) -> Option<&Arc<Site>> {
        self.blocked.top()?.0.1.0.as_ref()
    }

    /// `housekeeper in sweep_registry`, `worker and other threads in turn in update`; and the innermost
    /// function there, where that is another one.
    fn holder(&self, (site, holding): &Place) -> Option<(String, Option<String>)> {
        let (party, ns) = self.holders.top()?;
        let name = wording::name(party);
        let name = match ns.saturating_mul(2) > self.holders.total() {
            true => name,
            false => format!("{name} and other threads in turn"),
        };
        let Some(inner) = site.as_ref().and_then(|site| site.functions.first()) else {
            return Some((name, None));
        };
        let outer = holding.as_ref().unwrap_or(inner);
        let place = format!("{name} in {}", short_name(outer));
        Some((place, (outer != inner).then(|| short_name(inner))))
    }

    /// ` for 84 % of the time`; nothing where it was nearly all of it.
    fn share(&self, ns: u64) -> String {
        match ns.saturating_mul(20) >= self.whole_ns.saturating_mul(19) {
            true => String::new(),
            false => format!(" for {} of the time", wording::percent(ns, self.whole_ns)),
        }
    }
}

fn functions_of(site: &Option<Arc<Site>>) -> &[Arc<str>] {
    site.as_ref().map_or(&[][..], |site| &site.functions[..])
}

fn is_woken_by_owner(case: &Case) -> bool {
    let owner = case.lock.as_ref().and_then(|lock| lock.owner.as_ref()?.key);
    owner.is_some() && owner == case.waker_key()
}

/// `waiting for the disk`, `asleep`: what a thread did instead of its work.
fn doing(absence: &Case) -> String {
    use wallprof_model::Reason::{Child, Disk, Memory, Network, Pipe, Sleep, Stopped};
    if let Some(meaning) = &absence.meaning {
        return format!("waiting for {}", meaning.name);
    }
    let file = absence.fault.as_ref().and_then(|fault| fault.file.as_deref());
    match (absence.reason, file) {
        (StallReason::Major, Some(file)) => format!("waiting for a page of {file}"),
        (StallReason::Major, None) => "waiting for a page to be read".to_owned(),
        (StallReason::Minor, _) => "waiting in a page fault".to_owned(),
        (StallReason::Blocked(Disk), _) => "waiting for the disk".to_owned(),
        (StallReason::Blocked(Sleep), _) => "asleep".to_owned(),
        (StallReason::Blocked(Network), _) => "waiting for the network".to_owned(),
        (StallReason::Blocked(Pipe), _) => "waiting for a pipe".to_owned(),
        (StallReason::Blocked(Memory), _) => "waiting for memory".to_owned(),
        (StallReason::Blocked(Child), _) => "waiting for a child process".to_owned(),
        (StallReason::Blocked(Stopped), _) => "stopped".to_owned(),
        _ => format!("blocked ({})", wording::reason(absence.reason)),
    }
}
