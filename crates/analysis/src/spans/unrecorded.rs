// SPDX-License-Identifier: Apache-2.0
//! Waits without a stall of their own: the most that they can take in each second of a thread.
//!
//! The ledger has all waits of a second, however short. What remains without those that were recorded one by
//! one is somewhere in the second, and can lie in any span in it.

use std::collections::BTreeMap;

use wallprof_model::event::LedgerDelta;
use wallprof_model::profile::StallRecord;
use wallprof_model::{ClockMap, MonoNs, ThreadKey};

const NS_PER_SECOND: u64 = 1_000_000_000;

/// By thread and second since the epoch.
#[derive(Debug, Default)]
pub struct Unrecorded {
    clock: ClockMap,
    seconds: BTreeMap<(ThreadKey, u64), i64>,
}

impl Unrecorded {
    pub fn new(clock: ClockMap) -> Self {
        Unrecorded { clock, seconds: BTreeMap::new() }
    }

    /// Called for all seconds of the ledger first.
    pub fn add_second(&mut self, row: &LedgerDelta) {
        let off_cpu_ns = row.blocked_ns.iter().fold(0u64, |sum, ns| sum.saturating_add(*ns));
        let others = [row.runnable_ns, row.preempted_ns, row.fault_minor_ns, row.fault_major_ns];
        let waited_ns = others.into_iter().fold(off_cpu_ns, u64::saturating_add);
        let sum = self.seconds.entry((row.thread, u64::from(row.second.0))).or_default();
        *sum = sum.saturating_add_unsigned(waited_ns);
    }

    pub fn add_stall(&mut self, stall: &StallRecord) {
        let from = self.clock.epoch_from_mono(stall.start).0;
        let to = self.clock.epoch_from_mono(stall.end).0.max(from);
        let seconds = (stall.thread, from / NS_PER_SECOND)..=(stall.thread, to / NS_PER_SECOND);
        for ((_, second), sum) in self.seconds.range_mut(seconds) {
            let start = second.saturating_mul(NS_PER_SECOND);
            let end = start.saturating_add(NS_PER_SECOND);
            *sum = sum.saturating_sub_unsigned(to.min(end).saturating_sub(from.max(start)));
        }
    }

    /// The first and the last second of a span.
    pub fn seconds_of(&self, start: MonoNs, end: MonoNs) -> (u64, u64) {
        let second = |at| self.clock.epoch_from_mono(at).0 / NS_PER_SECOND;
        (second(start), second(end.max(start)))
    }

    /// All waits without a stall of their own in these seconds. `None`: the ledger does not have them all.
    pub fn most_ns(&self, thread: ThreadKey, (first, last): (u64, u64)) -> Option<u64> {
        if first > last {
            return None;
        }
        let found = self.seconds.range((thread, first)..=(thread, last));
        let (seconds, ns) = found.fold((0u64, 0u64), |(seconds, ns), (_, sum)| {
            (seconds + 1, ns.saturating_add(u64::try_from(*sum).unwrap_or(0)))
        });
        (seconds == last - first + 1).then_some(ns)
    }
}

#[cfg(test)]
mod tests {
    use wallprof_model::{ClockAnchor, EpochNs, EpochSecond, Reason, StallReason};

    use super::*;

    const THREAD: ThreadKey = ThreadKey(1);

    /// The monotonic clock starts 250 ms before second 100.
    fn unrecorded(waited: &[(u32, u64)]) -> Unrecorded {
        let anchor = ClockAnchor { mono: MonoNs(0), epoch: EpochNs(99_750_000_000) };
        let mut unrecorded = Unrecorded::new(ClockMap::new(vec![anchor]));
        for (second, ns) in waited {
            let mut row = LedgerDelta::new(THREAD, EpochSecond(*second));
            row.blocked_ns[0] = ns / 2;
            row.fault_minor_ns = ns - ns / 2;
            unrecorded.add_second(&row);
        }
        unrecorded
    }

    fn stall(start: u64, ns: u64) -> StallRecord {
        StallRecord::new(1, THREAD, StallReason::Blocked(Reason::Lock), MonoNs(start), ns)
    }

    #[test]
    fn recorded_stalls_are_subtracted_from_their_seconds() {
        let mut unrecorded = unrecorded(&[(99, 150_000_000), (100, 400_000_000)]);
        unrecorded.add_stall(&stall(150_000_000, 300_000_000));
        assert_eq!(unrecorded.most_ns(THREAD, (99, 99)), Some(50_000_000));
        assert_eq!(unrecorded.most_ns(THREAD, (100, 100)), Some(200_000_000));
        let both = unrecorded.seconds_of(MonoNs(240_000_000), MonoNs(260_000_000));
        assert_eq!((both, unrecorded.most_ns(THREAD, both)), ((99, 100), Some(250_000_000)));
    }

    #[test]
    fn seconds_without_a_ledger_are_not_known() {
        let unrecorded = unrecorded(&[(100, 0)]);
        assert_eq!(unrecorded.most_ns(THREAD, (100, 100)), Some(0));
        assert_eq!(unrecorded.most_ns(THREAD, (100, 101)), None);
        assert_eq!(unrecorded.most_ns(ThreadKey(2), (100, 100)), None);
    }

    #[test]
    fn stall_of_a_damaged_recording_ends_in_order() {
        let mut unrecorded = unrecorded(&[(100, 10)]);
        unrecorded.add_stall(&stall(u64::MAX - 5, u64::MAX));
        unrecorded.add_stall(&stall(0, u64::MAX));
        assert_eq!(unrecorded.most_ns(THREAD, (100, 100)), Some(0));
    }
}
