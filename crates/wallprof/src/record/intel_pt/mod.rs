// SPDX-License-Identifier: Apache-2.0
//! `record --intel-pt`: the processor traces every call and return of the target into a perf.data. At the
//! end, the import converts it into the recording.
//!
//! The perf.data is a temporary file beside the recording; with `-o FILE.data` it is the output.

mod options;
mod place;
mod trace;

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use wallprof_import::{MachineFacts, TimeConv, TraceFacts};
use wallprof_probe::cpus;
use wallprof_probe::facts::files::HostFiles;
use wallprof_probe::intel_pt::{OpenError, Pmu, TraceEvent, TraceTargets, Tracer, anchor_in_ticks};

use super::check::check_exists;
use super::ending::{EndReason, Ending, StopSignals, Wake};
use super::found;
use super::held::{HeldCommand, RunningCommand};
use super::host;
use super::options::RecordOptions;
use super::progress::{Progress, armed_line};
use super::run::{check_permitted, code, end_command, watched};
use super::target::Target;
use crate::args::{ImportArgs, TraceMode};
use crate::failure::{Failure, say};
pub use options::TraceOptions;
use options::check_options;
use place::Place;
use trace::{Trace, unwritable};

/// The interval of reading: a processor writes some hundred megabytes a second, and its buffer has 16 MiB.
const TICK: Duration = Duration::from_millis(10);

/// Makes the recording of `options`.
pub fn record(options: &RecordOptions, trace: TraceOptions, started: Instant) -> Result<ExitCode, Failure> {
    check_options(options)?;
    check_exists(options, &HostFiles)?;
    let pmu = Pmu::read(&HostFiles).map_err(Failure::unavailable)?;
    check_permitted(&HostFiles)?;
    let event = TraceEvent {
        kind: pmu.kind,
        config: pmu.config,
        buffer_bytes: trace.buffer_bytes,
        keeps_last: trace.mode == TraceMode::Snapshot,
    };
    let place = Place::of(&options.output);
    let signals = StopSignals::install().map_err(|error| failed("handle signals", &error))?;
    let recorded = Recording::start(options, &pmu, &event, &place.trace, &signals, started)?.complete();
    let status = recorded.map_err(|failure| place.kept(failure))?;
    if place.is_intermediate {
        let decoded = crate::import::run(&ImportArgs {
            file: Some(place.trace.clone()),
            output: options.output.clone(),
            ..ImportArgs::default()
        });
        decoded.map_err(|failure| place.kept(failure))?;
        let _ = std::fs::remove_file(&place.trace);
    }
    Ok(ExitCode::from(status))
}

/// A recording in progress.
struct Recording<'a> {
    options: &'a RecordOptions,
    signals: &'a StopSignals,
    trace: Trace<'a>,
    time_conv: Option<TimeConv>,
    command: Option<RunningCommand>,
    armed: Instant,
}

impl<'a> Recording<'a> {
    fn start(
        options: &'a RecordOptions,
        pmu: &Pmu,
        event: &TraceEvent,
        path: &'a Path,
        signals: &'a StopSignals,
        started: Instant,
    ) -> Result<Self, Failure> {
        let held = options.command.as_deref().map(HeldCommand::start).transpose().map_err(Failure::failed)?;
        let targets = targets(&options.target, held.as_ref().map(HeldCommand::pid));
        let cpus = options.cpus.clone().unwrap_or_else(cpus::online);
        let tracer = Tracer::open(event, &targets, &cpus).map_err(failure_from_open)?;
        if tracer.buffer_bytes() < event.buffer_bytes {
            let had = tracer.buffer_bytes() >> 10;
            say(&format!("the kernel allowed buffers of {had} KiB only: more of the trace may be lost"));
        }
        let time_conv = tracer.tick_numbers().map(|numbers| TimeConv {
            shift: numbers.shift,
            mult: numbers.mult.into(),
            zero: numbers.zero,
        });
        let facts = trace_facts(pmu, event, time_conv, targets == TraceTargets::Everything);
        let mut trace = Trace::create(path, tracer, &facts)?;
        trace.write_found(found::processes(&options.target))?;
        let armed = Instant::now();
        let mut recording = Recording { options, signals, trace, time_conv, command: None, armed };
        recording.arm(held, started)?;
        Ok(recording)
    }

    /// Starts the trace: of a command at its exec, of all other targets now.
    fn arm(&mut self, held: Option<HeldCommand>, started: Instant) -> Result<(), Failure> {
        if self.options.target != Target::Command {
            self.trace.tracer.enable().map_err(|error| failed("start the trace", &error))?;
        }
        self.armed = Instant::now();
        self.command = held.map(HeldCommand::release).transpose().map_err(Failure::failed)?;
        say(&armed_line(self.options, self.armed - started));
        Ok(())
    }

    /// Follows the target to its end; returns the exit code.
    fn complete(mut self) -> Result<u8, Failure> {
        let followed = self.follow();
        let stopped = self.trace.tracer.disable().map_err(|error| failed("end the trace", &error));
        let read = stopped.and_then(|()| self.trace.read()).and_then(|()| self.trace.read_last());
        let status = self.command.as_mut().map(|command| end_command(command, self.signals)).transpose();
        let (reason, ()) = (followed?, read?);
        let status = status.map_err(|error| failed("wait for the command", &error))?;
        let Trace { file, path, .. } = self.trace;
        let machine = machine_facts(self.options, self.time_conv);
        file.finish(&machine).map_err(|error| unwritable(path, &error))?;
        Ok(code(reason, status))
    }

    fn follow(&mut self) -> Result<EndReason, Failure> {
        let mut progress = Progress::on_stderr();
        let mut ending = Ending {
            signals: self.signals,
            deadline: self.options.duration.and_then(|duration| self.armed.checked_add(duration)),
            command: self.command.as_ref().map(RunningCommand::pidfd),
            watched: watched(&self.options.target),
        };
        loop {
            let wake = ending.wait(Instant::now() + TICK);
            match wake.map_err(|error| failed("wait for the trace", &error))? {
                Wake::End(reason) => {
                    progress.clear();
                    return Ok(reason);
                }
                Wake::Tick => self.trace.read()?,
            }
            let written = self.trace.file.written().unwrap_or(0);
            progress.show(self.armed.elapsed(), self.trace.records, written, None);
        }
    }
}

/// The existing threads of the target; the kernel follows later ones.
fn targets(target: &Target, command: Option<u32>) -> TraceTargets {
    match target {
        Target::System => TraceTargets::Everything,
        Target::Given(given) if !given.threads.is_empty() => TraceTargets::Threads(given.threads.clone()),
        Target::Given(given) => {
            let tids = found::started_by(given).into_iter().flat_map(found::threads).collect();
            match given.with_children {
                true => TraceTargets::Trees(tids),
                false => TraceTargets::Processes(tids),
            }
        }
        Target::Command => TraceTargets::Command(command.unwrap_or_default()),
    }
}

fn trace_facts(pmu: &Pmu, event: &TraceEvent, time_conv: Option<TimeConv>, of_cpus: bool) -> TraceFacts {
    TraceFacts {
        pmu: pmu.kind,
        time_conv,
        time_stamps: pmu.time_stamps,
        no_return_compression: pmu.no_return_compression,
        mtc: pmu.mtc,
        mtc_period: pmu.mtc_period,
        cycles: pmu.cycles,
        tsc_to_crystal: pmu.tsc_to_crystal,
        max_non_turbo_ratio: pmu.max_non_turbo_ratio,
        is_snapshot: event.keeps_last,
        of_cpus,
    }
}

fn machine_facts(options: &RecordOptions, time_conv: Option<TimeConv>) -> MachineFacts {
    let machine = host::recording_start();
    let program = options.command.iter().flatten().next();
    let program = program.map(|program| ["--".to_owned(), program.to_string_lossy().into_owned()]);
    let words = ["wallprof", "record", "--intel-pt"].map(str::to_owned);
    MachineFacts {
        hostname: machine.hostname,
        kernel: machine.kernel,
        arch: machine.arch,
        cpus: machine.cpus,
        command_line: words.into_iter().chain(program.into_iter().flatten()).collect(),
        clock: time_conv.map(|time_conv| {
            let (ticks, epoch) = anchor_in_ticks();
            (time_conv.ns_from_ticks(ticks), epoch.0)
        }),
    }
}

fn failure_from_open(error: OpenError) -> Failure {
    match error.is_refusal() {
        true => Failure::unavailable(error),
        false => Failure::failed(error),
    }
}

fn failed(what: &str, error: &io::Error) -> Failure {
    Failure::failed(format!("cannot {what}: {error}: record again"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// Without the hardware: everything but the processor's own bytes, through a real file and a real import.
    #[test]
    fn records_of_a_command_become_a_recording() {
        const RECORDS_ONLY: TraceEvent =
            TraceEvent { kind: 1, config: 9, buffer_bytes: 0, keeps_last: false };
        let folder = tempfile::tempdir().unwrap();
        let (trace, output) = (folder.path().join("t.data"), folder.path().join("t.db"));
        let pmu = Pmu { kind: RECORDS_ONLY.kind, ..Pmu::default() };
        let options = RecordOptions {
            duration: Some(Duration::from_millis(1)),
            ..RecordOptions::of(own_thread(), &trace)
        };
        let signals = StopSignals::install().unwrap();
        let recording =
            Recording::start(&options, &pmu, &RECORDS_ONLY, &trace, &signals, Instant::now()).unwrap();
        assert!(std::process::Command::new("true").status().unwrap().success());
        assert_eq!(recording.complete(), Ok(0));
        assert_eq!(trace.metadata().unwrap().mode() & 0o777, 0o600);
        let args = ImportArgs { file: Some(trace.clone()), output: output.clone(), ..ImportArgs::default() };
        crate::import::run(&args).unwrap();
        let recording = wallprof_recording::Recording::open(&output).unwrap();
        let info = recording.info().unwrap();
        assert_eq!((info.source.as_str(), info.hostname.is_empty()), ("intel-pt", false));
        let threads = recording.threads().unwrap();
        assert!(threads.iter().any(|thread| thread.info.tid == own_tid()), "{threads:?}");
    }

    fn own_tid() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
    }

    fn own_thread() -> Target {
        Target::threads(&[own_tid()])
    }
}
