// SPDX-License-Identifier: Apache-2.0
//! The binary under test.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The binary without a terminal and without the developer's own settings.
pub fn wallprof() -> Command {
    wallprof_testkit::program::wallprof(&[])
}

pub fn diff(a: &Path, b: &Path, arguments: &[&str]) -> Output {
    wallprof().arg("diff").args([a, b]).args(arguments).output().expect("the binary runs")
}

/// The output of a diff, which must succeed.
pub fn text(a: &Path, b: &Path, arguments: &[&str]) -> String {
    let output = diff(a, b, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

pub fn json(a: &Path, b: &Path) -> Value {
    serde_json::from_str(&text(a, b, &["--json"])).expect("JSON")
}
