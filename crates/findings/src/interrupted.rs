// SPDX-License-Identifier: Apache-2.0
//! Shared code of the rules about interrupts: the threads that were interrupted, and the start of a title
//! about them.

use std::collections::BTreeMap;

use wallprof_model::ThreadKey;
use wallprof_model::profile::InterruptRow;

use super::conclusion::{Conclusion, Problem};
use super::evidence::{Evidence, ThreadTotals};
use super::limits::{Delays, is_share};
use super::wording;

/// Interrupts that took less than this part of the recording,
const LEAST_PART: u64 = 1_000;
/// and less than so many times the shortest stall, are no problem, however short the lives of their victims are.
const LEAST_UNITS: u64 = 20;

/// A thread, or several of one name and program, and what interrupted them while they had a CPU.
pub(super) struct Interrupted<'e> {
    keys: Vec<ThreadKey>,
    pub threads: Vec<&'e ThreadTotals>,
    pub rows: Vec<&'e InterruptRow>,
}

impl<'e> Interrupted<'e> {
    /// Every recorded thread that one of the wanted rows is about.
    pub fn find(evidence: &'e Evidence, is_wanted: impl Fn(&InterruptRow) -> bool) -> Vec<Self> {
        let mut rows: BTreeMap<ThreadKey, Vec<&InterruptRow>> = BTreeMap::new();
        for row in evidence.interrupts().iter().filter(|row| is_wanted(row)) {
            if let Some(victim) = row.victim.filter(|victim| !evidence.is_left_out(*victim)) {
                rows.entry(victim).or_default().push(row);
            }
        }
        let known = rows.into_iter().filter_map(|(key, rows)| Some((key, evidence.thread(key)?, rows)));
        known
            .map(|(key, thread, rows)| Interrupted { keys: vec![key], threads: vec![thread], rows })
            .collect()
    }

    /// Those of one name and program together.
    pub fn merged(victims: impl Iterator<Item = Self>) -> Vec<Self> {
        let mut names: BTreeMap<(&str, &str), Self> = BTreeMap::new();
        for victim in victims {
            let thread = victim.threads[0];
            let alike = names.entry((&thread.process, &thread.comm)).or_insert_with(|| Interrupted {
                keys: Vec::new(),
                threads: Vec::new(),
                rows: Vec::new(),
            });
            alike.keys.extend(victim.keys);
            alike.threads.extend(victim.threads);
            alike.rows.extend(victim.rows);
        }
        names.into_values().collect()
    }

    pub fn on_cpu_ns(&self) -> u64 {
        self.threads.iter().fold(0, |sum, thread| sum.saturating_add(thread.on_cpu_ns))
    }

    pub fn is_of_process(&self, pid: u32) -> bool {
        self.threads.iter().any(|thread| thread.pid == pid)
    }

    /// Whether this cost a hundredth of the threads' time: less is no finding, whatever the interrupt.
    pub fn is_significant(&self, delays: &Delays) -> bool {
        let wall_ns = self.threads.iter().fold(0, |sum: u64, thread| sum.saturating_add(thread.wall_ns));
        delays.total_ns > 0 && is_share(delays.total_ns, 100, wall_ns)
    }

    /// Whether threads of one name lost time worth a sentence, all together: a thread that lives for 0.1 ms loses a
    /// hundredth of that to one interrupt.
    pub fn is_worth_saying(delays: &Delays, evidence: &Evidence) -> bool {
        is_share(delays.total_ns, LEAST_PART, evidence.duration_ns())
            || delays.total_ns >= evidence.unit_ns().saturating_mul(LEAST_UNITS)
    }

    /// `engine of matchd lost 12 % of its running time to 1000 interrupts, 600 ms in all, up to 100 µs`, and
    /// why.
    pub fn conclude(&self, delays: Delays, why: &str, advice: impl Into<String>) -> Conclusion<'e> {
        let title = format!(
            "{} lost {} of {} running time to {} interrupts, {} in all, up to {}{why}.",
            wording::threads(&self.threads),
            wording::percent(delays.total_ns, self.on_cpu_ns()),
            if self.threads.len() == 1 { "its" } else { "their" },
            delays.count,
            wording::time(delays.total_ns),
            wording::time(delays.max_ns)
        );
        let problem = Problem::of_all(self.keys.clone(), delays);
        problem.conclude(title, advice)
    }
}
