// SPDX-License-Identifier: Apache-2.0
//! The files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// What builds, package managers and fuzzers put into the repository.
const MADE: [&str; 4] = ["target", "node_modules", "corpus", "artifacts"];

/// Adds the files of a folder, where it is, and of those in it; none that are made.
pub fn add_files(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let entry = entry.expect("an entry");
        let (kind, path) = (entry.file_type().expect("a kind of file"), entry.path());
        if kind.is_dir() && !MADE.iter().any(|name| path.ends_with(name)) {
            add_files(&path, files);
        } else if kind.is_file() {
            files.push(path);
        }
    }
}
