// SPDX-License-Identifier: Apache-2.0
//! A reader of other users' files by itself, for tests: `wallprof` has it under a hidden argument.

use std::process::ExitCode;

fn main() -> ExitCode {
    wallprof_symbols::run_reader()
}
