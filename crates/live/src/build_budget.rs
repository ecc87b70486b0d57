// SPDX-License-Identifier: Apache-2.0
//! The budgets of the builders of unwind tables: memory and time of each file, memory of all builders
//! together, and CPU time of each user's files.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use wallprof_model::Owner;
use wallprof_probe::clock;
use wallprof_unwind::Budget;

use crate::cpu_accounts::{BUILDING, CpuAccounts};
use crate::large_turn::LargeTurn;

/// Each builder may hold this much at any time: libc's table takes 1 MB to build, sections included.
const SMALL: u64 = 4 << 20;
/// One builder at a time may hold this much: chromium's table, with 600,000 entries, takes some 50 MB.
const LARGE: u64 = 80 << 20;
/// Chromium's table takes 2 s on a busy CPU.
const LONGEST: Duration = Duration::from_secs(15);
/// CPU time is read by a system call, therefore only this often.
const CHARGE_EVERY: Duration = Duration::from_millis(1);

/// The state that all builders share.
pub(crate) struct SharedBudget {
    pub(crate) accounts: CpuAccounts,
    pub(crate) turn: LargeTurn,
}

impl Default for SharedBudget {
    fn default() -> Self {
        SharedBudget { accounts: CpuAccounts::new(BUILDING), turn: LargeTurn::default() }
    }
}

/// Why a build was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The build needs more memory or time than the budget of a file.
    TooLarge,
    /// Other builds use the memory or the time; this one may be tried again.
    NotNow,
}

/// The budget of one file's build.
pub(crate) struct BuildBudget<'s> {
    shared: &'s SharedBudget,
    builder: u64,
    owner: Owner,
    /// The time of its last sign of progress, by [`clock::mono_now`]. A builder that is blocked in a read
    /// gives none.
    last_sign: &'s AtomicU64,
    has_turn: Cell<bool>,
    /// The deadline, extended by the time in which the build waited for its turn.
    until: Cell<Instant>,
    charged_at: Cell<Instant>,
    charged_cpu_ns: Cell<u64>,
    refusal: Cell<Option<Refusal>>,
}

impl<'s> BuildBudget<'s> {
    pub(crate) fn new(
        shared: &'s SharedBudget,
        builder: u64,
        owner: Owner,
        last_sign: &'s AtomicU64,
    ) -> Self {
        let now = Instant::now();
        BuildBudget {
            shared,
            builder,
            owner,
            last_sign,
            has_turn: Cell::new(false),
            until: Cell::new(now + LONGEST),
            charged_at: Cell::new(now),
            charged_cpu_ns: Cell::new(clock::thread_cpu_ns()),
            refusal: Cell::new(None),
        }
    }

    /// The reason for which the build was ended; `None` if it was not.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.refusal.get()
    }

    fn refuse(&self, refusal: Refusal) -> bool {
        self.refusal.set(Some(refusal));
        false
    }

    fn wait_for_turn(&self) -> bool {
        let since = Instant::now();
        self.has_turn.set(self.shared.turn.take(self.builder));
        self.until.set(self.until.get() + since.elapsed());
        self.has_turn.get()
    }

    /// False: the owner's CPU time is used.
    fn charge(&self, now: Instant) -> bool {
        let cpu_ns = clock::thread_cpu_ns();
        let before = self.charged_cpu_ns.replace(cpu_ns);
        self.charged_at.set(now);
        self.last_sign.store(clock::mono_now().0, Ordering::Relaxed);
        self.shared.accounts.charge(self.owner, cpu_ns.saturating_sub(before), now)
    }
}

impl Budget for BuildBudget<'_> {
    fn allows(&self, held: u64) -> bool {
        let now = Instant::now();
        if held > LARGE || now >= self.until.get() {
            return self.refuse(Refusal::TooLarge);
        }
        if held > SMALL && !self.has_turn.get() && !self.wait_for_turn() {
            return self.refuse(Refusal::NotNow);
        }
        let is_due = now.saturating_duration_since(self.charged_at.get()) >= CHARGE_EVERY;
        if is_due && !self.charge(now) {
            return self.refuse(Refusal::NotNow);
        }
        true
    }
}

impl Drop for BuildBudget<'_> {
    fn drop(&mut self) {
        self.charge(Instant::now());
        if self.has_turn.get() {
            self.shared.turn.give_back(self.builder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const ALICE: Owner = Owner::User(1000);

    #[test]
    fn one_large_build_runs_at_a_time_and_small_builds_go_on() {
        let (shared, sign) = (SharedBudget::default(), AtomicU64::new(0));
        let budget = |builder| BuildBudget::new(&shared, builder, Owner::System, &sign);
        let first = budget(1);
        assert!(first.allows(SMALL) && !first.has_turn.get(), "a small build takes no turn");
        assert!(first.allows(SMALL + 1) && first.has_turn.get());
        assert!(budget(2).allows(SMALL), "small builds do not wait");
        let (started, starts) = channel();
        std::thread::scope(|scope| {
            let (shared, sign) = (&shared, &sign);
            let second = scope.spawn(move || {
                started.send(()).expect("a receiver");
                BuildBudget::new(shared, 3, Owner::System, sign).allows(LARGE)
            });
            starts.recv().expect("started");
            drop(first);
            assert!(second.join().expect("no panic"), "it gets its turn");
        });
    }

    #[test]
    fn build_beyond_its_memory_or_time_is_refused() {
        let (shared, sign) = (SharedBudget::default(), AtomicU64::new(0));
        let budget = BuildBudget::new(&shared, 1, ALICE, &sign);
        assert!(budget.allows(LARGE) && budget.refusal().is_none());
        assert!(!budget.allows(LARGE + 1) && budget.refusal() == Some(Refusal::TooLarge));
        budget.until.set(Instant::now());
        assert!(!budget.allows(1), "its time is over");
    }

    #[test]
    fn cpu_time_is_charged_to_the_owner_of_the_file() {
        let (shared, sign) = (SharedBudget::default(), AtomicU64::new(0));
        let budget = BuildBudget::new(&shared, 1, ALICE, &sign);
        // As if the build had taken 14.99 s of CPU time before. The charge lies in the future, so that the
        // account is not refilled while this thread waits for a CPU.
        shared.accounts.charge(ALICE, 14_990_000_000, Instant::now() + Duration::from_secs(3_600));
        let until = budget.charged_cpu_ns.get() + 20_000_000;
        while clock::thread_cpu_ns() < until {
            std::hint::spin_loop();
        }
        assert!(!budget.allows(1) && budget.refusal() == Some(Refusal::NotNow));
        let other = BuildBudget::new(&shared, 2, Owner::User(1001), &sign);
        assert!(other.allows(1), "another user has time");
        assert!(sign.load(Ordering::Relaxed) > 0, "it shows progress");
    }
}
