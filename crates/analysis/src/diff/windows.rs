// SPDX-License-Identifier: Apache-2.0
//! The one-second windows of a recording, and how much of each was observed.

use std::collections::BTreeMap;

use wallprof_model::profile::RecordingInfo;
use wallprof_model::{EpochNs, EpochSecond};

const SECOND_NS: u64 = 1_000_000_000;

/// Wall time by window. The first and the last are parts of a second, and weigh as much as they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Windows {
    /// In order, none empty.
    walls: Vec<(EpochSecond, u64)>,
}

impl Windows {
    /// `lived` is, for every second in which anything was observed, the longest time that any one thread
    /// lived in it: where the clock was set back, a second lasts longer than a second.
    pub fn new(info: &RecordingInfo, lived: &BTreeMap<EpochSecond, u64>) -> Self {
        let walls = lived.iter().map(|(&second, &ns)| (second, ns.max(recorded_ns(info, second))));
        Windows { walls: walls.filter(|(_, ns)| *ns > 0).collect() }
    }

    pub fn walls(&self) -> &[(EpochSecond, u64)] {
        &self.walls
    }

    pub fn total_ns(&self) -> f64 {
        self.walls.iter().map(|(_, ns)| *ns as f64).sum()
    }

    /// How many whole windows the unequal ones are worth (Kish's effective sample size).
    pub fn effective(&self) -> f64 {
        let squares: f64 = self.walls.iter().map(|(_, ns)| (*ns as f64).powi(2)).sum();
        if squares == 0.0 { 0.0 } else { self.total_ns().powi(2) / squares }
    }
}

/// How much of a second the recording covers.
fn recorded_ns(info: &RecordingInfo, second: EpochSecond) -> u64 {
    let from = EpochNs(u64::from(second.0) * SECOND_NS);
    let to = EpochNs(from.0.saturating_add(SECOND_NS));
    let (from, to) = (info.clock.mono_from_epoch(from), info.clock.mono_from_epoch(to));
    to.min(info.end).0.saturating_sub(from.max(info.start).0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{ClockAnchor, ClockMap, MonoNs};

    fn windows(lived: &[(u32, u64)]) -> Windows {
        let anchor = ClockAnchor { mono: MonoNs(500_000_000), epoch: EpochNs(100_600_000_000) };
        let info = RecordingInfo {
            start: MonoNs(500_000_000),
            end: MonoNs(2_000_000_000),
            clock: ClockMap::new(vec![anchor]),
            ..RecordingInfo::default()
        };
        Windows::new(&info, &lived.iter().map(|&(second, ns)| (EpochSecond(second), ns)).collect())
    }

    #[test]
    fn a_window_is_as_long_as_it_was_recorded() {
        let windows = windows(&[(100, 1_000), (101, 0), (102, 7), (200, 0)]);
        let walls: Vec<(u32, u64)> = windows.walls().iter().map(|(second, ns)| (second.0, *ns)).collect();
        assert_eq!(walls, [(100, 400_000_000), (101, SECOND_NS), (102, 100_000_000)]);
    }

    #[test]
    fn a_second_that_happened_twice_is_longer() {
        assert_eq!(windows(&[(101, 1_700_000_000)]).total_ns(), 1.7e9);
    }

    #[test]
    fn short_windows_count_for_less() {
        assert_eq!(windows(&[(101, 0)]).effective(), 1.0);
        let three = windows(&[(100, 0), (101, 0), (102, 0)]).effective();
        assert!((1.9..2.0).contains(&three), "{three}");
        assert_eq!(windows(&[]).effective(), 0.0);
    }
}
