//! ELF virtual addresses → functions, inlined functions, files and lines.
//!
//! Owns the checks around it: foreign files are looked over before they are parsed, debug information is
//! read only within a limit of memory, and a name that cannot be right is left out. Little parsed state is
//! kept, because it is anonymous memory.
//!
//! blazesym maps what it reads, and a mapped file that is cut short ends the process with SIGBUS. It is given
//! debug information only: of files that nobody else can write, and of private copies of all others. Symbol
//! tables are read by [`crate::listed_symbols`].

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use wallprof_model::{Loss, SymbolLine};

use crate::debug_file::{self, DebugFile, SYSTEM_DEBUG_DIR};
use crate::debug_reader::{ADDRESSES_A_PARSE, DebugFunction, DebugReader};
use crate::demangle::readable_name;
use crate::elf::ElfError;
use crate::exported;
use crate::listed_symbols::{Listed, ListedSymbols};
use crate::live_file::FileKey;
use crate::mini_debug;
use crate::module::ModuleFile;
use crate::plt::PltNames;
use crate::private_copy::{is_protected, private_copy};
use crate::section::{Section, Sections, Trust};
use crate::work_limits::{Budget, Deadline, WorkLimits};

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
    /// Time that such files may take; `None`: as long as it takes.
    pub work_limits: Option<WorkLimits>,
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
            work_limits: None,
        }
    }
}

/// Modules whose parsed state is kept; at most one of them has debug information.
const KEPT_MODULES: usize = 3;
/// Debug files of one module that are asked, one after the other; more than one only where the best is
/// damaged.
const MAX_DEBUG_FILES: usize = 3;
/// Symbols of a file that came from a server: the largest programs have 128 MiB of them.
const MAX_FOREIGN_SYMBOLS: u64 = 256 << 20;

/// The loss that [`Resolver::unreadable`] counts.
pub const UNREADABLE_DEBUG_FILES: &str = Loss::DebugFilesUnreadable.name();

/// Names addresses, module by module.
pub struct Resolver {
    options: ResolverOptions,
    /// Last used last.
    kept: Vec<ParsedModule>,
    /// Files whose symbols or debug information are damaged, were cut short, or are too large.
    unreadable: HashSet<FileKey>,
    budget: Budget,
}

impl Default for Resolver {
    fn default() -> Self {
        Resolver::new(ResolverOptions::default())
    }
}

impl Resolver {
    pub fn new(options: ResolverOptions) -> Self {
        let budget = Budget::new(options.work_limits);
        Resolver { options, kept: Vec::new(), unreadable: HashSet::new(), budget }
    }

    /// As soon as this is true no file is read any further, within 0.1 s, and addresses have no names.
    pub fn stop_when(&mut self, stop: Arc<AtomicBool>) {
        self.budget.set_stop(stop);
    }

    /// For each ELF virtual address its functions, innermost first; at least one entry, whose symbol is
    /// `None` where nothing certain is known. Cheapest when a module's addresses come in one call.
    ///
    /// A module without a file is named by its debug file alone.
    pub fn resolve(&mut self, module: &ModuleFile, addresses: &[u64]) -> Vec<Vec<SymbolLine>> {
        let (started, is_protected) = (Instant::now(), module.file.as_deref().is_none_or(is_protected));
        let deadline = self.budget.deadline(is_protected);
        let lines = self.resolve_until(module, addresses, &deadline);
        if !is_protected {
            self.budget.charge(started.elapsed());
        }
        lines.unwrap_or_else(|| vec![vec![SymbolLine::default()]; addresses.len()])
    }

    fn resolve_until(
        &mut self,
        module: &ModuleFile,
        addresses: &[u64],
        deadline: &Deadline,
    ) -> Option<Vec<Vec<SymbolLine>>> {
        if deadline.is_over() {
            let metadata = module.file.as_ref()?.metadata().ok()?;
            self.unreadable.insert(FileKey::of(&metadata));
            return None;
        }
        let parsed = self.parsed(module)?;
        let lines = parsed.resolve(addresses, deadline);
        let damaged = std::mem::take(&mut parsed.damaged);
        self.unreadable.extend(damaged);
        Some(lines)
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
    sources: Vec<DebugReader>,
    /// Asked after all sources.
    listed: Vec<SymbolSource>,
    /// Files that turned out to be damaged.
    damaged: HashSet<FileKey>,
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
        let path = path.unwrap_or_else(|| path_of(&file));
        match DebugReader::start(path, file, key, options.debug_dirs.clone()) {
            Ok(reader) => self.sources.push(reader),
            Err(_) => drop(self.damaged.insert(key)),
        }
    }

    fn has_debug_info(&self) -> bool {
        !self.sources.is_empty()
    }

    fn resolve(&mut self, addresses: &[u64], deadline: &Deadline) -> Vec<Vec<SymbolLine>> {
        let mut all = vec![vec![SymbolLine::default()]; addresses.len()];
        // In the order of addresses neighbours share a compilation unit.
        let mut order: Vec<usize> = (0..addresses.len()).collect();
        order.sort_unstable_by_key(|&index| addresses[index]);
        let (stubs, order): (Vec<_>, Vec<_>) =
            order.into_iter().partition(|&index| self.code_at(addresses[index]).is_some_and(is_plt));
        for index in stubs {
            all[index] = self.stub_lines(addresses[index]).unwrap_or_else(|| all[index].clone());
        }
        self.fill_from_debug_info(addresses, &order, &mut all, deadline);
        self.fill_from_symbols(addresses, &order, &mut all, deadline);
        self.use_exported_names(addresses, &mut all, deadline);
        all
    }

    /// Names addresses by debug information, the best first; what is damaged, or takes too long, is not asked
    /// again. `order`: indices by address.
    fn fill_from_debug_info(
        &mut self,
        addresses: &[u64],
        order: &[usize],
        all: &mut [Vec<SymbolLine>],
        deadline: &Deadline,
    ) {
        for mut reader in std::mem::take(&mut self.sources) {
            let unnamed: Vec<usize> = unnamed(order, all).collect();
            let mut parts = unnamed.chunks(ADDRESSES_A_PARSE);
            let is_sound = parts.all(|part| self.fill_part(&mut reader, addresses, part, all, deadline));
            if is_sound {
                self.sources.push(reader);
            } else {
                self.damaged.insert(reader.key);
            }
        }
    }

    /// False when the file is damaged or the deadline is over.
    fn fill_part(
        &self,
        reader: &mut DebugReader,
        addresses: &[u64],
        part: &[usize],
        all: &mut [Vec<SymbolLine>],
        deadline: &Deadline,
    ) -> bool {
        let wanted = part.iter().map(|&index| addresses[index]).collect();
        let Some(answer) = reader.functions(wanted, deadline) else { return false };
        for (&index, function) in part.iter().zip(answer.functions) {
            let address = addresses[index];
            let is_certain = |found: &DebugFunction| self.is_certain(found.sized, found.start, address);
            if let Some(function) = function.filter(is_certain) {
                all[index] = function.lines;
            }
        }
        !answer.is_damaged
    }

    /// Names what debug information has not named by symbol tables; `order`: indices by address.
    fn fill_from_symbols(
        &mut self,
        addresses: &[u64],
        order: &[usize],
        all: &mut [Vec<SymbolLine>],
        deadline: &Deadline,
    ) {
        for source in &self.listed {
            let unnamed: Vec<usize> = unnamed(order, all).collect();
            if unnamed.is_empty() {
                return;
            }
            let wanted: Vec<u64> = unnamed.iter().map(|&index| addresses[index]).collect();
            let Ok(found) = source.symbols.functions(&wanted, deadline) else {
                self.damaged.insert(source.key);
                continue;
            };
            for (index, found) in unnamed.into_iter().zip(found) {
                let address = addresses[index];
                let found = found.filter(|found| self.is_certain(found.sized, found.start, address));
                if let Some(found) = found {
                    all[index] = lines_from_listed(&found, address);
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

    fn stub_lines(&self, address: u64) -> Option<Vec<SymbolLine>> {
        let plt = self.plt.get_or_init(|| PltNames::read(self.file.as_ref(), &self.sections));
        let (name, offset) = plt.name(address)?;
        Some(vec![SymbolLine { symbol: Some(name), offset: Some(offset), ..SymbolLine::default() }])
    }

    /// Of several names of a C function, the exported one: the same with and without debug information.
    fn use_exported_names(&self, addresses: &[u64], all: &mut [Vec<SymbolLine>], deadline: &Deadline) {
        let mut names = HashMap::new();
        let start_of = |address: u64, line: &SymbolLine| {
            let is_plain = line.symbol.as_deref().is_some_and(is_c_name);
            line.offset.filter(|_| is_plain).map(|offset| address.wrapping_sub(offset))
        };
        let physical = || addresses.iter().zip(all.iter().filter_map(|lines| lines.last()));
        names.extend(physical().filter_map(|(&address, line)| Some((start_of(address, line)?, None))));
        exported::fill_names(self.file.as_ref(), &self.sections, &mut names, deadline);
        for (&address, line) in addresses.iter().zip(all.iter_mut().filter_map(|lines| lines.last_mut())) {
            let start = start_of(address, line);
            if let Some(Some(name)) = start.and_then(|start| names.get(&start)) {
                line.symbol = Some(name.clone());
            }
        }
    }
}

/// A path that leads to the open file, whatever its name stands for.
fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Those of the indices whose address has no name.
fn unnamed(order: &[usize], all: &[Vec<SymbolLine>]) -> impl Iterator<Item = usize> {
    order.iter().copied().filter(|&index| all[index].iter().all(|line| line.symbol.is_none()))
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
