//! ELF virtual addresses → functions, inlined functions, files and lines. The one home of blazesym.
//!
//! Owns the checks around it: foreign files are looked over before they are parsed, debug information is
//! read only within a limit of memory, and a name that cannot be right is left out. Little parsed state is
//! kept, because it is anonymous memory.
//!
//! Known limit: symbols are read through a memory map, so a file that is cut short while it is read ends
//! the process with SIGBUS. Programs and libraries in use are replaced, not cut, by every package manager.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use wallprof_model::SymbolLine;

use crate::debug_file::{self, DebugFile, SYSTEM_DEBUG_DIR};
use crate::demangle::readable_name;
use crate::exported;
use crate::live_file::FileKey;
use crate::module::ModuleFile;
use crate::plt::PltNames;
use crate::section::{Sections, Trust};

/// How much debug information is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolverOptions {
    /// Searched in order; each may hold `.build-id/ab/cdef.debug`, or files by path or name.
    pub debug_dirs: Vec<PathBuf>,
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

/// Names addresses, module by module.
pub struct Resolver {
    options: ResolverOptions,
    /// Last used last.
    kept: Vec<ParsedModule>,
}

impl Default for Resolver {
    fn default() -> Self {
        Resolver::new(ResolverOptions::default())
    }
}

impl Resolver {
    pub fn new(options: ResolverOptions) -> Self {
        Resolver { options, kept: Vec::new() }
    }

    /// For each ELF virtual address its functions, innermost first; at least one entry, whose symbol is
    /// `None` where nothing certain is known. Cheapest when a module's addresses come in one call.
    pub fn resolve(&mut self, module: &ModuleFile, addresses: &[u64]) -> Vec<Vec<SymbolLine>> {
        match self.parsed(module) {
            Some(parsed) => parsed.resolve(addresses),
            None => vec![vec![SymbolLine::default()]; addresses.len()],
        }
    }

    /// Gives back the memory that parsed modules take.
    pub fn forget(&mut self) {
        self.kept.clear();
    }

    fn parsed(&mut self, module: &ModuleFile) -> Option<&mut ParsedModule> {
        let file = module.file.as_ref()?;
        let key = FileKey::of(&file.metadata().ok()?);
        let parsed = match self.kept.iter().position(|parsed| parsed.key == key) {
            Some(at) => self.kept.remove(at),
            None => {
                // Old ones go before the new one comes: both together would need the memory of both.
                self.kept.retain(|parsed| !parsed.has_debug_info());
                if self.kept.len() == KEPT_MODULES {
                    self.kept.remove(0);
                }
                ParsedModule::new(&self.options, module, file, key)?
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
    /// Addresses looked up since the sources were parsed.
    asked: usize,
    /// Read when the first address in a PLT comes.
    plt: OnceCell<PltNames>,
}

impl ParsedModule {
    /// `None` for a file whose sections cannot be trusted.
    fn new(options: &ResolverOptions, module: &ModuleFile, file: &Arc<File>, key: FileKey) -> Option<Self> {
        let sections = Sections::read(file.as_ref()).ok()?;
        let split = split_debug_file(options, module, &sections);
        let own_path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let mut sources = Vec::new();
        if let Some(DebugFile { path, file }) = split
            && let Ok(split_sections) = Sections::read(&file)
        {
            let debug_info = fits(options, &split_sections, &file, Trust::Installed);
            sources.push(SymbolSource::new(options, path, Arc::new(file), debug_info));
        }
        // Links to other files are followed from installed debug files only, not from what a process runs.
        let debug_info = !sections.refers_to_other_files() && fits(options, &sections, file, Trust::Foreign);
        sources.push(SymbolSource::new(options, own_path, Arc::clone(file), debug_info));
        Some(ParsedModule { key, file: Arc::clone(file), sections, sources, asked: 0, plt: OnceCell::new() })
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
            for &index in part {
                let known = self.lines(addresses[index]);
                all[index] = known.unwrap_or_else(|| vec![SymbolLine::default()]);
            }
        }
        self.use_exported_names(addresses, &mut all);
        all
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

impl SymbolSource {
    fn new(options: &ResolverOptions, path: PathBuf, file: Arc<File>, debug_info: bool) -> Self {
        let debug_dirs = options.debug_dirs.clone();
        let symbolizer = symbolizer(debug_info, &debug_dirs);
        SymbolSource { symbolizer, path, debug_info, debug_dirs, _file: file }
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
        catch_unwind(AssertUnwindSafe(attempt)).ok()?.ok()
    }
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

/// The module's separate debug file, unless it has its debug information with it.
fn split_debug_file(
    options: &ResolverOptions,
    module: &ModuleFile,
    sections: &Sections,
) -> Option<DebugFile> {
    if sections.has_bytes(".debug_info") {
        return None;
    }
    let build_id = module.module.build_id.as_ref()?;
    debug_file::find(&options.debug_dirs, Path::new(&module.module.path), build_id)
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
