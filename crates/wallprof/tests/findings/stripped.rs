//! A scenario without its symbols.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stage::program;

/// A copy of the scenario's program with nothing in it that is not needed to run.
pub fn stripped(scenario: &str, folder: &Path) -> PathBuf {
    let copy = folder.join(scenario);
    let status = Command::new("strip")
        .arg("--strip-all")
        .arg("-o")
        .arg(&copy)
        .arg(program(scenario))
        .status()
        .expect("strip runs: it is in Debian's package binutils");
    assert!(status.success(), "{scenario} cannot be stripped");
    copy
}
