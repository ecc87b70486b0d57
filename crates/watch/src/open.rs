//! Stalls that have begun and not ended: a deadlock must not be silent because nothing ever comes back.
//!
//! Pure. Times are CLOCK_MONOTONIC in ns. The source tells an open stall once; that it goes on is known from the silence.

use std::collections::HashMap;

use wallprof_model::{EpochSecond, MonoNs, StallKind, ThreadKey};

use crate::series::Labels;

struct Open {
    since: MonoNs,
    labels: Labels,
    told_in: EpochSecond,
}

/// The open stalls of living threads: at most one of each kind a thread.
#[derive(Default)]
pub struct OpenStalls {
    by_thread: HashMap<(ThreadKey, StallKind), Open>,
}

impl OpenStalls {
    /// A stall of this thread, late since `since`, was told as open in second `told_in`.
    pub fn begin(
        &mut self,
        thread: ThreadKey,
        kind: StallKind,
        since: MonoNs,
        labels: Labels,
        told_in: EpochSecond,
    ) {
        self.by_thread.insert((thread, kind), Open { since, labels, told_in });
    }

    /// A stall of this thread ended, whichever it was: the open one is over.
    pub fn end(&mut self, thread: ThreadKey, kind: StallKind) {
        self.by_thread.remove(&(thread, kind));
    }

    /// The thread ended.
    pub fn forget(&mut self, thread: ThreadKey) {
        self.end(thread, StallKind::OffCpu);
        self.end(thread, StallKind::Fault);
    }

    /// The thread ran in this second: a stall told before is over, even if its end was lost.
    pub fn ran(&mut self, thread: ThreadKey, second: EpochSecond) {
        for kind in [StallKind::OffCpu, StallKind::Fault] {
            if self.by_thread.get(&(thread, kind)).is_some_and(|open| open.told_in < second) {
                self.end(thread, kind);
            }
        }
    }

    /// How late each has made its thread at `now`, ns.
    pub fn lasting(&self, now: MonoNs) -> impl Iterator<Item = (&Labels, u64)> {
        self.by_thread.values().map(move |open| (&open.labels, now.0.saturating_sub(open.since.0)))
    }

    /// Nothing is watched any more.
    pub fn clear(&mut self) {
        self.by_thread.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::series::Who;

    fn labels(thread: &str) -> Labels {
        Labels::of(&Arc::new(Who { process: "p".into(), thread: thread.into() }))
    }

    const THREAD: ThreadKey = ThreadKey(1);

    fn lasting(open: &OpenStalls, now: u64) -> Vec<u64> {
        open.lasting(MonoNs(now)).map(|(_, ns)| ns).collect()
    }

    fn stuck() -> OpenStalls {
        let mut open = OpenStalls::default();
        open.begin(THREAD, StallKind::OffCpu, MonoNs(10), labels("stuck"), EpochSecond(100));
        open
    }

    #[test]
    fn a_stall_that_never_ends_grows() {
        let open = stuck();
        assert_eq!((lasting(&open, 30), lasting(&open, 90)), (vec![20], vec![80]));
        assert_eq!(lasting(&open, 5), [0], "a clock that is behind");
    }

    #[test]
    fn its_end_ends_it() {
        let mut open = stuck();
        open.end(THREAD, StallKind::Fault);
        assert_eq!(lasting(&open, 30).len(), 1);
        open.end(THREAD, StallKind::OffCpu);
        assert!(lasting(&open, 30).is_empty());
    }

    #[test]
    fn a_lost_end_is_known_by_later_running() {
        let mut open = stuck();
        open.ran(THREAD, EpochSecond(100));
        assert_eq!(lasting(&open, 30).len(), 1, "it ran before, in the same second");
        open.ran(THREAD, EpochSecond(101));
        assert!(lasting(&open, 30).is_empty());
    }

    #[test]
    fn a_thread_s_end_ends_all_of_its_stalls() {
        let mut open = stuck();
        open.forget(THREAD);
        assert!(lasting(&open, 30).is_empty());
    }
}
