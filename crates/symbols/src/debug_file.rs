// SPDX-License-Identifier: Apache-2.0
//! Finds separate debug files, and checks that they belong to their module.
//!
//! A candidate counts only if it has the module's build id. A module without a build id has no debug files
//! here, because a name proves nothing.

use std::ffi::OsStr;
use std::fmt::Write;
use std::fs::File;
use std::path::{Component, Path, PathBuf};

use wallprof_model::Module;

use crate::elf;
use crate::live_file::{FileKey, open_regular};
use crate::resolver::ResolverOptions;
use crate::section::{Sections, Trust};

/// Where distributions install debug information.
pub const SYSTEM_DEBUG_DIR: &str = "/usr/lib/debug";

/// More copies of one debug file than real machines have.
const MAX_FILES: usize = 8;

/// A debug file that was found, and the path for readers that open it themselves.
#[derive(Debug)]
pub(crate) struct DebugFile {
    pub path: PathBuf,
    pub file: File,
    pub key: FileKey,
    pub trust: Trust,
    /// `None`: the file is damaged.
    pub sections: Option<Sections>,
}

/// The debug files of a module by its build id. The one with the most information comes first, damaged ones
/// last.
pub(crate) fn find(options: &ResolverOptions, module: &Module) -> Vec<DebugFile> {
    let Some(build_id) = &module.build_id else { return Vec::new() };
    let found = options.files.get(build_id).into_iter().flatten().cloned();
    let module_path = Path::new(&module.path);
    let in_dirs = options.debug_dirs.iter().flat_map(|dir| candidates(dir, module_path, build_id));
    let installed = found.chain(in_dirs).map(|path| (path, Trust::Installed));
    let downloads = options.download_dirs.iter().map(|dir| downloaded(dir, build_id));
    let mut files: Vec<DebugFile> = Vec::new();
    for (path, trust) in installed.chain(downloads.map(|path| (path, Trust::Foreign))) {
        if let Some(file) = open_if_of(path, build_id, trust)
            && files.iter().all(|known| known.key != file.key)
        {
            files.push(file);
        }
        if files.len() == MAX_FILES {
            break;
        }
    }
    files.sort_by_key(|file| std::cmp::Reverse(file.worth()));
    files
}

impl DebugFile {
    /// A rank by what the file contains; higher is better.
    fn worth(&self) -> u8 {
        match &self.sections {
            None => 0,
            Some(sections) if sections.has_bytes(".debug_info") => 4,
            Some(sections) if sections.has_bytes(".symtab") => 3,
            Some(sections) if crate::mini_debug::exists(sections) => 2,
            Some(_) => 1,
        }
    }

    /// Whether it has more than dynamic symbols, which the module's own file has as well.
    pub(crate) fn has_more_than_dynamic_symbols(&self) -> bool {
        self.worth() > 2
    }

    pub(crate) fn has_debug_info(&self) -> bool {
        self.worth() == 4
    }
}

/// Where debuginfod clients keep a downloaded file.
fn downloaded(dir: &Path, build_id: &[u8]) -> PathBuf {
    dir.join(hex_build_id(build_id)).join("debuginfo")
}

/// A build id as people and servers write it.
pub fn hex_build_id(build_id: &[u8]) -> String {
    build_id.iter().map(|byte| format!("{byte:02x}")).collect()
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

fn open_if_of(path: PathBuf, build_id: &[u8], trust: Trust) -> Option<DebugFile> {
    let file = open_regular(&path).ok()?;
    if elf::build_id(&file).as_deref() != Some(build_id) {
        return None;
    }
    let key = FileKey::of(&file.metadata().ok()?);
    let sections = Sections::read(&file).ok();
    Some(DebugFile { path, file, key, trust, sections })
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
    fn name_without_the_build_id_is_not_enough() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let copy = folder.path().join("program.debug");
        std::fs::copy("/proc/self/exe", &copy).expect("copied");
        let options = |files| ResolverOptions {
            debug_dirs: vec![folder.path().to_path_buf()],
            files,
            ..ResolverOptions::default()
        };
        let found = |build_id: &[u8], files| {
            let module = Module { path: "/opt/program".into(), build_id: Some(build_id.to_vec()) };
            find(&options(files), &module).len()
        };
        let own = elf::build_id_of_path(&copy).expect("linkers write build ids");
        let listed = |build_id: &[u8]| [(build_id.to_vec(), vec![copy.clone()])].into_iter().collect();
        assert_eq!(found(&[1, 2, 3], Default::default()), 0);
        assert_eq!(found(&[1, 2, 3], listed(&[1, 2, 3])), 0, "a list is not proof, either");
        assert_eq!(found(&own, Default::default()), 1);
        assert_eq!(found(&own, listed(&own)), 1, "one file under two names");
    }

    #[test]
    fn file_with_most_information_comes_first_and_damaged_file_last() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let own = std::fs::read("/proc/self/exe").expect("the test's own binary");
        let build_id = elf::build_id_of_path(Path::new("/proc/self/exe")).expect("a build id");
        let files = [("cut", &own[..own.len() / 2]), ("whole", &own[..])].map(|(name, bytes)| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("written");
            path
        });
        let module = Module { path: "/opt/program".into(), build_id: Some(build_id.clone()) };
        let options = ResolverOptions {
            debug_dirs: Vec::new(),
            files: [(build_id, files.to_vec())].into_iter().collect(),
            ..ResolverOptions::default()
        };
        let found = find(&options, &module);
        assert_eq!(found.iter().map(|file| &file.path).collect::<Vec<_>>(), [&files[1], &files[0]]);
        assert!(found[0].has_debug_info() && found[1].sections.is_none());
    }
}
