// SPDX-License-Identifier: Apache-2.0
//! An ELF file's section headers, checked before the file is parsed.
//!
//! Owns the checks that keep a hostile file from costing memory: where sections lie, and how much
//! compressed debug information would unpack to.

use std::io::{self, BufReader, Read};

use flate2::bufread::ZlibDecoder;
use object::elf::{
    ELFCOMPRESS_ZLIB, Machine, SHF_COMPRESSED, SHF_EXECINSTR, SHT_NOBITS, SHT_NOTE, SectionFlags, SectionType,
};

use crate::elf::{ElfError, ElfHeader};
use crate::elf_records::{Class, HeaderFields, SectionFields};
use crate::read_at::{ReadAt, read_bounded};

/// `e_shnum` is 16 bits; the escape for more is for object files with a section per function.
const MAX_SECTIONS: u64 = 0xff00;
const MAX_NAMES: u64 = 1 << 20;

/// One section header with its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Section {
    pub name: String,
    pub kind: SectionType,
    pub flags: SectionFlags,
    pub address: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
    pub align: u64,
}

impl Section {
    fn new(name: String, fields: SectionFields) -> Self {
        let SectionFields { kind, flags, address, offset, size, link, align, .. } = fields;
        Section { name, kind, flags, address, offset, size, link, align }
    }

    pub(crate) fn is_note(&self) -> bool {
        self.kind == SHT_NOTE
    }

    pub(crate) fn is_code(&self) -> bool {
        self.flags.contains(SHF_EXECINSTR)
    }

    pub(crate) fn has_bytes(&self) -> bool {
        self.kind != SHT_NOBITS && self.size > 0
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        address.checked_sub(self.address).is_some_and(|offset| offset < self.size)
    }

    fn is_compressed(&self) -> bool {
        self.flags.contains(SHF_COMPRESSED)
    }

    fn is_debug(&self) -> bool {
        self.name.starts_with(".debug_")
    }
}

/// The section headers of a file whose sections all lie inside it.
#[derive(Debug, Default)]
pub(crate) struct Sections {
    pub all: Vec<Section>,
    pub class: Class,
    pub machine: Machine,
}

impl Sections {
    pub(crate) fn read<R: ReadAt + ?Sized>(source: &R) -> Result<Self, ElfError> {
        let header = ElfHeader::read(source)?;
        let all = read_table(source, &header)?;
        let file_size = source.size().map_err(|_| ElfError::Truncated)?;
        let inside = |section: &Section| {
            !section.has_bytes()
                || section.offset.checked_add(section.size).is_some_and(|end| end <= file_size)
        };
        if !all.iter().all(inside) {
            return Err(ElfError::Truncated);
        }
        Ok(Sections { all, class: header.class, machine: header.fields.machine })
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Section> {
        self.all.iter().find(|section| section.name == name)
    }

    /// The code section that holds `address`.
    pub(crate) fn code_at(&self, address: u64) -> Option<&Section> {
        self.all.iter().find(|section| section.is_code() && section.contains(address))
    }

    pub(crate) fn has_bytes(&self, name: &str) -> bool {
        self.named(name).is_some_and(Section::has_bytes)
    }

    /// How large its tables of symbols are, and their names.
    pub(crate) fn symbol_bytes(&self) -> u64 {
        let tables = [".symtab", ".strtab", ".dynsym", ".dynstr"].into_iter();
        let found = tables.filter_map(|name| self.named(name)).filter(|section| section.has_bytes());
        found.fold(0, |sum, section| sum.saturating_add(section.size))
    }

    /// The size of its debug sections and full symbols, which a private copy contains.
    pub(crate) fn copied_bytes(&self) -> u64 {
        let copied =
            |section: &&Section| section.is_debug() || matches!(&*section.name, ".symtab" | ".strtab");
        let found = self.all.iter().filter(|section| section.has_bytes()).filter(copied);
        found.fold(0, |sum, section| sum.saturating_add(section.size))
    }

    /// Whether the file names other files to read debug information from.
    pub(crate) fn refers_to_other_files(&self) -> bool {
        [".gnu_debuglink", ".gnu_debugaltlink", ".debug_sup"].into_iter().any(|name| self.has_bytes(name))
    }

    /// How much memory its debug sections take when unpacked, and how much there is in all. `None` when it is
    /// more than `limit`, when a section is damaged, or uses another compression than zlib.
    pub(crate) fn debug_size<R: ReadAt + ?Sized>(
        &self,
        source: &R,
        limit: u64,
        trust: Trust,
    ) -> Option<DebugSize> {
        let mut size = DebugSize::default();
        for section in self.all.iter().filter(|section| section.is_debug() && section.has_bytes()) {
            let bytes = if section.is_compressed() {
                let announced = announced_size(source, section, self.class)?;
                size.unpacked = size.unpacked.checked_add(announced).filter(|&sum| sum <= limit)?;
                let holds = trust == Trust::Installed || unpacks_to(source, section, self.class, announced);
                holds.then_some(announced)?
            } else {
                section.size
            };
            size.total = size.total.saturating_add(bytes);
        }
        Some(size)
    }
}

/// Whether the sizes in a file's compression headers are trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// From a directory for debug files, which only the administrator can write to.
    Installed,
    /// From a process, or from a server.
    Foreign,
}

/// Bytes of debug information.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DebugSize {
    /// The part that has to be unpacked into memory.
    pub unpacked: u64,
    pub total: u64,
}

/// The section headers as they are, names included; their contents are not checked.
pub(crate) fn read_table<R: ReadAt + ?Sized>(
    source: &R,
    header: &ElfHeader,
) -> Result<Vec<Section>, ElfError> {
    let HeaderFields { sections_at, section_size, section_count, section_names, .. } = header.fields;
    if sections_at == 0 || section_count == 0 {
        return Ok(Vec::new());
    }
    let entry = header.class.section_size();
    if usize::from(section_size) != entry {
        return Err(ElfError::Truncated);
    }
    if u64::from(section_count) > MAX_SECTIONS {
        return Err(ElfError::Oversized);
    }
    let len = u64::from(section_count) * entry as u64;
    let bytes = read_bounded(source, sections_at, len, len).ok_or(ElfError::Truncated)?;
    let raw: Vec<SectionFields> = header.class.sections(&bytes).collect();
    let names = raw.get(usize::from(section_names)).map_or(Vec::new(), |names| {
        read_bounded(source, names.offset, names.size, MAX_NAMES).unwrap_or_default()
    });
    Ok(raw.into_iter().map(|fields| Section::new(name_from(&names, fields.name_at), fields)).collect())
}

/// Section names are short; a longer one is not a name this crate asks for.
fn name_from(names: &[u8], at: u32) -> String {
    let bytes = names.get(at as usize..).unwrap_or_default();
    let bytes = &bytes[..bytes.len().min(64)];
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The size that the compression header announces.
fn announced_size<R: ReadAt + ?Sized>(source: &R, section: &Section, class: Class) -> Option<u64> {
    let len = class.compression_header_size() as u64;
    let header = read_bounded(source, section.offset, len, len)?;
    let (kind, announced) = class.compression(&header)?;
    (kind == ELFCOMPRESS_ZLIB).then_some(announced)
}

/// Unpacks a section and drops the result: a compression header may be wrong, and the parser trusts it.
fn unpacks_to<R: ReadAt + ?Sized>(source: &R, section: &Section, class: Class, announced: u64) -> bool {
    let packed = Window {
        source,
        at: section.offset.saturating_add(class.compression_header_size() as u64),
        end: section.offset.saturating_add(section.size),
    };
    let mut unpacked = ZlibDecoder::new(BufReader::new(packed)).take(announced.saturating_add(1));
    io::copy(&mut unpacked, &mut io::sink()).is_ok_and(|size| size == announced)
}

/// A part of a source as a stream.
struct Window<'a, R: ?Sized> {
    source: &'a R,
    at: u64,
    end: u64,
}

impl<R: ReadAt + ?Sized> Read for Window<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_sub(self.at);
        let len = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.source.read_exact_at(&mut buffer[..len], self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::ZlibEncoder;
    use proptest::prelude::*;
    use std::io::Write;

    fn packed_section(contents: &[u8], announced: u64) -> (Vec<u8>, Section) {
        let mut bytes = Vec::new();
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(announced.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        let mut encoder = ZlibEncoder::new(bytes, Compression::best());
        encoder.write_all(contents).expect("memory");
        let bytes = encoder.finish().expect("memory");
        let section = Section {
            name: ".debug_info".into(),
            flags: SHF_COMPRESSED,
            size: bytes.len() as u64,
            ..Section::default()
        };
        (bytes, section)
    }

    fn sections(section: Section) -> Sections {
        Sections { all: vec![section], ..Sections::default() }
    }

    /// The vDSO is the smallest ELF file that is on every machine.
    fn small_image() -> (usize, Vec<u8>) {
        let mut image = Vec::new();
        crate::vdso::image().expect("a vDSO").read_to_end(&mut image).expect("memory");
        (ElfHeader::read(image.as_slice()).expect("a header").fields.sections_at as usize, image)
    }

    #[test]
    fn compressed_debug_information_is_measured() {
        let (bytes, section) = packed_section(&[7; 100_000], 100_000);
        let expected = Some(DebugSize { unpacked: 100_000, total: 100_000 });
        for trust in [Trust::Foreign, Trust::Installed] {
            assert_eq!(sections(section.clone()).debug_size(bytes.as_slice(), 1 << 20, trust), expected);
        }
    }

    #[test]
    fn section_with_a_wrong_size_is_refused() {
        for announced in [0, 99_999, 100_001, u64::MAX] {
            let (bytes, section) = packed_section(&[7; 100_000], announced);
            assert_eq!(
                sections(section).debug_size(bytes.as_slice(), 1 << 20, Trust::Foreign),
                None,
                "{announced}"
            );
        }
        let (bytes, section) = packed_section(&[7; 100_000], 100_000);
        assert_eq!(sections(section).debug_size(bytes.as_slice(), 99_999, Trust::Installed), None);
    }

    #[test]
    fn the_own_binary_has_text() {
        let image = std::fs::read("/proc/self/exe").expect("the test's own binary");
        let sections = Sections::read(image.as_slice()).expect("a valid ELF file");
        let text = sections.named(".text").expect("code");
        assert_eq!(sections.code_at(text.address), Some(text));
        assert!(sections.code_at(text.address.wrapping_add(text.size)).is_none_or(|next| next != text));
        let end = ElfHeader::read(image.as_slice()).expect("a header").fields.sections_at as usize;
        assert!(Sections::read(&image[..end]).is_err());
    }

    proptest! {
        #[test]
        fn damaged_section_headers_never_panic(damage in proptest::collection::vec((0usize..2048, any::<u8>()), 1..24)) {
            let (sections_at, mut image) = small_image();
            for (offset, value) in damage {
                if let Some(byte) = image.get_mut(sections_at + offset) {
                    *byte = value;
                }
            }
            if let Ok(sections) = Sections::read(image.as_slice()) {
                let _ = sections.debug_size(image.as_slice(), 1 << 20, Trust::Foreign);
            }
        }
    }
}
