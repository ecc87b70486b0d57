//! The ledger in bins of one second, or of more where the recording is too long for that: the sums of each
//! thread in each bin as they were recorded. The page computes the states of a selection from them.

use std::collections::HashMap;

use wallprof_model::event::LedgerDelta;
use wallprof_model::profile::{LedgerRow, RecordingInfo, Thread};
use wallprof_model::{EpochNs, EpochSecond, MonoNs, Reason, ThreadKey};

use crate::columns::Columns;

const SECOND_NS: u64 = 1_000_000_000;

/// Limit on sums. Beyond it, bins become twice as long.
pub const MOST_SUMS: usize = 120_000;
/// Limit on bins of a recording.
const MOST_BINS: u64 = 20_000;

/// Whole bins of the wall clock that cover a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bins {
    /// Seconds in a bin.
    pub width: u64,
    first: u64,
    pub count: u64,
}

impl Bins {
    /// Of `width` seconds, or of more if there would be too many.
    pub fn new(info: &RecordingInfo, mut width: u64) -> Self {
        let second = |at: MonoNs| info.clock.epoch_from_mono(at).0 / SECOND_NS;
        let last_ns = MonoNs(info.end.0.max(info.start.0 + 1) - 1);
        let (first, last) = (second(info.start), second(last_ns).max(second(info.start)));
        while last / width - first / width >= MOST_BINS {
            width *= 2;
        }
        Bins { width, first: first / width, count: last / width - first / width + 1 }
    }

    /// Seconds outside of the recording, which only damaged files have, count as the nearest one.
    pub fn of(&self, second: EpochSecond) -> u64 {
        (u64::from(second.0) / self.width).saturating_sub(self.first).min(self.count - 1)
    }

    /// The times at which bins start, and the end of the last one, in ns from the start of the recording.
    pub fn edges(&self, info: &RecordingInfo) -> Vec<u64> {
        let duration_ns = info.end.0.saturating_sub(info.start.0);
        let mut edges = vec![0];
        for bin in 1..self.count {
            let epoch = (self.first + bin).saturating_mul(self.width).saturating_mul(SECOND_NS);
            let at = info.clock.mono_from_epoch(EpochNs(epoch)).0.saturating_sub(info.start.0);
            edges.push(at.clamp(edges[edges.len() - 1], duration_ns));
        }
        edges.push(duration_ns);
        edges
    }
}

/// Collects the sums of threads by bin.
pub struct Ledgers<'a> {
    info: &'a RecordingInfo,
    pub bins: Bins,
    known: HashMap<ThreadKey, u32>,
    sums: HashMap<(u64, u32), LedgerDelta>,
}

impl<'a> Ledgers<'a> {
    /// `threads` are all of the recording's, by their index in the page.
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
    pub fn write(&self, columns: &mut Columns) {
        columns.deltas("bin_edge", self.edges.iter().map(|at| at.cast_signed()));
        columns.deltas("ledger_bin", self.rows.iter().map(|(bin, ..)| bin.cast_signed()));
        columns.deltas("ledger_thread", self.rows.iter().map(|(_, thread, _)| i64::from(*thread)));
        for (name, sum) in LedgerDelta::SUMS {
            self.write_sums(columns, name, |row| *sum(&mut row.clone()));
        }
        for reason in Reason::ALL {
            let name = format!("blocked.{}", reason.name());
            self.write_sums(columns, &name, |row| row.blocked_ns[usize::from(reason.code())]);
        }
    }

    /// Sums that are 0 everywhere have no column.
    fn write_sums(&self, columns: &mut Columns, name: &str, sum: impl Fn(&LedgerDelta) -> u64) {
        if self.rows.iter().any(|(.., row)| sum(row) > 0) {
            columns.unsigned(&format!("ledger.{name}"), self.rows.iter().map(|(.., row)| sum(row)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{ClockAnchor, ClockMap};

    /// A recording from 5.5 s after the epoch on.
    fn info(duration_ns: u64) -> RecordingInfo {
        let start = MonoNs(100 * SECOND_NS);
        let anchor = ClockAnchor { mono: start, epoch: EpochNs(5_500_000_000) };
        RecordingInfo {
            start,
            end: MonoNs(start.0 + duration_ns),
            clock: ClockMap::new(vec![anchor]),
            ..RecordingInfo::default()
        }
    }

    #[test]
    fn bins_are_seconds_of_the_wall_clock() {
        let info = info(2_000_000_000);
        let bins = Bins::new(&info, 1);
        assert_eq!((bins.width, bins.count), (1, 3));
        assert_eq!(bins.edges(&info), [0, 500_000_000, 1_500_000_000, 2_000_000_000]);
        assert_eq!([5, 6, 7].map(|second| bins.of(EpochSecond(second))), [0, 1, 2]);
        assert_eq!([0, 4_000_000_000].map(|second| bins.of(EpochSecond(second))), [0, 2]);
    }

    #[test]
    fn an_empty_recording_has_one_bin() {
        let info = info(0);
        let bins = Bins::new(&info, 1);
        assert_eq!((bins.count, bins.edges(&info)), (1, vec![0, 0]));
    }

    #[test]
    fn a_recording_of_centuries_has_few_bins() {
        let bins = Bins::new(&info(1 << 62), 1);
        assert!(bins.count <= MOST_BINS && bins.width > 1, "{bins:?}");
    }

    fn thread(key: u32) -> Thread {
        let info = wallprof_model::ThreadInfo {
            key: ThreadKey(key),
            tid: key,
            pid: 1,
            ns_tid: key,
            ns_pid: 1,
            start_boot_ns: 0,
            comm: String::new(),
            process: String::new(),
            cgroup: None,
            kernel_thread: false,
        };
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
        let binned = ledgers.finish();
        assert!(before >= 4 && binned.rows.len() <= MOST_SUMS);
        let wall: u64 = binned.rows.iter().map(|(.., row)| row.wall_ns).sum();
        assert_eq!(wall, 2 * 7 * seconds, "those of the unknown thread are not among them");
        assert!(binned.rows.is_sorted_by_key(|(bin, thread, _)| (*bin, *thread)));
    }
}
