// SPDX-License-Identifier: Apache-2.0
//! The rules of one file by address, in the form that the kernel reads.

use crate::builder;
use crate::coverage::Coverage;
use crate::error::TableError;
use crate::image::{Budget, Image, Unlimited};
use crate::interner::Interner;
use crate::pages::{BLOCKS, PageEncoder, Pages};
use crate::rule::Rule;

/// The bytes of code that a page covers.
pub const PAGE_TEXT: u64 = 65536;
/// The bytes of code that a block of a page covers.
pub const BLOCK_TEXT: u64 = 256;
/// The words of a page before its rows: one 16-bit index more than it has blocks.
pub const PAGE_STARTS: usize = 129;

/// The rules of one file. `bpf/include/unwind.h` has the layout.
#[derive(Debug, Default)]
pub struct Table {
    base: u64,
    words: Vec<u32>,
    /// The end of each page in `words`.
    ends: Vec<u32>,
    rules: Vec<Rule>,
    coverage: Coverage,
}

impl Table {
    /// The table of the ELF file with the bytes `image`. An image in memory whose file offsets are addresses,
    /// such as the vDSO's, serves as well.
    pub fn from_elf(image: &[u8]) -> Result<Table, TableError> {
        Table::from_image(&image, &Unlimited)
    }

    /// The table of an ELF file that other users may write to. `budget` ends a build that takes too much.
    pub fn from_image(image: &dyn Image, budget: &dyn Budget) -> Result<Table, TableError> {
        builder::table_from_elf(image, budget)
    }

    pub(crate) fn new(base: u64, pages: Pages, rules: Vec<Rule>, coverage: Coverage) -> Table {
        Table { base, words: pages.words, ends: pages.ends, rules, coverage }
    }

    /// The table of code that is in no file, from its rules by address: first byte, byte behind the last one, rule.
    /// They ascend. `None`: they do not, or lie further apart than code can.
    pub fn from_rules(rules: impl IntoIterator<Item = (u64, u64, Rule)>) -> Option<Table> {
        let mut rules = rules.into_iter().peekable();
        let Some(&(lowest, ..)) = rules.peek() else { return Some(Table::default()) };
        let (mut encoder, mut interner) = (PageEncoder::new(lowest), Interner::new());
        let mut from = lowest;
        for (start, end, rule) in rules {
            if start < from || end <= start || end - lowest > builder::MAX_SPAN {
                return None;
            }
            encoder.cover(start, end, interner.number(rule).unwrap_or(Interner::UNSUPPORTED));
            from = end;
        }
        let (base, pages, rules) = (lowest - lowest % PAGE_TEXT, encoder.finish(), interner.into_rules());
        let mut coverage = Coverage::default();
        (coverage.rows, coverage.bytes) = (pages.changes, pages.bytes(&rules));
        Some(Table::new(base, pages, rules, coverage))
    }

    /// The ELF virtual address of page 0, a multiple of [`PAGE_TEXT`].
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The words of each page, with rule numbers of this table. `None`: wholly uncovered.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = Option<&[u32]>> {
        (0..self.ends.len()).map(|index| self.page(index))
    }

    /// The rules by number. Number 0 is always [`Rule::UNCOVERED`].
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule in force at an ELF virtual address.
    pub fn rule_at(&self, address: u64) -> Rule {
        let number = self.number_at(address).unwrap_or(0);
        self.rules.get(number).copied().unwrap_or(Rule::UNCOVERED)
    }

    /// Statistics of the build.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    fn page(&self, index: usize) -> Option<&[u32]> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        let words = &self.words[start..*self.ends.get(index)? as usize];
        (!words.is_empty()).then_some(words)
    }

    fn number_at(&self, address: u64) -> Option<usize> {
        let from_base = address.checked_sub(self.base)?;
        let index = usize::try_from(from_base / PAGE_TEXT).ok().filter(|&index| index < self.ends.len())?;
        let words = self.page(index)?;
        let block = (address / BLOCK_TEXT) as usize % BLOCKS;
        let start = |block: usize| (words[block / 2] >> (block % 2 * 16) & 0xffff) as usize;
        let rows = &words[PAGE_STARTS..][start(block)..start(block + 1)];
        let offset = (address % BLOCK_TEXT) as u32;
        let after = rows.partition_point(|row| row & 0xff <= offset);
        Some((rows.get(after.checked_sub(1)?)? >> 8) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_rules_has_them_at_their_addresses() {
        let rule = Rule { cfa_offset: 48, ..Rule::RETURN_ADDRESS_ON_TOP };
        let at = 0x7f00_0012_3400;
        let rows = [
            (at, at + 5, Rule::RETURN_ADDRESS_ON_TOP),
            (at + 5, at + 9, rule),
            (at + 70_000, at + 70_001, rule),
        ];
        let table = Table::from_rules(rows).expect("they ascend");
        let found = [at - 1, at, at + 5, at + 8, at + 9, at + 70_000].map(|at| table.rule_at(at));
        let uncovered = Rule::UNCOVERED;
        assert_eq!(found, [uncovered, Rule::RETURN_ADDRESS_ON_TOP, rule, rule, uncovered, rule]);
    }

    #[test]
    fn rules_that_do_not_ascend_are_no_table() {
        let rows = |starts: [u64; 2]| starts.map(|start| (start, start + 5, Rule::END));
        assert!(Table::from_rules(rows([0x5000, 0x5004])).is_none());
        assert!(Table::from_rules(rows([0x5000, 0x5000 + builder::MAX_SPAN])).is_none());
        assert!(Table::from_rules([(5, 5, Rule::END)]).is_none());
        assert_eq!(Table::from_rules([]).map(|table| table.pages().len()), Some(0));
    }
}
