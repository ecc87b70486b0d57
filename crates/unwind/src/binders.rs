// SPDX-License-Identifier: Apache-2.0
//! Finds the functions of a dynamic linker that bind others, without their names.
//!
//! A first call through a procedure linkage table enters them with two words above its return address that no
//! other call leaves there: the object whose table it was, and the entry (System V ABI, AMD64 supplement,
//! "Procedure Linkage Table"). So their frames start three words below the CFA, and those of all other
//! functions one word below it. The entries of glibc's `_dl_runtime_resolve_*` and `_dl_runtime_profile_*`
//! have this offset. Only unstripped files have their names.

use std::ops::Range;

use crate::builder::FoundSection;
use crate::elf::{Elf, Machine};
use crate::entries::{Entries, Fde};
use crate::image::{Budget, Image, Meter, Unlimited};
use crate::program::{Machinery, State};
use crate::rule::{Rule, RuleKind};

/// Limit on the functions. A dynamic linker has half a dozen.
const MAX_BINDERS: usize = 64;

/// The CFA's offset at the first instruction of such a function.
const TWO_WORDS_AND_RETURN_ADDRESS: i32 = 24;

/// The functions that bind others, as ranges of ELF virtual addresses. Empty for a file without such
/// functions, and for a file that cannot be read.
pub fn binders_from_elf(image: &[u8]) -> Vec<Range<u64>> {
    binders_from_image(&image, &Unlimited)
}

/// As [`binders_from_elf`], for a file that other users may write to. `budget` ends a search that takes too
/// much.
pub fn binders_from_image(image: &dyn Image, budget: &dyn Budget) -> Vec<Range<u64>> {
    let meter = Meter::new(budget);
    let Some(elf) = Elf::read(image, &meter).ok().filter(|elf| elf.machine == Machine::X86_64) else {
        return Vec::new();
    };
    let Ok(Some(found)) = FoundSection::find(&elf, false) else { return Vec::new() };
    let section = found.section(&elf);
    let entries = Entries::read(&section, &meter);
    let machinery = Machinery { machine: elf.machine, section: &section };
    let mut search = Search::new(machinery, &entries, section.bytes.len());
    let binders = entries.fdes.iter().filter(|fde| search.is_binder(fde));
    binders.take(MAX_BINDERS).map(|fde| fde.start..fde.end).collect()
}

struct Search<'s, 'e, 'a> {
    machinery: Machinery<'e, 'a>,
    entries: &'s Entries,
    /// By CIE: its first row, once it is needed. The inner `None`: its program is damaged.
    initial: Vec<Option<Option<State<'e>>>>,
    /// The bytes of CIEs' programs that may still be run.
    budget: usize,
    remembered: Vec<State<'e>>,
}

impl<'s, 'e, 'a> Search<'s, 'e, 'a> {
    fn new(machinery: Machinery<'e, 'a>, entries: &'s Entries, budget: usize) -> Self {
        let initial = vec![None; entries.cies.len()];
        Search { machinery, entries, initial, budget, remembered: Vec::new() }
    }

    fn is_binder(&mut self, fde: &Fde) -> bool {
        let Some(initial) = self.initial(fde.cie as usize) else { return false };
        let cie = &self.entries.cies[fde.cie as usize];
        let first_byte_end = fde.start.saturating_add(1);
        let mut is_binder = false;
        self.machinery.rows((cie, &initial), fde, first_byte_end, &mut self.remembered, |_, _, rule| {
            is_binder = rule.is_ok_and(begins_below_two_words);
        });
        is_binder
    }

    fn initial(&mut self, number: usize) -> Option<State<'e>> {
        if let Some(known) = self.initial[number] {
            return known;
        }
        let cie = &self.entries.cies[number];
        let left = self.budget.checked_sub(cie.program.end.saturating_sub(cie.program.start));
        let initial = left.and_then(|left| {
            self.budget = left;
            self.machinery.initial(cie, &mut self.remembered).ok()
        });
        self.initial[number] = Some(initial);
        initial
    }
}

fn begins_below_two_words(rule: Rule) -> bool {
    rule.kind == RuleKind::Sp && rule.cfa_offset == TWO_WORDS_AND_RETURN_ADDRESS && rule.ra == -1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CODE, Cfi, Image};

    /// DW_CFA_def_cfa_offset.
    const CFA_OFFSET: u8 = 0x0e;
    /// DW_CFA_advance_loc by 4.
    const ADVANCE_4: u8 = 0x44;
    const RESOLVER: &[u8] = &[CFA_OFFSET, 24, ADVANCE_4, CFA_OFFSET, 32];

    fn image(programs: &[&[u8]]) -> Vec<u8> {
        let mut cfi = Cfi::eh_frame();
        let cie = cfi.usual_cie();
        for (at, program) in programs.iter().enumerate() {
            cfi.fde(cie, CODE + 0x20 * at as u64, 0x10, program);
        }
        Image::with_eh_frame(0x1000, &cfi).bytes()
    }

    #[test]
    fn only_functions_entered_with_two_words_bind() {
        let ordinary: &[u8] = &[ADVANCE_4, CFA_OFFSET, 24];
        let table_entry: &[u8] = &[CFA_OFFSET, 16, ADVANCE_4, CFA_OFFSET, 24];
        let image = image(&[ordinary, RESOLVER, table_entry, &[]]);
        let found = binders_from_elf(&image);
        assert_eq!((found.len(), found.first()), (1, Some(&(CODE + 0x20..CODE + 0x30))));
    }

    #[test]
    fn number_of_functions_is_limited() {
        assert_eq!(binders_from_elf(&image(&[RESOLVER; 100])).len(), MAX_BINDERS);
    }

    #[test]
    fn damaged_files_do_not_panic() {
        let image = image(&[RESOLVER]);
        assert_eq!(binders_from_elf(&image).len(), 1);
        for at in 0..image.len() {
            let mut damaged = image.clone();
            damaged[at] ^= 0xff;
            assert!(binders_from_elf(&damaged).len() <= MAX_BINDERS);
        }
        assert!(binders_from_elf(&[]).is_empty());
    }

    #[test]
    fn dynamic_linker_has_such_functions_and_libc_has_none() {
        let read = |path: &str| std::fs::read(path).expect("glibc is where its programs look for it");
        let found = binders_from_elf(&read("/lib64/ld-linux-x86-64.so.2"));
        // One for each way of saving registers, with and without auditing.
        assert!((2..=8).contains(&found.len()), "{found:x?}");
        assert!(binders_from_elf(&read("/lib/x86_64-linux-gnu/libc.so.6")).is_empty());
    }
}
