// SPDX-License-Identifier: Apache-2.0
//! The meaning of a row: its columns, and the value or the mark in them.

use std::fmt;

use csv::StringRecord;
use wallprof_analysis::duration::ns_from_duration;
use wallprof_analysis::{Timepoint, TimepointError, Zone, clipped};
use wallprof_model::profile::RecordingInfo;
use wallprof_model::{Mark, MonoNs};

/// Names that a header may give to the columns of one file; the first one is the documented one.
pub struct Columns {
    names: &'static [&'static [&'static str]],
    at: Vec<Option<usize>>,
}

const TIME: &[&str] = &["time", "timestamp", "ts", "date", "at"];
const METRIC: &[&[&str]] = &[TIME, &["name", "metric", "series"], &["value"]];
const SPAN: &[&[&str]] =
    &[&["start_epoch_ns", "start"], &["end_epoch_ns", "end"], &["tid", "thread"], &["kind", "name"]];
const MARK: &[&[&str]] = &[TIME, &["text", "mark", "event", "label", "message"], &["duration"]];

/// Why a row was left out.
#[derive(Debug, PartialEq)]
pub enum RowError {
    /// The file's line could not be read.
    Unreadable(&'static str),
    Missing(&'static str),
    Time(TimepointError),
    NotANumber(String),
    Duration(String),
    /// The recording has reached its limit of names.
    TooManyNames,
    NoThread(String),
    /// It ends before it starts.
    Backwards,
    TooManySpans,
}

impl fmt::Display for RowError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowError::Unreadable(why) => out.write_str(why),
            RowError::Missing(what) => write!(out, "there is no {what}"),
            RowError::Time(error) => write!(out, "{error}"),
            RowError::NotANumber(text) => write!(out, "{:?} is not a number", clipped(text)),
            RowError::Duration(error) => write!(out, "the duration: {error}"),
            RowError::TooManyNames => out.write_str("there are too many different names"),
            RowError::NoThread(tid) => {
                write!(
                    out,
                    "no thread {:?} was recorded at that time: give the kernel's thread id",
                    clipped(tid)
                )
            }
            RowError::Backwards => out.write_str("the span ends before it starts"),
            RowError::TooManySpans => out.write_str("there are more spans than one import takes"),
        }
    }
}

/// An operation of the application.
#[derive(Debug, PartialEq)]
pub struct SpanRow<'r> {
    pub start: MonoNs,
    pub end: MonoNs,
    pub tid: u32,
    pub kind: &'r str,
}

impl Columns {
    /// time, name, value.
    pub fn of_metrics() -> Self {
        Self::in_order(METRIC)
    }

    /// time, text and, where there is one, duration.
    pub fn of_marks() -> Self {
        Self::in_order(MARK)
    }

    /// Start, end, kernel thread id and kind.
    pub fn of_spans() -> Self {
        Self::in_order(SPAN)
    }

    fn in_order(names: &'static [&'static [&'static str]]) -> Self {
        Columns { names, at: (0..names.len()).map(Some).collect() }
    }

    /// Uses the first row of a file as its header if it has a time column; then columns may be in any order.
    pub fn take_header(&mut self, row: &StringRecord) -> bool {
        let position = |names: &&'static [&'static str]| {
            row.iter().position(|field| names.contains(&field.to_ascii_lowercase().as_str()))
        };
        if position(&self.names[0]).is_none() {
            return false;
        }
        self.at = self.names.iter().map(position).collect();
        true
    }

    fn field<'r>(&self, row: &'r StringRecord, column: usize) -> Option<&'r str> {
        row.get((*self.at.get(column)?)?).filter(|field| !field.is_empty())
    }

    fn needed<'r>(&self, row: &'r StringRecord, column: usize) -> Result<&'r str, RowError> {
        self.field(row, column).ok_or(RowError::Missing(self.names[column][0]))
    }

    fn time(&self, row: &StringRecord, info: &RecordingInfo, zone: &Zone) -> Result<MonoNs, RowError> {
        self.time_at(row, 0, info, zone)
    }

    fn time_at(
        &self,
        row: &StringRecord,
        column: usize,
        info: &RecordingInfo,
        zone: &Zone,
    ) -> Result<MonoNs, RowError> {
        let point = Timepoint::parse(self.needed(row, column)?).map_err(RowError::Time)?;
        point.resolve(info, zone).map_err(RowError::Time)
    }

    /// Time, name and value.
    pub fn metric<'r>(
        &self,
        row: &'r StringRecord,
        info: &RecordingInfo,
        zone: &Zone,
    ) -> Result<(MonoNs, &'r str, f64), RowError> {
        let at = self.time(row, info, zone)?;
        let name = self.needed(row, 1)?;
        let text = self.needed(row, 2)?;
        let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
        Ok((at, name, value.ok_or_else(|| RowError::NotANumber(text.to_owned()))?))
    }

    pub fn span<'r>(
        &self,
        row: &'r StringRecord,
        info: &RecordingInfo,
        zone: &Zone,
    ) -> Result<SpanRow<'r>, RowError> {
        let (start, end) = (self.time_at(row, 0, info, zone)?, self.time_at(row, 1, info, zone)?);
        let tid = self.needed(row, 2)?;
        let tid = tid.parse().map_err(|_| RowError::NoThread(tid.to_owned()))?;
        match start <= end {
            true => Ok(SpanRow { start, end, tid, kind: self.needed(row, 3)? }),
            false => Err(RowError::Backwards),
        }
    }

    pub fn mark(&self, row: &StringRecord, info: &RecordingInfo, zone: &Zone) -> Result<Mark, RowError> {
        let duration = self.field(row, 2).map(ns_from_duration).transpose();
        Ok(Mark {
            at: self.time(row, info, zone)?,
            text: self.needed(row, 1)?.to_owned(),
            duration_ns: duration.map_err(|error| RowError::Duration(error.to_string()))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::{ClockAnchor, ClockMap, EpochNs};

    const SECOND: u64 = 1_000_000_000;
    /// 2026-11-21 12:32:50 UTC.
    const EPOCH: u64 = 1_795_264_370;

    fn anchor(mono: u64, epoch: u64) -> ClockAnchor {
        ClockAnchor { mono: MonoNs(mono * SECOND), epoch: EpochNs(epoch * SECOND) }
    }

    /// A minute; after half of it the wall clock is set forward by an hour.
    fn info() -> RecordingInfo {
        RecordingInfo {
            start: MonoNs(100 * SECOND),
            end: MonoNs(160 * SECOND),
            clock: ClockMap::new(vec![anchor(100, EPOCH), anchor(130, EPOCH + 3630)]),
            ..RecordingInfo::default()
        }
    }

    fn metric(fields: &[&str]) -> Result<(MonoNs, String, f64), RowError> {
        let row = StringRecord::from(fields.to_vec());
        let read = Columns::of_metrics().metric(&row, &info(), &Zone::utc());
        read.map(|(at, name, value)| (at, name.to_owned(), value))
    }

    #[test]
    fn times_of_each_form_follow_a_clock_that_jumps() {
        for (time, second) in [
            ("1795264371", 101),
            ("1795264371000", 101),
            ("1795264371000000", 101),
            ("1795264371000000000", 101),
            ("2026-11-21T12:32:51Z", 101),
            ("12:32:51", 101),
            ("+1s", 101),
            ("13:33:21", 131),
        ] {
            assert_eq!(
                metric(&[time, "orders", "2.5"]),
                Ok((MonoNs(second * SECOND), "orders".into(), 2.5)),
                "{time}"
            );
        }
    }

    #[test]
    fn bad_rows_have_a_reason() {
        let why = |fields: &[&str]| metric(fields).unwrap_err().to_string();
        assert!(why(&["soon", "a", "1"]).contains("\"soon\" is not a time"));
        assert_eq!(why(&["+1s", "", "1"]), "there is no name");
        assert_eq!(why(&["+1s", "a"]), "there is no value");
        for number in ["x", "nan", "inf", "1,5"] {
            assert!(why(&["+1s", "a", number]).contains("not a number"), "{number}");
        }
        assert_eq!(why(&[]), "there is no time");
    }

    #[test]
    fn spans_have_two_times_a_thread_and_a_kind() {
        let span = |fields: &[&str]| {
            let row = StringRecord::from(fields.to_vec());
            let read = Columns::of_spans().span(&row, &info(), &Zone::utc());
            read.map(|span| (span.start.0, span.end.0, span.tid, span.kind.to_owned()))
        };
        let (start, end) = ("1795264371000000100", "1795264371000000350");
        let taken = Ok((101 * SECOND + 100, 101 * SECOND + 350, 7, "order".into()));
        assert_eq!(span(&[start, end, "7", "order"]), taken);
        assert_eq!(span(&[start, end, "7", "order", "id 5"]), taken);
        let why = |fields: &[&str]| span(fields).unwrap_err().to_string();
        assert_eq!(why(&[end, start, "7", "order"]), "the span ends before it starts");
        assert!(why(&[start, end, "x", "order"]).starts_with("no thread \"x\" was recorded"));
        assert_eq!(why(&[start, end, "7"]), "there is no kind");
        let header = ["kind", "tid", "end_epoch_ns", "start_epoch_ns"].to_vec();
        assert!(Columns::of_spans().take_header(&StringRecord::from(header)));
    }

    #[test]
    fn header_defines_the_order_of_columns() {
        let mut columns = Columns::of_marks();
        assert!(!columns.take_header(&StringRecord::from(vec!["+1s", "text"])));
        assert!(columns.take_header(&StringRecord::from(vec!["Duration", "x", "EVENT", "Time"])));
        let row = StringRecord::from(vec!["5ms", "", "alarm", "+2s"]);
        let mark = columns.mark(&row, &info(), &Zone::utc()).unwrap();
        assert_eq!(
            (mark.at, &*mark.text, mark.duration_ns),
            (MonoNs(102 * SECOND), "alarm", Some(5_000_000))
        );
        let without = StringRecord::from(vec!["", "", "alarm", "+2s"]);
        assert_eq!(columns.mark(&without, &info(), &Zone::utc()).unwrap().duration_ns, None);
        let wrong = StringRecord::from(vec!["long", "", "alarm", "+2s"]);
        assert!(
            columns
                .mark(&wrong, &info(), &Zone::utc())
                .unwrap_err()
                .to_string()
                .starts_with("the duration: ")
        );
    }
}
