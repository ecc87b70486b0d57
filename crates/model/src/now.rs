// SPDX-License-Identifier: Apache-2.0
//! Threads as they are at one look, without a recording.

use std::sync::Arc;

use crate::meaning::Meaning;
use crate::profile::{LockRecord, ResolvedStack};
use crate::state::Reason;

/// One thread at the look.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadNow {
    /// The number of the process (thread group) in the root pid namespace.
    pub pid: u32,
    /// The number of the thread in the root pid namespace.
    pub tid: u32,
    /// The name of the thread (comm of proc(5)).
    pub comm: String,
    /// The name of the process: the thread group leader's comm.
    pub process: String,
    /// A thread of the kernel, without a user stack.
    pub kernel_thread: bool,
    /// What the thread does at the time of the look.
    pub activity: Activity,
    /// How long the activity has lasted so far.
    pub since: Since,
    /// The name of the system call that the thread is in, `syscall_N` where N has no name. `None`: in none.
    pub syscall: Option<String>,
    /// What the wait means, by the rules about stacks and words. `None`: it is not blocked, or no rule names
    /// it.
    pub meaning: Option<Arc<Meaning>>,
    /// `None`: a kernel thread; a running thread that no sample met; a thread that moved.
    pub user: Option<ResolvedStack>,
    /// `None`: a running thread that no sample met in the kernel; a thread that moved.
    pub kernel: Option<ResolvedStack>,
    /// The lock that it waits for.
    pub lock: Option<LockRecord>,
    /// It ran during each walk of its stacks.
    pub moved: bool,
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Activity {
    /// The thread has a CPU.
    Running,
    /// It waits for a CPU.
    Runnable,
    /// The thread is off the CPU until a wakeup.
    Blocked(Reason),
}

impl Activity {
    /// The name in JSON; without the reason of a blocked thread.
    pub fn name(self) -> &'static str {
        match self {
            Activity::Running => "running",
            Activity::Runnable => "runnable",
            Activity::Blocked(_) => "blocked",
        }
    }

    /// What a blocked thread waits for; `None` for all others.
    pub fn reason(self) -> Option<Reason> {
        match self {
            Activity::Blocked(reason) => Some(reason),
            Activity::Running | Activity::Runnable => None,
        }
    }
}

/// How long a thread has been doing it, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// Exactly this long: the scheduler's sums and its latest start agree.
    For(u64),
    /// The kernel's sums do not say more.
    AtLeast(u64),
    /// No start is known, or the start lies in the future.
    Unknown,
}

impl Since {
    /// The time that has passed for certain.
    pub fn least_ns(self) -> u64 {
        match self {
            Since::For(ns) | Since::AtLeast(ns) => ns,
            Since::Unknown => 0,
        }
    }

    /// From the scheduler's clock `now`, the start of what the thread does as its sums say, and the latest
    /// start, 0 where that is not known. A start that the sums place much before the latest one is not known:
    /// interrupts or steal time are between the two, or the scheduling class keeps no sums.
    pub fn from_clock(now: u64, start: u64, latest: u64) -> Self {
        /// The two are read from clocks of one CPU, some instructions apart.
        const TOLERANCE_NS: u64 = 100_000;
        /// One per cent of the time, at least this much.
        const UNSURE_NS: u64 = 1_000_000;
        if latest == 0 || latest > now.saturating_add(TOLERANCE_NS) {
            return Since::Unknown;
        }
        let at_least = now.saturating_sub(latest);
        let unsure = latest.saturating_sub(start);
        let is_sound = start != 0 && start <= latest.saturating_add(TOLERANCE_NS);
        match is_sound && unsure <= UNSURE_NS.max(at_least / 100) {
            true => Since::For(now.saturating_sub(start.min(latest))),
            false => Since::AtLeast(at_least),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn start_is_known_where_both_clocks_agree() {
        assert_eq!(Since::from_clock(100 * S, 90 * S, 90 * S), Since::For(10 * S));
        assert_eq!(Since::from_clock(100 * S, 90 * S - S / 20, 90 * S), Since::For(10 * S + S / 20));
        assert_eq!(Since::from_clock(100 * S, 100 * S + 50, 100 * S + 50), Since::For(0), "just now");
    }

    #[test]
    fn only_the_latest_start_is_certain_where_they_differ() {
        let at_least = Since::AtLeast(10 * S);
        assert_eq!(Since::from_clock(100 * S, 89 * S, 90 * S), at_least, "a second of interrupts");
        assert_eq!(Since::from_clock(100 * S, 91 * S, 90 * S), at_least, "sums of another run");
        assert_eq!(Since::from_clock(100 * S, 0, 90 * S), at_least);
    }

    #[test]
    fn unknown_start_is_no_number() {
        assert_eq!(Since::from_clock(100 * S, 90 * S, 0), Since::Unknown);
        assert_eq!(Since::from_clock(100 * S, 101 * S, 101 * S), Since::Unknown, "in the future");
        assert_eq!(Since::Unknown.least_ns(), 0);
    }
}
