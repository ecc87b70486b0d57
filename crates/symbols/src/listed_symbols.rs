// SPDX-License-Identifier: Apache-2.0
//! The functions of a file's symbol tables: `.symtab`, `.dynsym`, and MiniDebugInfo.
//!
//! A table is read in one pass of bounded pieces and is never mapped. Only candidates for the requested
//! addresses are kept, so that memory does not grow with the number of symbols.

use std::fs::File;
use std::sync::Arc;

use object::elf::{STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE};

use crate::elf_records::{Class, SymbolFields};
use crate::exported::string_at;
use crate::read_at::{ReadAt, read_bounded};
use crate::read_limits::Deadline;
use crate::section::{Section, Sections};

/// 11 million symbols; the largest programs have a few million.
const MAX_TABLE: u64 = 256 << 20;
/// Read at a time; a multiple of both entry sizes.
const CHUNK: u64 = 96 << 10;
/// Nested functions that are kept around one address.
const MAX_NESTED: usize = 16;
/// Functions that are kept between two requested addresses.
const MAX_BETWEEN: usize = 4;

/// One table of symbols and its strings.
pub(crate) struct ListedSymbols {
    bytes: Bytes,
    table: Section,
    strings: Section,
    class: Class,
    unsized_symbols: Unsized,
}

/// The extent of a symbol without a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unsized {
    /// Its first byte: the table has holes.
    OneByte,
    /// All code up to the next symbol.
    UpToNext,
}

enum Bytes {
    InFile(Arc<File>),
    Held(Vec<u8>),
}

/// The function at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub name: String,
    pub start: u64,
    /// Whether the symbol says where the function ends.
    pub sized: bool,
}

/// A table that is damaged, was cut short while it was read, is too large, or takes too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnreadableTable;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    start: u64,
    size: u64,
    /// Of several symbols with the same extent the first one counts.
    before_others: std::cmp::Reverse<u32>,
    name_at: u32,
    typed: bool,
}

impl ListedSymbols {
    /// The dynamic symbols; `None` where the file has none.
    pub(crate) fn dynamic(file: &Arc<File>, sections: &Sections) -> Option<Self> {
        Self::of_table(Bytes::InFile(Arc::clone(file)), sections, ".dynsym", Unsized::OneByte)
    }

    /// The full symbol table; `None` where the file has none.
    pub(crate) fn full(file: &Arc<File>, sections: &Sections) -> Option<Self> {
        Self::of_table(Bytes::InFile(Arc::clone(file)), sections, ".symtab", Unsized::UpToNext)
    }

    /// The symbols of an unpacked MiniDebugInfo.
    pub(crate) fn of_image(image: Vec<u8>, sections: &Sections) -> Option<Self> {
        Self::of_table(Bytes::Held(image), sections, ".symtab", Unsized::OneByte)
    }

    fn of_table(bytes: Bytes, sections: &Sections, name: &str, unsized_symbols: Unsized) -> Option<Self> {
        let table = sections.named(name).filter(|table| table.has_bytes())?.clone();
        let strings = sections.all.get(table.link as usize).filter(|strings| strings.has_bytes())?.clone();
        Some(ListedSymbols { bytes, table, strings, class: sections.class, unsized_symbols })
    }

    /// Bytes that are read for any number of addresses, without the names of the functions that are found.
    pub(crate) fn bytes(&self) -> u64 {
        self.table.size
    }

    /// For each of the addresses, which ascend, its function under its encoded name.
    pub(crate) fn functions(
        &self,
        addresses: &[u64],
        deadline: &Deadline,
    ) -> Result<Vec<Option<Listed>>, UnreadableTable> {
        match &self.bytes {
            Bytes::InFile(file) => self.functions_in(file.as_ref(), addresses, deadline),
            Bytes::Held(bytes) => self.functions_in(bytes.as_slice(), addresses, deadline),
        }
    }

    fn functions_in<R: ReadAt + ?Sized>(
        &self,
        source: &R,
        addresses: &[u64],
        deadline: &Deadline,
    ) -> Result<Vec<Option<Listed>>, UnreadableTable> {
        if self.table.size > MAX_TABLE {
            return Err(UnreadableTable);
        }
        let mut nearest = Nearest::new(addresses, self.unsized_symbols);
        let mut number = 0;
        for at in (0..self.table.size).step_by(CHUNK as usize) {
            if deadline.is_over() {
                return Err(UnreadableTable);
            }
            let offset = self.table.offset.checked_add(at).ok_or(UnreadableTable)?;
            let len = CHUNK.min(self.table.size - at);
            let chunk = read_bounded(source, offset, len, CHUNK).ok_or(UnreadableTable)?;
            for symbol in self.class.symbols(&chunk) {
                number += 1;
                let entry = function(&symbol, number);
                if let Some(entry) = entry.filter(|entry| self.counts(entry)) {
                    nearest.add(entry);
                }
            }
        }
        let found = nearest.entries().into_iter().map(|entry: Option<Entry>| {
            let entry = entry?;
            let name = string_at(source, &self.strings, entry.name_at)?;
            Some(Listed { name, start: entry.start, sized: entry.size > 0 })
        });
        let found = found.collect();
        let strings_end = self.strings.offset.checked_add(self.strings.size);
        let still_there = source.size().ok().zip(strings_end).is_some_and(|(size, end)| end <= size);
        if still_there { Ok(found) } else { Err(UnreadableTable) }
    }

    /// A label, without type and size, names the code behind it in a full table only.
    fn counts(&self, entry: &Entry) -> bool {
        entry.typed || entry.size > 0 || self.unsized_symbols == Unsized::UpToNext
    }
}

/// The symbols nearest to some addresses, out of any number of symbols in any order.
struct Nearest<'a> {
    addresses: &'a [u64],
    unsized_symbols: Unsized,
    gaps: Vec<Gap>,
}

/// The symbols that start behind the previous address, up to and at this one.
#[derive(Clone, Default)]
struct Gap {
    /// Those with a size that reach the address, the nearest ones.
    sized: Vec<Entry>,
    /// The last one without a size.
    without_size: Option<Entry>,
    /// Where the last symbol of any kind begins.
    last_start: Option<u64>,
}

impl<'a> Nearest<'a> {
    fn new(addresses: &'a [u64], unsized_symbols: Unsized) -> Self {
        Nearest { addresses, unsized_symbols, gaps: vec![Gap::default(); addresses.len()] }
    }

    fn add(&mut self, entry: Entry) {
        let at = self.addresses.partition_point(|&address| address < entry.start);
        let Some(&address) = self.addresses.get(at) else { return };
        let gap = &mut self.gaps[at];
        gap.last_start = gap.last_start.max(Some(entry.start));
        if entry.size == 0 {
            if self.unsized_symbols == Unsized::UpToNext || address == entry.start {
                gap.without_size = gap.without_size.max(Some(entry));
            }
        } else if address - entry.start < entry.size {
            gap.add(entry);
        }
    }

    /// Of those that cover an address, the one that begins last.
    fn entries(self) -> Vec<Option<Entry>> {
        let (mut around, mut without_size, mut last_start) = (Vec::new(), None, None);
        let mut found = Vec::with_capacity(self.addresses.len());
        for (&address, gap) in self.addresses.iter().zip(self.gaps) {
            around.extend(gap.sized);
            around.retain(|entry: &Entry| address - entry.start < entry.size);
            around.drain(..around.len().saturating_sub(MAX_NESTED));
            last_start = last_start.max(gap.last_start);
            without_size = without_size.max(gap.without_size);
            let reaches = |entry: &Entry| match self.unsized_symbols {
                Unsized::OneByte => entry.start == address,
                Unsized::UpToNext => Some(entry.start) == last_start,
            };
            found.push(around.last().copied().or_else(|| without_size.filter(reaches)));
        }
        found
    }
}

impl Gap {
    /// In the order of their starts; the farthest goes when there are too many.
    fn add(&mut self, entry: Entry) {
        let place = self.sized.partition_point(|known| *known < entry);
        self.sized.insert(place, entry);
        if self.sized.len() > MAX_BETWEEN {
            self.sized.remove(0);
        }
    }
}

/// A function, or code without a type, that is defined here.
fn function(symbol: &SymbolFields, number: u32) -> Option<Entry> {
    let is_code = matches!(symbol.kind, STT_FUNC | STT_GNU_IFUNC | STT_NOTYPE);
    let entry = Entry {
        start: symbol.value,
        size: symbol.size,
        before_others: std::cmp::Reverse(number),
        name_at: symbol.name_at,
        typed: symbol.kind != STT_NOTYPE,
    };
    (is_code && symbol.is_defined && entry.start != 0).then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbol_fixture::{FixtureSymbol, symbol_image};
    use object::elf::STT_OBJECT;
    use proptest::prelude::*;

    fn image_of(symbols: &[FixtureSymbol<'_>]) -> ListedSymbols {
        let (image, sections) = symbol_image(symbols);
        ListedSymbols::of_image(image, &sections).expect("a table")
    }

    fn full(symbols: &[FixtureSymbol<'_>]) -> ListedSymbols {
        ListedSymbols { unsized_symbols: Unsized::UpToNext, ..image_of(symbols) }
    }

    fn text(found: &Option<Listed>, address: u64) -> Option<String> {
        found.as_ref().map(|found| format!("{}+{}", found.name, address - found.start))
    }

    fn name(symbols: &ListedSymbols, address: u64) -> Option<String> {
        text(&symbols.functions(&[address], &Deadline::default()).expect("readable")[0], address)
    }

    #[test]
    fn a_symbol_covers_its_bytes_and_no_more() {
        let symbols = image_of(&[
            ("b", STT_FUNC, 1, 0x1100, 0x10),
            ("a", STT_FUNC, 1, 0x1000, 0x20),
            ("start", STT_FUNC, 1, 0x1200, 0),
            ("asm", STT_NOTYPE, 1, 0x1300, 4),
            ("label", STT_NOTYPE, 1, 0x1400, 0),
            ("data", STT_OBJECT, 1, 0x1500, 8),
            ("imported", STT_FUNC, 0, 0x1600, 8),
        ]);
        let at = |address| name(&symbols, address);
        assert_eq!([at(0xfff), at(0x1020), at(0x1110), at(0x1201)], [None, None, None, None]);
        assert_eq!([at(0x1400), at(0x1500), at(0x1600)], [None, None, None]);
        assert_eq!(at(0x101f).as_deref(), Some("a+31"));
        assert_eq!(at(0x1100).as_deref(), Some("b+0"));
        assert_eq!(at(0x1200).as_deref(), Some("start+0"));
        assert_eq!(at(0x1302).as_deref(), Some("asm+2"));
    }

    #[test]
    fn nested_function_ends_before_the_outer_one() {
        let symbols =
            image_of(&[("outer", STT_FUNC, 1, 0x1000, 0x100), ("inner", STT_FUNC, 1, 0x1040, 0x10)]);
        assert_eq!(name(&symbols, 0x1048).as_deref(), Some("inner+8"));
        assert_eq!(name(&symbols, 0x1060).as_deref(), Some("outer+96"));
    }

    #[test]
    fn a_damaged_table_has_no_symbols() {
        let section =
            |name: &str, size, link| Section { name: name.into(), size, link, ..Section::default() };
        for (size, link) in [(u64::MAX, 1), (48, 1), (24, 7), (MAX_TABLE + 24, 1)] {
            let all = vec![section(".symtab", size, link), section(".strtab", 8, 0)];
            let sections = Sections { all, ..Sections::default() };
            let listed = ListedSymbols::of_image(vec![0; 24], &sections);
            let found = listed.map(|listed| listed.functions(&[8], &Deadline::default()));
            assert!(found.is_none_or(|found| found == Err(UnreadableTable)), "{size} {link}");
        }
    }

    #[test]
    fn a_table_or_strings_that_were_cut_short_are_unreadable() {
        let (image, sections) = symbol_image(&[("a", STT_FUNC, 1, 0x1000, 0x20)]);
        let at = |len: usize| {
            let cut = ListedSymbols::of_image(image[..len].to_vec(), &sections).expect("sections");
            cut.functions(&[0x1000], &Deadline::default()).map(|found| text(&found[0], 0x1000))
        };
        assert_eq!(at(image.len()), Ok(Some("a+0".into())));
        for len in 0..image.len() {
            assert_eq!(at(len), Err(UnreadableTable), "cut to {len} bytes");
        }
    }

    #[test]
    fn in_a_full_table_a_symbol_without_a_size_reaches_to_the_next() {
        let symbols = [
            ("label", STT_NOTYPE, 1, 0x1000, 0),
            ("sized", STT_FUNC, 1, 0x1100, 0x10),
            ("last", STT_FUNC, 1, 0x1200, 0),
        ];
        let symbols = full(&symbols);
        assert_eq!(name(&symbols, 0x10ff).as_deref(), Some("label+255"));
        assert_eq!(name(&symbols, 0x110f).as_deref(), Some("sized+15"));
        assert_eq!(name(&symbols, 0x1110), None, "behind a function that has ended");
        assert_eq!(name(&symbols, 0x9999).as_deref(), Some("last+34713"));
        assert_eq!(name(&symbols, 0xfff), None);
    }

    #[test]
    fn of_equal_symbols_the_first_counts_and_of_one_start_the_longest() {
        let symbols = full(&[
            ("short", STT_FUNC, 1, 0x1000, 4),
            ("first", STT_FUNC, 1, 0x1000, 8),
            ("second", STT_FUNC, 1, 0x1000, 8),
        ]);
        assert_eq!(name(&symbols, 0x1000).as_deref(), Some("first+0"));
    }

    #[test]
    fn any_number_of_symbols_around_an_address_costs_a_few_candidates() {
        let addresses = [0x10_0000, 0x20_0000];
        let mut nearest = Nearest::new(&addresses, Unsized::UpToNext);
        for number in 1..=100_000 {
            let before_others = std::cmp::Reverse(number);
            let start = u64::from(number);
            nearest.add(Entry { start, size: 1 << 40, before_others, name_at: number, typed: true });
        }
        assert!(nearest.gaps.iter().all(|gap| gap.sized.len() <= MAX_BETWEEN));
        let found = nearest.entries();
        assert!(found.iter().all(|entry| entry.is_some_and(|entry| entry.name_at == 100_000)));
    }

    proptest! {
        /// Addresses that are looked up together have the names that each has alone.
        #[test]
        fn batch_and_single_lookups_agree(
            spans in proptest::collection::vec((1u64..64, 0u64..16), 1..12),
            wanted in proptest::collection::btree_set(0u64..80, 1..12),
        ) {
            let names: Vec<String> = (0..spans.len()).map(|number| format!("f{number}")).collect();
            let symbols: Vec<_> = names.iter().zip(&spans)
                .map(|(name, &(start, size))| (name.as_str(), STT_FUNC, 1, start, size)).collect();
            let wanted: Vec<u64> = wanted.into_iter().collect();
            for symbols in [image_of(&symbols), full(&symbols)] {
                let together = symbols.functions(&wanted, &Deadline::default()).expect("readable");
                let apart: Vec<_> = wanted.iter()
                    .map(|&address| symbols.functions(&[address], &Deadline::default()).expect("readable").remove(0)).collect();
                prop_assert_eq!(together, apart);
            }
        }
    }
}
