// SPDX-License-Identifier: Apache-2.0
//! The records of ELF files of both classes, little-endian, as crate `object` declares them.
//!
//! Owns one form for both classes. Ranges of bytes come from [`crate::read_at`]: `object`'s own readers lend
//! what they have read for as long as the file is open, so that a damaged file makes their cache grow beyond
//! the file's size, and they follow counts in the file (the escape for more than 65,279 sections) that are
//! bounded here.

use object::LittleEndian as LE;
use object::elf;
use object::pod::{self, Pod};
use object::read::elf::{
    CompressionHeader, Dyn, FileHeader, NoteIterator, ProgramHeader, Rela, SectionHeader, Sym,
};

pub(crate) type Header64 = elf::FileHeader64<LE>;
pub(crate) type Header32 = elf::FileHeader32<LE>;

/// One of the two forms that files have: the width of their addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Class {
    Elf32,
    #[default]
    Elf64,
}

/// Calls a generic function with the structures of a class.
macro_rules! of_class {
    ($class:expr, $function:ident($($argument:expr),*)) => {
        match $class {
            Class::Elf32 => $function::<Header32>($($argument),*),
            Class::Elf64 => $function::<Header64>($($argument),*),
        }
    };
}

/// The part of the ELF header that leads to the tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeaderFields {
    pub machine: elf::Machine,
    pub segments_at: u64,
    pub segment_size: u16,
    pub segment_count: u16,
    pub sections_at: u64,
    pub section_size: u16,
    pub section_count: u16,
    pub section_names: u16,
}

/// One program header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentFields {
    pub kind: elf::ProgramType,
    pub offset: u64,
    pub file_size: u64,
    pub address: u64,
    pub memory_size: u64,
    pub align: u64,
    pub is_executable: bool,
}

/// One section header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SectionFields {
    pub name_at: u32,
    pub kind: elf::SectionType,
    pub flags: elf::SectionFlags,
    pub address: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
    pub align: u64,
}

/// One entry of a symbol table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SymbolFields {
    pub name_at: u32,
    pub kind: elf::SymbolType,
    pub binding: elf::SymbolBind,
    pub is_defined: bool,
    pub value: u64,
    pub size: u64,
}

/// One relocation with an addend, of a 64-bit file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RelocationFields {
    pub slot: u64,
    pub symbol: u32,
    pub kind: elf::RelocationType,
    pub addend: i64,
}

impl Class {
    pub(crate) fn header_size(self) -> usize {
        of_class!(self, size_of_header())
    }

    pub(crate) fn segment_size(self) -> usize {
        of_class!(self, size_of_segment())
    }

    pub(crate) fn section_size(self) -> usize {
        of_class!(self, size_of_section())
    }

    pub(crate) fn symbol_size(self) -> usize {
        of_class!(self, size_of_symbol())
    }

    pub(crate) fn compression_header_size(self) -> usize {
        of_class!(self, size_of_compression_header())
    }

    /// `None` when the bytes are too few.
    pub(crate) fn header(self, bytes: &[u8]) -> Option<HeaderFields> {
        of_class!(self, header(bytes))
    }

    pub(crate) fn segments(self, bytes: &[u8]) -> impl Iterator<Item = SegmentFields> + '_ {
        records(bytes, self.segment_size(), move |bytes| of_class!(self, segment(bytes)))
    }

    pub(crate) fn sections(self, bytes: &[u8]) -> impl Iterator<Item = SectionFields> + '_ {
        records(bytes, self.section_size(), move |bytes| of_class!(self, section(bytes)))
    }

    pub(crate) fn symbols(self, bytes: &[u8]) -> impl Iterator<Item = SymbolFields> + '_ {
        records(bytes, self.symbol_size(), move |bytes| of_class!(self, symbol(bytes)))
    }

    /// Tags and values of a dynamic section, up to its end mark.
    pub(crate) fn dynamic_entries(self, bytes: &[u8]) -> Vec<(elf::DynamicTag, u64)> {
        let size = of_class!(self, size_of_dynamic_entry());
        let entries = records(bytes, size, move |bytes| of_class!(self, dynamic_entry(bytes)));
        entries.take_while(|(tag, _)| *tag != elf::DT_NULL).collect()
    }

    /// Kind and unpacked size that the header of a compressed section announces.
    pub(crate) fn compression(self, bytes: &[u8]) -> Option<(elf::CompressionType, u64)> {
        of_class!(self, compression(bytes))
    }
}

impl Class {
    /// Makes a header one of a file without segments whose section headers begin at `sections_at`.
    pub(crate) fn set_tables(self, header: &mut [u8], sections_at: u64) {
        match self {
            Class::Elf32 => {
                if let Ok((raw, _)) = pod::from_bytes_mut::<Header32>(header) {
                    raw.e_phoff.set(LE, 0);
                    raw.e_phnum.set(LE, 0);
                    raw.e_shoff.set(LE, sections_at as u32);
                }
            }
            Class::Elf64 => {
                if let Ok((raw, _)) = pod::from_bytes_mut::<Header64>(header) {
                    raw.e_phoff.set(LE, 0);
                    raw.e_phnum.set(LE, 0);
                    raw.e_shoff.set(LE, sections_at);
                }
            }
        }
    }

    /// Gives a section header another place in the file.
    pub(crate) fn set_place(self, section: &mut [u8], offset: u64, size: u64) {
        match self {
            Class::Elf32 => {
                if let Ok((raw, _)) = pod::from_bytes_mut::<elf::SectionHeader32<LE>>(section) {
                    raw.sh_offset.set(LE, offset as u32);
                    raw.sh_size.set(LE, size as u32);
                }
            }
            Class::Elf64 => {
                if let Ok((raw, _)) = pod::from_bytes_mut::<elf::SectionHeader64<LE>>(section) {
                    raw.sh_offset.set(LE, offset);
                    raw.sh_size.set(LE, size);
                }
            }
        }
    }
}

/// Relocations with addends of a 64-bit file.
pub(crate) fn relocations(bytes: &[u8]) -> impl Iterator<Item = RelocationFields> + '_ {
    records(bytes, size_of::<elf::Rela64<LE>>(), |bytes| {
        let raw: &elf::Rela64<LE> = first(bytes)?;
        Some(RelocationFields {
            slot: Rela::r_offset(raw, LE),
            symbol: Rela::r_sym(raw, LE, false),
            kind: Rela::r_type(raw, LE, false),
            addend: Rela::r_addend(raw, LE),
        })
    })
}

/// The first GNU build id in notes, which are aligned to 4, or to 8 where their segment says so.
pub(crate) fn build_id_in_notes(notes: &[u8], align: u64) -> Option<&[u8]> {
    let align = if align == 8 { 8 } else { 4 };
    let notes = NoteIterator::<Header64>::new(LE, align, notes).ok()?;
    let is_build_id = |note: &object::read::elf::Note<'_, Header64>| {
        note.n_type(LE) == elf::NT_GNU_BUILD_ID && note.name_bytes() == b"GNU\0"
    };
    notes.map_while(Result::ok).find(is_build_id).map(|note| note.desc())
}

/// One note of a note section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoteFields<'a> {
    pub kind: u32,
    /// Without the zero byte at its end.
    pub owner: &'a [u8],
    pub description: &'a [u8],
}

/// The notes of a section that aligns them to 4 bytes. `None` for a damaged note, which ends the list.
pub(crate) fn notes(bytes: &[u8]) -> impl Iterator<Item = Option<NoteFields<'_>>> {
    let notes = NoteIterator::<Header64>::new(LE, 4, bytes).into_iter().flatten();
    notes.map(|note| {
        let note = note.ok()?;
        Some(NoteFields { kind: note.n_type(LE).0, owner: note.name(), description: note.desc() })
    })
}

fn records<'a, T: 'a>(
    bytes: &'a [u8],
    size: usize,
    decode: impl Fn(&'a [u8]) -> Option<T> + 'a,
) -> impl Iterator<Item = T> + 'a {
    bytes.chunks_exact(size).filter_map(decode)
}

fn first<T: Pod>(bytes: &[u8]) -> Option<&T> {
    pod::from_bytes(bytes).ok().map(|(record, _)| record)
}

fn size_of_header<E: FileHeader>() -> usize {
    size_of::<E>()
}

fn size_of_segment<E: FileHeader>() -> usize {
    size_of::<E::ProgramHeader>()
}

fn size_of_section<E: FileHeader>() -> usize {
    size_of::<E::SectionHeader>()
}

fn size_of_symbol<E: FileHeader>() -> usize {
    size_of::<E::Sym>()
}

fn size_of_dynamic_entry<E: FileHeader>() -> usize {
    size_of::<E::Dyn>()
}

fn size_of_compression_header<E: FileHeader>() -> usize {
    size_of::<E::CompressionHeader>()
}

fn header<E: FileHeader<Endian = LE>>(bytes: &[u8]) -> Option<HeaderFields> {
    let raw: &E = first(bytes)?;
    Some(HeaderFields {
        machine: raw.e_machine(LE),
        segments_at: raw.e_phoff(LE).into(),
        segment_size: raw.e_phentsize(LE),
        segment_count: raw.e_phnum(LE),
        sections_at: raw.e_shoff(LE).into(),
        section_size: raw.e_shentsize(LE),
        section_count: raw.e_shnum(LE),
        section_names: raw.e_shstrndx(LE).0,
    })
}

fn segment<E: FileHeader<Endian = LE>>(bytes: &[u8]) -> Option<SegmentFields> {
    let raw: &E::ProgramHeader = first(bytes)?;
    Some(SegmentFields {
        kind: raw.p_type(LE),
        offset: raw.p_offset(LE).into(),
        file_size: raw.p_filesz(LE).into(),
        address: raw.p_vaddr(LE).into(),
        memory_size: raw.p_memsz(LE).into(),
        align: raw.p_align(LE).into(),
        is_executable: raw.p_flags(LE).contains(elf::PF_X),
    })
}

fn section<E: FileHeader<Endian = LE>>(bytes: &[u8]) -> Option<SectionFields> {
    let raw: &E::SectionHeader = first(bytes)?;
    Some(SectionFields {
        name_at: raw.sh_name(LE),
        kind: raw.sh_type(LE),
        flags: raw.sh_flags(LE),
        address: raw.sh_addr(LE).into(),
        offset: raw.sh_offset(LE).into(),
        size: raw.sh_size(LE).into(),
        link: raw.sh_link(LE),
        align: raw.sh_addralign(LE).into(),
    })
}

fn symbol<E: FileHeader<Endian = LE>>(bytes: &[u8]) -> Option<SymbolFields> {
    let raw: &E::Sym = first(bytes)?;
    Some(SymbolFields {
        name_at: raw.st_name(LE),
        kind: raw.st_type(),
        binding: raw.st_bind(),
        is_defined: !raw.is_undefined(LE),
        value: raw.st_value(LE).into(),
        size: raw.st_size(LE).into(),
    })
}

fn dynamic_entry<E: FileHeader<Endian = LE>>(bytes: &[u8]) -> Option<(elf::DynamicTag, u64)> {
    let raw: &E::Dyn = first(bytes)?;
    Some((raw.d_tag(LE), raw.d_val(LE).into()))
}

fn compression<E: FileHeader<Endian = LE>>(bytes: &[u8]) -> Option<(elf::CompressionType, u64)> {
    let raw: &E::CompressionHeader = first(bytes)?;
    Some((raw.ch_type(LE), raw.ch_size(LE).into()))
}
