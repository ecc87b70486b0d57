// SPDX-License-Identifier: Apache-2.0
//! Searches a folder of debug files, in any layout, for files with given build ids.
//!
//! Owns the walk and its limits: folders, files and time. Links to files are followed, links to folders are
//! not.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::elf::build_id_of_path;

/// Files kept for one build id: the program itself, its debug file, and copies of both.
const MAX_FILES_OF_ONE: usize = 8;

/// How far a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeLimits {
    /// Names looked at, folders included.
    pub entries: u64,
    /// Folders within folders.
    pub depth: usize,
    /// Wall time of the whole search.
    pub time: Duration,
}

impl Default for TreeLimits {
    /// Debug symbols of a whole distribution are some 100,000 files; each costs a few reads of a page.
    fn default() -> Self {
        TreeLimits { entries: 500_000, depth: 32, time: Duration::from_secs(30) }
    }
}

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebugTree {
    /// By build id.
    pub files: BTreeMap<Vec<u8>, Vec<PathBuf>>,
    /// Names looked at.
    pub entries: u64,
    /// A limit ended the search.
    pub is_cut: bool,
}

impl DebugTree {
    /// Looks at every file below `dir` for one with a build id of `wanted`.
    pub fn search(dir: &Path, wanted: &HashSet<Vec<u8>>, limits: TreeLimits) -> Self {
        let mut tree = DebugTree::default();
        let started = Instant::now();
        let mut folders = VecDeque::from([(dir.to_path_buf(), 0)]);
        while let Some((folder, depth)) = folders.pop_front() {
            for (path, is_folder) in entries_of(&folder) {
                tree.is_cut |= tree.entries >= limits.entries || started.elapsed() > limits.time;
                if tree.is_cut {
                    return tree;
                }
                tree.entries += 1;
                match is_folder {
                    true if depth < limits.depth => folders.push_back((path, depth + 1)),
                    true => tree.is_cut = true,
                    false => tree.look_at(path, wanted),
                }
            }
        }
        tree
    }

    fn look_at(&mut self, path: PathBuf, wanted: &HashSet<Vec<u8>>) {
        let Some(build_id) = build_id_of_path(&path).filter(|build_id| wanted.contains(build_id)) else {
            return;
        };
        let files = self.files.entry(build_id).or_default();
        if files.len() < MAX_FILES_OF_ONE {
            files.push(path);
        }
    }
}

/// The names in a folder in alphabetical order, so that a search gives the same result on any machine.
fn entries_of(folder: &Path) -> Vec<(PathBuf, bool)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut entries: Vec<_> = entries
        .flatten()
        .map(|entry| (entry.path(), entry.file_type().is_ok_and(|kind| kind.is_dir())))
        .collect();
    entries.sort();
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    fn own() -> (PathBuf, Vec<u8>) {
        let path = std::env::current_exe().expect("a running program");
        let build_id = build_id_of_path(&path).expect("linkers write build ids");
        (path, build_id)
    }

    #[test]
    fn files_are_found_by_build_id_at_any_depth() {
        let (own, build_id) = own();
        let folder = tempfile::tempdir().expect("a scratch folder");
        let deep = folder.path().join("a/b");
        std::fs::create_dir_all(&deep).expect("folders");
        symlink(&own, deep.join("any name")).expect("a link");
        symlink(folder.path(), deep.join("loop")).expect("a link");
        std::fs::write(folder.path().join("text"), "no ELF file").expect("written");
        assert!(Command::new("mkfifo").arg(folder.path().join("fifo")).status().expect("mkfifo").success());
        let search = |wanted: &[u8]| {
            DebugTree::search(folder.path(), &HashSet::from([wanted.to_vec()]), TreeLimits::default())
        };
        let found = search(&build_id);
        assert_eq!(found.files, BTreeMap::from([(build_id, vec![deep.join("any name")])]));
        assert!(!found.is_cut && found.entries == 6, "{found:?}");
        assert!(search(&[1; 20]).files.is_empty());
    }

    #[test]
    fn every_limit_ends_a_search_and_is_reported() {
        let (own, build_id) = own();
        let folder = tempfile::tempdir().expect("a scratch folder");
        let deep = folder.path().join("z/z");
        std::fs::create_dir_all(&deep).expect("folders");
        symlink(&own, deep.join("program")).expect("a link");
        let wanted = HashSet::from([build_id]);
        let all = TreeLimits::default();
        let search = |limits| {
            let tree = DebugTree::search(folder.path(), &wanted, limits);
            (tree.is_cut, tree.files.len())
        };
        assert_eq!(search(all), (false, 1));
        assert_eq!(search(TreeLimits { entries: 2, ..all }), (true, 0));
        assert_eq!(search(TreeLimits { depth: 1, ..all }), (true, 0));
        assert_eq!(search(TreeLimits { time: Duration::ZERO, ..all }), (true, 0));
    }
}
