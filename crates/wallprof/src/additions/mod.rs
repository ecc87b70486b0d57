// SPDX-License-Identifier: Apache-2.0
//! `wallprof import --metrics`, `--marks` and `--spans`: adds metrics, events and operations of the application
//! to a recording.

mod row;
mod spans;
mod table;

use std::io::BufReader;
use std::path::{Path, PathBuf};

use wallprof_analysis::Zone;
use wallprof_import::open_input;
use wallprof_model::MonoNs;
use wallprof_model::profile::RecordingInfo;
use wallprof_recording::{Additions, Recording};

use crate::failure::{Failure, say};
use crate::terminal::zone;
use row::{Columns, RowError};
use spans::SpanRows;
use table::{Row, Table};

/// Rows this long before and after the recording are still taken: alarms are often late.
const MARGIN_NS: u64 = 60_000_000_000;
/// Limit on the bad rows that are reported one by one.
const MAX_REPORTED: u64 = 10;

/// The outcome of the rows of a file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    taken: u64,
    bad: u64,
    outside: u64,
    /// The error of the first bad row.
    why: String,
}

/// The rows that were added.
#[derive(Debug, Default, PartialEq, Eq)]
struct Added {
    values: u64,
    marks: u64,
    spans: u64,
}

/// The files of an import.
#[derive(Clone, Copy)]
pub struct Files<'a> {
    pub metrics: &'a [PathBuf],
    pub marks: &'a [PathBuf],
    pub spans: &'a [PathBuf],
}

/// Adds the rows of all files to a complete recording, or none of them when one file has no good row.
pub fn add(recording: &Path, files: Files<'_>) -> Result<(), Failure> {
    let reader = Recording::open(recording)?;
    let info = reader.info()?;
    let spans = if files.spans.is_empty() { SpanRows::default() } else { SpanRows::of(&reader)? };
    // A process must not have a recording open that it changes.
    drop(reader);
    let mut target = Target { to: Additions::open(recording)?, info, zone: zone(), spans };
    let mut added = Added::default();
    for path in files.metrics {
        added.values += target.file(path, Columns::of_metrics(), Target::metric)?;
    }
    for path in files.marks {
        added.marks += target.file(path, Columns::of_marks(), Target::mark)?;
    }
    for path in files.spans {
        added.spans += target.file(path, Columns::of_spans(), Target::span)?;
    }
    target.spans.write(&mut target.to)?;
    target.to.commit()?;
    say(&added.line(recording));
    Ok(())
}

/// The recording that is added to.
struct Target {
    to: Additions,
    info: RecordingInfo,
    zone: Zone,
    spans: SpanRows,
}

/// Whether a good row lies within the time of the recording.
enum Taken {
    Inside,
    Outside,
}

type Take = fn(&mut Target, &Columns, &csv::StringRecord) -> Result<Result<Taken, RowError>, Failure>;

impl Target {
    /// Adds the rows of `path`; returns their number.
    fn file(&mut self, path: &Path, mut columns: Columns, take: Take) -> Result<u64, Failure> {
        let failed = |error| {
            Failure::failed(format!("cannot read {}: {error}: name a CSV file that exists", path.display()))
        };
        let mut table = Table::new(BufReader::new(open_input(path).map_err(failed)?));
        let mut tally = Tally::default();
        let mut is_first = true;
        while let Some(Row { line, fields }) = table.next().map_err(failed)? {
            let first = std::mem::take(&mut is_first);
            let taken = match &fields {
                Ok(row) if first && columns.take_header(row) => continue,
                Ok(row) => take(self, &columns, row)?,
                Err(why) => Err(RowError::Unreadable(why)),
            };
            tally.count(path, line, taken);
        }
        tally.conclude(path, &self.info, &self.zone)
    }

    fn metric(
        &mut self,
        columns: &Columns,
        row: &csv::StringRecord,
    ) -> Result<Result<Taken, RowError>, Failure> {
        let (at, name, value) = match columns.metric(row, &self.info, &self.zone) {
            Ok(metric) => metric,
            Err(error) => return Ok(Err(error)),
        };
        if !self.is_inside(at, at) {
            return Ok(Ok(Taken::Outside));
        }
        let known = self.to.metric(name, at, value)?;
        Ok(known.then_some(Taken::Inside).ok_or(RowError::TooManyNames))
    }

    fn mark(
        &mut self,
        columns: &Columns,
        row: &csv::StringRecord,
    ) -> Result<Result<Taken, RowError>, Failure> {
        let mark = match columns.mark(row, &self.info, &self.zone) {
            Ok(mark) => mark,
            Err(error) => return Ok(Err(error)),
        };
        if !self.is_inside(mark.at, mark.end()) {
            return Ok(Ok(Taken::Outside));
        }
        self.to.mark(&mark)?;
        Ok(Ok(Taken::Inside))
    }

    /// Operations are compared by their waits, so the whole of one must lie in the recording.
    fn span(
        &mut self,
        columns: &Columns,
        row: &csv::StringRecord,
    ) -> Result<Result<Taken, RowError>, Failure> {
        let span = match columns.span(row, &self.info, &self.zone) {
            Ok(span) => span,
            Err(error) => return Ok(Err(error)),
        };
        if span.start < self.info.start || span.end > self.info.end {
            return Ok(Ok(Taken::Outside));
        }
        Ok(self.spans.add(&span).map(|()| Taken::Inside))
    }

    fn is_inside(&self, from: MonoNs, to: MonoNs) -> bool {
        let (start, end) = (self.info.start.0, self.info.end.0);
        // Every time before the start of the machine is 0.
        to.0 > 0 && to.0 >= start.saturating_sub(MARGIN_NS) && from.0 <= end.saturating_add(MARGIN_NS)
    }
}

impl Tally {
    fn count(&mut self, path: &Path, line: u64, taken: Result<Taken, RowError>) {
        match taken {
            Ok(Taken::Inside) => self.taken += 1,
            Ok(Taken::Outside) => self.outside += 1,
            Err(error) => {
                let text = format!("line {line} of {} was left out: {error}", path.display());
                if self.bad < MAX_REPORTED {
                    say(&text);
                }
                if self.bad == 0 {
                    self.why = text;
                }
                self.bad += 1;
            }
        }
    }

    /// Reports the other rows that were left out.
    fn conclude(self, path: &Path, info: &RecordingInfo, zone: &Zone) -> Result<u64, Failure> {
        let path = path.display();
        if self.bad > MAX_REPORTED {
            say(&format!("{} more rows of {path} were left out as well", self.bad - MAX_REPORTED));
        }
        let outside = format!("are outside the recording, which is {}", span(info, zone));
        match self {
            Tally { taken: 0, outside: 1.., .. } => Err(Failure::failed(format!(
                "nothing was added: the rows of {path} {outside}; check their dates and their time zone"
            ))),
            Tally { taken: 0, bad: 1.., why, .. } => {
                Err(Failure::failed(format!("nothing was added: {why}")))
            }
            Tally { taken: 0, .. } => Err(Failure::failed(format!("nothing was added: {path} has no rows"))),
            Tally { taken, outside: 0, .. } => Ok(taken),
            Tally { taken, outside: left_out, .. } => {
                say(&format!("{left_out} rows of {path} were left out: they {outside}"));
                Ok(taken)
            }
        }
    }
}

/// `from 2026-11-21 08:00:12 to 08:05:12 UTC`.
fn span(info: &RecordingInfo, zone: &Zone) -> String {
    let (start, end) = (info.clock.epoch_from_mono(info.start), info.clock.epoch_from_mono(info.end));
    let time = |at| zone.time_of_day_at(at, 0);
    format!("from {} {} to {} {}", zone.date_at(start), time(start), time(end), zone.offset_at(end))
}

impl Added {
    fn line(&self, recording: &Path) -> String {
        let counted =
            |number: u64, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        let parts = [(self.values, "value"), (self.marks, "mark"), (self.spans, "span")];
        let parts = parts.into_iter().filter(|(number, _)| *number > 0);
        let parts: Vec<_> = parts.map(|(number, what)| counted(number, what)).collect();
        let command = if self.spans > 0 { "tail" } else { "stalls" };
        let recording = recording.display();
        format!("added {} to {recording}: `wallprof {command} {recording}` shows them", parts.join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_line_sums_up_the_added_rows() {
        let line = Added { values: 12, marks: 1, spans: 0 }.line(Path::new("a.db"));
        assert_eq!(line, "added 12 values and 1 mark to a.db: `wallprof stalls a.db` shows them");
        let line = Added { spans: 2, ..Added::default() }.line(Path::new("a.db"));
        assert_eq!(line, "added 2 spans to a.db: `wallprof tail a.db` shows them");
    }

    #[test]
    fn file_without_a_good_row_fails_with_the_first_reason() {
        let conclude = |tally: Tally| {
            tally
                .conclude(Path::new("m.csv"), &RecordingInfo::default(), &Zone::utc())
                .map_err(|failure| failure.message)
        };
        assert_eq!(conclude(Tally { taken: 2, bad: 1, ..Tally::default() }), Ok(2));
        let why = "line 1 of m.csv was left out: there is no time".to_string();
        assert!(conclude(Tally { bad: 3, why, ..Tally::default() }).unwrap_err().contains("line 1"));
        assert!(conclude(Tally { outside: 3, ..Tally::default() }).unwrap_err().contains("time zone"));
        assert!(conclude(Tally::default()).unwrap_err().contains("no rows"));
    }
}
