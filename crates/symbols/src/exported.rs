// SPDX-License-Identifier: Apache-2.0
//! The names under which a module exports its functions.
//!
//! One address often has several names, and which of them debug information or a symbol table shows differs
//! from machine to machine: with glibc's debug symbols installed `getenv` is `__GI_getenv`, and
//! `pthread_mutex_lock` is `___pthread_mutex_lock`. The exported name is the one that users know.

use std::collections::HashMap;

use object::elf::{STB_GLOBAL, STB_LOCAL, STB_WEAK, STT_FUNC};

use crate::elf_records::SymbolFields;
use crate::read_at::{ReadAt, read_bounded};
use crate::read_limits::Deadline;
use crate::section::{Section, Sections};

/// Read at a time; a multiple of both entry sizes.
const CHUNK: u64 = 96 << 10;
/// Tables of the largest programs have a few million entries.
const MAX_TABLE: u64 = 256 << 20;
/// Longer than the longest mangled names of real programs.
const MAX_NAME: u64 = 4096;
/// Names that a library exports: chromium's take some 40 KiB.
const MAX_STRINGS: u64 = 16 << 20;
/// What is searched for one name.
const MAX_SEARCHED: u64 = 64 << 20;

/// Bytes that [`fill_names`] reads, without the names.
pub(crate) fn bytes(sections: &Sections) -> u64 {
    exporting_table(sections).map_or(0, |table| table.size.min(MAX_TABLE))
}

/// The best exported name of each function start that is a key of `wanted`.
pub(crate) fn fill_names<R: ReadAt + ?Sized>(
    source: &R,
    sections: &Sections,
    wanted: &mut HashMap<u64, Option<String>>,
    deadline: &Deadline,
) {
    let Some(table) = exporting_table(sections) else { return };
    let Some(strings) = sections.all.get(table.link as usize) else { return };
    for chunk_at in (0..table.size.min(MAX_TABLE)).step_by(CHUNK as usize) {
        if deadline.is_over() {
            return;
        }
        let len = CHUNK.min(table.size - chunk_at);
        let Some(chunk) = read_bounded(source, table.offset + chunk_at, len, CHUNK) else { return };
        for symbol in sections.class.symbols(&chunk).filter(is_exported_function) {
            let Some(known) = wanted.get_mut(&symbol.value) else { continue };
            if let Some(name) = string_at(source, strings, symbol.name_at)
                && !is_mangled(&name)
                && known.as_ref().is_none_or(|known| is_better(&name, known))
            {
                *known = Some(name);
            }
        }
    }
}

/// The string at `at` of a string table; `None` for an empty one.
pub(crate) fn string_at<R: ReadAt + ?Sized>(source: &R, strings: &Section, at: u32) -> Option<String> {
    let left = strings.size.checked_sub(at.into())?;
    let offset = strings.offset.checked_add(at.into())?;
    let bytes = read_bounded(source, offset, left.min(MAX_NAME), MAX_NAME)?;
    let end = bytes.iter().position(|&byte| byte == 0).filter(|&end| end > 0)?;
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// The dynamic symbols. A statically linked program has none: there it is the full table, whose globals
/// count.
pub(crate) fn exporting_table(sections: &Sections) -> Option<&Section> {
    let dynamic = sections.named(".dynsym").filter(|table| table.has_bytes() && table.size > 24);
    dynamic.or_else(|| sections.named(".symtab").filter(|table| table.has_bytes()))
}

/// The first exported symbol of this name that is wanted, with its number in the table. `None` where the table cannot be
/// read.
pub(crate) fn find_exported<R: ReadAt + ?Sized>(
    source: &R,
    sections: &Sections,
    symbol: &str,
    is_wanted: impl Fn(&SymbolFields) -> bool,
) -> Option<Option<(u32, SymbolFields)>> {
    let table = exporting_table(sections)?;
    let strings = sections.all.get(table.link as usize)?;
    let entries = read_bounded(source, table.offset, table.size, MAX_SEARCHED)?;
    let strings = read_bounded(source, strings.offset, strings.size, MAX_STRINGS)?;
    let is_named = |at: u32| {
        let tail = strings.get(at as usize..).and_then(|tail| tail.strip_prefix(symbol.as_bytes()));
        tail.is_some_and(|tail| tail.first() == Some(&0))
    };
    let is_found = |(_, found): &(u32, SymbolFields)| {
        found.binding != STB_LOCAL && found.is_defined && is_wanted(found) && is_named(found.name_at)
    };
    Some((0..).zip(sections.class.symbols(&entries)).find(is_found))
}

/// Whether a symbol is a global function that is defined here.
fn is_exported_function(symbol: &SymbolFields) -> bool {
    let is_global = matches!(symbol.binding, STB_GLOBAL | STB_WEAK);
    symbol.is_defined && is_global && symbol.kind == STT_FUNC
}

/// Whether a symbol's name is the encoded form of a C++ or Rust path.
fn is_mangled(name: &str) -> bool {
    name.starts_with("_Z") || name.starts_with("_R")
}

/// Fewer leading underscores, then fewer bytes, then alphabetical order: the same choice on every machine.
fn is_better(name: &str, known: &str) -> bool {
    let underscores = |name: &str| name.bytes().take_while(|&byte| byte == b'_').count();
    (underscores(name), name.len(), name) < (underscores(known), known.len(), known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name_at: u32, info: u8, section: u16, value: u64) -> Vec<u8> {
        let mut entry = Vec::new();
        entry.extend(name_at.to_le_bytes());
        entry.extend([info, 0]);
        entry.extend(section.to_le_bytes());
        entry.extend(value.to_le_bytes());
        entry.extend(0u64.to_le_bytes());
        entry
    }

    #[test]
    fn exported_name_with_fewest_underscores_wins() {
        let strings = b"\0__read\0read\0_ZN4readEv\0hidden\0pread64\0pread\0";
        let at = |name: &str| {
            let found = strings
                .windows(name.len() + 1)
                .position(|window| window[..name.len()] == *name.as_bytes() && window[name.len()] == 0);
            found.expect("a name") as u32
        };
        let function = STB_GLOBAL.0 << 4 | STT_FUNC.0;
        let mut image = [
            symbol(0, 0, 0, 0),
            symbol(1, function, 1, 0x100),
            symbol(8, STB_WEAK.0 << 4 | STT_FUNC.0, 1, 0x100),
            symbol(at("_ZN4readEv"), function, 1, 0x100),
            symbol(at("pread64"), function, 1, 0x200),
            symbol(at("pread"), function, 1, 0x200),
            symbol(at("hidden"), STT_FUNC.0, 1, 0x300),
            symbol(at("hidden"), function, 0, 0x300),
            symbol(u32::MAX, function, 1, 0x300),
        ]
        .concat();
        let table_size = image.len() as u64;
        image.extend(strings);
        let section = |name: &str, offset, size, link| Section {
            name: name.into(),
            offset,
            size,
            link,
            ..Section::default()
        };
        let all = vec![
            section(".dynsym", 0, table_size, 1),
            section(".dynstr", table_size, strings.len() as u64, 0),
        ];
        let sections = Sections { all, ..Sections::default() };
        let mut wanted = HashMap::from([(0x100, None), (0x200, None), (0x300, None)]);
        fill_names(image.as_slice(), &sections, &mut wanted, &Deadline::default());
        assert_eq!(wanted[&0x100].as_deref(), Some("read"));
        assert_eq!(wanted[&0x200].as_deref(), Some("pread"));
        assert_eq!(wanted[&0x300], None);
    }
}
