// SPDX-License-Identifier: Apache-2.0
//! How many files are requested, and how long an answer may take.

use std::time::Duration;

/// The bounds of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one file: `DEBUGINFOD_MAXSIZE`.
    pub file_bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
    /// Files requested.
    pub files: usize,
    /// For a connection, for the start of an answer, and between two parts of it: `DEBUGINFOD_TIMEOUT`.
    pub silence: Duration,
    /// For one file: `DEBUGINFOD_MAXTIME`.
    pub file_time: Duration,
}

impl Default for Limits {
    /// The largest debug files of distributions, of browsers, have some 2 GiB, but more than 256 MiB of debug
    /// information is not read. 90 s is elfutils' own timeout: a server may have to unpack a package first.
    fn default() -> Self {
        Limits {
            file_bytes: 1 << 30,
            total_bytes: 4 << 30,
            files: 1000,
            silence: Duration::from_secs(90),
            file_time: Duration::from_secs(600),
        }
    }
}
