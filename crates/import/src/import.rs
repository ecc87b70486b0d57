//! From an input to a sink: reads records, puts them into the order of time, hands them to the session.
//!
//! Streams: whatever the input's size, what is in memory is bounded.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wallprof_intel_pt::replay::{Frame, Sides};
use wallprof_intel_pt::{ThreadId, TimeConv};
use wallprof_model::{Event, Loss, ModuleId, MonoNs};
use wallprof_symbols::{FileSearch, KernelSymbols, ResolverOptions, StoredProcesses};

use crate::calls::tell_calls;
use crate::error::{ImportError, Refusal};
use crate::format::attr::Attr;
use crate::format::bytes::{Bytes, lossy};
use crate::format::facts::feature;
use crate::format::header::{
    EventIds, FileHeader, HeaderError, Kind, STREAM_HEADER, SectionReader, kind_from_bytes, read_at,
};
use crate::format::record::{RawRecord, Record, attr_record, kind};
use crate::format::records::{Item, ReadError, Records, read_up_to};
use crate::format::trace::time_conv_record;
use crate::format::tracing::Formats;
use crate::input::open_input;
use crate::intel_pt::{
    self, DecodeError, Frames, Job, Kernel, KernelFiles, Prepared, Programs, Traced, Watcher,
};
use crate::options::{ImportOptions, Outcome, RecordingFacts, TraceWindow};
use crate::rounds::{Rounds, Waiting};
use crate::script;
use crate::session::Session;

/// Events that are handed on at once.
const BATCH: usize = 1024;
/// Recorded time between two calls of [`Sink::settled`].
const SETTLE_NS: u64 = 1_000_000_000;
/// Input between two calls of [`Sink::progress`].
const PROGRESS_BYTES: u64 = 4 << 20;

/// What takes in an import.
pub trait Sink {
    type Error;

    /// Before the first event.
    fn start(&mut self, facts: &RecordingFacts) -> Result<(), Self::Error>;

    fn take(&mut self, event: Event) -> Result<(), Self::Error>;

    /// About a second of recorded time has passed: everything up to there was told.
    fn settled(&mut self, until: MonoNs) -> Result<(), Self::Error>;

    /// Which part of a hardware trace to decode; asked once, after `start`.
    fn window(&mut self) -> TraceWindow {
        TraceWindow::default()
    }

    /// So many bytes were read, of so many where that is known.
    fn progress(&mut self, bytes: u64, of: Option<u64>);
}

/// Imports the perf.data file at `path`, or the text that `perf script` made of one; `-` is standard input.
///
/// What is recorded up to a damage is kept, and the damage counted among the losses. `Ok` without threads: there is
/// nothing in it; the sink was perhaps never started.
pub fn import<S: Sink>(
    path: &Path,
    options: &ImportOptions,
    sink: &mut S,
) -> Result<Outcome, ImportError<S::Error>> {
    let unreadable = |cause| ImportError::unreadable(path, cause);
    if path == Path::new("-") {
        let input = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned().map_err(unreadable)?;
        return Import::new(path, options, sink).run(File::from(input));
    }
    // `perf record --kcore` makes a folder of the recording and the kernel.
    let inner = path.join("data");
    let inner = (path.is_dir() && intel_pt::kernel_folder(&inner).is_some()).then_some(inner);
    if path.is_dir() && inner.is_none() {
        return Err(ImportError::refused(path, Refusal::Folder));
    }
    let place = inner.as_deref().unwrap_or(path);
    let file = open_input(place).map_err(unreadable)?;
    let import = Import { kernel: KernelFiles::beside(place), ..Import::new(path, options, sink) };
    import.run(file)
}

/// Imports what a stream of perf.data, as `perf record -o -` writes it, holds in memory.
pub fn import_stream<S: Sink>(
    bytes: &[u8],
    options: &ImportOptions,
    sink: &mut S,
) -> Result<Outcome, ImportError<S::Error>> {
    Import::new(Path::new("-"), options, sink).run_stream(bytes)
}

/// One import under way.
struct Import<'a, S> {
    input: &'a Path,
    session: Session,
    teller: Teller<'a, S>,
    /// Where a hardware trace can be read, and the position of the first record there; not of a pipe.
    trace: Option<(File, u64)>,
    kernel: Option<KernelFiles>,
    window: TraceWindow,
}

/// Hands events on.
struct Teller<'a, S> {
    sink: &'a mut S,
    started: bool,
    settled: u64,
    progress: u64,
    total: Option<u64>,
}

impl<'a, S: Sink> Import<'a, S> {
    fn new(input: &'a Path, options: &ImportOptions, sink: &'a mut S) -> Self {
        let teller = Teller { sink, started: false, settled: 0, progress: 0, total: None };
        let session = Session::new(options.clone());
        Import { input, session, teller, trace: None, kernel: None, window: TraceWindow::default() }
    }

    fn run(self, mut file: File) -> Result<Outcome, ImportError<S::Error>> {
        let mut start = [0; STREAM_HEADER];
        let input = self.input.to_owned();
        let unreadable = |cause| ImportError::unreadable(&input, cause);
        let count = read_up_to(&mut file, &mut start).map_err(unreadable)?;
        let kind = match kind_from_bytes(&start) {
            Ok(kind) if count == STREAM_HEADER => kind,
            Ok(_) => return Err(self.refused(HeaderError::Truncated)),
            Err(HeaderError::NotPerfData) => {
                let Import { input, teller, .. } = self;
                return script::import_started(input, start[..count].to_vec(), file, teller.sink);
            }
            Err(error) => return Err(self.refused(error)),
        };
        match kind {
            Kind::Stream if is_regular(&file) => self.run_file_records(file, None),
            Kind::Stream => self.run_records(Records::new(file, None)),
            Kind::File => self.run_file(file),
        }
    }

    fn run_stream(self, bytes: &[u8]) -> Result<Outcome, ImportError<S::Error>> {
        let Some((start, rest)) = bytes.split_first_chunk() else {
            return Err(self.refused(HeaderError::Truncated));
        };
        match kind_from_bytes(start) {
            Ok(Kind::Stream) => self.run_records(Records::new(Cursor::new(rest), None)),
            Ok(Kind::File) => Err(self.refused(HeaderError::FileInPipe)),
            Err(error) => Err(self.refused(error)),
        }
    }

    /// A file has its tables in front of and behind its records.
    fn run_file(mut self, mut file: File) -> Result<Outcome, ImportError<S::Error>> {
        if !is_regular(&file) {
            return Err(self.refused(HeaderError::FileInPipe));
        }
        let header = FileHeader::read(&file);
        let header = header.map_err(|error| self.refused(error))?;
        for event in header.events(&file).map_err(|error| self.refused(error))? {
            self.session.events.add(event);
        }
        self.read_features(&header, &file);
        if !header.is_finished() {
            self.session.lose(Loss::PerfDidNotFinish, 1);
        }
        self.teller.total = file.metadata().ok().map(|metadata| metadata.len());
        let seek = file.seek(SeekFrom::Start(header.data.offset));
        seek.map_err(|cause| ImportError::unreadable(self.input, cause))?;
        self.run_file_records(file, header.is_finished().then_some(header.data.size))
    }

    /// The file stands at its first record.
    fn run_file_records(
        mut self,
        mut file: File,
        limit: Option<u64>,
    ) -> Result<Outcome, ImportError<S::Error>> {
        let trace = file.stream_position().and_then(|base| Ok((file.try_clone()?, base)));
        self.trace = Some(trace.map_err(|cause| ImportError::unreadable(self.input, cause))?);
        self.run_records(Records::of_file(file, limit))
    }

    fn read_features(&mut self, header: &FileHeader, file: &File) {
        for (number, section) in header.features(file) {
            if number == feature::AUXTRACE {
                self.session.intel_pt();
            } else if number == feature::TRACING_DATA {
                let formats = Formats::read(&mut BufReader::new(SectionReader { file, section }));
                self.session.formats = formats.unwrap_or_default();
            } else if feature::IS_READ.contains(&number)
                && let Some(bytes) = read_at(file, section)
            {
                self.session.facts.take(number, &bytes);
            }
        }
    }

    fn run_records<R: Read>(mut self, mut records: Records<R>) -> Result<Outcome, ImportError<S::Error>> {
        let mut rounds = Rounds::default();
        loop {
            self.teller.show(records.position());
            let item = match records.next() {
                Ok(Some(item)) => item,
                Ok(None) => break,
                Err(error) => {
                    self.broken(error)?;
                    break;
                }
            };
            match item {
                Item::Formats(formats) => {
                    self.session.formats = formats;
                    self.session.unsettle();
                }
                Item::Trace(passed) => self.session.trace_piece(passed),
                Item::Record(raw) => self.record(raw, &mut rounds)?,
            }
        }
        self.finish(rounds)
    }

    /// What is left of the input cannot be read; what was read counts.
    fn broken(&mut self, error: ReadError) -> Result<(), ImportError<S::Error>> {
        match error {
            ReadError::Io(cause) => return Err(ImportError::unreadable(self.input, cause)),
            ReadError::Truncated => self.session.lose(Loss::InputTruncated, 1),
            ReadError::Damaged | ReadError::Packed => self.session.lose(Loss::InputDamaged, 1),
        }
        Ok(())
    }

    fn record(&mut self, raw: RawRecord<'_>, rounds: &mut Rounds) -> Result<(), ImportError<S::Error>> {
        let Import { session, teller, .. } = self;
        let told = match raw.kind {
            kind::FINISHED_ROUND => rounds.finish_round(&mut taking(session, teller)),
            kind::FIRST_OF_PERF.. => return self.own_record(raw),
            _ => match session.time_of(raw) {
                Some(time) => {
                    let record = Waiting { kind: raw.kind, misc: raw.misc, body: raw.body.into() };
                    rounds.push(time, record, &mut taking(session, teller))
                }
                None => {
                    session.take(None, raw);
                    teller.tell_some(session)
                }
            },
        };
        told.map_err(ImportError::Sink)
    }

    /// Records that perf adds to those of the kernel.
    fn own_record(&mut self, raw: RawRecord<'_>) -> Result<(), ImportError<S::Error>> {
        let session = &mut self.session;
        match raw.kind {
            kind::HEADER_ATTR => {
                match attr_record(raw.body) {
                    Some((attr, ids)) => session.events.add(EventIds { attr: Attr::from_bytes(attr), ids }),
                    None => session.lose(Loss::RecordsMalformed, 1),
                }
                session.unsettle();
            }
            kind::FEATURE => {
                let mut bytes = Bytes::new(raw.body);
                if let Some(number) = bytes.u64().and_then(|number| u32::try_from(number).ok()) {
                    session.facts.take(number, bytes.take(bytes.len()).unwrap_or_default());
                    session.unsettle();
                }
            }
            kind::ID_INDEX => session.id_index(raw.body),
            kind::TIME_CONV => {
                if let Some(time_conv) = time_conv_record(raw.body) {
                    session.set_time_conv(time_conv);
                }
            }
            _ => return self.described(raw),
        }
        Ok(())
    }

    fn described(&mut self, raw: RawRecord<'_>) -> Result<(), ImportError<S::Error>> {
        let session = &mut self.session;
        match Record::read(raw) {
            Ok(Some(Record::IntelPt { .. })) if self.trace.is_none() => {
                return Err(ImportError::refused(self.input, Refusal::IntelPtInPipe));
            }
            Ok(Some(Record::IntelPt { info, filters })) => session.describe_trace(info, filters),
            Ok(Some(Record::OtherTrace)) => session.lose(Loss::HardwareTraceRecords, 1),
            Ok(Some(Record::EventName { id, name })) => {
                session.events.rename(id, lossy(name));
                session.unsettle();
            }
            Ok(Some(Record::BuildId { path, build_id })) => session.facts.add_build_id(path, build_id),
            Ok(_) => {}
            Err(_) => session.lose(Loss::RecordsMalformed, 1),
        }
        Ok(())
    }

    fn finish(mut self, mut rounds: Rounds) -> Result<Outcome, ImportError<S::Error>> {
        let Import { session, teller, .. } = &mut self;
        rounds.finish(&mut taking(session, teller)).map_err(ImportError::Sink)?;
        session.lose(Loss::RecordsLate, rounds.late());
        let calls = self.decode()?;
        let Import { session, teller, .. } = &mut self;
        session.finish();
        teller.tell_all(session).map_err(ImportError::Sink)?;
        if teller.started {
            let options = resolver_options(session.options());
            let server = session.options().debug_server.clone();
            let stacks = session.stacks();
            if let Some(server) = server {
                stacks.download(server.as_ref(), stacks.unnamed_modules(), &options);
            }
            let tell = |event| teller.sink.take(event);
            let unreadable = stacks.name_all(options, tell).map_err(ImportError::Sink)?;
            if unreadable > 0 {
                let loss = Event::loss(Loss::DebugFilesUnreadable, unreadable);
                teller.sink.take(loss).map_err(ImportError::Sink)?;
                session.lose(Loss::DebugFilesUnreadable, unreadable);
            }
        }
        Ok(Outcome {
            end: session.now(),
            threads: session.threads(),
            samples: session.samples(),
            calls,
            accounted: session.is_accounted(),
            stacks: session.stacks().counts().clone(),
            losses: session.losses().clone(),
        })
    }

    /// Decodes the hardware trace, if there is one, and tells its calls: how many there are.
    fn decode(&mut self) -> Result<Option<u64>, ImportError<S::Error>> {
        let Some((file, base)) = self.trace.take() else { return Ok(None) };
        let Some(prepared) = self.session.prepare_trace() else { return Ok(None) };
        let Import { session, teller, .. } = self;
        teller.tell_all(session).map_err(ImportError::Sink)?;
        if !teller.started {
            return Ok(None);
        }
        self.window = teller.sink.window();
        teller.begin_trace(prepared.size());
        let kernel = self.kernel();
        let Import { input, session, teller, window, .. } = self;
        let resolver = resolver_options(session.options());
        let server = session.options().debug_server.clone();
        let stacks = session.stacks();
        if let Some(server) = server {
            let all = (0..stacks.processes.modules()).map(|index| ModuleId(index as u32));
            stacks.download(server.as_ref(), all, &resolver);
        }
        let processes = std::mem::replace(&mut stacks.processes, StoredProcesses::new(FileSearch::default()));
        let programs = Programs::new(&prepared, &processes, resolver, kernel);
        let told = decode_trace(session, teller, &prepared, &programs, (&file, base), *window);
        drop(programs);
        session.stacks().processes = processes;
        match told {
            Ok(calls) => Ok(Some(calls)),
            Err(DecodeError::Input(cause)) => Err(ImportError::unreadable(input, cause)),
            Err(DecodeError::Watcher(error)) => Err(ImportError::Sink(error)),
        }
    }

    /// The recorded kernel: perf's copy beside the recording, or this machine's if it is the same.
    fn kernel(&mut self) -> Kernel {
        let session = &mut self.session;
        let files = self.kernel.take().unwrap_or(KernelFiles { core: None, symbols: None });
        let symbols = files.symbols.and_then(|path| KernelSymbols::from_path(&path).ok()).map(Arc::new);
        match symbols {
            Some(symbols) => session.stacks().set_kernel_symbols(symbols),
            None => session.find_kernel_symbols(),
        }
        let mut out = std::mem::take(&mut session.out);
        session.stacks().tell_modules(&mut out);
        session.out = out;
        Kernel::new(files.core, session.stacks().kernel_symbols())
    }

    fn refused(&self, why: impl Into<Refusal>) -> ImportError<S::Error> {
        ImportError::refused(self.input, why)
    }
}

fn is_regular(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file())
}

/// Decodes, and tells waits with their stacks, then calls: how many there are.
fn decode_trace<S: Sink>(
    session: &mut Session,
    teller: &mut Teller<'_, S>,
    prepared: &Prepared,
    programs: &Programs<'_>,
    (file, base): (&File, u64),
    window: TraceWindow,
) -> Result<u64, DecodeError<S::Error>> {
    let time_conv = prepared.time_conv;
    let ticks = |moment: MonoNs| time_conv.ticks_from_ns(moment.0);
    let job = Job {
        file,
        base,
        sources: prepared.sources(),
        code: programs,
        time_conv,
        return_compression: prepared.return_compression,
        is_snapshot: prepared.is_snapshot,
        from: window.from.map_or(0, ticks),
        to: window.to.map_or(u64::MAX, ticks),
        has_all_cpus: prepared.has_all_cpus,
        ends: &prepared.ends,
    };
    if let Some(ns) = prepared.resolution_ns {
        session.out.push(Event::CallResolution(ns));
    }
    let mut frames = Frames::new(prepared, programs);
    let exact = HashMap::new();
    let mut departures = Departures { session, teller, frames: &mut frames, time_conv, exact };
    let calls = intel_pt::decode(&job, &mut departures)?;
    if let Some(error) = prepared.take_error() {
        return Err(DecodeError::Input(error));
    }
    if let Some(last) = calls.last {
        session.traced_until(time_conv.ns_from_ticks(last));
    }
    calls.gaps.losses().for_each(|(reason, count)| session.lose(reason, count));
    session.lose(Loss::CallLatenciesCoarse, calls.coarse_latencies);
    let mut count = 0;
    for thread in &calls.threads {
        session.lose(Loss::CallPathsFull, thread.tree.folded());
        let mut out = std::mem::take(&mut session.out);
        let stacks = session.stacks();
        let key = intel_pt::thread_key(thread.thread);
        let name = |frame, out: &mut Vec<Event>| frames.of(thread.thread, frame, stacks, out);
        let told = tell_calls((key, thread), time_conv, &mut out, name, |out| {
            if out.len() < BATCH {
                return Ok(());
            }
            out.drain(..).try_for_each(|event| teller.sink.take(event))
        });
        session.out = out;
        count += told.map_err(DecodeError::Watcher)?;
    }
    Ok(count)
}

/// Tells waits as threads leave their CPUs.
struct Departures<'s, 'a, 'f, 'p, S> {
    session: &'s mut Session,
    teller: &'s mut Teller<'a, S>,
    frames: &'f mut Frames<'p>,
    time_conv: TimeConv,
    /// What threads have spent so far.
    exact: HashMap<ThreadId, Exact>,
}

/// A thread's time so far, in ticks, so that rounding to ns does not add up.
#[derive(Clone, Copy, Debug, Default)]
struct Exact {
    sides: Sides,
}

impl Exact {
    /// What `more` ticks are in ns.
    fn traced(&mut self, more: Sides, time_conv: TimeConv) -> Traced {
        let in_ns = |sides: Sides| Traced {
            user: time_conv.delta_ns(sides.user),
            kernel: time_conv.delta_ns(sides.kernel),
            entered: time_conv.delta_ns(sides.entered),
        };
        let before = in_ns(self.sides);
        self.sides.add(more);
        in_ns(self.sides).since(before)
    }
}

impl<S: Sink> Watcher for Departures<'_, '_, '_, '_, S> {
    type Error = S::Error;

    fn departed(
        &mut self,
        thread: ThreadId,
        ticks: u64,
        open: &mut dyn Iterator<Item = Frame>,
    ) -> Result<(), S::Error> {
        let (before, this) = self.session.waits().at(thread, self.time_conv.ns_from_ticks(ticks));
        before.into_iter().for_each(|wait| self.session.tell_wait(wait));
        if let Some(mut this) = this {
            let mut out = std::mem::take(&mut self.session.out);
            this.wait.stacks.user = self.frames.stack(thread, open, self.session.stacks(), &mut out);
            self.session.out = out;
            self.session.tell_wait(this);
        }
        self.teller.tell_some(self.session)
    }

    fn ran(&mut self, thread: ThreadId, (from, to): (u64, u64), sides: Sides) {
        let ns = |ticks| self.time_conv.ns_from_ticks(ticks);
        let traced = self.exact.entry(thread).or_default().traced(sides, self.time_conv);
        self.session.traced_running(intel_pt::thread_key(thread), (ns(from), ns(to)), traced);
    }

    fn stays_away(&mut self, thread: ThreadId, ticks: u64, open: &mut dyn Iterator<Item = Frame>) {
        let mut out = std::mem::take(&mut self.session.out);
        let stack = self.frames.stack(thread, open, self.session.stacks(), &mut out);
        self.session.out = out;
        let time = self.time_conv.ns_from_ticks(ticks);
        self.session.stays_away(intel_pt::thread_key(thread), time, stack);
    }

    fn progress(&mut self, bytes: u64) {
        self.teller.show(bytes);
    }
}

/// Takes records whose time has come.
fn taking<S: Sink>(
    session: &mut Session,
    teller: &mut Teller<'_, S>,
) -> impl FnMut(u64, Waiting) -> Result<(), S::Error> {
    |time, Waiting { kind, misc, body }| {
        session.take(Some(time), RawRecord { kind, misc, body: &body });
        teller.tell_some(session)
    }
}

/// Debug information is where the files are, or where it was downloaded to.
fn resolver_options(options: &ImportOptions) -> ResolverOptions {
    let download_dirs = options.debug_server.iter().map(|server| server.folder().to_owned()).collect();
    let system = ResolverOptions { download_dirs, ..ResolverOptions::default() };
    let Some(root) = &options.symfs else { return system };
    let below = |dir: &PathBuf| root.join(dir.strip_prefix("/").unwrap_or(dir));
    ResolverOptions { debug_dirs: system.debug_dirs.iter().map(below).collect(), ..system }
}

impl<S: Sink> Teller<'_, S> {
    /// Hands on what has gathered, when it is worth it.
    fn tell_some(&mut self, session: &mut Session) -> Result<(), S::Error> {
        if session.out.len() < BATCH {
            return Ok(());
        }
        self.tell_all(session)
    }

    /// Events wait until the recording can begin.
    fn tell_all(&mut self, session: &mut Session) -> Result<(), S::Error> {
        if !self.started {
            let Some(facts) = session.recording() else { return Ok(()) };
            self.sink.start(&facts)?;
            self.started = true;
            self.settled = facts.start.0;
        }
        for event in session.out.drain(..) {
            self.sink.take(event)?;
        }
        if session.now().0.saturating_sub(self.settled) >= SETTLE_NS {
            self.settled = session.now().0;
            self.sink.settled(session.now())?;
        }
        Ok(())
    }

    /// From here on progress is that of decoding.
    fn begin_trace(&mut self, bytes: u64) {
        (self.progress, self.total) = (0, Some(bytes));
    }

    fn show(&mut self, position: u64) {
        if position >= self.progress {
            self.progress = position.saturating_add(PROGRESS_BYTES);
            self.sink.progress(position, self.total);
        }
    }
}
