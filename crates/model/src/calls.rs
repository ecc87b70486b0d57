// SPDX-License-Identifier: Apache-2.0
//! Calls: what was counted for each call path of a thread, by sources that see every call and return.

use std::sync::Arc;

use crate::histogram::Histogram;
use crate::profile::ResolvedFrame;
use crate::stack::FrameId;
use crate::thread::ThreadKey;

/// A source's own number for a call path, unique within its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallPathId(pub u32);

/// Time outside the code whose calls are known, by cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Outside {
    /// Unknown code, entered at an unknown address.
    Unknown = 0,
    /// In the kernel for a system call, where the kernel was not traced.
    SystemCall = 1,
    /// The thread was current while an interrupt ran.
    Interrupt = 2,
    /// In the kernel for a page fault, where the kernel was not traced.
    PageFault = 3,
    /// Tracing was off, for no reason that the trace shows.
    Untraced = 4,
    /// The trace has a gap: the code that ran is not known.
    Lost = 5,
    /// Off the CPU and blocked, voluntarily or not.
    Blocked = 6,
    /// Off the CPU although it could have run on.
    Preempted = 7,
    /// Off the CPU, and it is not known why.
    OffCpu = 8,
}

impl Outside {
    /// Each cause once, in the order of the numbers.
    pub const ALL: [Outside; 9] = [
        Outside::Unknown,
        Outside::SystemCall,
        Outside::Interrupt,
        Outside::PageFault,
        Outside::Untraced,
        Outside::Lost,
        Outside::Blocked,
        Outside::Preempted,
        Outside::OffCpu,
    ];

    /// `None`: no cause has this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Its number in recordings.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The name of its frame.
    pub fn label(self) -> &'static str {
        match self {
            Outside::Unknown => "[unknown]",
            Outside::SystemCall => "[syscall]",
            Outside::Interrupt => "[interrupt]",
            Outside::PageFault => "[page fault]",
            Outside::Untraced => "[untraced]",
            Outside::Lost => "[lost]",
            Outside::Blocked => "[blocked]",
            Outside::Preempted => "[preempted]",
            Outside::OffCpu => "[off-cpu]",
        }
    }

    /// Whether the thread had no CPU meanwhile.
    pub fn is_off_cpu(self) -> bool {
        matches!(self, Outside::Blocked | Outside::Preempted | Outside::OffCpu)
    }
}

/// The last frame of a call path. `C` refers to code: a source's [`FrameId`], or everything that is known of
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CallFrame<C> {
    /// A function: the frame's address is its entry, or where it was called if no symbol covers that.
    Code(C),
    /// No code: the cause stands in its place.
    Outside(Outside),
}

/// What was counted. Times are in ns, rounded down once from the source's sums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallNumbers {
    /// Calls seen from start to end.
    pub calls: u64,
    /// Calls whose end was not seen: open at a gap, or when the recording ended.
    pub incomplete: u64,
    /// Entered before the recording or during a gap: their time counts, their call does not.
    pub entered_before: u64,
    /// Of `calls`, those that ended by an exception, a `longjmp` or a return that skipped them.
    pub unwound: u64,
    /// Time in the path itself, not in what it called.
    pub self_ns: u64,
    /// All time from start to end, complete calls or not.
    pub total_ns: u64,
    /// The part of `total_ns` that complete calls took: divided by `calls` it is the average.
    pub complete_ns: u64,
    /// The shortest complete call; 0 without one. A call shorter than the recording's resolution is not known
    /// exactly, and can be 0, too.
    pub min_ns: u64,
    /// The longest complete call; 0 without one.
    pub max_ns: u64,
    /// How long complete calls took.
    pub latency: Histogram,
}

impl CallNumbers {
    /// The average length of a complete call; `None` without one.
    pub fn average_ns(&self) -> Option<u64> {
        self.complete_ns.checked_div(self.calls)
    }

    /// Adds what was counted elsewhere for the same path or function. Sums saturate.
    pub fn merge(&mut self, other: &CallNumbers) {
        self.min_ns = match (self.calls, other.calls) {
            (_, 0) => self.min_ns,
            (0, _) => other.min_ns,
            _ => self.min_ns.min(other.min_ns),
        };
        self.max_ns = self.max_ns.max(other.max_ns);
        for (to, from) in [
            (&mut self.calls, other.calls),
            (&mut self.incomplete, other.incomplete),
            (&mut self.entered_before, other.entered_before),
            (&mut self.unwound, other.unwound),
            (&mut self.self_ns, other.self_ns),
            (&mut self.total_ns, other.total_ns),
            (&mut self.complete_ns, other.complete_ns),
        ] {
            *to = to.saturating_add(from);
        }
        self.latency.merge(&other.latency);
    }
}

/// A call path as a source emits it. One that is emitted again adds its numbers to those before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPath {
    /// Unique within `thread` only.
    pub id: CallPathId,
    /// The thread that made the calls.
    pub thread: ThreadKey,
    /// The path without its last frame, of the same thread and emitted before; `None` for an outermost frame.
    pub parent: Option<CallPathId>,
    /// The last frame of the path.
    pub frame: CallFrame<FrameId>,
    /// What is added to the path.
    pub numbers: CallNumbers,
}

/// All calls of one thread, as a recording gives them back. Self times add up to the time that the source
/// saw of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadCalls {
    /// The thread that made the calls.
    pub thread: ThreadKey,
    /// Parents come before their children.
    pub paths: Vec<ResolvedCallPath>,
}

/// One call path with everything known of its last frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedCallPath {
    /// The path without its last frame, as an index of [`ThreadCalls::paths`] before this one.
    pub parent: Option<usize>,
    /// The last frame of the path, with its names.
    pub frame: CallFrame<Arc<ResolvedFrame>>,
    /// All that was counted for the path.
    pub numbers: CallNumbers,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_calls(lengths: &[u64]) -> CallNumbers {
        let mut numbers = CallNumbers {
            calls: lengths.len() as u64,
            complete_ns: lengths.iter().sum(),
            min_ns: lengths.iter().copied().min().unwrap_or(0),
            max_ns: lengths.iter().copied().max().unwrap_or(0),
            ..CallNumbers::default()
        };
        lengths.iter().for_each(|&ns| numbers.latency.record(ns));
        numbers
    }

    #[test]
    fn merged_numbers_are_those_of_all_calls() {
        for (first, second) in [(&[3, 9, 700][..], &[5, 5][..]), (&[][..], &[4][..]), (&[4][..], &[][..])] {
            let mut merged = of_calls(first);
            merged.merge(&of_calls(second));
            assert_eq!(merged, of_calls(&[first, second].concat()));
        }
    }

    #[test]
    fn the_average_is_that_of_complete_calls() {
        let open = CallNumbers { total_ns: 1_000, incomplete: 1, ..CallNumbers::default() };
        assert_eq!(open.average_ns(), None);
        let mut numbers = of_calls(&[10, 21]);
        numbers.merge(&open);
        assert_eq!((numbers.average_ns(), numbers.total_ns, numbers.incomplete), (Some(15), 1_000, 1));
    }

    #[test]
    fn codes_come_back() {
        for outside in Outside::ALL {
            assert_eq!(Outside::from_code(outside.code()), Some(outside));
        }
        assert_eq!(Outside::from_code(9), None);
    }
}
