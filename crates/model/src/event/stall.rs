// SPDX-License-Identifier: Apache-2.0
//! Single intervals off the CPU and page faults.

use std::sync::Arc;

use super::fault::Fault;
use super::peer::Peer;
use crate::lateness::Lateness;
use crate::meaning::Meaning;
use crate::stack::StackId;
use crate::state::{Reason, StallKind, StallReason};
use crate::thread::{ThreadKey, ThreadRef};
use crate::time::MonoNs;
use crate::trace::TraceIds;
use crate::word::WaitWord;

/// One off-CPU interval or fault, kept by itself. The time of a fault that is neither blocked nor a wait for
/// a CPU was running time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The thread that was off the CPU, or that faulted.
    pub thread: ThreadKey,
    /// The thread's name at the time.
    pub comm: String,
    /// Whether the stall is an interval off the CPU or a page fault.
    pub kind: StallKind,
    /// Of an interval off the CPU the longer part: what the thread was blocked on, or the wait for a CPU. Of
    /// a page fault: minor or major.
    pub reason: StallReason,
    /// The wait is voluntary by its reason, and was not overslept by a whole stall. Never set for a page
    /// fault. [`Self::is_idle`] takes the meaning of the wait into account.
    pub voluntary: bool,
    /// The switch-out, or the start of the fault. Monotonic clock, ns.
    pub start: MonoNs,
    /// For an open stall the last time at which it was known to last. Monotonic clock, ns.
    pub end: MonoNs,
    /// The recording ended, or the thread was looked at, before the stall did.
    pub open: bool,
    /// From the start to the wakeup, ns. Of a fault: the sleeps in it.
    pub blocked_ns: u64,
    /// Runnable without a CPU, ns: from the wakeup to the switch-in, or all of a preemption.
    pub runnable_ns: u64,
    /// The name of the system call that the thread was in, `syscall_N` where N has no name. `None`: in none,
    /// or not known.
    pub syscall: Option<String>,
    /// The CPU that the thread came back on, or waits for. `None`: not known.
    pub cpu: Option<u32>,
    /// The kernel's number for the thread's priority at the end, with what it inherits: below 100 real-time,
    /// 120 ordinary; a lower number goes first.
    pub priority: Option<i16>,
    /// The thread's user stack, in which it waited or faulted. `None`: no stack was taken.
    pub user: Option<StackId>,
    /// The thread's kernel stack. `None`: no stack was taken.
    pub kernel: Option<StackId>,
    /// `None`: no wakeup was seen, as for a preemption or an open stall.
    pub waker: Option<Waker>,
    /// `None`: the thread waited for no lock, or for one that neither memory nor the kernel shows.
    pub lock: Option<Lock>,
    /// What the owner of the lock ran during the wait. `None`: no sample met the owner.
    pub owner_sample: Option<OwnerSample>,
    /// The threads that had the CPU while the thread waited for it, most time first.
    pub ran_instead: Vec<RanInstead>,
    /// `None` unless `kind` is [`StallKind::Fault`].
    pub fault: Option<Fault>,
    /// The timeout that the thread had asked for, ns from the start of the wait. `None`: the wait had none.
    pub asked_ns: Option<u64>,
    /// The file that a wait for a disk was for. `None`: not known.
    pub file: Option<WaitedFile>,
    /// The other end of the socket or pipe that the thread waited on. `None`: not known.
    pub peer: Option<Box<Peer>>,
    /// What the process's own memory said that the thread waited for. `None`: no word was read.
    pub word: Option<WaitWord>,
    /// The trace that the thread worked for. `None`: the process publishes none, or the thread worked for none.
    pub trace: Option<TraceIds>,
    /// What the wait means, as far as that was known when the stall was emitted. `None`: not known.
    pub meaning: Option<Arc<Meaning>>,
}

/// What the threads do that wait at a place, so far: it can change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PlaceVerdict {
    /// Too few waits of the place were seen, or the last verdict is too old.
    #[default]
    Unknown,
    /// They wait for something to do.
    Idle,
    /// They wait for each other, as for a lock.
    NotIdle,
}

impl Stall {
    /// An interval off the CPU of `ns` with no other facts: all of it has the given reason, and it is
    /// voluntary if the reason is. It has no name.
    pub fn new(thread: ThreadKey, reason: StallReason, start: MonoNs, ns: u64) -> Self {
        let is_blocked = matches!(reason, StallReason::Blocked(_));
        Stall {
            thread,
            comm: String::new(),
            kind: StallKind::OffCpu,
            reason,
            voluntary: matches!(reason, StallReason::Blocked(reason) if reason.is_voluntary()),
            start,
            end: MonoNs(start.0.saturating_add(ns)),
            open: false,
            blocked_ns: if is_blocked { ns } else { 0 },
            runnable_ns: if is_blocked { 0 } else { ns },
            syscall: None,
            cpu: None,
            priority: None,
            user: None,
            kernel: None,
            waker: None,
            lock: None,
            owner_sample: None,
            ran_instead: Vec::new(),
            fault: None,
            asked_ns: None,
            file: None,
            peer: None,
            word: None,
            trace: None,
            meaning: None,
        }
    }

    /// Whether the thread had nothing to do. A wait that is voluntary by its reason can be a wait for a lock.
    /// An involuntary wait can be that of a server for its clients.
    pub fn is_idle(&self) -> bool {
        match &self.meaning {
            Some(meaning) => meaning.idle && self.overslept_ns().is_none(),
            None => self.voluntary,
        }
    }

    /// From start to end, ns; of an open stall, so far. 0 where the end is before the start.
    pub fn duration_ns(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// How late the thread returned, ns.
    pub fn late_ns(&self) -> u64 {
        self.lateness().late_ns()
    }

    /// How long after the timeout it had asked for; `None` where it did not oversleep one.
    pub fn overslept_ns(&self) -> Option<u64> {
        self.lateness().overslept_ns()
    }

    fn lateness(&self) -> Lateness {
        Lateness {
            duration_ns: self.duration_ns(),
            blocked_ns: self.blocked_ns,
            asked_ns: self.asked_ns,
            reason: self.reason,
            is_lock: self.lock.is_some() || self.meaning.as_ref().is_some_and(|meaning| !meaning.idle),
        }
    }

    /// Divides a voluntary wait for `wait` that did not oversleep at its wakeup: the wait was voluntary, the
    /// time without a CPU after it was not. One stall where either part is shorter than `least_ns`.
    pub fn divided_at_wakeup(self, wait: Reason, least_ns: u64) -> Vec<Stall> {
        if self.blocked_ns.min(self.runnable_ns) < least_ns.max(1) {
            return vec![self];
        }
        let woken_at = MonoNs(self.end.0.saturating_sub(self.runnable_ns));
        let late = Stall {
            reason: StallReason::Runnable,
            voluntary: false,
            start: woken_at,
            blocked_ns: 0,
            owner_sample: None,
            asked_ns: None,
            peer: None,
            word: None,
            meaning: None,
            ..self.clone()
        };
        // The wait ended at its wakeup; where the stall is still open, the thread is woken and not back yet.
        let voluntary = Stall {
            reason: StallReason::Blocked(wait),
            voluntary: true,
            end: woken_at,
            open: false,
            runnable_ns: 0,
            ran_instead: Vec::new(),
            ..self
        };
        vec![voluntary, late]
    }
}

/// The file on whose descriptor a system call waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitedFile {
    /// As its process sees it; its name alone where the process was gone.
    pub path: String,
    /// Where the call reads or writes, bytes; `None` for calls about the whole file.
    pub offset: Option<u64>,
}

/// The wakeup that ended a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waker {
    /// `None`: woken from an interrupt, where the current task is a bystander.
    pub thread: Option<ThreadRef>,
    /// The user stack of the waker at the wakeup. `None`: no stack was taken, or no thread is known.
    pub user: Option<StackId>,
    /// The kernel stack at the wakeup, of the waker or of the interrupt. `None`: no stack was taken.
    pub kernel: Option<StackId>,
}

/// A lock that a thread waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The lock word in the process, of a futex; 0 for a lock of the kernel, and for SQLite's on a file.
    pub address: u64,
    /// The owner by the lock word, or by the kernel. `None`: no owner is named, or its number is that of no
    /// known thread.
    pub owner: Option<ThreadRef>,
}

/// One sample of a lock's owner, taken while another thread waited for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerSample {
    /// When the sample was taken, between the start of the wait and its wakeup. Monotonic clock, ns.
    pub at: MonoNs,
    /// The user stack of the owner.
    pub user: StackId,
}

/// A thread that had the CPU for which another thread waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RanInstead {
    /// The thread; it may be outside of the recording.
    pub thread: ThreadRef,
    /// How long it had the CPU during the wait, ns.
    pub ns: u64,
}
