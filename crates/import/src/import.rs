//! From an input to a sink: reads records, puts them into the order of time, hands them to the session.
//!
//! Streams: whatever the input's size, what is in memory is bounded.

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use wallprof_model::{Event, MonoNs};
use wallprof_symbols::ResolverOptions;

use crate::error::{ImportError, Refusal};
use crate::format::attr::Attr;
use crate::format::bytes::{Bytes, lossy};
use crate::format::facts::feature;
use crate::format::header::{
    EventIds, FileHeader, HeaderError, Kind, STREAM_HEADER, SectionReader, kind_from_bytes, read_at,
};
use crate::format::record::{RawRecord, Record, attr_record, kind};
use crate::format::records::{Item, ReadError, Records, read_up_to};
use crate::format::tracing::Formats;
use crate::options::{ImportOptions, Outcome, RecordingFacts};
use crate::rounds::{Rounds, Waiting};
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

    /// So many bytes were read, of so many where that is known.
    fn progress(&mut self, bytes: u64, of: Option<u64>);
}

/// Imports the perf.data file at `path`; `-` is standard input, a file or a stream.
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
    if path.is_dir() {
        return Err(ImportError::refused(path, Refusal::Folder));
    }
    let file = File::open(path).map_err(unreadable)?;
    Import::new(path, options, sink).run(file)
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
        Import { input, session: Session::new(options.clone()), teller }
    }

    fn run(self, mut file: File) -> Result<Outcome, ImportError<S::Error>> {
        let mut start = [0; STREAM_HEADER];
        let input = self.input.to_owned();
        let unreadable = |cause| ImportError::unreadable(&input, cause);
        let count = read_up_to(&mut file, &mut start).map_err(unreadable)?;
        let kind = match kind_from_bytes(&start) {
            Ok(kind) if count == STREAM_HEADER => kind,
            Ok(_) => return Err(self.refused(HeaderError::Truncated)),
            Err(error) => return Err(self.refused(error)),
        };
        match kind {
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
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Err(self.refused(HeaderError::FileInPipe));
        }
        let header = FileHeader::read(&file);
        let header = header.map_err(|error| self.refused(error))?;
        for event in header.events(&file).map_err(|error| self.refused(error))? {
            self.session.events.add(event);
        }
        self.read_features(&header, &file);
        if !header.is_finished() {
            self.session.lose("perf_did_not_finish", 1);
        }
        self.teller.total = file.metadata().ok().map(|metadata| metadata.len());
        let seek = file.seek(SeekFrom::Start(header.data.offset));
        seek.map_err(|cause| ImportError::unreadable(self.input, cause))?;
        self.run_records(Records::new(file, header.is_finished().then_some(header.data.size)))
    }

    fn read_features(&mut self, header: &FileHeader, file: &File) {
        for (number, section) in header.features(file) {
            if number == feature::TRACING_DATA {
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
                Item::Record(raw) => self.record(raw, &mut rounds)?,
            }
        }
        self.finish(rounds)
    }

    /// What is left of the input cannot be read; what was read counts.
    fn broken(&mut self, error: ReadError) -> Result<(), ImportError<S::Error>> {
        match error {
            ReadError::Io(cause) => return Err(ImportError::unreadable(self.input, cause)),
            ReadError::Truncated => self.session.lose("input_truncated", 1),
            ReadError::Damaged | ReadError::Packed => self.session.lose("input_damaged", 1),
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
                    None => session.lose("records_malformed", 1),
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
            _ => return self.described(raw),
        }
        Ok(())
    }

    fn described(&mut self, raw: RawRecord<'_>) -> Result<(), ImportError<S::Error>> {
        let session = &mut self.session;
        match Record::read(raw) {
            Ok(Some(Record::IntelPt)) => return Err(ImportError::refused(self.input, Refusal::IntelPt)),
            Ok(Some(Record::OtherTrace)) => session.lose("hardware_trace_records", 1),
            Ok(Some(Record::EventName { id, name })) => {
                session.events.rename(id, lossy(name));
                session.unsettle();
            }
            Ok(Some(Record::BuildId { path, build_id })) => session.facts.add_build_id(path, build_id),
            Ok(_) => {}
            Err(_) => session.lose("records_malformed", 1),
        }
        Ok(())
    }

    fn finish(mut self, mut rounds: Rounds) -> Result<Outcome, ImportError<S::Error>> {
        let Import { session, teller, .. } = &mut self;
        rounds.finish(&mut taking(session, teller)).map_err(ImportError::Sink)?;
        session.lose("records_late", rounds.late());
        session.finish();
        teller.tell_all(session).map_err(ImportError::Sink)?;
        if teller.started {
            let options = resolver_options(session.options());
            session.stacks().name_all(options, |event| teller.sink.take(event)).map_err(ImportError::Sink)?;
        }
        Ok(Outcome {
            end: session.now(),
            threads: session.threads(),
            samples: session.samples(),
            stacks: session.stacks().counts().clone(),
            losses: session.losses().clone(),
        })
    }

    fn refused(&self, why: impl Into<Refusal>) -> ImportError<S::Error> {
        ImportError::refused(self.input, why)
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

/// Debug information is where the files are.
fn resolver_options(options: &ImportOptions) -> ResolverOptions {
    let system = ResolverOptions::default();
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

    fn show(&mut self, position: u64) {
        if position >= self.progress {
            self.progress = position.saturating_add(PROGRESS_BYTES);
            self.sink.progress(position, self.total);
        }
    }
}
