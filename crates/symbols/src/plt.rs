// SPDX-License-Identifier: Apache-2.0
//! Names of PLT stubs (x86-64), which are in no symbol table: `write@plt`, demangled as other names are.
//!
//! A stub jumps through a slot of the GOT, and the relocation of that slot names the function.

use std::collections::HashMap;

use object::elf::{EM_X86_64, R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT};

use crate::demangle::readable_name;
use crate::elf_records::{Class, relocations};
use crate::exported::string_at;
use crate::read_at::{ReadAt, read_bounded};
use crate::section::{Section, Sections};

/// Large programs have some thousand stubs of 16 bytes.
const MAX_STUBS: u64 = 1 << 20;
const MAX_RELOCATIONS: u64 = 8 << 20;
const MAX_SYMBOLS: u64 = 16 << 20;
/// Bytes of names in all: every slot of a crafted file can have the longest one.
const MAX_NAMES: usize = 8 << 20;

/// `jmp *slot(%rip)`.
const JUMP_THROUGH_SLOT: [u8; 2] = [0xff, 0x25];
const JUMP_LEN: usize = 6;

/// The stubs of one module by address.
#[derive(Debug, Default)]
pub(crate) struct PltNames {
    stubs: Vec<Stub>,
}

#[derive(Debug)]
struct Stub {
    start: u64,
    end: u64,
    slot: Slot,
}

/// The function whose address a slot of the GOT receives.
#[derive(Clone, Debug)]
struct Slot {
    name: String,
    /// It is filled at the first call through it, unless the program binds all functions when it starts.
    lazy: bool,
}

impl PltNames {
    pub(crate) fn read<R: ReadAt + ?Sized>(source: &R, sections: &Sections) -> Self {
        if sections.machine != EM_X86_64 || sections.class != Class::Elf64 {
            return PltNames::default();
        }
        let slots = slots(source, sections).unwrap_or_default();
        // A separate debug file has the headers of code sections, not their bytes.
        let is_plt = |section: &&Section| section.name.starts_with(".plt") && section.has_bytes();
        let tables = sections.all.iter().filter(is_plt);
        let mut stubs: Vec<Stub> =
            tables.flat_map(|table| stubs_of_table(source, table, &slots).unwrap_or_default()).collect();
        stubs.sort_by_key(|stub| stub.start);
        PltNames { stubs }
    }

    /// Where each stub begins and ends.
    pub(crate) fn extents(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.stubs.iter().map(|stub| (stub.start, stub.end))
    }

    /// The name of the stub at `address` and the offset in it.
    pub(crate) fn name(&self, address: u64) -> Option<(String, u64)> {
        let after = self.stubs.partition_point(|stub| stub.start <= address);
        let stub = self.stubs[..after].last().filter(|stub| address < stub.end)?;
        Some((readable_name(&format!("{}@plt", stub.slot.name))?, address - stub.start))
    }

    /// The function that the stub at `address` binds at its first call. `None` where that is no stub, and
    /// where the function is bound when the module is loaded.
    pub(crate) fn lazily_bound(&self, address: u64) -> Option<&str> {
        let after = self.stubs.partition_point(|stub| stub.start <= address);
        let stub = self.stubs[..after].last().filter(|stub| address < stub.end && stub.slot.lazy)?;
        Some(&stub.slot.name)
    }
}

/// The functions of GOT slots, by the slot's address, from relocations.
fn slots<R: ReadAt + ?Sized>(source: &R, sections: &Sections) -> Option<HashMap<u64, Slot>> {
    let symbols = sections.named(".dynsym").filter(|table| table.has_bytes())?;
    let strings = sections.all.get(symbols.link as usize)?;
    let symbol_table = read_bounded(source, symbols.offset, symbols.size, MAX_SYMBOLS)?;
    let (mut slots, mut left) = (HashMap::new(), MAX_NAMES);
    let tables = [".rela.plt", ".rela.dyn"].into_iter().filter_map(|name| sections.named(name));
    for table in tables.filter(|table| table.has_bytes()) {
        let Some(bytes) = read_bounded(source, table.offset, table.size, MAX_RELOCATIONS) else { continue };
        for relocation in relocations(&bytes) {
            let lazy = match relocation.kind {
                R_X86_64_GLOB_DAT => false,
                R_X86_64_JUMP_SLOT => true,
                _ => continue,
            };
            let symbol_at = relocation.symbol as usize * sections.class.symbol_size();
            let symbol = symbol_table.get(symbol_at..).and_then(|rest| sections.class.symbols(rest).next());
            let Some(symbol) = symbol else { continue };
            if let Some(name) = string_at(source, strings, symbol.name_at) {
                let Some(rest) = left.checked_sub(name.len()) else { return Some(slots) };
                left = rest;
                slots.insert(relocation.slot, Slot { name, lazy });
            }
        }
    }
    Some(slots)
}

/// A stub ends with its jump and begins where the one before ended, rounded to its alignment: with or without
/// `endbr64`, 8 or 16 bytes, and the lazy kind with its push after the jump.
fn stubs_of_table<R: ReadAt + ?Sized>(
    source: &R,
    table: &Section,
    slots: &HashMap<u64, Slot>,
) -> Option<Vec<Stub>> {
    let code = read_bounded(source, table.offset, table.size, MAX_STUBS)?;
    let stub_len = if table.name == ".plt.got" && !starts_with_endbr(&code) { 8 } else { 16 };
    let stub = |(index, bytes): (usize, &[u8])| {
        let start = table.address.checked_add((index * stub_len) as u64)?;
        let jump_at = bytes.windows(2).position(|window| window == JUMP_THROUGH_SLOT)?;
        let displacement = bytes.get(jump_at + 2..jump_at + JUMP_LEN)?;
        let displacement = i32::from_le_bytes(displacement.try_into().ok()?);
        let next = start.wrapping_add((jump_at + JUMP_LEN) as u64);
        let slot = slots.get(&next.wrapping_add_signed(displacement.into()))?.clone();
        Some(Stub { start, end: start.saturating_add(stub_len as u64), slot })
    };
    Some(code.chunks(stub_len).enumerate().filter_map(stub).collect())
}

fn starts_with_endbr(code: &[u8]) -> bool {
    code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stubs_of_cpp_functions_have_readable_names() {
        let slot = |name: &str| Slot { name: name.to_owned(), lazy: true };
        let stubs = vec![
            Stub { start: 0x10, end: 0x20, slot: slot("_ZN4shop4Cart5totalEi") },
            Stub { start: 0x20, end: 0x30, slot: slot("write") },
        ];
        let names = PltNames { stubs };
        assert_eq!(names.name(0x14), Some(("shop::Cart::total(int)@plt".into(), 4)));
        assert_eq!(names.name(0x20), Some(("write@plt".into(), 0)));
        assert_eq!(names.name(0x30), None);
        assert_eq!(names.lazily_bound(0x10), Some("_ZN4shop4Cart5totalEi"));
    }
}
