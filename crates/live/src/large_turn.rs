// SPDX-License-Identifier: Apache-2.0
//! A lock with a time limit: only one builder of tables at a time may use much memory.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A builder that waits longer than this for its turn defers the build.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The number of the builder whose turn it is.
#[derive(Default)]
pub(crate) struct LargeTurn {
    holder: Mutex<Option<u64>>,
    is_free: Condvar,
}

impl LargeTurn {
    /// Waits up to [`LONGEST_WAIT`] for the turn. False: another builder still has it.
    pub(crate) fn take(&self, builder: u64) -> bool {
        self.take_within(LONGEST_WAIT, builder)
    }

    /// Passes the turn to the next builder. Does nothing if `builder` does not have the turn.
    pub(crate) fn give_back(&self, builder: u64) {
        let mut holder = self.lock();
        if *holder == Some(builder) {
            *holder = None;
            self.is_free.notify_one();
        }
    }

    fn take_within(&self, longest: Duration, builder: u64) -> bool {
        let holder = self.lock();
        let waited = self.is_free.wait_timeout_while(holder, longest, |holder| holder.is_some());
        let (mut holder, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_free = holder.is_none();
        if is_free {
            *holder = Some(builder);
        }
        is_free
    }

    fn lock(&self) -> MutexGuard<'_, Option<u64>> {
        // The value is consistent after any panic.
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_holder_gives_the_turn_back() {
        let turn = LargeTurn::default();
        assert!(turn.take(1) && !turn.take_within(Duration::ZERO, 2));
        turn.give_back(2);
        assert!(!turn.take_within(Duration::ZERO, 2), "it was not builder 2's");
        turn.give_back(1);
        assert!(turn.take(2));
    }

    #[test]
    fn waiting_builder_gets_the_turn() {
        let turn = LargeTurn::default();
        assert!(turn.take(1));
        std::thread::scope(|scope| {
            let next = scope.spawn(|| turn.take(2));
            turn.give_back(1);
            assert!(next.join().expect("no panic"));
        });
    }
}
