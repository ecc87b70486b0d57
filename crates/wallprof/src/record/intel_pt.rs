//! `record --intel-pt`: every call and return of the target, traced by the processor into a perf.data, which the import
//! turns into the recording when the target is done.
//!
//! The perf.data stands beside the recording while it is needed; with `-o FILE.data` it is what was asked for.

use std::fs::File;
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use wallprof_analysis::bytes_from_size;
use wallprof_import::{FoundMapping, MachineFacts, TimeConv, TraceEvents, TraceFacts, TraceFile};
use wallprof_probe::cpus;
use wallprof_probe::facts::files::HostFiles;
use wallprof_probe::intel_pt::{
    OpenError, Pmu, TraceEvent, TraceTargets, Traced, Tracer, anchor_in_ticks, ticks_now,
};
use wallprof_recording::output_place;

use super::check::check_exists;
use super::ending::{EndReason, Ending, StopSignals, Wake};
use super::found::{self, Process};
use super::held::{HeldCommand, RunningCommand};
use super::host;
use super::options::{RecordOptions, Target};
use super::progress::{Progress, armed_line};
use super::run::{check_permitted, code, end_command, watched};
use crate::args::{ImportArgs, TraceMode};
use crate::failure::{Failure, say};
use crate::output::error_from_place;
use crate::rights::as_caller;

/// How long a CPU's pages stay unread: a processor writes some hundred megabytes a second, its buffer holds sixteen.
const TICK: Duration = Duration::from_millis(10);
/// Buffers of the kernel are powers of two from a page on.
const SMALLEST_BUFFER: u64 = 4096;
const LARGEST_BUFFER: u64 = 4 << 30;

/// What the command line says of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    mode: TraceMode,
    buffer_bytes: u64,
}

impl TraceOptions {
    pub fn from_args(mode: TraceMode, buffer: &str) -> Result<Self, Failure> {
        let bytes =
            bytes_from_size(buffer).map_err(|error| Failure::usage(format!("--trace-buffer: {error}")))?;
        if !(SMALLEST_BUFFER..=LARGEST_BUFFER).contains(&bytes) {
            return Err(Failure::usage(format!(
                "--trace-buffer {buffer} is no size for a buffer: give one from 4KiB to 4GiB"
            )));
        }
        Ok(TraceOptions { mode, buffer_bytes: bytes.next_power_of_two() })
    }
}

/// Refuses what a trace has no place for.
fn check_options(options: &RecordOptions) -> Result<(), Failure> {
    if !options.events.is_empty() {
        return Err(Failure::usage(
            "-e does not go with --intel-pt: sample events in a recording of their own",
        ));
    }
    if !options.guarded.cpus.is_empty() {
        return Err(Failure::usage(
            "--guard-cpus does not go with --intel-pt: guard CPUs in a recording of their own",
        ));
    }
    let Target::Given(given) = &options.target else { return Ok(()) };
    let refused = [
        (
            given.cgroup.is_some(),
            "--cgroup does not go with --intel-pt: name its processes (-p PID), or trace everything (-a)",
        ),
        (
            !given.names.is_empty(),
            "--name does not go with --intel-pt: name a process that runs (-p PID), or trace everything (-a)",
        ),
        (
            !given.processes.is_empty() && !given.threads.is_empty(),
            "-p and -t do not go together with --intel-pt: give one of them",
        ),
    ];
    match refused.iter().find(|(is_given, _)| *is_given) {
        Some((_, message)) => Err(Failure::usage(*message)),
        None => Ok(()),
    }
}

/// Records what `options` ask for.
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
    let signals = StopSignals::install().map_err(|error| failed("take signals", &error))?;
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

/// Where the trace is written.
struct Place {
    trace: PathBuf,
    /// A recording is made of it.
    is_intermediate: bool,
}

impl Place {
    fn of(output: &Path) -> Self {
        if output.extension().is_some_and(|extension| extension == "data") {
            return Place { trace: output.to_owned(), is_intermediate: false };
        }
        let mut trace = output.as_os_str().to_owned();
        trace.push(".perf.data");
        Place { trace: trace.into(), is_intermediate: true }
    }

    /// What was traced is not lost with whatever failed.
    fn kept(&self, failure: Failure) -> Failure {
        match self.trace.metadata() {
            Ok(metadata) if metadata.len() > 0 => Failure {
                message: format!("{} (the trace is kept as {})", failure.message, self.trace.display()),
                ..failure
            },
            _ => failure,
        }
    }
}

/// The processor's side and the file's.
struct Trace<'a> {
    tracer: Tracer,
    file: TraceFile<BufWriter<File>>,
    path: &'a Path,
    records: u64,
}

impl<'a> Trace<'a> {
    fn create(path: &'a Path, tracer: Tracer, facts: &TraceFacts) -> Result<Self, Failure> {
        let ids = tracer.ids().map_err(|error| failed("number the trace's events", &error))?;
        let events = TraceEvents { attr: tracer.attr(), ids };
        let create = || {
            // A trace says more of a program than anybody but its owner should read.
            let place = output_place(path).map_err(error_from_place)?;
            let no_link = OFlags::NOFOLLOW.bits().cast_signed();
            let mut options = File::options();
            options.write(true).create(true).truncate(true).mode(0o600).custom_flags(no_link);
            let file = options.open(place)?;
            TraceFile::create(BufWriter::with_capacity(1 << 20, file), &events, facts)
        };
        let file = as_caller(create).map_err(|error| unwritable(path, &error))?;
        Ok(Trace { tracer, file, path, records: 0 })
    }

    /// Writes what has come.
    fn read(&mut self) -> Result<(), Failure> {
        let Trace { tracer, file, records, .. } = self;
        let read = tracer.read(&mut |traced| write(file, records, traced));
        read.and_then(|()| file.finish_round()).map_err(|error| unwritable(self.path, &error))
    }

    /// Writes what is left in the buffers, when the trace has ended.
    fn read_last(&mut self) -> Result<(), Failure> {
        let Trace { tracer, file, records, .. } = self;
        let read = tracer.read_last(&mut |traced| write(file, records, traced));
        read.map_err(|error| unwritable(self.path, &error))
    }

    /// Writes who is there already, with what they have mapped.
    fn write_found(&mut self, processes: impl Iterator<Item = Process>) -> Result<(), Failure> {
        let file = &mut self.file;
        let mut write = |process: &Process| -> io::Result<()> {
            for (tid, comm) in &process.threads {
                file.found_thread(process.pid, *tid, comm)?;
            }
            process.maps.iter().try_for_each(|line| {
                let mapping = FoundMapping {
                    start: line.start,
                    len: line.end - line.start,
                    file_offset: line.file_offset,
                    inode: line.inode,
                    path: line.path.as_encoded_bytes(),
                };
                file.found_mapping(process.pid, &mapping)
            })
        };
        let mut processes = processes;
        processes.try_for_each(|process| write(&process)).map_err(|error| unwritable(self.path, &error))
    }
}

fn write(file: &mut TraceFile<BufWriter<File>>, records: &mut u64, traced: Traced<'_>) -> io::Result<()> {
    match traced {
        Traced::Record(record) => {
            *records += 1;
            file.record(record)
        }
        Traced::Trace { cpu, piece } => file.trace(cpu, piece.offset, piece.parts, ticks_now()),
    }
}

/// A recording under way.
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
            say(&format!("the kernel had room for buffers of {had} KiB only: more of the trace may be lost"));
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

    /// A command is traced from its first instruction on, everybody else from now.
    fn arm(&mut self, held: Option<HeldCommand>, started: Instant) -> Result<(), Failure> {
        if self.options.target != Target::Command {
            self.trace.tracer.enable().map_err(|error| failed("start the trace", &error))?;
        }
        self.armed = Instant::now();
        self.command = held.map(HeldCommand::release).transpose().map_err(Failure::failed)?;
        say(&armed_line(self.options, self.armed - started));
        Ok(())
    }

    /// Follows the target to its end; returns the code to end with.
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

/// The threads there are now; those to come are followed by the kernel.
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

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!(
        "cannot write the trace to {}: {error}: give -o a place with room for it",
        path.display()
    ))
}

fn failed(what: &str, error: &io::Error) -> Failure {
    Failure::failed(format!("cannot {what}: {error}: record again"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::failure::Exit;
    use crate::guarded::Guarded;
    use crate::record::options::GivenTargets;

    #[test]
    fn buffers_are_powers_of_two() {
        let bytes = |text| TraceOptions::from_args(TraceMode::Full, text).map(|options| options.buffer_bytes);
        assert_eq!(bytes("16MiB"), Ok(16 << 20));
        assert_eq!(bytes("5000"), Ok(8192));
        for wrong in ["0", "1k", "5GiB", "much"] {
            let failure = bytes(wrong).unwrap_err();
            assert!(failure.exit == Exit::Usage && failure.message.starts_with("--trace-buffer"), "{wrong}");
        }
    }

    #[test]
    fn the_trace_is_what_was_asked_for_or_stands_beside_it() {
        let data = Place::of("a/trace.data".as_ref());
        assert_eq!((data.trace.as_path(), data.is_intermediate), ("a/trace.data".as_ref(), false));
        let recording = Place::of("a/calls.db".as_ref());
        assert_eq!(recording.trace, PathBuf::from("a/calls.db.perf.data"));
        assert!(recording.is_intermediate);
        let failure = Failure::failed("it broke");
        assert_eq!(recording.kept(failure.clone()), failure, "nothing was written");
    }

    #[test]
    fn what_has_no_place_in_a_trace_is_refused() {
        let output = Path::new("x.db");
        let with_event =
            RecordOptions { events: vec!["cs".into()], ..RecordOptions::of(Target::System, output) };
        let guarded = Guarded::from_options(Some("1"), &[]).expect("a CPU");
        let with_guard = RecordOptions { guarded, ..RecordOptions::of(Target::System, output) };
        let process_and_thread =
            Target::Given(GivenTargets { processes: vec![1], threads: vec![1], ..GivenTargets::default() });
        for options in [
            with_event,
            with_guard,
            RecordOptions::of(Target::cgroup("/x"), output),
            RecordOptions::of(Target::names(&["x"]), output),
            RecordOptions::of(process_and_thread, output),
        ] {
            assert_eq!(check_options(&options).unwrap_err().exit, Exit::Usage);
        }
        assert_eq!(check_options(&RecordOptions::of(Target::System, output)), Ok(()));
    }

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
