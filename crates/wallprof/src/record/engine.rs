// SPDX-License-Identifier: Apache-2.0
//! The probes, the symbols and the recording, behind one small interface for `record` and `watch`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use wallprof_debuginfod::Downloads;
use wallprof_live::{Flushed, MOST_SPAN_HITS, Pending, Session, SessionError, run_beside_others};
use wallprof_model::profile::{KeptStall, RecordingInfo};
use wallprof_model::{BUSY, ClockAnchor, ClockMap, Event, Mark, MonoNs};
use wallprof_probe::events::{PerfEventSpec, find_tracefs};
use wallprof_probe::facts::files::{Files, HostFiles};
use wallprof_probe::memory;
use wallprof_probe::{PrivateTracefs, ProbeOptions, SpanProbes, TargetSet, Targets, UserStacks, try_event};
use wallprof_recording::{Recorder, RecordingStart, Summary};
use wallprof_symbols::{DebugFileServer, KernelSymbols, SpanTarget, files_of_program};

use super::check;
use super::held::find_program;
use super::host;
use super::options::RecordOptions;
use super::placement;
use super::target::{GivenTargets, Target, name_globs};
use crate::args::CallGraph;
use crate::debug_downloads;
use crate::failure::{Exit, Failure, say};
use crate::rights::as_caller;
use crate::span_options::{self, ProbedFile};

/// The checked options, before anything is created.
pub struct Setup<'a> {
    pub options: &'a RecordOptions,
    events: Vec<PerfEventSpec>,
    targets: Option<Targets>,
    spans: Vec<(SpanProbes, ProbedFile)>,
    command: String,
}

/// Armed probes and the recording they fill.
pub struct Engine {
    session: Session,
    recorder: Recorder,
    /// Downloads of debug files; none for a recording of bounded size.
    downloads: Option<Arc<Downloads>>,
    /// Called with each event before the recording takes it.
    observer: Box<dyn FnMut(&Event)>,
    target: String,
    /// By number of `--span`.
    spans: Vec<(SpanTarget, ProbedFile)>,
    /// Set by signals that end the run: they also end the reading of files for names.
    interrupted: Arc<AtomicBool>,
    clock: ClockMap,
    /// The start, until it is in the file.
    unwritten_start: Option<MonoNs>,
    events: u64,
    /// The end of the seconds that the observer has and the file has not.
    uncommitted: Option<MonoNs>,
    /// The time of the last commit, and the events until then.
    committed: Instant,
    events_committed: u64,
    file_bytes: u64,
}

/// A commit takes 3 to 8 ms even for a second without events, and the key that writes a recording makes one.
const LONGEST_UNCOMMITTED: Duration = Duration::from_secs(30);
/// Some megabytes.
const MOST_UNCOMMITTED: u64 = 20_000;

impl<'a> Setup<'a> {
    pub fn new(options: &'a RecordOptions, files: &dyn Files) -> Result<Self, Failure> {
        let mut private = None;
        let mount = || {
            private = PrivateTracefs::mount().ok();
            private.as_ref().map(PrivateTracefs::path)
        };
        let events = check::events(options, files, find_tracefs(files), mount)?;
        for event in &events {
            try_event(event, options.sample_hz).map_err(failure_from_session)?;
        }
        let targets = match &options.target {
            Target::Given(given) => Some(Targets::Given(target_set(given, files)?)),
            Target::System => Some(Targets::Everything),
            Target::Command => None,
        };
        let spans = span_options::find(&options.spans.targets)?;
        Ok(Setup { options, events, targets, spans, command: recorded_name(options, files) })
    }
}

impl Engine {
    /// Loads the probes and creates the recording; `command` is the pid of the held command. Nothing is
    /// measured yet.
    pub fn prepare(setup: Setup, command: Option<u32>) -> Result<Self, Failure> {
        memory::keep_little();
        run_beside_others();
        placement::place(setup.options, &HostFiles)?;
        // Reading the kernel's symbols takes about as long as loading the probes: do both at once.
        let kernel_symbols = std::thread::spawn(KernelSymbols::load);
        let options = setup.options;
        let everything_started = || command.map_or(Targets::Everything, Targets::Command);
        let names: Vec<String> = setup.events.iter().map(|event| event.name.clone()).collect();
        let (spans, probed_files): (_, Vec<ProbedFile>) = setup.spans.into_iter().unzip();
        let probes = ProbeOptions {
            targets: setup.targets.unwrap_or_else(everything_started),
            cpus: options.cpus.clone(),
            sample_hz: options.sample_hz,
            events: setup.events,
            min_stall_ns: options.min_stall_ns,
            busy_budget_ns: options.budgets.get(BUSY).copied(),
            guarded: options.guarded.cpus.clone(),
            spans,
            loops: options.spans.loops,
            user_stacks: match options.call_graph {
                CallGraph::Fp => UserStacks::FramePointers,
                CallGraph::Auto | CallGraph::Dwarf | CallGraph::Lbr => UserStacks::Tables,
            },
        };
        let mut session = Session::load(&probes, expected_files(options), Arc::clone(&options.rules) as _)
            .map_err(failure_from_session)?;
        session.set_rules(Arc::clone(&options.rules));
        session.set_budgets(options.budgets.clone());
        session.set_span_kinds(span_options::kinds(&options.spans.targets));
        let guarded = options.guarded.clone();
        session.allow(Box::new(move |name| guarded.allows(name)));
        match kernel_symbols.join() {
            Ok(Ok(symbols)) => session.set_kernel_symbols(Arc::new(symbols)),
            Ok(Err(error)) => say(&format!("kernel functions will have no names: {error}")),
            Err(_) => say("kernel functions will have no names: reading /proc/kallsyms failed"),
        }
        let start = RecordingStart {
            start: session.clock().mono,
            clock: Some(session.clock()),
            command: setup.command.clone(),
            labels: options.labels.clone(),
            budgets: options.budgets.clone(),
            min_stall_ns: options.min_stall_ns,
            has_turns: options.spans.loops,
            retention: options.retention,
            sample_period_ns: 1_000_000_000u64.checked_div(options.sample_hz.into()),
            ..host::recording_start()
        };
        let recorder = as_caller(|| Recorder::create(&options.output, &start))?;
        let downloads = match options.retention {
            Some(_) => None,
            None => debug_downloads::start(),
        };
        if options.retention.is_some() {
            session.emit_again();
        }
        if let Some(downloads) = &downloads {
            let server: Arc<dyn DebugFileServer> = Arc::<Downloads>::clone(downloads);
            session.set_debug_server(server);
        }
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted)).map_err(|error| {
                Failure::failed(format!("cannot handle signals: {error}: start it again"))
            })?;
        }
        session.stop_naming_when(Arc::clone(&interrupted));
        let mut engine = Engine {
            interrupted,
            clock: ClockMap::new(vec![session.clock()]),
            session,
            recorder,
            downloads,
            observer: Box::new(|_| {}),
            target: setup.command,
            spans: options.spans.targets.iter().cloned().zip(probed_files).collect(),
            unwritten_start: None,
            events: 0,
            uncommitted: None,
            committed: Instant::now(),
            events_committed: 0,
            file_bytes: 0,
        };
        engine.feed(|_, emit| {
            for (index, name) in names.into_iter().enumerate() {
                emit(Event::EventName { index: index as u16, name });
            }
            Ok(())
        })?;
        Ok(engine)
    }

    /// Adds an event of the application.
    pub fn mark(&mut self, mark: Mark) -> Result<(), Failure> {
        self.feed(|_, emit| {
            emit(Event::Mark(mark));
            Ok(())
        })
    }

    /// Starts to measure. The recording starts now; [`Self::report_existing_threads`] writes that, as a held command
    /// does not wait for the disk.
    pub fn arm(&mut self) {
        self.unwritten_start = Some(self.session.arm());
    }

    /// Writes the start, and the threads that exist already.
    pub fn report_existing_threads(&mut self) -> Result<(), Failure> {
        if let Some(start) = self.unwritten_start.take() {
            self.recorder.start_at(start)?;
        }
        self.feed(Session::emit_threads)
    }

    /// Drains the rings, and flushes the complete seconds.
    pub fn drain(&mut self) -> Result<(), Failure> {
        self.drain_and_flush_if(&|_| true).map(drop)
    }

    /// Drains the rings, and flushes the complete seconds if `is_due`. Returns the time up to which
    /// everything is written, after a flush.
    pub fn drain_and_flush_if(
        &mut self,
        is_due: &dyn Fn(&Pending) -> bool,
    ) -> Result<Option<MonoNs>, Failure> {
        let flushed = self.feed(|session, emit| session.drain(is_due, emit))?;
        self.report_removed_spans();
        flushed.map_or(Ok(()), |until| self.commit(until))?;
        Ok(flushed)
    }

    /// Drains the rings, and flushes the complete seconds to the observer, their sums only if `is_due`
    /// ([`Session::drain_ledgers`]). The file gets several seconds at once: those with sums, at [`LONGEST_UNCOMMITTED`]
    /// after its last commit, with [`MOST_UNCOMMITTED`] events, or by [`Self::commit_flushed`].
    pub fn drain_and_observe(
        &mut self,
        is_due: &dyn Fn(&Pending) -> bool,
    ) -> Result<Option<Flushed>, Failure> {
        let flushed = self.feed(|session, emit| session.drain_ledgers(is_due, emit))?;
        self.report_removed_spans();
        self.uncommitted = flushed.map(|flushed| flushed.until).or(self.uncommitted);
        let is_late = self.committed.elapsed() >= LONGEST_UNCOMMITTED;
        let has_many = self.events - self.events_committed >= MOST_UNCOMMITTED;
        if flushed.is_some_and(|flushed| flushed.sums) && (is_late || has_many) {
            self.commit_observed()?;
        }
        Ok(flushed)
    }

    /// Commits the seconds that were flushed to the observer, with their sums.
    pub fn commit_flushed(&mut self) -> Result<(), Failure> {
        self.feed(Session::emit_sums)?;
        self.commit_observed()
    }

    fn commit_observed(&mut self) -> Result<(), Failure> {
        self.uncommitted.map_or(Ok(()), |until| self.commit(until))
    }

    fn report_removed_spans(&mut self) {
        for (number, hits) in self.session.take_removed_spans() {
            if let Some((span, _)) = self.spans.get(number) {
                say(&format!(
                    "--span {span} was hit {hits} times a second, and its probes are removed: each hit costs the \
                     program a microsecond or more, so choose a place that it passes at most {MOST_SPAN_HITS} times \
                     a second"
                ));
            }
        }
    }

    /// Whether complete seconds may stay pending. That costs a record for each thread and second.
    pub fn keep_seconds_pending(&mut self, wanted: bool) {
        self.session.send_seconds(wanted);
    }

    /// Sets the observer of all further events, including those that cannot be written.
    pub fn observe(&mut self, observer: impl FnMut(&Event) + 'static) {
        self.observer = Box::new(observer);
    }

    /// Stops measuring, and flushes everything so far. The probes stay attached.
    pub fn pause(&mut self) -> Result<(), Failure> {
        let end = self.feed(Session::pause)?;
        self.commit(end)
    }

    /// Measures again.
    pub fn resume(&mut self) -> Result<(), Failure> {
        self.feed(Session::resume).map(drop)
    }

    pub fn is_paused(&self) -> bool {
        self.session.is_paused()
    }

    /// Sets the shortest wait or fault that is a stall.
    pub fn set_min_stall(&mut self, min_stall_ns: u64) -> Result<(), Failure> {
        self.session.set_min_stall(min_stall_ns);
        Ok(self.recorder.set_min_stall(min_stall_ns)?)
    }

    /// Sets the pace of stacks: one sample in `stride`, and each wait of at least `stack_ns`.
    pub fn set_pace(&mut self, stride: u32, stack_ns: u64) {
        self.session.set_pace(stride, stack_ns);
    }

    /// Collects the ids of recorded stalls for [`Self::take_kept_stalls`].
    pub fn collect_kept_stalls(&mut self) {
        self.recorder.keep_stall_numbers();
    }

    /// The recorded stalls since the last call.
    pub fn take_kept_stalls(&mut self) -> Vec<KeptStall> {
        self.recorder.take_kept_stalls()
    }

    /// The clock map, from the last readings of both clocks.
    pub fn clock(&self) -> &ClockMap {
        &self.clock
    }

    /// The name of the target.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The file of the recording.
    pub fn path(&self) -> PathBuf {
        self.recorder.path().to_owned()
    }

    /// Whether no recorded thread is known to be alive.
    pub fn is_waiting(&self) -> bool {
        self.session.living_threads() == 0
    }

    /// The number of events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The size of the file and its journal after the last commit.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Disarms, drains the rest, and completes the file.
    pub fn finish(self) -> Result<Summary, Failure> {
        let Engine { session, mut recorder, downloads, interrupted, spans, .. } = self;
        for (span, file) in spans.iter().filter(|(_, file)| file.is_replaced()) {
            say(&format!(
                "{} was replaced while recording, so that programs which started after that have no spans of --span \
                 {span}: record again",
                file.path().display()
            ));
        }
        // The signal that ended the recording must not end the naming of frames; the next one does.
        interrupted.store(false, Ordering::Relaxed);
        let mut written = Ok(());
        let end = session.finish(&mut |event| {
            if written.is_ok() {
                written = recorder.take(event);
            }
        });
        let end = end.map_err(failure_from_session)?;
        written?;
        if let Some(downloads) = downloads {
            debug_downloads::print_outcome(&downloads, recorder.path());
        }
        Ok(recorder.finish(end)?)
    }

    fn commit(&mut self, until: MonoNs) -> Result<(), Failure> {
        self.recorder.commit(until)?;
        (self.uncommitted, self.committed, self.events_committed) = (None, Instant::now(), self.events);
        let forgotten = self.recorder.take_forgotten();
        self.session.forget(&forgotten);
        self.file_bytes = file_bytes(self.recorder.path());
        Ok(())
    }

    /// Runs a step of the session, and writes its events to the recording. The first error of either ends the
    /// run.
    fn feed<T>(
        &mut self,
        step: impl FnOnce(&mut Session, &mut dyn FnMut(Event)) -> Result<T, SessionError>,
    ) -> Result<T, Failure> {
        let (recorder, events) = (&mut self.recorder, &mut self.events);
        let (observer, clock) = (&mut self.observer, &mut self.clock);
        let mut written = Ok(());
        let outcome = step(&mut self.session, &mut |event| {
            *events += 1;
            observer(&event);
            if let Event::Clock(anchor) = event {
                add_anchor(clock, anchor);
            }
            if written.is_ok() {
                written = recorder.take(event);
            }
        });
        written?;
        outcome.map_err(failure_from_session)
    }
}

/// Keeps the last two readings, which suffice for current events. Older ones are in the recording.
fn add_anchor(clock: &mut ClockMap, anchor: ClockAnchor) {
    let last = clock.anchors().last().copied();
    *clock = ClockMap::new(last.into_iter().chain([anchor]).collect());
}

/// The targets as the BPF programs need them.
pub fn target_set(given: &GivenTargets, files: &dyn Files) -> Result<TargetSet, Failure> {
    let cgroup = |path: &PathBuf| host::cgroup_target(&check::cgroup(path, files)?, files);
    Ok(TargetSet {
        processes: given.processes.clone(),
        with_children: given.with_children,
        threads: given.threads.clone(),
        cgroup: given.cgroup.as_ref().map(cgroup).transpose()?,
        names: name_globs(&given.names)?,
    })
}

/// Files whose unwind tables are built first: those of the command.
fn expected_files(options: &RecordOptions) -> Vec<PathBuf> {
    if let Some(program) = options.command.as_ref().and_then(|command| command.first()) {
        return find_program(program).map_or_else(|_| Vec::new(), |path| files_of_program(&path));
    }
    // Processes that are waited for by name map the system's libraries, as this program may do.
    let by_name = matches!(&options.target, Target::Given(given) if !given.names.is_empty());
    let own = std::env::current_exe().ok().filter(|_| by_name);
    own.map_or_else(Vec::new, |path| files_of_program(&path).into_iter().skip(1).collect())
}

fn file_bytes(path: &Path) -> u64 {
    let mut journal = path.as_os_str().to_owned();
    journal.push("-wal");
    [path, Path::new(&journal)]
        .iter()
        .filter_map(|path| path.metadata().ok())
        .map(|metadata| metadata.len())
        .sum()
}

/// The name of the target in the recording. Arguments of commands may be secret and are left out.
fn recorded_name(options: &RecordOptions, files: &dyn Files) -> String {
    let comm =
        |id: &u32| files.read(format!("/proc/{id}/comm").as_ref()).map(|name| name.trim_end().to_string());
    let names = |ids: &[u32]| {
        let mut names: Vec<String> = ids.iter().filter_map(|id| comm(id).ok()).collect();
        names.dedup();
        names.join(",")
    };
    match &options.target {
        Target::Given(given) => {
            let ids: Vec<u32> = given.processes.iter().chain(&given.threads).copied().collect();
            let cgroup = given.cgroup.iter().map(|path| path.display().to_string());
            let parts = [names(&ids)].into_iter().chain(given.names.iter().cloned()).chain(cgroup);
            parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",")
        }
        Target::System => RecordingInfo::ALL_THREADS.into(),
        Target::Command => {
            let program = options.command.iter().flatten().next().cloned().unwrap_or_default();
            Path::new(&program).file_name().unwrap_or(&program).to_string_lossy().into_owned()
        }
    }
}

pub fn failure_from_session(error: SessionError) -> Failure {
    match error.is_refusal() {
        true => Failure::new(Exit::Unavailable, error),
        false => Failure::failed(error),
    }
}
