// SPDX-License-Identifier: Apache-2.0
//! A generated program as an ELF file that profilers can read: its code, mapped as a whole, and its
//! functions' names.

use super::program::Program;
use super::record::words;

/// Where the code starts in the file.
pub const CODE_OFFSET: u64 = 0x1000;

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SECTION_NAMES: &[u8] = b"\0.text\0.symtab\0.strtab\0.shstrtab\0";

impl Program {
    /// The name of a function in the file's symbol table: `function_0`, or `stub_7@plt` for a stub.
    pub fn name(&self, function: usize) -> String {
        match self.numbered(function).is_stub {
            true => format!("stub_{function}@plt"),
            false => format!("function_{function}"),
        }
    }

    /// An executable of x86-64, to be mapped at `base` from [`CODE_OFFSET`].
    pub fn to_elf(&self) -> Vec<u8> {
        let mut file = vec![0; HEADER + PROGRAM_HEADER];
        let size = self.code.len() as u64;
        let load = words(&[5 << 32 | 1, CODE_OFFSET, self.base, self.base, size, size, 0x1000]);
        file[HEADER..].copy_from_slice(&load);
        file.resize(CODE_OFFSET as usize, 0);
        file.extend(&self.code);
        file.resize(file.len().next_multiple_of(8), 0);
        let (symbols, names) = self.symbols();
        let symbols_at = file.len() as u64;
        file.extend(&symbols);
        let names_at = file.len() as u64;
        file.extend(&names);
        let section_names_at = file.len() as u64;
        file.extend(SECTION_NAMES);
        file.resize(file.len().next_multiple_of(8), 0);
        let sections_at = file.len() as u64;
        file.extend([0; 64]);
        file.extend(words(&[1 << 32 | 1, 6, self.base, CODE_OFFSET, size, 0, 16, 0]));
        file.extend(words(&[2 << 32 | 7, 0, 0, symbols_at, symbols.len() as u64, 1 << 32 | 3, 8, 24]));
        file.extend(words(&[3 << 32 | 15, 0, 0, names_at, names.len() as u64, 0, 1, 0]));
        let length = SECTION_NAMES.len() as u64;
        file.extend(words(&[3 << 32 | 23, 0, 0, section_names_at, length, 0, 1, 0]));
        file[..HEADER].copy_from_slice(&self.header(sections_at));
        file
    }

    fn header(&self, sections_at: u64) -> Vec<u8> {
        let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        header.extend(words(&[1 << 32 | 62 << 16 | 2, self.base, HEADER as u64, sections_at]));
        for half in [0, 0, HEADER, PROGRAM_HEADER, 1, 64, 5, 4] {
            header.extend((half as u16).to_le_bytes());
        }
        header
    }

    fn symbols(&self) -> (Vec<u8>, Vec<u8>) {
        const GLOBAL_FUNCTION: u64 = 0x12;
        const TEXT: u64 = 1;
        let (mut symbols, mut names) = (vec![0; 24], vec![0]);
        for (index, function) in self.functions.iter().enumerate() {
            let kind = TEXT << 48 | GLOBAL_FUNCTION << 32 | names.len() as u64;
            symbols.extend(words(&[kind, function.start, function.end - function.start]));
            names.extend(self.name(index).as_bytes());
            names.push(0);
        }
        (symbols, names)
    }
}
