// SPDX-License-Identifier: Apache-2.0
//! Places where a function begins and ends: finds its symbol and reads its code.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use object::elf::{STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE};

use super::ends::{Part, ends};
use super::layout::Layout;
use super::wanted::{Fit, Wanted};
use super::{MAX_FUNCTION, ProbeSite, ProbeSites, SiteProblem};
use crate::demangle::readable_name;
use crate::elf_records::SymbolFields;
use crate::exported::string_at;
use crate::function_table::{FunctionTable, each_symbol_table};
use crate::module::ModuleFile;
use crate::read_at::{ReadAt, read_bounded};
use crate::resolver::ResolverOptions;
use crate::section::{Section, Sections};

/// Symbol tables of the largest programs have a few million entries.
const MAX_TABLE: u64 = 256 << 20;
/// A larger table of strings is read name by name.
const MAX_STRINGS: u64 = 256 << 20;
/// Read at a time; a multiple of the entry size.
const CHUNK: u64 = 96 << 10;
/// Longer encoded names are no names of functions that a user would write.
const MAX_ENCODED: usize = 16 << 10;
/// Wall time for one search. Those of real programs take less than 2 s.
const MAX_TIME: Duration = Duration::from_secs(30);
/// Functions of one name that are kept.
const MAX_FITTING: usize = 256;
/// Similar names that are kept until the search ends.
const MAX_ALIKE: usize = 1024;
/// A function has one cold part. A file that names more is damaged.
const MAX_PARTS: usize = 64;

/// A file with the function's code.
pub(super) struct Program<'a> {
    pub module: &'a ModuleFile,
    pub sections: &'a Sections,
    pub layout: &'a Layout,
}

/// A symbol that fits.
#[derive(Clone, Debug)]
struct Fitting {
    name: String,
    /// The function chooses another one when the program starts.
    is_indirect: bool,
}

struct Search<'a> {
    wanted: Wanted<'a>,
    /// By address: those that fit exactly, and those whose readable names do.
    exact: BTreeMap<u64, Fitting>,
    readable: BTreeMap<u64, Fitting>,
    is_imported: bool,
    has_full_table: bool,
    alike: Vec<String>,
    until: Instant,
    is_cut: bool,
}

/// The begin and the ends of a function.
pub(super) fn sites<R: ReadAt + ?Sized>(
    source: &R,
    program: &Program<'_>,
    options: &ResolverOptions,
    function: &str,
) -> Result<ProbeSites, SiteProblem> {
    let address = find(program, options, function)?;
    let table = FunctionTable::read(program.module, options);
    let code = code(source, program.layout, address, &table)?;
    let parts: Vec<Part<'_>> = code.iter().map(|(address, code)| Part { address: *address, code }).collect();
    let found = ends(&parts)?;
    let site = |address: u64, condition| {
        let offset = program.layout.code_offset(address, 1).ok_or(SiteProblem::NotInFile { address })?;
        Ok::<_, SiteProblem>(ProbeSite { offset, semaphore: None, condition })
    };
    let begins = vec![site(address, None)?];
    let ends = found.ends.iter().map(|end| site(end.address, end.condition)).collect::<Result<_, _>>()?;
    let unclear_ends = found.unclear.iter().map(|&address| site(address, None)).collect::<Result<_, _>>()?;
    Ok(ProbeSites { begins, ends, unclear_ends, ..ProbeSites::default() })
}

/// The address of the only function with this name.
fn find(program: &Program<'_>, options: &ResolverOptions, function: &str) -> Result<u64, SiteProblem> {
    let mut search = Search::new(function);
    if let Some(file) = &program.module.file {
        each_symbol_table(program.module, options, file, program.sections, &mut |source, tables, name| {
            search.read(source, tables, name)
        });
    }
    search.finish()
}

impl<'a> Search<'a> {
    fn new(function: &'a str) -> Self {
        Search {
            wanted: Wanted::new(function),
            exact: BTreeMap::new(),
            readable: BTreeMap::new(),
            is_imported: false,
            has_full_table: false,
            alike: Vec::new(),
            until: Instant::now() + MAX_TIME,
            is_cut: false,
        }
    }

    /// Looks at each symbol of one table; false where it has no function.
    fn read(&mut self, source: &dyn ReadAt, sections: &Sections, table_name: &str) -> bool {
        let Some(table) = sections.named(table_name).filter(|table| table.has_bytes()) else { return false };
        let Some(strings) = sections.all.get(table.link as usize).filter(|strings| strings.has_bytes())
        else {
            return false;
        };
        let held = read_bounded(source, strings.offset, strings.size, MAX_STRINGS);
        let mut has_functions = false;
        for at in (0..table.size.min(MAX_TABLE)).step_by(CHUNK as usize) {
            let len = CHUNK.min(table.size - at);
            let offset = table.offset.saturating_add(at);
            let Some(chunk) = read_bounded(source, offset, len, CHUNK) else { break };
            self.is_cut |= Instant::now() >= self.until;
            if self.is_cut {
                break;
            }
            for symbol in sections.class.symbols(&chunk).filter(is_function) {
                let name = name_of(source, strings, held.as_deref(), symbol.name_at);
                has_functions |= symbol.is_defined && symbol.value != 0;
                if let Some(name) = name {
                    self.add(&symbol, &name);
                }
            }
        }
        self.has_full_table |= has_functions && table_name == ".symtab";
        has_functions
    }

    fn add(&mut self, symbol: &SymbolFields, name: &str) {
        if !symbol.is_defined || symbol.value == 0 {
            self.is_imported |= self.wanted.fit(name, 0) == Some(Fit::Exact);
            return;
        }
        if symbol.kind == STT_NOTYPE {
            return;
        }
        let fitting = match self.wanted.fit(name, symbol.value) {
            Some(Fit::Exact) => &mut self.exact,
            Some(Fit::Readable) => &mut self.readable,
            None => {
                if self.alike.len() < MAX_ALIKE && self.wanted.is_near(name) {
                    self.alike.push(name.to_owned());
                }
                return;
            }
        };
        let is_indirect = symbol.kind == STT_GNU_IFUNC;
        if let Some(known) = fitting.get_mut(&symbol.value) {
            known.is_indirect &= is_indirect;
        } else if fitting.len() < MAX_FITTING {
            fitting.insert(symbol.value, Fitting { name: name.to_owned(), is_indirect });
        }
    }

    fn finish(self) -> Result<u64, SiteProblem> {
        if self.is_cut {
            return Err(SiteProblem::TooManySymbols);
        }
        let found = if self.exact.is_empty() { self.readable } else { self.exact };
        let is_indirect = found.values().any(|fitting| fitting.is_indirect);
        let direct: Vec<(u64, String)> = found
            .into_iter()
            .filter(|(_, fitting)| !fitting.is_indirect)
            .map(|(address, fitting)| (address, fitting.name))
            .collect();
        match &direct[..] {
            [(address, _)] => Ok(*address),
            [] if is_indirect => Err(SiteProblem::IndirectFunction),
            [] if self.is_imported => Err(SiteProblem::ImportedFunction),
            [] if self.has_full_table => Err(SiteProblem::NoFunction { known: nearest(self.alike) }),
            [] => Err(SiteProblem::NoFunctionStripped { known: nearest(self.alike) }),
            _ => Err(SiteProblem::SeveralFunctions { found: direct }),
        }
    }
}

/// Undefined functions often have no type.
fn is_function(symbol: &SymbolFields) -> bool {
    matches!(symbol.kind, STT_FUNC | STT_GNU_IFUNC) || symbol.kind == STT_NOTYPE && !symbol.is_defined
}

fn name_of(source: &dyn ReadAt, strings: &Section, held: Option<&[u8]>, at: u32) -> Option<String> {
    let Some(held) = held else { return string_at(source, strings, at) };
    let bytes = held.get(at as usize..)?;
    let bytes = &bytes[..bytes.len().min(MAX_ENCODED)];
    let end = bytes.iter().position(|&byte| byte == 0).filter(|&end| end > 0)?;
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// The shortest names, which differ least, in alphabetical order.
fn nearest(alike: Vec<String>) -> Vec<String> {
    let mut names: Vec<String> = alike.iter().filter_map(|name| readable_name(name)).collect();
    names.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    names.dedup();
    names.truncate(SiteProblem::MAX_NAMES);
    names
}

/// The bytes of each part of the function, the part with its entry first.
fn code<R: ReadAt + ?Sized>(
    source: &R,
    layout: &Layout,
    entry: u64,
    table: &FunctionTable,
) -> Result<Vec<(u64, Vec<u8>)>, SiteProblem> {
    let mut parts: Vec<(u64, u64)> =
        table.parts(entry).filter(|(start, end)| start < end).take(MAX_PARTS + 1).collect();
    if !parts.iter().any(|(start, _)| *start == entry) {
        return Err(SiteProblem::NoSize);
    }
    let size = parts.iter().fold(0u64, |sum, (start, end)| sum.saturating_add(end - start));
    if size > MAX_FUNCTION || parts.len() > MAX_PARTS {
        return Err(SiteProblem::TooLarge { size });
    }
    parts.sort_by_key(|(start, _)| (*start != entry, *start));
    let bytes = |(start, end): (u64, u64)| {
        let problem = SiteProblem::NotInFile { address: start };
        let Some(offset) = layout.code_offset(start, end - start) else { return Err(problem) };
        let bytes = read_bounded(source, offset, end - start, MAX_FUNCTION).ok_or(problem)?;
        Ok((start, bytes))
    };
    parts.into_iter().map(bytes).collect()
}
