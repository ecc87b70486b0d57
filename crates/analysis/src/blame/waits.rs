//! The waits of a recording in a compact form, by thread and time.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use wallprof_model::profile::{ResolvedStack, StallRecord, Thread};
use wallprof_model::{Reason, StallKind, StallReason, ThreadKey, ThreadRef};

use super::chain::Chains;
use super::{Blame, Group};
use crate::by_stack::ByStack;
use crate::interner::Interner;
use crate::site::{Site, stack_of_site};

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
    /// Where it waited, and where it was woken from: numbers of places.
    pub place: Option<u32>,
    pub release: Option<u32>,
    /// The threads that had the CPU, in [`Waits::ran`].
    pub ran: Range<u32>,
    /// The end of the wait that made its thread late, ns: 0 for a voluntary wait, the part after the timeout for
    /// one that overslept it.
    pub late_ns: u64,
}

/// The waits of a recording, added in any order.
#[derive(Debug, Default)]
pub struct Waits {
    threads: HashMap<ThreadKey, u32>,
    /// The group of each thread.
    pub(super) group_of: Vec<u32>,
    groups: Interner<Group>,
    pub(super) places: Interner<str>,
    place_of: ByStack<Option<u32>>,
    pub(super) by_thread: Vec<Vec<Wait>>,
    /// Group and time.
    pub(super) ran: Vec<(u32, u64)>,
    kept: usize,
    dropped: u64,
}

impl Waits {
    /// Of a recording with these threads.
    pub fn new(threads: &[Thread]) -> Self {
        let mut waits = Waits::default();
        for thread in threads {
            let info = &thread.info;
            let group =
                Group::Threads { process: info.process.as_str().into(), thread: info.comm.as_str().into() };
            let group = waits.groups.number(group);
            waits.threads.insert(info.key, waits.group_of.len() as u32);
            waits.group_of.push(group);
            waits.by_thread.push(Vec::new());
        }
        waits
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
            place: self.place_of(stall.user.as_ref(), stall.kernel.as_ref()),
            release: self.release(stall),
            ran: self.add_ran(stall),
            late_ns: if stall.voluntary { 0 } else { stall.late_ns() },
        };
        self.by_thread[thread as usize].push(wait);
    }

    /// Waits that were not added because there are too many.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Charges the waits of the threads that `is_waiter` accepts by their names.
    pub fn blame(mut self, is_waiter: impl Fn(&str) -> bool) -> Blame {
        for waits in &mut self.by_thread {
            waits.sort_by_key(|wait| (wait.start, wait.end));
        }
        let host = self.groups.number(Group::Host);
        let unknown = self.groups.number(Group::Unknown);
        let mut chains = Chains::new(&self, host, unknown);
        for thread in 0..self.by_thread.len() as u32 {
            let is_one = match self.group(self.group_of[thread as usize]) {
                Group::Threads { thread, .. } => is_waiter(thread),
                _ => false,
            };
            if is_one {
                chains.charge_all(thread);
            }
        }
        chains.finish()
    }

    pub(super) fn group(&self, number: u32) -> &Group {
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
        let Waits { places, place_of, .. } = self;
        place_of.get(stack, |stack| Some(places.number(text(&Site::of(Some(stack), None)?))))
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

/// `sweep_registry (fdatasync)`.
fn text(site: &Site) -> String {
    match (site.functions.first(), &site.through) {
        (Some(function), Some(through)) => format!("{function} ({through})"),
        (Some(function), None) => function.to_string(),
        (None, _) => String::new(),
    }
}
