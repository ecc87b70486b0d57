//! ELF virtual addresses → functions, inlined functions, files and lines. The one home of blazesym.
//!
//! Owns the checks around it: foreign files are looked over before they are parsed, debug information is
//! read only within a limit of memory, and a name that cannot be right is left out. Parsed state is kept for
//! the module used last and for nothing else, because it is anonymous memory.
//!
//! Known limit: symbols are read through a memory map, so a file that is cut short while it is read ends
//! the process with SIGBUS. Programs and libraries in use are replaced, not cut, by every package manager.

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
use crate::exported;
use crate::live_file::FileKey;
use crate::module::ModuleFile;
use crate::plt::PltNames;
use crate::section::Sections;

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

/// Names addresses, module by module.
pub struct Resolver {
    options: ResolverOptions,
    last: Option<ParsedModule>,
}

impl Resolver {
    pub fn new(options: ResolverOptions) -> Self {
        Resolver { options, last: None }
    }

    /// For each ELF virtual address its functions, innermost first; at least one entry, whose symbol is
    /// `None` where nothing certain is known. Cheapest when a module's addresses come in one call.
    pub fn resolve(&mut self, module: &ModuleFile, addresses: &[u64]) -> Vec<Vec<SymbolLine>> {
        match self.parsed(module) {
            Some(parsed) => parsed.resolve(addresses),
            None => vec![vec![SymbolLine::default()]; addresses.len()],
        }
    }

    /// Gives back the memory that the module used last takes.
    pub fn forget(&mut self) {
        self.last = None;
    }

    fn parsed(&mut self, module: &ModuleFile) -> Option<&ParsedModule> {
        let key = module.file.as_ref().and_then(|file| file.metadata().ok()).map(|found| FileKey::of(&found));
        if self.last.as_ref().map(|parsed| parsed.key) != key || key.is_none() {
            // The old one goes before the new one comes: both together would need the memory of both.
            self.last = None;
            let built = module.file.as_ref().zip(key);
            self.last = built.and_then(|(file, key)| ParsedModule::new(&self.options, module, file, key));
        }
        self.last.as_ref()
    }
}

/// One file with symbols or debug information, the best first.
struct SymbolSource {
    symbolizer: Symbolizer,
    source: Source<'static>,
    /// Kept open: the source's path may be a link to this descriptor.
    _file: Arc<File>,
}

struct ParsedModule {
    key: FileKey,
    file: Arc<File>,
    sections: Sections,
    sources: Vec<SymbolSource>,
    plt: PltNames,
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
            let debug_info = fits(options, &split_sections, &file);
            sources.push(SymbolSource::new(options, &path, Arc::new(file), debug_info));
        }
        // Links to other files are followed from installed debug files only, not from what a process runs.
        let debug_info = !sections.refers_to_other_files() && fits(options, &sections, file.as_ref());
        sources.push(SymbolSource::new(options, &own_path, Arc::clone(file), debug_info));
        let plt = PltNames::read(file.as_ref(), &sections);
        Some(ParsedModule { key, file: Arc::clone(file), sections, sources, plt })
    }

    fn resolve(&self, addresses: &[u64]) -> Vec<Vec<SymbolLine>> {
        let mut all: Vec<Vec<SymbolLine>> = addresses
            .iter()
            .map(|&address| self.lines(address).unwrap_or_else(|| vec![SymbolLine::default()]))
            .collect();
        self.use_exported_names(addresses, &mut all);
        all
    }

    fn lines(&self, address: u64) -> Option<Vec<SymbolLine>> {
        let section = self.sections.code_at(address);
        if section.is_some_and(|section| section.name.starts_with(".plt")) {
            return self.plt.name(address).map(|(name, offset)| {
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
    fn new(options: &ResolverOptions, path: &Path, file: Arc<File>, debug_info: bool) -> Self {
        let symbolizer = Symbolizer::builder()
            .enable_auto_reload(false)
            .enable_code_info(debug_info)
            .enable_inlined_fns(debug_info)
            .set_debug_dirs(Some(&options.debug_dirs))
            .build();
        let mut source = Elf::new(path);
        source.debug_syms = debug_info;
        SymbolSource { symbolizer, source: Source::Elf(source), _file: file }
    }

    /// A damaged file must not end the recorder: blazesym's arithmetic on untrusted sizes is checked in debug
    /// builds only, and there it panics.
    fn symbolize(&self, address: u64) -> Option<Symbolized<'_>> {
        let attempt = || self.symbolizer.symbolize_single(&self.source, Input::VirtOffset(address));
        catch_unwind(AssertUnwindSafe(attempt)).ok()?.ok()
    }
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

fn fits(options: &ResolverOptions, sections: &Sections, file: &File) -> bool {
    sections.has_bytes(".debug_info")
        && sections
            .debug_size(file, options.unpacked_limit)
            .is_some_and(|size| size.total <= options.debug_limit)
}

/// Not a path of C++ or Rust, nor a PLT stub.
fn is_c_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'$'))
}

/// blazesym lists the physical function first and inlined ones outermost first.
fn lines_from_symbol(symbol: &Sym<'_>) -> Vec<SymbolLine> {
    let inlined = symbol.inlined.iter().rev().map(|inlined| SymbolLine {
        symbol: known_name(&inlined.name),
        offset: None,
        inlined: true,
        ..line_from_code(inlined.code_info.as_ref())
    });
    let physical = SymbolLine {
        symbol: known_name(&symbol.name),
        offset: Some(symbol.offset as u64),
        inlined: false,
        ..line_from_code(symbol.code_info.as_deref())
    };
    inlined.chain([physical]).collect()
}

fn known_name(name: &str) -> Option<String> {
    (!name.is_empty()).then(|| name.to_owned())
}

fn line_from_code(code: Option<&CodeInfo<'_>>) -> SymbolLine {
    SymbolLine {
        file: code.map(|code| code.to_path().to_string_lossy().into_owned()),
        line: code.and_then(|code| code.line),
        ..SymbolLine::default()
    }
}
