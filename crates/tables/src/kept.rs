// SPDX-License-Identifier: Apache-2.0
//! The files of watchers in a folder of tables, which are bounded: the oldest parts are removed first, each
//! from all tables.
//!
//! Files of `export` and of other hosts are never removed.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::folder::{Error, Written, name_in_path};
use crate::known::{Known, list_name};
use crate::schema::{STACKS, TABLES};

const START: &str = "watch-";
/// An unfinished file that nobody has written to for this long is of a killed writer.
const ABANDONED: Duration = Duration::from_secs(3_600);
/// Ten seconds: as long as a watcher waits after a failure.
const LOCK_ATTEMPTS: u32 = 1_000;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The files of one host's watchers.
#[derive(Debug)]
pub struct Kept {
    folder: PathBuf,
    host: String,
}

/// The files of each part, by its date and hour, when it was written and its name.
type Parts = BTreeMap<(String, SystemTime, String), Vec<(PathBuf, u64)>>;
/// Hours in which the pending part refers to stacks of earlier parts, and their watcher.
type Relied = HashSet<(String, String)>;
/// Files by date and hour and name.
type Found = BTreeMap<(String, String), Vec<(SystemTime, PathBuf, u64)>>;

impl Kept {
    pub fn of_watcher(folder: &Path, host: &str) -> Kept {
        Kept { folder: folder.to_owned(), host: format!("host={}", name_in_path(host)) }
    }

    /// The name of a part's files, without their extension: a second attempt replaces the first.
    pub fn file_name(&self, recording: &str, from_ns: u64) -> String {
        format!("{START}{recording}-{from_ns:020}")
    }

    /// The watcher of a recording, as its files name it.
    pub fn watcher(&self, recording: &str) -> String {
        format!("{START}{recording}")
    }

    /// Makes a part visible and removes the oldest parts, so that all take at most `limit`. `false`: the part is
    /// not written, because stacks of earlier parts to which it refers are gone or would have to go. It has to be
    /// written again with all of its stacks.
    ///
    /// # Errors
    /// A folder cannot be read, a file not removed or renamed; or the part alone is more than the limit.
    pub fn publish(&self, written: Written, stacks: Known, limit: u64) -> Result<bool, Error> {
        // Of two watchers of the host, one must not remove stacks to which the other is about to refer.
        let _lock = self.lock()?;
        let own = written.places().next().and_then(|place| Some(watcher_of(place.to_str()?)));
        let relied = stacks.relies_on().filter_map(|folder| Some((self.hour_of(&folder), own.clone()?)));
        if !stacks.holds() || !self.remove_oldest(limit, written.bytes(), &relied.collect())? {
            return Ok(false);
        }
        written.publish()?;
        // The part is complete without the list: the next one writes more stacks then.
        let _ = stacks.save();
        Ok(true)
    }

    fn lock(&self) -> Result<File, Error> {
        let place = self.folder.join(STACKS.name).join(&self.host).join(".watch.lock");
        let failed = |error| Error::Io { path: place.clone(), error };
        fs::create_dir_all(place.parent().unwrap_or(&self.folder)).map_err(failed)?;
        let mut options = File::options();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let options = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let file = options.open(&place).map_err(failed)?;
        // It is held for milliseconds, unless its holder is stopped.
        for _ in 0..LOCK_ATTEMPTS {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
                Err(error) => return Err(failed(error.into())),
            }
        }
        Err(Error::InUse { path: place })
    }

    /// Removes the oldest parts until the others and the pending one take at most `limit`. Stacks of an hour stay
    /// until the watcher's last part of that hour goes. `false`: those to which the pending part refers are in
    /// the way.
    fn remove_oldest(&self, limit: u64, pending: u64, relied: &Relied) -> Result<bool, Error> {
        if pending > limit {
            return Err(Error::TooLarge { bytes: pending, limit });
        }
        let parts = self.parts()?;
        let mut used = pending + parts.values().flatten().map(|(_, bytes)| bytes).sum::<u64>();
        if used <= limit {
            return Ok(true);
        }
        let mut left: BTreeMap<(String, String), usize> = BTreeMap::new();
        for (hour, _, name) in parts.keys() {
            *left.entry((hour.clone(), watcher_of(name))).or_default() += 1;
        }
        let mut held: BTreeMap<(String, String), Vec<(PathBuf, u64)>> = BTreeMap::new();
        for ((hour, _, name), files) in parts {
            if used <= limit {
                break;
            }
            let watcher = (hour, watcher_of(&name));
            let is_stacks = |path: &Path| path.starts_with(self.folder.join(STACKS.name));
            let (of_stacks, others): (Vec<_>, Vec<_>) =
                files.into_iter().partition(|(path, _)| is_stacks(path));
            held.entry(watcher.clone()).or_default().extend(of_stacks);
            let mut gone = others;
            let left = left.entry(watcher.clone()).or_default();
            *left = left.saturating_sub(1);
            if *left == 0 && !relied.contains(&watcher) {
                let of_stacks = held.remove(&watcher).unwrap_or_default();
                if let Some(folder) = of_stacks.first().and_then(|(path, _)| path.parent()) {
                    // Without its parts it names nothing that is there.
                    let _ = fs::remove_file(folder.join(list_name(&watcher.1)));
                }
                gone.extend(of_stacks);
            }
            for (path, bytes) in gone {
                remove(&path)?;
                used -= bytes;
            }
        }
        Ok(used <= limit)
    }

    /// `date=2026-11-21/hour=08`.
    fn hour_of(&self, folder: &Path) -> String {
        let of_hour = folder.strip_prefix(&self.folder).unwrap_or(folder);
        of_hour.components().skip(2).collect::<PathBuf>().display().to_string()
    }

    fn parts(&self) -> Result<Parts, Error> {
        let mut found = Found::new();
        for table in TABLES {
            let host = self.folder.join(table.name).join(&self.host);
            for date in folders(&host)? {
                for hour in folders(&date)? {
                    self.parts_of_hour(&hour, &mut found)?;
                }
            }
        }
        let mut parts = Parts::new();
        for ((hour, name), files) in found {
            let written = files.iter().map(|(written, ..)| *written).min().unwrap_or(SystemTime::UNIX_EPOCH);
            let files = files.into_iter().map(|(_, path, bytes)| (path, bytes)).collect();
            parts.insert((hour, written, name), files);
        }
        Ok(parts)
    }

    fn parts_of_hour(&self, hour: &Path, found: &mut Found) -> Result<(), Error> {
        for entry in entries(hour)? {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Ok(file) = entry.metadata() else { continue };
            let written = file.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if name.strip_prefix('.').is_some_and(|name| name.starts_with(START)) && name.ends_with(".part") {
                remove_abandoned(&entry.path(), written);
            } else if name.starts_with(START) && name.ends_with(".parquet") && file.is_file() {
                let part = found.entry((self.hour_of(hour), name)).or_default();
                part.push((written, entry.path(), file.len()));
            }
        }
        Ok(())
    }
}

/// `watch-RECORDING` of the path or name of a part's file.
fn watcher_of(file: &str) -> String {
    let name = file.rsplit_once('/').map_or(file, |(_, name)| name);
    name.rsplit_once('-').map_or(name, |(watcher, _)| watcher).to_owned()
}

fn folders(of: &Path) -> Result<Vec<PathBuf>, Error> {
    let found = entries(of)?;
    // A link is no folder: what it refers to is not ours.
    let folders = found.iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(folders.map(fs::DirEntry::path).collect())
}

fn entries(of: &Path) -> Result<Vec<fs::DirEntry>, Error> {
    let failed = |error| Error::Io { path: of.to_owned(), error };
    match fs::read_dir(of) {
        Ok(entries) => entries.collect::<io::Result<_>>().map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed(error)),
    }
}

/// With the folders of its hour and its date, where they are empty then.
fn remove(file: &Path) -> Result<(), Error> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::Io { path: file.to_owned(), error })
        }
        _ => {
            for folder in file.ancestors().skip(1).take(2) {
                if fs::remove_dir(folder).is_err() {
                    break;
                }
            }
            Ok(())
        }
    }
}

/// A writer that lives holds the lock.
fn remove_abandoned(file: &Path, written: SystemTime) {
    let is_old = written.elapsed().is_ok_and(|age| age >= ABANDONED);
    let is_free =
        || File::open(file).is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok());
    if is_old && is_free() {
        // The next part tries it again.
        let _ = fs::remove_file(file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: &str = "date=2026-11-21/hour=08";

    /// Writes a file of some bytes, `age` seconds old, into two tables.
    fn add(folder: &Path, host: &str, hour: &str, name: &str, (bytes, age): (usize, u64)) {
        for table in ["ledger", "stalls"] {
            let place = folder.join(table).join(host).join(hour);
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join(name), vec![0; bytes]).unwrap();
            let file = File::options().write(true).open(place.join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        }
    }

    fn has(folder: &Path, host: &str, hour: &str, name: &str) -> bool {
        let found =
            ["ledger", "stalls"].map(|table| folder.join(table).join(host).join(hour).join(name).exists());
        assert_eq!(found[0], found[1], "a part is in all tables or in none");
        found[0]
    }

    #[test]
    fn oldest_parts_are_removed_from_all_tables() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let before = "date=2026-11-20/hour=23";
        add(folder, "host=h", before, "watch-b-2.parquet", (100, 10));
        add(folder, "host=h", HOUR, "watch-a-9.parquet", (100, 900));
        add(folder, "host=h", HOUR, "watch-b-3.parquet", (100, 5));
        let kept = Kept::of_watcher(folder, "h");
        kept.remove_oldest(650, 50, &Relied::new()).unwrap();
        assert!(has(folder, "host=h", before, "watch-b-2.parquet"), "650 bytes are within the limit");
        kept.remove_oldest(550, 50, &Relied::new()).unwrap();
        assert!(!has(folder, "host=h", before, "watch-b-2.parquet"));
        assert!(!folder.join("stalls/host=h").join(before).exists(), "nor is its folder left");
        kept.remove_oldest(260, 60, &Relied::new()).unwrap();
        assert!(!has(folder, "host=h", HOUR, "watch-a-9.parquet"), "of an hour, the one written first");
        assert!(has(folder, "host=h", HOUR, "watch-b-3.parquet"));
        assert!(matches!(kept.remove_oldest(99, 100, &Relied::new()), Err(Error::TooLarge { .. })));
        assert!(has(folder, "host=h", HOUR, "watch-b-3.parquet"));
    }

    #[test]
    fn files_of_exports_and_of_other_hosts_stay() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        add(folder, "host=h", HOUR, "0123.parquet", (100, 900));
        add(folder, "host=other", HOUR, "watch-a-1.parquet", (100, 900));
        Kept::of_watcher(folder, "h").remove_oldest(10, 5, &Relied::new()).unwrap();
        assert!(has(folder, "host=h", HOUR, "0123.parquet"));
        assert!(has(folder, "host=other", HOUR, "watch-a-1.parquet"));
    }

    #[test]
    fn unfinished_files_of_killed_writers_are_removed_after_an_hour() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let (old, new, locked) =
            (".watch-a-1.parquet.part", ".watch-a-2.parquet.part", ".watch-a-3.parquet.part");
        add(folder, "host=h", HOUR, old, (100, 4_000));
        add(folder, "host=h", HOUR, new, (100, 60));
        add(folder, "host=h", HOUR, locked, (100, 4_000));
        let holders = ["ledger", "stalls"].map(|table| {
            let file = File::open(folder.join(table).join("host=h").join(HOUR).join(locked)).unwrap();
            flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
            file
        });
        Kept::of_watcher(folder, "h").remove_oldest(1_000, 0, &Relied::new()).unwrap();
        assert!(!has(folder, "host=h", HOUR, old));
        assert!(has(folder, "host=h", HOUR, new) && has(folder, "host=h", HOUR, locked));
        drop(holders);
    }

    /// A part of watcher `a` with a file of rows and one of stacks.
    fn add_part(folder: &Path, number: u32, age: u64) {
        for (table, bytes) in [("stalls", 100), ("stacks", 50)] {
            let place = folder.join(table).join("host=h").join(HOUR);
            fs::create_dir_all(&place).unwrap();
            let name = place.join(format!("watch-a-{number}.parquet"));
            fs::write(&name, vec![0; bytes]).unwrap();
            let file = File::options().write(true).open(&name).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        }
    }

    fn parts_of(folder: &Path, table: &str) -> usize {
        fs::read_dir(folder.join(table).join("host=h").join(HOUR)).map_or(0, Iterator::count)
    }

    #[test]
    fn stacks_of_an_hour_stay_until_its_last_part_goes() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        (1..=3).for_each(|number| add_part(folder, number, 100 - u64::from(number)));
        let list = folder.join("stacks/host=h").join(HOUR).join(list_name("watch-a"));
        fs::write(&list, "").unwrap();
        let kept = Kept::of_watcher(folder, "h");
        let relied = Relied::from([(HOUR.to_owned(), "watch-a".to_owned())]);
        assert!(kept.remove_oldest(400, 50, &Relied::new()).unwrap());
        assert_eq!((parts_of(folder, "stalls"), parts_of(folder, "stacks")), (2, 3 + 1));
        assert!(kept.remove_oldest(310, 50, &relied).unwrap());
        assert_eq!((parts_of(folder, "stalls"), parts_of(folder, "stacks")), (1, 3 + 1));
        assert!(!kept.remove_oldest(180, 50, &relied).unwrap(), "the stacks are in the way");
        assert_eq!((parts_of(folder, "stalls"), parts_of(folder, "stacks")), (0, 3 + 1));
        assert!(kept.remove_oldest(180, 50, &Relied::new()).unwrap());
        assert_eq!(parts_of(folder, "stacks"), 0);
        assert!(!list.exists());
    }
}
