// SPDX-License-Identifier: Apache-2.0
//! The stacks that a recording's files of an hour have: each is a row once an hour.
//!
//! Parts of a watcher share them. A hidden file beside the parts names the stacks that each part has written, so
//! that the next part of that hour writes only others. A part counts as long as its file of stacks is there, with
//! the size that it had. A lost or damaged list costs space, no stack.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::folder::{Folder, Hour, Partition};
use crate::schema::STACKS;

/// Bytes of a hash in the list.
const HASH_BYTES: usize = 16;
/// The most stacks that a list names: 16 MiB. Later ones may be written again.
const MOST_LISTED: usize = 1 << 20;
/// The size at which a file is no list of ours.
const MOST_BYTES: u64 = 32 << 20;

/// The stacks of a recording that are in the folder or about to be.
#[derive(Debug)]
pub struct Known {
    folder: Folder,
    at: Partition,
    /// The watcher whose parts count. `None`: no earlier file counts.
    watcher: Option<String>,
    hours: BTreeMap<Hour, OfHour>,
}

#[derive(Debug, Default)]
struct OfHour {
    parts: Vec<Listed>,
    before: HashSet<u128>,
    new: HashSet<u128>,
    relies_on_parts: bool,
}

/// What one part wrote.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    /// The name of its files, and the size of that with its stacks.
    file: String,
    bytes: u64,
    hashes: Vec<u8>,
}

impl Known {
    /// Of files in the folder. With a watcher, the parts of it that are there count.
    pub fn new(folder: Folder, at: Partition, watcher: Option<String>) -> Known {
        Known { folder, at, watcher, hours: BTreeMap::new() }
    }

    /// Whether a row of this hour is the first to refer to the stack: it is to be written there.
    pub fn is_new(&mut self, epoch_ns: u64, hash: &str) -> bool {
        let hour = self.at.hour(epoch_ns);
        let of = self.hours.entry(hour).or_insert_with(|| match &self.watcher {
            Some(watcher) => OfHour::read(&list(&self.folder, &self.at, hour, watcher), &self.at.file),
            None => OfHour::default(),
        });
        let hash = u128::from_str_radix(hash, 16).unwrap_or(0);
        if of.before.contains(&hash) {
            of.relies_on_parts = true;
            return false;
        }
        of.new.insert(hash)
    }

    /// The folders of hours in which rows refer to stacks of earlier parts.
    pub(crate) fn relies_on(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let relying = self.hours.iter().filter(|(_, of)| of.relies_on_parts);
        relying.map(|(hour, _)| self.hour_folder(*hour))
    }

    /// Whether all that it relies on is still there.
    pub(crate) fn holds(&self) -> bool {
        self.hours.iter().all(|(hour, of)| {
            let folder = self.hour_folder(*hour);
            !of.relies_on_parts || of.parts.iter().all(|part| part.is_there(&folder))
        })
    }

    /// Lists the stacks for the next part. The files are visible.
    pub(crate) fn save(self) -> io::Result<()> {
        let Some(watcher) = &self.watcher else { return Ok(()) };
        for (hour, of) in &self.hours {
            let place = list(&self.folder, &self.at, *hour, watcher);
            let stacks = self.folder.place(&STACKS, &self.at, *hour);
            if let Ok(found) = fs::metadata(stacks)
                && !of.new.is_empty()
                && of.before.len() + of.new.len() <= MOST_LISTED
            {
                let mut hashes: Vec<u128> = of.new.iter().copied().collect();
                hashes.sort_unstable();
                let hashes = hashes.into_iter().flat_map(u128::to_le_bytes).collect();
                let own = Listed { file: self.at.file.clone(), bytes: found.len(), hashes };
                write(&place, of.parts.iter().chain([&own]))?;
            }
        }
        Ok(())
    }

    fn hour_folder(&self, hour: Hour) -> PathBuf {
        let place = self.folder.place(&STACKS, &self.at, hour);
        place.parent().map(Path::to_owned).unwrap_or_default()
    }
}

fn list(folder: &Folder, at: &Partition, hour: Hour, watcher: &str) -> PathBuf {
    folder.place(&STACKS, at, hour).with_file_name(list_name(watcher))
}

/// No reader's pattern matches it.
pub(crate) fn list_name(watcher: &str) -> String {
    format!(".{watcher}.list")
}

impl OfHour {
    /// A part that is written again does not count.
    fn read(list: &Path, own: &str) -> OfHour {
        let folder = list.parent().unwrap_or(Path::new(""));
        let mut parts = read(list).unwrap_or_default();
        parts.retain(|part| part.file != own && part.is_there(folder));
        let hashes = parts.iter().flat_map(|part| part.hashes.chunks_exact(HASH_BYTES));
        let before = hashes.filter_map(|hash| hash.try_into().ok().map(u128::from_le_bytes)).collect();
        OfHour { before, parts, ..OfHour::default() }
    }
}

impl Listed {
    fn is_there(&self, folder: &Path) -> bool {
        let found = fs::symlink_metadata(folder.join(format!("{}.parquet", self.file)));
        found.is_ok_and(|found| found.is_file() && found.len() == self.bytes)
    }
}

/// What is damaged, and all behind it, is left out.
fn read(list: &Path) -> io::Result<Vec<Listed>> {
    // Another user of the folder may have put a link here.
    let file =
        OpenOptions::new().read(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(list)?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    let (mut rest, mut parts) = (bytes.as_slice(), Vec::new());
    while let Some((part, behind)) = first_part(rest) {
        parts.push(part);
        rest = behind;
    }
    Ok(parts)
}

/// `FILE BYTES COUNT`, a newline and the hashes.
fn first_part(bytes: &[u8]) -> Option<(Listed, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let mut words = std::str::from_utf8(&bytes[..end]).ok()?.split(' ');
    let (file, size, count) =
        (words.next()?, words.next()?.parse().ok()?, words.next()?.parse::<usize>().ok()?);
    let hashes = bytes[end + 1..].get(..count.checked_mul(HASH_BYTES)?)?;
    // The name is a part of a path below.
    let is_name = !file.is_empty() && !file.contains('/');
    is_name.then(|| {
        (Listed { file: file.into(), bytes: size, hashes: hashes.into() }, &bytes[end + 1 + hashes.len()..])
    })
}

fn write<'l>(list: &Path, parts: impl Iterator<Item = &'l Listed>) -> io::Result<()> {
    let name = list.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let aside = list.with_file_name(format!("{name}.part"));
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file: File = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(&aside)?;
    let written = parts.into_iter().try_for_each(|part| {
        writeln!(file, "{} {} {}", part.file, part.bytes, part.hashes.len() / HASH_BYTES)?;
        file.write_all(&part.hashes)
    });
    let done = written.and_then(|()| fs::rename(&aside, list));
    if done.is_err() {
        let _ = fs::remove_file(&aside);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Written;
    use crate::value::Value;

    const HOUR_NS: u64 = 3_600_000_000_000;
    const START: u64 = 498_680 * HOUR_NS;
    const A: &str = "0000000000000000000000000000000a";
    const B: &str = "ffffffffffffffffffffffffffffffff";

    /// Writes the part's stacks of rows, and returns those that became rows.
    fn part<'h>(folder: &Path, number: u32, rows: &[(u64, &'h str)]) -> Vec<&'h str> {
        let at = Partition {
            host: "h".into(),
            file: format!("watch-a-{number}"),
            first: Hour::of_ns(START),
            last: Hour::of_ns(START + HOUR_NS),
        };
        let tables = Folder::new(folder);
        let (mut table, mut written) = (tables.table(&STACKS, &at), Written::default());
        let mut known = Known::new(tables, at, Some("watch-a".into()));
        let mut new = Vec::new();
        for (time, hash) in rows {
            if known.is_new(*time, hash) {
                table.row(*time, vec![Value::Null; STACKS.columns.len()]).unwrap();
                new.push(*hash);
            }
        }
        table.finish(&mut written).unwrap();
        assert!(known.holds());
        written.publish().unwrap();
        known.save().unwrap();
        new
    }

    fn place(folder: &Path, name: &str) -> PathBuf {
        let (date, hour) = Hour::of_ns(START).date_and_hour();
        folder.join(format!("stacks/host=h/date={date}/hour={hour}/{name}"))
    }

    #[test]
    fn stack_is_a_row_once_an_hour() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert_eq!(part(folder, 1, &[(START, A), (START, A)]), [A]);
        assert_eq!(part(folder, 2, &[(START, A), (START, B), (START + HOUR_NS, A)]), [B, A]);
        assert_eq!(part(folder, 3, &[(START, A), (START, B), (START + HOUR_NS, A)]), [""; 0]);
    }

    #[test]
    fn stacks_of_a_part_that_is_gone_or_written_again_are_rows_again() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        part(folder, 1, &[(START, A)]);
        part(folder, 2, &[(START, A), (START, B)]);
        assert_eq!(
            part(folder, 2, &[(START, A), (START, B)]),
            [B],
            "an attempt that failed after it was listed"
        );
        fs::remove_file(place(folder, "watch-a-1.parquet")).unwrap();
        assert_eq!(part(folder, 3, &[(START, A), (START, B)]), [A]);
        fs::write(place(folder, "watch-a-2.parquet"), "half a copy").unwrap();
        assert_eq!(part(folder, 4, &[(START, A), (START, B)]), [B]);
    }

    #[test]
    fn damaged_lists_cost_rows_and_no_stack() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        part(folder, 1, &[(START, A)]);
        part(folder, 2, &[(START, B)]);
        let list = place(folder, ".watch-a.list");
        let whole = fs::read(&list).unwrap();
        for cut in 0..whole.len() {
            let parts = {
                fs::write(&list, &whole[..cut]).unwrap();
                read(&list).unwrap()
            };
            assert!(parts.len() < 2 && parts.iter().all(|part| part.hashes.len() == HASH_BYTES), "{cut}");
        }
        let hostile: [&[u8]; 5] = [
            b"../x 1 0\n",
            b"x 1 99999999999999999999\n",
            b"x 1 18446744073709551615\n",
            b"\n\n",
            b"\xff 1 0\n",
        ];
        for bytes in hostile {
            fs::write(&list, bytes).unwrap();
            assert_eq!(read(&list).unwrap(), []);
        }
        fs::remove_file(&list).unwrap();
        std::os::unix::fs::symlink(place(folder, "watch-a-1.parquet"), &list).unwrap();
        assert_eq!(part(folder, 3, &[(START, A)]), [A], "a link is not followed");
    }

    #[test]
    fn part_does_not_hold_when_stacks_that_it_refers_to_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        part(folder.path(), 1, &[(START, A)]);
        let hour = Hour::of_ns(START);
        let at = Partition { host: "h".into(), file: "watch-a-2".into(), first: hour, last: hour };
        let mut known = Known::new(Folder::new(folder.path()), at, Some("watch-a".into()));
        assert!(known.is_new(START, B) && known.holds());
        assert!(!known.is_new(START, A) && known.holds());
        fs::remove_file(place(folder.path(), "watch-a-1.parquet")).unwrap();
        assert!(!known.holds());
    }
}
