//! Folders of /proc that are looked at again and again: open once. How many entries one has is cheap to ask, to list them
//! costs 0.5 µs an entry and 2 µs with its link.

use std::ffi::CStr;
use std::fs::{File, Metadata};
use std::mem::MaybeUninit;
use std::ops::ControlFlow;

use rustix::fs::{RawDir, SeekFrom, readlinkat_raw, seek};

/// As many entries are read at once as fit, some hundred.
const LISTING_BYTES: usize = 8192;
/// Longer targets are cut: `socket:[4294967295]` is not.
const TARGET_BYTES: usize = 64;

/// It stays a process' own when its number is given out again.
pub struct Folder {
    handle: File,
}

impl Folder {
    /// `None` where there is no such folder, or it cannot be read.
    pub fn open(path: &str) -> Option<Self> {
        Some(Folder { handle: File::open(path).ok()? })
    }

    /// `None` when its process is gone.
    pub fn metadata(&self) -> Option<Metadata> {
        self.handle.metadata().ok()
    }

    /// Its entries that are numbers, as threads and descriptors are, each with its name; until `take` has enough.
    pub fn numbers(&self, mut take: impl FnMut(u32, &CStr) -> ControlFlow<()>) {
        if seek(&self.handle, SeekFrom::Start(0)).is_err() {
            return;
        }
        let mut room = Vec::with_capacity(LISTING_BYTES);
        let mut entries = RawDir::new(&self.handle, room.spare_capacity_mut());
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name();
            let number = name.to_str().ok().and_then(|name| name.parse().ok());
            if number.is_some_and(|number| take(number, name).is_break()) {
                return;
            }
        }
    }

    /// What the link of this name leads to; of a long one its beginning.
    pub fn target<T>(&self, name: &CStr, read: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        let mut room = [MaybeUninit::uninit(); TARGET_BYTES];
        let (target, _) = readlinkat_raw(&self.handle, name, &mut room[..]).ok()?;
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
    fn a_folder_is_listed_as_it_is_at_the_time() {
        let path = std::env::temp_dir().join(format!("wallprof-folder-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let folder = Folder::open(path.to_str().unwrap()).unwrap();
        assert!(numbers(&folder).is_empty());
        // More than are read at once.
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
