// SPDX-License-Identifier: Apache-2.0
//! Tests that do not run, or do not demand everything, on this machine.
//!
//! Each skip is printed, and written to the file that `WALLPROF_SKIPS` names: `make test` counts its lines at
//! the end.
//! `WALLPROF_FORBID_SKIPS=1` turns skips into failures.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

/// The test cannot run on this machine, for this reason.
///
/// # Panics
/// Where skips are forbidden.
pub fn skip(test: &str, reason: &str) {
    let forbidden = std::env::var_os("WALLPROF_FORBID_SKIPS").is_some_and(|value| value == "1");
    assert!(!forbidden, "WALLPROF_FORBID_SKIPS=1, but {test} cannot run here: {reason}");
    #[cfg(feature = "recorder")]
    assert!(!crate::stored::is_in_use(), "a stored run of {test} holds all: {reason}");
    write_down(&format!("skipped {test}: {reason}"));
}

/// The test runs, but does not demand `part` on this machine, for this reason.
pub fn excuse(test: &str, part: &str, reason: &str) {
    write_down(&format!("excused {test}, {part}: {reason}"));
}

/// Prints a line to the real stderr, which the test harness does not capture.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn write_down(line: &str) {
    note(line);
    let Some(path) = std::env::var_os("WALLPROF_SKIPS") else { return };
    append_line(&path, line).unwrap_or_else(|error| panic!("WALLPROF_SKIPS={}: {error}", path.display()));
}

/// In one write: other tests append to the file at the same time.
pub(crate) fn append_line(path: impl AsRef<Path>, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(format!("{line}\n").as_bytes())
}
