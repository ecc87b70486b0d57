// SPDX-License-Identifier: Apache-2.0
//! `doctor --programs`: the verifier's instruction count of each program, for the table of docs/kernels.md.

use std::io::{self, Write};
use std::process::ExitCode;

use wallprof_probe::{ProgramFacts, verified_programs};

use crate::failure::Failure;
use crate::output::to_stdout;

/// Loads the programs and prints one line for each.
pub fn run() -> Result<ExitCode, Failure> {
    let programs = verified_programs().map_err(Failure::unavailable)?;
    to_stdout(|out| Ok(write(out, &programs)?))?;
    Ok(ExitCode::SUCCESS)
}

/// `NAME INSTRUCTIONS`, or `NAME missing` if the kernel has no attach point for it.
fn write(out: &mut dyn Write, programs: &[ProgramFacts]) -> io::Result<()> {
    programs.iter().try_for_each(|program| match program.verified_instructions {
        Some(count) => writeln!(out, "{} {count}", program.name),
        None => writeln!(out, "{} missing", program.name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_has_a_line() {
        let facts =
            |name: &str, verified_instructions| ProgramFacts { name: name.into(), verified_instructions };
        let mut text = Vec::new();
        write(&mut text, &[facts("on_switch", Some(12345)), facts("on_switched", None)]).unwrap();
        assert_eq!(text, b"on_switch 12345\non_switched missing\n");
    }
}
