// SPDX-License-Identifier: Apache-2.0
//! Encodes rules over ascending addresses into pages, in the layout of `bpf/include/unwind.h`.

use crate::interner::Interner;
use crate::rule::Rule;
use crate::table::{BLOCK_TEXT, PAGE_STARTS, PAGE_TEXT};

pub(crate) const BLOCKS: usize = (PAGE_TEXT / BLOCK_TEXT) as usize;
/// A page's number of rows is a 16-bit index.
const MAX_PAGE_ROWS: usize = u16::MAX as usize;

/// Adjacent pages.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    pub words: Vec<u32>,
    /// The end of each page in `words`. An empty page is wholly uncovered.
    pub ends: Vec<u32>,
    /// The number of changes of the rule.
    pub changes: u64,
    /// The bytes whose rule did not fit into their page.
    pub crowded: u64,
}

impl Pages {
    /// The size of a table with these pages.
    pub(crate) fn bytes(&self, rules: &[Rule]) -> u64 {
        (self.words.len() * 4 + self.ends.len() * 4 + rules.len() * 16) as u64
    }
}

pub(crate) struct PageEncoder {
    /// The address of the current page.
    page: u64,
    /// The start of the rows of each block so far.
    starts: Vec<u16>,
    rows: Vec<u32>,
    rule: u32,
    covered_to: u64,
    pages: Pages,
}

impl PageEncoder {
    /// The first page has `lowest`.
    pub(crate) fn new(lowest: u64) -> Self {
        PageEncoder {
            page: lowest - lowest % PAGE_TEXT,
            starts: Vec::with_capacity(BLOCKS + 1),
            rows: Vec::new(),
            rule: Interner::UNCOVERED,
            covered_to: lowest,
            pages: Pages::default(),
        }
    }

    /// Puts `[start, end)`, which is not empty, under `rule`. The code between the end of the last range and
    /// `start` is uncovered. Ranges ascend.
    #[inline]
    pub(crate) fn cover(&mut self, start: u64, end: u64, rule: u32) {
        debug_assert!(self.covered_to <= start && start < end);
        if self.covered_to < start {
            self.change(self.covered_to, Interner::UNCOVERED);
        }
        self.change(start, rule);
        self.covered_to = end;
    }

    pub(crate) fn changes(&self) -> u64 {
        self.pages.changes
    }

    pub(crate) fn finish(mut self) -> Pages {
        self.change(self.covered_to, Interner::UNCOVERED);
        self.finish_page();
        let ends = &mut self.pages.ends;
        while ends
            .last()
            .is_some_and(|&end| end == ends.len().checked_sub(2).map_or(0, |before| ends[before]))
        {
            ends.pop();
        }
        self.pages
    }

    /// Puts `rule` in force from `address`.
    #[inline]
    fn change(&mut self, address: u64, rule: u32) {
        if rule == self.rule {
            return;
        }
        while address - self.page >= PAGE_TEXT {
            self.finish_page();
        }
        let offset = address % BLOCK_TEXT;
        self.begin_blocks(((address - self.page) / BLOCK_TEXT) as usize + usize::from(offset > 0));
        if offset == 0 {
            self.starts.push(self.rows.len() as u16);
        }
        self.rows.push(rule << 8 | offset as u32);
        self.rule = rule;
        self.pages.changes += 1;
    }

    /// Starts blocks up to `count` with the rule in force.
    #[inline]
    fn begin_blocks(&mut self, count: usize) {
        while self.starts.len() < count {
            self.starts.push(self.rows.len() as u16);
            self.rows.push(self.rule << 8);
        }
    }

    fn finish_page(&mut self) {
        self.begin_blocks(BLOCKS);
        if self.rows.iter().any(|row| row >> 8 != Interner::UNCOVERED) {
            self.make_room();
            self.starts.push(self.rows.len() as u16);
            self.pages.words.extend(
                self.starts
                    .chunks(2)
                    .map(|pair| u32::from(pair[0]) | u32::from(pair.get(1).copied().unwrap_or(0)) << 16),
            );
            debug_assert_eq!(self.starts.len().div_ceil(2), PAGE_STARTS);
            self.pages.words.append(&mut self.rows);
        }
        self.starts.clear();
        self.rows.clear();
        self.pages.ends.push(self.pages.words.len() as u32);
        self.page += PAGE_TEXT;
    }

    /// A page with a row for each byte has one row too many, so that its last two bytes share one.
    fn make_room(&mut self) {
        if self.rows.len() > MAX_PAGE_ROWS {
            self.rows.pop();
            let shared = self.rows.len() - 1;
            self.rows[shared] = Interner::UNSUPPORTED << 8 | (self.rows[shared] & 0xff);
            self.pages.crowded += 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coverage::Coverage;
    use crate::rule::{Rule, RuleKind};
    use crate::table::Table;
    use proptest::prelude::*;

    const LOWEST: u64 = 0x1_2345;

    /// Each number has one rule, so that a table can be compared by numbers.
    fn numbered(count: u32) -> Vec<Rule> {
        let rule = |number| Rule { kind: RuleKind::Sp, cfa_offset: number as i32, ..Rule::default() };
        [Rule::UNCOVERED].into_iter().chain((1..count).map(rule)).collect()
    }

    /// Adjacent `(gap, length, rule)`.
    fn table(ranges: &[(u64, u64, u32)]) -> Table {
        let mut encoder = PageEncoder::new(LOWEST);
        let mut from = LOWEST;
        for &(gap, len, rule) in ranges {
            encoder.cover(from + gap, from + gap + len, rule);
            from += gap + len;
        }
        Table::new(LOWEST - LOWEST % PAGE_TEXT, encoder.finish(), numbered(8), Coverage::default())
    }

    fn check_layout(table: &Table) {
        for words in table.pages().flatten() {
            let start = |block: usize| (words[block / 2] >> (block % 2 * 16) & 0xffff) as usize;
            let rows = &words[PAGE_STARTS..];
            assert_eq!(start(BLOCKS), rows.len());
            assert!(rows.iter().any(|row| row >> 8 != 0), "a page of nothing has no words");
            for block in 0..BLOCKS {
                let rows = &rows[start(block)..start(block + 1)];
                assert_eq!(rows.first().map(|row| row & 0xff), Some(0));
                assert!(rows.is_sorted_by(|row, next| row & 0xff < next & 0xff));
                assert!(rows.is_sorted_by(|row, next| row >> 8 != next >> 8), "equal rows are one");
            }
        }
    }

    /// Mostly short, sometimes over blocks, sometimes over pages.
    fn length() -> impl Strategy<Value = u64> {
        prop_oneof![6 => 1u64..40, 3 => 200u64..600, 1 => 60_000u64..200_000]
    }

    proptest! {
        #[test]
        fn pages_agree_with_ranges(
            ranges in proptest::collection::vec((prop_oneof![2 => Just(0u64), 1 => length()], length(), 0u32..8), 1..60),
        ) {
            let table = table(&ranges);
            check_layout(&table);
            let mut from = LOWEST;
            prop_assert_eq!(table.rule_at(from - 1), Rule::UNCOVERED);
            for &(gap, len, rule) in &ranges {
                for uncovered in [from, from + gap / 2, (from + gap).saturating_sub(1)] {
                    prop_assert!(gap == 0 || table.rule_at(uncovered) == Rule::UNCOVERED, "{uncovered:#x}");
                }
                from += gap;
                for covered in [from, from + len / 2, from + len - 1] {
                    prop_assert_eq!(table.rule_at(covered), numbered(8)[rule as usize], "{:#x}", covered);
                }
                from += len;
            }
            prop_assert_eq!(table.rule_at(from), Rule::UNCOVERED);
        }
    }

    #[test]
    fn uncovered_pages_have_no_words() {
        let page = PAGE_TEXT;
        let to_page = page - LOWEST % page;
        let table = table(&[(to_page + page, page, 3), (2 * page, 10, 4), (5 * page, 7, 0)]);
        let words: Vec<usize> = table.pages().map(|page| page.map_or(0, <[u32]>::len)).collect();
        let uniform = PAGE_STARTS + BLOCKS;
        assert_eq!(words, [0, 0, uniform, 0, 0, uniform + 1]);
        assert_eq!(table.base(), 0x1_0000);
    }

    #[test]
    fn empty_table_has_no_pages() {
        assert_eq!(table(&[]).pages().len(), 0);
        assert_eq!(table(&[(5, 300_000, 0)]).pages().len(), 0);
    }
}
