// SPDX-License-Identifier: Apache-2.0
//! A scenario without its symbols.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::scenario::program;
use crate::stored;

/// A copy of the scenario's program and of its libraries, with nothing in them that is not needed to run.
pub fn stripped(scenario: &str, folder: &Path) -> PathBuf {
    if stored::is_replayed() {
        return folder.join(scenario);
    }
    if scenario == "loader" {
        for library in ["liblazy.so", "libplugin.so"] {
            copy_stripped(library, folder);
        }
    }
    copy_stripped(scenario, folder)
}

fn copy_stripped(name: &str, folder: &Path) -> PathBuf {
    let copy = folder.join(name);
    let status = Command::new("strip")
        .arg("--strip-all")
        .arg("-o")
        .arg(&copy)
        .arg(program(name))
        .status()
        .expect("strip runs: it is in Debian's package binutils");
    assert!(status.success(), "{name} cannot be stripped");
    copy
}
