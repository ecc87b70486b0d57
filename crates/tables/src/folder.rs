// SPDX-License-Identifier: Apache-2.0
//! The folder of tables: a file for each table, host, hour and recording, whole from the moment it is
//! visible.
//!
//! A file is written beside its place under a name that no reader's pattern matches, and synced. When all
//! files of a recording are, they are renamed, one after the other. What a killed writer leaves has that name,
//! too; the next export of the same recording replaces it. The lock on it keeps two writers of one recording
//! apart.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::file::TableFile;
use crate::schema::{STACKS, Table};
use crate::value::Value;

const SECOND_NS: u64 = 1_000_000_000;

/// Bytes of rows that a table gathers before it writes them.
const GATHERED_BYTES: usize = 32 << 20;

/// Hours of one table that are written at the same time, each an open file.
const MOST_HOURS: usize = 744;

/// An hour of UTC, counted from the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hour(u64);

impl Hour {
    pub fn of_ns(epoch_ns: u64) -> Hour {
        Hour(epoch_ns / SECOND_NS / 3_600)
    }

    /// `2026-11-21` and `08`.
    pub fn date_and_hour(self) -> (String, String) {
        let (year, month, day) = date_from_days(self.0 / 24);
        (format!("{year:04}-{month:02}-{day:02}"), format!("{:02}", self.0 % 24))
    }
}

/// A day of the Gregorian calendar. The formula is Howard Hinnant's `civil_from_days`.
fn date_from_days(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

/// Where the rows of a recording belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    pub host: String,
    /// The name of its files: equal for each export of one recording.
    pub file: String,
    /// The hours of the recording: rows outside of them are in the nearest.
    pub first: Hour,
    pub last: Hour,
}

impl Partition {
    /// The hour in whose file a row is.
    pub(crate) fn hour(&self, epoch_ns: u64) -> Hour {
        Hour::of_ns(epoch_ns).clamp(self.first, self.last)
    }
}

/// Why a table could not be written.
#[derive(Debug)]
pub enum Error {
    Io {
        path: PathBuf,
        error: io::Error,
    },
    Parquet {
        path: PathBuf,
        error: ParquetError,
    },
    /// Another process writes this file.
    InUse {
        path: PathBuf,
    },
    /// The rows of the recording are in more hours than are written at once.
    TooManyHours,
    /// The files of a part are larger than all of them may be.
    TooLarge {
        bytes: u64,
        limit: u64,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { path, error } => {
                write!(f, "cannot write {}: {error}: choose another folder", path.display())
            }
            Error::Parquet { path, error } => {
                write!(f, "cannot write {}: {error}: choose another folder", path.display())
            }
            Error::InUse { path } => {
                write!(f, "another process writes {}: wait for it", path.display())
            }
            Error::TooLarge { bytes, limit } => {
                write!(
                    f,
                    "the tables of one part take {bytes} bytes, but {limit} may be kept: raise that limit"
                )
            }
            Error::TooManyHours => {
                write!(f, "the recording covers more than {MOST_HOURS} hours: export a part of it")
            }
        }
    }
}

impl std::error::Error for Error {}

/// A folder with tables.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    pub fn new(path: &Path) -> Folder {
        Folder { path: path.to_owned() }
    }

    /// Starts one table of a recording.
    pub fn table(&self, table: &'static Table, at: &Partition) -> TableWriter {
        TableWriter { folder: self.clone(), table, at: at.clone(), hours: BTreeMap::new(), gathered_bytes: 0 }
    }

    pub(crate) fn place(&self, table: &Table, at: &Partition, hour: Hour) -> PathBuf {
        let (date, hour) = hour.date_and_hour();
        let folders = [
            table.name.to_owned(),
            format!("host={}", name_in_path(&at.host)),
            format!("date={date}"),
            format!("hour={hour}"),
            format!("{}.parquet", at.file),
        ];
        folders.iter().fold(self.path.clone(), |path, name| path.join(name))
    }
}

/// One table of a recording. Until its [`Written`] files are published, those of an earlier export stay.
pub struct TableWriter {
    folder: Folder,
    table: &'static Table,
    at: Partition,
    hours: BTreeMap<Hour, Pending>,
    gathered_bytes: usize,
}

impl TableWriter {
    /// Adds a row to the file of its hour.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn row(&mut self, epoch_ns: u64, row: Vec<Value<'_>>) -> Result<(), Error> {
        let hour = self.at.hour(epoch_ns);
        let open = self.hours.len();
        let pending = match self.hours.entry(hour) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if open >= MOST_HOURS => return Err(Error::TooManyHours),
            Entry::Vacant(new) => {
                new.insert(Pending::create(self.folder.place(self.table, &self.at, hour), self.table)?)
            }
        };
        self.gathered_bytes += row.iter().map(Value::bytes).sum::<usize>();
        pending.row(row)?;
        if self.gathered_bytes >= GATHERED_BYTES {
            self.gathered_bytes = 0;
            self.hours.values_mut().try_for_each(Pending::flush)?;
        }
        Ok(())
    }

    /// Completes and syncs the files, which stay invisible. A table without rows has an empty file: databases refuse
    /// a pattern that no file matches.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn finish(mut self, written: &mut Written) -> Result<(), Error> {
        if self.hours.is_empty() {
            let first = self.at.first;
            self.hours
                .insert(first, Pending::create(self.folder.place(self.table, &self.at, first), self.table)?);
        }
        for pending in self.hours.into_values() {
            written.files.push(pending.finish()?);
        }
        Ok(())
    }
}

/// Complete files that are not visible yet. They are removed when this is dropped.
#[derive(Default)]
pub struct Written {
    files: Vec<Staged>,
}

struct Staged {
    table: &'static Table,
    place: PathBuf,
    aside: Aside,
    bytes: u64,
    /// Holds the lock.
    _file: File,
}

/// The path of an invisible file, which is removed with this.
struct Aside(PathBuf);

impl Drop for Aside {
    fn drop(&mut self) {
        // It fails where the file was renamed. The next export replaces one that could not be removed.
        let _ = fs::remove_file(&self.0);
    }
}

impl Written {
    /// The size of the files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|staged| staged.bytes).sum()
    }

    /// Where the files will be.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|staged| staged.place.as_path())
    }

    /// Makes the files visible, one after the other, stacks before the rows that refer to them.
    ///
    /// # Errors
    /// A file could not be renamed. Those before it stay.
    pub fn publish(mut self) -> Result<(), Error> {
        self.files.sort_by_key(|staged| *staged.table != STACKS);
        let mut folders: Vec<PathBuf> = Vec::new();
        for Staged { place, aside, .. } in &self.files {
            let failed = |error| Error::Io { path: place.clone(), error };
            fs::rename(&aside.0, place).map_err(failed)?;
            folders.extend(place.parent().map(Path::to_owned));
        }
        for folder in folders {
            let failed = |error| Error::Io { path: folder.clone(), error };
            File::open(&folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        }
        Ok(())
    }
}

/// A foreign name as a part of a path: what Hive escapes, and everything else but letters, digits, `_`, `-`
/// and inner dots, is `%XX`.
pub(crate) fn name_in_path(name: &str) -> String {
    if name.is_empty() {
        return "unknown".into();
    }
    let mut safe = String::new();
    for (at, byte) in name.bytes().take(100).enumerate() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'-' => safe.push(char::from(byte)),
            b'.' if at > 0 => safe.push('.'),
            byte => safe += &format!("%{byte:02X}"),
        }
    }
    safe
}

/// A file that is not visible yet.
struct Pending {
    table: &'static Table,
    place: PathBuf,
    aside: Aside,
    file: TableFile<BufWriter<File>>,
}

impl Pending {
    fn create(place: PathBuf, table: &'static Table) -> Result<Self, Error> {
        let folder = place.parent().map(Path::to_owned).unwrap_or_default();
        let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let aside = folder.join(format!(".{name}.part"));
        let failed = |error| Error::Io { path: aside.clone(), error };
        fs::create_dir_all(&folder).map_err(failed)?;
        let mut options = OpenOptions::new();
        // A recording is private, and so are its tables. Another user of the folder may have put a link here.
        let open = options.write(true).create(true).truncate(false).mode(0o600);
        let open = open.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let file = open.open(&aside).map_err(failed)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => Error::InUse { path: place.clone() },
            error => failed(error.into()),
        })?;
        // The writer that held the lock may have renamed the file since it was opened here.
        let is_aside = fs::metadata(&aside).is_ok_and(|found| {
            file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
        });
        if !is_aside {
            return Err(Error::InUse { path: place });
        }
        file.set_len(0).map_err(failed)?;
        let file = TableFile::new(table, BufWriter::new(file));
        let file = file.map_err(|error| Error::Parquet { path: place.clone(), error })?;
        Ok(Pending { table, place, aside: Aside(aside), file })
    }

    fn row(&mut self, row: Vec<Value<'_>>) -> Result<(), Error> {
        self.file.row(row).map_err(|error| Error::Parquet { path: self.place.clone(), error })
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.file.flush().map_err(|error| Error::Parquet { path: self.place.clone(), error })
    }

    fn finish(self) -> Result<Staged, Error> {
        let Pending { table, place, aside, file } = self;
        let out = file.finish().map_err(|error| Error::Parquet { path: place.clone(), error })?;
        let failed = |error| Error::Io { path: place.clone(), error };
        let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        Ok(Staged { table, place, aside, bytes, _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{COUNTERS, LOSSES};

    const HOUR_NS: u64 = 3_600 * SECOND_NS;
    /// 2026-11-21 08:00:00 UTC.
    const START: u64 = 1_795_248_000 * SECOND_NS;

    fn at(host: &str) -> Partition {
        let hour = Hour::of_ns(START);
        Partition { host: host.into(), file: "r1".into(), first: hour, last: Hour(hour.0 + 1) }
    }

    fn row(reason: &str) -> Vec<Value<'_>> {
        vec!["r1".into(), Value::time(START), reason.into(), Value::Integer(5)]
    }

    fn files(folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(next).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => found.push(path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned()),
                }
            }
        }
        found.sort();
        found
    }

    #[test]
    fn dates_of_the_calendar() {
        let date = |day: u64| Hour(day * 24).date_and_hour().0;
        assert_eq!([date(0), date(11_016), date(20_778)], ["1970-01-01", "2000-02-29", "2026-11-21"]);
        assert_eq!(Hour::of_ns(START + 59 * 60 * SECOND_NS).date_and_hour().1, "08");
    }

    fn write(folder: &Path, at: &Partition, rows: &[(u64, &str)]) -> Result<(), Error> {
        let folder = Folder::new(folder);
        let (mut table, mut written) = (folder.table(&LOSSES, at), Written::default());
        rows.iter().try_for_each(|(time, reason)| table.row(*time, row(reason)))?;
        table.finish(&mut written)?;
        written.publish()
    }

    #[test]
    fn rows_are_in_the_file_of_their_hour_and_clamped_to_the_recording() {
        let folder = tempfile::tempdir().unwrap();
        let rows = [(START, "a"), (START + HOUR_NS, "b"), (0, "before"), (u64::MAX, "after")];
        write(folder.path(), &at("web-1"), &rows).unwrap();
        let hour = |hour| format!("losses/host=web-1/date=2026-11-21/hour={hour}/r1.parquet");
        assert_eq!(files(folder.path()), [hour("08"), hour("09")]);
    }

    #[test]
    fn hostile_host_names_stay_in_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &at("../x/y=z"), &[(START, "a")]).unwrap();
        assert_eq!(files(folder.path()), ["losses/host=%2E.%2Fx%2Fy%3Dz/date=2026-11-21/hour=08/r1.parquet"]);
    }

    #[test]
    fn unfinished_table_leaves_the_former_file_and_nothing_that_a_pattern_matches() {
        let folder = tempfile::tempdir().unwrap();
        let unfinished = || {
            let tables = Folder::new(folder.path());
            let mut table = tables.table(&LOSSES, &at("h"));
            table.row(START, row("half")).unwrap();
        };
        unfinished();
        assert_eq!(files(folder.path()), [""; 0]);
        write(folder.path(), &at("h"), &[(START, "a")]).unwrap();
        let place = folder.path().join("losses/host=h/date=2026-11-21/hour=08/r1.parquet");
        let before = fs::read(&place).unwrap();
        assert!(before.starts_with(b"PAR1") && before.ends_with(b"PAR1"));
        unfinished();
        assert_eq!(fs::read(place).unwrap(), before);
    }

    #[test]
    fn table_without_rows_is_an_empty_file_of_the_first_hour() {
        use parquet::file::reader::{FileReader, SerializedFileReader};

        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &at("h"), &[]).unwrap();
        assert_eq!(files(folder.path()), ["losses/host=h/date=2026-11-21/hour=08/r1.parquet"]);
        let file = File::open(folder.path().join(&files(folder.path())[0])).unwrap();
        let metadata = SerializedFileReader::new(file).unwrap().metadata().file_metadata().clone();
        assert_eq!(metadata.num_rows(), 0);
        assert_eq!(metadata.schema_descr().num_columns(), LOSSES.columns.len());
    }

    #[test]
    fn two_writers_of_one_recording_are_kept_apart() {
        let folder = tempfile::tempdir().unwrap();
        let tables = Folder::new(folder.path());
        let (mut first, mut written) = (tables.table(&LOSSES, &at("h")), Written::default());
        first.row(START, row("a")).unwrap();
        let in_use = || {
            let second = write(folder.path(), &at("h"), &[(START, "b")]);
            assert!(matches!(second, Err(Error::InUse { .. })), "{second:?}");
        };
        in_use();
        first.finish(&mut written).unwrap();
        in_use();
        written.publish().unwrap();
        assert_eq!(files(folder.path()).len(), 1);
    }

    #[test]
    fn recordings_of_too_many_hours_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let long = Partition { first: Hour(0), last: Hour(MOST_HOURS as u64), ..at("h") };
        let rows: Vec<(u64, &str)> = (0..=MOST_HOURS as u64).map(|hour| (hour * HOUR_NS, "a")).collect();
        assert!(matches!(write(folder.path(), &long, &rows), Err(Error::TooManyHours)));
        assert_eq!(files(folder.path()), [""; 0]);
    }

    #[test]
    fn rows_are_read_back_as_they_were() {
        use parquet::file::reader::{FileReader, SerializedFileReader};
        let folder = tempfile::tempdir().unwrap();
        let tables = Folder::new(folder.path());
        let (mut table, mut written) = (tables.table(&LOSSES, &at("h")), Written::default());
        let texts = ["it's \"x\"; DROP TABLE a;--", "\u{1f600}\n\0\u{202e}", ""];
        // Rows that take more than is gathered, so that there are several row groups.
        let long = "x".repeat(1 << 20);
        let long: Vec<&str> = (0..70).map(|_| long.as_str()).collect();
        for reason in texts.iter().chain(&long) {
            table.row(START, row(reason)).unwrap();
        }
        table.row(START, vec![Value::Null; 4]).unwrap();
        table.finish(&mut written).unwrap();
        written.publish().unwrap();
        let place = folder.path().join("losses/host=h/date=2026-11-21/hour=08/r1.parquet");
        let reader = SerializedFileReader::new(File::open(&place).unwrap()).unwrap();
        assert!(reader.metadata().num_row_groups() > 1);
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        let text = |at: usize, column: usize| match &rows[at].get_column_iter().nth(column).unwrap().1 {
            parquet::record::Field::Str(text) => Some(text.clone()),
            parquet::record::Field::Null => None,
            other => panic!("{other}"),
        };
        assert_eq!(rows.len(), texts.len() + long.len() + 1);
        for (at, expected) in texts.iter().enumerate() {
            assert_eq!(text(at, 2).as_deref(), Some(*expected));
        }
        assert_eq!((text(10, 2).unwrap().len(), text(rows.len() - 1, 2)), (1 << 20, None));
        let mode = fs::metadata(place).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o600);
    }

    #[test]
    fn values_of_counters_are_doubles() {
        use parquet::file::reader::{FileReader, SerializedFileReader};
        use parquet::record::Field;
        let folder = tempfile::tempdir().unwrap();
        let tables = Folder::new(folder.path());
        let (mut table, mut written) = (tables.table(&COUNTERS, &at("h")), Written::default());
        let numbers = [0.0, -1.5, 1e300, f64::MIN_POSITIVE, -0.0, f64::INFINITY, f64::NAN, 4.0, 4.0];
        for number in numbers {
            let row = COUNTERS.columns.iter().map(|(name, _)| match *name {
                "value" => Value::real(number),
                _ => Value::Null,
            });
            table.row(START, row.collect()).unwrap();
        }
        table.finish(&mut written).unwrap();
        written.publish().unwrap();
        let place = folder.path().join("counters/host=h/date=2026-11-21/hour=08/r1.parquet");
        let reader = SerializedFileReader::new(File::open(&place).unwrap()).unwrap();
        let value = COUNTERS.columns.iter().position(|(name, _)| *name == "value").unwrap();
        let column = reader.metadata().row_group(0).column(value);
        assert_eq!(column.column_type(), parquet::basic::Type::DOUBLE);
        assert!(column.statistics().is_none(), "an order of bits is not that of numbers");
        let rows = reader.get_row_iter(None).unwrap().map(Result::unwrap);
        let found: Vec<Field> = rows.map(|row| row.get_column_iter().nth(value).unwrap().1.clone()).collect();
        let expected =
            numbers.map(|number| if number.is_finite() { Field::Double(number) } else { Field::Null });
        assert_eq!(found, expected);
    }

    #[test]
    fn link_in_place_of_an_unfinished_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let hour = folder.path().join("losses/host=h/date=2026-11-21/hour=08");
        fs::create_dir_all(&hour).unwrap();
        std::os::unix::fs::symlink(&victim, hour.join(".r1.parquet.part")).unwrap();
        assert!(matches!(write(folder.path(), &at("h"), &[(START, "a")]), Err(Error::Io { .. })));
        assert_eq!(fs::read(victim).unwrap(), b"precious");
    }
}
