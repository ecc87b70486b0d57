// SPDX-License-Identifier: Apache-2.0
//! Addresses in processes that the kernel side reads: of the word about the waits of their threads, and of the variable
//! with the traces of their threads.

use std::collections::HashMap;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::bpf::{bytes_of, constants as c, process_words};

/// The words of one process image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessWords {
    /// The number of the image.
    pub exec_id: u32,
    pub wait: Option<WaitWord>,
    pub trace: Option<TraceAccess>,
    /// The C library is musl, whose vectors of thread-local blocks differ from glibc's. `false` also where no variable
    /// is in such a block.
    pub is_musl: bool,
}

/// A word that says what the threads wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitWord {
    pub address: u64,
    /// The caller's number for what the word is, which comes back with each wait.
    pub definition: u32,
    /// 1 to 8.
    pub bytes: u8,
    /// The address has a pointer to the word.
    pub is_pointer: bool,
}

/// How the code of a process finds the running thread's `otel_thread_ctx_v1`. Addresses are those of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceAccess {
    /// So far from the thread pointer.
    Offset(i64),
    /// By the distance at this address (`R_X86_64_TPOFF64`).
    OffsetAt(u64),
    /// By the module's number and the offset in its block at this address (`R_X86_64_DTPMOD64`).
    IndexAt(u64),
    /// By the descriptor at this address (`R_X86_64_TLSDESC`).
    Descriptor(u64),
}

impl TraceAccess {
    /// The code finds the variable in a thread's vector of blocks, which differs from one C library to the next.
    pub fn is_in_a_block(self) -> bool {
        matches!(self, TraceAccess::IndexAt(_) | TraceAccess::Descriptor(_))
    }
}

impl ProcessWords {
    fn is_empty(&self) -> bool {
        self.wait.is_none() && self.trace.is_none()
    }

    fn record(self) -> process_words {
        let mut record = process_words {
            exec_id: self.exec_id,
            dtv_entry: (if self.is_musl { c::MUSL_DTV_ENTRY } else { c::GLIBC_DTV_ENTRY }) as u8,
            ..process_words::default()
        };
        if let Some(word) = self.wait {
            record.wait = word.address;
            record.definition = word.definition;
            record.bytes = word.bytes;
            record.is_pointer = word.is_pointer.into();
        }
        let (trace, at) = match self.trace {
            None => (c::TRACE_NONE, 0),
            Some(TraceAccess::Offset(distance)) => (c::TRACE_OFFSET, distance.cast_unsigned()),
            Some(TraceAccess::OffsetAt(at)) => (c::TRACE_OFFSET_AT, at),
            Some(TraceAccess::IndexAt(at)) => (c::TRACE_INDEX_AT, at),
            Some(TraceAccess::Descriptor(at)) => (c::TRACE_DESCRIPTOR, at),
        };
        record.trace = trace as u8;
        record.trace_at = at;
        record
    }
}

/// The words by process.
pub(crate) struct ProcessWordMap {
    words: MapHandle,
    version_map: MapHandle,
    written: HashMap<u32, ProcessWords>,
    version: u32,
}

impl ProcessWordMap {
    pub(crate) fn new(words: MapHandle, version_map: MapHandle) -> Self {
        ProcessWordMap { words, version_map, written: HashMap::new(), version: 0 }
    }

    pub(crate) fn set(&mut self, pid: u32, words: ProcessWords) {
        if words.is_empty() {
            return self.forget(pid);
        }
        if self.written.get(&pid) == Some(&words) {
            return;
        }
        // Full: nothing is known of what the threads of this process say.
        let written = self.words.update(&pid.to_ne_bytes(), bytes_of(&words.record()), MapFlags::ANY);
        if written.is_ok() {
            self.written.insert(pid, words);
        }
        self.change_version();
    }

    /// The entry may be one that the kernel side made at a fork.
    pub(crate) fn forget(&mut self, pid: u32) {
        if self.words.delete(&pid.to_ne_bytes()).is_ok() | self.written.remove(&pid).is_some() {
            self.change_version();
        }
    }

    /// Threads look into the map again. 0 means that no process has ever had a word.
    fn change_version(&mut self) {
        self.version = self.version.wrapping_add(1).max(1);
        let _ = self.version_map.update(&0u32.to_ne_bytes(), &self.version.to_ne_bytes(), MapFlags::ANY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_has_no_bytes_that_are_not_set() {
        let wait = WaitWord { address: 0x5000, definition: 2, bytes: 4, is_pointer: true };
        let words = ProcessWords { exec_id: 3, wait: Some(wait), trace: None, is_musl: false };
        let record = words.record();
        assert_eq!(bytes_of(&record).len(), 32);
        assert_eq!((record.wait, record.exec_id, record.definition), (0x5000, 3, 2));
        assert_eq!((record.bytes, record.is_pointer, record.unused), (4, 1, [0; 4]));
        assert_eq!((u64::from(record.trace), record.trace_at), (c::TRACE_NONE, 0));
        assert!(!words.is_empty() && ProcessWords { wait: None, ..words }.is_empty());
    }

    #[test]
    fn place_of_a_trace_is_a_distance_or_an_address() {
        let record = |trace, is_musl| {
            let words = ProcessWords { trace: Some(trace), is_musl, ..ProcessWords::default() };
            assert!(!words.is_empty());
            let record = words.record();
            (u64::from(record.trace), record.trace_at, record.dtv_entry)
        };
        assert_eq!(record(TraceAccess::Offset(-8), false), (c::TRACE_OFFSET, u64::MAX - 7, 16));
        assert_eq!(record(TraceAccess::OffsetAt(0x4000), true), (c::TRACE_OFFSET_AT, 0x4000, 8));
        assert_eq!(record(TraceAccess::IndexAt(0x4000), false).0, c::TRACE_INDEX_AT);
        assert_eq!(record(TraceAccess::Descriptor(0x4000), false).0, c::TRACE_DESCRIPTOR);
    }
}
