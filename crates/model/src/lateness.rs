// SPDX-License-Identifier: Apache-2.0
//! How late a thread returned from a stall.
//!
//! A thread that slept 20 ms because it asked for 20 ms is not late; one that comes back 60 µs after that is
//! 60 µs late. Everything that ranks, sums or names the severity of stalls goes by this number.

use crate::state::StallReason;

/// The facts of a stall on which its lateness depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lateness {
    /// From switch-out to switch-in, or of the fault, ns.
    pub duration_ns: u64,
    /// The part up to the wakeup.
    pub blocked_ns: u64,
    /// The timeout of the wait, counted from its start.
    pub asked_ns: Option<u64>,
    /// Only voluntary waits, and waits for a CPU, can oversleep.
    pub reason: StallReason,
    /// The thread waited for a lock: a timeout only bounds such a wait, it is not the time of the return.
    pub is_lock: bool,
}

impl Lateness {
    /// The time after the end of the timeout, ns. `None` for a wait that did not oversleep one: it had none,
    /// it was woken before the timeout, or the wait was involuntary.
    pub fn overslept_ns(&self) -> Option<u64> {
        let asked_ns = self.asked_ns?;
        let timed_out = self.blocked_ns >= asked_ns && self.duration_ns > asked_ns;
        (timed_out && self.may_oversleep()).then(|| self.duration_ns - asked_ns)
    }

    /// The time after the timeout where the thread overslept one, else the duration, ns.
    pub fn late_ns(&self) -> u64 {
        self.overslept_ns().unwrap_or(self.duration_ns)
    }

    fn may_oversleep(&self) -> bool {
        match self.reason {
            StallReason::Blocked(reason) => reason.is_voluntary() && !self.is_lock,
            // The wait for a CPU was the longer part: the reason no longer names the wait before it.
            StallReason::Runnable => !self.is_lock,
            StallReason::Preempted | StallReason::Minor | StallReason::Major => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Reason;

    const MS: u64 = 1_000_000;

    fn slept(duration_ns: u64, asked_ns: u64) -> Lateness {
        Lateness {
            duration_ns,
            blocked_ns: duration_ns,
            asked_ns: Some(asked_ns),
            reason: StallReason::Blocked(Reason::Sleep),
            is_lock: false,
        }
    }

    #[test]
    fn overslept_timeout_counts_from_its_end() {
        let late = slept(20 * MS + 60_000, 20 * MS);
        assert_eq!((late.overslept_ns(), late.late_ns()), (Some(60_000), 60_000));
        assert_eq!(slept(MS, 0).late_ns(), MS, "a deadline that had passed");
    }

    #[test]
    fn wait_within_its_timeout_is_late_by_its_duration() {
        for asked_ns in [20 * MS, 21 * MS, u64::MAX] {
            assert_eq!(
                (slept(20 * MS, asked_ns).overslept_ns(), slept(20 * MS, asked_ns).late_ns()),
                (None, 20 * MS)
            );
        }
        assert_eq!(Lateness { asked_ns: None, ..slept(20 * MS, 0) }.late_ns(), 20 * MS);
    }

    #[test]
    fn time_without_a_cpu_after_the_timeout_is_lateness_too() {
        let late = Lateness { blocked_ns: 20 * MS, ..slept(25 * MS, 20 * MS) };
        assert_eq!(late.late_ns(), 5 * MS);
        let longer =
            Lateness { blocked_ns: 20 * MS, reason: StallReason::Runnable, ..slept(45 * MS, 20 * MS) };
        assert_eq!(longer.late_ns(), 25 * MS);
    }

    #[test]
    fn wakeup_before_the_timeout_is_no_oversleeping() {
        let woken = Lateness { blocked_ns: 10 * MS, ..slept(25 * MS, 20 * MS) };
        assert_eq!((woken.overslept_ns(), woken.late_ns()), (None, 25 * MS));
    }

    #[test]
    fn only_voluntary_waits_oversleep() {
        let as_reason = |reason| Lateness { reason, ..slept(25 * MS, 20 * MS) }.overslept_ns();
        for reason in Reason::ALL {
            let expected = reason.is_voluntary().then_some(5 * MS);
            assert_eq!(as_reason(StallReason::Blocked(reason)), expected, "{reason:?}");
        }
        assert_eq!(as_reason(StallReason::Preempted), None);
        assert_eq!((as_reason(StallReason::Minor), as_reason(StallReason::Major)), (None, None));
        let sliced = Lateness { is_lock: true, ..slept(25 * MS, 20 * MS) };
        assert_eq!(
            (sliced.overslept_ns(), sliced.late_ns()),
            (None, 25 * MS),
            "a slice of a wait for a lock"
        );
        let timed_lock = Lateness { reason: StallReason::Runnable, is_lock: true, ..slept(25 * MS, 20 * MS) };
        assert_eq!(timed_lock.overslept_ns(), None);
    }
}
