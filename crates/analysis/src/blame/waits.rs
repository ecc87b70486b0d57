// SPDX-License-Identifier: Apache-2.0
//! The waits of a recording in a compact form, by thread and time.

use std::ops::Range;
use std::sync::Arc;

use wallprof_meaning::by_stack::ByStack;
use wallprof_meaning::glob::Glob;
use wallprof_meaning::interner::Interner;
use wallprof_meaning::short_name;
use wallprof_meaning::site::{Roles, Site, stack_of_site};
use wallprof_model::profile::{ResolvedStack, StallRecord};
use wallprof_model::{FastMap, Reason, StallKind, StallReason, ThreadInfo, ThreadKey, ThreadRef};

use super::chain::Chains;
use super::what_if::{Change, Operations, WhatIf, what_if};
use super::{Blame, Group};

/// Threads that had the CPU during one wait are kept up to this number of all waits together.
const MOST_RAN: usize = 1 << 23;
/// Waits are kept up to this number, some 64 bytes each.
const MOST_WAITS: usize = 1 << 22;

/// What ends a wait's blocked part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A recorded thread, by its index.
    Thread(u32),
    /// A thread that is not recorded, a device, the network …, by its group's number.
    Group(u32),
    /// The kernel works for the thread itself: a page fault that needs no disk.
    Itself,
}

/// One wait. `start..woken` it was blocked, `woken..end` it waited for a CPU.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    pub start: u64,
    pub woken: u64,
    pub end: u64,
    pub cause: Cause,
    pub reason: StallReason,
    /// What it meant: the number of a place.
    pub meaning: Option<u32>,
    /// Where it waited, and where it was woken from: numbers of places.
    pub place: Option<u32>,
    pub release: Option<u32>,
    /// The threads that had the CPU, in [`Waits::ran`].
    pub ran: Range<u32>,
    /// The end of the wait that made its thread late, ns: 0 for a voluntary wait, the part after the timeout for
    /// one that overslept it.
    pub late_ns: u64,
    /// The lock that it was for, by process and address.
    pub lock: Option<(u32, u64)>,
    /// A thread holds what it is for.
    pub is_for_lock: bool,
    /// Its thread waited in a function that is watched, and was woken from one.
    pub inside: bool,
    pub released_inside: bool,
}

/// A wait as the rules know it.
pub struct PlainWait {
    pub thread: ThreadKey,
    pub start: u64,
    /// The wakeup.
    pub end: u64,
    pub reason: StallReason,
    /// The recorded thread that ended it.
    pub waited_for: Option<ThreadKey>,
    /// Where that thread let go.
    pub release: Option<Arc<str>>,
    pub late_ns: u64,
}

/// The waits of a recording, added in any order.
#[derive(Debug, Default)]
pub struct Waits {
    threads: FastMap<ThreadKey, u32>,
    /// The group of each thread.
    pub(super) group_of: Vec<u32>,
    groups: Interner<Group>,
    pub(super) places: Interner<str>,
    place_of: ByStack<Option<u32>>,
    roles: Roles,
    pub(super) by_thread: Vec<Vec<Wait>>,
    /// Group and time.
    pub(super) ran: Vec<(u32, u64)>,
    kept: usize,
    dropped: u64,
    /// Waits of the recording that are not there one by one.
    counted: u64,
    /// The functions that a change is about.
    watched: Option<Glob>,
    is_watched: ByStack<bool>,
}

impl Waits {
    /// Of a recording with these threads.
    pub fn new<T: AsRef<ThreadInfo>>(threads: &[T]) -> Self {
        let mut waits = Waits::default();
        for info in threads.iter().map(AsRef::as_ref) {
            waits.add_thread(info.key, info.process.as_str().into(), info.comm.as_str().into());
        }
        waits
    }

    /// Threads come before their waits.
    pub fn add_thread(&mut self, key: ThreadKey, process: Arc<str>, thread: Arc<str>) {
        let group = self.groups.number(Group::Threads { process, thread });
        self.threads.insert(key, self.group_of.len() as u32);
        self.group_of.push(group);
        self.by_thread.push(Vec::new());
    }

    /// Adds a wait of which no more is known, without the wait for a CPU behind it.
    pub fn add_plain(&mut self, plain: &PlainWait) {
        let Some(&thread) = self.threads.get(&plain.thread) else { return };
        let cause = match plain.waited_for.and_then(|key| self.threads.get(&key)) {
            Some(&next) => Cause::Thread(next),
            None => Cause::Group(self.groups.number(Group::Unknown)),
        };
        let release = plain.release.clone().map(|place| self.places.number(place));
        self.by_thread[thread as usize].push(Wait {
            start: plain.start,
            woken: plain.end,
            end: plain.end,
            cause,
            reason: plain.reason,
            meaning: None,
            place: None,
            release,
            ran: 0..0,
            late_ns: plain.late_ns,
            lock: None,
            is_for_lock: false,
            inside: false,
            released_inside: false,
        });
    }

    /// Adds a wait; voluntary ones, too: they are links of chains.
    pub fn add(&mut self, stall: &StallRecord) {
        let Some(&thread) = self.threads.get(&stall.thread) else { return };
        if self.kept >= MOST_WAITS {
            self.dropped += 1;
            return;
        }
        self.kept += 1;
        let wait = Wait {
            start: stall.start.0,
            woken: stall.end.0.saturating_sub(stall.runnable_ns).max(stall.start.0),
            end: stall.end.0.max(stall.start.0),
            cause: self.cause(stall),
            reason: stall.reason,
            meaning: stall.meaning.as_ref().map(|meaning| self.places.number(meaning.name.as_str())),
            place: self.place_of(stall.user.as_ref(), stall.kernel.as_ref()),
            release: self.release(stall),
            ran: self.add_ran(stall),
            late_ns: if stall.voluntary { 0 } else { stall.late_ns() },
            lock: stall
                .lock
                .as_ref()
                .map(|lock| (stall.pid, lock.address))
                .filter(|(_, address)| *address != 0),
            is_for_lock: is_for_lock(stall),
            inside: self.is_watched(stall.user.as_ref()),
            released_inside: self.is_watched(stall.waker.as_ref().and_then(|waker| waker.user.as_ref())),
        };
        self.by_thread[thread as usize].push(wait);
    }

    /// Before the waits are added: they are to be played again with this change.
    pub fn expect(&mut self, change: &Change) {
        self.watched = change.functions().cloned();
    }

    /// The recording has this many waits beside those that are added.
    pub fn set_counted(&mut self, counted: u64) {
        self.counted = counted;
    }

    /// The part of all waits that are not known one by one.
    pub(super) fn counted_share(&self) -> f64 {
        let without = self.counted.saturating_add(self.dropped) as f64;
        without / (without + self.kept as f64).max(1.0)
    }

    /// What the waiting of the threads that `is_waiter` accepts would be with the change.
    pub fn what_if(
        &mut self,
        change: &Change,
        operations: &[Operations],
        is_waiter: impl Fn(&str) -> bool,
    ) -> WhatIf {
        self.sort();
        what_if(self, change, operations, |group| match &**self.group(group) {
            Group::Threads { thread, .. } => is_waiter(thread),
            _ => false,
        })
    }

    fn sort(&mut self) {
        for waits in &mut self.by_thread {
            waits.sort_by_key(|wait| (wait.start, wait.end));
        }
    }

    pub(super) fn thread_of(&self, key: ThreadKey) -> Option<u32> {
        self.threads.get(&key).copied()
    }

    fn is_watched(&mut self, stack: Option<&ResolvedStack>) -> bool {
        let (Some(functions), Some(stack)) = (&self.watched, stack) else { return false };
        self.is_watched.get(stack, |stack| {
            let lines = stack.frames.iter().flat_map(|frame| &frame.lines);
            let names = lines.filter_map(|line| line.symbol.as_deref());
            names.into_iter().any(|name| functions.matches(name) || functions.matches(&short_name(name)))
        })
    }

    /// Waits that were not added because there are too many.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Charges the waits of the threads that `is_waiter` accepts.
    pub fn blame(mut self, is_waiter: impl Fn(ThreadKey) -> bool) -> Blame {
        self.sort();
        let host = self.groups.number(Group::Host);
        let unknown = self.groups.number(Group::Unknown);
        let mut chains = Chains::new(&self, host, unknown);
        let waiters = self.threads.iter().filter(|(key, _)| is_waiter(**key));
        chains.charge_all(waiters.map(|(_, thread)| *thread));
        chains.finish()
    }

    pub(super) fn group(&self, number: u32) -> &Arc<Group> {
        self.groups.value(number)
    }

    fn group_of_other(&mut self, thread: &ThreadRef) -> u32 {
        match self.index_of(thread) {
            Some(index) => self.group_of[index as usize],
            None => {
                let name: Arc<str> = thread.comm.as_str().into();
                self.groups.number(Group::Threads { process: name.clone(), thread: name })
            }
        }
    }

    fn thread(&mut self, thread: &ThreadRef) -> Cause {
        let index = self.index_of(thread).map(Cause::Thread);
        index.unwrap_or_else(|| Cause::Group(self.group_of_other(thread)))
    }

    fn index_of(&self, thread: &ThreadRef) -> Option<u32> {
        self.threads.get(&thread.key?).copied()
    }

    fn cause(&mut self, stall: &StallRecord) -> Cause {
        let owner = stall.lock.as_ref().and_then(|lock| lock.owner.as_ref());
        let waker = stall.waker.as_ref().and_then(|waker| waker.thread.as_ref());
        let timed_out = stall.asked_ns.is_some_and(|asked| stall.blocked_ns >= asked);
        let is = |reason| stall.reason == StallReason::Blocked(reason);
        if is(Reason::Disk) || stall.reason == StallReason::Major {
            return Cause::Group(self.groups.number(Group::Device));
        }
        if let Some(waker) = waker {
            return self.thread(waker);
        }
        if let Some(owner) = owner {
            return self.thread(owner);
        }
        let group = match stall.kind {
            StallKind::Fault => return Cause::Itself,
            // A poll that is for a lock waits for no network, and its timeout only looks again.
            _ if stall.meaning.as_ref().is_some_and(|meaning| meaning.holder) => Group::Unknown,
            _ if timed_out || is(Reason::Sleep) => Group::Timer,
            _ if is(Reason::Network) || is(Reason::Poll) => Group::Network,
            _ => Group::Unknown,
        };
        Cause::Group(self.groups.number(group))
    }

    fn release(&mut self, stall: &StallRecord) -> Option<u32> {
        let waker = stall.waker.as_ref()?;
        waker.thread.as_ref()?;
        self.place_of(waker.user.as_ref(), waker.kernel.as_ref())
    }

    fn place_of(&mut self, user: Option<&ResolvedStack>, kernel: Option<&ResolvedStack>) -> Option<u32> {
        let stack = stack_of_site(user, kernel)?;
        let Waits { places, place_of, roles, .. } = self;
        place_of.get(stack, |stack| Some(places.number(text(&Site::of_stack(stack, roles)?))))
    }

    fn add_ran(&mut self, stall: &StallRecord) -> Range<u32> {
        let from = self.ran.len() as u32;
        if self.ran.len() + stall.ran_instead.len() <= MOST_RAN {
            for (thread, ns) in &stall.ran_instead {
                let group = self.group_of_other(thread);
                self.ran.push((group, *ns));
            }
        }
        from..self.ran.len() as u32
    }
}

fn is_for_lock(stall: &StallRecord) -> bool {
    let has_holder = stall.meaning.as_ref().is_some_and(|meaning| meaning.holder);
    has_holder || stall.lock.is_some() || stall.reason == StallReason::Blocked(Reason::Lock)
}

/// `sweep_registry (fdatasync)`.
fn text(site: &Site) -> String {
    match (site.functions.first(), &site.through) {
        (Some(function), Some(through)) => format!("{function} ({through})"),
        (Some(function), None) => function.to_string(),
        (None, _) => String::new(),
    }
}
