//! Where debug information that was split from a file is found, and whether it belongs to that file.
//!
//! A candidate counts only with the file's own build id. Without a build id nothing is searched for: a
//! name proves nothing.

use std::ffi::OsStr;
use std::fmt::Write;
use std::fs::File;
use std::path::{Component, Path, PathBuf};

use crate::elf;
use crate::live_file::open_regular;

/// Where distributions install debug information.
pub const SYSTEM_DEBUG_DIR: &str = "/usr/lib/debug";

/// A debug file that was found, and the path for readers that open it themselves.
#[derive(Debug)]
pub(crate) struct DebugFile {
    pub path: PathBuf,
    pub file: File,
}

/// The debug file of the module at `module_path`, by its build id.
pub(crate) fn find(debug_dirs: &[PathBuf], module_path: &Path, build_id: &[u8]) -> Option<DebugFile> {
    let candidates = debug_dirs.iter().flat_map(|dir| candidates(dir, module_path, build_id));
    candidates.filter_map(|path| open_if_of(path, build_id)).next()
}

/// Below one debug directory: by build id, by the module's path, and by its bare name.
fn candidates(dir: &Path, module_path: &Path, build_id: &[u8]) -> Vec<PathBuf> {
    let mut candidates = Vec::new();
    if let Some(by_id) = build_id_path(build_id) {
        candidates.push(dir.join(".build-id").join(format!("{by_id}.debug")));
        candidates.push(dir.join(".build-id").join(&by_id));
        candidates.push(dir.join(format!("{by_id}.debug")));
    }
    let inner = relative(module_path);
    if let Some(name) = inner.file_name() {
        for place in [dir.join(&inner), dir.join(name)] {
            candidates.push(with_suffix(&place, ".debug"));
            candidates.push(place);
        }
    }
    candidates
}

/// `ab/cdef…`, as below `.build-id`.
pub(crate) fn build_id_path(build_id: &[u8]) -> Option<String> {
    let (first, rest) = build_id.split_first().filter(|(_, rest)| !rest.is_empty())?;
    let mut path = format!("{first:02x}/");
    for byte in rest {
        write!(path, "{byte:02x}").ok()?;
    }
    Some(path)
}

/// The path without its root, and without `..`: it comes from a recording or another process.
pub(crate) fn relative(path: &Path) -> PathBuf {
    path.components().filter(|component| matches!(component, Component::Normal(_))).collect()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or(OsStr::new("")).to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

fn open_if_of(path: PathBuf, build_id: &[u8]) -> Option<DebugFile> {
    let file = open_regular(&path).ok()?;
    (elf::build_id(&file).as_deref() == Some(build_id)).then_some(DebugFile { path, file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_stay_below_the_debug_directory() {
        let dir = Path::new("/debug");
        let found = candidates(dir, Path::new("/usr/../../etc/lib x.so (deleted)"), &[0xab, 0x01, 0xff]);
        assert_eq!(found[0], Path::new("/debug/.build-id/ab/01ff.debug"));
        assert!(found.contains(&PathBuf::from("/debug/usr/etc/lib x.so (deleted).debug")));
        for path in &found {
            assert!(path.starts_with(dir) && !path.components().any(|part| part == Component::ParentDir));
        }
        assert!(candidates(dir, Path::new("[vdso]"), &[]).iter().all(|path| path.starts_with(dir)));
    }

    #[test]
    fn a_name_without_the_build_id_is_not_enough() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        std::fs::copy("/proc/self/exe", folder.path().join("program.debug")).expect("copied");
        let dirs = [folder.path().to_path_buf()];
        assert!(find(&dirs, Path::new("/opt/program"), &[1, 2, 3]).is_none());
    }
}
