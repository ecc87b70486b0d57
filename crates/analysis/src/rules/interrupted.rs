//! What the rules about interrupts have in common: whom they interrupted, and how a title about that begins.

use std::collections::BTreeMap;

use wallprof_model::ThreadKey;
use wallprof_model::profile::InterruptRow;

use super::conclusion::{Conclusion, Problem};
use super::evidence::{Evidence, ThreadTotals};
use super::limits::{Toll, is_share};
use super::wording;

/// A thread, and what interrupted it while it had a CPU.
pub(super) struct Interrupted<'e> {
    pub key: ThreadKey,
    pub thread: &'e ThreadTotals,
    pub rows: Vec<&'e InterruptRow>,
}

impl<'e> Interrupted<'e> {
    /// Every recorded thread that one of the chosen rows is about.
    pub fn find(evidence: &'e Evidence, is_chosen: impl Fn(&InterruptRow) -> bool) -> Vec<Self> {
        let mut rows: BTreeMap<ThreadKey, Vec<&InterruptRow>> = BTreeMap::new();
        for row in evidence.interrupts().iter().filter(|row| is_chosen(row)) {
            if let Some(victim) = row.victim {
                rows.entry(victim).or_default().push(row);
            }
        }
        let known = rows.into_iter().filter_map(|(key, rows)| Some((key, evidence.thread(key)?, rows)));
        known.map(|(key, thread, rows)| Interrupted { key, thread, rows }).collect()
    }

    /// Whether this cost a hundredth of the thread's time: less is no finding, whatever interrupts.
    pub fn is_worth_a_word(&self, toll: &Toll) -> bool {
        toll.total_ns > 0 && is_share(toll.total_ns, 100, self.thread.wall_ns)
    }

    /// `engine of matchd lost 12 % of its running time to 1000 interrupts, 600 ms in all, up to 100 µs`, and why.
    pub fn conclude(&self, toll: Toll, why: &str, advice: impl Into<String>) -> Conclusion<'e> {
        let title = format!(
            "{} lost {} of its running time to {} interrupts, {} in all, up to {}{why}.",
            wording::thread(self.thread),
            wording::percent(toll.total_ns, self.thread.on_cpu_ns),
            toll.count,
            wording::time(toll.total_ns),
            wording::time(toll.max_ns)
        );
        let problem = Problem { threads: vec![self.key], toll, cases: Vec::new() };
        problem.conclude(title, advice)
    }
}
