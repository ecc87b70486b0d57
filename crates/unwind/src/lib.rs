// SPDX-License-Identifier: Apache-2.0
//! Unwind information of ELF files, compiled to tables that are small enough for the kernel, and the
//! reference walker over them.
//!
//! [`Table::from_elf`] compiles `.eh_frame`, `.debug_frame` or Go's `.gopclntab` of one file into rows: each
//! starts at an address and has the [`Rule`] that finds a frame's caller. The layout is that of
//! `bpf/include/unwind.h`. The kernel walks tables in the same way as [`walk`]. [`binders_from_elf`] finds
//! the functions of a dynamic linker that bind others.
//!
//! The crate is pure: it opens no files and knows no processes. [`FileImage`] reads parts of a file that is
//! open. Whatever an image contains, a build ends with a table or a [`TableError`], in time and memory
//! proportional to the image, and within a [`Budget`].
//!
//! ```
//! use wallprof_unwind::{RuleKind, Table};
//!
//! let image = std::fs::read(std::env::current_exe()?)?;
//! let table = Table::from_elf(&image)?;
//! let coverage = table.coverage();
//! println!("{} entries, {} rows, {} rules", coverage.entries, coverage.rows, table.rules().len());
//! assert!(coverage.code(RuleKind::Sp) > 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Formats: System V ABI, AMD64 supplement; DWARF 5, section 6.4; LSB 5, "Exception Frames"; for Go,
//! `runtime/symtab.go` of Go 1.16 to 1.26.

#![warn(missing_docs)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod binders;
mod builder;
mod bytes;
mod clone;
mod coverage;
mod elf;
mod entries;
mod error;
mod expression;
mod file_image;
#[cfg(test)]
mod fixture;
mod gaps;
mod go;
mod image;
mod interner;
mod pages;
mod pointer;
mod program;
mod rule;
mod scan;
mod table;
mod walk;

pub use binders::{binders_from_elf, binders_from_image};
pub use clone::is_behind_clone;
pub use coverage::{Coverage, Share, Unencodable};
pub use error::{Part, TableError};
pub use file_image::FileImage;
pub use image::{Budget, Image, STEPS, Unlimited};
pub use rule::{Rule, RuleKind};
pub use scan::{CompiledCode, rules_of_code};
pub use table::{BLOCK_TEXT, PAGE_STARTS, PAGE_TEXT, Table};
pub use walk::{Code, CodeSpace, INTERPRETED_METHOD, Memory, Registers, walk};
