// SPDX-License-Identifier: Apache-2.0
//! The budget: the CPU time that watching may use, and the reduction of stacks before it is exceeded.
//!
//! Pure. Stacks are the most expensive part: near the limit, fewer samples and only longer waits get one.
//! Counts, durations and ledgers stay exact.

use std::fmt;

use wallprof_analysis::text_from_ns;

/// Seconds over which cost is averaged: one busy second changes nothing.
const AVERAGED: f64 = 10.0;
/// Shares of the budget: above the first, fewer stacks are taken; below the second, more again.
const TIGHT: f64 = 0.8;
const EASY: f64 = 0.4;
/// Seconds between two steps: the effect of a step must show before the next decision.
const STEP_TIME: u64 = 10;
/// 2^6: one sample of 64 gets a stack.
const MAX_STEPS: u32 = 6;
/// The base of the steps where --threshold is shorter, ns.
const LEAST_THRESHOLD_NS: u64 = 10_000;

/// The rate at which stacks are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// One sample in `stride` gets its stack, and stands for all of them.
    pub stride: u32,
    /// Waits of at least this duration get a stack each, ns.
    pub stack_ns: u64,
}

/// As text for users.
impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "a stack for one sample in {} and for waits of at least {}",
            self.stride,
            text_from_ns(self.stack_ns, "us")
        )
    }
}

/// Follows the cost second by second.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Limit as a share of one CPU; `None`: no limit.
    limit: Option<f64>,
    min_stall_ns: u64,
    average: f64,
    steps: u32,
    since_step: u64,
}

impl Budget {
    /// `limit` is a share of one CPU: 0.005 for 0.5 %.
    pub fn new(limit: Option<f64>, min_stall_ns: u64) -> Self {
        Budget { limit, min_stall_ns, average: 0.0, steps: 0, since_step: 0 }
    }

    /// Sets another limit or shortest stall; the pace stays until the next second.
    pub fn change(&mut self, limit: Option<f64>, min_stall_ns: u64) {
        (self.limit, self.min_stall_ns) = (limit, min_stall_ns);
        if limit.is_none() {
            self.steps = 0;
        }
    }

    pub fn pace(&self) -> Pace {
        let base = self.min_stall_ns.max(LEAST_THRESHOLD_NS);
        let stack_ns = if self.steps == 0 { self.min_stall_ns } else { base.saturating_mul(1 << self.steps) };
        Pace { stride: 1 << self.steps, stack_ns }
    }

    /// The average cost, as a share of one CPU.
    pub fn cost(&self) -> f64 {
        self.average
    }

    /// Takes the cost of the last `seconds`, ns of CPU. Returns the new pace if it changes.
    pub fn spend(&mut self, cost_ns: u64, seconds: u64) -> Option<Pace> {
        let seconds = seconds.max(1);
        let share = cost_ns as f64 / 1e9 / seconds as f64;
        let weight = (seconds as f64 / AVERAGED).min(1.0);
        self.average += (share - self.average) * weight;
        self.since_step += seconds;
        let limit = self.limit?;
        if self.since_step < STEP_TIME {
            return None;
        }
        let steps = match self.average / limit {
            used if used > TIGHT => (self.steps + 1).min(MAX_STEPS),
            used if used < EASY => self.steps.saturating_sub(1),
            _ => self.steps,
        };
        (steps != self.steps).then(|| {
            (self.steps, self.since_step) = (steps, 0);
            self.pace()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spends this share of a CPU for some seconds; returns the changes of pace.
    fn spend(budget: &mut Budget, share: f64, seconds: u64) -> Vec<Pace> {
        (0..seconds).filter_map(|_| budget.spend((share * 1e9) as u64, 1)).collect()
    }

    #[test]
    fn pace_slows_before_the_budget_is_exceeded() {
        let mut budget = Budget::new(Some(0.005), 100_000);
        let paces = spend(&mut budget, 0.0045, 60);
        assert!(!paces.is_empty() && budget.cost() < 0.005);
        assert_eq!(paces[0], Pace { stride: 2, stack_ns: 200_000 });
        assert!(paces.windows(2).all(|two| two[1].stride == 2 * two[0].stride));
    }

    #[test]
    fn pace_recovers_when_the_cost_falls() {
        let mut budget = Budget::new(Some(0.005), 100_000);
        spend(&mut budget, 0.02, 200);
        assert_eq!(budget.pace(), Pace { stride: 64, stack_ns: 6_400_000 });
        spend(&mut budget, 0.001, 200);
        assert_eq!(budget.pace(), Pace { stride: 1, stack_ns: 100_000 });
    }

    #[test]
    fn pace_is_shown_in_a_fitting_unit() {
        let shown = |stack_ns| Pace { stride: 2, stack_ns }.to_string();
        assert_eq!(shown(200_000), "a stack for one sample in 2 and for waits of at least 200 us");
        assert!(shown(500).ends_with("at least 500 ns") && shown(6_400_000).ends_with("at least 6.40 ms"));
    }

    #[test]
    fn one_busy_second_changes_nothing() {
        let mut budget = Budget::new(Some(0.01), 100_000);
        spend(&mut budget, 0.001, 60);
        assert!(budget.spend(50_000_000, 1).is_none());
        assert_eq!(budget.pace().stride, 1);
    }

    #[test]
    fn pace_stays_between_the_two_thresholds() {
        let mut budget = Budget::new(Some(0.01), 100_000);
        assert!(spend(&mut budget, 0.006, 600).is_empty());
    }

    #[test]
    fn pace_stays_without_a_limit() {
        let mut budget = Budget::new(None, 50_000);
        assert!(spend(&mut budget, 0.9, 100).is_empty());
        assert_eq!(budget.pace(), Pace { stride: 1, stack_ns: 50_000 });
        assert!(budget.cost() > 0.8);
    }
}
