// SPDX-License-Identifier: Apache-2.0
//! Whether a client's request needs a flush: shared by the service, which may keep seconds pending, and the
//! HTTP server.

use std::sync::atomic::{AtomicU64, Ordering};

use wallprof_model::MonoNs;

const NEVER: u64 = u64::MAX;

/// The time at which the flushed data becomes stale, because a pending second is complete.
pub struct Freshness {
    stale_at: AtomicU64,
}

impl Default for Freshness {
    fn default() -> Self {
        Freshness { stale_at: AtomicU64::new(NEVER) }
    }
}

impl Freshness {
    /// Sets the time at which the flushed data becomes stale; `None`: the service flushes every second by
    /// itself.
    pub fn set(&self, stale_at: Option<MonoNs>) {
        self.stale_at.store(stale_at.map_or(NEVER, |at| at.0), Ordering::Relaxed);
    }

    /// Whether the caller must order a flush at `now`: true for the first caller after the data became stale,
    /// until the next flush.
    pub fn claim(&self, now: MonoNs) -> bool {
        let at = self.stale_at.load(Ordering::Relaxed);
        now.0 >= at && self.stale_at.compare_exchange(at, NEVER, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_reader_of_stale_data_orders_a_flush() {
        let freshness = Freshness::default();
        assert!(!freshness.claim(MonoNs(u64::MAX - 1)), "the service flushes by itself");
        freshness.set(Some(MonoNs(10)));
        assert!(!freshness.claim(MonoNs(9)));
        assert!(freshness.claim(MonoNs(10)));
        assert!(!freshness.claim(MonoNs(11)), "a flush was ordered");
        freshness.set(Some(MonoNs(20)));
        assert!(freshness.claim(MonoNs(25)));
        freshness.set(Some(MonoNs(30)));
        freshness.set(None);
        assert!(!freshness.claim(MonoNs(40)));
    }
}
