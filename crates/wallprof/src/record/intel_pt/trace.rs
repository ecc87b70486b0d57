// SPDX-License-Identifier: Apache-2.0
//! A running trace: the kernel's buffers and the perf.data that they are written to.

use std::fs::File;
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use wallprof_import::{FoundMapping, TraceEvents, TraceFacts, TraceFile};
use wallprof_probe::intel_pt::{Traced, Tracer, ticks_now};
use wallprof_recording::output_place;

use super::failed;
use crate::failure::Failure;
use crate::output::error_from_place;
use crate::record::found::Process;
use crate::rights::as_caller;

/// The tracer and its file.
pub struct Trace<'a> {
    pub tracer: Tracer,
    pub file: TraceFile<BufWriter<File>>,
    pub path: &'a Path,
    pub records: u64,
}

impl<'a> Trace<'a> {
    pub fn create(path: &'a Path, tracer: Tracer, facts: &TraceFacts) -> Result<Self, Failure> {
        let ids = tracer.ids().map_err(|error| failed("number the trace's events", &error))?;
        let events = TraceEvents { attr: tracer.attr(), ids };
        let create = || {
            // A trace reveals more of a program than other users may know.
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

    /// Writes the new bytes and records of the buffers.
    pub fn read(&mut self) -> Result<(), Failure> {
        let Trace { tracer, file, records, .. } = self;
        let read = tracer.read(&mut |traced| write(file, records, traced));
        read.and_then(|()| file.finish_round()).map_err(|error| unwritable(self.path, &error))
    }

    /// Writes the rest of the buffers after the end of the trace.
    pub fn read_last(&mut self) -> Result<(), Failure> {
        let Trace { tracer, file, records, .. } = self;
        let read = tracer.read_last(&mut |traced| write(file, records, traced));
        read.map_err(|error| unwritable(self.path, &error))
    }

    /// Writes the existing processes with their mappings.
    pub fn write_found(&mut self, processes: impl Iterator<Item = Process>) -> Result<(), Failure> {
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

pub fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!(
        "cannot write the trace to {}: {error}: give -o a file on a disk with enough space",
        path.display()
    ))
}
