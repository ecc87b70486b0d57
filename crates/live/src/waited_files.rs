// SPDX-License-Identifier: Apache-2.0
//! The path of a file whose descriptor a system call waited on. The kernel side knows its name, and the
//! process knows its path.
//!
//! Owns the reading of `/proc/PID/fd` for this. Only links are read: a look at a file on a disk that does not
//! answer would wait as the thread did.

use std::collections::HashMap;
use std::path::PathBuf;

use wallprof_model::event::WaitedFile;
use wallprof_probe::bpf::{constants as c, fault_facts};
use wallprof_symbols::living_thread;

/// A file as one process sees it: pid, device, inode.
type FileKey = (u32, u32, u64);

/// At this number of paths all are forgotten.
const MAX_KNOWN: usize = 4096;
/// The part of a name that the kernel side keeps, without the NUL.
const NAME_BYTES: usize = c::FILE_NAME_LEN as usize - 1;

/// Paths that were looked up.
#[derive(Default)]
pub struct WaitedFiles {
    known: HashMap<FileKey, String>,
}

impl WaitedFiles {
    /// Sets the path of the file. A file that was closed by now, or whose process has ended, keeps its name.
    pub fn complete(&mut self, pid: u32, facts: &fault_facts, file: &mut WaitedFile) {
        let key = (pid, facts.device, facts.inode);
        if let Some(path) = self.known.get(&key) {
            file.path = path.clone();
            return;
        }
        let link = PathBuf::from(format!("/proc/{}/fd/{}", living_thread(pid), facts.address));
        let Ok(path) = std::fs::read_link(link) else { return };
        let path = path.to_string_lossy().into_owned();
        if !is_named(&path, &file.path) {
            return;
        }
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(key, path.clone());
        file.path = path;
    }
}

/// Whether a path as the kernel shows it ends in this name. A long name was cut.
fn is_named(path: &str, name: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or(path);
    let last = last.strip_suffix(" (deleted)").unwrap_or(last);
    last == name || (name.len() >= NAME_BYTES && last.starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn completed(files: &mut WaitedFiles, pid: u32, fd: i32, name: &str) -> String {
        let facts = fault_facts { address: fd as u64, inode: 7, ..fault_facts::default() };
        let mut file = WaitedFile { path: name.into(), offset: None };
        files.complete(pid, &facts, &mut file);
        file.path
    }

    #[test]
    fn descriptor_has_a_path_while_it_is_open() {
        let path = std::env::current_exe().expect("the test's own path");
        let name = path.file_name().expect("a name").to_str().expect("text");
        let file = std::fs::File::open(&path).expect("readable");
        let (pid, fd) = (std::process::id(), file.as_raw_fd());
        let mut files = WaitedFiles::default();
        assert_eq!(
            completed(&mut files, pid, fd, "another"),
            "another",
            "the descriptor is another file's by now"
        );
        assert_eq!(completed(&mut files, pid, fd, name), path.to_str().expect("text"));
        assert_eq!(completed(&mut files, pid, -1, name), path.to_str().expect("text"), "known by its inode");
        assert_eq!(completed(&mut files, u32::MAX, fd, name), name, "the process has ended");
    }

    #[test]
    fn name_is_whole_or_cut_as_the_kernel_side_cuts_it() {
        assert!(is_named("/data/journal", "journal") && is_named("/data/journal (deleted)", "journal"));
        assert!(!is_named("/data/journal", "jour") && !is_named("/data/other", "journal"));
        let long = "j".repeat(NAME_BYTES + 9);
        assert!(is_named(&format!("/data/{long}"), &long[..NAME_BYTES]));
        assert!(!is_named(&format!("/data/{long}"), &long[..NAME_BYTES - 1]));
    }
}
