// SPDX-License-Identifier: Apache-2.0
//! A copy of a file's symbols and debug sections, in memory that other processes cannot change.
//!
//! A process that has mapped a file dies of SIGBUS when the file is cut short, and the file can change after
//! it was checked. A file that others can write is therefore never mapped: its symbols and debug sections are
//! read into a sealed memory file (`memfd_create(2)`), one after the other. All other sections stay in the
//! copy's table as empty ones, so that indices keep their meaning.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::elf::ElfHeader;
use crate::elf_records::Class;
use crate::read_at::read_bounded;
use crate::section::{Section, Sections};

/// Read and written at a time.
const CHUNK: u64 = 1 << 20;
const MAX_NAMES: u64 = 1 << 20;
/// Sections start at multiples of this.
const ALIGN: u64 = 16;

/// The copy. An error where the file was cut short meanwhile, or where it has more than `limit` bytes of
/// symbols and debug information.
pub(crate) fn private_copy(file: &File, sections: &Sections, limit: u64) -> io::Result<File> {
    let header = ElfHeader::read(file).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut layout = Layout::new(sections, &header);
    for (index, section) in sections.all.iter().enumerate() {
        if is_needed(section) || index == usize::from(header.fields.section_names) {
            layout.place(index, section);
        }
    }
    if layout.end > limit.saturating_add(layout.fixed_bytes()) {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let copy = File::from(memfd_create("wallprof-symbols", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    for &(from, to, size) in &layout.parts {
        copy_bytes(file, &copy, from, to, size)?;
    }
    copy.write_all_at(&layout.header(file)?, 0)?;
    copy.write_all_at(&layout.section_table(file, &header)?, layout.table_at)?;
    fcntl_add_seals(&copy, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(copy)
}

/// Whether a parser of debug information reads the section, or the symbols that it falls back to.
fn is_needed(section: &Section) -> bool {
    const UNREAD: [&str; 6] = [
        ".debug_sup",
        ".debug_frame",
        ".debug_gnu_pubnames",
        ".debug_gnu_pubtypes",
        ".debug_pubnames",
        ".debug_pubtypes",
    ];
    let name = section.name.as_str();
    let is_debug = name.starts_with(".debug_") && !UNREAD.contains(&name);
    section.has_bytes() && (is_debug || matches!(name, ".symtab" | ".strtab"))
}

/// Where sections lie in the copy.
struct Layout {
    class: Class,
    names: usize,
    names_bytes: u64,
    /// Of each section its offset and size in the copy; `None` for those that are left out.
    places: Vec<Option<(u64, u64)>>,
    /// Offset in the file, offset in the copy, and size.
    parts: Vec<(u64, u64, u64)>,
    table_at: u64,
    end: u64,
}

impl Layout {
    fn new(sections: &Sections, header: &ElfHeader) -> Self {
        let table_at = sections.class.header_size() as u64;
        let end = table_at + (sections.all.len() * sections.class.section_size()) as u64;
        Layout {
            class: sections.class,
            names: header.fields.section_names.into(),
            names_bytes: 0,
            places: vec![None; sections.all.len()],
            parts: Vec::new(),
            table_at,
            end,
        }
    }

    fn place(&mut self, index: usize, section: &Section) {
        let size = if index == self.names { section.size.min(MAX_NAMES) } else { section.size };
        let at = self.end.next_multiple_of(ALIGN);
        self.places[index] = Some((at, size));
        self.parts.push((section.offset, at, size));
        if index == self.names {
            self.names_bytes = size;
        }
        self.end = at.saturating_add(size).min(u64::MAX - ALIGN);
    }

    /// The headers and names, which count for no section.
    fn fixed_bytes(&self) -> u64 {
        let entry = self.class.section_size() as u64;
        self.table_at + (entry + ALIGN) * self.places.len() as u64 + self.names_bytes
    }

    /// The file's header, without segments.
    fn header(&self, file: &File) -> io::Result<Vec<u8>> {
        let len = self.class.header_size() as u64;
        let mut bytes = read_bounded(file, 0, len, len).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.class.set_tables(&mut bytes, self.table_at);
        Ok(bytes)
    }

    /// The file's section headers with the offsets of the copy.
    fn section_table(&self, file: &File, header: &ElfHeader) -> io::Result<Vec<u8>> {
        let entry = self.class.section_size();
        let len = (self.places.len() * entry) as u64;
        let bytes = read_bounded(file, header.fields.sections_at, len, len);
        let mut bytes = bytes.ok_or(io::ErrorKind::UnexpectedEof)?;
        for (entry, place) in bytes.chunks_exact_mut(entry).zip(&self.places) {
            match place {
                Some((offset, size)) => self.class.set_place(entry, *offset, *size),
                None => entry.fill(0),
            }
        }
        Ok(bytes)
    }
}

fn copy_bytes(file: &File, copy: &File, from: u64, to: u64, size: u64) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK.min(size) as usize];
    for at in (0..size).step_by(CHUNK as usize) {
        let part = &mut buffer[..CHUNK.min(size - at) as usize];
        file.read_exact_at(part, from + at)?;
        copy.write_all_at(part, to + at)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn own_image() -> Vec<u8> {
        std::fs::read("/proc/self/exe").expect("the test's own binary")
    }

    fn file_of(image: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("a scratch file");
        file.write_all(image).expect("written");
        file
    }

    fn section_bytes(file: &File, sections: &Sections, name: &str) -> Vec<u8> {
        let section = sections.named(name).expect(name);
        read_bounded(file, section.offset, section.size, section.size).expect("all of it")
    }

    #[test]
    fn the_copy_has_the_same_symbols_and_debug_sections_and_no_code() {
        let file = file_of(&own_image());
        let sections = Sections::read(&file).expect("sections");
        let copy = private_copy(&file, &sections, u64::MAX).expect("a copy");
        let copied = Sections::read(&copy).expect("sections");
        for name in [".symtab", ".strtab", ".debug_info", ".debug_line", ".debug_abbrev"] {
            assert!(section_bytes(&file, &sections, name) == section_bytes(&copy, &copied, name), "{name}");
        }
        assert_eq!(copied.all.len(), sections.all.len());
        assert!(!copied.has_bytes(".text") && !copied.has_bytes(".gnu_debuglink"));
    }

    #[test]
    fn the_copy_cannot_be_cut_or_changed() {
        let file = file_of(&own_image());
        let sections = Sections::read(&file).expect("sections");
        let copy = private_copy(&file, &sections, u64::MAX).expect("a copy");
        assert!(copy.set_len(1).is_err() && copy.write_at(b"x", 0).is_err());
    }

    #[test]
    fn a_file_that_was_cut_meanwhile_or_is_too_large_has_no_copy() {
        let file = file_of(&own_image());
        let sections = Sections::read(&file).expect("sections");
        let len = file.metadata().expect("metadata").len();
        assert!(private_copy(&file, &sections, 4096).is_err());
        for cut in [len - 1, len / 2, 64, 0] {
            file.set_len(cut).expect("cut");
            assert!(private_copy(&file, &sections, u64::MAX).is_err(), "cut to {cut} bytes");
        }
    }
}
