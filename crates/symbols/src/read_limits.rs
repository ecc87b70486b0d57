//! How much time and how many bytes the files of other users may take, and how reading is stopped.
//!
//! One budget covers all reading of such files: headers, symbol tables, MiniDebugInfo and debug information,
//! here and in readers ([`crate::reader`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// For files that others can write. All other files are read as long as it takes, unless reading is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimits {
    /// Wall time for one module.
    pub per_file: Duration,
    /// Wall time for all files together.
    pub in_all: Duration,
    /// Bytes of symbols and debug information of all files together.
    pub bytes: u64,
}

/// The limits, and the time and bytes spent.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    limits: Option<ReadLimits>,
    spent: Duration,
    bytes: u64,
    stop: Arc<AtomicBool>,
}

/// The part of the budget for one module with its debug files.
pub(crate) struct FileBudget<'a> {
    budget: &'a mut Budget,
    spent: Duration,
}

/// When a reading is to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deadline {
    at: Option<Instant>,
    stop: Arc<AtomicBool>,
}

impl Budget {
    pub(crate) fn new(limits: Option<ReadLimits>) -> Self {
        Budget { limits, ..Budget::default() }
    }

    pub(crate) fn set_stop(&mut self, stop: Arc<AtomicBool>) {
        self.stop = stop;
    }

    pub(crate) fn for_file(&mut self) -> FileBudget<'_> {
        FileBudget { budget: self, spent: Duration::ZERO }
    }
}

impl FileBudget<'_> {
    /// Whether nothing is to be read any more.
    pub(crate) fn is_stopped(&self) -> bool {
        self.budget.stop.load(Ordering::Relaxed)
    }

    /// Runs `read` until a deadline, and charges its time and `bytes` where the file is foreign. `None` when
    /// there is nothing left, or reading is stopped.
    pub(crate) fn spend<T>(
        &mut self,
        is_foreign: bool,
        bytes: u64,
        read: impl FnOnce(&Deadline) -> T,
    ) -> Option<T> {
        let deadline = self.deadline(is_foreign);
        if deadline.is_over() || is_foreign && !self.charge_bytes(bytes) {
            return None;
        }
        let started = Instant::now();
        let outcome = read(&deadline);
        if is_foreign {
            self.charge_time(started.elapsed());
        }
        Some(outcome)
    }

    fn deadline(&self, is_foreign: bool) -> Deadline {
        let limits = self.budget.limits.filter(|_| is_foreign);
        let left = limits.map(|limits| {
            let of_file = limits.per_file.saturating_sub(self.spent);
            of_file.min(limits.in_all.saturating_sub(self.budget.spent))
        });
        let at = left.and_then(|left| Instant::now().checked_add(left));
        Deadline { at, stop: Arc::clone(&self.budget.stop) }
    }

    /// False where they exceed the rest of the budget.
    fn charge_bytes(&mut self, bytes: u64) -> bool {
        let sum = self.budget.bytes.saturating_add(bytes);
        let fits = self.budget.limits.is_none_or(|limits| sum <= limits.bytes);
        if fits {
            self.budget.bytes = sum;
        }
        fits
    }

    fn charge_time(&mut self, spent: Duration) {
        self.spent = self.spent.saturating_add(spent);
        self.budget.spent = self.budget.spent.saturating_add(spent);
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

    const LIMITS: ReadLimits =
        ReadLimits { per_file: Duration::from_secs(1000), in_all: Duration::from_secs(2000), bytes: 100 };

    fn is_read(file: &mut FileBudget<'_>, is_foreign: bool) -> bool {
        file.spend(is_foreign, 0, |_| ()).is_some()
    }

    #[test]
    fn foreign_files_share_their_time() {
        let mut budget = Budget::new(Some(LIMITS));
        for _ in 0..2 {
            let mut file = budget.for_file();
            file.charge_time(Duration::from_secs(999));
            assert!(is_read(&mut file, true));
            file.charge_time(Duration::from_secs(1));
            assert!(!is_read(&mut file, true), "this file has used its time");
        }
        assert!(!is_read(&mut budget.for_file(), true), "all files have used their time");
        assert!(is_read(&mut budget.for_file(), false), "a protected file is read as long as it takes");
        let mut unlimited = Budget::new(None);
        let mut file = unlimited.for_file();
        file.charge_time(Duration::MAX);
        assert!(is_read(&mut file, true));
    }

    #[test]
    fn foreign_files_share_their_bytes() {
        let mut budget = Budget::new(Some(LIMITS));
        let read = |budget: &mut Budget, is_foreign, bytes| {
            budget.for_file().spend(is_foreign, bytes, |_| ()).is_some()
        };
        assert!(read(&mut budget, false, u64::MAX) && read(&mut budget, true, 90));
        assert!(!read(&mut budget, true, 11), "more than is left");
        assert!(read(&mut budget, true, 10), "and what is left");
        assert!(!read(&mut budget, true, 1) && read(&mut budget, true, 0));
        assert!(read(&mut Budget::new(None), true, u64::MAX));
    }

    #[test]
    fn stop_ends_the_reading_of_every_file() {
        let (mut budget, stop) = (Budget::new(Some(LIMITS)), Arc::new(AtomicBool::new(false)));
        budget.set_stop(Arc::clone(&stop));
        let mut file = budget.for_file();
        for is_foreign in [true, false] {
            let during = file.spend(is_foreign, 0, |deadline| {
                let before = deadline.is_over();
                stop.store(true, Ordering::Relaxed);
                (before, deadline.is_over())
            });
            assert_eq!(during, Some((false, true)));
            assert!(file.is_stopped() && !is_read(&mut file, is_foreign));
            stop.store(false, Ordering::Relaxed);
        }
    }
}
