// SPDX-License-Identifier: Apache-2.0
//! Facts of an ELF file that are needed before any symbol: its build id, and how file offsets become virtual
//! addresses. Sections are read by [`crate::section`], symbols by [`crate::resolver`].
//!
//! Formats: `elf(5)`; build-id note: `man ld`, `--build-id`. 32- and 64-bit, little-endian.

use std::fs::File;
use std::path::Path;

use object::elf::{
    DataEncoding, ELFCLASS32, ELFCLASS64, ELFDATA2LSB, ELFMAG, FileClass, Ident, PT_LOAD, PT_NOTE,
};

use crate::elf_records::{Class, HeaderFields, SegmentFields, build_id_in_notes};
use crate::live_file::open_regular;
use crate::read_at::{ReadAt, read_bounded};
use crate::section;

/// More program headers than any linker writes.
const MAX_SEGMENTS: u64 = 1024;
/// Note segments are a few hundred bytes; core files, which have big ones, are not code.
const MAX_NOTES: u64 = 64 << 10;
/// SHA-1 is 20 bytes, `--build-id=0x…` can be anything; the kernel reports at most 20 itself.
const MAX_BUILD_ID: usize = 64;

/// Why a file's headers cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElfError {
    /// The file does not begin with the ELF magic.
    NotElf,
    /// A class or byte order this version does not read.
    ForeignFormat,
    /// A header or table lies outside the file.
    Truncated,
    /// A table is larger than linkers write it.
    Oversized,
}

/// The ELF header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElfHeader {
    pub class: Class,
    pub fields: HeaderFields,
}

/// A loadable segment: file bytes `[offset, offset + file_size)` live at `address`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub offset: u64,
    pub file_size: u64,
    pub address: u64,
    pub executable: bool,
}

/// Build id and segments, from one reading of the headers.
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
            segments: table.iter().filter(|raw| raw.kind == PT_LOAD).map(Segment::from).collect(),
        })
    }

    /// The number to add (wrapping) to an address of a mapping to get its ELF virtual address, when the
    /// mapping shows the file from `file_offset` on at `start`, for `len` bytes. `None` when no segment is
    /// there.
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
    /// The number to add (wrapping) to an offset in the file to get the ELF virtual address of the code
    /// there;
    /// `None` when it differs from one executable segment to another.
    pub(crate) fn code_delta(&self) -> Option<u64> {
        let executable = self.segments.iter().filter(|segment| segment.executable);
        let mut deltas = executable.map(|segment| segment.address.wrapping_sub(segment.offset));
        let first = deltas.next()?;
        deltas.all(|delta| delta == first).then_some(first)
    }
}

/// Where the code of a file is, by the headers of a separate debug file. That has the addresses of the
/// segments, but `objcopy --only-keep-debug` leaves no offsets and no sizes in the file.
pub(crate) struct CodeLayout {
    segments: Vec<SegmentFields>,
}

/// The page size of x86-64. A segment's first page is mapped whole.
const PAGE: u64 = 4096;

impl CodeLayout {
    pub(crate) fn read<R: ReadAt + ?Sized>(source: &R) -> Result<Self, ElfError> {
        let header = ElfHeader::read(source)?;
        let mut segments = header.segment_table(source)?;
        segments.retain(|segment| segment.kind == PT_LOAD && segment.is_executable);
        Ok(CodeLayout { segments })
    }

    /// The ELF virtual address of the code at `offset` in the file, whose first executable mapping began at
    /// `code_offset`. `None` where that is not certain.
    pub(crate) fn address(&self, offset: u64, code_offset: u64) -> Option<u64> {
        if self.segments.iter().all(|segment| segment.file_size > 0) {
            let inside = |segment: &SegmentFields| {
                let inside =
                    offset.checked_sub(segment.offset).filter(|inside| *inside < segment.file_size)?;
                Some(segment.address.wrapping_add(inside))
            };
            return self.segments.iter().find_map(inside);
        }
        let [only] = &self.segments[..] else { return None };
        let address = (only.address & !(PAGE - 1)).wrapping_add(offset.checked_sub(code_offset)?);
        let inside = address.checked_sub(only.address)?;
        (inside < only.memory_size).then_some(address)
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

impl From<&SegmentFields> for Segment {
    fn from(fields: &SegmentFields) -> Self {
        Segment {
            offset: fields.offset,
            file_size: fields.file_size,
            address: fields.address,
            executable: fields.is_executable,
        }
    }
}

impl ElfHeader {
    pub(crate) fn read<R: ReadAt + ?Sized>(source: &R) -> Result<Self, ElfError> {
        let mut ident = [0; size_of::<Ident>()];
        source.read_exact_at(&mut ident, 0).map_err(|_| ElfError::NotElf)?;
        // The magic number, and behind it the class and the order of bytes.
        let ([magic @ .., class, order], _) = ident.split_first_chunk::<6>().ok_or(ElfError::NotElf)?;
        if *magic != ELFMAG {
            return Err(ElfError::NotElf);
        }
        let class = match (FileClass(*class), DataEncoding(*order)) {
            (ELFCLASS32, ELFDATA2LSB) => Class::Elf32,
            (ELFCLASS64, ELFDATA2LSB) => Class::Elf64,
            _ => return Err(ElfError::ForeignFormat),
        };
        let mut bytes = vec![0; class.header_size()];
        source.read_exact_at(&mut bytes, 0).map_err(|_| ElfError::Truncated)?;
        let fields = class.header(&bytes).ok_or(ElfError::Truncated)?;
        Ok(ElfHeader { class, fields })
    }

    pub(crate) fn segment_table<R: ReadAt + ?Sized>(
        &self,
        source: &R,
    ) -> Result<Vec<SegmentFields>, ElfError> {
        let (count, entry) = (self.fields.segment_count, self.class.segment_size());
        if count > 0 && usize::from(self.fields.segment_size) != entry {
            return Err(ElfError::Truncated);
        }
        if u64::from(count) > MAX_SEGMENTS {
            return Err(ElfError::Oversized);
        }
        let len = u64::from(count) * entry as u64;
        let bytes = read_bounded(source, self.fields.segments_at, len, len).ok_or(ElfError::Truncated)?;
        Ok(self.class.segments(&bytes).collect())
    }
}

/// From the note segments, as the kernel does; a debug file's may be stale, its note sections are not.
fn build_id_from_headers<R: ReadAt + ?Sized>(
    source: &R,
    header: &ElfHeader,
    table: &[SegmentFields],
) -> Option<Vec<u8>> {
    let notes = |offset, size: u64, align| {
        let bytes = read_bounded(source, offset, size.min(MAX_NOTES), MAX_NOTES)?;
        build_id_from_notes(&bytes, align)
    };
    let from_segments = || {
        let note_segments = table.iter().filter(|raw| raw.kind == PT_NOTE);
        note_segments.filter_map(|raw| notes(raw.offset, raw.file_size, raw.align)).next()
    };
    let from_sections = || {
        let sections = section::read_table(source, header).ok()?;
        let note_sections = sections.iter().filter(|section| section.is_note());
        note_sections.filter_map(|section| notes(section.offset, section.size, section.align)).next()
    };
    from_segments().or_else(from_sections)
}

fn build_id_from_notes(notes: &[u8], align: u64) -> Option<Vec<u8>> {
    let id = build_id_in_notes(notes, align)?;
    (1..=MAX_BUILD_ID).contains(&id.len()).then(|| id.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::elf::NT_GNU_BUILD_ID;
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
        notes.extend(note(b"Go\0\0", NT_GNU_BUILD_ID.0, b"not this", 4));
        notes.extend(note(b"GNU\0", NT_GNU_BUILD_ID.0, &[7; 20], 4));
        assert_eq!(build_id_from_notes(&notes, 4), Some(vec![7; 20]));
        let wide = [note(b"GNU\0", 5, &[9; 12], 8), note(b"GNU\0", 3, &[1; 8], 8)].concat();
        assert_eq!(build_id_from_notes(&wide, 8), Some(vec![1; 8]));
    }

    #[test]
    fn an_impossible_build_id_is_none() {
        assert_eq!(build_id_from_notes(&note(b"GNU\0", NT_GNU_BUILD_ID.0, &[], 4), 4), None);
        assert_eq!(build_id_from_notes(&note(b"GNU\0", NT_GNU_BUILD_ID.0, &[1; 65], 4), 4), None);
        let mut liar = note(b"GNU\0", NT_GNU_BUILD_ID.0, &[1; 20], 4);
        liar[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(build_id_from_notes(&liar, 4), None);
    }

    #[test]
    fn the_own_binary_has_executable_segments() {
        let facts = ElfFacts::read(OWN_IMAGE.as_slice()).expect("a valid ELF file");
        assert!(facts.segments.iter().any(|segment| segment.executable));
    }

    /// An executable segment of a file, and of what `objcopy --only-keep-debug` leaves of it.
    fn code(offset: u64, address: u64, size: u64) -> [SegmentFields; 2] {
        let whole = SegmentFields {
            kind: PT_LOAD,
            offset,
            file_size: size,
            address,
            memory_size: size,
            align: PAGE,
            is_executable: true,
        };
        [whole, SegmentFields { offset: 0, file_size: 0, ..whole }]
    }

    #[test]
    fn offset_of_code_is_an_address_also_by_a_debug_file() {
        // At a fixed address, with lld's gap between segments, and position-independent.
        for (offset, address) in [(0x1000, 0x40_1000), (0x5f0, 0x15f0), (0x2000, 0x2000)] {
            for segment in code(offset, address, 0x200) {
                let layout = CodeLayout { segments: vec![segment] };
                let at = |place| layout.address(place, offset & !(PAGE - 1));
                assert_eq!(at(offset + 4), Some(address + 4), "{segment:?}");
                assert_eq!((at(offset + 0x1ff), at(offset + 0x200)), (Some(address + 0x1ff), None));
            }
        }
    }

    #[test]
    fn offset_that_may_be_in_either_segment_has_no_address() {
        let (hot, cold) = (code(0x1000, 0x40_1000, 0x200), code(0x2000, 0x60_2000, 0x200));
        let layout = CodeLayout { segments: vec![hot[1], cold[1]] };
        assert_eq!(layout.address(0x1004, 0x1000), None);
        let layout = CodeLayout { segments: vec![hot[0], cold[0]] };
        assert_eq!(layout.address(0x2004, 0x1000), Some(0x60_2004), "the file itself knows");
        assert_eq!(CodeLayout { segments: vec![] }.address(0, 0), None);
        let [_, split] = code(0x1000, u64::MAX - 0x1ff, u64::MAX);
        assert_eq!(CodeLayout { segments: vec![split] }.address(0, 0x1000), None);
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
        let segments_end = header.fields.segments_at as usize + 56 * usize::from(header.fields.segment_count);
        for len in (0..segments_end).chain([header.fields.sections_at as usize, image.len() - 1]) {
            let facts = ElfFacts::read(&image[..len]);
            assert_eq!(facts.is_ok(), len >= segments_end, "cut to {len} bytes");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 64..2048), align in 0u64..16) {
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
