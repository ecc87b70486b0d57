// SPDX-License-Identifier: Apache-2.0
//! Timestamps as users write them, and the time of a recording that they mean.
//!
//! | written | means |
//! | --- | --- |
//! | `12:32:52.331`, `12:32` | that time of day, in the reader's zone |
//! | `2026-11-21 12:32:52.331` | that date and time, in the reader's zone |
//! | `2026-11-21T12:32:52.331Z`, `…+01:00` | that time, in any zone (RFC 3339) |
//! | `1795264372.331` | seconds since the epoch; 13 digits are ms, 16 µs, 19 ns |
//! | `+1.5s` | that long after the start of the recording |
//!
//! A time of day without a date is taken on the day on which it falls into the recording; if it falls into
//! none, on the day on which it is nearest to it. So `23:59` and `00:01` both work for a recording across
//! midnight.

use std::error::Error;
use std::fmt;

use jiff::{Timestamp, ToSpan, civil};
use wallprof_model::profile::RecordingInfo;
use wallprof_model::{EpochNs, MonoNs};

use crate::duration::ns_from_duration;
use crate::zone::{Zone, epoch_from_timestamp};

/// A timestamp as written, not yet tied to a recording.
#[derive(Clone, Debug, PartialEq)]
pub enum Timepoint {
    Epoch(EpochNs),
    Civil(civil::DateTime),
    TimeOfDay(civil::Time),
    /// Nanoseconds after the start of the recording.
    AfterStart(u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimepointError {
    NotATime { text: String },
    OutOfRange,
    RecordingHasNoTimeOfDay,
}

impl fmt::Display for TimepointError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TimepointError::NotATime { text } => write!(
                out,
                "{:?} is not a time: write 12:32:52.331, 2026-11-21T12:32:52Z, seconds since the epoch, or +1.5s after the start",
                clipped(text)
            ),
            TimepointError::OutOfRange => {
                write!(out, "the time lies outside the years 1970 to 2554: check its date or its unit")
            }
            TimepointError::RecordingHasNoTimeOfDay => write!(
                out,
                "the recording does not say at what time of day it was made: give the time as +1.5s after its start"
            ),
        }
    }
}

impl Error for TimepointError {}

/// As much of a foreign file's field as an error shows: a field, not a line of something else.
pub fn clipped(text: &str) -> &str {
    const MOST_SHOWN: usize = 40;
    text.char_indices().nth(MOST_SHOWN).map_or(text, |(end, _)| &text[..end])
}

impl Timepoint {
    /// # Errors
    /// A text that is none of the forms above.
    pub fn parse(text: &str) -> Result<Self, TimepointError> {
        let trimmed = text.trim();
        let read = if let Some(after) = trimmed.strip_prefix('+') {
            ns_from_duration(after).ok().map(Timepoint::AfterStart)
        } else if !trimmed.contains([':', '-']) {
            epoch_from_number(trimmed).map(Timepoint::Epoch)
        } else if trimmed.get(..5).is_some_and(|year| year.ends_with('-')) {
            return parse_dated(trimmed, text);
        } else {
            parse_time_of_day(trimmed)
        };
        read.ok_or_else(|| TimepointError::NotATime { text: text.into() })
    }

    /// The time of `recording` that is meant, which may lie outside it.
    ///
    /// # Errors
    /// A time of day for a recording without one, or a date that no `EpochNs` holds.
    pub fn resolve(&self, recording: &RecordingInfo, zone: &Zone) -> Result<MonoNs, TimepointError> {
        if let Timepoint::AfterStart(ns) = self {
            return Ok(MonoNs(recording.start.0.saturating_add(*ns)));
        }
        let clock = &recording.clock;
        if clock.anchors().is_empty() {
            return Err(TimepointError::RecordingHasNoTimeOfDay);
        }
        let epoch = match self {
            Timepoint::Epoch(epoch) => Some(*epoch),
            Timepoint::Civil(civil) => zone.epoch_from_civil(*civil),
            Timepoint::TimeOfDay(time) => {
                let (start, end) =
                    (clock.epoch_from_mono(recording.start), clock.epoch_from_mono(recording.end));
                nearest_day(*time, start, end, zone)
            }
            Timepoint::AfterStart(_) => None,
        };
        epoch.map(|epoch| clock.mono_from_epoch(epoch)).ok_or(TimepointError::OutOfRange)
    }
}

fn parse_dated(trimmed: &str, text: &str) -> Result<Timepoint, TimepointError> {
    if let Ok(at) = trimmed.parse::<Timestamp>() {
        return epoch_from_timestamp(at).map(Timepoint::Epoch).ok_or(TimepointError::OutOfRange);
    }
    let civil = trimmed.parse::<civil::DateTime>();
    civil.map(Timepoint::Civil).map_err(|_| TimepointError::NotATime { text: text.into() })
}

fn parse_time_of_day(trimmed: &str) -> Option<Timepoint> {
    if !trimmed.chars().all(|c| c.is_ascii_digit() || c == ':' || c == '.') {
        return None;
    }
    trimmed.parse::<civil::Time>().ok().map(Timepoint::TimeOfDay)
}

/// Seconds, ms, µs or ns by the number's size: each reading covers the years 1973 to 5138, and no two
/// overlap.
fn epoch_from_number(text: &str) -> Option<EpochNs> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let whole = text.split('.').next()?.trim_start_matches('0').len();
    let unit = match whole {
        9..=11 => "s",
        12..=14 => "ms",
        15..=17 => "us",
        18..=20 => "ns",
        _ => return None,
    };
    text.chars().all(|c| c.is_ascii_digit() || c == '.').then_some(())?;
    ns_from_duration(&format!("{text}{unit}")).ok().map(EpochNs)
}

/// `time` on the day that puts it into `start..=end`, else nearest to it.
fn nearest_day(time: civil::Time, start: EpochNs, end: EpochNs, zone: &Zone) -> Option<EpochNs> {
    let (first, last) = (zone.civil_at(start).date(), zone.civil_at(end).date());
    let days = [first.checked_sub(1.day()).ok(), Some(first), Some(last), last.checked_add(1.day()).ok()];
    let candidates =
        days.into_iter().flatten().filter_map(|day| zone.epoch_from_civil(day.to_datetime(time)));
    candidates.min_by_key(|at| (distance(*at, start, end), *at))
}

fn distance(at: EpochNs, start: EpochNs, end: EpochNs) -> u64 {
    start.0.saturating_sub(at.0) + at.0.saturating_sub(end.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::tz::TimeZone;
    use wallprof_model::{ClockAnchor, ClockMap};

    const SECOND: u64 = 1_000_000_000;
    /// 2026-11-21 12:32:50 UTC.
    const START: u64 = 1_795_264_370 * SECOND;

    fn recording(start_epoch: u64, seconds: u64) -> RecordingInfo {
        let start = MonoNs(5_000 * SECOND);
        RecordingInfo {
            start,
            end: MonoNs(start.0 + seconds * SECOND),
            clock: ClockMap::new(vec![ClockAnchor { mono: start, epoch: EpochNs(start_epoch) }]),
            ..RecordingInfo::default()
        }
    }

    /// Milliseconds after the recording's start.
    fn resolve(text: &str, recording: &RecordingInfo, zone: &Zone) -> i64 {
        let at = Timepoint::parse(text).unwrap().resolve(recording, zone).unwrap();
        (at.0 as i64 - recording.start.0 as i64) / 1_000_000
    }

    #[test]
    fn every_form_means_the_same_time() {
        let recording = recording(START, 60);
        for text in [
            "12:32:52.331",
            "2026-11-21 12:32:52.331",
            "2026-11-21T12:32:52.331Z",
            "2026-11-21T13:32:52.331+01:00",
            "1795264372.331",
            "1795264372331",
            "1795264372331000",
            "1795264372331000000",
            "+2.331",
            "+2331ms",
        ] {
            assert_eq!(resolve(text, &recording, &Zone::utc()), 2_331, "{text}");
        }
        assert_eq!(resolve("12:32", &recording, &Zone::utc()), -50_000);
    }

    #[test]
    fn times_of_day_are_read_in_the_given_zone() {
        let berlin = Zone::from(TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap());
        let recording = recording(START, 60);
        assert_eq!(resolve("13:32:52.331", &recording, &berlin), 2_331);
        assert_eq!(resolve("2026-11-21 13:32:52.331", &recording, &berlin), 2_331);
        assert_eq!(resolve("2026-11-21T12:32:52.331Z", &recording, &berlin), 2_331);
    }

    #[test]
    fn a_recording_across_midnight_has_both_days() {
        // 2026-11-21 23:59:00 UTC.
        let recording = recording(START + 41_170 * SECOND, 120);
        assert_eq!(resolve("23:59:30", &recording, &Zone::utc()), 30_000);
        assert_eq!(resolve("00:00:30", &recording, &Zone::utc()), 90_000);
        assert_eq!(resolve("23:58:59", &recording, &Zone::utc()), -1_000);
        assert_eq!(resolve("00:01:01", &recording, &Zone::utc()), 121_000);
    }

    #[test]
    fn a_skipped_local_time_moves_on() {
        // 2026-03-29 00:59:00 UTC, a minute before Berlin's clocks go from 02:00 to 03:00.
        let berlin = Zone::from(TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap());
        let recording = recording(1_774_745_940 * SECOND, 120);
        assert_eq!(resolve("01:59:30", &recording, &berlin), 30_000);
        assert_eq!(resolve("03:00:30", &recording, &berlin), 90_000);
        assert_eq!(resolve("02:00:30", &recording, &berlin), 90_000);
    }

    #[test]
    fn without_a_clock_only_offsets_work() {
        let recording = RecordingInfo { clock: ClockMap::default(), ..recording(START, 60) };
        let parse = |text| Timepoint::parse(text).unwrap().resolve(&recording, &Zone::utc());
        assert_eq!(parse("+1s"), Ok(MonoNs(5_001 * SECOND)));
        assert_eq!(parse("12:00"), Err(TimepointError::RecordingHasNoTimeOfDay));
        assert_eq!(parse("1795264372"), Err(TimepointError::RecordingHasNoTimeOfDay));
    }

    #[test]
    fn text_that_is_no_time_is_refused() {
        for text in [
            "",
            "soon",
            "30",
            "12:61",
            "25:00:00",
            "2026-13-01 00:00",
            "12:00 PM",
            "+",
            "+x",
            "1795264372x",
            "-5",
            "1..2",
            "日本語",
            "T12:00",
        ] {
            assert!(Timepoint::parse(text).is_err(), "{text}");
        }
        assert_eq!(Timepoint::parse("1969-12-31T23:59:59Z"), Err(TimepointError::OutOfRange));
        assert!(Timepoint::parse("30").unwrap_err().to_string().starts_with("\"30\" is not a time: write "));
    }
}
