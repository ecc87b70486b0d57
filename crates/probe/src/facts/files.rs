// SPDX-License-Identifier: Apache-2.0
//! Reading the kernel's small text files (procfs, sysfs, tracefs) behind a trait, so that their parsers are
//! tested with files that no test machine has.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Larger than any file that is read here; the rest of a longer one is cut.
const READ_LIMIT: u64 = 256 * 1024;

/// More entries than any directory that is read here has; further ones are left out.
const LIST_LIMIT: usize = 65_536;

/// A tree of text files.
pub trait Files {
    /// The file's text, invalid UTF-8 replaced, cut after 256 KiB.
    fn read(&self, path: &Path) -> io::Result<String>;

    /// The names in a directory, sorted.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;

    fn link(&self, path: &Path) -> io::Result<PathBuf>;

    fn exists(&self, path: &Path) -> bool;
}

/// The machine's own files.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostFiles;

impl Files for HostFiles {
    fn read(&self, path: &Path) -> io::Result<String> {
        let mut bytes = Vec::new();
        File::open(path)?.take(READ_LIMIT).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = std::fs::read_dir(path)?
            .take(LIST_LIMIT)
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    fn link(&self, path: &Path) -> io::Result<PathBuf> {
        std::fs::read_link(path)
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }
}

#[cfg(test)]
pub(crate) mod fake {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// A tree made of (path, text); directories exist where files are below them.
    #[derive(Default)]
    pub(crate) struct FakeFiles {
        files: BTreeMap<PathBuf, String>,
        forbidden: BTreeSet<PathBuf>,
    }

    impl FakeFiles {
        pub(crate) fn new(files: &[(&str, &str)]) -> Self {
            let files = files.iter().map(|(path, text)| (PathBuf::from(path), text.to_string())).collect();
            FakeFiles { files, forbidden: BTreeSet::new() }
        }

        pub(crate) fn with(mut self, path: &str, text: &str) -> Self {
            self.files.insert(PathBuf::from(path), text.to_string());
            self
        }

        /// Everything below `path` is refused with EACCES.
        pub(crate) fn forbid(mut self, path: &str) -> Self {
            self.forbidden.insert(PathBuf::from(path));
            self
        }

        fn check(&self, path: &Path) -> io::Result<()> {
            match self.forbidden.iter().any(|forbidden| path.starts_with(forbidden)) {
                true => Err(io::ErrorKind::PermissionDenied.into()),
                false => Ok(()),
            }
        }
    }

    impl Files for FakeFiles {
        fn read(&self, path: &Path) -> io::Result<String> {
            self.check(path)?;
            self.files.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
        }

        fn list(&self, path: &Path) -> io::Result<Vec<String>> {
            self.check(path)?;
            let below = self.files.keys().filter_map(|file| file.strip_prefix(path).ok());
            let names: BTreeSet<String> = below
                .filter_map(|rest| rest.components().next())
                .map(|name| name.as_os_str().to_string_lossy().into_owned())
                .collect();
            match names.is_empty() {
                true => Err(io::ErrorKind::NotFound.into()),
                false => Ok(names.into_iter().collect()),
            }
        }

        fn link(&self, path: &Path) -> io::Result<PathBuf> {
            self.read(path).map(PathBuf::from)
        }

        fn exists(&self, path: &Path) -> bool {
            self.files.keys().any(|file| file.starts_with(path))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_own_files_are_read() {
        let files = HostFiles;
        assert!(files.read(Path::new("/proc/self/status")).unwrap().starts_with("Name:"));
        assert!(files.list(Path::new("/proc/self")).unwrap().contains(&"status".to_string()));
        assert!(files.link(Path::new("/proc/self/exe")).unwrap().is_absolute());
        assert!(!files.exists(Path::new("/proc/self/no such file")));
    }

    #[test]
    fn an_endless_file_is_cut() {
        let text = HostFiles.read(Path::new("/dev/zero")).unwrap();
        assert_eq!(text.len() as u64, READ_LIMIT);
    }
}
