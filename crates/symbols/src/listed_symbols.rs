//! The functions of a file without a full symbol table: its dynamic symbols, and MiniDebugInfo.
//!
//! Such a list has holes, so that a symbol stands for its own bytes only; one without a size, for its first
//! byte. Tables are read in bounded pieces, never mapped.

use std::fs::File;
use std::sync::Arc;

use crate::elf::Fields;
use crate::exported::string_at;
use crate::read_at::{ReadAt, read_bounded};
use crate::section::{Section, Sections};

/// 2.8 million symbols; the largest libraries have some 100,000 dynamic ones.
const MAX_TABLE: u64 = 64 << 20;
const MAX_STRINGS: u64 = 64 << 20;
/// Read at a time; a multiple of both entry sizes.
const CHUNK: u64 = 96 << 10;
/// Symbols that begin within another one are looked for this far back.
const MAX_NESTED: usize = 16;

const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;

/// Functions by start.
pub(crate) struct ListedSymbols {
    entries: Vec<Entry>,
    names: Names,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    start: u64,
    size: u64,
    name_at: u32,
}

enum Names {
    InFile(Arc<File>, Section),
    Held(Vec<u8>, Section),
}

impl ListedSymbols {
    /// `None` where the file has no such symbols.
    pub(crate) fn dynamic(file: &Arc<File>, sections: &Sections) -> Option<Self> {
        let (entries, strings) = read_table(file.as_ref(), sections, ".dynsym")?;
        Some(ListedSymbols { entries, names: Names::InFile(Arc::clone(file), strings) })
    }

    /// The symbols of an unpacked MiniDebugInfo.
    pub(crate) fn of_image(image: &[u8], sections: &Sections) -> Option<Self> {
        let (entries, strings) = read_table(image, sections, ".symtab")?;
        let held = read_bounded(image, strings.offset, strings.size, MAX_STRINGS)?;
        Some(ListedSymbols { entries, names: Names::Held(held, Section { offset: 0, ..strings }) })
    }

    /// The encoded name of the function at `address` and the offset in it.
    pub(crate) fn name(&self, address: u64) -> Option<(String, u64)> {
        let after = self.entries.partition_point(|entry| entry.start <= address);
        let near = self.entries[after.saturating_sub(MAX_NESTED)..after].iter().rev();
        let covers = |entry: &&Entry| address - entry.start < entry.size.max(1);
        near.filter(covers).find_map(|entry| Some((self.names.get(entry.name_at)?, address - entry.start)))
    }
}

impl Names {
    fn get(&self, at: u32) -> Option<String> {
        match self {
            Names::InFile(file, strings) => string_at(file.as_ref(), strings, at),
            Names::Held(bytes, strings) => string_at(bytes.as_slice(), strings, at),
        }
    }
}

/// The functions of one table, and where their names are.
fn read_table<R: ReadAt + ?Sized>(
    source: &R,
    sections: &Sections,
    name: &str,
) -> Option<(Vec<Entry>, Section)> {
    let table = sections.named(name).filter(|table| table.has_bytes() && table.size <= MAX_TABLE)?;
    let strings = sections.all.get(table.link as usize).filter(|strings| strings.has_bytes())?;
    let mut entries = Vec::new();
    for at in (0..table.size).step_by(CHUNK as usize) {
        let chunk = read_bounded(source, table.offset.checked_add(at)?, CHUNK.min(table.size - at), CHUNK)?;
        let size = if sections.wide { 24 } else { 16 };
        entries.extend(chunk.chunks_exact(size).filter_map(|bytes| function(bytes, sections.wide)));
    }
    entries.sort_by_key(|entry: &Entry| entry.start);
    entries.shrink_to_fit();
    Some((entries, strings.clone()))
}

/// A function, or code without a type, that is defined here.
fn function(bytes: &[u8], wide: bool) -> Option<Entry> {
    let fields = Fields { bytes, wide };
    let [info, section, value, size] = if wide { [4, 6, 8, 16] } else { [12, 14, 4, 8] };
    let kind = *bytes.get(info)? & 15;
    let entry = Entry { start: fields.native(value), size: fields.native(size), name_at: fields.word(0) };
    let is_function = matches!(kind, STT_FUNC | STT_GNU_IFUNC) || kind == STT_NOTYPE && entry.size > 0;
    (is_function && fields.half(section) != 0 && entry.start != 0).then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table and its strings as one image: name, kind, section, start and size.
    fn listed(symbols: &[(&str, u8, u16, u64, u64)]) -> ListedSymbols {
        let (mut table, mut strings) = (Vec::new(), vec![0]);
        for (name, kind, section, start, size) in symbols {
            table.extend((strings.len() as u32).to_le_bytes());
            table.extend([*kind, 0]);
            table.extend(section.to_le_bytes());
            table.extend(start.to_le_bytes());
            table.extend(size.to_le_bytes());
            strings.extend(name.as_bytes());
            strings.push(0);
        }
        let section = |name: &str, offset: usize, size: usize, link| Section {
            name: name.into(),
            kind: 3,
            offset: offset as u64,
            size: size as u64,
            link,
            ..Section::default()
        };
        let all =
            vec![section(".symtab", 0, table.len(), 1), section(".strtab", table.len(), strings.len(), 0)];
        table.extend(strings);
        let sections = Sections { all, wide: true, machine: 62 };
        ListedSymbols::of_image(&table, &sections).expect("a table")
    }

    fn name(symbols: &ListedSymbols, address: u64) -> Option<String> {
        symbols.name(address).map(|(name, offset)| format!("{name}+{offset}"))
    }

    #[test]
    fn a_symbol_covers_its_bytes_and_no_more() {
        let symbols = listed(&[
            ("b", STT_FUNC, 1, 0x1100, 0x10),
            ("a", STT_FUNC, 1, 0x1000, 0x20),
            ("start", STT_FUNC, 1, 0x1200, 0),
            ("asm", STT_NOTYPE, 1, 0x1300, 4),
            ("label", STT_NOTYPE, 1, 0x1400, 0),
            ("data", 1, 1, 0x1500, 8),
            ("imported", STT_FUNC, 0, 0x1600, 8),
        ]);
        let at = |address| name(&symbols, address);
        assert_eq!([at(0xfff), at(0x1020), at(0x1110), at(0x1201)], [None, None, None, None]);
        assert_eq!([at(0x1400), at(0x1500), at(0x1600)], [None, None, None]);
        assert_eq!(at(0x101f).as_deref(), Some("a+31"));
        assert_eq!(at(0x1100).as_deref(), Some("b+0"));
        assert_eq!(at(0x1200).as_deref(), Some("start+0"));
        assert_eq!(at(0x1302).as_deref(), Some("asm+2"));
    }

    #[test]
    fn a_function_within_another_is_found_and_left_again() {
        let symbols = listed(&[("outer", STT_FUNC, 1, 0x1000, 0x100), ("inner", STT_FUNC, 1, 0x1040, 0x10)]);
        assert_eq!(name(&symbols, 0x1048).as_deref(), Some("inner+8"));
        assert_eq!(name(&symbols, 0x1060).as_deref(), Some("outer+96"));
    }

    #[test]
    fn a_damaged_table_has_no_symbols() {
        let section =
            |name: &str, size, link| Section { name: name.into(), kind: 3, size, link, ..Section::default() };
        for (size, link) in [(u64::MAX, 1), (48, 1), (24, 7), (MAX_TABLE + 24, 1)] {
            let all = vec![section(".symtab", size, link), section(".strtab", 8, 0)];
            let sections = Sections { all, wide: true, machine: 62 };
            assert!(ListedSymbols::of_image(&[0; 24], &sections).is_none(), "{size} {link}");
        }
    }
}
