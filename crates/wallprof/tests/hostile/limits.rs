// SPDX-License-Identifier: Apache-2.0
//! The limits of memory and CPU time of one command.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use wallprof_testkit::program::without_settings;

/// Address space of a command, in KiB. Mapped files are part of it.
const MEMORY_KIB: u64 = 1 << 20;
/// CPU time of a command, in seconds. A build without optimisation reads a million rows in half of it.
const CPU_SECONDS: u64 = 240;

/// Runs `wallprof` within the limits, without a terminal and without settings from the environment.
pub fn run(arguments: &[&str]) -> io::Result<Output> {
    // A shell sets the limits: a process cannot give its child limits of its own without unsafe code.
    let script = format!("ulimit -v {MEMORY_KIB} -t {CPU_SECONDS} -c 0 && exec \"$0\" \"$@\"");
    let mut command = Command::new("bash");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_wallprof")]).args(arguments);
    without_settings(&mut command).env_remove("DEBUGINFOD_PATH").process_group(0).output()
}
