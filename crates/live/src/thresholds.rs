// SPDX-License-Identifier: Apache-2.0
//! How long a wait must be to be sent as a record, when there are more waits than the recorder can afford.
//!
//! Pure. The threshold of voluntary waits rises first. That of others rises only when they alone are too
//! many.

/// Stalls a second that cost the recorder less than one percent of a CPU.
const AFFORDABLE: u64 = 1_000;
/// The number of stalls in a row that may exceed that rate: a short recording keeps all of them.
const BURST: u64 = 20_000;
const HIGHEST_NS: u64 = 1_000_000_000;

/// The current thresholds, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    pub stall_ns: u64,
    pub voluntary_ns: u64,
}

/// Follows the number of stalls second by second.
pub struct Controller {
    lowest_ns: u64,
    credit: u64,
    now: Thresholds,
}

impl Controller {
    pub fn new(min_stall_ns: u64) -> Self {
        let now = Thresholds { stall_ns: min_stall_ns, voluntary_ns: min_stall_ns };
        Controller { lowest_ns: min_stall_ns, credit: BURST, now }
    }

    /// Takes the stalls of the last second. Returns the thresholds for the next.
    pub fn next(&mut self, voluntary: u64, others: u64) -> Thresholds {
        let all = voluntary + others;
        self.credit = (self.credit + AFFORDABLE).saturating_sub(all).min(BURST);
        if self.credit > BURST / 2 {
            self.now.voluntary_ns = (self.now.voluntary_ns / 2).max(self.lowest_ns);
            self.now.stall_ns = (self.now.stall_ns / 2).max(self.lowest_ns);
        } else if self.credit == 0 && voluntary * 4 > all {
            self.now.voluntary_ns = (self.now.voluntary_ns * 2).min(HIGHEST_NS.max(self.lowest_ns));
        } else if self.credit == 0 {
            self.now.stall_ns = (self.now.stall_ns * 2).min(HIGHEST_NS.max(self.lowest_ns));
        }
        self.now.voluntary_ns = self.now.voluntary_ns.max(self.now.stall_ns);
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: Thresholds = Thresholds { stall_ns: 100_000, voluntary_ns: 100_000 };

    #[test]
    fn burst_raises_no_threshold() {
        let mut controller = Controller::new(100_000);
        assert_eq!(controller.next(8_000, 1_000), LOW);
        assert_eq!(controller.next(8_000, 1_000), LOW);
    }

    #[test]
    fn threshold_of_voluntary_waits_rises_first_and_falls_again() {
        let mut controller = Controller::new(100_000);
        let mut now = LOW;
        for _ in 0..10 {
            now = controller.next(9_000, 100);
        }
        assert_eq!(now.stall_ns, 100_000);
        assert!(now.voluntary_ns > 100_000);
        for _ in 0..40 {
            now = controller.next(0, 0);
        }
        assert_eq!(now, LOW);
    }

    #[test]
    fn threshold_of_others_rises_when_they_alone_are_too_many() {
        let mut controller = Controller::new(100_000);
        let now = (0..20).map(|_| controller.next(0, 50_000)).last().expect("twenty");
        assert!(now.stall_ns > 100_000 && now.voluntary_ns >= now.stall_ns);
    }
}
