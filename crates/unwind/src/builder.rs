// SPDX-License-Identifier: Apache-2.0
//! Builds the table of a file from its unwind information: finds the section, sorts its entries by address,
//! and streams their rows into pages.
//!
//! This module decides between entries that cover the same code. The one that starts last wins, up to its
//! end, and the rest of the entry that it cut off is dropped, as in the binary search of libgcc. Of two with
//! the same start, the first in the section wins. `.eh_frame` wins over Go's table.

use std::borrow::Cow;

use crate::bytes::Bytes;
use crate::coverage::{Coverage, Unencodable};
use crate::elf::{Elf, Range};
use crate::entries::{self, Entries, Fde, Form, Section};
use crate::error::TableError;
use crate::gaps::Gaps;
use crate::image::{Budget, Image, Meter};
use crate::interner::Interner;
use crate::pages::{BLOCKS, PageEncoder, Pages};
use crate::pointer::{Bases, Encoding};
use crate::program::{Machinery, State};
use crate::rule::{Rule, RuleKind};
use crate::table::{PAGE_STARTS, PAGE_TEXT, Table};

/// Relative calls reach 2 GiB. A file with more code between its ends is damaged.
pub(crate) const MAX_SPAN: u64 = 4 << 30;
/// 32 MiB of rows. chromium has a sixth of that.
const MAX_ROWS: u64 = 1 << 23;
/// The memory of a row at most: its word, and its share of the growing vector.
const ROW_BYTES: u64 = 4;
/// The memory of a page besides its rows: its end, the starts of its blocks, and a row at each of these.
const PAGE_BYTES: u64 = 4 * (1 + PAGE_STARTS as u64 + BLOCKS as u64);

pub(crate) fn table_from_elf(image: &dyn Image, budget: &dyn Budget) -> Result<Table, TableError> {
    let meter = Meter::new(budget);
    let built = build(image, &meter);
    if meter.stopped() { Err(TableError::OverBudget) } else { built }
}

fn build<'a>(image: &'a dyn Image, meter: &'a Meter<'a>) -> Result<Table, TableError> {
    let elf = Elf::read(image, meter)?;
    let gaps = Gaps::new(&elf);
    let found = FoundSection::find(&elf, !gaps.has_go())?;
    let code = elf.code();
    let (Some(first), Some(last)) = (code.first(), code.last()) else {
        return Ok(Table::default());
    };
    let span = last.end - first.start;
    if span > MAX_SPAN {
        return Err(TableError::TooWide(span));
    }
    let mut rows = Rows::new(first.start, meter);
    let found_nothing = found.is_none();
    match found {
        Some(found) => {
            let section = found.section(&elf);
            Build::new(&elf, &section, &gaps, &mut rows).run(&code);
        }
        None => code.iter().for_each(|&range| rows.fill(range, &gaps)),
    }
    if rows.encoder.changes() > MAX_ROWS {
        return Err(TableError::TooManyRows(MAX_ROWS));
    }
    if found_nothing && !gaps.has_go() && rows.coverage.file_rows == 0 {
        return Err(TableError::NoUnwindInformation);
    }
    rows.coverage.entries += gaps.functions();
    Ok(rows.into_table(&code))
}

/// A file's unwind section.
pub(crate) struct FoundSection<'a> {
    form: Form,
    bytes: Cow<'a, [u8]>,
    address: u64,
    length_known: bool,
}

impl<'a> FoundSection<'a> {
    /// `.debug_frame` is used only if `debug` is set.
    pub(crate) fn find(elf: &Elf<'a>, debug: bool) -> Result<Option<Self>, TableError> {
        if let Some(found) = Self::eh_frame(elf).or_else(|| Self::eh_frame_by_header(elf)) {
            return Ok(Some(found));
        }
        if !debug {
            return Ok(None);
        }
        let bytes = match (elf.section_named(".debug_frame"), elf.section_named(".zdebug_frame")) {
            (Some(section), _) => elf.expanded(&section)?,
            (None, Some(section)) => elf.expanded_zdebug(&section)?,
            (None, None) => return Ok(None),
        };
        Ok(Some(FoundSection { form: Form::DebugFrame, bytes, address: 0, length_known: true }))
    }

    fn eh_frame(elf: &Elf<'a>) -> Option<Self> {
        let section = elf.section_named(".eh_frame")?;
        let bytes = elf.section_bytes(&section)?;
        Some(FoundSection { form: Form::EhFrame, bytes, address: section.address, length_known: true })
    }

    /// The header that `dl_iterate_phdr` finds has the address of the section, but not its length.
    fn eh_frame_by_header(elf: &Elf<'a>) -> Option<Self> {
        let (address, bytes) = elf.eh_frame_header()?;
        let mut header = Bytes::new(&bytes);
        let (version, encoding) = (header.u8()?, Encoding(header.u8()?));
        let _tables = header.u16()?;
        if version != 1 {
            return None;
        }
        let bases = Bases { elf, section: address, text: 0, data: address, function: 0 };
        let address = encoding.read(&mut header, &bases)?;
        let bytes = elf.bytes_from(address)?;
        Some(FoundSection { form: Form::EhFrame, bytes, address, length_known: false })
    }

    pub(crate) fn section<'e>(&'e self, elf: &'e Elf<'a>) -> Section<'e, 'a> {
        Section {
            form: self.form,
            bytes: &self.bytes,
            bases: entries::bases(elf, self.address),
            length_known: self.length_known,
        }
    }
}

/// One pass over a section's entries by address.
struct Build<'b, 'e, 'a> {
    gaps: &'b Gaps<'e, 'a>,
    machinery: Machinery<'e, 'a>,
    entries: Entries,
    /// By CIE: its first row, once it is needed. An error: its program is damaged.
    initial: Vec<Option<Result<State<'e>, Unencodable>>>,
    /// The bytes of CIEs' programs that may still be run. They overlap only in files that an attacker made.
    budget: usize,
    remembered: Vec<State<'e>>,
    rows: &'b mut Rows<'a>,
}

impl<'b, 'e, 'a> Build<'b, 'e, 'a> {
    fn new(
        elf: &Elf<'a>,
        section: &'e Section<'e, 'a>,
        gaps: &'b Gaps<'e, 'a>,
        rows: &'b mut Rows<'a>,
    ) -> Self {
        let mut entries = Entries::read(section, elf.meter);
        // The sort is stable, so that of two entries with one address the first stays first.
        if !entries.fdes.is_sorted_by_key(|fde| fde.start) {
            entries.fdes.sort_by_key(|fde| fde.start);
        }
        rows.coverage.damaged += entries.damaged;
        Build {
            gaps,
            machinery: Machinery { machine: elf.machine, section },
            initial: vec![None; entries.cies.len()],
            entries,
            budget: section.bytes.len(),
            remembered: Vec::new(),
            rows,
        }
    }

    fn run(mut self, code: &[Range]) {
        let fdes = std::mem::take(&mut self.entries.fdes);
        let mut next = 0;
        for &range in code {
            let mut from = range.start;
            let outside = fdes[next..].partition_point(|fde| fde.start < range.start);
            self.rows.coverage.outside += outside as u64;
            next += outside;
            while let Some(fde) = fdes.get(next).filter(|fde| fde.start < range.end) {
                let following = fdes[next + 1..].iter().take_while(|other| other.start == fde.start).count();
                self.rows.coverage.overlapping += following as u64;
                next += 1 + following;
                let end = self.end_of(fde, fdes.get(next), range);
                self.rows.fill(Range { start: from, end: fde.start }, self.gaps);
                self.entry(fde, end);
                from = end;
                if self.rows.is_over() {
                    return;
                }
            }
            self.rows.fill(Range { start: from, end: range.end }, self.gaps);
        }
        self.rows.coverage.outside += (fdes.len() - next) as u64;
    }

    /// The end of an entry: its own, the start of its successor, or the end of code.
    fn end_of(&mut self, fde: &Fde, successor: Option<&Fde>, code: Range) -> u64 {
        let end = fde.end.min(code.end);
        match successor {
            Some(successor) if successor.start < end => {
                self.rows.coverage.overlapping += 1;
                successor.start
            }
            _ => end,
        }
    }

    fn entry(&mut self, fde: &Fde, end: u64) {
        self.rows.coverage.entries += 1;
        if self.gaps.holds_entry(Range { start: fde.start, end }) {
            self.rows.row(fde.start, end, Ok(Rule::END));
            return;
        }
        match self.initial(fde.cie as usize) {
            Err(reason) => self.rows.row(fde.start, end, Err(reason)),
            Ok(initial) => {
                let cie = &self.entries.cies[fde.cie as usize];
                let rows = &mut *self.rows;
                self.machinery.rows((cie, &initial), fde, end, &mut self.remembered, |start, end, rule| {
                    rows.row(start, end, rule);
                });
            }
        }
    }

    fn initial(&mut self, number: usize) -> Result<State<'e>, Unencodable> {
        if let Some(known) = self.initial[number] {
            return known;
        }
        let cie = &self.entries.cies[number];
        let initial = match self.budget.checked_sub(cie.program.end - cie.program.start) {
            None => Err(Unencodable::Budget),
            Some(left) => {
                self.budget = left;
                let initial = self.machinery.initial(cie, &mut self.remembered);
                initial.map_err(|_| Unencodable::Instruction)
            }
        };
        self.initial[number] = Some(initial);
        initial
    }
}

/// The destination of rows.
struct Rows<'a> {
    meter: &'a Meter<'a>,
    base: u64,
    encoder: PageEncoder,
    /// The number of the first page that is not charged yet.
    next_page: u64,
    interner: Interner,
    coverage: Coverage,
}

impl<'a> Rows<'a> {
    fn new(lowest: u64, meter: &'a Meter<'a>) -> Self {
        Rows {
            meter,
            base: lowest - lowest % PAGE_TEXT,
            encoder: PageEncoder::new(lowest),
            next_page: 0,
            interner: Interner::new(),
            coverage: Coverage::default(),
        }
    }

    #[inline]
    fn row(&mut self, start: u64, end: u64, rule: Result<Rule, Unencodable>) {
        self.coverage.file_rows += 1;
        if self.is_over() || !self.charge(start, end) {
            return;
        }
        let numbered = rule.and_then(|rule| {
            let number = self.interner.number(rule).ok_or(Unencodable::RuleNumbers)?;
            Ok((rule.kind, number))
        });
        let (kind, number) = numbered.unwrap_or_else(|reason| {
            self.coverage.count_unencodable(reason, end - start);
            (RuleKind::Unsupported, Interner::UNSUPPORTED)
        });
        self.coverage.count_code(kind, end - start);
        self.encoder.cover(start, end, number);
    }

    /// Charges a row and the pages that it is the first to reach. One row of a sparse file may span thousands.
    #[inline]
    fn charge(&mut self, start: u64, end: u64) -> bool {
        let after = end.saturating_sub(1) / PAGE_TEXT + 1;
        let pages = after.saturating_sub(self.next_page.max(start / PAGE_TEXT));
        self.next_page = self.next_page.max(after);
        self.meter.step(1 + pages) && self.meter.hold(ROW_BYTES + pages * PAGE_BYTES)
    }

    /// Whether the table will be refused.
    #[inline]
    fn is_over(&self) -> bool {
        self.encoder.changes() > MAX_ROWS || self.meter.stopped()
    }

    fn fill(&mut self, gap: Range, gaps: &Gaps) {
        if gap.start < gap.end {
            gaps.rows(gap, |start, end, rule| self.row(start, end, rule));
        }
    }

    fn into_table(self, code: &[Range]) -> Table {
        let Rows { base, encoder, interner, mut coverage, .. } = self;
        let pages: Pages = encoder.finish();
        let rules = interner.into_rules();
        coverage.rows = pages.changes;
        coverage.crowded = pages.crowded;
        coverage.bytes = pages.bytes(&rules);
        let all: u64 = code.iter().map(|range| range.end - range.start).sum();
        let covered: u64 = RuleKind::ALL.iter().map(|&kind| coverage.code(kind)).sum();
        coverage.count_code(RuleKind::Uncovered, all - covered);
        Table::new(base, pages, rules, coverage)
    }
}

#[cfg(test)]
mod tests;
