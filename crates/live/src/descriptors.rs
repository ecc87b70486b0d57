// SPDX-License-Identifier: Apache-2.0
//! The file descriptors that this process can still open. Without any, programs have no names and counters
//! are not read.

use std::fs::File;

use rustix::process::{Resource, getrlimit};

/// Descriptors that are kept free for lists of threads, the recording's own files, and files whose tables are
/// built.
pub(crate) const RESERVED: u64 = 40;

/// Linux: include/uapi/asm-generic/errno-base.h.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

/// Whether this process (EMFILE) or the machine (ENFILE) has reached its limit of open files.
pub(crate) fn are_exhausted() -> bool {
    let error = File::open("/dev/null").err();
    error.is_some_and(|error| matches!(error.raw_os_error(), Some(ENFILE | EMFILE)))
}

/// The number of further files that the limit of this process allows.
pub(crate) fn left() -> u64 {
    let open = std::fs::read_dir("/proc/self/fd").map(|files| files.count() as u64);
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // An error means that this folder cannot be opened either.
    open.map_or(0, |open| limit.saturating_sub(open))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_can_be_opened_here() {
        assert!(!are_exhausted());
    }

    #[test]
    fn open_files_reduce_the_number_that_is_left() {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let files: Vec<File> = (0..50).map(|_| File::open("/dev/null").expect("a file")).collect();
        assert!(left() <= limit - files.len() as u64 && left() > 0);
    }
}
