//! What the builders of unwind tables may take: each file its share, and all builders together a fixed amount.

use std::cell::{Cell, RefCell};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wallprof_unwind::Budget;

/// Each builder may hold this much at any time: libc's table takes 1 MB to build, sections included.
const SMALL: u64 = 4 << 20;
/// One builder at a time may hold this much: chromium's table, with 600,000 entries, takes some 50 MB.
const LARGE: u64 = 80 << 20;
/// Chromium's table takes 2 s on a busy CPU.
const LONGEST: Duration = Duration::from_secs(15);

/// The budget of one file's build.
pub(crate) struct BuildBudget<'l> {
    /// Held by the one builder that has more than [`SMALL`].
    large: &'l Mutex<()>,
    held: RefCell<Option<MutexGuard<'l, ()>>>,
    /// Waiting for others does not count.
    until: Cell<Instant>,
}

impl<'l> BuildBudget<'l> {
    pub(crate) fn new(large: &'l Mutex<()>) -> Self {
        BuildBudget { large, held: RefCell::new(None), until: Cell::new(Instant::now() + LONGEST) }
    }

    fn wait_for_turn(&self) {
        let since = Instant::now();
        // A builder that panicked holds nothing any more.
        let turn = self.large.lock().unwrap_or_else(PoisonError::into_inner);
        *self.held.borrow_mut() = Some(turn);
        self.until.set(self.until.get() + since.elapsed());
    }
}

impl Budget for BuildBudget<'_> {
    fn allows(&self, held: u64) -> bool {
        if held > LARGE || Instant::now() >= self.until.get() {
            return false;
        }
        if held > SMALL && self.held.borrow().is_none() {
            self.wait_for_turn();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn one_builder_at_a_time_is_large_and_small_ones_go_on() {
        let large = Mutex::new(());
        let first = BuildBudget::new(&large);
        assert!(first.allows(SMALL) && large.try_lock().is_ok(), "a small build takes no turn");
        assert!(first.allows(SMALL + 1) && large.try_lock().is_err());
        assert!(BuildBudget::new(&large).allows(SMALL), "small builds do not wait");
        let (started, starts) = channel();
        std::thread::scope(|scope| {
            let large = &large;
            let second = scope.spawn(move || {
                started.send(()).expect("a receiver");
                BuildBudget::new(large).allows(LARGE)
            });
            starts.recv().expect("started");
            drop(first);
            assert!(second.join().expect("no panic"), "it gets its turn");
        });
    }

    #[test]
    fn what_takes_too_much_is_refused() {
        let large = Mutex::new(());
        let budget = BuildBudget::new(&large);
        assert!(budget.allows(LARGE) && !budget.allows(LARGE + 1));
        budget.until.set(Instant::now());
        assert!(!budget.allows(1), "its time is over");
    }
}
