//! Shared code of the rules about interrupts: the threads that were interrupted, and the start of a title
//! about them.

use std::collections::BTreeMap;

use wallprof_model::ThreadKey;
use wallprof_model::profile::InterruptRow;

use super::conclusion::{Conclusion, Problem};
use super::evidence::{Evidence, ThreadTotals};
use super::limits::{Delays, is_share};
use super::wording;

/// A thread, and what interrupted it while it had a CPU.
pub(super) struct Interrupted<'e> {
    pub key: ThreadKey,
    pub thread: &'e ThreadTotals,
    pub rows: Vec<&'e InterruptRow>,
}

impl<'e> Interrupted<'e> {
    /// Every recorded thread that one of the wanted rows is about.
    pub fn find(evidence: &'e Evidence, is_wanted: impl Fn(&InterruptRow) -> bool) -> Vec<Self> {
        let mut rows: BTreeMap<ThreadKey, Vec<&InterruptRow>> = BTreeMap::new();
        for row in evidence.interrupts().iter().filter(|row| is_wanted(row)) {
            if let Some(victim) = row.victim {
                rows.entry(victim).or_default().push(row);
            }
        }
        let known = rows.into_iter().filter_map(|(key, rows)| Some((key, evidence.thread(key)?, rows)));
        known.map(|(key, thread, rows)| Interrupted { key, thread, rows }).collect()
    }

    /// Whether this cost a hundredth of the thread's time: less is no finding, whatever the interrupt.
    pub fn is_significant(&self, delays: &Delays) -> bool {
        delays.total_ns > 0 && is_share(delays.total_ns, 100, self.thread.wall_ns)
    }

    /// `engine of matchd lost 12 % of its running time to 1000 interrupts, 600 ms in all, up to 100 µs`, and
    /// why.
    pub fn conclude(&self, delays: Delays, why: &str, advice: impl Into<String>) -> Conclusion<'e> {
        let title = format!(
            "{} lost {} of its running time to {} interrupts, {} in all, up to {}{why}.",
            wording::thread(self.thread),
            wording::percent(delays.total_ns, self.thread.on_cpu_ns),
            delays.count,
            wording::time(delays.total_ns),
            wording::time(delays.max_ns)
        );
        let problem = Problem { threads: vec![self.key], delays, cases: Vec::new() };
        problem.conclude(title, advice)
    }
}
