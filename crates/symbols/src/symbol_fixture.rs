// SPDX-License-Identifier: Apache-2.0
//! Symbol tables for tests.

use object::elf::{EM_X86_64, SHF_EXECINSTR, SymbolType};

use crate::elf_records::Class;
use crate::section::{Section, Sections};

/// Name, type, section, start and size.
pub(crate) type FixtureSymbol<'a> = (&'a str, SymbolType, u16, u64, u64);

/// A full symbol table and its strings as one image, beside code at `0x1000..0x2000`.
pub(crate) fn symbol_image(symbols: &[FixtureSymbol<'_>]) -> (Vec<u8>, Sections) {
    let (mut table, mut strings) = (Vec::new(), vec![0]);
    for (name, kind, section, start, size) in symbols {
        table.extend((strings.len() as u32).to_le_bytes());
        table.extend([kind.0, 0]);
        table.extend(section.to_le_bytes());
        table.extend(start.to_le_bytes());
        table.extend(size.to_le_bytes());
        strings.extend(name.as_bytes());
        strings.push(0);
    }
    let section = |name: &str, offset: usize, size: usize, link| Section {
        name: name.into(),
        offset: offset as u64,
        size: size as u64,
        link,
        ..Section::default()
    };
    let text = Section { flags: SHF_EXECINSTR, address: 0x1000, size: 0x1000, ..section(".text", 0, 0, 0) };
    let all =
        vec![section(".symtab", 0, table.len(), 1), section(".strtab", table.len(), strings.len(), 0), text];
    table.extend(strings);
    (table, Sections { all, class: Class::Elf64, machine: EM_X86_64 })
}
