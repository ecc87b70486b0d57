// SPDX-License-Identifier: Apache-2.0
//! ELF virtual addresses → functions, inlined functions, files and lines.
//!
//! Owns the state between calls, and the set of files that are given up. [`crate::parsed_module`] reads one
//! module's file. Little parsed state is kept, because it is anonymous memory.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use wallprof_model::{Loss, Owner, SymbolLine};

use crate::debug_file::{self, DebugFile, SYSTEM_DEBUG_DIR};
use crate::elf::CodeLayout;
use crate::file_access::FileAccess;
use crate::live_file::FileKey;
use crate::module::ModuleFile;
use crate::parsed_module::{NoNames, ParsedModule};
use crate::read_limits::{Budget, ReadLimits};
use crate::reader::ReaderCommand;
use crate::section::Sections;
use crate::served_module::ServedModule;

/// How much debug information is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolverOptions {
    /// Searched in order; each may hold `.build-id/ab/cdef.debug`, or files by path or name.
    pub debug_dirs: Vec<PathBuf>,
    /// Debug files that were found before, by build id; they come before those of `debug_dirs`.
    pub files: BTreeMap<Vec<u8>, Vec<PathBuf>>,
    /// Caches of debuginfod clients: `BUILD-ID/debuginfo`. Their files came from a server and are not
    /// trusted.
    pub download_dirs: Vec<PathBuf>,
    /// Bytes of compressed debug sections that may be unpacked into memory for one module; beyond that the
    /// symbol table has to do.
    pub unpacked_limit: u64,
    /// Bytes of debug sections in all; parsing costs memory in proportion. 0: symbol tables only.
    pub debug_limit: u64,
    /// Bytes of debug sections and symbols in a file that others can write; it is read into memory.
    pub copy_limit: u64,
    /// Time and bytes that such files may take; `None`: as much as it takes.
    pub read_limits: Option<ReadLimits>,
    /// Reads the debug information of such files. `None`: they have names from their symbol tables only, and
    /// those with debug information count as unreadable.
    pub reader: Option<ReaderCommand>,
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
            read_limits: None,
            reader: ReaderCommand::of_this_program(),
        }
    }
}

/// Modules whose parsed state is kept; at most one of them has debug information.
const KEPT_MODULES: usize = 3;
/// The loss that [`Resolver::unreadable`] counts.
pub const UNREADABLE_DEBUG_FILES: &str = Loss::DebugFilesUnreadable.name();

/// Names addresses, module by module.
///
/// A file of another user is read by a child process, which ends with the thread that called
/// [`Resolver::resolve`]: a resolver is used by one thread.
pub struct Resolver {
    options: ResolverOptions,
    /// Last used last.
    kept: Vec<Kept>,
    /// Files whose symbols or debug information are damaged, were cut short, or are too large.
    unreadable: HashSet<FileKey>,
    budget: Budget,
}

/// A module that is ready for further addresses.
enum Kept {
    Parsed(Box<ParsedModule>),
    Served(ServedModule),
}

impl Kept {
    fn key(&self) -> FileKey {
        match self {
            Kept::Parsed(parsed) => parsed.key,
            Kept::Served(served) => served.key,
        }
    }

    fn has_debug_info(&self) -> bool {
        match self {
            Kept::Parsed(parsed) => parsed.has_debug_info(),
            Kept::Served(_) => true,
        }
    }
}

impl Default for Resolver {
    fn default() -> Self {
        Resolver::new(ResolverOptions::default())
    }
}

impl Resolver {
    /// A resolver that has read nothing yet.
    pub fn new(options: ResolverOptions) -> Self {
        let budget = Budget::new(options.read_limits);
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
        let payer = module.payer();
        let lines = match module.file.as_ref() {
            Some(file) if payer.may_block => self.resolve_served(module, file, addresses),
            _ => self.resolve_here(module, payer.owner, addresses),
        };
        lines.unwrap_or_else(|| vec![vec![SymbolLine::default()]; addresses.len()])
    }

    /// As [`Resolver::resolve`], for offsets in a file that was not there when they were recorded: its first
    /// executable mapping began at `code_offset`. What is not certain to be code has no name.
    pub fn resolve_offsets(
        &mut self,
        module: &ModuleFile,
        code_offset: u64,
        offsets: &[u64],
    ) -> Vec<Vec<SymbolLine>> {
        let mut lines = vec![vec![SymbolLine::default()]; offsets.len()];
        let Some(layout) = self.layout(module) else { return lines };
        let known = |(at, offset): (usize, &u64)| Some((at, layout.address(*offset, code_offset)?));
        let (places, addresses): (Vec<usize>, Vec<u64>) =
            offsets.iter().enumerate().filter_map(known).unzip();
        for (at, found) in places.into_iter().zip(self.resolve(module, &addresses)) {
            lines[at] = found;
        }
        lines
    }

    /// By the module's own file, or by its debug file where that is missing or may never answer.
    fn layout(&self, module: &ModuleFile) -> Option<CodeLayout> {
        if let Some(file) = module.file.as_ref().filter(|_| !module.payer().may_block) {
            return CodeLayout::read(file.as_ref()).ok();
        }
        let found = debug_file::find(&self.options, &module.module);
        CodeLayout::read(&found.first()?.file).ok()
    }

    /// How many files have symbols or debug information that is damaged, was cut short while it was read, is
    /// too large, or took too long.
    pub fn unreadable(&self) -> u64 {
        self.unreadable.len() as u64
    }

    /// Gives back the memory that parsed modules take.
    pub fn forget(&mut self) {
        self.kept.clear();
    }

    fn resolve_here(
        &mut self,
        module: &ModuleFile,
        owner: Owner,
        addresses: &[u64],
    ) -> Option<Vec<Vec<SymbolLine>>> {
        let (file, mut found) = match &module.file {
            Some(file) => (Arc::clone(file), None),
            None => {
                let found = debug_file::find(&self.options, &module.module);
                (Arc::new(found.first()?.file.try_clone().ok()?), Some(found))
            }
        };
        let key = FileKey::of_file(&file).ok()?;
        if self.budget.is_stopped() {
            self.unreadable.insert(key);
            return None;
        }
        let kept = self.take_kept(key);
        let Resolver { options, kept: all_kept, unreadable, budget } = self;
        let mut budget = budget.for_file(owner);
        let mut parsed = match kept {
            Some(Kept::Parsed(parsed)) => parsed,
            _ => {
                let find = |sections: &Sections| match found.take() {
                    Some(found) => found,
                    None if sections.has_bytes(".debug_info") => Vec::new(),
                    None => debug_file::find(options, &module.module),
                };
                match ParsedModule::new(options, &file, key, find, &mut budget) {
                    Ok(parsed) => Box::new(parsed),
                    Err(NoNames::NotReadHere) => return None,
                    Err(NoNames::Unreadable) => {
                        unreadable.insert(key);
                        return None;
                    }
                }
            }
        };
        let lines = parsed.resolve(addresses, &mut budget);
        unreadable.extend(parsed.take_damaged());
        all_kept.push(Kept::Parsed(parsed));
        Some(lines)
    }

    /// Names by debug files that are installed here, then by the file itself, which only a reader touches.
    fn resolve_served(
        &mut self,
        module: &ModuleFile,
        file: &Arc<File>,
        addresses: &[u64],
    ) -> Option<Vec<Vec<SymbolLine>>> {
        let without_file = ModuleFile { module: module.module.clone(), file: None };
        let lines = self.resolve_here(&without_file, Owner::UNKNOWN, addresses);
        let mut lines = lines.unwrap_or_else(|| vec![vec![SymbolLine::default()]; addresses.len()]);
        let is_unnamed = |&index: &usize| lines[index].iter().all(|line| line.symbol.is_none());
        let mut unnamed: Vec<usize> = (0..addresses.len()).filter(is_unnamed).collect();
        unnamed.sort_unstable_by_key(|&index| addresses[index]);
        let wanted: Vec<u64> = unnamed.iter().map(|&index| addresses[index]).collect();
        if wanted.is_empty() {
            return Some(lines);
        }
        let key = FileKey::of_file(file).ok()?;
        let mut served = match self.take_kept(key) {
            Some(Kept::Served(served)) => served,
            _ => ServedModule::new(file, key),
        };
        match served.resolve(&self.options, &wanted, &mut self.budget.for_file(Owner::UNKNOWN)) {
            Ok(found) => {
                unnamed.into_iter().zip(found).for_each(|(index, found)| lines[index] = found);
                self.kept.push(Kept::Served(served));
            }
            Err(found) => {
                unnamed.into_iter().zip(found).for_each(|(index, found)| lines[index] = found);
                self.unreadable.insert(key);
            }
        }
        Some(lines)
    }

    /// The module with this key, or `None` and a free place for it. Old ones go before the new one comes:
    /// both together would need the memory of both.
    fn take_kept(&mut self, key: FileKey) -> Option<Kept> {
        if let Some(at) = self.kept.iter().position(|kept| kept.key() == key) {
            return Some(self.kept.remove(at));
        }
        self.kept.retain(|kept| !kept.has_debug_info());
        if self.kept.len() == KEPT_MODULES {
            self.kept.remove(0);
        }
        None
    }
}

/// Whether a module with a build id has no debug information, neither in its own file nor in one that was
/// found. A file that only a reader may touch counts as one without.
pub fn lacks_debug_info(module: &ModuleFile, options: &ResolverOptions) -> bool {
    let has_own = || {
        let file = module.file.as_ref().filter(|file| FileAccess::of(file) != FileAccess::Served)?;
        Some(Sections::read(file.as_ref()).ok()?.has_bytes(".debug_info"))
    };
    let found = || debug_file::find(options, &module.module);
    module.module.build_id.is_some()
        && !has_own().unwrap_or(false)
        && !found().iter().any(DebugFile::has_debug_info)
}
