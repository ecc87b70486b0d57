//! The path of a file whose descriptor a system call waited on: the kernel side knows its name, its process knows its
//! path.
//!
//! Owns the reading of `/proc/PID/fd` for this: links alone, since a look at a file on a disk that does not answer would
//! wait as the thread did.

use std::collections::HashMap;
use std::path::PathBuf;

use wallprof_model::event::WaitedFile;
use wallprof_probe::bpf::{constants as c, fault_facts};

/// A file as one process sees it: pid, device, inode.
type FileKey = (u32, u32, u64);

/// Paths kept before all are forgotten.
const MAX_KNOWN: usize = 4096;
/// What the kernel side keeps of a name, its NUL left out.
const NAME_BYTES: usize = c::FILE_NAME_LEN as usize - 1;

/// Paths that were asked for.
#[derive(Default)]
pub struct WaitedFiles {
    known: HashMap<FileKey, String>,
}

impl WaitedFiles {
    /// Gives the file its path; one that was closed meanwhile, or whose process is gone, keeps its name.
    pub fn complete(&mut self, pid: u32, facts: &fault_facts, file: &mut WaitedFile) {
        let key = (pid, facts.device, facts.inode);
        if let Some(path) = self.known.get(&key) {
            file.path = path.clone();
            return;
        }
        let link = PathBuf::from(format!("/proc/{pid}/fd/{}", facts.address));
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

/// Whether a path, as the kernel shows descriptors, ends in this name; a long name was cut.
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
    fn a_descriptor_has_a_path_as_long_as_it_is_open() {
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
        assert_eq!(completed(&mut files, u32::MAX, fd, name), name, "the process is gone");
    }

    #[test]
    fn names_are_whole_or_cut_where_the_kernel_side_cuts_them() {
        assert!(is_named("/data/journal", "journal") && is_named("/data/journal (deleted)", "journal"));
        assert!(!is_named("/data/journal", "jour") && !is_named("/data/other", "journal"));
        let long = "j".repeat(NAME_BYTES + 9);
        assert!(is_named(&format!("/data/{long}"), &long[..NAME_BYTES]));
        assert!(!is_named(&format!("/data/{long}"), &long[..NAME_BYTES - 1]));
    }
}
