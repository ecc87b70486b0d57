// SPDX-License-Identifier: Apache-2.0
//! How much time and how many bytes the files of other users may take, and how reading is stopped.
//!
//! One budget covers all reading of such files: headers, symbol tables, MiniDebugInfo and debug information,
//! here and in readers ([`crate::reader`]). The files of one user get a third of it, so that they leave time
//! to the files of others.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wallprof_model::Owner;

/// The files of one user get this part of the time and of the bytes.
const PART_OF_OWNER: u32 = 3;

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
    spent: Spent,
    spent_by: HashMap<Owner, Spent>,
    stop: Arc<AtomicBool>,
}

/// Time and bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    time: Duration,
    bytes: u64,
}

/// The part of the budget for one module with its debug files.
pub(crate) struct FileBudget<'a> {
    budget: &'a mut Budget,
    owner: Owner,
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

    /// `owner`: the user who is charged.
    pub(crate) fn for_file(&mut self, owner: Owner) -> FileBudget<'_> {
        FileBudget { budget: self, owner, spent: Duration::ZERO }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl FileBudget<'_> {
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
            let of_all = limits.in_all.saturating_sub(self.budget.spent.time);
            let of_owner = (limits.in_all / PART_OF_OWNER).saturating_sub(self.spent_by_owner().time);
            of_file.min(of_all).min(of_owner)
        });
        let at = left.and_then(|left| Instant::now().checked_add(left));
        Deadline { at, stop: Arc::clone(&self.budget.stop) }
    }

    /// False where they exceed the rest of the budget.
    fn charge_bytes(&mut self, bytes: u64) -> bool {
        let [of_all, of_owner] =
            [self.budget.spent, self.spent_by_owner()].map(|spent| spent.bytes.saturating_add(bytes));
        let fits = self.budget.limits.is_none_or(|limits| {
            of_all <= limits.bytes && of_owner <= limits.bytes / u64::from(PART_OF_OWNER)
        });
        if fits {
            self.each_account(|spent| spent.bytes = spent.bytes.saturating_add(bytes));
        }
        fits
    }

    fn charge_time(&mut self, time: Duration) {
        self.spent = self.spent.saturating_add(time);
        self.each_account(|spent| spent.time = spent.time.saturating_add(time));
    }

    fn spent_by_owner(&self) -> Spent {
        self.budget.spent_by.get(&self.owner).copied().unwrap_or_default()
    }

    fn each_account(&mut self, charge: impl Fn(&mut Spent)) {
        charge(&mut self.budget.spent);
        charge(self.budget.spent_by.entry(self.owner).or_default());
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
        ReadLimits { per_file: Duration::from_secs(1000), in_all: Duration::from_secs(6000), bytes: 300 };
    const ALICE: Owner = Owner::User(1000);

    fn is_read(file: &mut FileBudget<'_>, is_foreign: bool) -> bool {
        file.spend(is_foreign, 0, |_| ()).is_some()
    }

    #[test]
    fn foreign_files_share_their_time() {
        let mut budget = Budget::new(Some(LIMITS));
        for uid in 0..3 {
            for _ in 0..2 {
                let mut file = budget.for_file(Owner::User(uid));
                file.charge_time(Duration::from_secs(999));
                assert!(is_read(&mut file, true));
                file.charge_time(Duration::from_secs(1));
                assert!(!is_read(&mut file, true), "this file has used its time");
            }
            assert!(!is_read(&mut budget.for_file(Owner::User(uid)), true), "this user's files have, too");
        }
        assert!(!is_read(&mut budget.for_file(ALICE), true), "all files have used their time");
        assert!(is_read(&mut budget.for_file(ALICE), false), "a protected file is read as long as it takes");
        let mut unlimited = Budget::new(None);
        let mut file = unlimited.for_file(ALICE);
        file.charge_time(Duration::MAX);
        assert!(is_read(&mut file, true));
    }

    #[test]
    fn foreign_files_share_their_bytes() {
        let mut budget = Budget::new(Some(LIMITS));
        let read_for = |budget: &mut Budget, owner, is_foreign, bytes| {
            budget.for_file(owner).spend(is_foreign, bytes, |_| ()).is_some()
        };
        let read = |budget: &mut Budget, is_foreign, bytes| read_for(budget, ALICE, is_foreign, bytes);
        assert!(read(&mut budget, false, u64::MAX) && read(&mut budget, true, 90));
        assert!(!read(&mut budget, true, 11), "more than is left");
        assert!(read(&mut budget, true, 10), "and what is left");
        assert!(!read(&mut budget, true, 1) && read(&mut budget, true, 0));
        assert!((0..2).all(|uid| read_for(&mut budget, Owner::User(uid), true, 100)), "others have theirs");
        assert!(!read_for(&mut budget, Owner::User(2), true, 1), "all of it is used");
        assert!(read(&mut Budget::new(None), true, u64::MAX));
    }

    #[test]
    fn stop_ends_the_reading_of_every_file() {
        let (mut budget, stop) = (Budget::new(Some(LIMITS)), Arc::new(AtomicBool::new(false)));
        budget.set_stop(Arc::clone(&stop));
        for is_foreign in [true, false] {
            let mut file = budget.for_file(ALICE);
            let during = file.spend(is_foreign, 0, |deadline| {
                let before = deadline.is_over();
                stop.store(true, Ordering::Relaxed);
                (before, deadline.is_over())
            });
            assert_eq!(during, Some((false, true)));
            assert!(!is_read(&mut file, is_foreign) && budget.is_stopped());
            stop.store(false, Ordering::Relaxed);
        }
    }
}
