// SPDX-License-Identifier: Apache-2.0
//! The programs that run once for each task, when user space asks.

use std::io::{self, Read};

use libbpf_rs::{Iter, Link, ProgramMut};

use crate::bpf::{Plain, WallprofSkel, record_from_bytes};
use crate::error::ProbeError;
use crate::undisturbed::KeptCpu;

/// Records in one read of an iterator that reads the memory of other processes: some tens of microseconds.
pub(crate) const READ_AT_ONCE: usize = 8;

/// The programs that are attached here.
pub(crate) const PROGRAMS: [&str; 3] = ["create_states", "snapshot", "open_waits"];

/// The attached iterators.
pub(crate) struct Iterators {
    create_states: Link,
    snapshot: Link,
    open_waits: Link,
    /// The output of the last run: memory that is not allocated each second.
    bytes: Vec<u8>,
}

impl Iterators {
    pub fn attach(skeleton: &WallprofSkel<'static>) -> Result<Self, ProbeError> {
        let attach = |program: &ProgramMut<'_>| {
            program.attach().map_err(|error| ProbeError::not_attached(program, &error))
        };
        let programs = &skeleton.progs;
        Ok(Iterators {
            create_states: attach(&programs.create_states)?,
            snapshot: attach(&programs.snapshot)?,
            open_waits: attach(&programs.open_waits)?,
            bytes: Vec::new(),
        })
    }

    /// Creates the state of each thread that is to be recorded.
    pub fn create_states(&mut self) -> Result<(), ProbeError> {
        run(&self.create_states, &mut self.bytes)
    }

    pub fn snapshot<R: Plain>(&mut self, take: impl FnMut(&R)) -> Result<(), ProbeError> {
        run(&self.snapshot, &mut self.bytes)?;
        each_record(&self.bytes, take);
        Ok(())
    }

    pub fn open_waits<R: Plain>(&mut self, take: impl FnMut(&R)) -> Result<(), ProbeError> {
        let failed = |error| ProbeError::reading("the list of waits", error);
        let mut iterator = Iter::new(&self.open_waits).map_err(|error| failed(io::Error::other(error)))?;
        self.bytes.clear();
        let mut piece = vec![0; READ_AT_ONCE * size_of::<R>()];
        loop {
            let read = read_undisturbed(&mut iterator, &mut piece).map_err(failed)?;
            if read == 0 {
                break;
            }
            self.bytes.extend_from_slice(&piece[..read]);
        }
        each_record(&self.bytes, take);
        Ok(())
    }
}

/// Runs an iterator to its end; `bytes` is then its output.
pub(crate) fn run(link: &Link, bytes: &mut Vec<u8>) -> Result<(), ProbeError> {
    bytes.clear();
    let failed = |error| ProbeError::reading("the list of threads", error);
    let mut iterator = Iter::new(link).map_err(|error| failed(io::Error::other(error)))?;
    iterator.read_to_end(bytes).map_err(failed)?;
    Ok(())
}

/// Reads some records of an iterator that reads the memory of other processes.
pub(crate) fn read_undisturbed(iterator: &mut Iter, bytes: &mut [u8]) -> io::Result<usize> {
    let _kept = KeptCpu::take();
    iterator.read(bytes)
}

/// A record of zeroes has only ended a read (bpf/iterator.h).
pub(crate) fn each_record<R: Plain>(bytes: &[u8], mut take: impl FnMut(&R)) {
    let records = bytes.chunks_exact(size_of::<R>());
    for bytes in records.filter(|bytes| bytes.iter().any(|byte| *byte != 0)) {
        if let Some(record) = record_from_bytes(bytes) {
            take(&record);
        }
    }
}
