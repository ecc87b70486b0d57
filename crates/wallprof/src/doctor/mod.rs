// SPDX-License-Identifier: Apache-2.0
//! `wallprof doctor`: what this kernel, these permissions and this hardware allow, line by line.

mod check;
mod events;
mod host;
mod kernel;
mod pause;
mod programs;
mod sampling;

use std::process::ExitCode;

use wallprof_probe::KeptCpu;
use wallprof_probe::facts::HostFacts;
use wallprof_probe::facts::files::HostFiles;
use wallprof_views::{Style, escape};

use crate::args::DoctorArgs;
use crate::failure::{Exit, Failure};
use crate::output::to_stdout;
use crate::terminal::style_for_stdout;
use check::{Check, Grade};

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    if args.programs { programs::run() } else { check_all() }
}

/// Prints every check; exit code 3 when recording is not possible at all.
fn check_all() -> Result<ExitCode, Failure> {
    let facts = HostFacts::read(&HostFiles);
    let mut checks: Vec<_> = host::checks(&facts).into_iter().chain(kernel::checks()).collect();
    checks.push(events::check(&HostFiles));
    checks.push(host::priority(KeptCpu::is_granted()));
    // After a blocking check, the trial would only fail for the same reason.
    if worst(&checks) != Grade::Blocks {
        checks.extend(kernel::trial());
        checks.extend(sampling::checks());
    }
    let style = style_for_stdout();
    to_stdout(|out| {
        writeln!(out, "kernel {}", escape(facts.kernel.as_deref().unwrap_or("unknown")))?;
        write_all(&checks, out, &style)?;
        writeln!(out, "\n{}", verdict(&checks))?;
        Ok(())
    })?;
    match worst(&checks) {
        Grade::Blocks => Ok(ExitCode::from(Exit::Unavailable as u8)),
        Grade::Fine | Grade::Less => Ok(ExitCode::SUCCESS),
    }
}

fn write_all(checks: &[Check], out: &mut dyn std::io::Write, style: &Style) -> std::io::Result<()> {
    checks.iter().try_for_each(|check| check.write(out, style))
}

fn worst(checks: &[Check]) -> Grade {
    checks.iter().map(|check| check.grade).max().unwrap_or(Grade::Fine)
}

fn verdict(checks: &[Check]) -> &'static str {
    match worst(checks) {
        Grade::Fine => "nothing is missing: `wallprof record` can record everything",
        Grade::Less => {
            "`wallprof record` works; each line marked `less` says what is missing or disturbs others"
        }
        Grade::Blocks => "`wallprof record` cannot work here until what is marked `NO` is changed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_check_decides() {
        let fine = Check::fine("a", "b");
        let less = Check::less("a", "b", "c");
        let blocks = Check::blocks("a", "b", "c");
        assert_eq!(worst(&[]), Grade::Fine);
        assert_eq!(worst(&[less.clone(), fine.clone()]), Grade::Less);
        assert_eq!(worst(&[less, blocks, fine]), Grade::Blocks);
    }
}
