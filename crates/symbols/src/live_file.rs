//! Opens the files that processes have mapped, and identifies them.
//!
//! Paths come from other processes. A FIFO must not block the opener, a device must not be opened, and a file
//! that has replaced another must not be taken for it.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::file_access::cached_attributes;

/// The suffix that the kernel appends to the path of a deleted file.
const DELETED: &[u8] = b" (deleted)";

/// Identity of a file and of its contents: a file that was written to since has another key. The time of
/// modification is no proof, because the file's owner can set it. Only the kernel sets the time of the last
/// change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileKey {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    /// Contents or attributes.
    changed: (i64, i64),
    links: u64,
}

impl FileKey {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        FileKey {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            links: metadata.nlink(),
        }
    }

    /// Bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Of an open file, without a request to the file system; see [`crate::file_access`].
    pub(crate) fn of_file(file: &File) -> io::Result<Self> {
        let attributes = cached_attributes(file)?;
        let (modified, changed) = (attributes.stx_mtime, attributes.stx_ctime);
        Ok(FileKey {
            device: rustix::fs::makedev(attributes.stx_dev_major, attributes.stx_dev_minor),
            inode: attributes.stx_ino,
            size: attributes.stx_size,
            modified: (modified.tv_sec, modified.tv_nsec.into()),
            changed: (changed.tv_sec, changed.tv_nsec.into()),
            links: attributes.stx_nlink.into(),
        })
    }

    /// Whether it is the same file, even if it was written to in between.
    pub(crate) fn is_same_file(&self, other: &FileKey) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether `later` is this file after it lost a name, which changes the time of its last change, too.
    pub(crate) fn is_unlinked(&self, later: &FileKey) -> bool {
        later.links < self.links
            && self.is_same_file(later)
            && (self.size, self.modified) == (later.size, later.modified)
    }
}

/// Opens `path` for reading if it is a regular file; never blocks on a FIFO, never opens a device.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    stat_regular(path)?;
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    // Checked again: between the two calls the name may have been given to another file.
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

/// The attributes of the file at `path`, if that is a regular file.
pub(crate) fn stat_regular(path: &Path) -> io::Result<Metadata> {
    let metadata = path.metadata()?;
    if metadata.is_file() { Ok(metadata) } else { Err(not_regular()) }
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

/// A file that is mapped by a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedFile<'a> {
    pub pid: u32,
    pub start: u64,
    pub end: u64,
    /// As the kernel writes it in `maps`.
    pub path: &'a OsStr,
    pub build_id: Option<&'a [u8]>,
    pub inode: Option<u64>,
}

/// Where a mapped file may be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The kernel's own link to the mapped file. It is right for deleted and replaced files and in every
    /// mount namespace, but needs root or CAP_CHECKPOINT_RESTORE and exists only as long as the mapping.
    Mapping,
    /// The kernel's link to the program of the process: as reliable, readable by its user, but one file only.
    Program,
    /// The file that has this name now, in the process's or in wallprof's mount namespace.
    Name,
}

impl MappedFile<'_> {
    /// All places, the most reliable first.
    pub(crate) fn places(&self) -> [(Place, PathBuf); 4] {
        let pid = self.pid;
        let mut in_process = OsString::from(format!("/proc/{pid}/root"));
        in_process.push(self.name());
        [
            (Place::Mapping, PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", self.start, self.end))),
            (Place::Program, PathBuf::from(format!("/proc/{pid}/exe"))),
            (Place::Name, PathBuf::from(in_process)),
            (Place::Name, self.name()),
        ]
    }

    /// The file's path, deleted or not.
    pub(crate) fn name(&self) -> PathBuf {
        PathBuf::from(path_from_label(self.path))
    }

    /// Whether the file at a place may be the mapped one, decided without reading it. Where the build id is
    /// known, it decides later.
    pub(crate) fn may_be(&self, place: Place, found: &Metadata) -> bool {
        let same_inode = self.inode.map(|inode| inode == found.ino());
        let named_so = || !self.path.as_bytes().ends_with(DELETED) && same_inode.unwrap_or(true);
        match place {
            Place::Mapping => true,
            _ if self.build_id.is_some() => true,
            Place::Program => same_inode == Some(true),
            Place::Name => named_so(),
        }
    }
}

/// The path without the kernel's marks: `maps` writes a newline as `\012` and appends `(deleted)`.
pub(crate) fn path_from_label(label: &OsStr) -> OsString {
    let bytes = label.as_bytes();
    let bytes = bytes.strip_suffix(DELETED).unwrap_or(bytes);
    let mut path = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(br"\012") {
            path.push(b'\n');
            rest = after;
        } else {
            path.push(first);
            rest = tail;
        }
    }
    OsString::from_vec(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn mapped<'a>(path: &'a str, build_id: Option<&'a [u8]>, inode: Option<u64>) -> MappedFile<'a> {
        MappedFile { pid: 7, start: 0x1000, end: 0x3000, path: OsStr::new(path), build_id, inode }
    }

    #[test]
    fn marks_of_the_kernel_are_removed_from_the_path() {
        let places = mapped("/tmp/a\\012b (deleted)", None, None).places();
        let paths = ["/proc/7/map_files/1000-3000", "/proc/7/exe", "/proc/7/root/tmp/a\nb", "/tmp/a\nb"];
        assert_eq!(places.map(|(_, path)| path), paths.map(PathBuf::from));
    }

    #[test]
    fn name_alone_does_not_identify_a_deleted_file() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let found = folder.path().metadata().expect("metadata");
        let (same, other) = (Some(found.ino()), Some(found.ino() + 1));
        assert!(mapped("/x", None, None).may_be(Place::Name, &found));
        assert!(mapped("/x", None, same).may_be(Place::Name, &found));
        assert!(!mapped("/x", None, other).may_be(Place::Name, &found));
        assert!(!mapped("/x (deleted)", None, same).may_be(Place::Name, &found));
        assert!(mapped("/x (deleted)", Some(&[1]), other).may_be(Place::Name, &found));
        assert!(mapped("/x (deleted)", None, other).may_be(Place::Mapping, &found));
    }

    #[test]
    fn a_library_is_not_the_program() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let found = folder.path().metadata().expect("metadata");
        assert!(!mapped("/x", None, None).may_be(Place::Program, &found));
        assert!(!mapped("/x", None, Some(found.ino() + 1)).may_be(Place::Program, &found));
        assert!(mapped("/x (deleted)", None, Some(found.ino())).may_be(Place::Program, &found));
    }

    #[test]
    fn a_fifo_a_folder_and_a_device_are_not_opened() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let fifo = folder.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
        for path in [fifo.as_path(), folder.path(), Path::new("/dev/zero")] {
            assert_eq!(open_regular(path).expect_err("refused").kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn rewritten_contents_are_another_file() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "one").expect("written");
        let before = FileKey::of(&stat_regular(&path).expect("there"));
        assert_eq!(before, FileKey::of(&stat_regular(&path).expect("there")));
        std::fs::write(&path, "three").expect("written");
        let after = FileKey::of(&stat_regular(&path).expect("there"));
        assert_ne!(before, after);
        assert!(before.is_same_file(&after) && !before.is_unlinked(&after));
        let file = File::open(&path).expect("readable");
        assert_eq!(FileKey::of_file(&file).expect("attributes"), after, "both ways to read a key agree");
    }

    #[test]
    fn contents_with_an_old_time_of_modification_are_another_file() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "one").expect("written");
        let key = || FileKey::of(&stat_regular(&path).expect("there"));
        let before = key();
        let modified = stat_regular(&path).and_then(|metadata| metadata.modified()).expect("a time");
        // The kernel's clock for files ticks a few times in 10 ms.
        while key().changed == before.changed {
            std::fs::write(&path, "two").expect("written");
            let file = OpenOptions::new().write(true).open(&path).expect("a file");
            file.set_modified(modified).expect("set back");
        }
        assert_eq!((key().modified, key().size), (before.modified, before.size));
        assert_ne!(key(), before);
    }
}
