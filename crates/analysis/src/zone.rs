// SPDX-License-Identifier: Apache-2.0
//! The time zone in which times of day are read and shown. The caller, which knows the environment, passes
//! it in.

use jiff::tz::TimeZone;
use jiff::{Timestamp, civil};
use wallprof_model::EpochNs;

/// A time zone with its rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Zone(TimeZone);

impl From<TimeZone> for Zone {
    fn from(zone: TimeZone) -> Self {
        Zone(zone)
    }
}

impl Zone {
    pub fn utc() -> Self {
        Zone(TimeZone::UTC)
    }

    /// `2026-11-21`.
    pub fn date_at(&self, at: EpochNs) -> String {
        self.civil_at(at).date().to_string()
    }

    /// `08:00:12.331042` with `digits` (0 to 9) of the second, the rest cut off.
    pub fn time_of_day_at(&self, at: EpochNs, digits: usize) -> String {
        let time = self.civil_at(at).time();
        let mut text = format!("{:02}:{:02}:{:02}", time.hour(), time.minute(), time.second());
        if digits > 0 {
            let fraction = format!("{:09}", time.subsec_nanosecond());
            text.push('.');
            text.push_str(&fraction[..digits.min(9)]);
        }
        text
    }

    /// The distance to UTC at that time, as RFC 3339 writes it: `+01:00`; `UTC` for none.
    pub fn offset_at(&self, at: EpochNs) -> String {
        let seconds = self.0.to_offset(timestamp_from_epoch(at)).seconds();
        if seconds == 0 {
            return "UTC".into();
        }
        let (sign, minutes) = (if seconds < 0 { '-' } else { '+' }, seconds.unsigned_abs() / 60);
        format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
    }

    pub(crate) fn civil_at(&self, at: EpochNs) -> civil::DateTime {
        self.0.to_datetime(timestamp_from_epoch(at))
    }

    /// `None` for times before 1970 or after 2554, where [`EpochNs`] ends. A local time that a clock change
    /// skips is moved on by the gap; of one that happens twice the first is taken.
    pub(crate) fn epoch_from_civil(&self, civil: civil::DateTime) -> Option<EpochNs> {
        epoch_from_timestamp(self.0.to_timestamp(civil).ok()?)
    }
}

pub(crate) fn epoch_from_timestamp(at: Timestamp) -> Option<EpochNs> {
    u64::try_from(at.as_nanosecond()).ok().map(EpochNs)
}

/// Every `EpochNs` (to the year 2554) is within jiff's range (to the year 9999).
fn timestamp_from_epoch(at: EpochNs) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(at.0)).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_times_of_day() {
        let at = EpochNs(1_795_248_012_331_042_999);
        assert_eq!(Zone::utc().date_at(at), "2026-11-21");
        assert_eq!(Zone::utc().time_of_day_at(at, 6), "08:00:12.331042");
        assert_eq!(Zone::utc().time_of_day_at(at, 0), "08:00:12");
        assert_eq!(Zone::utc().offset_at(at), "UTC");
        let chicago = Zone::from(TimeZone::posix("CST6CDT,M3.2.0,M11.1.0").unwrap());
        assert_eq!(chicago.time_of_day_at(at, 3), "02:00:12.331");
        assert_eq!(chicago.offset_at(at), "-06:00");
        assert_eq!(Zone::utc().date_at(EpochNs(u64::MAX)), "2554-07-21");
    }
}
