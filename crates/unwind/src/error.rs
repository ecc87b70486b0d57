// SPDX-License-Identifier: Apache-2.0
//! The errors for which a file has no table.

use std::fmt;

/// A part of a file that is read first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The ELF header.
    Header,
    /// The program headers.
    Segments,
    /// The section headers.
    Sections,
    /// The section with the unwind entries.
    UnwindSection,
}

/// The reason for which a file has no table. Damage of single entries is counted in [`crate::Coverage`]
/// instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableError {
    /// The image does not start with the ELF magic.
    NotElf,
    /// Not 64-bit little-endian.
    ForeignFormat,
    /// Neither x86_64 nor aarch64: its `e_machine`.
    ForeignMachine(u16),
    /// The image ends before this part does.
    Truncated(Part),
    /// The code spans this many bytes, more than in any valid file.
    TooWide(u64),
    /// The table has more rows than this limit, which no compiler's output reaches.
    TooManyRows(u64),
    /// No `.eh_frame`, `.debug_frame` or `.gopclntab`.
    NoUnwindInformation,
    /// The only unwind section is compressed in a form (`ch_type`) that is not supported.
    Compression(u32),
    /// The section does not expand to its stated length.
    BadCompression,
    /// The budget ended the build: it took too much memory or time.
    OverBudget,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Header => "the ELF header",
            Part::Segments => "the program headers",
            Part::Sections => "the section headers",
            Part::UnwindSection => "the unwind section",
        })
    }
}

/// The text follows a file's name.
impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableError::NotElf => f.write_str("is no ELF file"),
            TableError::ForeignFormat => f.write_str("is not a 64-bit little-endian ELF file"),
            TableError::ForeignMachine(machine) => {
                write!(f, "is for machine {machine}; stacks of x86_64 and aarch64 can be unwound")
            }
            TableError::Truncated(part) => write!(f, "is damaged: {part} goes on past the file's end"),
            TableError::TooWide(span) => write!(f, "is damaged: its code lies spread over {span} bytes"),
            TableError::TooManyRows(limit) => write!(f, "is damaged: it has more than {limit} unwind rows"),
            TableError::NoUnwindInformation => {
                f.write_str("has no unwind information; its stacks need frame pointers")
            }
            TableError::Compression(kind) => {
                write!(f, "has unwind information compressed in form {kind}; zlib (1) can be read")
            }
            TableError::OverBudget => {
                f.write_str("needs more memory or time for its unwind table than one file gets")
            }
            TableError::BadCompression => {
                f.write_str("is damaged: its compressed unwind section does not expand to the length it says")
            }
        }
    }
}

impl std::error::Error for TableError {}
