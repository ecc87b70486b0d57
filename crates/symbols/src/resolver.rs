//! ELF virtual addresses → functions, inlined functions, files and lines. The one home of blazesym.
//!
//! Owns the checks around it: foreign files are looked over before they are parsed, debug information is
//! read only within a limit of memory, and a name that cannot be right is left out. Little parsed state is
//! kept, because it is anonymous memory.
//!
//! blazesym maps what it reads, and a mapped file that is cut short ends the process with SIGBUS. It is given
//! debug information only: of files that nobody else can write, and of private copies of all others. Symbol
//! tables are read by [`crate::listed_symbols`].

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use wallprof_model::SymbolLine;

use crate::debug_file::{self, DebugFile, SYSTEM_DEBUG_DIR};
use crate::demangle::readable_name;
use crate::elf::ElfError;
use crate::exported;
use crate::listed_symbols::{Listed, ListedSymbols, UnreadableTable};
use crate::live_file::FileKey;
use crate::mini_debug;
use crate::module::ModuleFile;
use crate::plt::PltNames;
use crate::private_copy::{is_protected, private_copy};
use crate::section::{Section, Sections, Trust};

/// How much debug information is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolverOptions {
    /// Searched in order; each may hold `.build-id/ab/cdef.debug`, or files by path or name.
    pub debug_dirs: Vec<PathBuf>,
    /// Debug files that were found before, by build id; they come before those of `debug_dirs`.
    pub files: BTreeMap<Vec<u8>, Vec<PathBuf>>,
    /// Caches of debuginfod clients: `BUILD-ID/debuginfo`. What is there came from a server and is not
    /// trusted.
    pub download_dirs: Vec<PathBuf>,
    /// Bytes of compressed debug sections that may be unpacked into memory for one module; beyond that the
    /// symbol table has to do.
    pub unpacked_limit: u64,
    /// Bytes of debug sections in all; parsing costs memory in proportion. 0: symbol tables only.
    pub debug_limit: u64,
    /// Bytes of debug sections and symbols in a file that others can write; it is read into memory.
    pub copy_limit: u64,
}

impl Default for ResolverOptions {
    fn default() -> Self {
        ResolverOptions {
            debug_dirs: vec![PathBuf::from(SYSTEM_DEBUG_DIR)],
            files: BTreeMap::new(),
            download_dirs: Vec::new(),
            unpacked_limit: 24 << 20,
            debug_limit: 256 << 20,
            copy_limit: 64 << 20,
        }
    }
}

/// Addresses that one parse of debug information answers before it starts over: what it keeps grows with the
/// compilation units that were asked for (a thousand scattered addresses of a Rust program: 27 MiB).
const ADDRESSES_A_PARSE: usize = 128;
/// `PATH_MAX`.
const MAX_PATH: usize = 4096;
/// Modules whose parsed state is kept; at most one of them has debug information.
const KEPT_MODULES: usize = 3;
/// Debug files of one module that are asked, one after the other; more than one only where the best is
/// damaged.
const MAX_DEBUG_FILES: usize = 3;
/// Symbols of a file that came from a server: the largest programs have 128 MiB of them.
const MAX_FOREIGN_SYMBOLS: u64 = 256 << 20;

/// The loss that [`Resolver::unreadable`] counts.
pub const UNREADABLE_DEBUG_FILES: &str = "debug_files_unreadable";

/// Names addresses, module by module.
pub struct Resolver {
    options: ResolverOptions,
    /// Last used last.
    kept: Vec<ParsedModule>,
    /// Files whose symbols or debug information are damaged, were cut short, or are too large.
    unreadable: HashSet<FileKey>,
}

impl Default for Resolver {
    fn default() -> Self {
        Resolver::new(ResolverOptions::default())
    }
}

impl Resolver {
    pub fn new(options: ResolverOptions) -> Self {
        Resolver { options, kept: Vec::new(), unreadable: HashSet::new() }
    }

    /// For each ELF virtual address its functions, innermost first; at least one entry, whose symbol is
    /// `None` where nothing certain is known. Cheapest when a module's addresses come in one call.
    ///
    /// A module without a file is named by its debug file alone.
    pub fn resolve(&mut self, module: &ModuleFile, addresses: &[u64]) -> Vec<Vec<SymbolLine>> {
        match self.parsed(module) {
            Some(parsed) => {
                let lines = parsed.resolve(addresses);
                let damaged = std::mem::take(&mut parsed.damaged);
                self.unreadable.extend(damaged);
                lines
            }
            None => vec![vec![SymbolLine::default()]; addresses.len()],
        }
    }

    /// How many files have symbols or debug information that is damaged, was cut short while it was read, or
    /// is too large.
    pub fn unreadable(&self) -> u64 {
        self.unreadable.len() as u64
    }

    /// Gives back the memory that parsed modules take.
    pub fn forget(&mut self) {
        self.kept.clear();
    }

    fn parsed(&mut self, module: &ModuleFile) -> Option<&mut ParsedModule> {
        let own = module.file.as_ref().map(Arc::clone);
        let (file, found) = match own {
            Some(file) => (file, None),
            None => {
                let found = debug_file::find(&self.options, &module.module);
                (Arc::new(found.first()?.file.try_clone().ok()?), Some(found))
            }
        };
        let key = FileKey::of(&file.metadata().ok()?);
        let parsed = match self.kept.iter().position(|parsed| parsed.key == key) {
            Some(at) => self.kept.remove(at),
            None => {
                // Old ones go before the new one comes: both together would need the memory of both.
                self.kept.retain(|parsed| !parsed.has_debug_info());
                if self.kept.len() == KEPT_MODULES {
                    self.kept.remove(0);
                }
                let found = found.unwrap_or_else(|| split_debug_files(&self.options, module, &file));
                ParsedModule::new(&self.options, &file, key, found, &mut self.unreadable)?
            }
        };
        self.kept.push(parsed);
        self.kept.last_mut()
    }
}

/// One file with debug information.
struct DebugSource {
    symbolizer: Symbolizer,
    path: PathBuf,
    /// By which the file counts as unreadable.
    key: FileKey,
    is_damaged: Cell<bool>,
    debug_dirs: Vec<PathBuf>,
    /// Kept open: `path` may be a link to this descriptor.
    _file: Arc<File>,
}

/// A table of symbols and the file that it counts for.
struct SymbolSource {
    symbols: ListedSymbols,
    key: FileKey,
}

/// One module's file, with its sources of names, the best first.
struct ParsedModule {
    key: FileKey,
    file: Arc<File>,
    sections: Sections,
    sources: Vec<DebugSource>,
    /// Asked after all sources.
    listed: Vec<SymbolSource>,
    /// Files that turned out to be damaged.
    damaged: HashSet<FileKey>,
    /// Addresses looked up since the sources were parsed.
    asked: usize,
    /// Read when the first address in a PLT comes.
    plt: OnceCell<PltNames>,
}

impl ParsedModule {
    /// `None` for a file whose sections cannot be trusted. `found`: its debug files.
    fn new(
        options: &ResolverOptions,
        file: &Arc<File>,
        key: FileKey,
        found: Vec<DebugFile>,
        unreadable: &mut HashSet<FileKey>,
    ) -> Option<Self> {
        unreadable.extend(found.iter().filter(|file| file.sections.is_none()).map(|file| file.key));
        let sections = match Sections::read(file.as_ref()) {
            Ok(sections) => sections,
            Err(error) => {
                if matches!(error, ElfError::Truncated | ElfError::Oversized) {
                    unreadable.insert(key);
                }
                return None;
            }
        };
        let mut parsed = ParsedModule {
            key,
            file: Arc::clone(file),
            sections,
            sources: Vec::new(),
            listed: Vec::new(),
            damaged: HashSet::new(),
            asked: 0,
            plt: OnceCell::new(),
        };
        let found = found.into_iter().filter(|found| found.says_more_than_a_stripped_file());
        for found in found.take(MAX_DEBUG_FILES) {
            parsed.add_debug_file(options, found);
        }
        parsed.add_own(options);
        Some(parsed)
    }

    fn add_debug_file(&mut self, options: &ResolverOptions, found: DebugFile) {
        let DebugFile { path, file, key, trust, sections } = found;
        let Some(sections) = sections else { return };
        if trust == Trust::Foreign && sections.symbol_bytes() > MAX_FOREIGN_SYMBOLS {
            self.damaged.insert(key);
            return;
        }
        let file = Arc::new(file);
        let linked = Some(path).filter(|_| sections.refers_to_other_files());
        let trusted = if is_protected(&file) { trust } else { Trust::Foreign };
        if trusted == Trust::Installed || linked.is_none() {
            self.add_debug_info(options, &file, &sections, key, trusted, linked);
        }
        self.add_symbols(ListedSymbols::full(&file, &sections), key);
    }

    fn add_own(&mut self, options: &ResolverOptions) {
        let (file, key) = (Arc::clone(&self.file), self.key);
        let has_symbols = self.sections.has_bytes(".symtab") || self.sections.has_bytes(".debug_info");
        let is_known = self.sources.iter().any(|source| source.key == key);
        // Links to other files are followed from installed debug files only, not from what a process runs.
        if !is_known && !self.sections.refers_to_other_files() {
            let sections = std::mem::take(&mut self.sections);
            self.add_debug_info(options, &file, &sections, key, Trust::Foreign, None);
            self.sections = sections;
        }
        let has_other = !self.sources.is_empty() || !self.listed.is_empty();
        self.add_symbols(ListedSymbols::full(&file, &self.sections), key);
        self.add_symbols(ListedSymbols::dynamic(&file, &self.sections), key);
        if !has_symbols && !has_other {
            match mini_debug_symbols(&file, &self.sections) {
                Ok(symbols) => self.add_symbols(symbols, key),
                Err(_) => drop(self.damaged.insert(key)),
            }
        }
    }

    fn add_symbols(&mut self, symbols: Option<ListedSymbols>, key: FileKey) {
        self.listed.extend(symbols.map(|symbols| SymbolSource { symbols, key }));
    }

    /// `path`: the name under which readers find what the file refers to.
    fn add_debug_info(
        &mut self,
        options: &ResolverOptions,
        file: &Arc<File>,
        sections: &Sections,
        key: FileKey,
        trust: Trust,
        path: Option<PathBuf>,
    ) {
        // What a compression header says is proved on the copy, which cannot change afterwards.
        if options.debug_limit == 0 || !fits(options, sections, file, Trust::Installed) {
            return;
        }
        let readable = if is_protected(file) {
            fits(options, sections, file, trust).then(|| Arc::clone(file))
        } else {
            let copy = private_copy(file, sections, options.copy_limit).ok();
            let sound = copy.filter(|copy| {
                Sections::read(copy).is_ok_and(|sections| fits(options, &sections, copy, Trust::Foreign))
            });
            if sound.is_none() {
                self.damaged.insert(key);
            }
            sound.map(Arc::new)
        };
        let Some(file) = readable else { return };
        self.sources.push(DebugSource::new(options, path.unwrap_or_else(|| path_of(&file)), file, key));
    }

    fn has_debug_info(&self) -> bool {
        !self.sources.is_empty()
    }

    fn resolve(&mut self, addresses: &[u64]) -> Vec<Vec<SymbolLine>> {
        let mut all = vec![Vec::new(); addresses.len()];
        // In the order of addresses neighbours share a compilation unit.
        let mut order: Vec<usize> = (0..addresses.len()).collect();
        order.sort_unstable_by_key(|&index| addresses[index]);
        for part in order.chunks(ADDRESSES_A_PARSE) {
            self.make_room(part.len());
            self.fill_lines(addresses, part, &mut all);
            self.leave_out_damaged();
        }
        self.fill_from_symbols(addresses, &order, &mut all);
        self.use_exported_names(addresses, &mut all);
        all
    }

    /// Resolves the addresses of these indices that have no name.
    fn fill_lines(&self, addresses: &[u64], indices: &[usize], all: &mut [Vec<SymbolLine>]) {
        for &index in indices {
            if all[index].iter().all(|line| line.symbol.is_none()) {
                let known = self.lines(addresses[index]);
                all[index] = known.unwrap_or_else(|| vec![SymbolLine::default()]);
            }
        }
    }

    /// Damaged debug information is not asked again.
    fn leave_out_damaged(&mut self) {
        self.damaged
            .extend(self.sources.iter().filter(|source| source.is_damaged.get()).map(|source| source.key));
        self.sources.retain(|source| !source.is_damaged.get());
    }

    /// Names what debug information has not named by symbol tables; `order`: indices by address.
    fn fill_from_symbols(&mut self, addresses: &[u64], order: &[usize], all: &mut [Vec<SymbolLine>]) {
        for source in &self.listed {
            let is_unnamed = |&index: &usize| all[index].iter().all(|line| line.symbol.is_none());
            let is_in_plt = |index: usize| self.code_at(addresses[index]).is_some_and(is_plt);
            let unnamed: Vec<usize> = order.iter().copied().filter(is_unnamed).collect();
            let unnamed: Vec<usize> = unnamed.into_iter().filter(|&index| !is_in_plt(index)).collect();
            if unnamed.is_empty() {
                return;
            }
            let wanted: Vec<u64> = unnamed.iter().map(|&index| addresses[index]).collect();
            match source.symbols.functions(&wanted) {
                Ok(found) => {
                    for (index, found) in unnamed.into_iter().zip(found) {
                        let found = found.filter(|found| self.is_certain(found, addresses[index]));
                        if let Some(found) = found {
                            all[index] = lines_from_listed(&found, addresses[index]);
                        }
                    }
                }
                Err(UnreadableTable) => drop(self.damaged.insert(source.key)),
            }
        }
    }

    fn code_at(&self, address: u64) -> Option<&Section> {
        self.sections.code_at(address)
    }

    /// A symbol without a size reaches to the next one, but never out of its section.
    fn is_certain(&self, found: &Listed, address: u64) -> bool {
        found.sized
            || found.start == address
            || self.code_at(address).is_some_and(|section| section.contains(found.start))
    }

    /// Starts debug information over when it has answered enough.
    fn make_room(&mut self, coming: usize) {
        if self.asked + coming > ADDRESSES_A_PARSE {
            self.asked = 0;
            self.sources.iter_mut().for_each(DebugSource::start_over);
        }
        self.asked += coming;
    }

    fn lines(&self, address: u64) -> Option<Vec<SymbolLine>> {
        let section = self.code_at(address);
        if section.is_some_and(is_plt) {
            let plt = self.plt.get_or_init(|| PltNames::read(self.file.as_ref(), &self.sections));
            return plt.name(address).map(|(name, offset)| {
                vec![SymbolLine { symbol: Some(name), offset: Some(offset), ..SymbolLine::default() }]
            });
        }
        self.sources.iter().find_map(|source| {
            let symbolized = source.symbolize(address)?;
            let symbol = symbolized.as_sym()?;
            // A symbol without a size reaches to the next one, but never out of its section.
            let sized = symbol.size.is_some_and(|size| symbol.offset < size);
            let same_section = section.is_some_and(|section| section.contains(symbol.addr));
            (sized || same_section).then(|| lines_from_symbol(symbol))
        })
    }

    /// Of several names of a C function, the exported one: the same with and without debug information.
    fn use_exported_names(&self, addresses: &[u64], all: &mut [Vec<SymbolLine>]) {
        let mut names = HashMap::new();
        let start_of = |address: u64, line: &SymbolLine| {
            let is_plain = line.symbol.as_deref().is_some_and(is_c_name);
            line.offset.filter(|_| is_plain).map(|offset| address.wrapping_sub(offset))
        };
        let physical = || addresses.iter().zip(all.iter().filter_map(|lines| lines.last()));
        names.extend(physical().filter_map(|(&address, line)| Some((start_of(address, line)?, None))));
        exported::fill_names(self.file.as_ref(), &self.sections, &mut names);
        for (&address, line) in addresses.iter().zip(all.iter_mut().filter_map(|lines| lines.last_mut())) {
            let start = start_of(address, line);
            if let Some(Some(name)) = start.and_then(|start| names.get(&start)) {
                line.symbol = Some(name.clone());
            }
        }
    }
}

impl DebugSource {
    fn new(options: &ResolverOptions, path: PathBuf, file: Arc<File>, key: FileKey) -> Self {
        let debug_dirs = options.debug_dirs.clone();
        let symbolizer = symbolizer(&debug_dirs);
        DebugSource { symbolizer, path, key, is_damaged: Cell::new(false), debug_dirs, _file: file }
    }

    fn start_over(&mut self) {
        self.symbolizer = symbolizer(&self.debug_dirs);
    }

    /// A damaged file must not end the recorder: blazesym's arithmetic on untrusted sizes is checked in debug
    /// builds only, and there it panics.
    fn symbolize(&self, address: u64) -> Option<Symbolized<'_>> {
        let source = Source::Elf(Elf::new(&self.path));
        let attempt = || self.symbolizer.symbolize_single(&source, Input::VirtOffset(address));
        let symbolized = catch_unwind(AssertUnwindSafe(attempt)).ok().and_then(Result::ok);
        self.is_damaged.set(self.is_damaged.get() || symbolized.is_none());
        symbolized
    }
}

/// A path that leads to the open file, whatever its name stands for.
fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn symbolizer(debug_dirs: &[PathBuf]) -> Symbolizer {
    Symbolizer::builder()
        .enable_auto_reload(false)
        .enable_code_info(true)
        .enable_inlined_fns(true)
        .enable_demangling(false)
        .set_debug_dirs(Some(debug_dirs))
        .build()
}

/// Nothing where there is no MiniDebugInfo.
fn mini_debug_symbols(file: &File, sections: &Sections) -> io::Result<Option<ListedSymbols>> {
    let Some(image) = mini_debug::unpack(file, sections).transpose()? else { return Ok(None) };
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

/// The module's separate debug files, unless it has its debug information with it.
fn split_debug_files(options: &ResolverOptions, module: &ModuleFile, file: &File) -> Vec<DebugFile> {
    let has_own = Sections::read(file).is_ok_and(|sections| sections.has_bytes(".debug_info"));
    if has_own { Vec::new() } else { debug_file::find(options, &module.module) }
}

/// Whether a module with a build id has no debug information, neither in its own file nor in one that was
/// found.
pub fn lacks_debug_info(module: &ModuleFile, options: &ResolverOptions) -> bool {
    let has_own = || {
        let file = module.file.as_ref()?;
        Some(Sections::read(file.as_ref()).ok()?.has_bytes(".debug_info"))
    };
    let found = || debug_file::find(options, &module.module);
    module.module.build_id.is_some()
        && !has_own().unwrap_or(false)
        && !found().iter().any(DebugFile::has_debug_info)
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

/// blazesym lists the physical function first and inlined ones outermost first.
fn lines_from_symbol(symbol: &Sym<'_>) -> Vec<SymbolLine> {
    let inlined = symbol.inlined.iter().rev().map(|inlined| SymbolLine {
        symbol: readable_name(&inlined.name),
        offset: None,
        inlined: true,
        ..line_from_code(inlined.code_info.as_ref())
    });
    let physical = SymbolLine {
        symbol: readable_name(&symbol.name),
        offset: Some(symbol.offset as u64),
        inlined: false,
        ..line_from_code(symbol.code_info.as_deref())
    };
    inlined.chain([physical]).collect()
}

fn line_from_code(code: Option<&CodeInfo<'_>>) -> SymbolLine {
    let path = |code: &CodeInfo<'_>| {
        let path = code.to_path();
        let bytes = path.as_os_str().as_encoded_bytes();
        String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_PATH)]).into_owned()
    };
    SymbolLine { file: code.map(path), line: code.and_then(|code| code.line), ..SymbolLine::default() }
}
