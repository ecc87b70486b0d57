//! Unwind information of ELF files, compiled to tables small enough for the kernel, and the reference walker over
//! them.
//!
//! [`Table::from_elf`] reads `.eh_frame`, `.debug_frame` or Go's `.gopclntab` of one file's image into rows: from
//! which address on which [`Rule`] finds a frame's caller. Their layout is `bpf/include/unwind.h`; the kernel walks
//! them the way [`walk`] does; [`binders_from_elf`] tells where a dynamic linker binds functions. Pure: no processes, and of files what [`FileImage`] reads of one that is open. Whatever an image contains, building ends, in time and
//! memory proportional to the image, with a table or a [`TableError`].
//!
//! Formats: System V ABI, AMD64 supplement; DWARF 5, section 6.4; LSB 5, "Exception Frames"; for Go,
//! `runtime/symtab.go` of Go 1.16 to 1.26.

mod binders;
mod builder;
mod bytes;
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
pub use coverage::{Coverage, Share, Unencodable};
pub use error::{Part, TableError};
pub use file_image::FileImage;
pub use image::{Budget, Image, STEPS, Unlimited};
pub use rule::{Rule, RuleKind};
pub use table::{BLOCK_TEXT, PAGE_STARTS, PAGE_TEXT, Table};
pub use walk::{Code, CodeSpace, Memory, Registers, walk};
