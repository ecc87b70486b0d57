//! How long symbols of other users' files may be read, and how reading is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// For files that others can write; all other files are read as long as it takes, unless reading is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkLimits {
    pub per_file: Duration,
    /// For all files together.
    pub in_all: Duration,
}

/// What is left of the limits.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    limits: Option<WorkLimits>,
    spent: Duration,
    stop: Arc<AtomicBool>,
}

/// When the reading of one file is to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deadline {
    at: Option<Instant>,
    stop: Arc<AtomicBool>,
}

impl Budget {
    pub(crate) fn new(limits: Option<WorkLimits>) -> Self {
        Budget { limits, ..Budget::default() }
    }

    pub(crate) fn set_stop(&mut self, stop: Arc<AtomicBool>) {
        self.stop = stop;
    }

    /// For the next file.
    pub(crate) fn deadline(&self, is_protected: bool) -> Deadline {
        let limits = self.limits.filter(|_| !is_protected);
        let left = limits.map(|limits| limits.per_file.min(limits.in_all.saturating_sub(self.spent)));
        Deadline { at: left.and_then(|left| Instant::now().checked_add(left)), stop: Arc::clone(&self.stop) }
    }

    /// Charges time that was spent on a file of others.
    pub(crate) fn charge(&mut self, spent: Duration) {
        self.spent = self.spent.saturating_add(spent);
    }
}

impl Deadline {
    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.at.is_some_and(|at| at <= Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: WorkLimits =
        WorkLimits { per_file: Duration::from_secs(1000), in_all: Duration::from_secs(2000) };

    #[test]
    fn files_of_others_share_a_budget() {
        let mut budget = Budget::new(Some(LIMITS));
        assert!(!budget.deadline(false).is_over());
        budget.charge(Duration::from_secs(1999));
        assert!(!budget.deadline(false).is_over());
        budget.charge(Duration::from_secs(1));
        assert!(budget.deadline(false).is_over());
        assert!(!budget.deadline(true).is_over(), "a protected file is read as long as it takes");
        assert!(!Budget::new(None).deadline(false).is_over());
    }

    #[test]
    fn a_stop_ends_the_reading_of_every_file() {
        let (mut budget, stop) = (Budget::new(Some(LIMITS)), Arc::new(AtomicBool::new(false)));
        budget.set_stop(Arc::clone(&stop));
        let deadlines = [budget.deadline(true), budget.deadline(false)];
        assert!(!deadlines.iter().any(Deadline::is_over));
        stop.store(true, Ordering::Relaxed);
        assert!(deadlines.iter().all(Deadline::is_over));
    }
}
