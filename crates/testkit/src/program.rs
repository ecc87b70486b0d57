// SPDX-License-Identifier: Apache-2.0
//! The wallprof binary as a test of the command line runs it.

use std::process::{Command, Output, Stdio};

/// The binary without a terminal and without the developer's own settings.
pub fn wallprof(arguments: &[&str]) -> Command {
    let mut command = Command::new(crate::recorder::binary());
    command.args(arguments);
    without_settings(&mut command);
    command
}

/// Gives a command no terminal, and none of the settings that a shell may have.
pub fn without_settings(command: &mut Command) -> &mut Command {
    for variable in
        ["NO_COLOR", "COLUMNS", "LC_ALL", "LC_CTYPE", "LANG", "SUDO_UID", "SUDO_GID", "DEBUGINFOD_URLS"]
    {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null()).env("TZ", "UTC")
}

pub fn run(arguments: &[&str]) -> Output {
    wallprof(arguments).output().expect("the binary runs")
}

/// Asserts that the command failed with `code`, wrote one sentence to stderr and nothing to stdout. Returns
/// the sentence.
pub fn refused(arguments: &[&str], code: i32) -> String {
    sentence_of(&run(arguments), code, arguments)
}

pub fn sentence_of(output: &Output, code: i32, arguments: &[&str]) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
    let sentence = stderr.trim_end().strip_prefix("wallprof: ").map(str::to_owned);
    assert!(output.stdout.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    assert!(!stderr.trim_end().contains(|c: char| c.is_control()), "{stderr:?}");
    sentence.unwrap_or_else(|| panic!("{arguments:?}: {stderr}"))
}
