// SPDX-License-Identifier: Apache-2.0
//! From when to when threads held the locks of a change.
//!
//! A recording has the wakeups with which a holder lets go, and waits. An acquisition without a wait is not in
//! it; it lies between two times:
//!
//! ```text
//! holder   [= own wait =]---run---[== its client ==]---run---[== its client ==]--run--release
//!                       floor              held_from                                  at
//! waiter                                   [=========== waits for the holder ==========]
//! ```
//!
//! - `floor`: until then the holder waited for the lock itself, or it had let go.
//! - `held_from`: from then on another thread waited, so the holder had the lock.
//!
//! Where its own wait ended while the other thread waited, the hold is decided. Else other holds of the same
//! kind say how long a hold is at most, and in which waits of its holder it goes on.

use std::collections::{HashMap, HashSet};

use super::waits::{Cause, Wait, Waits};

/// Waits of a holder that are searched backwards for the start of a hold.
const LONGEST_HOLD: usize = 1_000;
/// One hold of so many shows what holds of its kind do. Fewer are exceptions.
const ONE_OF: u64 = 20;

/// The holds of each thread: start and end, by start, without overlap.
pub(super) type Sections = Vec<Vec<(u64, u64)>>;

/// The lock that a wait is for. Locks without an address are one lock where they are waited for at one place.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lock {
    Address(u32, u64),
    Site(Site),
}

/// The place of a wait, and its meaning.
pub(super) type Site = (Option<u32>, Option<u32>);

/// Where a lock is released, and where it is waited for.
type Kind = (Option<u32>, Site);

impl Lock {
    pub fn of(wait: &Wait) -> Lock {
        match wait.lock {
            Some((pid, address)) => Lock::Address(pid, address),
            None => Lock::Site(site(wait)),
        }
    }

    fn has_address(self) -> bool {
        matches!(self, Lock::Address(..))
    }

    /// Whether a wait was for this lock.
    fn is_of(self, wait: &Wait) -> bool {
        Lock::of(wait) == self && (self.has_address() || wait.released_inside)
    }
}

fn site(wait: &Wait) -> Site {
    (wait.place, wait.meaning)
}

/// A wakeup with which a holder lets go.
struct Release<'w> {
    wait: &'w Wait,
    holder: u32,
    lock: Lock,
    /// The end of the holder's own wait for the lock.
    acquired: u64,
    /// The releases before, by the holder and by other threads.
    own_before: u64,
    others_before: u64,
}

impl Release<'_> {
    fn at(&self) -> u64 {
        self.wait.woken
    }

    fn kind(&self) -> Kind {
        (self.wait.release, site(self.wait))
    }

    /// A thread that waits voluntarily waits for work. It does so also while no thread works for it.
    fn is_waited_for(&self) -> bool {
        self.wait.late_ns > 0
    }

    fn held_from(&self) -> u64 {
        let known = self.wait.start.max(self.acquired);
        match self.lock {
            Lock::Address(..) => known.max(self.own_before).max(self.others_before),
            Lock::Site(_) => known,
        }
    }

    fn floor(&self) -> u64 {
        // Another lock was released if this one was held then.
        let let_go = Some(self.own_before).filter(|at| *at <= self.held_from());
        self.acquired.max(let_go.unwrap_or(0))
    }

    fn is_decided(&self) -> bool {
        self.is_waited_for()
            && self.acquired > 0
            && self.held_from() == self.acquired
            && self.own_before <= self.acquired
    }
}

/// What the holds of one kind have shown.
#[derive(Default)]
struct Shown {
    /// The known part of each hold, ns.
    known_ns: Vec<u64>,
    /// The longest hold to be expected, ns.
    longest_ns: u64,
    /// In how many holds the holder waited at a place.
    held_at: HashMap<Option<u32>, u64>,
    /// It is a lock, and no answer or work: the thread that lets go had it while another one waited.
    is_lock: bool,
}

impl Shown {
    fn add(&mut self, release: &Release, own: &[Wait]) {
        self.is_lock |= release.wait.is_for_lock || release.acquired > 0;
        if !release.is_waited_for() {
            return;
        }
        let held_from = release.held_from();
        self.known_ns.push(release.at().saturating_sub(held_from));
        let during = before(own, release.at()).take_while(|wait| wait.start >= held_from);
        let mut places: Vec<_> =
            during.filter(|wait| is_outside(release.lock, wait)).map(|wait| wait.place).collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().for_each(|place| *self.held_at.entry(place).or_default() += 1);
    }

    /// Other threads begin to wait at any time of a hold: the longest of n known parts is, on average, n / (n + 1)
    /// of the hold.
    fn finish(&mut self) {
        self.known_ns.sort_unstable();
        let count = self.known_ns.len();
        let exceptions = count / ONE_OF as usize;
        let longest_ns = count.checked_sub(1 + exceptions).map_or(0, |at| self.known_ns[at]);
        self.longest_ns = longest_ns.saturating_add(longest_ns / count.max(1) as u64);
    }

    fn goes_on_at(&self, place: Option<u32>) -> bool {
        let held = self.held_at.get(&place).copied().unwrap_or(0);
        held > 0 && held * ONE_OF >= self.known_ns.len() as u64
    }
}

pub(super) struct Holds<'w> {
    waits: &'w Waits,
    releases: Vec<Release<'w>>,
    shown: HashMap<Kind, Shown>,
}

impl<'w> Holds<'w> {
    pub fn new(waits: &'w Waits) -> Self {
        let releases = releases(waits);
        let mut shown: HashMap<Kind, Shown> = HashMap::new();
        for release in &releases {
            let own = &waits.by_thread[release.holder as usize];
            shown.entry(release.kind()).or_default().add(release, own);
        }
        shown.values_mut().for_each(Shown::finish);
        Holds { waits, releases, shown }
    }

    pub fn is_empty(&self) -> bool {
        self.releases.is_empty()
    }

    /// The locks that are let go of in the functions of the change.
    pub fn locks(&self) -> HashSet<Lock> {
        let is_lock = |release: &&Release| self.shown.get(&release.kind()).is_some_and(|shown| shown.is_lock);
        self.releases.iter().filter(is_lock).map(|release| release.lock).collect()
    }

    /// The longest holds that the recording allows, or the shortest ones.
    pub fn sections(&self, are_long: bool) -> Sections {
        let mut sections = vec![Vec::new(); self.waits.by_thread.len()];
        for release in &self.releases {
            let start = match are_long {
                _ if release.is_decided() => release.acquired,
                true => self.first_start(release),
                false => self.last_start(release),
            };
            if start < release.at() {
                sections[release.holder as usize].push((start, release.at()));
            }
        }
        sections.iter_mut().for_each(unite);
        sections
    }

    fn own(&self, release: &Release) -> &'w [Wait] {
        &self.waits.by_thread[release.holder as usize]
    }

    fn first_start(&self, release: &Release) -> u64 {
        let floor = release.floor();
        let mut start = match release.is_waited_for() {
            true => release.held_from(),
            false => self.last_start(release),
        };
        for wait in before(self.own(release), start).filter(|wait| is_outside(release.lock, wait)) {
            start = wait.end.max(floor);
            if start == floor || !self.may_begin_before(release, wait) {
                break;
            }
        }
        start
    }

    /// Whether a hold may have begun before this wait of its holder.
    fn may_begin_before(&self, release: &Release, wait: &Wait) -> bool {
        self.shown.get(&release.kind()).is_some_and(|shown| {
            release.at().saturating_sub(wait.start) <= shown.longest_ns && shown.goes_on_at(wait.place)
        })
    }

    fn last_start(&self, release: &Release) -> u64 {
        let is_lock = self.shown.get(&release.kind()).is_some_and(|shown| shown.is_lock);
        if is_lock && release.is_waited_for() {
            return release.held_from().max(release.own_before).max(release.others_before);
        }
        let last = before(self.own(release), release.at()).find(|wait| is_outside(release.lock, wait));
        last.map_or(0, |wait| wait.end).max(release.held_from())
    }
}

/// The waits of a thread that were over at a time, the last one first.
fn before(own: &[Wait], time: u64) -> impl Iterator<Item = &Wait> {
    let until = own.partition_point(|wait| wait.end <= time);
    own[..until].iter().rev().take(LONGEST_HOLD).take_while(|wait| wait.start < wait.end)
}

/// Whether the holder did something else before it had the lock, or waited for the lock.
fn is_outside(lock: Lock, wait: &Wait) -> bool {
    !wait.inside || lock.is_of(wait)
}

/// The last release of a lock, and the last one by another thread than that one.
#[derive(Clone, Copy, Default)]
struct Last {
    holder: u32,
    at: u64,
    other_at: u64,
}

impl Last {
    fn by_others(self, holder: u32) -> u64 {
        if self.holder == holder { self.other_at } else { self.at }
    }

    fn then(self, holder: u32, at: u64) -> Last {
        Last { holder, at, other_at: self.by_others(holder) }
    }
}

/// All releases in the functions of the change, by time.
fn releases(waits: &Waits) -> Vec<Release<'_>> {
    let acquisitions = acquisitions(waits);
    let mut ended: Vec<(u32, &Wait)> = waits.by_thread.iter().flatten().filter_map(ended_by_holder).collect();
    ended.sort_unstable_by_key(|(holder, wait)| (wait.woken, *holder, wait.start));
    let mut last: HashMap<Lock, Last> = HashMap::new();
    let mut own: HashMap<(u32, Lock), u64> = HashMap::new();
    let mut releases = Vec::with_capacity(ended.len());
    for (holder, wait) in ended {
        let lock = Lock::of(wait);
        let of_lock = last.entry(lock).or_default();
        let own_before = own.insert((holder, lock), wait.woken).unwrap_or(0);
        let acquired = acquisitions.get(&(holder, lock)).map_or(0, |ends| last_until(ends, wait.woken));
        let others_before = of_lock.by_others(holder);
        *of_lock = of_lock.then(holder, wait.woken);
        releases.push(Release { wait, holder, lock, acquired, own_before, others_before });
    }
    releases
}

fn ended_by_holder(wait: &Wait) -> Option<(u32, &Wait)> {
    match wait.cause {
        Cause::Thread(holder) if wait.released_inside && wait.woken > wait.start => Some((holder, wait)),
        _ => None,
    }
}

/// The ends of each thread's own waits for a lock, by time.
fn acquisitions(waits: &Waits) -> HashMap<(u32, Lock), Vec<u64>> {
    let mut ends: HashMap<(u32, Lock), Vec<u64>> = HashMap::new();
    for (thread, own) in waits.by_thread.iter().enumerate() {
        for wait in own.iter().filter(|wait| Lock::of(wait).is_of(wait)) {
            ends.entry((thread as u32, Lock::of(wait))).or_default().push(wait.end);
        }
    }
    ends.values_mut().for_each(|ends| ends.sort_unstable());
    ends
}

fn last_until(ends: &[u64], time: u64) -> u64 {
    ends[..ends.partition_point(|end| *end <= time)].last().copied().unwrap_or(0)
}

/// Makes one section of those that overlap: a thread holds several locks.
fn unite(sections: &mut Vec<(u64, u64)>) {
    sections.sort_unstable();
    let mut united: Vec<(u64, u64)> = Vec::with_capacity(sections.len());
    for &(start, end) in sections.iter() {
        match united.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => united.push((start, end)),
        }
    }
    *sections = united;
}
