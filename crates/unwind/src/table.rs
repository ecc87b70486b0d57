// SPDX-License-Identifier: Apache-2.0
//! The rules of one file by address, in the form that the kernel reads.

use crate::builder;
use crate::coverage::Coverage;
use crate::error::TableError;
use crate::image::{Budget, Image, Unlimited};
use crate::pages::{BLOCKS, Pages};
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
