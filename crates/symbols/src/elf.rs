//! The facts of an ELF file that other parts need before any symbol: its build id, and how file offsets
//! become virtual addresses. Sections are read by [`crate::section`], symbols by [`crate::resolver`].
//!
//! Formats: `elf(5)`; build-id note: `man ld`, `--build-id`. 32- and 64-bit, little-endian.

use std::fs::File;
use std::path::Path;

use crate::live_file::open_regular;
use crate::read_at::{ReadAt, read_bounded};
use crate::section;

/// More program headers than any linker writes.
const MAX_SEGMENTS: u64 = 1024;
/// Note segments are a few hundred bytes; core files, which have big ones, are not code.
const MAX_NOTES: u64 = 64 << 10;
/// SHA-1 is 20 bytes, `--build-id=0x…` can be anything; the kernel reports at most 20 itself.
const MAX_BUILD_ID: usize = 64;

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PF_X: u32 = 1;
const NT_GNU_BUILD_ID: u32 = 3;

/// Why a file's headers say nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElfError {
    /// The file does not begin with the ELF magic.
    NotElf,
    /// A class or byte order this version does not read.
    ForeignFormat,
    /// A header or table lies outside the file.
    Truncated,
    /// A table is larger than any linker makes it.
    Oversized,
}

/// The part of the ELF header that leads to the tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElfHeader {
    pub wide: bool,
    pub machine: u16,
    segments_at: u64,
    segment_size: u16,
    segment_count: u16,
    pub sections_at: u64,
    pub section_size: u16,
    pub section_count: u16,
    pub section_names: u16,
}

/// A loadable segment: file bytes `[offset, offset + file_size)` live at `address`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub offset: u64,
    pub file_size: u64,
    pub address: u64,
    pub executable: bool,
}

/// What one look at the headers gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ElfFacts {
    pub build_id: Option<Vec<u8>>,
    pub segments: Vec<Segment>,
}

impl ElfFacts {
    pub(crate) fn read<R: ReadAt + ?Sized>(source: &R) -> Result<Self, ElfError> {
        let header = ElfHeader::read(source)?;
        let table = header.segment_table(source)?;
        Ok(ElfFacts {
            build_id: build_id_from_headers(source, &header, &table),
            segments: table.iter().filter(|raw| raw.kind == PT_LOAD).map(|raw| raw.segment).collect(),
        })
    }

    /// What to add (wrapping) to an address of a mapping to get its ELF virtual address, when the mapping
    /// shows the file from `file_offset` on at `start`, for `len` bytes. `None` when no segment is there.
    pub(crate) fn bias(&self, start: u64, len: u64, file_offset: u64) -> Option<u64> {
        let overlap = |segment: &&Segment| {
            // The kernel maps whole pages, so a mapping starts at or before its segment.
            let from = segment.offset.max(file_offset);
            let to = segment.offset.saturating_add(segment.file_size).min(file_offset.saturating_add(len));
            (segment.executable, to.saturating_sub(from))
        };
        let segment = self.segments.iter().max_by_key(overlap).filter(|segment| overlap(segment).1 > 0)?;
        let address_of_start = segment.address.wrapping_sub(segment.offset).wrapping_add(file_offset);
        Some(address_of_start.wrapping_sub(start))
    }
}

impl ElfFacts {
    /// What to add (wrapping) to an offset in the file to get the ELF virtual address of the code there; `None` when
    /// it differs from one executable segment to another.
    pub(crate) fn code_delta(&self) -> Option<u64> {
        let executable = self.segments.iter().filter(|segment| segment.executable);
        let mut deltas = executable.map(|segment| segment.address.wrapping_sub(segment.offset));
        let first = deltas.next()?;
        deltas.all(|delta| delta == first).then_some(first)
    }
}

/// The build id of an open file; `None` also for files that are damaged or no ELF.
pub fn build_id(file: &File) -> Option<Vec<u8>> {
    ElfFacts::read(file).ok()?.build_id
}

/// The build id of the regular file at `path`.
pub fn build_id_of_path(path: &Path) -> Option<Vec<u8>> {
    build_id(&open_regular(path).ok()?)
}

/// Whether the file at `path` is the one that `wanted` names.
pub fn path_has_build_id(path: &Path, wanted: &[u8]) -> bool {
    build_id_of_path(path).as_deref() == Some(wanted)
}

/// One program header with its type.
pub(crate) struct RawSegment {
    pub kind: u32,
    align: u64,
    pub segment: Segment,
}

impl ElfHeader {
    pub(crate) fn read<R: ReadAt + ?Sized>(source: &R) -> Result<Self, ElfError> {
        let mut ident = [0; 16];
        source.read_exact_at(&mut ident, 0).map_err(|_| ElfError::NotElf)?;
        if !ident.starts_with(b"\x7fELF") {
            return Err(ElfError::NotElf);
        }
        let wide = match (ident[4], ident[5]) {
            (1, 1) => false,
            (2, 1) => true,
            _ => return Err(ElfError::ForeignFormat),
        };
        let mut bytes = [0; 64];
        let header = if wide { &mut bytes[..64] } else { &mut bytes[..52] };
        source.read_exact_at(header, 0).map_err(|_| ElfError::Truncated)?;
        let fields = Fields { bytes: header, wide };
        // Offsets after e_entry, e_phoff and e_shoff, which have the width of the class.
        let tail = if wide { 52 } else { 40 };
        Ok(ElfHeader {
            wide,
            machine: fields.half(18),
            segments_at: if wide { fields.long(32) } else { fields.word(28).into() },
            segment_size: fields.half(tail + 2),
            segment_count: fields.half(tail + 4),
            sections_at: if wide { fields.long(40) } else { fields.word(32).into() },
            section_size: fields.half(tail + 6),
            section_count: fields.half(tail + 8),
            section_names: fields.half(tail + 10),
        })
    }

    pub(crate) fn segment_table<R: ReadAt + ?Sized>(&self, source: &R) -> Result<Vec<RawSegment>, ElfError> {
        let entry = if self.wide { 56 } else { 32 };
        if self.segment_count > 0 && self.segment_size != entry {
            return Err(ElfError::Truncated);
        }
        if u64::from(self.segment_count) > MAX_SEGMENTS {
            return Err(ElfError::Oversized);
        }
        let len = u64::from(self.segment_count) * u64::from(entry);
        let bytes = read_bounded(source, self.segments_at, len, len).ok_or(ElfError::Truncated)?;
        Ok(bytes.chunks_exact(usize::from(entry)).map(|entry| self.segment_from(entry)).collect())
    }

    fn segment_from(&self, bytes: &[u8]) -> RawSegment {
        let fields = Fields { bytes, wide: self.wide };
        // p_flags comes second in 64-bit headers and seventh in 32-bit ones.
        let [flags, offset, address, file_size, align] =
            if self.wide { [4, 8, 16, 32, 48] } else { [24, 4, 8, 16, 28] };
        RawSegment {
            kind: fields.word(0),
            align: fields.native(align),
            segment: Segment {
                offset: fields.native(offset),
                file_size: fields.native(file_size),
                address: fields.native(address),
                executable: fields.word(flags) & PF_X != 0,
            },
        }
    }
}

/// Little-endian fields of a header; a field outside reads as 0, which no caller can reach by checking sizes first.
pub(crate) struct Fields<'a> {
    pub bytes: &'a [u8],
    pub wide: bool,
}

impl Fields<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
    }

    pub(crate) fn half(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    pub(crate) fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    pub(crate) fn long(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    /// A field as wide as the file's class.
    pub(crate) fn native(&self, at: usize) -> u64 {
        if self.wide { self.long(at) } else { self.word(at).into() }
    }
}

/// From the note segments, as the kernel does; a debug file's may be stale, its note sections are not.
fn build_id_from_headers<R: ReadAt + ?Sized>(
    source: &R,
    header: &ElfHeader,
    table: &[RawSegment],
) -> Option<Vec<u8>> {
    let notes = |offset, size: u64, align| {
        let bytes = read_bounded(source, offset, size.min(MAX_NOTES), MAX_NOTES)?;
        build_id_from_notes(&bytes, align)
    };
    let from_segments = || {
        let note_segments = table.iter().filter(|raw| raw.kind == PT_NOTE);
        note_segments
            .filter_map(|raw| notes(raw.segment.offset, raw.segment.file_size, raw.align as usize))
            .next()
    };
    let from_sections = || {
        let sections = section::read_table(source, header).ok()?;
        let note_sections = sections.iter().filter(|section| section.is_note());
        note_sections.filter_map(|section| notes(section.offset, section.size, section.align as usize)).next()
    };
    from_segments().or_else(from_sections)
}

/// Notes are aligned to 4, or to 8 where their segment says so.
fn build_id_from_notes(mut notes: &[u8], align: usize) -> Option<Vec<u8>> {
    let align = if align == 8 { 8 } else { 4 };
    while notes.len() >= 12 {
        let fields = Fields { bytes: notes, wide: false };
        let (name_size, id_size) = (fields.word(0) as usize, fields.word(4) as usize);
        let name = notes.get(12..12usize.checked_add(name_size)?)?;
        let id_at = (12 + name_size).checked_next_multiple_of(align)?;
        let id_end = id_at.checked_add(id_size)?;
        let id = notes.get(id_at..id_end)?;
        if fields.word(8) == NT_GNU_BUILD_ID && name == b"GNU\0" {
            return (1..=MAX_BUILD_ID).contains(&id.len()).then(|| id.to_vec());
        }
        notes = notes.get(id_end.checked_next_multiple_of(align)?..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    static OWN_IMAGE: LazyLock<Vec<u8>> =
        LazyLock::new(|| std::fs::read("/proc/self/exe").expect("the test's own binary"));

    fn note(name: &[u8], kind: u32, id: &[u8], align: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [name.len() as u32, id.len() as u32, kind] {
            bytes.extend(word.to_le_bytes());
        }
        for part in [name, id] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(align), 0);
        }
        bytes
    }

    #[test]
    fn a_build_id_is_found_behind_other_notes() {
        let mut notes = note(b"GNU\0", 5, &[9; 16], 4);
        notes.extend(note(b"Go\0\0", NT_GNU_BUILD_ID, b"not this", 4));
        notes.extend(note(b"GNU\0", NT_GNU_BUILD_ID, &[7; 20], 4));
        assert_eq!(build_id_from_notes(&notes, 4), Some(vec![7; 20]));
        let wide = [note(b"GNU\0", 5, &[9; 12], 8), note(b"GNU\0", 3, &[1; 8], 8)].concat();
        assert_eq!(build_id_from_notes(&wide, 8), Some(vec![1; 8]));
    }

    #[test]
    fn an_impossible_build_id_is_none() {
        assert_eq!(build_id_from_notes(&note(b"GNU\0", NT_GNU_BUILD_ID, &[], 4), 4), None);
        assert_eq!(build_id_from_notes(&note(b"GNU\0", NT_GNU_BUILD_ID, &[1; 65], 4), 4), None);
        let mut liar = note(b"GNU\0", NT_GNU_BUILD_ID, &[1; 20], 4);
        liar[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(build_id_from_notes(&liar, 4), None);
    }

    #[test]
    fn the_own_binary_has_executable_segments() {
        let facts = ElfFacts::read(OWN_IMAGE.as_slice()).expect("a valid ELF file");
        assert!(facts.segments.iter().any(|segment| segment.executable));
    }

    #[test]
    fn the_bias_prefers_the_executable_segment_of_a_shared_page() {
        let segment =
            |offset, file_size, address, executable| Segment { offset, file_size, address, executable };
        let facts = ElfFacts {
            build_id: None,
            // The layout of lld: segments share a page of the file and lie a page apart in memory.
            segments: vec![segment(0, 0x5e4, 0, false), segment(0x5f0, 0x1a0, 0x15f0, true)],
        };
        let bias = facts.bias(0x7f00_0000_1000, 0x1000, 0).expect("a segment");
        assert_eq!(0x7f00_0000_15f0u64.wrapping_add(bias), 0x15f0);
        assert_eq!(facts.bias(0x1000, 0x1000, 0x5000), None);
        assert_eq!(ElfFacts::default().bias(0, u64::MAX, 0), None);
    }

    #[test]
    fn every_truncation_is_an_error_or_less_knowledge() {
        let image = &*OWN_IMAGE;
        let header = ElfHeader::read(image.as_slice()).expect("a valid ELF file");
        let segments_end = header.segments_at as usize + 56 * usize::from(header.segment_count);
        for len in (0..segments_end).chain([header.sections_at as usize, image.len() - 1]) {
            let facts = ElfFacts::read(&image[..len]);
            assert_eq!(facts.is_ok(), len >= segments_end, "cut to {len} bytes");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 64..2048), align in 0usize..16) {
            let _ = build_id_from_notes(&bytes, align);
            bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
            let _ = ElfFacts::read(bytes.as_slice());
            bytes[4] = 1;
            let _ = ElfFacts::read(bytes.as_slice());
        }

        #[test]
        fn damaged_headers_never_panic(damage in proptest::collection::vec((0usize..1024, any::<u8>()), 1..24)) {
            let mut image = OWN_IMAGE[..64 << 10].to_vec();
            for (at, value) in damage {
                image[at] = value;
            }
            if let Ok(facts) = ElfFacts::read(image.as_slice()) {
                let _ = facts.bias(0x1000, u64::MAX, 0x1000);
            }
        }
    }
}
