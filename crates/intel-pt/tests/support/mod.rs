//! Shared by the tests of real and synthetic recordings: a small reader of perf.data, of ELF symbols, and of
//! the truth of the synthetic ones.
#![allow(dead_code)] // Each test binary uses its part.

pub mod elf;
pub mod perf_data;
pub mod truth;

use std::path::PathBuf;
use std::process::Command;

/// The bytes of a recording in `$WALLPROF_PT_DATA`, unpacked; `None`, with a message, if that is not set.
pub fn recording(name: &str) -> Option<Vec<u8>> {
    let Some(folder) = std::env::var_os("WALLPROF_PT_DATA") else {
        eprintln!("skipped: {name} is read from the folder that WALLPROF_PT_DATA names, and it is not set");
        return None;
    };
    let path = PathBuf::from(folder).join(name);
    let output = Command::new("xz").arg("-dc").arg(&path).output().expect("xz runs");
    assert!(output.status.success(), "xz cannot unpack {}", path.display());
    Some(output.stdout)
}
