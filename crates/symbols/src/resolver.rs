//! ELF virtual addresses → functions, inlined functions, files and lines. The one home of blazesym.
//!
//! Owns the checks around it: foreign files are looked over before they are parsed, debug information is
//! read only within a limit of memory, and a name that cannot be right is left out. Little parsed state is
//! kept, because it is anonymous memory.
//!
//! Known limit: full symbol tables are read through a memory map, so a file that is cut short while it is
//! read ends the process with SIGBUS. Programs and libraries in use are replaced, not cut, by every package
//! manager.

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
use crate::exported;
use crate::listed_symbols::ListedSymbols;
use crate::live_file::FileKey;
use crate::mini_debug;
use crate::module::ModuleFile;
use crate::plt::PltNames;
use crate::section::{Sections, Trust};

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
    /// Bytes of debug sections in all; parsing costs memory in proportion.
    pub debug_limit: u64,
}

impl Default for ResolverOptions {
    fn default() -> Self {
        ResolverOptions {
            debug_dirs: vec![PathBuf::from(SYSTEM_DEBUG_DIR)],
            files: BTreeMap::new(),
            download_dirs: Vec::new(),
            unpacked_limit: 24 << 20,
            debug_limit: 256 << 20,
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
    /// Debug files, and files with MiniDebugInfo, that have the right build id and damaged contents.
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
                let failed = parsed.sources.iter().filter(|source| source.is_damaged.get());
                let failed: Vec<_> = failed.filter_map(|source| source.separate).collect();
                self.unreadable.extend(failed);
                lines
            }
            None => vec![vec![SymbolLine::default()]; addresses.len()],
        }
    }

    /// How many debug files, and how many modules' MiniDebugInfo, belong to a module but are damaged or too
    /// large.
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

/// One file with symbols or debug information.
struct SymbolSource {
    symbolizer: Symbolizer,
    path: PathBuf,
    debug_info: bool,
    /// A debug file's, by which it counts as unreadable; `None` for the module's own file.
    separate: Option<FileKey>,
    is_damaged: Cell<bool>,
    debug_dirs: Vec<PathBuf>,
    /// Kept open: `path` may be a link to this descriptor.
    _file: Arc<File>,
}

/// One module's file, with its sources of names, the best first.
struct ParsedModule {
    key: FileKey,
    file: Arc<File>,
    sections: Sections,
    sources: Vec<SymbolSource>,
    /// Asked after all sources.
    listed: Vec<ListedSymbols>,
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
        let sections = Sections::read(file.as_ref()).ok()?;
        let found = found.into_iter().filter(|found| found.says_more_than_a_stripped_file());
        let mut sources = Vec::new();
        for (key, found) in found.take(MAX_DEBUG_FILES).map(|found| (found.key, found)) {
            match SymbolSource::of_debug_file(options, found) {
                Some(source) => sources.push(source),
                None => drop(unreadable.insert(key)),
            }
        }
        let is_own_debug_file = sources.iter().any(|source| source.separate == Some(key));
        let mut listed = Vec::new();
        if sections.has_bytes(".symtab") || sections.has_bytes(".debug_info") {
            // Links to other files are followed from installed debug files only, not from what a process
            // runs.
            let debug_info =
                !sections.refers_to_other_files() && fits(options, &sections, file, Trust::Foreign);
            if !is_own_debug_file {
                sources.push(SymbolSource::new(options, path_of(file), Arc::clone(file), debug_info));
            }
        } else {
            listed.extend(ListedSymbols::dynamic(file, &sections));
            if sources.is_empty() {
                match mini_debug_symbols(file, &sections) {
                    Ok(symbols) => listed.extend(symbols),
                    Err(_) => drop(unreadable.insert(key)),
                }
            }
        }
        let (file, plt) = (Arc::clone(file), OnceCell::new());
        Some(ParsedModule { key, file, sections, sources, listed, asked: 0, plt })
    }

    fn has_debug_info(&self) -> bool {
        self.sources.iter().any(|source| source.debug_info)
    }

    fn resolve(&mut self, addresses: &[u64]) -> Vec<Vec<SymbolLine>> {
        let mut all = vec![Vec::new(); addresses.len()];
        // In the order of addresses neighbours share a compilation unit.
        let mut order: Vec<usize> = (0..addresses.len()).collect();
        order.sort_unstable_by_key(|&index| addresses[index]);
        for part in order.chunks(ADDRESSES_A_PARSE) {
            self.make_room(part.len());
            self.fill_lines(addresses, part, &mut all);
            if self.leave_out_damaged() {
                self.fill_lines(addresses, part, &mut all);
            }
        }
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

    /// From damaged debug information on, the symbols of the same file are asked; true when there are any.
    fn leave_out_damaged(&mut self) -> bool {
        let damaged = |source: &&mut SymbolSource| source.debug_info && source.is_damaged.get();
        let mut left_out = false;
        for source in self.sources.iter_mut().filter(damaged) {
            source.debug_info = false;
            source.start_over();
            left_out = true;
        }
        left_out
    }

    /// Starts debug information over when it has answered enough.
    fn make_room(&mut self, coming: usize) {
        if self.asked + coming > ADDRESSES_A_PARSE {
            self.asked = 0;
            self.sources.iter_mut().filter(|source| source.debug_info).for_each(SymbolSource::start_over);
        }
        self.asked += coming;
    }

    fn lines(&self, address: u64) -> Option<Vec<SymbolLine>> {
        let section = self.sections.code_at(address);
        if section.is_some_and(|section| section.name.starts_with(".plt")) {
            let plt = self.plt.get_or_init(|| PltNames::read(self.file.as_ref(), &self.sections));
            return plt.name(address).map(|(name, offset)| {
                vec![SymbolLine { symbol: Some(name), offset: Some(offset), ..SymbolLine::default() }]
            });
        }
        let from_sources = self.sources.iter().find_map(|source| {
            let symbolized = source.symbolize(address)?;
            let symbol = symbolized.as_sym()?;
            // A symbol without a size reaches to the next one, but never out of its section.
            let sized = symbol.size.is_some_and(|size| symbol.offset < size);
            let same_section = section.is_some_and(|section| section.contains(symbol.addr));
            (sized || same_section).then(|| lines_from_symbol(symbol))
        });
        from_sources.or_else(|| self.listed.iter().find_map(|symbols| lines_from_listed(symbols, address)))
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

impl SymbolSource {
    fn new(options: &ResolverOptions, path: PathBuf, file: Arc<File>, debug_info: bool) -> Self {
        let debug_dirs = options.debug_dirs.clone();
        let symbolizer = symbolizer(debug_info, &debug_dirs);
        SymbolSource {
            symbolizer,
            path,
            debug_info,
            separate: None,
            is_damaged: Cell::new(false),
            debug_dirs,
            _file: file,
        }
    }

    /// `None`: too large to be read.
    fn of_debug_file(options: &ResolverOptions, found: DebugFile) -> Option<Self> {
        let DebugFile { path, file, key, trust, sections } = found;
        let sections = sections?;
        let follows_links = trust == Trust::Installed || !sections.refers_to_other_files();
        if trust == Trust::Foreign && sections.symbol_bytes() > MAX_FOREIGN_SYMBOLS {
            return None;
        }
        let debug_info = follows_links && fits(options, &sections, &file, trust);
        let file = Arc::new(file);
        // The name of a file that came from a server may stand for another one by the time that it is read.
        let path = if trust == Trust::Foreign { path_of(&file) } else { path };
        let separate = Some(key);
        Some(SymbolSource { separate, ..SymbolSource::new(options, path, file, debug_info) })
    }

    fn start_over(&mut self) {
        self.symbolizer = symbolizer(self.debug_info, &self.debug_dirs);
    }

    /// A damaged file must not end the recorder: blazesym's arithmetic on untrusted sizes is checked in debug
    /// builds only, and there it panics.
    fn symbolize(&self, address: u64) -> Option<Symbolized<'_>> {
        let mut elf = Elf::new(&self.path);
        elf.debug_syms = self.debug_info;
        let source = Source::Elf(elf);
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

fn symbolizer(debug_info: bool, debug_dirs: &[PathBuf]) -> Symbolizer {
    Symbolizer::builder()
        .enable_auto_reload(false)
        .enable_code_info(debug_info)
        .enable_inlined_fns(debug_info)
        .enable_demangling(false)
        .set_debug_dirs(Some(debug_dirs))
        .build()
}

/// Nothing where there is no MiniDebugInfo.
fn mini_debug_symbols(file: &File, sections: &Sections) -> io::Result<Option<ListedSymbols>> {
    let Some(image) = mini_debug::unpack(file, sections).transpose()? else { return Ok(None) };
    let sections = Sections::read(image.as_slice()).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(ListedSymbols::of_image(&image, &sections))
}

fn lines_from_listed(symbols: &ListedSymbols, address: u64) -> Option<Vec<SymbolLine>> {
    let (name, offset) = symbols.name(address)?;
    let symbol = readable_name(&name);
    Some(vec![SymbolLine { symbol, offset: Some(offset), ..SymbolLine::default() }])
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
