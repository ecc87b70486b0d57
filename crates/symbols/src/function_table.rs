// SPDX-License-Identifier: Apache-2.0
//! Start and end of each function of a module. The Intel PT decoder follows control flow and needs the
//! function of any address; names come from the resolver.
//!
//! A part that the compiler moved away (`f.cold`) counts as its function. PLT stubs are functions of their
//! own.

use std::collections::HashMap;
use std::fs::File;

use object::elf::{STT_FILE, STT_FUNC, STT_GNU_IFUNC};

use crate::debug_file;
use crate::elf_records::Class;
use crate::mini_debug;
use crate::module::ModuleFile;
use crate::plt::PltNames;
use crate::read_at::{ReadAt, read_bounded};
use crate::read_limits::Deadline;
use crate::resolver::ResolverOptions;
use crate::section::{Section, Sections};

/// Symbol tables of the largest programs have a few million entries.
const MAX_TABLE: u64 = 256 << 20;
/// With a larger string table, parts that were moved away count as functions of their own.
const MAX_STRINGS: u64 = 64 << 20;
/// Read at a time; a multiple of the entry size.
const CHUNK: u64 = 96 << 10;
/// How far back the search goes for functions inside other ones, as hand-written assembly has them.
const MAX_NESTED: usize = 16;

/// One function's code, or a part of it. Addresses are ELF virtual addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    start: u64,
    end: u64,
    /// The number of the extent with its function's entry.
    entry: u32,
}

/// The functions of one module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionTable {
    /// Sorted by start, without duplicates.
    extents: Vec<Extent>,
    /// The starts of PLT stubs, ascending.
    stubs: Vec<u64>,
}

/// A symbol, used while the table is built.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: u64,
    size: u64,
    name_at: u32,
    /// Symbols of one source file; names of static functions are unique in it.
    group: u32,
}

impl FunctionTable {
    /// The functions in the symbol tables of the module's file, its separate debug file and its
    /// MiniDebugInfo; none for a module without a file.
    pub fn read(module: &ModuleFile, options: &ResolverOptions) -> Self {
        let Some(file) = &module.file else { return FunctionTable::default() };
        let Ok(sections) = Sections::read(file.as_ref()) else { return FunctionTable::default() };
        let mut extents = Vec::new();
        each_symbol_table(module, options, file, &sections, &mut |source, tables, name| {
            add_symbols(source, tables, name, &sections, &mut extents)
        });
        let plt = PltNames::read(file.as_ref(), &sections);
        extents.extend(plt.extents().map(|(start, end)| Found { start, end, entry: start }));
        let mut stubs: Vec<u64> = plt.extents().map(|(start, _)| start).collect();
        stubs.sort_unstable();
        FunctionTable { stubs, ..FunctionTable::new(extents) }
    }

    /// Functions with these starts and ends. The one with the lowest start has number 0.
    pub fn of_extents(extents: impl Iterator<Item = (u64, u64)>) -> Self {
        FunctionTable::new(extents.map(|(start, end)| Found { start, end, entry: start }).collect())
    }

    fn new(mut found: Vec<Found>) -> Self {
        // Of several with one start, the one with the nearer end has a size from its symbol; the other fills
        // a hole.
        found.sort_unstable_by_key(|extent| (extent.start, extent.end));
        found.dedup_by_key(|extent| extent.start);
        found.truncate(u32::MAX as usize);
        let place = |entry: u64| found.binary_search_by_key(&entry, |extent| extent.start).ok();
        let extents = found.iter().enumerate().map(|(index, extent)| {
            let entry = place(extent.entry).unwrap_or(index) as u32;
            Extent { start: extent.start, end: extent.end, entry }
        });
        FunctionTable { extents: extents.collect(), stubs: Vec::new() }
    }

    /// The number of the function that `address` lies in; numbers are smaller than [`FunctionTable::len`].
    pub fn at(&self, address: u64) -> Option<usize> {
        let after = self.extents.partition_point(|extent| extent.start <= address);
        let near = &self.extents[after.saturating_sub(MAX_NESTED)..after];
        let found = near.iter().rev().find(|extent| address < extent.end)?;
        Some(found.entry as usize)
    }

    /// Where calls of the function with this number arrive.
    pub fn entry(&self, number: usize) -> Option<u64> {
        self.extents.get(number).map(|extent| extent.start)
    }

    /// The parts of the function whose entry is at this address, each from its start to its end.
    pub(crate) fn parts(&self, entry: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let number = self.extents.binary_search_by_key(&entry, |extent| extent.start).ok();
        let of_function = move |extent: &&Extent| Some(extent.entry as usize) == number;
        self.extents.iter().filter(of_function).map(|extent| (extent.start, extent.end))
    }

    /// Whether the function with this number is a PLT stub, which only jumps to another one.
    pub fn is_stub(&self, number: usize) -> bool {
        self.entry(number).is_some_and(|entry| self.stubs.binary_search(&entry).is_ok())
    }

    /// How many functions there are, parts that were moved away included.
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// Whether no function is known.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }
}

/// An extent with the address of its function's entry.
#[derive(Clone, Copy, Debug)]
struct Found {
    start: u64,
    end: u64,
    entry: u64,
}

/// Reads one symbol table of a file, by its name; false where it has no function.
pub(crate) type ReadTable<'a> = dyn FnMut(&dyn ReadAt, &Sections, &str) -> bool + 'a;

/// Calls `read` with the full symbols of a module's file. If there are none, it calls `read` with those of the
/// first separate debug file that has some, or of MiniDebugInfo. The dynamic symbols come last.
pub(crate) fn each_symbol_table(
    module: &ModuleFile,
    options: &ResolverOptions,
    file: &File,
    sections: &Sections,
    read: &mut ReadTable<'_>,
) {
    if !read(file, sections, ".symtab") {
        read_separate_symbols(module, options, file, sections, read);
    }
    read(file, sections, ".dynsym");
}

fn read_separate_symbols(
    module: &ModuleFile,
    options: &ResolverOptions,
    file: &File,
    code: &Sections,
    read: &mut ReadTable<'_>,
) {
    for debug in debug_file::find(options, &module.module) {
        if let Some(sections) = &debug.sections
            && read(&debug.file, sections, ".symtab")
        {
            return;
        }
    }
    if let Some(Ok(mini)) = mini_debug::unpack(file, code, &Deadline::default())
        && let Ok(sections) = Sections::read(mini.as_slice())
    {
        read(&Image(&mini), &sections, ".symtab");
    }
}

/// Bytes in memory, as a source with a known size.
struct Image<'a>(&'a [u8]);

impl ReadAt for Image<'_> {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn size(&self) -> std::io::Result<u64> {
        ReadAt::size(self.0)
    }
}

/// Adds the functions of one symbol table; false where there is none. A symbol without a size reaches to the
/// next one, but never out of its section in `code`.
fn add_symbols<R: ReadAt + ?Sized>(
    source: &R,
    sections: &Sections,
    name: &str,
    code: &Sections,
    found: &mut Vec<Found>,
) -> bool {
    let Some(table) =
        sections.named(name).filter(|table| table.has_bytes() && sections.class == Class::Elf64)
    else {
        return false;
    };
    let mut symbols = functions(source, table);
    let entries = entries_of_parts(source, sections, table, &symbols);
    symbols.sort_by_key(|symbol| symbol.start);
    for (index, symbol) in symbols.iter().enumerate() {
        let end = match symbol.size {
            0 => {
                let next =
                    symbols[index + 1..].iter().map(|next| next.start).find(|&next| next > symbol.start);
                let section = code.code_at(symbol.start);
                let section_end =
                    section.map_or(symbol.start, |section| section.address.saturating_add(section.size));
                next.unwrap_or(u64::MAX).min(section_end)
            }
            size => symbol.start.saturating_add(size),
        };
        let entry = entries.get(&symbol.start).copied().unwrap_or(symbol.start);
        found.push(Found { start: symbol.start, end, entry });
    }
    !symbols.is_empty()
}

/// The functions defined here, in the order of the table.
fn functions<R: ReadAt + ?Sized>(source: &R, table: &Section) -> Vec<Symbol> {
    let mut symbols = Vec::new();
    let mut group = 0;
    for at in (0..table.size.min(MAX_TABLE)).step_by(CHUNK as usize) {
        let len = CHUNK.min(table.size - at);
        let Some(chunk) = read_bounded(source, table.offset.saturating_add(at), len, CHUNK) else { break };
        for symbol in Class::Elf64.symbols(&chunk) {
            group += u32::from(symbol.kind == STT_FILE);
            let is_function = matches!(symbol.kind, STT_FUNC | STT_GNU_IFUNC);
            if symbol.is_defined && symbol.value != 0 && is_function {
                let (start, size, name_at) = (symbol.value, symbol.size, symbol.name_at);
                symbols.push(Symbol { start, size, name_at, group });
            }
        }
    }
    symbols
}

/// The starts of functions, by the start of each part that the compiler moved away.
fn entries_of_parts<R: ReadAt + ?Sized>(
    source: &R,
    sections: &Sections,
    table: &Section,
    symbols: &[Symbol],
) -> HashMap<u64, u64> {
    let strings = sections.all.get(table.link as usize).filter(|strings| strings.size <= MAX_STRINGS);
    let strings = strings.and_then(|strings| read_bounded(source, strings.offset, strings.size, MAX_STRINGS));
    let Some(strings) = strings else { return HashMap::new() };
    let name = |symbol: &Symbol| {
        let rest = strings.get(symbol.name_at as usize..).unwrap_or_default();
        rest.split(|&byte| byte == 0).next().unwrap_or_default()
    };
    let mut owners: HashMap<&[u8], Vec<&Symbol>> = HashMap::new();
    let parts: Vec<(&Symbol, &[u8])> =
        symbols.iter().filter_map(|symbol| Some((symbol, whole_name(name(symbol))?))).collect();
    owners.extend(parts.iter().map(|&(_, whole)| (whole, Vec::new())));
    if owners.is_empty() {
        return HashMap::new();
    }
    for symbol in symbols {
        if let Some(of_name) = owners.get_mut(name(symbol)) {
            of_name.push(symbol);
        }
    }
    let owner = |part: &Symbol, whole: &[u8]| {
        let named = &owners[whole];
        let near = named.iter().find(|symbol| symbol.group == part.group);
        near.or(named.first().filter(|_| named.len() == 1)).map(|symbol| symbol.start)
    };
    parts.into_iter().filter_map(|(part, whole)| Some((part.start, owner(part, whole)?))).collect()
}

/// `f` of `f.cold` and `f.cold.3`.
fn whole_name(name: &[u8]) -> Option<&[u8]> {
    const COLD: &[u8] = b".cold";
    let at = name.windows(COLD.len()).rposition(|window| window == COLD).filter(|&at| at > 0)?;
    let number = &name[at + COLD.len()..];
    let is_number = number.is_empty() || number[0] == b'.' && number[1..].iter().all(u8::is_ascii_digit);
    is_number.then_some(&name[..at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbol_fixture::{FixtureSymbol, symbol_image};
    use object::elf::{STT_OBJECT, SymbolType};

    fn table(symbols: &[FixtureSymbol<'_>]) -> FunctionTable {
        let (image, sections) = symbol_image(symbols);
        let mut found = Vec::new();
        add_symbols(image.as_slice(), &sections, ".symtab", &sections, &mut found);
        FunctionTable::new(found)
    }

    fn entry_at(table: &FunctionTable, address: u64) -> Option<u64> {
        table.at(address).and_then(|number| table.entry(number))
    }

    const F: SymbolType = STT_FUNC;

    #[test]
    fn an_address_is_in_the_function_around_it() {
        let table = table(&[
            ("b", F, 1, 0x1100, 0x10),
            ("a", F, 1, 0x1000, 0x20),
            ("data", STT_OBJECT, 1, 0x1200, 8),
        ]);
        let entries = [0xfff, 0x1000, 0x101f, 0x1020, 0x110f, 0x1110, 0x1200].map(|at| entry_at(&table, at));
        assert_eq!(entries, [None, Some(0x1000), Some(0x1000), None, Some(0x1100), None, None]);
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn a_symbol_without_a_size_ends_at_the_next_or_with_its_section() {
        let table = table(&[("a", F, 1, 0x1000, 0), ("b", F, 1, 0x1800, 0), ("elsewhere", F, 1, 0x9000, 0)]);
        let entries = [0x17ff, 0x1fff, 0x2000, 0x9000].map(|at| entry_at(&table, at));
        assert_eq!(entries, [Some(0x1000), Some(0x1800), None, None]);
    }

    #[test]
    fn cold_parts_belong_to_their_function() {
        let table = table(&[
            ("one.c", STT_FILE, 1, 0, 0),
            ("f", F, 1, 0x1000, 0x10),
            ("f.cold", F, 1, 0x1800, 0x10),
            ("two.c", STT_FILE, 1, 0, 0),
            ("f", F, 1, 0x1100, 0x10),
            ("f.cold.7", F, 1, 0x1900, 0x10),
            ("g.cold", F, 1, 0x1a00, 0x10),
            ("h.cold.x", F, 1, 0x1b00, 0x10),
        ]);
        let entries = [0x1808, 0x1900, 0x1a00, 0x1b00].map(|at| entry_at(&table, at));
        assert_eq!(entries, [Some(0x1000), Some(0x1100), Some(0x1a00), Some(0x1b00)]);
    }

    #[test]
    fn nested_function_ends_before_the_outer_one() {
        let table = table(&[("outer", F, 1, 0x1000, 0x100), ("inner", F, 1, 0x1040, 0x10)]);
        let entries = [0x1030, 0x1048, 0x1060].map(|at| entry_at(&table, at));
        assert_eq!(entries, [Some(0x1000), Some(0x1040), Some(0x1000)]);
    }

    #[test]
    fn imported_and_damaged_symbols_are_none() {
        assert!(table(&[("imported", F, 0, 0x1000, 8), ("zero", F, 1, 0, 8)]).is_empty());
        let huge = table(&[("huge", F, 1, u64::MAX - 4, u64::MAX)]);
        assert_eq!(entry_at(&huge, u64::MAX - 1), Some(u64::MAX - 4));
        let (image, mut sections) = symbol_image(&[("a", F, 1, 0x1000, 8)]);
        sections.all[0].size = u64::MAX;
        let mut found = Vec::new();
        assert!(!add_symbols(image.as_slice(), &sections, ".symtab", &sections, &mut found));
    }

    #[test]
    fn the_functions_of_this_program_are_known() {
        let file = std::fs::File::open("/proc/self/exe").expect("this program");
        let module = wallprof_model::Module { path: "/test".into(), build_id: None };
        let module = ModuleFile { module, file: Some(std::sync::Arc::new(file)) };
        let table = FunctionTable::read(&module, &ResolverOptions::default());
        assert!(table.len() > 1_000, "{} functions", table.len());
        for number in (0..table.len()).step_by(97) {
            let entry = table.entry(number).expect("an entry");
            let extent = table.extents[number];
            assert!(extent.start >= extent.end || table.at(entry).is_some());
        }
    }
}
