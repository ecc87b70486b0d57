// SPDX-License-Identifier: Apache-2.0
//! What a page fault was about.

/// How the instruction that faulted used the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Exec,
}

impl Access {
    /// The name in recordings and in JSON, which [`Self::from_name`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::Exec => "exec",
        }
    }

    /// `None`: no name is equal to the text.
    pub fn from_name(name: &str) -> Option<Self> {
        [Access::Read, Access::Write, Access::Exec].into_iter().find(|access| access.name() == name)
    }
}

/// What is mapped where a page fault happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Bytes of a file.
    File,
    /// Memory without a file, neither stack nor heap.
    Anonymous,
    /// A thread's own stack.
    Stack,
    /// What `brk(2)` gives.
    Heap,
    /// Reserved huge pages (hugetlbfs).
    Huge,
}

impl Mapping {
    /// Each variant once, in the order of their declaration.
    pub const ALL: [Mapping; 5] =
        [Mapping::File, Mapping::Anonymous, Mapping::Stack, Mapping::Heap, Mapping::Huge];

    /// The name in recordings and in JSON, which [`Self::from_name`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Mapping::File => "file",
            Mapping::Anonymous => "anonymous",
            Mapping::Stack => "stack",
            Mapping::Heap => "heap",
            Mapping::Huge => "huge",
        }
    }

    /// `None`: no name is equal to the text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mapping| mapping.name() == name)
    }
}

/// One page fault of a recorded thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The address that was used, in the process.
    pub address: u64,
    /// `None`: not known.
    pub access: Option<Access>,
    /// Whether the page had to be read in or waited for.
    pub major: bool,
    /// `None`: not known.
    pub mapping: Option<Mapping>,
    /// Path of the mapped file; `None` without one, or where it is not known.
    pub file: Option<String>,
    /// Of the address in the file, bytes.
    pub file_offset: Option<u64>,
}
