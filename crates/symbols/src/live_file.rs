// SPDX-License-Identifier: Apache-2.0
//! Opens the files that processes have mapped, and identifies them.
//!
//! Paths come from other processes. A FIFO must not block the opener, a device must not be opened, and a file
//! that has replaced another must not be taken for it. A program that serves files (FUSE) may never answer:
//! files are found here without a request to it, and its files are not opened.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Statx, open, openat2};

use crate::file_access::{FileAccess, cached_attributes, local_mount_of};
use crate::living_thread::living_thread;
use crate::undisturbed::kept_cpu;

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
        Ok(FileKey::of_attributes(&cached_attributes(file)?))
    }

    fn of_attributes(attributes: &Statx) -> Self {
        let (modified, changed) = (attributes.stx_mtime, attributes.stx_ctime);
        FileKey {
            device: rustix::fs::makedev(attributes.stx_dev_major, attributes.stx_dev_minor),
            inode: attributes.stx_ino,
            size: attributes.stx_size,
            modified: (modified.tv_sec, modified.tv_nsec.into()),
            changed: (changed.tv_sec, changed.tv_nsec.into()),
            links: attributes.stx_nlink.into(),
        }
    }

    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// A file that does not exist.
    #[cfg(test)]
    pub(crate) fn of_number(inode: u64) -> Self {
        FileKey { device: 0, inode, size: 0, modified: (0, 0), changed: (0, 0), links: 1 }
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

/// A regular file that was found and is not open for reading. No request was sent to a program that serves
/// files.
pub(crate) struct Found {
    /// Opened with `O_PATH`.
    file: File,
    attributes: Statx,
}

impl Found {
    /// A link in `/proc` to an open or mapped file, which the kernel follows without looking up a name.
    pub(crate) fn by_link(link: &Path) -> io::Result<Self> {
        Found::of(open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// The file with this name. Looking up a name asks the file system, unless the kernel has it cached. It is
    /// asked only where it is a local one.
    pub(crate) fn by_name(name: &Path) -> io::Result<Self> {
        let cached = openat2(CWD, name, PATH_FLAGS, Mode::empty(), ResolveFlags::CACHED);
        match cached {
            Err(error) if error == rustix::io::Errno::AGAIN => Found::of(look_up_locally(name)?),
            other => Found::of(other?),
        }
    }

    /// The file that has this name for a process.
    pub(crate) fn by_name_in(pid: u32, name: &Path) -> io::Result<Self> {
        let root = open(format!("/proc/{}/root", living_thread(pid)), PATH_FLAGS, Mode::empty())?;
        let flags = ResolveFlags::CACHED | ResolveFlags::IN_ROOT;
        Found::of(openat2(root, name, PATH_FLAGS, Mode::empty(), flags)?)
    }

    fn of(file: OwnedFd) -> io::Result<Self> {
        let file = File::from(file);
        let attributes = cached_attributes(&file)?;
        let kind = FileType::from_raw_mode(attributes.stx_mode.into());
        if kind == FileType::RegularFile { Ok(Found { file, attributes }) } else { Err(not_regular()) }
    }

    pub(crate) fn key(&self) -> FileKey {
        FileKey::of_attributes(&self.attributes)
    }

    pub(crate) fn inode(&self) -> u64 {
        self.attributes.stx_ino
    }

    /// Whether a read of the file, or opening it, may never return.
    pub(crate) fn is_served(&self) -> bool {
        FileAccess::of(&self.file) == FileAccess::Served
    }

    /// Opens the file for reading. One that is served is refused.
    pub(crate) fn open(&self) -> io::Result<File> {
        if self.is_served() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        reopen(&self.file)
    }

    /// The descriptor, with which another process can open the file.
    pub(crate) fn into_file(self) -> File {
        self.file
    }
}

const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Opens a file for reading that this process has open in any way.
pub(crate) fn reopen(file: &File) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(flags).open(link)
}

/// Opens a file of a local file system by a name that is not cached. The walk neither leaves that file system
/// nor follows links, which may lead to another one.
fn look_up_locally(name: &Path) -> io::Result<OwnedFd> {
    let (mount, rest) = local_mount_of(name).ok_or(io::ErrorKind::WouldBlock)?;
    let steady = ResolveFlags::CACHED | ResolveFlags::NO_SYMLINKS;
    let mount = openat2(CWD, mount, PATH_FLAGS, Mode::empty(), steady)?;
    let within = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV | ResolveFlags::BENEATH;
    Ok(openat2(mount, rest, PATH_FLAGS, Mode::empty(), within)?)
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
    /// The file that has this name now in the process's mount namespace.
    NameInProcess,
    /// The same in wallprof's mount namespace.
    Name,
}

impl MappedFile<'_> {
    /// All places, the most reliable first.
    pub(crate) const PLACES: [Place; 4] = [Place::Mapping, Place::Program, Place::NameInProcess, Place::Name];

    /// The file at a place, if it may be the mapped one.
    pub(crate) fn find(&self, place: Place) -> Option<Found> {
        let pid = self.pid;
        let link = |name: &str| Found::by_link(Path::new(&format!("/proc/{}/{name}", living_thread(pid))));
        let found = match place {
            Place::Mapping => {
                let _kept = kept_cpu();
                link(&format!("map_files/{:x}-{:x}", self.start, self.end))
            }
            Place::Program => link("exe"),
            Place::NameInProcess => Found::by_name_in(pid, &self.name()),
            Place::Name => Found::by_name(&self.name()),
        };
        found.ok().filter(|found| self.may_be(place, found.inode()))
    }

    /// The file's path, deleted or not.
    pub(crate) fn name(&self) -> PathBuf {
        PathBuf::from(path_from_label(self.path))
    }

    /// Whether the file at a place may be the mapped one, decided without reading it. Where the build id is
    /// known, it decides later.
    fn may_be(&self, place: Place, inode: u64) -> bool {
        let same_inode = self.inode.map(|wanted| wanted == inode);
        let named_so = || !self.path.as_bytes().ends_with(DELETED) && same_inode.unwrap_or(true);
        match place {
            Place::Mapping => true,
            _ if self.build_id.is_some() => true,
            Place::Program => same_inode == Some(true),
            Place::NameInProcess | Place::Name => named_so(),
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
        assert_eq!(mapped("/tmp/a\\012b (deleted)", None, None).name(), Path::new("/tmp/a\nb"));
    }

    #[test]
    fn name_alone_does_not_identify_a_deleted_file() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let found = folder.path().metadata().expect("metadata");
        let (same, other) = (Some(found.ino()), Some(found.ino() + 1));
        let found = found.ino();
        assert!(mapped("/x", None, None).may_be(Place::Name, found));
        assert!(mapped("/x", None, same).may_be(Place::Name, found));
        assert!(!mapped("/x", None, other).may_be(Place::Name, found));
        assert!(!mapped("/x (deleted)", None, same).may_be(Place::Name, found));
        assert!(mapped("/x (deleted)", Some(&[1]), other).may_be(Place::Name, found));
        assert!(mapped("/x (deleted)", None, other).may_be(Place::Mapping, found));
    }

    #[test]
    fn a_library_is_not_the_program() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let found = folder.path().metadata().expect("metadata");
        let found = found.ino();
        assert!(!mapped("/x", None, None).may_be(Place::Program, found));
        assert!(!mapped("/x", None, Some(found + 1)).may_be(Place::Program, found));
        assert!(mapped("/x (deleted)", None, Some(found)).may_be(Place::Program, found));
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

    #[test]
    fn file_is_found_by_its_name_cached_or_not() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "one").expect("written");
        let wanted = FileKey::of(&stat_regular(&path).expect("there"));
        let found = Found::by_name(&path).expect("found");
        assert_eq!(found.key(), wanted);
        assert_eq!(io::read_to_string(found.open().expect("opened")).expect("text"), "one");
        assert_eq!(Found::by_name_in(std::process::id(), &path).expect("found").key(), wanted);
        let path = folder.path().canonicalize().expect("no links").join("file");
        let uncached = Found::of(look_up_locally(&path).expect("found")).expect("regular");
        assert_eq!(uncached.key(), wanted);
        assert!(look_up_locally(Path::new("/proc/self/status")).is_err(), "a link, and another file system");
        for path in [folder.path(), Path::new("/dev/zero"), Path::new("/nowhere")] {
            assert!(Found::by_name(path).is_err());
        }
    }
}
