// SPDX-License-Identifier: Apache-2.0
//! One module's file with all its sources of names, and how an address gets its name from them.
//!
//! Owns the checks around it: files are looked over before they are parsed, debug information is read only
//! within a limit of memory, and a name that cannot be right is left out.
//!
//! blazesym maps what it reads, and a mapped file that is cut short ends the process with SIGBUS. It is given
//! debug information only: of protected files, and of private copies of all others, in a reader
//! ([`crate::reader`]). Symbol tables are read by [`crate::listed_symbols`].

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use wallprof_model::SymbolLine;

use crate::debug_file::DebugFile;
use crate::debug_parser::{ADDRESSES_A_PARSE, Answer, DebugFunction, Parser};
use crate::debug_reader::DebugReader;
use crate::demangle::readable_name;
use crate::elf::ElfError;
use crate::exported;
use crate::file_access::FileAccess;
use crate::listed_symbols::{Listed, ListedSymbols};
use crate::live_file::FileKey;
use crate::mini_debug;
use crate::plt::PltNames;
use crate::private_copy::private_copy;
use crate::read_limits::{Deadline, FileBudget};
use crate::reader::ReaderProcess;
use crate::reader::wire::{Scope, Setup};
use crate::resolver::ResolverOptions;
use crate::section::{Section, Sections, Trust};

/// Debug files of one module that are asked, one after the other; more than one only where the best is
/// damaged.
const MAX_DEBUG_FILES: usize = 3;
/// Symbols of a file that came from a server: the largest programs have 128 MiB of them.
const MAX_FOREIGN_SYMBOLS: u64 = 256 << 20;

/// Why a file gives no names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoNames {
    /// It is no ELF file, or of another architecture.
    NotReadHere,
    /// It is damaged, was cut short, or has used its time.
    Unreadable,
}

/// A file's debug information.
struct DebugSource {
    /// By which the file counts as unreadable.
    key: FileKey,
    is_foreign: bool,
    parsing: Parsing,
}

/// Where debug information is parsed.
enum Parsing {
    OnThread(DebugReader),
    InReader(ReaderProcess),
    /// This process is the reader.
    Here(Box<ForeignCopy>),
}

impl DebugSource {
    fn functions(&mut self, addresses: &[u64], deadline: &Deadline) -> Option<Answer> {
        match &mut self.parsing {
            Parsing::OnThread(reader) => reader.functions(addresses, deadline),
            Parsing::InReader(reader) => reader.functions(addresses, deadline),
            Parsing::Here(copy) => Some(copy.answer(addresses)),
        }
    }
}

/// A private copy of a file's debug information, ready to be parsed by this process.
pub(crate) struct ForeignCopy {
    parser: Parser,
    /// The parser opens it by its descriptor.
    _file: File,
}

impl ForeignCopy {
    /// `None` for a file that is damaged or too large.
    pub(crate) fn open(file: &File, options: &ResolverOptions) -> Option<Self> {
        let sections = Sections::read(file).ok()?;
        let copy = private_copy(file, &sections, options.copy_limit).ok()?;
        // Compression headers are verified on the copy, which cannot change afterwards.
        let sections = Sections::read(&copy).ok()?;
        let parser = Parser::new(path_of(&copy), Vec::new());
        fits(options, &sections, &copy, Trust::Foreign).then_some(ForeignCopy { parser, _file: copy })
    }

    pub(crate) fn answer(&mut self, addresses: &[u64]) -> Answer {
        self.parser.answer(addresses)
    }
}

/// A table of symbols and the file that it counts for.
struct SymbolSource {
    symbols: ListedSymbols,
    key: FileKey,
    is_foreign: bool,
}

/// One module's file, with its sources of names, the best first.
pub(crate) struct ParsedModule {
    pub key: FileKey,
    file: Arc<File>,
    is_foreign: bool,
    sections: Sections,
    debug_information: Vec<DebugSource>,
    /// Used after all debug information.
    listed: Vec<SymbolSource>,
    /// Files that turned out to be damaged.
    damaged: HashSet<FileKey>,
    /// Read when the first address in a PLT comes.
    plt: Option<PltNames>,
}

impl ParsedModule {
    /// `debug_files`: those of a file with these sections.
    pub(crate) fn new(
        options: &ResolverOptions,
        file: &Arc<File>,
        key: FileKey,
        debug_files: impl FnOnce(&Sections) -> Vec<DebugFile>,
        budget: &mut FileBudget<'_>,
    ) -> Result<Self, NoNames> {
        let is_foreign = FileAccess::of(file) != FileAccess::Protected;
        let sections = budget.spend(is_foreign, 0, |_| Sections::read(file.as_ref()));
        let sections = sections.ok_or(NoNames::Unreadable)?.map_err(|error| match error {
            ElfError::Truncated | ElfError::Oversized => NoNames::Unreadable,
            ElfError::NotElf | ElfError::ForeignFormat => NoNames::NotReadHere,
        })?;
        let found = debug_files(&sections);
        let mut parsed = ParsedModule {
            key,
            file: Arc::clone(file),
            is_foreign,
            sections,
            debug_information: Vec::new(),
            listed: Vec::new(),
            damaged: found.iter().filter(|file| file.sections.is_none()).map(|file| file.key).collect(),
            plt: None,
        };
        let found = found.into_iter().filter(|found| found.has_more_than_dynamic_symbols());
        for found in found.take(MAX_DEBUG_FILES) {
            parsed.add_debug_file(options, found, budget);
        }
        parsed.add_own(options, budget);
        Ok(parsed)
    }

    /// The files that turned out to be damaged since the last call.
    pub(crate) fn take_damaged(&mut self) -> HashSet<FileKey> {
        std::mem::take(&mut self.damaged)
    }

    pub(crate) fn has_debug_info(&self) -> bool {
        !self.debug_information.is_empty()
    }

    fn add_debug_file(&mut self, options: &ResolverOptions, found: DebugFile, budget: &mut FileBudget<'_>) {
        let DebugFile { path, file, key, trust, sections } = found;
        let Some(sections) = sections else { return };
        if trust == Trust::Foreign && sections.symbol_bytes() > MAX_FOREIGN_SYMBOLS {
            self.damaged.insert(key);
            return;
        }
        let file = Arc::new(file);
        let is_foreign = FileAccess::of(&file) != FileAccess::Protected;
        let source = Source { file: &file, sections: &sections, key, is_foreign };
        let linked = Some(path).filter(|_| sections.refers_to_other_files());
        let trusted = if is_foreign { Trust::Foreign } else { trust };
        if trusted == Trust::Installed || linked.is_none() {
            self.add_debug_info(options, &source, trusted, linked, budget);
        }
        self.add_symbols(ListedSymbols::full(&file, &sections), key, is_foreign);
    }

    fn add_own(&mut self, options: &ResolverOptions, budget: &mut FileBudget<'_>) {
        let (file, key, is_foreign) = (Arc::clone(&self.file), self.key, self.is_foreign);
        let has_symbols = self.sections.has_bytes(".symtab") || self.sections.has_bytes(".debug_info");
        let is_known = self.debug_information.iter().any(|source| source.key == key);
        // Links to other files are followed from installed debug files only, not from what a process runs.
        if !is_known && !self.sections.refers_to_other_files() {
            let sections = std::mem::take(&mut self.sections);
            let source = Source { file: &file, sections: &sections, key, is_foreign };
            self.add_debug_info(options, &source, Trust::Foreign, None, budget);
            self.sections = sections;
        }
        let has_other = !self.debug_information.is_empty() || !self.listed.is_empty();
        self.add_symbols(ListedSymbols::full(&file, &self.sections), key, is_foreign);
        self.add_symbols(ListedSymbols::dynamic(&file, &self.sections), key, is_foreign);
        if !has_symbols && !has_other {
            let packed = mini_debug::packed_size(&self.sections);
            let unpack = |deadline: &Deadline| mini_debug_symbols(&file, &self.sections, deadline);
            match budget.spend(is_foreign, packed, unpack) {
                Some(Ok(symbols)) => self.add_symbols(symbols, key, is_foreign),
                None | Some(Err(_)) => drop(self.damaged.insert(key)),
            }
        }
    }

    fn add_symbols(&mut self, symbols: Option<ListedSymbols>, key: FileKey, is_foreign: bool) {
        self.listed.extend(symbols.map(|symbols| SymbolSource { symbols, key, is_foreign }));
    }

    /// `path`: the name under which readers find what the file refers to.
    fn add_debug_info(
        &mut self,
        options: &ResolverOptions,
        source: &Source<'_>,
        trust: Trust,
        path: Option<PathBuf>,
        budget: &mut FileBudget<'_>,
    ) {
        let Source { file, sections, key, is_foreign } = *source;
        // The compression headers of a foreign file are verified on its copy.
        let trust = if is_foreign { Trust::Installed } else { trust };
        if options.debug_limit == 0 || !fits(options, sections, file, trust) {
            return;
        }
        let parsing = if is_foreign {
            budget.spend(true, sections.copied_bytes(), |_| parsing_apart(options, file)).flatten()
        } else {
            let path = path.unwrap_or_else(|| path_of(file));
            DebugReader::start(path, Arc::clone(file), options.debug_dirs.clone()).ok().map(Parsing::OnThread)
        };
        match parsing {
            Some(parsing) => self.debug_information.push(DebugSource { key, is_foreign, parsing }),
            None => drop(self.damaged.insert(key)),
        }
    }

    /// For each address its functions, innermost first, as [`crate::Resolver::resolve`] returns them.
    pub(crate) fn resolve(&mut self, addresses: &[u64], budget: &mut FileBudget<'_>) -> Vec<Vec<SymbolLine>> {
        let mut all = vec![vec![SymbolLine::default()]; addresses.len()];
        // In the order of addresses neighbours share a compilation unit.
        let mut order: Vec<usize> = (0..addresses.len()).collect();
        order.sort_unstable_by_key(|&index| addresses[index]);
        let (stubs, order): (Vec<_>, Vec<_>) =
            order.into_iter().partition(|&index| self.code_at(addresses[index]).is_some_and(is_plt));
        for index in stubs {
            all[index] = self.stub_lines(addresses[index], budget).unwrap_or_else(|| all[index].clone());
        }
        self.fill_from_debug_info(addresses, &order, &mut all, budget);
        self.fill_from_symbols(addresses, &order, &mut all, budget);
        self.use_exported_names(addresses, &mut all, budget);
        all
    }

    /// Names addresses by debug information, the best first. A source that is damaged or takes too long is not
    /// used again. `order`: indices by address.
    fn fill_from_debug_info(
        &mut self,
        addresses: &[u64],
        order: &[usize],
        all: &mut [Vec<SymbolLine>],
        budget: &mut FileBudget<'_>,
    ) {
        for mut source in std::mem::take(&mut self.debug_information) {
            let unnamed: Vec<usize> = unnamed(order, all).collect();
            let mut parts = unnamed.chunks(ADDRESSES_A_PARSE);
            let is_sound = parts.all(|part| self.fill_part(&mut source, addresses, part, all, budget));
            if is_sound {
                self.debug_information.push(source);
            } else {
                self.damaged.insert(source.key);
            }
        }
    }

    /// False when the file is damaged or the deadline is over.
    fn fill_part(
        &self,
        source: &mut DebugSource,
        addresses: &[u64],
        part: &[usize],
        all: &mut [Vec<SymbolLine>],
        budget: &mut FileBudget<'_>,
    ) -> bool {
        let wanted: Vec<u64> = part.iter().map(|&index| addresses[index]).collect();
        let answer = budget.spend(source.is_foreign, 0, |deadline| source.functions(&wanted, deadline));
        let Some(answer) = answer.flatten() else { return false };
        for (&index, function) in part.iter().zip(answer.functions) {
            let address = addresses[index];
            let is_certain = |found: &DebugFunction| self.is_certain(found.sized, found.start, address);
            if let Some(function) = function.filter(is_certain) {
                all[index] = function.lines;
            }
        }
        !answer.is_damaged
    }

    /// Names what debug information has not named by symbol tables, and finds where a part of a function
    /// starts; `order`: indices by address.
    fn fill_from_symbols(
        &mut self,
        addresses: &[u64],
        order: &[usize],
        all: &mut [Vec<SymbolLine>],
        budget: &mut FileBudget<'_>,
    ) {
        for source in &self.listed {
            let incomplete: Vec<usize> = incomplete(order, all).collect();
            if incomplete.is_empty() {
                return;
            }
            let wanted: Vec<u64> = incomplete.iter().map(|&index| addresses[index]).collect();
            let read = |deadline: &Deadline| source.symbols.functions(&wanted, deadline);
            let Some(Ok(found)) = budget.spend(source.is_foreign, source.symbols.bytes(), read) else {
                self.damaged.insert(source.key);
                continue;
            };
            for (index, found) in incomplete.into_iter().zip(found) {
                let address = addresses[index];
                let found = found.filter(|found| self.is_certain(found.sized, found.start, address));
                let Some(found) = found else { continue };
                if is_unnamed(&all[index]) {
                    all[index] = lines_from_listed(&found, address);
                } else if let Some(physical) = all[index].last_mut() {
                    physical.offset = Some(address - found.start);
                }
            }
        }
    }

    fn code_at(&self, address: u64) -> Option<&Section> {
        self.sections.code_at(address)
    }

    /// A symbol without a size reaches to the next one, but never out of its section.
    fn is_certain(&self, sized: bool, start: u64, address: u64) -> bool {
        let same_section = || self.code_at(address).is_some_and(|section| section.contains(start));
        sized || start == address || same_section()
    }

    fn stub_lines(&mut self, address: u64, budget: &mut FileBudget<'_>) -> Option<Vec<SymbolLine>> {
        if self.plt.is_none() {
            let read = |_: &Deadline| PltNames::read(self.file.as_ref(), &self.sections);
            self.plt = budget.spend(self.is_foreign, 0, read);
        }
        let (name, offset) = self.plt.as_ref()?.name(address)?;
        Some(vec![SymbolLine { symbol: Some(name), offset: Some(offset), ..SymbolLine::default() }])
    }

    /// Of several names of a C function, the exported one: the same with and without debug information.
    fn use_exported_names(
        &self,
        addresses: &[u64],
        all: &mut [Vec<SymbolLine>],
        budget: &mut FileBudget<'_>,
    ) {
        let mut names = HashMap::new();
        let start_of = |address: u64, line: &SymbolLine| {
            let is_plain = line.symbol.as_deref().is_some_and(is_c_name);
            line.offset.filter(|_| is_plain).map(|offset| address.wrapping_sub(offset))
        };
        let physical = || addresses.iter().zip(all.iter().filter_map(|lines| lines.last()));
        names.extend(physical().filter_map(|(&address, line)| Some((start_of(address, line)?, None))));
        if names.is_empty() {
            return;
        }
        let fill = |deadline: &Deadline| {
            exported::fill_names(self.file.as_ref(), &self.sections, &mut names, deadline);
        };
        budget.spend(self.is_foreign, exported::bytes(&self.sections), fill);
        for (&address, line) in addresses.iter().zip(all.iter_mut().filter_map(|lines| lines.last_mut())) {
            let start = start_of(address, line);
            if let Some(Some(name)) = start.and_then(|start| names.get(&start)) {
                line.symbol = Some(name.clone());
            }
        }
    }
}

/// A file that debug information is read from.
#[derive(Clone, Copy)]
struct Source<'a> {
    file: &'a Arc<File>,
    sections: &'a Sections,
    key: FileKey,
    is_foreign: bool,
}

/// `None` without a program that reads such files, and where the file is damaged.
fn parsing_apart(options: &ResolverOptions, file: &File) -> Option<Parsing> {
    let command = options.reader.as_ref()?;
    if command.is_here() {
        return ForeignCopy::open(file, options).map(Box::new).map(Parsing::Here);
    }
    let setup = reader_setup(options, Scope::DebugInformation);
    ReaderProcess::start(command, file, &setup).ok().map(Parsing::InReader)
}

/// The task of a reader of a module's file.
pub(crate) fn reader_setup(options: &ResolverOptions, scope: Scope) -> Setup {
    Setup {
        scope,
        debug_limit: options.debug_limit,
        unpacked_limit: options.unpacked_limit,
        copy_limit: options.copy_limit,
    }
}

/// A path that leads to the open file, whatever its name stands for.
fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Those of the indices whose address has no name.
fn unnamed(order: &[usize], all: &[Vec<SymbolLine>]) -> impl Iterator<Item = usize> {
    order.iter().copied().filter(|&index| is_unnamed(&all[index]))
}

/// Those of the indices whose function has no name or no known start.
fn incomplete(order: &[usize], all: &[Vec<SymbolLine>]) -> impl Iterator<Item = usize> {
    let has_start = |lines: &[SymbolLine]| lines.last().is_some_and(|line| line.offset.is_some());
    order.iter().copied().filter(move |&index| is_unnamed(&all[index]) || !has_start(&all[index]))
}

fn is_unnamed(lines: &[SymbolLine]) -> bool {
    lines.iter().all(|line| line.symbol.is_none())
}

/// Nothing where there is no MiniDebugInfo.
fn mini_debug_symbols(
    file: &File,
    sections: &Sections,
    deadline: &Deadline,
) -> io::Result<Option<ListedSymbols>> {
    let Some(image) = mini_debug::unpack(file, sections, deadline).transpose()? else { return Ok(None) };
    let sections = Sections::read(image.as_slice()).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(ListedSymbols::of_image(image, &sections))
}

fn lines_from_listed(found: &Listed, address: u64) -> Vec<SymbolLine> {
    let (symbol, offset) = (readable_name(&found.name), Some(address - found.start));
    vec![SymbolLine { symbol, offset, ..SymbolLine::default() }]
}

fn is_plt(section: &Section) -> bool {
    section.name.starts_with(".plt")
}

/// Whether a file's debug information exists and may be read.
fn fits(options: &ResolverOptions, sections: &Sections, file: &File, trust: Trust) -> bool {
    let size = || sections.debug_size(file, options.unpacked_limit, trust);
    sections.has_bytes(".debug_info") && size().is_some_and(|size| size.total <= options.debug_limit)
}

/// Not a path of C++ or Rust, nor a PLT stub.
fn is_c_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'$'))
}
