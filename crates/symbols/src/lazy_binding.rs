// SPDX-License-Identifier: Apache-2.0
//! Functions that the dynamic linker binds at their first call: finds, from files alone, the function that a
//! call binds and the library that exports it (x86-64).
//!
//! A lazily bound call goes to a stub, the stub jumps through a slot, and the slot's relocation names the
//! function; see [`crate::plt`]. Whether the function was being bound is known from the frame that the call
//! led to, not here.

use std::fs::File;

use object::elf::{STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, STT_OBJECT};

use crate::demangle::readable_name;
use crate::elf_records::{Class, SymbolFields};
use crate::exported::find_exported;
use crate::file_access::FileAccess;
use crate::module::{ModuleFile, Payer};
use crate::needed::needs_nothing;
use crate::plt::PltNames;
use crate::read_at::read_bounded;
use crate::section::Sections;

/// `call`, with the distance to its target in four bytes.
const CALL: u8 = 0xe8;
const CALL_LEN: u64 = 5;

/// Whether a module can be a dynamic linker: a file that needs no interpreter and no library. Other files can
/// have this property as well.
pub fn may_be_dynamic_linker(file: &File) -> bool {
    FileAccess::of(file) != FileAccess::Served && needs_nothing(file)
}

/// The lazily bound calls of one module.
pub struct LazyCalls<'m> {
    file: &'m File,
    sections: Sections,
    stubs: PltNames,
}

/// A function by its name in symbol tables, and by its readable name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundFunction {
    /// As symbol tables have it.
    pub symbol: String,
    /// Demangled.
    pub name: String,
}

impl<'m> LazyCalls<'m> {
    /// `None` for a module without a file, or whose file is damaged.
    pub fn read(module: &'m ModuleFile) -> Option<Self> {
        let file = readable_here(module)?;
        let sections = Sections::read(file).ok()?;
        let stubs = PltNames::read(file, &sections);
        Some(LazyCalls { file, sections, stubs })
    }

    /// The function that a call binds at its first execution. `None` for a call that binds none, and for one
    /// that does not go to its stub directly. `call`: the ELF virtual address of the call's last byte, as
    /// frames of callers have it.
    pub fn bound_by(&self, call: u64) -> Option<BoundFunction> {
        let target = self.target_of(call)?;
        let symbol = self.stubs.lazily_bound(target)?;
        let name = readable_name(symbol).unwrap_or_else(|| symbol.to_owned());
        Some(BoundFunction { symbol: symbol.to_owned(), name })
    }

    fn target_of(&self, call: u64) -> Option<u64> {
        let section = self.sections.code_at(call)?;
        let start = (call - section.address).checked_sub(CALL_LEN - 1)?;
        let bytes = read_bounded(self.file, section.offset.checked_add(start)?, CALL_LEN, CALL_LEN)?;
        let (&CALL, distance) = bytes.split_first()? else { return None };
        let distance = i32::from_le_bytes(distance.try_into().ok()?);
        Some(call.wrapping_add(1).wrapping_add_signed(distance.into()))
    }
}

/// Whether a module exports a function of this name. `payer` is the module's: a file whose reads may block is
/// not read.
pub fn exports_function(module: &ModuleFile, payer: Payer, symbol: &str) -> bool {
    let file = module.file.as_deref().filter(|_| !payer.may_block);
    file.and_then(|file| exports(file, symbol)).unwrap_or(false)
}

/// The address of a variable that a module exports, an ELF virtual address. `None`: it exports none of this
/// name with at least `bytes` bytes, or is no 64-bit program.
pub fn exported_variable(module: &ModuleFile, symbol: &str, bytes: u64) -> Option<u64> {
    let file = readable_here(module)?;
    let sections = Sections::read(file).ok()?;
    if sections.class != Class::Elf64 {
        return None;
    }
    let is_variable =
        |found: &SymbolFields| found.kind == STT_OBJECT && (found.size == 0 || found.size >= bytes);
    find_exported(file, &sections, symbol, is_variable)?.map(|(_, found)| found.value)
}

/// The module's file, unless a read of it may block for ever.
pub(crate) fn readable_here(module: &ModuleFile) -> Option<&File> {
    module.file.as_deref().filter(|file| FileAccess::of(file) != FileAccess::Served)
}

fn exports(file: &File, symbol: &str) -> Option<bool> {
    let is_function = |found: &SymbolFields| matches!(found.kind, STT_NOTYPE | STT_FUNC | STT_GNU_IFUNC);
    find_exported(file, &Sections::read(file).ok()?, symbol, is_function).map(|found| found.is_some())
}
