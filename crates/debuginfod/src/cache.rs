// SPDX-License-Identifier: Apache-2.0
//! The cache of downloads: for each build id a folder with the file `debuginfo`, as in elfutils. An empty
//! file means that no server had one.
//!
//! A cache that belongs to another user, or that others may write to, is not used. A private folder takes its
//! place and is removed at the end of the run.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::{NamedTempFile, TempDir};
use wallprof_symbols::hex_build_id;

/// The defaults of elfutils, which its control files override.
const MISS_LASTS: Duration = Duration::from_secs(600);
const UNUSED_AGE: Duration = Duration::from_secs(7 * 86_400);
const CLEAN_INTERVAL: Duration = Duration::from_secs(86_400);
/// The control file whose modification time is the time of the last cleaning.
const CLEAN_CONTROL: &str = "cache_clean_interval_s";

pub(crate) struct Cache {
    folder: PathBuf,
    private: Option<TempDir>,
}

impl Cache {
    /// The cache at `wanted`, created if it does not exist; or a private one.
    pub(crate) fn open(wanted: Option<&Path>) -> io::Result<Self> {
        if let Some(folder) = wanted.filter(|folder| is_ours(folder)) {
            return Ok(Cache { folder: folder.to_owned(), private: None });
        }
        let private = tempfile::Builder::new().prefix("wallprof-debuginfod-").tempdir()?;
        Ok(Cache { folder: private.path().to_owned(), private: Some(private) })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes a private folder now.
    pub(crate) fn discard(&self) {
        if self.private.is_some() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    /// Whether the file is in the cache.
    pub(crate) fn holds(&self, build_id: &[u8]) -> bool {
        self.path(build_id).metadata().is_ok_and(|found| found.is_file() && found.len() > 0)
    }

    /// Whether a recent request found it on no server.
    pub(crate) fn is_missed(&self, build_id: &[u8]) -> bool {
        let lasts = self.control("cache_miss_s", MISS_LASTS);
        let is_recent = |found: fs::Metadata| {
            let age = found.modified().ok()?.elapsed().unwrap_or_default();
            Some(found.is_file() && found.len() == 0 && age < lasts)
        };
        self.path(build_id).metadata().ok().and_then(is_recent).unwrap_or(false)
    }

    /// A file for a download; it is removed unless it is published.
    pub(crate) fn create(&self, build_id: &[u8]) -> io::Result<NamedTempFile> {
        let path = self.path(build_id);
        let folder = path.parent().unwrap_or(&self.folder);
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        tempfile::Builder::new().prefix("debuginfo.").tempfile_in(folder)
    }

    /// Gives a complete download its name.
    pub(crate) fn publish(&self, download: NamedTempFile, build_id: &[u8]) -> io::Result<()> {
        download.as_file().set_permissions(Permissions::from_mode(0o400))?;
        download.persist(self.path(build_id)).map(drop).map_err(|error| error.error)
    }

    /// Records that no server has it.
    pub(crate) fn note_miss(&self, build_id: &[u8]) -> io::Result<()> {
        self.create(build_id)?.persist(self.path(build_id)).map(drop).map_err(|error| error.error)
    }

    /// Removes downloads that were not read for a week, once a day.
    pub(crate) fn clean(&self) -> io::Result<()> {
        let control = self.folder.join(CLEAN_CONTROL);
        let interval = self.control(CLEAN_CONTROL, CLEAN_INTERVAL);
        let Ok(last) = control.metadata().and_then(|found| found.modified()) else {
            return fs::write(control, interval.as_secs().to_string());
        };
        if last.elapsed().unwrap_or_default() < interval {
            return Ok(());
        }
        let unused = self.control("max_unused_age_s", UNUSED_AGE);
        for entry in fs::read_dir(&self.folder)?.flatten().filter(|entry| is_build_id(&entry.file_name())) {
            remove_unused(&entry.path(), unused);
        }
        File::open(control)?.set_modified(SystemTime::now())
    }

    fn path(&self, build_id: &[u8]) -> PathBuf {
        self.folder.join(hex_build_id(build_id)).join("debuginfo")
    }

    /// The seconds in a control file.
    fn control(&self, name: &str, usual: Duration) -> Duration {
        let mut text = String::new();
        let path = self.folder.join(name);
        let is_file = path.metadata().is_ok_and(|found| found.is_file());
        let read = is_file.then(|| File::open(path).and_then(|file| file.take(32).read_to_string(&mut text)));
        let seconds = matches!(read, Some(Ok(_))).then(|| text.trim().parse().ok()).flatten();
        seconds.map_or(usual, Duration::from_secs)
    }
}

/// Whether the folder belongs to this user and others cannot write to it. It is created if it does not exist.
fn is_ours(folder: &Path) -> bool {
    if DirBuilder::new().recursive(true).mode(0o700).create(folder).is_err() {
        return false;
    }
    let ours = rustix::process::geteuid().as_raw();
    folder.metadata().is_ok_and(|found| found.is_dir() && found.uid() == ours && found.mode() & 0o022 == 0)
}

fn is_build_id(name: &std::ffi::OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.len() >= 4 && name.iter().all(|byte| byte.is_ascii_hexdigit())
}

/// A file that cannot be removed stays until the next cleaning.
fn remove_unused(folder: &Path, unused: Duration) {
    if fs::symlink_metadata(folder).is_ok_and(|found| !found.is_dir()) {
        return;
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_unused = entry.metadata().is_ok_and(|found| {
            let used = found.accessed().ok().max(found.modified().ok());
            found.is_file() && used.is_some_and(|used| used.elapsed().unwrap_or_default() >= unused)
        });
        if is_unused {
            let _ = fs::remove_file(entry.path());
        }
    }
    // This fails unless it is empty.
    let _ = fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const ID: [u8; 4] = [0xab, 0xcd, 0xef, 1];

    fn cache() -> (TempDir, Cache) {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let cache = Cache::open(Some(&folder.path().join("x/debuginfod_client"))).expect("made");
        (folder, cache)
    }

    fn store(cache: &Cache, build_id: &[u8]) {
        let mut download = cache.create(build_id).expect("a file");
        download.write_all(b"content").expect("written");
        cache.publish(download, build_id).expect("renamed");
    }

    #[test]
    fn files_are_stored_where_other_clients_find_them() {
        let (folder, cache) = cache();
        assert!(!cache.holds(&ID));
        store(&cache, &ID);
        let path = folder.path().join("x/debuginfod_client/abcdef01/debuginfo");
        assert_eq!(fs::read(&path).expect("readable"), b"content");
        assert_eq!(path.metadata().expect("there").mode() & 0o777, 0o400);
        assert!(cache.holds(&ID) && !cache.is_missed(&ID));
        store(&cache, &ID);
        assert_eq!(fs::read_dir(path.parent().expect("a folder")).expect("readable").count(), 1);
    }

    #[test]
    fn unpublished_download_is_removed() {
        let (_folder, cache) = cache();
        drop(cache.create(&ID).expect("a file"));
        assert_eq!(fs::read_dir(cache.folder().join("abcdef01")).expect("readable").count(), 0);
    }

    #[test]
    fn miss_is_cached_for_a_limited_time() {
        let (_folder, cache) = cache();
        assert!(!cache.is_missed(&ID));
        cache.note_miss(&ID).expect("written");
        assert!(cache.is_missed(&ID) && !cache.holds(&ID));
        fs::write(cache.folder().join("cache_miss_s"), "0\n").expect("written");
        assert!(!cache.is_missed(&ID));
        store(&cache, &ID);
        assert!(cache.holds(&ID));
    }

    #[test]
    fn cache_that_others_may_write_to_is_not_used() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).expect("changed");
        let cache = Cache::open(Some(folder.path())).expect("a private one");
        assert_ne!(cache.folder(), folder.path());
        store(&cache, &ID);
        let private = cache.folder().to_owned();
        drop(cache);
        assert!(!private.exists() && fs::read_dir(folder.path()).expect("readable").count() == 0);
    }

    #[test]
    fn unused_files_are_removed_once_a_day() {
        let (_folder, cache) = cache();
        let old = SystemTime::now() - Duration::from_secs(8 * 86_400);
        let times = fs::FileTimes::new().set_accessed(old).set_modified(old);
        let age = |path: &Path| File::open(path).and_then(|file| file.set_times(times)).expect("changed");
        store(&cache, &ID);
        store(&cache, &[1, 2, 3]);
        fs::create_dir(cache.folder().join("notes")).expect("a folder");
        fs::write(cache.folder().join("notes/old"), "the user's").expect("written");
        age(&cache.folder().join("notes/old"));
        age(&cache.path(&ID));
        cache.clean().expect("a first time");
        assert!(cache.holds(&ID), "nothing was due");
        age(&cache.folder().join(CLEAN_CONTROL));
        cache.clean().expect("cleaned");
        assert!(!cache.holds(&ID) && !cache.folder().join("abcdef01").exists());
        assert!(cache.holds(&[1, 2, 3]) && cache.folder().join("notes/old").exists());
    }
}
