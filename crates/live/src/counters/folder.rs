// SPDX-License-Identifier: Apache-2.0
//! Directories of /proc that are read again and again, opened once. The number of entries is cheap to read.
//! Listing costs 0.5 µs an entry, and 2 µs with the entry's link.

use std::ffi::CStr;
use std::fs::{File, Metadata};
use std::mem::MaybeUninit;
use std::ops::ControlFlow;

use rustix::fs::{RawDir, SeekFrom, readlinkat_raw, seek};

/// Entries that fit into this are read at once: some hundred.
const LISTING_BYTES: usize = 8192;
/// Longer link targets are cut. `socket:[4294967295]` fits.
const TARGET_BYTES: usize = 64;

/// An open directory stays that of its process when the pid is used again.
pub struct Folder {
    handle: File,
}

impl Folder {
    /// `None` where the directory does not exist or cannot be read.
    pub fn open(path: &str) -> Option<Self> {
        Some(Folder { handle: File::open(path).ok()? })
    }

    /// `None` when its process has ended.
    pub fn metadata(&self) -> Option<Metadata> {
        self.handle.metadata().ok()
    }

    /// Passes the entries that are numbers, as threads and descriptors are, with their names, until `take`
    /// breaks.
    pub fn numbers(&self, mut take: impl FnMut(u32, &CStr) -> ControlFlow<()>) {
        if seek(&self.handle, SeekFrom::Start(0)).is_err() {
            return;
        }
        let mut buffer = Vec::with_capacity(LISTING_BYTES);
        let mut entries = RawDir::new(&self.handle, buffer.spare_capacity_mut());
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name();
            let number = name.to_str().ok().and_then(|name| name.parse().ok());
            if number.is_some_and(|number| take(number, name).is_break()) {
                return;
            }
        }
    }

    /// The target of this link; the start of a long one.
    pub fn target<T>(&self, name: &CStr, read: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        let mut buffer = [MaybeUninit::uninit(); TARGET_BYTES];
        let (target, _) = readlinkat_raw(&self.handle, name, &mut buffer[..]).ok()?;
        read(target)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;

    use super::*;

    fn numbers(folder: &Folder) -> Vec<u32> {
        let mut numbers = Vec::new();
        folder.numbers(|number, _| {
            numbers.push(number);
            ControlFlow::Continue(())
        });
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn directory_is_listed_as_it_is_now() {
        let path = std::env::temp_dir().join(format!("wallprof-folder-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let folder = Folder::open(path.to_str().unwrap()).unwrap();
        assert!(numbers(&folder).is_empty());
        // More than one read returns.
        for number in 0..400 {
            symlink(format!("{number}:{}", "x".repeat(100)), path.join(number.to_string())).unwrap();
        }
        symlink("no number", path.join("name")).unwrap();
        assert_eq!(numbers(&folder), (0..400).collect::<Vec<_>>());
        let mut first = None;
        folder.numbers(|number, name| {
            first = folder.target(name, |target| Some((number, target.to_vec())));
            ControlFlow::Break(())
        });
        let (number, target) = first.expect("a link");
        assert!(target.starts_with(format!("{number}:xxx").as_bytes()) && target.len() == TARGET_BYTES);
        assert_eq!(folder.target(c"missing", |_| Some(())), None);
        std::fs::remove_dir_all(&path).unwrap();
        assert!(Folder::open(path.to_str().unwrap()).is_none());
    }

    #[test]
    fn own_descriptors_come_and_go() {
        let folder = Folder::open("/proc/self/fd").unwrap();
        let file = File::open("/proc/self/stat").unwrap();
        assert!(numbers(&folder).contains(&(file.as_raw_fd() as u32)));
        assert!(folder.metadata().is_some());
    }
}
