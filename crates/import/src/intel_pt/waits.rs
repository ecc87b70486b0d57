// SPDX-License-Identifier: Apache-2.0
//! Waits that are long enough to be emitted one by one. They are known before the trace is decoded, but the
//! calls that were open in them are known only after it. They are kept until then.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use wallprof_intel_pt::ThreadId;
use wallprof_model::ThreadKey;

use crate::seconds::WokenBy;
use crate::timeline::Wait;

/// About 50 MiB.
const MAX_WAITS: usize = 300_000;

/// A wait with its thread.
#[derive(Clone, Debug)]
pub(crate) struct LongWait {
    pub key: ThreadKey,
    pub comm: Arc<str>,
    pub cpu: Option<u32>,
    pub wait: Wait<WokenBy>,
}

/// Waits by thread; those of a thread are in the order of time.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    of: HashMap<ThreadId, VecDeque<LongWait>>,
    names: HashMap<ThreadId, Arc<str>>,
    count: usize,
}

impl Waits {
    /// Keeps a wait. Returns it if the limit is reached.
    pub(crate) fn keep(
        &mut self,
        key: ThreadKey,
        comm: &str,
        cpu: Option<u32>,
        wait: Wait<WokenBy>,
    ) -> Option<Wait<WokenBy>> {
        if self.count >= MAX_WAITS {
            return Some(wait);
        }
        self.count += 1;
        let thread = super::thread_id(key);
        let name = self.names.entry(thread).or_insert_with(|| comm.into());
        if **name != *comm {
            *name = comm.into();
        }
        let comm = Arc::clone(name);
        self.of.entry(thread).or_default().push_back(LongWait { key, comm, cpu, wait });
        None
    }

    /// The thread left its CPU at `time`. Returns the waits before, and the one that starts there.
    pub(crate) fn at(&mut self, thread: ThreadId, time: u64) -> (Vec<LongWait>, Option<LongWait>) {
        let Some(waits) = self.of.get_mut(&thread) else { return (Vec::new(), None) };
        let past = waits.iter().take_while(|known| known.wait.to <= time).count();
        let before: Vec<LongWait> = waits.drain(..past).collect();
        let starts = waits.front().is_some_and(|known| known.wait.from <= time);
        let this = if starts { waits.pop_front() } else { None };
        self.count -= before.len() + usize::from(this.is_some());
        (before, this)
    }

    /// All remaining waits, by thread.
    pub(crate) fn take_all(&mut self) -> Vec<LongWait> {
        let mut all: Vec<LongWait> = std::mem::take(&mut self.of).into_values().flatten().collect();
        all.sort_by_key(|wait| (wait.key, wait.wait.from));
        self.count = 0;
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{Leave, Stacks};

    fn wait(from: u64, to: u64) -> Wait<WokenBy> {
        let stacks = Stacks::default();
        Wait { from, to, woken_at: to, why: Leave::Preempted, stacks, waker: None, open: false }
    }

    fn froms(waits: &[LongWait]) -> Vec<u64> {
        waits.iter().map(|wait| wait.wait.from).collect()
    }

    #[test]
    fn departure_finds_its_wait_and_returns_earlier_ones() {
        let mut waits = Waits::default();
        for (from, to) in [(10, 20), (30, 40), (50, 60), (70, 80)] {
            assert!(waits.keep(ThreadKey(3), "worker", None, wait(from, to)).is_none());
        }
        let thread = super::super::thread_id(ThreadKey(3));
        let (before, this) = waits.at(thread, 10);
        assert_eq!((froms(&before), this.map(|wait| wait.wait.from)), (vec![], Some(10)));
        let (before, this) = waits.at(thread, 45);
        assert_eq!((froms(&before), this.is_none()), (vec![30], true));
        // The trace's clock differs a little from that of the records.
        let (before, this) = waits.at(thread, 52);
        assert_eq!((froms(&before), this.map(|wait| wait.wait.from)), (vec![], Some(50)));
        assert_eq!(froms(&waits.take_all()), [70]);
        assert!(waits.at(thread, 75).1.is_none() && waits.count == 0);
    }

    #[test]
    fn waits_keep_the_name_of_their_time() {
        let mut waits = Waits::default();
        for comm in ["a", "a", "b"] {
            waits.keep(ThreadKey(1), comm, Some(1), wait(1, 2));
        }
        let names: Vec<_> = waits.take_all().into_iter().map(|wait| wait.comm.to_string()).collect();
        assert_eq!(names, ["a", "a", "b"]);
    }
}
