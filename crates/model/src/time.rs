// SPDX-License-Identifier: Apache-2.0
//! Two clocks and the conversion between them.
//!
//! Everything is measured on CLOCK_MONOTONIC; times of day are derived from anchors, so that a step
//! of the wall clock is a step in the table and not a smear over the measurements.

/// Nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonoNs(pub u64);

/// Nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochNs(pub u64);

/// Whole seconds since the Unix epoch: the key of a one-second bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochSecond(pub u32);

/// One reading of both clocks at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockAnchor {
    /// CLOCK_MONOTONIC.
    pub mono: MonoNs,
    /// CLOCK_REALTIME.
    pub epoch: EpochNs,
}

/// Anchors in the order of their monotonic times; converts between the clocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockMap {
    anchors: Vec<ClockAnchor>,
}

impl ClockMap {
    /// From readings in any order.
    pub fn new(mut anchors: Vec<ClockAnchor>) -> Self {
        anchors.sort_by_key(|anchor| anchor.mono);
        Self { anchors }
    }

    /// Adds a reading, which may be older than others.
    pub fn push(&mut self, anchor: ClockAnchor) {
        let at = self.anchors.partition_point(|known| known.mono <= anchor.mono);
        self.anchors.insert(at, anchor);
    }

    /// All readings, the earliest first.
    pub fn anchors(&self) -> &[ClockAnchor] {
        &self.anchors
    }

    /// The time of day at `mono`, by the last anchor at or before it (the first one for earlier times).
    /// Without any anchor the monotonic value itself, which is what `clock: unknown` means.
    pub fn epoch_from_mono(&self, mono: MonoNs) -> EpochNs {
        let after = self.anchors.partition_point(|anchor| anchor.mono <= mono);
        match self.anchors.get(after.saturating_sub(1)) {
            None => EpochNs(mono.0),
            Some(anchor) if mono >= anchor.mono => {
                EpochNs(anchor.epoch.0.saturating_add(mono.0 - anchor.mono.0))
            }
            Some(anchor) => EpochNs(anchor.epoch.0.saturating_sub(anchor.mono.0 - mono.0)),
        }
    }

    /// The inverse of [`Self::epoch_from_mono`]; where a step made a time of day happen twice, the later one.
    pub fn mono_from_epoch(&self, epoch: EpochNs) -> MonoNs {
        let anchor = self.anchors.iter().rev().find(|anchor| anchor.epoch <= epoch).or(self.anchors.first());
        match anchor {
            None => MonoNs(epoch.0),
            Some(anchor) if epoch >= anchor.epoch => {
                MonoNs(anchor.mono.0.saturating_add(epoch.0 - anchor.epoch.0))
            }
            Some(anchor) => MonoNs(anchor.mono.0.saturating_sub(anchor.epoch.0 - epoch.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor(mono: u64, epoch: u64) -> ClockAnchor {
        ClockAnchor { mono: MonoNs(mono), epoch: EpochNs(epoch) }
    }

    #[test]
    fn a_clock_step_is_a_step() {
        let clock = ClockMap::new(vec![anchor(200, 5_200), anchor(100, 1_100)]);
        assert_eq!(clock.epoch_from_mono(MonoNs(199)), EpochNs(1_199));
        assert_eq!(clock.epoch_from_mono(MonoNs(200)), EpochNs(5_200));
        assert_eq!(clock.epoch_from_mono(MonoNs(50)), EpochNs(1_050));
        assert_eq!(clock.mono_from_epoch(EpochNs(5_300)), MonoNs(300));
        assert_eq!(clock.mono_from_epoch(EpochNs(1_150)), MonoNs(150));
    }

    #[test]
    fn a_damaged_time_saturates() {
        let clock = ClockMap::new(vec![anchor(100, 1_100)]);
        assert_eq!(clock.epoch_from_mono(MonoNs(u64::MAX)), EpochNs(u64::MAX));
        assert_eq!(
            ClockMap::new(vec![anchor(1_100, 100)]).mono_from_epoch(EpochNs(u64::MAX)),
            MonoNs(u64::MAX)
        );
    }

    #[test]
    fn without_anchors_times_pass_through() {
        assert_eq!(ClockMap::default().epoch_from_mono(MonoNs(7)), EpochNs(7));
        assert_eq!(ClockMap::default().mono_from_epoch(EpochNs(7)), MonoNs(7));
    }
}
