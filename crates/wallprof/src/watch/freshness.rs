//! How old what readers are given may be: between the service, which in quiet times lets seconds wait, and those who serve.

use std::sync::atomic::{AtomicU64, Ordering};

use wallprof_model::MonoNs;

const NEVER: u64 = u64::MAX;

/// The moment from which on there is more to tell than has been told.
pub struct Freshness {
    stale_at: AtomicU64,
}

impl Default for Freshness {
    fn default() -> Self {
        Freshness { stale_at: AtomicU64::new(NEVER) }
    }
}

impl Freshness {
    /// What has been told is all there is until `stale_at`; `None`: the service tells every second by itself.
    pub fn set(&self, stale_at: Option<MonoNs>) {
        self.stale_at.store(stale_at.map_or(NEVER, |at| at.0), Ordering::Relaxed);
    }

    /// Whether somebody has to ask the service to tell what there is at `now`: true for the first who reads, until the service
    /// has told again.
    pub fn claim(&self, now: MonoNs) -> bool {
        let at = self.stale_at.load(Ordering::Relaxed);
        now.0 >= at && self.stale_at.compare_exchange(at, NEVER, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_who_reads_what_is_stale_asks() {
        let freshness = Freshness::default();
        assert!(!freshness.claim(MonoNs(u64::MAX - 1)), "the service tells by itself");
        freshness.set(Some(MonoNs(10)));
        assert!(!freshness.claim(MonoNs(9)));
        assert!(freshness.claim(MonoNs(10)));
        assert!(!freshness.claim(MonoNs(11)), "somebody has asked");
        freshness.set(Some(MonoNs(20)));
        assert!(freshness.claim(MonoNs(25)));
        freshness.set(Some(MonoNs(30)));
        freshness.set(None);
        assert!(!freshness.claim(MonoNs(40)));
    }
}
