// SPDX-License-Identifier: Apache-2.0
//! The sums of each thread in each bin, as they were recorded.

use std::collections::HashMap;

use wallprof_model::ThreadKey;
use wallprof_model::event::LedgerDelta;
use wallprof_model::profile::{LedgerRow, RecordingInfo, Thread};

use super::Bins;

/// Limit on sums. Beyond it, bins become twice as long.
pub const MOST_SUMS: usize = 120_000;
/// Collects the sums of threads by bin.
pub struct Ledgers<'a> {
    info: &'a RecordingInfo,
    pub bins: Bins,
    known: HashMap<ThreadKey, u32>,
    sums: HashMap<(u64, u32), LedgerDelta>,
}

impl<'a> Ledgers<'a> {
    /// `threads` are all of the recording's. Results have their index here.
    pub fn new(info: &'a RecordingInfo, threads: &[Thread]) -> Self {
        let known = threads.iter().zip(0..).map(|(thread, at)| (thread.info.key, at)).collect();
        Ledgers { info, bins: Bins::new(info, 1), known, sums: HashMap::new() }
    }

    /// Rows of threads that are not listed go to [`ThreadKey::OTHERS`], where it is.
    pub fn add(&mut self, row: &LedgerRow) {
        let known = self.known.get(&row.thread).or_else(|| self.known.get(&ThreadKey::OTHERS));
        let Some(thread) = known else { return };
        let key = (self.bins.of(row.second), *thread);
        let empty = || LedgerDelta::new(row.thread, row.second);
        self.sums.entry(key).or_insert_with(empty).add(row);
        if self.sums.len() > MOST_SUMS && self.bins.count > 1 {
            self.widen();
        }
    }

    fn widen(&mut self) {
        self.bins = Bins::new(self.info, self.bins.width * 2);
        let mut sums: HashMap<(u64, u32), LedgerDelta> = HashMap::with_capacity(self.sums.len() / 2);
        for ((_, thread), sum) in self.sums.drain() {
            let key = (self.bins.of(sum.second), thread);
            match sums.get_mut(&key) {
                Some(both) => both.add(&sum),
                None => drop(sums.insert(key, sum)),
            }
        }
        self.sums = sums;
    }

    /// By bin and thread.
    pub fn finish(self) -> BinnedLedger {
        let mut rows: Vec<_> = self.sums.into_iter().map(|((bin, thread), sum)| (bin, thread, sum)).collect();
        rows.sort_unstable_by_key(|(bin, thread, _)| (*bin, *thread));
        BinnedLedger { bins: self.bins, edges: self.bins.edges(self.info), rows }
    }
}

pub struct BinnedLedger {
    pub bins: Bins,
    pub edges: Vec<u64>,
    /// The bin, the index of the thread, and the sums.
    pub rows: Vec<(u64, u32, LedgerDelta)>,
}

impl BinnedLedger {
    /// Makes bins twice as long; false where there is one bin already.
    pub fn widen(&mut self, info: &RecordingInfo) -> bool {
        if self.bins.count <= 1 {
            return false;
        }
        self.bins = Bins::new(info, self.bins.width * 2);
        self.edges = self.bins.edges(info);
        self.rows.iter_mut().for_each(|(bin, _, sum)| *bin = self.bins.of(sum.second));
        self.rows.sort_by_key(|(bin, thread, _)| (*bin, *thread));
        self.rows.dedup_by(|(bin, thread, sum), (bin_before, thread_before, before)| {
            let is_same = (&*bin, &*thread) == (&*bin_before, &*thread_before);
            if is_same {
                before.add(sum);
            }
            is_same
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bins::SECOND_NS;
    use crate::bins::tests::info;
    use wallprof_model::{EpochSecond, MonoNs};

    fn thread(key: u32) -> Thread {
        let info = wallprof_model::ThreadInfo::new(ThreadKey(key), (1, ""), (key, ""));
        Thread {
            info,
            start: MonoNs(0),
            end: MonoNs(0),
            ledger: LedgerDelta::new(ThreadKey(key), EpochSecond(0)),
            latency: Default::default(),
            stalls: 0,
        }
    }

    #[test]
    fn too_many_sums_make_bins_longer_and_lose_nothing() {
        let seconds = MOST_SUMS as u64 + 10;
        let info = info(seconds * SECOND_NS);
        let mut ledgers = Ledgers::new(&info, &[thread(3), thread(4)]);
        // More seconds than bins: the width starts above 1.
        let before = ledgers.bins.width;
        for second in 0..seconds as u32 {
            let row =
                |key| LedgerRow { wall_ns: 7, ..LedgerDelta::new(ThreadKey(key), EpochSecond(5 + second)) };
            [3, 4, 99].map(row).iter().for_each(|row| ledgers.add(row));
        }
        let mut binned = ledgers.finish();
        assert!(before >= 4 && binned.rows.len() <= MOST_SUMS);
        let wall = |binned: &BinnedLedger| binned.rows.iter().map(|(.., row)| row.wall_ns).sum::<u64>();
        assert_eq!(wall(&binned), 2 * 7 * seconds, "those of the unknown thread are not among them");
        assert!(binned.rows.is_sorted_by_key(|(bin, thread, _)| (*bin, *thread)));
        let rows = binned.rows.len();
        assert!(binned.widen(&info) && binned.rows.len() < rows);
        while binned.widen(&info) {}
        assert_eq!((binned.rows.len(), binned.bins.count, wall(&binned)), (2, 1, 2 * 7 * seconds));
        assert_eq!(binned.edges, [0, seconds * SECOND_NS]);
    }
}
