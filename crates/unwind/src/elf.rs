// SPDX-License-Identifier: Apache-2.0
//! Reads the parts of an ELF image that a table needs: its code, the bytes of its sections, and bytes at
//! virtual addresses.
//!
//! Formats: `elf(5)`, 64-bit little-endian, x86_64 and aarch64. Every size is checked against the image, so
//! that memory is proportional to it.

use std::borrow::Cow;
use std::io::Read;

use crate::bytes::Bytes;
use crate::error::{Part, TableError};
use crate::image::{Image, Meter};

const ET_EXEC: u16 = 2;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_X: u32 = 1;
const SHT_SYMTAB: u32 = 2;
const SHT_RELA: u32 = 4;
const SHT_NOBITS: u32 = 8;
const SHT_DYNSYM: u32 = 11;
const SHF_EXECINSTR: u64 = 4;
const SHF_COMPRESSED: u64 = 1 << 11;
const COMPRESSED_ZLIB: u32 = 1;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
const DT_FLAGS_1: u64 = 0x6fff_fffb;
const DF_1_PIE: u64 = 0x0800_0000;

const HEADER_BYTES: u64 = 64;
const SEGMENT_BYTES: usize = 56;
const SECTION_BYTES: u64 = 64;
const SYMBOL_BYTES: usize = 24;
const RELA_BYTES: usize = 24;
const DYNAMIC_BYTES: usize = 16;
/// The header before a compressed section's data.
const COMPRESSED_HEADER_BYTES: usize = 24;
/// Limit on the bytes of a symbol's name that are compared. The longest names of templates have some 10 KB.
const MAX_NAME: usize = 16 << 10;
/// Limit on the bytes of `.eh_frame_hdr` that are read: its fixed fields.
const MAX_HEADER: u64 = 32;
/// Limit on the names of a symbol table.
const MAX_NAMES: u64 = 16 << 20;
/// Entries of a section that are read at once.
const PART_ENTRIES: usize = 4096;
/// Bytes that one step of the budget pays for.
const STEP_BYTES: u64 = 16;
/// Limit on program headers. No linker writes as many.
const MAX_SEGMENTS: u16 = 4096;
/// User addresses are below this: five-level page tables have 56 bits for them.
const MAX_ADDRESS: u64 = 1 << 56;
/// Limit on an expanded section. The `.debug_frame` of the largest programs has some 10 MB.
const MAX_EXPANDED: u64 = 256 << 20;

/// The supported architectures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    X86_64,
    Aarch64,
}

/// `[start, end)` of virtual addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub start: u64,
    pub end: u64,
}

/// A program header: file bytes at `offset` are mapped at `address`.
#[derive(Clone, Copy, Debug)]
struct Segment {
    kind: u32,
    executable: bool,
    offset: u64,
    address: u64,
    /// The bytes that the image has.
    len: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    kind: u32,
    flags: u64,
    pub address: u64,
    offset: u64,
    size: u64,
    link: u32,
}

pub(crate) struct Elf<'a> {
    image: &'a dyn Image,
    pub meter: &'a Meter<'a>,
    pub machine: Machine,
    kind: u16,
    entry: u64,
    segments: Vec<Segment>,
    sections_at: u64,
    /// The section headers.
    sections: Cow<'a, [u8]>,
    /// `.shstrtab`.
    names: Cow<'a, [u8]>,
}

impl<'a> Elf<'a> {
    pub(crate) fn read(image: &'a dyn Image, meter: &'a Meter<'a>) -> Result<Self, TableError> {
        let header = Header::read(image)?;
        let mut elf = Elf {
            image,
            meter,
            machine: header.machine,
            kind: header.kind,
            entry: header.entry,
            segments: read_segments(image, &header, meter)?,
            sections_at: header.sections_at,
            sections: Cow::Borrowed(&[]),
            names: Cow::Borrowed(&[]),
        };
        elf.find_sections(&header)?;
        Ok(elf)
    }

    /// Large section tables keep their counts in section 0. Files without section headers are valid.
    fn find_sections(&mut self, header: &Header) -> Result<(), TableError> {
        if self.sections_at == 0 || u64::from(header.section_size) != SECTION_BYTES {
            return Ok(());
        }
        let mut count = u64::from(header.section_count);
        if count == 0 {
            self.sections = self.image.bytes(self.sections_at, SECTION_BYTES).unwrap_or_default();
            count = self.section(0).map_or(0, |(_, first)| first.size);
        }
        let len = count.checked_mul(SECTION_BYTES);
        let sections = len.and_then(|len| self.bytes(self.sections_at, len));
        self.sections = sections.ok_or(TableError::Truncated(Part::Sections))?;
        let names = match header.names {
            0xffff => self.section(0).map_or(0, |(_, first)| first.link.into()),
            names => names.into(),
        };
        let names = self.section(names).and_then(|(_, names)| self.section_bytes(&names));
        self.names = names.unwrap_or_default();
        Ok(())
    }

    /// Bytes of the image. Their memory is charged and not released.
    fn bytes(&self, offset: u64, len: u64) -> Option<Cow<'a, [u8]>> {
        let inside = offset.checked_add(len)? <= self.image.size();
        if inside && self.meter.hold(len) { self.image.bytes(offset, len) } else { None }
    }

    /// The offset of its name, and the section.
    fn section(&self, index: u64) -> Option<(u32, Section)> {
        let at = usize::try_from(index.checked_mul(SECTION_BYTES)?).ok()?;
        let mut header = Bytes::new(self.sections.get(at..)?.get(..SECTION_BYTES as usize)?);
        let (name, kind, flags) = (header.u32()?, header.u32()?, header.u64()?);
        let (address, offset, size) = (header.u64()?, header.u64()?, header.u64()?);
        Some((name, Section { kind, flags, address, offset, size, link: header.u32()? }))
    }

    fn sections(&self) -> impl Iterator<Item = (u32, Section)> + '_ {
        (0..self.sections.len() as u64 / SECTION_BYTES).filter_map(|index| self.section(index))
    }

    pub(crate) fn section_named(&self, name: &str) -> Option<Section> {
        let named = |&(at, _): &(u32, Section)| is_text_at(&self.names, at, name);
        self.sections().find(named).map(|(_, section)| section)
    }

    /// The bytes as the image has them. `None` if they are not all in it, or if the budget refuses them.
    pub(crate) fn section_bytes(&self, section: &Section) -> Option<Cow<'a, [u8]>> {
        if section.kind == SHT_NOBITS {
            return None;
        }
        self.bytes(section.offset, section.size)
    }

    /// Searches a section's entries of `N` bytes. `look` gets the number and the bytes of each. The section
    /// is read in parts, so that its length costs no memory.
    pub(crate) fn find_entry<const N: usize, T>(
        &self,
        section: &Section,
        mut look: impl FnMut(usize, &[u8; N]) -> Option<T>,
    ) -> Option<T> {
        if section.kind == SHT_NOBITS {
            return None;
        }
        let count = usize::try_from(section.size).ok()? / N;
        for first in (0..count).step_by(PART_ENTRIES) {
            let len = (count - first).min(PART_ENTRIES) * N;
            let offset = section.offset.checked_add((first * N) as u64)?;
            let is_allowed = self.meter.step(len as u64 / STEP_BYTES);
            let bytes = is_allowed.then(|| self.image.bytes(offset, len as u64)).flatten()?;
            let (entries, _) = bytes.as_chunks::<N>();
            let found = entries.iter().enumerate().find_map(|(number, entry)| look(first + number, entry));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Calls `look` with the names of a symbol table, which are released afterwards. More than [`MAX_NAMES`]
    /// are not read, because they only help where unwind entries are missing.
    fn with_names<T>(&self, table: &Section, look: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        let (_, names) = self.section(table.link.into())?;
        let bytes = if names.size <= MAX_NAMES { self.section_bytes(&names)? } else { return None };
        let charged = bytes.len() as u64;
        let found = self.meter.step(1).then(|| look(&bytes)).flatten();
        drop(bytes);
        self.meter.release(charged);
        found
    }

    /// A section's bytes, decompressed.
    pub(crate) fn expanded(&self, section: &Section) -> Result<Cow<'a, [u8]>, TableError> {
        let truncated = TableError::Truncated(Part::UnwindSection);
        let bytes = self.section_bytes(section).ok_or(truncated)?;
        if section.flags & SHF_COMPRESSED == 0 {
            return Ok(bytes);
        }
        let (header, data) = bytes.split_at_checked(COMPRESSED_HEADER_BYTES).ok_or(truncated)?;
        let kind = Bytes::new(header).u32().ok_or(truncated)?;
        if kind != COMPRESSED_ZLIB {
            return Err(TableError::Compression(kind));
        }
        self.inflate(data, Bytes::at(header, 8).u64().ok_or(truncated)?)
    }

    /// The old form of compression, of sections named `.zdebug_*`: "ZLIB", and the size in big-endian.
    pub(crate) fn expanded_zdebug(&self, section: &Section) -> Result<Cow<'a, [u8]>, TableError> {
        let truncated = TableError::Truncated(Part::UnwindSection);
        let bytes = self.section_bytes(section).ok_or(truncated)?;
        let bytes = bytes.strip_prefix(b"ZLIB").ok_or(truncated)?;
        let (size, data) = bytes.split_first_chunk().ok_or(truncated)?;
        self.inflate(data, u64::from_be_bytes(*size))
    }

    fn inflate(&self, data: &[u8], size: u64) -> Result<Cow<'a, [u8]>, TableError> {
        if size > MAX_EXPANDED {
            return Err(TableError::BadCompression);
        }
        if !self.meter.hold(size) {
            return Err(TableError::OverBudget);
        }
        inflate(data, size)
    }

    /// The file offset of the byte at `address`, and the number of bytes that its segment has from there.
    fn place(&self, address: u64) -> Option<(u64, u64)> {
        let holds = |segment: &&Segment| {
            segment.kind == PT_LOAD && address.wrapping_sub(segment.address) < segment.len
        };
        let segment = self.segments.iter().find(holds)?;
        let skip = address - segment.address;
        Some((segment.offset + skip, segment.len - skip))
    }

    /// The bytes from `address` to the end of its segment in the image.
    pub(crate) fn bytes_from(&self, address: u64) -> Option<Cow<'a, [u8]>> {
        let (offset, len) = self.place(address)?;
        self.bytes(offset, len)
    }

    /// Fills `buffer` from `address` on, as far as the segment has bytes. Returns the filled part.
    pub(crate) fn read_at<'b>(&self, address: u64, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        let (offset, len) = self.place(address)?;
        let len = usize::try_from(len).map_or(buffer.len(), |len| len.min(buffer.len()));
        let buffer = &mut buffer[..len];
        self.image.read(offset, buffer).then_some(&*buffer)
    }

    pub(crate) fn word_at(&self, address: u64) -> Option<u64> {
        Bytes::new(self.read_at(address, &mut [0; 8])?).u64()
    }

    /// Calls `look` with the code in `range`, as far as its segment has it. The bytes are released
    /// afterwards.
    pub(crate) fn look_at(&self, range: Range, look: impl FnOnce(&[u8])) {
        let Some((offset, len)) = self.place(range.start) else { return };
        let len = len.min(range.end - range.start);
        if let Some(code) = self.bytes(offset, len) {
            look(&code);
            drop(code);
            self.meter.release(len);
        }
    }

    /// The ranges that may have code: executable segments, ascending and disjoint, together no larger than
    /// the image.
    pub(crate) fn code(&self) -> Vec<Range> {
        let is_code = |segment: &&Segment| {
            segment.kind == PT_LOAD && segment.executable && segment.address + segment.len <= MAX_ADDRESS
        };
        let mut segments: Vec<&Segment> = self.segments.iter().filter(is_code).collect();
        segments.sort_by_key(|segment| segment.address);
        let mut left = self.image.size();
        let mut code: Vec<Range> = Vec::new();
        for segment in segments {
            let start = code.last().map_or(segment.address, |last| segment.address.max(last.end));
            let len = (segment.address + segment.len).saturating_sub(start).min(left);
            if len > 0 {
                left -= len;
                code.push(Range { start, end: start + len });
            }
        }
        code
    }

    /// `.eh_frame_hdr`'s address and bytes, by program header.
    pub(crate) fn eh_frame_header(&self) -> Option<(u64, Cow<'a, [u8]>)> {
        let segment = self.segments.iter().find(|segment| segment.kind == PT_GNU_EH_FRAME)?;
        let len = segment.len.min(MAX_HEADER);
        Some((segment.address, self.bytes(segment.offset, len)?))
    }

    /// The entry point of a program. Old linkers gave libraries the start of `.text` as their entry, which is
    /// not one.
    pub(crate) fn entry(&self) -> Option<u64> {
        let is_program = self.kind == ET_EXEC
            || self.segments.iter().any(|segment| segment.kind == PT_INTERP)
            || self.is_pie()
            || self.section_named(".text").is_some_and(|text| text.address != self.entry);
        (self.entry != 0 && is_program).then_some(self.entry)
    }

    /// This flag distinguishes a static position-independent program from a library.
    fn is_pie(&self) -> bool {
        let dynamic = self.segments.iter().find(|segment| segment.kind == PT_DYNAMIC);
        let bytes = dynamic.and_then(|dynamic| self.bytes(dynamic.offset, dynamic.len));
        let bytes = bytes.unwrap_or_default();
        let (tags, _) = bytes.as_chunks::<DYNAMIC_BYTES>();
        tags.iter().any(|tag| {
            let mut tag = Bytes::new(tag);
            tag.u64() == Some(DT_FLAGS_1) && tag.u64().is_some_and(|flags| flags & DF_1_PIE != 0)
        })
    }

    /// The value of the symbol `name` in the full symbol table.
    pub(crate) fn symbol(&self, name: &str) -> Option<u64> {
        let (_, table) = self.sections().find(|(_, section)| section.kind == SHT_SYMTAB)?;
        self.with_names(&table, |names| {
            self.find_entry(&table, |_, symbol: &[u8; SYMBOL_BYTES]| {
                let is_named = is_text_at(names, Bytes::new(symbol).u32()?, name);
                if is_named { Bytes::at(symbol, 8).u64() } else { None }
            })
        })
    }

    /// The starts of functions, by all symbol tables. Parts that compilers move elsewhere, `NAME.cold`, are
    /// left out.
    pub(crate) fn functions(&self) -> Vec<u64> {
        let tables = self.sections().filter(|(_, section)| matches!(section.kind, SHT_SYMTAB | SHT_DYNSYM));
        tables.flat_map(|(_, table)| self.functions_of(&table).unwrap_or_default()).collect()
    }

    fn functions_of(&self, table: &Section) -> Option<Vec<u64>> {
        self.with_names(table, |names| {
            let mut functions = Vec::new();
            let refused = self.find_entry(table, |_, symbol: &[u8; SYMBOL_BYTES]| {
                let start = Bytes::at(symbol, 8).u64().filter(|&start| start != 0)?;
                if is_whole_function(symbol, names) {
                    functions.push(start);
                    return (!self.meter.hold(size_of::<u64>() as u64)).then_some(());
                }
                None
            });
            refused.is_none().then_some(functions)
        })
    }

    /// Code without the read-only data that linkers may put beside it, if there are section headers.
    /// Ascending and disjoint.
    pub(crate) fn code_sections(&self) -> Vec<Range> {
        let sections = self.sections().map(|(_, section)| section);
        let code =
            sections.filter(|section| section.flags & SHF_EXECINSTR != 0 && section.kind != SHT_NOBITS);
        let end = |section: &Section| {
            Some(Range { start: section.address, end: section.address.checked_add(section.size)? })
        };
        let mut code: Vec<Range> = code.filter_map(|section| end(&section)).collect();
        if code.is_empty() {
            return self.code();
        }
        code.sort_unstable_by_key(|range| range.start);
        let mut from = 0;
        code.retain_mut(|range| {
            range.start = range.start.max(from);
            from = from.max(range.end);
            range.start < range.end
        });
        code
    }

    /// The word at `address` after relocation. Position-independent files may have pointers in their
    /// relocations only.
    pub(crate) fn relocated_word(&self, address: u64) -> Option<u64> {
        let mut tables = self.sections().filter(|(_, section)| section.kind == SHT_RELA);
        let find = |_, entry: &[u8; RELA_BYTES]| {
            if entry[..8] == address.to_le_bytes() { Bytes::at(entry, 16).u64() } else { None }
        };
        let found = tables.find_map(|(_, table)| self.find_entry(&table, find));
        found.or_else(|| self.word_at(address))
    }
}

/// The fields of the ELF header that locate other parts.
struct Header {
    machine: Machine,
    kind: u16,
    entry: u64,
    segments_at: u64,
    segment_size: u16,
    segment_count: u16,
    sections_at: u64,
    section_size: u16,
    section_count: u16,
    names: u16,
}

impl Header {
    fn read(image: &dyn Image) -> Result<Self, TableError> {
        let truncated = TableError::Truncated(Part::Header);
        let start = image.bytes(0, image.size().min(HEADER_BYTES)).ok_or(truncated)?;
        let image = &*start;
        if !image.starts_with(b"\x7fELF") {
            return Err(TableError::NotElf);
        }
        let format = image.get(4..6).ok_or(truncated)?;
        if format != [2, 1] {
            return Err(TableError::ForeignFormat);
        }
        let (mut header, machine) = Self::fields(image).ok_or(truncated)?;
        header.machine = match machine {
            62 => Machine::X86_64,
            183 => Machine::Aarch64,
            other => return Err(TableError::ForeignMachine(other)),
        };
        Ok(header)
    }

    /// A header, and its machine number.
    fn fields(image: &[u8]) -> Option<(Self, u16)> {
        let mut header = Bytes::at(image, 16);
        let (kind, machine, _version) = (header.u16()?, header.u16()?, header.u32()?);
        let (entry, segments_at, sections_at) = (header.u64()?, header.u64()?, header.u64()?);
        let (_flags, _size) = (header.u32()?, header.u16()?);
        let (segment_size, segment_count) = (header.u16()?, header.u16()?);
        let (section_size, section_count, names) = (header.u16()?, header.u16()?, header.u16()?);
        let header = Header {
            machine: Machine::X86_64,
            kind,
            entry,
            segments_at,
            segment_size,
            segment_count,
            sections_at,
            section_size,
            section_count,
            names,
        };
        Some((header, machine))
    }
}

fn read_segments(image: &dyn Image, header: &Header, meter: &Meter) -> Result<Vec<Segment>, TableError> {
    let truncated = TableError::Truncated(Part::Segments);
    if header.segment_count == 0 {
        return Ok(Vec::new());
    }
    if usize::from(header.segment_size) != SEGMENT_BYTES || header.segment_count > MAX_SEGMENTS {
        return Err(truncated);
    }
    let len = u64::from(header.segment_count) * SEGMENT_BYTES as u64;
    let headers = meter.hold(len).then(|| image.bytes(header.segments_at, len)).flatten().ok_or(truncated)?;
    let (headers, _) = headers.as_chunks::<SEGMENT_BYTES>();
    Ok(headers.iter().filter_map(|header| segment(image.size(), header)).collect())
}

/// A segment. Its length is cut to the bytes that the image has.
fn segment(image_size: u64, header: &[u8]) -> Option<Segment> {
    let mut header = Bytes::new(header);
    let (kind, flags, offset, address) = (header.u32()?, header.u32()?, header.u64()?, header.u64()?);
    let (_physical, file_size) = (header.u64()?, header.u64()?);
    let in_image = image_size.saturating_sub(offset);
    let len = file_size.min(in_image).min(u64::MAX - address);
    Some(Segment { kind, executable: flags & PF_X != 0, offset, address, len })
}

/// The parts that compilers move elsewhere, `NAME.cold`, are not functions.
fn is_whole_function(symbol: &[u8; SYMBOL_BYTES], names: &[u8]) -> bool {
    let name = Bytes::new(symbol).u32().and_then(|at| names.get(at as usize..)).unwrap_or(&[]);
    let name = &name[..name.len().min(MAX_NAME)];
    let name = &name[..name.iter().position(|&byte| byte == 0).unwrap_or(name.len())];
    matches!(symbol[4] & 15, STT_FUNC | STT_GNU_IFUNC) && !name.windows(5).any(|part| part == b".cold")
}

/// Whether the zero-terminated text at `at` is `text`.
fn is_text_at(bytes: &[u8], at: u32, text: &str) -> bool {
    let rest = bytes.get(at as usize..).and_then(|rest| rest.strip_prefix(text.as_bytes()));
    rest.is_some_and(|rest| rest.first() == Some(&0))
}

fn inflate(data: &[u8], size: u64) -> Result<Cow<'static, [u8]>, TableError> {
    let mut expanded = Vec::new();
    let one_more = size.min(MAX_EXPANDED) + 1;
    let read = flate2::read::ZlibDecoder::new(data).take(one_more).read_to_end(&mut expanded);
    match read {
        Ok(len) if len as u64 == size => Ok(Cow::Owned(expanded)),
        _ => Err(TableError::BadCompression),
    }
}
