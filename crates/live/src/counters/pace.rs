// SPDX-License-Identifier: Apache-2.0
//! How often something is read: ten times a second, or as often as its cost allows.

use wallprof_model::MonoNs;

const PERIOD_NS: u64 = 100_000_000;
/// A reading may use this part of one CPU: a five-hundredth.
const SHARE: u64 = 500;
/// It comes at least this often.
const LONGEST_NS: u64 = 10_000_000_000;

/// The time of the next reading.
#[derive(Debug)]
pub struct Pace {
    due: u64,
    /// The recent cost of readings, ns.
    cost_ns: u64,
    share: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Pace::with_share(SHARE)
    }
}

impl Pace {
    /// A reading may use one part of this many of a CPU.
    pub fn with_share(share: u64) -> Self {
        Pace { due: 0, cost_ns: 0, share }
    }

    pub fn is_due(&self, now: MonoNs) -> bool {
        now.0 >= self.due
    }

    /// A reading at `now` used this much CPU time. One costly reading alone changes little, and the first one
    /// least: it finds cold caches, and everything is new to it.
    pub fn took(&mut self, now: MonoNs, cost_ns: u64) {
        self.cost_ns = self.cost_ns.saturating_mul(7).saturating_add(cost_ns) / 8;
        let period = (self.cost_ns.saturating_mul(self.share)).clamp(PERIOD_NS, LONGEST_NS);
        // On the grid of its period, so that a caller who is a little late does not shift all readings.
        let missed = now.0.saturating_sub(self.due) / period;
        let next = self.due.saturating_add((missed + 1).saturating_mul(period));
        self.due = if self.due == 0 { now.0.saturating_add(period) } else { next };
    }

    /// Puts the next reading off by at least this long.
    pub fn rest(&mut self, now: MonoNs, ns: u64) {
        self.due = self.due.max(now.0.saturating_add(ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due_after(costs: &[u64]) -> u64 {
        let mut pace = Pace::default();
        assert!(pace.is_due(MonoNs(1)));
        let mut now = PERIOD_NS;
        for cost in costs {
            pace.took(MonoNs(now), *cost);
            now = pace.due;
        }
        let last = pace.due;
        assert!(!pace.is_due(MonoNs(last - 1)) && pace.is_due(MonoNs(last)));
        last
    }

    #[test]
    fn cheap_readings_come_ten_times_a_second() {
        assert_eq!(due_after(&[100_000; 10]), 11 * PERIOD_NS);
    }

    #[test]
    fn costly_ones_take_a_five_hundredth_of_the_time() {
        let many = [2_000_000; 60];
        let period = due_after(&many) - due_after(&many[1..]);
        assert!((990_000_000..=1_000_000_000).contains(&period), "{period} ns");
        assert_eq!(due_after(&[u64::MAX]), PERIOD_NS + LONGEST_NS);
    }

    #[test]
    fn costly_first_reading_is_compensated() {
        assert_eq!(due_after(&[1_600_000]), 2 * PERIOD_NS);
    }

    #[test]
    fn late_caller_shifts_no_reading() {
        let mut pace = Pace::default();
        pace.took(MonoNs(1_000_000_000), 1);
        pace.took(MonoNs(1_103_000_000), 1);
        assert_eq!(pace.due, 1_200_000_000);
        pace.took(MonoNs(1_950_000_000), 1);
        assert_eq!(pace.due, 2_000_000_000);
        pace.rest(MonoNs(1_950_000_000), 2_000_000_000);
        assert_eq!(pace.due, 3_950_000_000);
    }
}
