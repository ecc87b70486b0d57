//! Encodes rules over ascending addresses straight into pages, as `bpf/include/unwind.h` lays them out.

use crate::interner::Interner;
use crate::table::{BLOCK_TEXT, PAGE_STARTS, PAGE_TEXT};

pub(crate) const BLOCKS: usize = (PAGE_TEXT / BLOCK_TEXT) as usize;
/// The number of a page's rows is a 16-bit index.
const MAX_PAGE_ROWS: usize = u16::MAX as usize;

/// Pages behind each other.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    pub words: Vec<u32>,
    /// Where each page ends in `words`; an empty one is wholly uncovered.
    pub ends: Vec<u32>,
    /// How often the rule changes.
    pub changes: u64,
    /// Bytes whose rule did not fit into their page.
    pub crowded: u64,
}

pub(crate) struct PageEncoder {
    /// The address of the page that is being filled.
    page: u64,
    /// Where the rows of each block begun so far start.
    starts: Vec<u16>,
    rows: Vec<u32>,
    rule: u32,
    covered_to: u64,
    pages: Pages,
}

impl PageEncoder {
    /// The first page is the one of `lowest`.
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

    /// `[start, end)`, not empty, is under `rule`; nothing between the end of the last such range and `start` is
    /// covered. Ranges ascend.
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

    /// From `address` on `rule` is in force.
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

    /// Blocks up to `count` begin with the rule in force.
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

    /// A page in which each byte has a row of its own has one too many: its last two bytes share one.
    fn make_room(&mut self) {
        if self.rows.len() > MAX_PAGE_ROWS {
            self.rows.pop();
            let shared = self.rows.len() - 1;
            self.rows[shared] = Interner::UNSUPPORTED << 8 | (self.rows[shared] & 0xff);
            self.pages.crowded += 2;
        }
    }
}
