// SPDX-License-Identifier: Apache-2.0
//! The way from an input to a sink: records are read, put into the order of time, and given to the session.
//!
//! Memory is bounded, whatever the input's size.

mod trace;

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use wallprof_model::{Event, Loss};
use wallprof_symbols::ResolverOptions;

use crate::delivery::Delivery;
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
use crate::intel_pt::{KernelFiles, kernel_folder};
use crate::options::{ImportOptions, Outcome, TraceWindow};
use crate::rounds::{HeldRecord, Rounds};
use crate::script;
use crate::session::Session;
use crate::sink::Sink;

/// Imports the perf.data file at `path`, or the text that `perf script` made of one. `-` is standard input.
///
/// Records in front of a damaged place are imported, and the damage is counted among the losses. `Ok` without
/// threads: the input holds nothing, and the sink may never have been started.
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
    // `perf record --kcore` writes a folder with the recording and the kernel.
    let inner = path.join("data");
    let inner = (path.is_dir() && kernel_folder(&inner).is_some()).then_some(inner);
    if path.is_dir() && inner.is_none() {
        return Err(ImportError::refused(path, Refusal::Folder));
    }
    let place = inner.as_deref().unwrap_or(path);
    let file = open_input(place).map_err(unreadable)?;
    let import = Import { kernel: KernelFiles::beside(place), ..Import::new(path, options, sink) };
    import.run(file)
}

/// Imports a stream of perf.data, as `perf record -o -` writes it, from memory.
pub fn import_stream<S: Sink>(
    bytes: &[u8],
    options: &ImportOptions,
    sink: &mut S,
) -> Result<Outcome, ImportError<S::Error>> {
    Import::new(Path::new("-"), options, sink).run_stream(bytes)
}

/// One import.
struct Import<'a, S> {
    input: &'a Path,
    session: Session,
    delivery: Delivery<'a, S>,
    /// The file with the hardware trace, and the position of the first record in it. A pipe has none.
    trace: Option<(File, u64)>,
    kernel: Option<KernelFiles>,
    window: TraceWindow,
}

impl<'a, S: Sink> Import<'a, S> {
    fn new(input: &'a Path, options: &ImportOptions, sink: &'a mut S) -> Self {
        let delivery = Delivery::new(sink);
        let session = Session::new(options.clone());
        Import { input, session, delivery, trace: None, kernel: None, window: TraceWindow::default() }
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
                let Import { input, delivery, .. } = self;
                return script::import_started(input, start[..count].to_vec(), file, delivery.sink);
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

    /// Reads a file, which has tables in front of and behind its records.
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
        self.delivery.total = file.metadata().ok().map(|metadata| metadata.len());
        let seek = file.seek(SeekFrom::Start(header.data.offset));
        seek.map_err(|cause| ImportError::unreadable(self.input, cause))?;
        self.run_file_records(file, header.is_finished().then_some(header.data.size))
    }

    /// `file` is positioned at its first record.
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
            let position = records.position();
            self.delivery.report_progress(position);
            let item = match records.next() {
                Ok(Some(item)) => item,
                Ok(None) => break,
                Err(error) => {
                    self.broken(error, position)?;
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

    /// The rest of the input cannot be read. The records in front of it stay imported.
    /// `position`: counted from the first record.
    fn broken(&mut self, error: ReadError, position: u64) -> Result<(), ImportError<S::Error>> {
        let base = self.trace.as_ref().map_or(STREAM_HEADER as u64, |(_, base)| *base);
        self.session.broken_at = Some(base + position);
        match error {
            ReadError::Io(cause) => return Err(ImportError::unreadable(self.input, cause)),
            ReadError::Truncated => self.session.lose(Loss::InputTruncated, 1),
            ReadError::Damaged | ReadError::Packed => self.session.lose(Loss::InputDamaged, 1),
        }
        Ok(())
    }

    fn record(&mut self, raw: RawRecord<'_>, rounds: &mut Rounds) -> Result<(), ImportError<S::Error>> {
        let Import { session, delivery, .. } = self;
        let taken = match raw.kind {
            kind::FINISHED_ROUND => rounds.finish_round(&mut taking(session, delivery)),
            kind::FIRST_OF_PERF.. => return self.own_record(raw),
            _ => match session.time_of(raw) {
                Some(time) => {
                    let record = HeldRecord { kind: raw.kind, misc: raw.misc, body: raw.body.into() };
                    rounds.push(time, record, &mut taking(session, delivery))
                }
                None => {
                    session.take(None, raw);
                    delivery.deliver_batch(session)
                }
            },
        };
        taken.map_err(ImportError::Sink)
    }

    /// Takes a record that perf wrote, not the kernel.
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
        let Import { session, delivery, .. } = &mut self;
        rounds.finish(&mut taking(session, delivery)).map_err(ImportError::Sink)?;
        session.lose(Loss::RecordsLate, rounds.late());
        let calls = self.decode()?;
        let Import { session, delivery, .. } = &mut self;
        session.finish();
        delivery.deliver_all(session).map_err(ImportError::Sink)?;
        if delivery.started {
            let options = resolver_options(session.options());
            let server = session.options().debug_server.clone();
            let stacks = session.stacks();
            if let Some(server) = server {
                stacks.download(server.as_ref(), stacks.unnamed_modules(), &options);
            }
            let emit = |event| delivery.sink.take(event);
            let unreadable = stacks.name_all(options, emit).map_err(ImportError::Sink)?;
            if unreadable > 0 {
                let loss = Event::loss(Loss::DebugFilesUnreadable, unreadable);
                delivery.sink.take(loss).map_err(ImportError::Sink)?;
                session.lose(Loss::DebugFilesUnreadable, unreadable);
            }
        }
        Ok(session.outcome(calls))
    }

    fn refused(&self, why: impl Into<Refusal>) -> ImportError<S::Error> {
        ImportError::refused(self.input, why)
    }
}

fn is_regular(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file())
}

/// Gives records to the session in the order of time.
fn taking<S: Sink>(
    session: &mut Session,
    delivery: &mut Delivery<'_, S>,
) -> impl FnMut(u64, HeldRecord) -> Result<(), S::Error> {
    |time, HeldRecord { kind, misc, body }| {
        session.take(Some(time), RawRecord { kind, misc, body: &body });
        delivery.deliver_batch(session)
    }
}

/// Debug information is searched below `symfs`, or in the folder of downloads.
fn resolver_options(options: &ImportOptions) -> ResolverOptions {
    let download_dirs = options.debug_server.iter().map(|server| server.folder().to_owned()).collect();
    let system = ResolverOptions { download_dirs, ..ResolverOptions::default() };
    let Some(root) = &options.symfs else { return system };
    let below = |dir: &PathBuf| root.join(dir.strip_prefix("/").unwrap_or(dir));
    ResolverOptions { debug_dirs: system.debug_dirs.iter().map(below).collect(), ..system }
}
