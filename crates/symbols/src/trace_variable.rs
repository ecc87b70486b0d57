// SPDX-License-Identifier: Apache-2.0
//! Where the code of a module finds the running thread's `otel_thread_ctx_v1` (x86-64): the thread-local variable by
//! which a process publishes the trace that each of its threads works for (OpenTelemetry's OTEP 4947).
//!
//! A module that exports the variable reaches it through a word or two of its global offset table, which the dynamic
//! linker fills in and a relocation names; or, in a program, at a distance from the thread pointer that its linker knew.
//! Formats: the psABI for x86-64, and "ELF Handling For Thread-Local Storage".

use std::cell::OnceCell;

use object::elf::{
    DF_1_PIE, DT_FLAGS_1, EM_X86_64, PT_DYNAMIC, PT_INTERP, PT_TLS, R_X86_64_DTPMOD64, R_X86_64_TLSDESC,
    R_X86_64_TPOFF64, SHF_ALLOC, SHT_RELA, STT_TLS,
};

use crate::elf::ElfHeader;
use crate::elf_records::{Class, RelocationFields, SegmentFields, SymbolFields, relocations};
use crate::exported::{exporting_table, find_exported};
use crate::lazy_binding::readable_here;
use crate::module::ModuleFile;
use crate::needed::{bytes_of, header_and_segments};
use crate::read_at::{ReadAt, read_bounded};
use crate::section::{Section, Sections};

const VARIABLE: &str = "otel_thread_ctx_v1";

/// Relocations of a file: those of chromium take 12 MiB.
const MAX_RELOCATIONS: u64 = 32 << 20;
const MAX_OFFSET_TABLE: u64 = 4 << 20;

/// How the code of a module finds a thread-local variable. Addresses are ELF virtual addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceVariable {
    /// It is so far from the thread pointer, in bytes.
    Offset(i64),
    /// The word at this address is its distance from the thread pointer.
    OffsetAt(u64),
    /// The two words at this address are the number of the module, and the variable's offset in the module's block.
    IndexAt(u64),
    /// A TLS descriptor is at this address.
    Descriptor(u64),
}

/// The variable of a module that exports it. `None`: it exports none, is no 64-bit program for x86-64, or its file
/// may block a reader for ever.
pub fn trace_variable(module: &ModuleFile) -> Option<TraceVariable> {
    let file = readable_here(module)?;
    let (header, segments) = header_and_segments(file)?;
    let block = segments.iter().find(|segment| segment.kind == PT_TLS)?;
    let sections = Sections::read(file).ok()?;
    if sections.machine != EM_X86_64 || sections.class != Class::Elf64 || !may_export(file, &sections) {
        return None;
    }
    let (number, variable) = find_exported(file, &sections, VARIABLE, |found| found.kind == STT_TLS)??;
    relocated(file, &sections, number, &variable).or_else(|| {
        let distance = local_offset(&variable, block).filter(|_| is_program(file, &header, &segments))?;
        Some(TraceVariable::Offset(distance))
    })
}

/// By the filter of the hash table of exported names, where there is one: most modules are done with here.
fn may_export<R: ReadAt + ?Sized>(source: &R, sections: &Sections) -> bool {
    let is_dynamic = exporting_table(sections).is_some_and(|table| table.name == ".dynsym");
    let Some(table) = sections.named(".gnu.hash").filter(|table| is_dynamic && table.has_bytes()) else {
        return true;
    };
    let word = |at: u64, len: u64| {
        let bytes = read_bounded(source, table.offset.checked_add(at)?, len, 8)?;
        Some(bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
    };
    let (Some(words), Some(shift)) = (word(8, 4), word(12, 4)) else { return true };
    let hash = VARIABLE.bytes().fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
    let Some(at) = u64::from(hash / 64).checked_rem(words) else { return true };
    let Some(filter) = word(16 + at * 8, 8) else { return true };
    let bit = |hash: u32| filter >> (hash % 64) & 1 == 1;
    bit(hash) && bit(hash.checked_shr(shift as u32).unwrap_or(0))
}

/// Through the global offset table.
fn relocated<R: ReadAt + ?Sized>(
    source: &R,
    sections: &Sections,
    number: u32,
    variable: &SymbolFields,
) -> Option<TraceVariable> {
    let symbols = sections.all.iter().position(|section| section.name == ".dynsym")?;
    let got = OffsetTable { sections, source, bytes: OnceCell::new() };
    let is_read = |table: &&Section| {
        table.kind == SHT_RELA
            && table.has_bytes()
            && table.flags.contains(SHF_ALLOC)
            && table.link as usize == symbols
    };
    let mut left = MAX_RELOCATIONS;
    for table in sections.all.iter().filter(is_read) {
        left = left.checked_sub(table.size)?;
        let bytes = read_bounded(source, table.offset, table.size, MAX_RELOCATIONS)?;
        let of_variable = |relocation: RelocationFields| {
            let found = by_relocation(&relocation)?;
            let is_of_variable = match relocation.symbol {
                0 if relocation.kind == R_X86_64_DTPMOD64 => got.has(relocation.slot, variable.value),
                0 => relocation.addend.cast_unsigned() == variable.value,
                symbol => symbol == number,
            };
            is_of_variable.then_some(found)
        };
        if let Some(found) = relocations(&bytes).find_map(of_variable) {
            return Some(found);
        }
    }
    None
}

/// The global offset table as the file has it. It is read when it is first asked for.
struct OffsetTable<'a, R: ?Sized> {
    source: &'a R,
    sections: &'a Sections,
    bytes: OnceCell<Option<(u64, Vec<u8>)>>,
}

impl<R: ReadAt + ?Sized> OffsetTable<'_, R> {
    /// Whether the word behind the number of the module itself, at `slot`, is this offset: no relocation names it.
    fn has(&self, slot: u64, offset: u64) -> bool {
        let table = self.bytes.get_or_init(|| {
            let table = self.sections.named(".got").filter(|table| table.has_bytes())?;
            Some((table.address, read_bounded(self.source, table.offset, table.size, MAX_OFFSET_TABLE)?))
        });
        let word = table.as_ref().and_then(|(address, bytes)| {
            let at = usize::try_from(slot.checked_add(8)?.checked_sub(*address)?).ok()?;
            bytes.get(at..)?.first_chunk()
        });
        word.is_some_and(|word| u64::from_le_bytes(*word) == offset)
    }
}

fn by_relocation(relocation: &RelocationFields) -> Option<TraceVariable> {
    match relocation.kind {
        R_X86_64_TPOFF64 => Some(TraceVariable::OffsetAt(relocation.slot)),
        R_X86_64_DTPMOD64 => Some(TraceVariable::IndexAt(relocation.slot)),
        R_X86_64_TLSDESC => Some(TraceVariable::Descriptor(relocation.slot)),
        _ => None,
    }
}

/// Whether this is a program, which its linker knows to be the first module; no library.
fn is_program(file: &std::fs::File, header: &ElfHeader, segments: &[SegmentFields]) -> bool {
    if segments.iter().any(|segment| segment.kind == PT_INTERP) {
        return true;
    }
    let Some(dynamic) = bytes_of(file, segments, PT_DYNAMIC) else { return true };
    let is_pie = |(tag, value): &(_, u64)| *tag == DT_FLAGS_1 && value & DF_1_PIE.0 != 0;
    header.class.dynamic_entries(&dynamic).iter().any(is_pie)
}

/// The distance of a variable of the first module, whose block ends at the thread pointer, as far as its alignment
/// permits.
fn local_offset(variable: &SymbolFields, block: &SegmentFields) -> Option<i64> {
    let mask = block.align.max(1).checked_sub(1).filter(|mask| mask & block.align == 0)?;
    let end = block.address.wrapping_add(block.memory_size);
    let len = block.memory_size.checked_add(end.wrapping_neg() & mask)?;
    (variable.value < len).then(|| variable.value.wrapping_sub(len).cast_signed())
}
