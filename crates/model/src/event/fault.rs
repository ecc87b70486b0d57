// SPDX-License-Identifier: Apache-2.0
//! What a page fault was about.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    Exec,
}

impl Access {
    pub fn name(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::Exec => "exec",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Access::Read, Access::Write, Access::Exec].into_iter().find(|access| access.name() == name)
    }
}

/// What is mapped where a page fault happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    File,
    Anonymous,
    /// A thread's own stack.
    Stack,
    /// What `brk(2)` gives.
    Heap,
    /// Reserved huge pages (hugetlbfs).
    Huge,
}

impl Mapping {
    pub const ALL: [Mapping; 5] =
        [Mapping::File, Mapping::Anonymous, Mapping::Stack, Mapping::Heap, Mapping::Huge];

    pub fn name(self) -> &'static str {
        match self {
            Mapping::File => "file",
            Mapping::Anonymous => "anonymous",
            Mapping::Stack => "stack",
            Mapping::Heap => "heap",
            Mapping::Huge => "huge",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mapping| mapping.name() == name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub address: u64,
    pub access: Option<Access>,
    pub major: bool,
    pub mapping: Option<Mapping>,
    pub file: Option<String>,
    /// Of the address in the file, bytes.
    pub file_offset: Option<u64>,
}
