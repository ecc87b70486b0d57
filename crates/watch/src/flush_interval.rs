// SPDX-License-Identifier: Apache-2.0
//! How long complete seconds may stay pending before they are flushed, several at once.
//!
//! A flush costs 3 to 8 ms even for a second without events. After some seconds with little activity, the
//! interval grows from one second to ten. The content of each second is the same in both cases. A reader
//! makes the service flush, so that it sees all complete seconds.
//!
//! Pure. Owns the length of the interval and whether a flush is due.

/// Seconds in a row with little activity before the interval grows.
const SETTLE_SECONDS: u64 = 10;
/// Limit on pending seconds.
const MAX_PENDING_SECONDS: u64 = 10;
/// Little activity, by the second: stalls of all kinds …
const MAX_STALLS: u64 = 200;
/// … and runs of the BPF programs. Each run makes a row or two in the kernel's maps, which have capacity for
/// two seconds of a busy machine and must hold the rows of all pending seconds.
const MAX_PROBE_RUNS: u64 = 2_500;

/// The activity in some seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    pub seconds: u64,
    pub stalls: u64,
    pub probe_runs: u64,
}

impl Activity {
    fn is_little(&self) -> bool {
        let limit = |of_a_second: u64| of_a_second.saturating_mul(self.seconds.max(1));
        self.stalls <= limit(MAX_STALLS) && self.probe_runs <= limit(MAX_PROBE_RUNS)
    }
}

/// Follows the activity. At first, the interval is one second.
#[derive(Clone, Debug, Default)]
pub struct FlushInterval {
    seconds_of_little: u64,
}

impl FlushInterval {
    /// Takes the activity of flushed seconds.
    pub fn flushed(&mut self, activity: Activity) {
        self.seconds_of_little =
            if activity.is_little() { self.seconds_of_little.saturating_add(activity.seconds) } else { 0 };
    }

    /// Shortens the interval to one second, until there was little activity for long enough again.
    pub fn shorten(&mut self) {
        self.seconds_of_little = 0;
    }

    /// Whether seconds may stay pending.
    pub fn is_long(&self) -> bool {
        self.seconds_of_little >= SETTLE_SECONDS
    }

    /// Whether the complete seconds, with this activity, must be flushed now.
    pub fn is_due(&self, pending: Activity) -> bool {
        !self.is_long() || pending.seconds >= MAX_PENDING_SECONDS || !pending.is_little()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(seconds: u64, stalls: u64, probe_runs: u64) -> Activity {
        Activity { seconds, stalls, probe_runs }
    }

    fn long_interval() -> FlushInterval {
        let mut interval = FlushInterval::default();
        (0..SETTLE_SECONDS).for_each(|_| interval.flushed(activity(1, MAX_STALLS, MAX_PROBE_RUNS)));
        interval
    }

    #[test]
    fn interval_grows_after_seconds_of_little_activity_in_a_row() {
        let mut interval = FlushInterval::default();
        for _ in 1..SETTLE_SECONDS {
            interval.flushed(activity(1, 0, 0));
            assert!(!interval.is_long() && interval.is_due(activity(1, 0, 0)));
        }
        interval.flushed(activity(1, MAX_STALLS + 1, 0));
        interval.flushed(activity(SETTLE_SECONDS - 1, 0, 0));
        assert!(!interval.is_long(), "counted from the start again");
        interval.flushed(activity(1, 0, 0));
        assert!(interval.is_long());
    }

    #[test]
    fn pending_seconds_are_bounded() {
        let interval = long_interval();
        for seconds in 1..MAX_PENDING_SECONDS {
            assert!(!interval.is_due(activity(seconds, seconds * MAX_STALLS, seconds * MAX_PROBE_RUNS)));
        }
        assert!(interval.is_due(activity(MAX_PENDING_SECONDS, 0, 0)));
    }

    #[test]
    fn sudden_activity_is_flushed_and_shortens_the_interval() {
        for sudden in [activity(2, 2 * MAX_STALLS + 1, 0), activity(2, 0, 2 * MAX_PROBE_RUNS + 1)] {
            let mut interval = long_interval();
            assert!(interval.is_due(sudden));
            interval.flushed(sudden);
            assert!(!interval.is_long());
        }
    }

    #[test]
    fn shortened_interval_is_due_each_second() {
        let mut interval = long_interval();
        interval.shorten();
        assert!(interval.is_due(activity(1, 0, 0)));
    }
}
