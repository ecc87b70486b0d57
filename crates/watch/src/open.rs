// SPDX-License-Identifier: Apache-2.0
//! Stalls that have started and not ended, such as a deadlock.
//!
//! Pure. Times are CLOCK_MONOTONIC in ns. The source reports an open stall once. It counts as open until the
//! source reports its end, or running time of its thread.

use std::collections::HashMap;

use wallprof_model::{EpochSecond, MonoNs, StallKind, ThreadKey};

use crate::series::Labels;

struct Open {
    since: MonoNs,
    labels: Labels,
    reported_in: EpochSecond,
}

/// The open stalls of living threads: at most one of each kind a thread.
#[derive(Default)]
pub struct OpenStalls {
    by_thread: HashMap<(ThreadKey, StallKind), Open>,
}

impl OpenStalls {
    /// Adds a stall of this thread, late since `since`, that was reported as open in second `reported_in`.
    pub fn start(
        &mut self,
        thread: ThreadKey,
        kind: StallKind,
        since: MonoNs,
        labels: Labels,
        reported_in: EpochSecond,
    ) {
        self.by_thread.insert((thread, kind), Open { since, labels, reported_in });
    }

    /// Removes the open stall of this kind: any stall of the thread has ended.
    pub fn end(&mut self, thread: ThreadKey, kind: StallKind) {
        self.by_thread.remove(&(thread, kind));
    }

    /// Removes the stalls of a thread that ended.
    pub fn thread_ended(&mut self, thread: ThreadKey) {
        self.end(thread, StallKind::OffCpu);
        self.end(thread, StallKind::Fault);
    }

    /// Removes stalls that were reported before this second, in which the thread ran: they are over, even if
    /// the event of their end was lost.
    pub fn ran(&mut self, thread: ThreadKey, second: EpochSecond) {
        for kind in [StallKind::OffCpu, StallKind::Fault] {
            if self.by_thread.get(&(thread, kind)).is_some_and(|open| open.reported_in < second) {
                self.end(thread, kind);
            }
        }
    }

    /// How late each open stall has made its thread at `now`, ns.
    pub fn lateness_at(&self, now: MonoNs) -> impl Iterator<Item = (&Labels, u64)> {
        self.by_thread.values().map(move |open| (&open.labels, now.0.saturating_sub(open.since.0)))
    }

    /// Removes all: nothing is measured any more.
    pub fn clear(&mut self) {
        self.by_thread.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::series::Owner;

    fn labels(thread: &str) -> Labels {
        Labels::of(&Arc::new(Owner { process: "p".into(), thread: thread.into(), container: None }))
    }

    const THREAD: ThreadKey = ThreadKey(1);

    fn lateness(open: &OpenStalls, now: u64) -> Vec<u64> {
        open.lateness_at(MonoNs(now)).map(|(_, ns)| ns).collect()
    }

    fn stuck() -> OpenStalls {
        let mut open = OpenStalls::default();
        open.start(THREAD, StallKind::OffCpu, MonoNs(10), labels("stuck"), EpochSecond(100));
        open
    }

    #[test]
    fn stall_without_an_end_grows() {
        let open = stuck();
        assert_eq!((lateness(&open, 30), lateness(&open, 90)), (vec![20], vec![80]));
        assert_eq!(lateness(&open, 5), [0], "a clock that is behind");
    }

    #[test]
    fn only_its_own_kind_of_end_removes_a_stall() {
        let mut open = stuck();
        open.end(THREAD, StallKind::Fault);
        assert_eq!(lateness(&open, 30).len(), 1);
        open.end(THREAD, StallKind::OffCpu);
        assert!(lateness(&open, 30).is_empty());
    }

    #[test]
    fn lost_end_is_inferred_from_later_running_time() {
        let mut open = stuck();
        open.ran(THREAD, EpochSecond(100));
        assert_eq!(lateness(&open, 30).len(), 1, "it ran before the stall, in the same second");
        open.ran(THREAD, EpochSecond(101));
        assert!(lateness(&open, 30).is_empty());
    }

    #[test]
    fn end_of_a_thread_removes_its_stalls() {
        let mut open = stuck();
        open.thread_ended(THREAD);
        assert!(lateness(&open, 30).is_empty());
    }
}
