// SPDX-License-Identifier: Apache-2.0
//! Times of a recording as times of day.

use wallprof_analysis::Zone;
use wallprof_model::MonoNs;
use wallprof_model::profile::RecordingInfo;

/// Formats times of one recording: as times of day in a zone, or as the time since its start where the
/// recording does not know the time of day.
pub(crate) struct Timestamps<'a> {
    info: &'a RecordingInfo,
    zone: &'a Zone,
}

impl<'a> Timestamps<'a> {
    pub fn new(info: &'a RecordingInfo, zone: &'a Zone) -> Self {
        Timestamps { info, zone }
    }

    /// `08:00:12.331042`, or `+3.000042 s`; microseconds, the rest cut off.
    pub fn time(&self, at: MonoNs) -> String {
        if self.info.clock.anchors().is_empty() {
            return self.since_start(at);
        }
        self.zone.time_of_day_at(self.info.clock.epoch_from_mono(at), 6)
    }

    /// `2026-11-21 UTC`, `2026-11-21 +01:00`; `None` where the time of day is not known.
    pub fn date(&self, at: MonoNs) -> Option<String> {
        let epoch = (!self.info.clock.anchors().is_empty()).then(|| self.info.clock.epoch_from_mono(at))?;
        Some(format!("{} {}", self.zone.date_at(epoch), self.zone.offset_at(epoch)))
    }

    fn since_start(&self, at: MonoNs) -> String {
        let (sign, ns) = match at.0.checked_sub(self.info.start.0) {
            Some(after) => ('+', after),
            None => ('-', self.info.start.0 - at.0),
        };
        format!("{sign}{}.{:06} s", ns / 1_000_000_000, ns % 1_000_000_000 / 1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{ClockAnchor, ClockMap, EpochNs};

    #[test]
    fn times_of_day_where_known_else_since_the_start() {
        let mut info = RecordingInfo { start: MonoNs(5_000_000_000), ..RecordingInfo::default() };
        let zone = Zone::utc();
        assert_eq!(Timestamps::new(&info, &zone).time(MonoNs(8_000_042_999)), "+3.000042 s");
        assert_eq!(Timestamps::new(&info, &zone).time(MonoNs(4_500_000_000)), "-0.500000 s");
        assert_eq!(Timestamps::new(&info, &zone).date(MonoNs(0)), None);
        let anchor = ClockAnchor { mono: info.start, epoch: EpochNs(1_795_248_012_331_042_000) };
        info.clock = ClockMap::new(vec![anchor]);
        assert_eq!(Timestamps::new(&info, &zone).time(MonoNs(6_000_000_000)), "08:00:13.331042");
        assert_eq!(Timestamps::new(&info, &zone).date(info.start).unwrap(), "2026-11-21 UTC");
    }
}
