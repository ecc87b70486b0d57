// SPDX-License-Identifier: Apache-2.0
//! The threads that the viewer shows at first. Left alone, it hides threads by their CPU time, and so those that wait.

use std::collections::HashMap;

use fxprof_processed_profile::ThreadHandle;

/// As many as the viewer shows by its own rule.
const MAX_SHOWN: usize = 15;
/// The least time of a thread that is shown, as a part of the busiest thread's time: the viewer's own limit.
const LEAST_PART: u64 = 20;

/// Of each thread, the time that it ran and that its stalls made it late, ns.
#[derive(Default)]
pub(super) struct Activity(HashMap<ThreadHandle, u64>);

impl Activity {
    pub fn add(&mut self, thread: ThreadHandle, ns: u64) {
        let sum = self.0.entry(thread).or_default();
        *sum = sum.saturating_add(ns);
    }

    /// The busiest first.
    pub fn shown_first(&self) -> Vec<ThreadHandle> {
        let mut threads: Vec<_> = self.0.iter().map(|(thread, ns)| (*thread, *ns)).collect();
        threads.sort_unstable_by_key(|(thread, ns)| (std::cmp::Reverse(*ns), *thread));
        let least_ns = threads.first().map_or(0, |(_, most_ns)| most_ns / LEAST_PART).max(1);
        threads.truncate(MAX_SHOWN);
        threads.into_iter().filter(|(_, ns)| *ns >= least_ns).map(|(thread, _)| thread).collect()
    }
}
