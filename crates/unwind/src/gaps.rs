//! What is known of code that no unwind entry covers: Go's functions, and the entry point.

use crate::coverage::Unencodable;
use crate::elf::{Elf, Range};
use crate::go::GoTable;
use crate::rule::Rule;

/// An entry point in assembly is a few instructions; what follows it may be anything.
const MAX_ENTRY: u64 = 256;

pub(crate) struct Gaps<'e, 'a> {
    go: Option<GoTable<'e, 'a>>,
    entry: Option<u64>,
}

impl<'e, 'a> Gaps<'e, 'a> {
    pub(crate) fn new(elf: &'e Elf<'a>) -> Self {
        Gaps { go: GoTable::find(elf), entry: elf.entry() }
    }

    pub(crate) fn has_go(&self) -> bool {
        self.go.is_some()
    }

    /// Functions of Go.
    pub(crate) fn functions(&self) -> u64 {
        self.go.as_ref().map_or(0, GoTable::functions)
    }

    pub(crate) fn holds_entry(&self, range: Range) -> bool {
        self.entry.is_some_and(|entry| (range.start..range.end).contains(&entry))
    }

    /// Tells `row` what is known within `gap`, ascending.
    pub(crate) fn rows(&self, gap: Range, mut row: impl FnMut(u64, u64, Result<Rule, Unencodable>)) {
        let mut from = gap.start;
        if let Some(go) = &self.go {
            go.rows(gap, &mut |start, end, rule| {
                self.entry_row(Range { start: from, end: start }, &mut row);
                row(start, end, rule);
                from = end;
            });
        }
        self.entry_row(Range { start: from, end: gap.end }, &mut row);
    }

    /// The entry point has no caller.
    fn entry_row(&self, gap: Range, row: &mut impl FnMut(u64, u64, Result<Rule, Unencodable>)) {
        if let Some(entry) = self.entry.filter(|_| self.holds_entry(gap)) {
            row(entry, gap.end.min(entry.saturating_add(MAX_ENTRY)), Ok(Rule::END));
        }
    }
}
