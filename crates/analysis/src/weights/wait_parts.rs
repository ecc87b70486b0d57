// SPDX-License-Identifier: Apache-2.0
//! The states that a single wait was in, each with its time.

use std::ops::Range;

use wallprof_model::profile::StallRecord;
use wallprof_model::{MonoNs, StallKind, StallReason, State};

/// The states of a wait, each with its time. The reason for which a `runnable` wait was blocked before its
/// wakeup is not known.
pub(super) fn parts(wait: &StallRecord) -> Vec<(State, Range<MonoNs>)> {
    if wait.end <= wait.start {
        return Vec::new();
    }
    // The times of a fault's waits for a CPU are not known. Most come last.
    let resident = MonoNs(wait.end.0.saturating_sub(wait.runnable_ns).max(wait.start.0));
    if wait.kind == StallKind::Fault {
        return match wait.reason {
            StallReason::Minor => vec![(State::FaultMinor, wait.start..resident)],
            StallReason::Major => vec![(State::FaultMajor, wait.start..resident)],
            _ => Vec::new(),
        };
    }
    let woken = MonoNs(wait.start.0.saturating_add(wait.blocked_ns).min(wait.end.0));
    let (blocked, rest) = (wait.start..woken, woken..wait.end);
    match wait.reason {
        StallReason::Preempted => vec![(State::Preempted, wait.start..wait.end)],
        StallReason::Blocked(reason) => vec![(State::Blocked(reason), blocked), (State::Runnable, rest)],
        StallReason::Runnable => vec![(State::Runnable, rest)],
        StallReason::Minor | StallReason::Major => Vec::new(),
    }
}

pub(super) fn common(a: &Range<MonoNs>, b: &Range<MonoNs>) -> Range<MonoNs> {
    a.start.max(b.start)..a.end.min(b.end)
}

pub(super) fn length(range: &Range<MonoNs>) -> u64 {
    range.end.0.saturating_sub(range.start.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_testkit::stacks::stall;

    fn wait(reason: StallReason, [start, blocked_ns, end]: [u64; 3]) -> StallRecord {
        let runnable_ns = (end - start) - blocked_ns;
        let wait = stall(1, 1, reason, MonoNs(start), end - start);
        StallRecord { open: true, blocked_ns, runnable_ns, ..wait }
    }

    #[test]
    fn runnable_wait_has_no_blocked_state() {
        let mut runnable = wait(StallReason::Runnable, [1_100, 20, 1_200]);
        assert_eq!(parts(&runnable), [(State::Runnable, MonoNs(1_120)..MonoNs(1_200))]);
        runnable.kind = StallKind::Fault;
        assert_eq!(parts(&runnable), []);
    }

    #[test]
    fn a_fault_is_in_its_state_but_for_the_cpu_it_waited_for() {
        let mut fault = wait(StallReason::Major, [1_100, 20, 1_200]);
        fault.kind = StallKind::Fault;
        fault.runnable_ns = 30;
        assert_eq!(parts(&fault), [(State::FaultMajor, MonoNs(1_100)..MonoNs(1_170))]);
        fault.runnable_ns = u64::MAX;
        assert_eq!(parts(&fault), [(State::FaultMajor, MonoNs(1_100)..MonoNs(1_100))]);
    }
}
