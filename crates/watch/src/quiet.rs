//! Quiet times: when so little happens that seconds may wait to be told, a few of them at once.
//!
//! Pure. Owns when it is quiet and which second is due. What is told of each second is the same either way; whoever reads has
//! the seconds told that are over, so that nobody is shown less.

/// Seconds in a row in which little happens, before it is quiet.
const CALM: u64 = 10;
/// Seconds that wait, at most.
const LONGEST_WAIT: u64 = 10;
/// What little is, by the second: stalls of all kinds …
const MOST_STALLS: u64 = 200;
/// … and runs of the probes. Each makes a row or two in the kernel's maps, which are sized for two seconds of a busy machine
/// and must hold those of all seconds that wait.
const MOST_RUNS: u64 = 2_500;

/// What happened in some seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    pub seconds: u64,
    pub stalls: u64,
    pub probe_runs: u64,
}

impl Activity {
    fn is_little(&self) -> bool {
        let most = |of_a_second: u64| of_a_second.saturating_mul(self.seconds.max(1));
        self.stalls <= most(MOST_STALLS) && self.probe_runs <= most(MOST_RUNS)
    }
}

/// Follows what happens; to begin with it is not quiet.
#[derive(Clone, Debug, Default)]
pub struct Quiet {
    calm: u64,
}

impl Quiet {
    /// Takes what has been told.
    pub fn told(&mut self, activity: Activity) {
        self.calm = if activity.is_little() { self.calm.saturating_add(activity.seconds) } else { 0 };
    }

    /// Something is going on for which every second counts.
    pub fn end(&mut self) {
        self.calm = 0;
    }

    pub fn is_quiet(&self) -> bool {
        self.calm >= CALM
    }

    /// Whether the seconds that are over, in which this happened, are to be told now.
    pub fn is_due(&self, untold: Activity) -> bool {
        !self.is_quiet() || untold.seconds >= LONGEST_WAIT || !untold.is_little()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(seconds: u64, stalls: u64, probe_runs: u64) -> Activity {
        Activity { seconds, stalls, probe_runs }
    }

    fn after_calm() -> Quiet {
        let mut quiet = Quiet::default();
        (0..CALM).for_each(|_| quiet.told(activity(1, MOST_STALLS, MOST_RUNS)));
        quiet
    }

    #[test]
    fn it_is_quiet_after_some_calm_seconds_in_a_row() {
        let mut quiet = Quiet::default();
        for _ in 1..CALM {
            quiet.told(activity(1, 0, 0));
            assert!(!quiet.is_quiet() && quiet.is_due(activity(1, 0, 0)));
        }
        quiet.told(activity(1, MOST_STALLS + 1, 0));
        quiet.told(activity(CALM - 1, 0, 0));
        assert!(!quiet.is_quiet(), "from the start again");
        quiet.told(activity(1, 0, 0));
        assert!(quiet.is_quiet());
    }

    #[test]
    fn seconds_wait_while_it_is_quiet_but_not_for_long() {
        let quiet = after_calm();
        for seconds in 1..LONGEST_WAIT {
            assert!(!quiet.is_due(activity(seconds, seconds * MOST_STALLS, seconds * MOST_RUNS)));
        }
        assert!(quiet.is_due(activity(LONGEST_WAIT, 0, 0)));
    }

    #[test]
    fn what_happens_all_of_a_sudden_is_told_and_ends_it() {
        for sudden in [activity(2, 2 * MOST_STALLS + 1, 0), activity(2, 0, 2 * MOST_RUNS + 1)] {
            let mut quiet = after_calm();
            assert!(quiet.is_due(sudden));
            quiet.told(sudden);
            assert!(!quiet.is_quiet());
        }
    }

    #[test]
    fn it_ends_when_it_is_told_to() {
        let mut quiet = after_calm();
        quiet.end();
        assert!(quiet.is_due(activity(1, 0, 0)));
    }
}
