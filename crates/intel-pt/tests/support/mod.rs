// SPDX-License-Identifier: Apache-2.0
//! Shared by the tests of real and synthetic recordings: a small reader of perf.data, of ELF symbols, and of
//! the truth of the synthetic ones.
#![allow(dead_code)] // Each test binary uses its part.

pub mod elf;
pub mod perf_data;
pub mod truth;

use std::path::PathBuf;
use std::process::Command;

/// Whether the recordings are there. Without them `test` is skipped.
pub fn has_recordings(test: &str) -> bool {
    let is_set = std::env::var_os("WALLPROF_PT_DATA").is_some();
    if !is_set {
        wallprof_testkit::skip(test, "WALLPROF_PT_DATA, the folder of its recordings, is not set");
    }
    is_set
}

/// The bytes of a recording in `$WALLPROF_PT_DATA`, unpacked.
pub fn recording(name: &str) -> Vec<u8> {
    let folder = std::env::var_os("WALLPROF_PT_DATA").expect("a folder of recordings");
    let path = PathBuf::from(folder).join(name);
    let output = Command::new("xz").arg("-dc").arg(&path).output().expect("xz runs");
    assert!(output.status.success(), "xz cannot unpack {}", path.display());
    output.stdout
}
