// SPDX-License-Identifier: Apache-2.0
//! A recording in bins of one second, or of more where it is too long for that: the sums of each thread in each
//! bin, and the weights of its stacks.

mod ledgers;
mod samples;

pub use ledgers::{BinnedLedger, Ledgers};
pub use samples::{BinnedStacks, Samples, Slots, ThreadBin};

use wallprof_model::profile::RecordingInfo;
use wallprof_model::{EpochNs, EpochSecond, MonoNs};

const SECOND_NS: u64 = 1_000_000_000;

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

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{ClockAnchor, ClockMap};

    /// A recording from 5.5 s after the epoch on.
    pub(super) fn info(duration_ns: u64) -> RecordingInfo {
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
}
