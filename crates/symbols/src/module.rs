// SPDX-License-Identifier: Apache-2.0
//! The distinct files from which code was mapped: their identities and headers. A file can be opened again
//! after its process has ended or its name was removed.
//!
//! The table is bounded. When it or a user's quota is full, modules are evicted that no process has mapped,
//! the least recently mapped first. Numbers are never reused: an old number can be unknown, but never means
//! another file.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::process::geteuid;
use wallprof_model::{Module, ModuleId, Owner};

use crate::compare_quota::CompareQuota;
use crate::elf::ElfFacts;
use crate::file_access::{FileAccess, cached_attributes};
use crate::live_file::{FileKey, Found, MappedFile, open_regular};
use crate::module_quota::{ModuleQuota, Scope};
use crate::open_files::OpenFiles;
use crate::reader::ReaderCommand;
use crate::served_headers::ServedHeaders;
use crate::vdso;

/// File identities that are kept. The table of them is cleared when it is full.
const MAX_FILE_KEYS: usize = 1 << 15;
/// Files with the same build id that a new file is compared with.
const MAX_CLAIMS: usize = 4;
/// The largest file that is compared with another, in bytes: libLLVM has 130 MB.
const MAX_COMPARED: u64 = 256 << 20;
/// Bytes that are compared at once.
const PART: usize = 256 << 10;
/// `PATH_MAX`.
const MAX_LABEL: usize = 4096;

/// A module with its open file, as [`crate::Resolver`] needs it. It can be sent to any thread.
#[derive(Clone, Debug)]
pub struct ModuleFile {
    /// The path and build id of the file.
    pub module: Module,
    /// `None`: the file was removed, or replaced by another one.
    pub file: Option<Arc<File>>,
}

/// Who is charged for reading a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payer {
    /// The file's owner; the system for files that only root and the recorder's user can write. Programs that
    /// serve files report any owner: their files share one.
    pub owner: Owner,
    /// A read of the file may never return.
    pub may_block: bool,
}

impl ModuleFile {
    /// Who is charged for reading the file. Sends no request to its file system.
    pub fn payer(&self) -> Payer {
        let system = Payer { owner: Owner::System, may_block: false };
        let Some(file) = &self.file else { return system };
        match FileAccess::of(file) {
            FileAccess::Protected => system,
            FileAccess::Served => Payer { owner: Owner::UNKNOWN, may_block: true },
            FileAccess::Foreign => Payer { owner: owner_of_file(file), may_block: false },
        }
    }

    /// Opens a module of a recording on this machine by its path. `file` is `None` where the build ids
    /// differ.
    pub fn locate(module: &Module) -> Self {
        let found = open_regular(Path::new(&module.path)).ok();
        let proven = found.filter(|file| {
            let build_id = crate::elf::build_id(file);
            build_id.is_some() && build_id == module.build_id
        });
        ModuleFile { module: module.clone(), file: proven.map(Arc::new) }
    }
}

/// The contents of a mapping.
#[derive(Clone, Debug)]
pub(crate) enum Identity {
    Module(ModuleId, Arc<ElfFacts>),
    /// A named file whose headers could not be read. Addresses in it are file offsets. It has no build id, so
    /// that they are never used as virtual addresses.
    Unread(ModuleId),
    /// The same, for a file whose headers another process reads: [`Modules::take_served`] returns its key with
    /// what it is.
    Awaited(ModuleId, FileKey),
    /// Memory that no ELF file backs.
    NotCode,
}

/// The path of a module's file, and its identity when it was first mapped.
#[derive(Clone)]
struct Origin {
    module: Module,
    /// The path for opening the file again; empty if it was never opened.
    found_at: PathBuf,
    key: Option<FileKey>,
}

struct Entry {
    origin: Origin,
    facts: Arc<ElfFacts>,
    /// The owner of the process that mapped it first.
    owner: Owner,
    /// The value of [`Modules::clock`] when it was last mapped.
    last_mapped: u64,
}

/// The owner for whom a file is mapped.
#[derive(Clone, Copy)]
pub(crate) struct MappedBy<'a> {
    /// A new module is charged to this owner.
    pub owner: Owner,
    /// Returns the modules that any process has mapped. They are not evicted.
    pub all: &'a dyn Fn() -> HashSet<ModuleId>,
}

/// A served file, as its first mapping describes it.
#[derive(Clone)]
pub(crate) struct AwaitedFile {
    pub label: String,
    pub name: PathBuf,
    pub owner: Owner,
}

/// All known modules, by number.
#[derive(Default)]
pub(crate) struct Modules {
    entries: HashMap<ModuleId, Entry>,
    /// The number of the next module.
    next: u32,
    /// The modules with each build id, oldest first. There are several where files differ in their contents.
    by_build_id: HashMap<Vec<u8>, Vec<ModuleId>>,
    by_file: HashMap<FileKey, ModuleId>,
    unread: HashMap<String, ModuleId>,
    vdso: Option<ModuleId>,
    open: OpenFiles,
    served: ServedHeaders,
    quota: ModuleQuota,
    compares: CompareQuota,
    /// Modules with frames that have no name yet.
    wanted: HashSet<ModuleId>,
    /// Modules of `wanted` that were evicted.
    unnamed: BTreeMap<ModuleId, Origin>,
    /// Modules that were evicted since the last [`Modules::take_evicted`].
    evicted: Vec<ModuleId>,
    /// Counts the mappings of modules.
    clock: u64,
    /// The value of `clock` at the start of a batch.
    batch_from: Option<u64>,
    refused: u64,
}

impl Modules {
    /// All modules that are not evicted, by number.
    pub(crate) fn all(&self) -> Vec<(ModuleId, Module)> {
        let entries = self.entries.iter();
        let mut all: Vec<_> = entries.map(|(&id, entry)| (id, entry.origin.module.clone())).collect();
        all.sort_by_key(|(id, _)| *id);
        all
    }

    pub(crate) fn module(&self, id: ModuleId) -> Option<&Module> {
        self.entries.get(&id).map(|entry| &entry.origin.module)
    }

    /// The size in bytes that the file had when it was first mapped.
    pub(crate) fn size(&self, id: ModuleId) -> Option<u64> {
        Some(self.entries.get(&id)?.origin.key?.size())
    }

    /// The number of mappings without a module because the table was full and no module could be evicted.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the modules that were evicted since the last call. No process has mapped them.
    pub(crate) fn take_evicted(&mut self) -> Vec<ModuleId> {
        std::mem::take(&mut self.evicted)
    }

    /// A frame of this module has no name yet: its file can be opened even after the module is evicted.
    pub(crate) fn want(&mut self, id: ModuleId) {
        self.wanted.insert(id);
    }

    /// Sets the modules with frames that have no name yet.
    pub(crate) fn set_wanted(&mut self, wanted: HashSet<ModuleId>) {
        self.unnamed.retain(|id, _| wanted.contains(id));
        self.wanted = wanted;
    }

    /// Modules that are identified after this call are evicted only after [`Modules::end_batch`]: no
    /// process's list contains their mappings yet.
    pub(crate) fn start_batch(&mut self) {
        self.batch_from = Some(self.clock);
    }

    pub(crate) fn end_batch(&mut self) {
        self.batch_from = None;
    }

    /// Returns the module with its file. Opens the file again if it was closed.
    pub(crate) fn file(&mut self, id: ModuleId) -> Option<ModuleFile> {
        let Some(entry) = self.entries.get(&id) else {
            let origin = self.unnamed.get(&id)?;
            return Some(ModuleFile { module: origin.module.clone(), file: origin.reopen().map(Arc::new) });
        };
        let module = entry.origin.module.clone();
        let open = self.open.get(id).filter(|file| entry.origin.is_unchanged(file));
        let file = open.or_else(|| entry.origin.reopen().map(Arc::new));
        if let Some(file) = &file {
            self.open.keep(id, Arc::clone(file));
        }
        Some(ModuleFile { module, file })
    }

    /// See [`ElfFacts::code_delta`].
    pub(crate) fn code_delta(&self, id: ModuleId) -> Option<u64> {
        self.entries.get(&id)?.facts.code_delta()
    }

    pub(crate) fn is_vdso(&self, id: ModuleId) -> bool {
        self.vdso == Some(id)
    }

    /// The module of the vDSO at `start`. All processes with the word size of this process share one.
    pub(crate) fn vdso(&mut self, start: u64, mapped_by: &MappedBy<'_>) -> Identity {
        if !vdso::is_own_kind(start) {
            return self.unread_file(vdso::LABEL, mapped_by);
        }
        if let Some(id) = self.vdso {
            return self.known(id);
        }
        let read = vdso::image().and_then(|file| Some((ElfFacts::read(&file).ok()?, file)));
        let Some((facts, file)) = read else { return self.unread_file(vdso::LABEL, mapped_by) };
        // All users share it.
        let system = MappedBy { owner: Owner::System, ..*mapped_by };
        let identity = self.adopt(vdso::LABEL, file, PathBuf::new(), facts, &system);
        if let Identity::Module(id, _) = identity {
            self.vdso = Some(id);
        }
        identity
    }

    /// Identifies the module of a mapped file. Reads headers only if the file is not known.
    ///
    /// Any user can write a file with the build id of another file. The build id alone decides only where the
    /// file cannot be opened and exactly one known module has that build id.
    pub(crate) fn identify(&mut self, mapped: &MappedFile<'_>, mapped_by: &MappedBy<'_>) -> Identity {
        for place in MappedFile::PLACES {
            if let Some(found) = mapped.find(place)
                && let Some(identity) = self.identify_found(found, mapped, mapped_by)
            {
                return identity;
            }
        }
        match mapped.build_id.and_then(|build_id| self.by_build_id.get(build_id)).map(Vec::as_slice) {
            Some(&[id]) => self.known(id),
            _ => self.not_elf(&label_from_path(mapped.path), mapped_by),
        }
    }

    /// `None` if it is not the mapped file.
    fn identify_found(
        &mut self,
        found: Found,
        mapped: &MappedFile<'_>,
        mapped_by: &MappedBy<'_>,
    ) -> Option<Identity> {
        let key = found.key();
        if let Some(&id) = self.by_file.get(&key) {
            let known = self.module(id)?.build_id.as_deref();
            let same = mapped.build_id.is_none_or(|wanted| known == Some(wanted));
            return same.then(|| self.known(id));
        }
        let label = label_from_path(mapped.path);
        if found.is_served() {
            let is_ordered = self.served.order(key, found.into_file());
            return Some(match self.not_elf(&label, mapped_by) {
                Identity::Unread(id) if is_ordered => Identity::Awaited(id, key),
                other => other,
            });
        }
        let file = found.open().ok()?;
        let Ok(facts) = ElfFacts::read(&file) else {
            return mapped.build_id.is_none().then(|| self.not_elf(&label, mapped_by));
        };
        let same = mapped.build_id.is_none_or(|wanted| facts.build_id.as_deref() == Some(wanted));
        // The links in /proc end with the process; the name may remain.
        same.then(|| self.adopt(&label, file, mapped.name(), facts, mapped_by))
    }

    fn adopt(
        &mut self,
        label: &str,
        file: File,
        found_at: PathBuf,
        facts: ElfFacts,
        mapped_by: &MappedBy<'_>,
    ) -> Identity {
        let key = FileKey::of_file(&file).ok();
        let same = |build_id: &Vec<u8>| self.same_contents(build_id, &file, mapped_by.owner);
        let known = facts.build_id.as_ref().and_then(same);
        let id = match known {
            Some(id) => id,
            None => {
                let module = Module { path: label.to_owned(), build_id: facts.build_id.clone() };
                let Some(id) = self.add(Origin { module, found_at, key }, facts, mapped_by) else {
                    return Identity::NotCode;
                };
                self.open.keep(id, Arc::new(file));
                id
            }
        };
        if let Some(key) = key {
            self.remember_file(key, id);
        }
        self.known(id)
    }

    /// Replaces the program that reads served files.
    pub(crate) fn set_reader(&mut self, command: ReaderCommand) {
        self.served.set_reader(command);
    }

    /// The served files whose headers were read since the last call. `awaiting` describes a file, and `mapped`
    /// is as in [`MappedBy`].
    pub(crate) fn take_served(
        &mut self,
        awaiting: &mut dyn FnMut(FileKey) -> Option<AwaitedFile>,
        mapped: &dyn Fn() -> HashSet<ModuleId>,
    ) -> Vec<(FileKey, Identity)> {
        let mut known = Vec::new();
        for headers in self.served.take() {
            let Some(awaited) = awaiting(headers.key) else { continue };
            let Some(facts) = headers.facts else { continue };
            let mapped_by = MappedBy { owner: awaited.owner, all: mapped };
            let module = Module { path: awaited.label, build_id: facts.build_id.clone() };
            let origin = Origin { module, found_at: awaited.name, key: Some(headers.key) };
            let Some(id) = self.add(origin, facts, &mapped_by) else { continue };
            self.open.keep(id, Arc::new(headers.file));
            self.remember_file(headers.key, id);
            known.push((headers.key, self.known(id)));
        }
        known
    }

    /// Whether headers of served files are being read.
    pub(crate) fn awaits_served(&self) -> bool {
        self.served.is_reading()
    }

    /// The number of served files whose headers could not be read.
    pub(crate) fn unreadable(&self) -> u64 {
        self.served.lost()
    }

    /// Finds the module with this build id and the same bytes as `file`: for example a library in two
    /// containers.
    fn same_contents(&mut self, build_id: &[u8], file: &File, owner: Owner) -> Option<ModuleId> {
        let Modules { by_build_id, entries, open, compares, .. } = self;
        let claims = by_build_id.get(build_id)?.iter().take(MAX_CLAIMS);
        let open = |id: &ModuleId| {
            let origin = &entries.get(id)?.origin;
            let open = open.get(*id).filter(|known| origin.is_unchanged(known));
            open.or_else(|| origin.reopen().map(Arc::new))
        };
        let mut have_same_bytes = |known: Arc<File>| {
            let size = common_size(&known, file)?;
            let may_compare = compares.charge(owner, size, Instant::now());
            Some(may_compare && are_equal(&known, file, size))
        };
        claims.copied().find(|id| open(id).and_then(&mut have_same_bytes) == Some(true))
    }

    /// Identifies a mapped file without readable ELF headers. The name of shared memory means code that is
    /// written at run time; any other name is a file.
    fn not_elf(&mut self, label: &str, mapped_by: &MappedBy<'_>) -> Identity {
        if names_run_time_code(label) {
            return Identity::NotCode;
        }
        self.unread_file(label, mapped_by)
    }

    fn unread_file(&mut self, label: &str, mapped_by: &MappedBy<'_>) -> Identity {
        if let Some(&id) = self.unread.get(label) {
            self.touch(id);
            return Identity::Unread(id);
        }
        let module = Module { path: label.to_owned(), build_id: None };
        let origin = Origin { module, found_at: PathBuf::new(), key: None };
        let Some(id) = self.add(origin, ElfFacts::default(), mapped_by) else {
            return Identity::NotCode;
        };
        self.unread.insert(label.to_owned(), id);
        Identity::Unread(id)
    }

    /// `None`: the table is full and no module can be evicted, or all numbers are used.
    fn add(&mut self, origin: Origin, facts: ElfFacts, mapped_by: &MappedBy<'_>) -> Option<ModuleId> {
        let next = self.next.checked_add(1).filter(|_| self.ensure_capacity(mapped_by));
        let Some(next) = next else {
            self.refused += 1;
            return None;
        };
        let id = ModuleId(std::mem::replace(&mut self.next, next));
        if let Some(build_id) = &facts.build_id {
            self.by_build_id.entry(build_id.clone()).or_default().push(id);
        }
        let owner = mapped_by.owner;
        self.quota.charge(owner);
        self.entries.insert(id, Entry { origin, facts: Arc::new(facts), owner, last_mapped: 0 });
        self.touch(id);
        Some(id)
    }

    /// Evicts modules until one more fits. False: all that remain are mapped.
    fn ensure_capacity(&mut self, mapped_by: &MappedBy<'_>) -> bool {
        let now = Instant::now();
        for scope in self.quota.full_scopes(mapped_by.owner) {
            if self.quota.is_exhausted(scope, now) {
                return false;
            }
            if !self.evict(scope, &(mapped_by.all)()) {
                self.quota.exhaust(scope, now);
                return false;
            }
        }
        true
    }

    /// Evicts some modules that no process has mapped, the least recently mapped first. False: there are
    /// none.
    fn evict(&mut self, scope: Scope, mapped: &HashSet<ModuleId>) -> bool {
        let is_free = |id: &ModuleId, entry: &Entry| {
            scope.contains(entry.owner)
                && !mapped.contains(id)
                && !self.is_vdso(*id)
                && self.batch_from.is_none_or(|start| entry.last_mapped <= start)
        };
        let free = self.entries.iter().filter(|(id, entry)| is_free(id, entry));
        let mut oldest: Vec<_> = free.map(|(id, entry)| (entry.last_mapped, *id)).collect();
        oldest.sort_unstable();
        oldest.truncate(self.quota.batch(scope));
        let gone: HashSet<ModuleId> = oldest.into_iter().map(|(_, id)| id).collect();
        gone.iter().for_each(|&id| self.remove(id));
        self.by_file.retain(|_, id| !gone.contains(id));
        self.unread.retain(|_, id| !gone.contains(id));
        !gone.is_empty()
    }

    /// Removes a module from all tables but `by_file` and `unread`, from which `evict` removes many at once.
    fn remove(&mut self, id: ModuleId) {
        let Some(entry) = self.entries.remove(&id) else { return };
        self.quota.discharge(entry.owner);
        self.open.close(id);
        if let Some(build_id) = &entry.facts.build_id
            && let Some(claims) = self.by_build_id.get_mut(build_id)
        {
            claims.retain(|claim| *claim != id);
            if claims.is_empty() {
                self.by_build_id.remove(build_id);
            }
        }
        self.evicted.push(id);
        if self.wanted.contains(&id) {
            self.unnamed.insert(id, entry.origin);
            if self.unnamed.len() > self.quota.limits.unnamed {
                self.unnamed.pop_first();
                self.refused += 1;
            }
        }
    }

    fn known(&mut self, id: ModuleId) -> Identity {
        self.touch(id);
        match self.entries.get(&id) {
            Some(entry) => Identity::Module(id, Arc::clone(&entry.facts)),
            None => Identity::NotCode,
        }
    }

    fn touch(&mut self, id: ModuleId) {
        self.clock += 1;
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.last_mapped = self.clock;
        }
    }

    fn remember_file(&mut self, key: FileKey, id: ModuleId) {
        if self.by_file.len() >= MAX_FILE_KEYS {
            self.by_file.clear();
        }
        self.by_file.insert(key, id);
    }
}

impl Origin {
    /// Opens the file by its path if it is still the same file. One that is served is only found.
    fn reopen(&self) -> Option<File> {
        let found = Found::by_name(&self.found_at).ok()?;
        let file = if found.is_served() { found.into_file() } else { found.open().ok()? };
        Some(file).filter(|file| self.is_unchanged(file))
    }

    /// Whether the file was not changed after its headers were read.
    fn is_unchanged(&self, file: &File) -> bool {
        let Ok(key) = FileKey::of_file(file) else { return false };
        let same_build_id = || match &self.module.build_id {
            Some(_) if FileAccess::of(file) == FileAccess::Served => false,
            Some(build_id) => crate::elf::build_id(file).as_ref() == Some(build_id),
            None => false,
        };
        self.key.is_some_and(|known| known == key || known.is_unlinked(&key)) || same_build_id()
    }
}

/// The recorder's own user is the system, too.
fn owner_of_file(file: &File) -> Owner {
    match cached_attributes(file) {
        Ok(attributes) if attributes.stx_uid == geteuid().as_raw() => Owner::System,
        Ok(attributes) => Owner::from_uid(attributes.stx_uid),
        Err(_) => Owner::UNKNOWN,
    }
}

/// The size of two files that may have the same contents. `None` for files over [`MAX_COMPARED`], which take
/// too long to compare.
fn common_size(one: &File, other: &File) -> Option<u64> {
    let size = |file: &File| FileKey::of_file(file).map(|key| key.size()).ok();
    size(one).filter(|len| Some(*len) == size(other) && *len <= MAX_COMPARED)
}

/// Whether two files of this size have the same contents.
fn are_equal(one: &File, other: &File, size: u64) -> bool {
    let mut parts = [vec![0; PART], vec![0; PART]];
    (0..size).step_by(PART).all(|at| {
        let len = usize::try_from(size - at).map_or(PART, |left| left.min(PART));
        let [mine, theirs] = &mut parts;
        let are_read = one.read_exact_at(&mut mine[..len], at).is_ok()
            && other.read_exact_at(&mut theirs[..len], at).is_ok();
        are_read && mine[..len] == theirs[..len]
    })
}

/// Whether the name of a file without ELF headers is that of shared memory.
pub(crate) fn names_run_time_code(label: &str) -> bool {
    let names = ["/memfd:", "/dev/zero", "/dev/shm/", "/SYSV", "/anon_hugepage"];
    names.into_iter().any(|prefix| label.starts_with(prefix))
}

pub(crate) fn label_from_path(path: &OsStr) -> String {
    let bytes = path.as_encoded_bytes();
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_LABEL)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module_quota::ModuleLimits;
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;

    const ROOT: MappedBy<'_> = MappedBy { owner: Owner::System, all: &HashSet::new };
    const ALICE: Owner = Owner::User(1000);

    fn few_modules() -> Modules {
        let mut modules = Modules::default();
        modules.quota.limits = ModuleLimits { in_all: 8, per_user: 4, of_users: 6, unnamed: 2 };
        modules
    }

    /// Maps files without headers for `owner`, while `mapped` is mapped. Returns their modules.
    fn map(modules: &mut Modules, owner: Owner, labels: &[&str], mapped: &[u32]) -> Vec<Option<u32>> {
        let all = || mapped.iter().map(|&id| ModuleId(id)).collect();
        let mapped_by = MappedBy { owner, all: &all };
        let ids = labels.iter().map(|label| match modules.unread_file(label, &mapped_by) {
            Identity::Unread(id) => Some(id.0),
            _ => None,
        });
        ids.collect()
    }

    #[test]
    fn only_names_of_shared_memory_are_run_time_code() {
        let mut modules = Modules::default();
        for label in ["/memfd:jit (deleted)", "/dev/zero (deleted)", "/SYSV00000000 (deleted)", "/dev/shm/x"]
        {
            assert!(matches!(modules.not_elf(label, &ROOT), Identity::NotCode), "{label}");
        }
        assert!(matches!(modules.not_elf("/opt/managed.dll", &ROOT), Identity::Unread(ModuleId(0))));
        assert!(matches!(modules.not_elf("/opt/managed.dll", &ROOT), Identity::Unread(ModuleId(0))));
        let module = Module { path: "/opt/managed.dll".into(), build_id: None };
        assert_eq!(modules.all(), [(ModuleId(0), module)]);
    }

    /// One copy of a library has a changed byte behind its headers, another copy is exact.
    #[test]
    fn build_id_of_another_file_is_not_believed() {
        let folder = tempfile::tempdir().expect("a folder");
        let library = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6").expect("glibc");
        let mut forged = library.clone();
        let last = forged.len() / 2;
        forged[last] ^= 0xff;
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("written");
            path
        };
        let paths = [file("forged", &forged), file("real", &library), file("copy", &library)];
        let mut modules = Modules::default();
        let identified = paths.clone().map(|path| {
            let file = File::open(&path).expect("a file");
            let facts = ElfFacts::read(&file).expect("an ELF file");
            let build_id = facts.build_id.clone().expect("a build id");
            let inode = None;
            let mapped = MappedFile {
                pid: u32::MAX,
                start: 0,
                end: 1,
                path: path.as_os_str(),
                build_id: Some(&build_id),
                inode,
            };
            match modules.identify(&mapped, &ROOT) {
                Identity::Module(id, _) => id,
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(identified, [ModuleId(0), ModuleId(1), ModuleId(1)]);
        let modules = modules.all();
        assert_eq!(modules[1].1.path, paths[1].to_str().expect("UTF-8"));
        assert_eq!(modules[0].1.build_id, modules[1].1.build_id);
    }

    #[test]
    fn copy_beyond_the_quota_of_its_user_is_a_module_of_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut modules = Modules::default();
        let adopt = |modules: &mut Modules, name: &str, owner| {
            let path = folder.path().join(name);
            std::fs::copy("/lib/x86_64-linux-gnu/libc.so.6", &path).expect("a copy");
            let file = File::open(&path).expect("a file");
            let facts = ElfFacts::read(&file).expect("an ELF file");
            match modules.adopt(name, file, path, facts, &MappedBy { owner, ..ROOT }) {
                Identity::Module(id, _) => id.0,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(["0", "1", "2"].map(|name| adopt(&mut modules, name, ALICE)), [0, 0, 0]);
        modules.compares.charge(ALICE, 250 << 20, Instant::now() + std::time::Duration::from_secs(3_600));
        let copies: Vec<u32> = (3..8).map(|name| adopt(&mut modules, &name.to_string(), ALICE)).collect();
        assert!(copies.contains(&1), "{copies:?}");
        assert_eq!(adopt(&mut modules, "9", Owner::User(1001)), 0, "another user has a quota");
    }

    #[test]
    fn labels_are_text_of_bounded_length() {
        assert_eq!(label_from_path(OsStr::from_bytes(b"/a\xff\nb")), "/a\u{fffd}\nb");
        let long = "/x".repeat(MAX_LABEL);
        assert_eq!(label_from_path(OsStr::new(&long)).len(), MAX_LABEL);
    }

    #[test]
    fn least_recently_mapped_module_is_evicted_and_its_number_is_not_reused() {
        let mut modules = few_modules();
        let labels = ["/0", "/1", "/2", "/3", "/4", "/5", "/6", "/7", "/0"];
        map(&mut modules, Owner::System, &labels, &[]);
        assert_eq!(map(&mut modules, Owner::System, &["/8", "/9"], &[2]), [Some(8), Some(9)]);
        assert_eq!(modules.take_evicted(), [ModuleId(1), ModuleId(3)], "/0 was mapped again, /2 still is");
        assert!(modules.module(ModuleId(1)).is_none() && modules.file(ModuleId(1)).is_none());
        assert_eq!(map(&mut modules, Owner::System, &["/1", "/0"], &[]), [Some(10), Some(0)]);
        assert_eq!((modules.entries.len(), modules.unread.len(), modules.refused()), (8, 8, 0));
    }

    #[test]
    fn files_of_one_user_displace_no_other_files() {
        let mut modules = few_modules();
        map(&mut modules, Owner::System, &["/lib"], &[]);
        map(&mut modules, Owner::User(1001), &["/bob"], &[]);
        let flood: Vec<String> = (0..50).map(|file| format!("/alice/{file}")).collect();
        let flood: Vec<&str> = flood.iter().map(String::as_str).collect();
        assert!(map(&mut modules, ALICE, &flood, &[]).iter().all(Option::is_some));
        assert_eq!(map(&mut modules, Owner::System, &["/lib", "/bob"], &[]), [Some(0), Some(1)]);
        assert_eq!(modules.entries.len(), 2 + 4);
    }

    #[test]
    fn mapping_beyond_a_quota_is_counted_and_other_owners_get_modules() {
        let mut modules = few_modules();
        let mine = map(&mut modules, ALICE, &["/0", "/1", "/2", "/3"], &[]);
        let pinned: Vec<u32> = mine.into_iter().flatten().collect();
        assert_eq!(map(&mut modules, ALICE, &["/4", "/5"], &pinned), [None, None]);
        assert_eq!(modules.refused(), 2);
        assert_eq!(map(&mut modules, Owner::System, &["/6"], &pinned), [Some(4)]);
    }

    #[test]
    fn modules_of_a_batch_are_kept_until_it_ends() {
        let mut modules = few_modules();
        map(&mut modules, ALICE, &["/0", "/1"], &[]);
        modules.start_batch();
        let batch = map(&mut modules, ALICE, &["/2", "/3", "/4", "/5", "/6"], &[]);
        assert_eq!(
            batch,
            [Some(2), Some(3), Some(4), Some(5), None],
            "only modules of earlier batches are evicted"
        );
        modules.end_batch();
        modules.quota.limits.per_user = 5;
        assert_eq!(map(&mut modules, ALICE, &["/7"], &[]), [Some(6)]);
    }

    #[test]
    fn evicted_module_can_be_opened_while_its_frames_have_no_names() {
        let file = |path: &str| File::open(path).expect("a library");
        let mut modules = few_modules();
        let path = "/lib64/ld-linux-x86-64.so.2";
        let facts = ElfFacts::read(&file(path)).expect("an ELF file");
        modules.adopt(path, file(path), path.into(), facts, &ROOT);
        modules.want(ModuleId(0));
        map(&mut modules, Owner::System, &["/1", "/2", "/3", "/4", "/5", "/6", "/7", "/8"], &[]);
        assert_eq!(modules.take_evicted(), [ModuleId(0)]);
        let module = modules.file(ModuleId(0)).expect("its frames have no names");
        assert!(module.module.path == path && module.file.is_some());
        modules.set_wanted(HashSet::new());
        assert!(modules.file(ModuleId(0)).is_none());
    }

    #[test]
    fn evicted_modules_without_names_are_bounded_and_counted() {
        let mut modules = few_modules();
        (0..20).for_each(|id| modules.want(ModuleId(id)));
        let labels: Vec<String> = (0..20).map(|file| format!("/{file}")).collect();
        map(&mut modules, Owner::System, &labels.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
        assert_eq!((modules.unnamed.len(), modules.refused()), (2, 20 - 8 - 2));
    }

    #[test]
    fn file_that_is_mapped_again_after_its_eviction_is_a_new_module() {
        let library = "/lib64/ld-linux-x86-64.so.2";
        let build_id = crate::elf::build_id_of_path(Path::new(library)).expect("a build id");
        let mapped = MappedFile {
            pid: u32::MAX,
            start: 0,
            end: 1,
            path: OsStr::new(library),
            build_id: Some(&build_id),
            inode: None,
        };
        let mut modules = few_modules();
        let id = |identity| match identity {
            Identity::Module(id, _) => id,
            other => panic!("{other:?}"),
        };
        assert_eq!(id(modules.identify(&mapped, &ROOT)), ModuleId(0));
        assert_eq!(id(modules.identify(&mapped, &ROOT)), ModuleId(0));
        map(&mut modules, Owner::System, &["/1", "/2", "/3", "/4", "/5", "/6", "/7", "/8"], &[]);
        assert_eq!(id(modules.identify(&mapped, &ROOT)), ModuleId(9));
        assert_eq!(modules.by_build_id[&build_id], [ModuleId(9)]);
    }

    /// The file has no build id, so that only its identity can be compared.
    #[test]
    fn unlinked_file_is_unchanged_and_a_written_file_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "one").expect("written");
        let file = File::open(&path).expect("a file");
        let key = Some(FileKey::of(&file.metadata().expect("metadata")));
        let module = Module { path: "file".into(), build_id: None };
        let origin = Origin { module, found_at: path.clone(), key };
        assert!(origin.is_unchanged(&file));
        std::fs::remove_file(&path).expect("removed");
        assert!(origin.is_unchanged(&file), "only its name was removed");
        let writer = File::options().write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        writer.expect("a file").set_len(100).expect("written");
        assert!(!origin.is_unchanged(&file));
    }
}
