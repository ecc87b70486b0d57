// SPDX-License-Identifier: Apache-2.0
//! One recording from its checks to its exit code.
//!
//! Nothing is created before the targets are known to exist and recording is known to be permitted.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use wallprof_probe::facts::capabilities::CapabilitySet;
use wallprof_probe::facts::files::{Files, HostFiles};

use super::check::check_exists;
use super::ending::{EndReason, Ending, StopSignals, Wake, Watched, ready};
use super::engine::{Engine, Setup};
use super::held::{HeldCommand, RunningCommand, code_from_status};
use super::options::RecordOptions;
use super::progress::{Progress, armed_line, done_line};
use super::target::Target;
use crate::descriptors;
use crate::failure::{Exit, Failure, say};

/// The interval at which the rings are drained. They have several times the capacity that a busy machine
/// needs.
const TICK: Duration = Duration::from_millis(100);

/// Makes the recording of `options`; `started` is the start of this process.
pub fn record(options: &RecordOptions, started: Instant) -> Result<ExitCode, Failure> {
    check_exists(options, &HostFiles)?;
    check_permitted(&HostFiles)?;
    let setup = Setup::new(options, &HostFiles)?;
    let signals = StopSignals::install().map_err(|error| failed("handle signals", &error))?;
    let held = options.command.as_deref().map(HeldCommand::start).transpose().map_err(Failure::failed)?;
    descriptors::raise_limit();
    let mut engine = Engine::prepare(setup, held.as_ref().map(HeldCommand::pid))?;
    engine.arm();
    let armed = Instant::now();
    // At once: the wait of the held command is recorded with it.
    let command = held.map(HeldCommand::release).transpose().map_err(Failure::failed)?;
    say(&armed_line(options, armed - started));
    engine.report_existing_threads()?;
    Run { options, signals, engine, command, armed }.complete()
}

/// A recording in progress.
struct Run<'a> {
    options: &'a RecordOptions,
    signals: StopSignals,
    engine: Engine,
    command: Option<RunningCommand>,
    armed: Instant,
}

impl Run<'_> {
    fn complete(mut self) -> Result<ExitCode, Failure> {
        let followed = self.follow();
        let recorded = self.armed.elapsed();
        // Also after an error: the recording so far is completed, and the command is ended.
        let summary = self.engine.finish();
        let status = self.command.as_mut().map(|command| end_command(command, &self.signals)).transpose();
        let (reason, summary) = (followed?, summary?);
        let status = status.map_err(|error| failed("wait for the command", &error))?;
        crate::findings::store(&self.options.output, &self.options.rules);
        if summary.threads == 0 {
            return Err(Failure::new(Exit::NothingRecorded, nothing_recorded(&self.options.target)));
        }
        say(&done_line(self.options, recorded, &summary));
        Ok(ExitCode::from(code(reason, status)))
    }

    /// Drains the rings until something ends the recording.
    fn follow(&mut self) -> Result<EndReason, Failure> {
        let mut progress = Progress::on_stderr();
        let awaited = match &self.options.target {
            Target::Given(given) if !given.names.is_empty() => Some(given.names.join(" and ")),
            _ => None,
        };
        let with_children = matches!(&self.options.target, Target::Given(given) if given.with_children);
        let mut ending = Ending {
            signals: &self.signals,
            deadline: self.options.duration.and_then(|duration| self.armed.checked_add(duration)),
            command: self.command.as_ref().map(RunningCommand::pidfd),
            watched: watched(&self.options.target),
        };
        loop {
            let wake = ending.wait(Instant::now() + TICK);
            match wake.map_err(|error| failed("wait for the probes", &error))? {
                // Children of the given processes are still alive.
                Wake::End(EndReason::TargetsGone) if with_children && !self.engine.is_waiting() => {
                    self.engine.drain()?;
                }
                Wake::End(reason) => {
                    progress.clear();
                    return Ok(reason);
                }
                Wake::Tick => self.engine.drain()?,
            }
            let awaited = awaited.as_deref().filter(|_| self.engine.is_waiting());
            progress.show(self.armed.elapsed(), self.engine.events(), self.engine.file_bytes(), awaited);
        }
    }
}

/// Refuses to record without the capabilities that the kernel asks for, and names the missing ones.
pub fn check_permitted(files: &dyn Files) -> Result<(), Failure> {
    let status = files.read("/proc/self/status".as_ref()).unwrap_or_default();
    let missing = CapabilitySet::effective_from_status(&status).missing_to_record();
    if missing.is_empty() {
        return Ok(());
    }
    let missing: Vec<_> = missing.iter().map(|capability| capability.name()).collect();
    Err(Failure::unavailable(format!(
        "recording needs {}: run with sudo, or give the binary capabilities as `wallprof doctor` says",
        missing.join(" and ")
    )))
}

pub(super) fn watched(target: &Target) -> Watched {
    match target {
        Target::Given(given) if given.can_end() => Watched::given(&given.processes, &given.threads),
        Target::Given(_) | Target::System | Target::Command => Watched::Nothing,
    }
}

fn nothing_recorded(target: &Target) -> String {
    match target {
        Target::Given(given) if !given.names.is_empty() => format!(
            "nothing was recorded: no process or thread named {} started (`ps -eL -o comm` lists the running ones)",
            given.names.join(" or ")
        ),
        _ => "nothing was recorded: no thread of the target ran".into(),
    }
}

/// Ends a command that outlives the recording by SIGTERM, as perf does. A further signal to the recorder
/// kills it.
pub(super) fn end_command(command: &mut RunningCommand, signals: &StopSignals) -> io::Result<ExitStatus> {
    if let Some(status) = command.ended()? {
        return Ok(status);
    }
    command.signal(Signal::TERM);
    loop {
        ready(&[command.pidfd(), signals.as_fd()], None)?;
        if let Some(status) = command.ended()? {
            return Ok(status);
        }
        if signals.take() {
            command.signal(Signal::KILL);
        }
    }
}

/// The status of the command; 0 for one that this program ended, because the recording was over.
pub(super) fn code(reason: EndReason, status: Option<ExitStatus>) -> u8 {
    match status {
        Some(status) if reason != EndReason::CommandEnded && was_ended_by_signal(status) => 0,
        Some(status) => code_from_status(status),
        None => 0,
    }
}

fn was_ended_by_signal(status: ExitStatus) -> bool {
    let signals = [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL].map(Signal::as_raw);
    status.signal().is_some_and(|signal| signals.contains(&signal))
}

fn failed(what: &str, error: &io::Error) -> Failure {
    Failure::failed(format!("cannot {what}: {error}: record again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_the_command_passes_through() {
        let ended = |wait_status| code(EndReason::CommandEnded, Some(ExitStatus::from_raw(wait_status)));
        assert_eq!([ended(0), ended(7 << 8), ended(15), ended(9)], [0, 7, 143, 137]);
        assert_eq!(code(EndReason::Duration, None), 0);
    }

    #[test]
    fn command_that_the_recorder_ended_is_a_success() {
        let ended = |wait_status| code(EndReason::Signal, Some(ExitStatus::from_raw(wait_status)));
        assert_eq!([ended(2), ended(15), ended(9)], [0, 0, 0]);
        assert_eq!([ended(7 << 8), ended(11)], [7, 139], "its own status still counts");
    }
}
