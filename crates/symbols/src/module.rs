//! The distinct files that code was mapped from: their numbers, their headers, and a bounded number of
//! open descriptors, so that a file can still be read when its process, its name or its place is gone.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wallprof_model::{Module, ModuleId};

use crate::elf::ElfFacts;
use crate::live_file::{FileKey, MappedFile, open_regular, stat_regular};
use crate::vdso;

/// A third of the soft limit of 1,024 descriptors that most processes get.
const MAX_OPEN_FILES: usize = 256;
/// Each costs some 500 bytes; a process that maps more distinct files than this does it on purpose.
const MAX_MODULES: usize = 1 << 14;
/// Remembered file identities; past this the memory of them starts over.
const MAX_FILE_KEYS: usize = 1 << 15;
/// Files of one build id that a new one is compared with.
const MAX_CLAIMS: usize = 4;
/// Bytes of a file that is compared with another: libLLVM has 130 MB.
const MAX_COMPARED: u64 = 256 << 20;
/// Bytes that are compared at once.
const PART: usize = 256 << 10;
/// `PATH_MAX`.
const MAX_LABEL: usize = 4096;

/// A module with a way to its contents: what [`crate::Resolver`] works on, on any thread.
#[derive(Clone, Debug)]
pub struct ModuleFile {
    pub module: Module,
    /// `None`: the file is gone, or another one has taken its place.
    pub file: Option<Arc<File>>,
}

impl ModuleFile {
    /// A module of a recording, found on this machine by its path and proven by its build id.
    pub fn locate(module: &Module) -> Self {
        let found = open_regular(Path::new(&module.path)).ok();
        let proven = found.filter(|file| {
            let build_id = crate::elf::build_id(file);
            build_id.is_some() && build_id == module.build_id
        });
        ModuleFile { module: module.clone(), file: proven.map(Arc::new) }
    }
}

/// Where a mapping's addresses lead.
#[derive(Clone, Debug)]
pub(crate) enum Identity {
    Module(ModuleId, Arc<ElfFacts>),
    /// A named file whose headers could not be read: addresses in it are file offsets, and it has no build
    /// id, so that nobody takes them for virtual addresses.
    Unread(ModuleId),
    /// Memory that no ELF file stands for.
    NotCode,
}

struct Entry {
    module: Module,
    facts: Arc<ElfFacts>,
    /// Where the file was found, for opening it again; empty when it never was.
    found_at: PathBuf,
    key: Option<FileKey>,
    open: Option<Arc<File>>,
    last_used: u64,
}

/// All modules seen, by number.
#[derive(Default)]
pub(crate) struct Modules {
    entries: Vec<Entry>,
    /// The modules of files with the same build id and different contents, the first one first.
    by_build_id: HashMap<Vec<u8>, Vec<ModuleId>>,
    by_file: HashMap<FileKey, ModuleId>,
    unread: HashMap<String, ModuleId>,
    vdso: Option<ModuleId>,
    announced: usize,
    open_files: usize,
    clock: u64,
    refused: u64,
}

impl Modules {
    /// Modules that have appeared since the last call.
    pub(crate) fn take_new(&mut self) -> Vec<(ModuleId, Module)> {
        let from = std::mem::replace(&mut self.announced, self.entries.len());
        let new = self.entries.iter().enumerate().skip(from);
        new.map(|(index, entry)| (ModuleId(index as u32), entry.module.clone())).collect()
    }

    /// How many mappings were left without a module because there were too many modules.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// The module with its file, opened again if it had to be closed.
    pub(crate) fn file(&mut self, id: ModuleId) -> Option<ModuleFile> {
        let index = id.0 as usize;
        let entry = self.entries.get(index)?;
        let module = entry.module.clone();
        let open = entry.open.clone().filter(|file| entry.is_unchanged(file));
        let file = open.or_else(|| entry.reopen().map(Arc::new));
        if let Some(file) = &file {
            self.keep_open(index, Arc::clone(file));
        }
        Some(ModuleFile { module, file })
    }

    /// See [`ElfFacts::code_delta`].
    pub(crate) fn code_delta(&self, id: ModuleId) -> Option<u64> {
        self.entries.get(id.0 as usize)?.facts.code_delta()
    }

    /// The module of the vDSO at `start`, one for all processes of this one's word size.
    pub(crate) fn vdso(&mut self, start: u64) -> Identity {
        if !vdso::is_own_kind(start) {
            return self.unread_file(vdso::LABEL);
        }
        if let Some(id) = self.vdso {
            return self.known(id);
        }
        let read = vdso::image().and_then(|file| Some((ElfFacts::read(&file).ok()?, file)));
        let Some((facts, file)) = read else { return self.unread_file(vdso::LABEL) };
        let identity = self.adopt(vdso::LABEL, file, PathBuf::new(), facts);
        if let Identity::Module(id, _) = identity {
            self.vdso = Some(id);
        }
        identity
    }

    /// The module that `mapped` shows. Reads headers only if the file is not known. Anybody can write a file with
    /// another's build id: it decides alone only where the file is out of reach and no two files have claimed it.
    pub(crate) fn identify(&mut self, mapped: &MappedFile<'_>) -> Identity {
        for (place, path) in mapped.places() {
            if let Ok(metadata) = stat_regular(&path)
                && mapped.may_be(place, &metadata)
                && let Some(identity) = self.identify_at(&path, mapped, &metadata)
            {
                return identity;
            }
        }
        match mapped.build_id.and_then(|build_id| self.by_build_id.get(build_id)).map(Vec::as_slice) {
            Some(&[id]) => self.known(id),
            _ => self.not_elf(&label_from_path(mapped.path)),
        }
    }

    /// `None` when the file at `path` is not the mapped one.
    fn identify_at(&mut self, path: &Path, mapped: &MappedFile<'_>, found: &Metadata) -> Option<Identity> {
        if let Some(&id) = self.by_file.get(&FileKey::of(found)) {
            let known = &self.entries[id.0 as usize].module.build_id;
            let same = mapped.build_id.is_none_or(|wanted| known.as_deref() == Some(wanted));
            return same.then(|| self.known(id));
        }
        let file = open_regular(path).ok()?;
        let label = label_from_path(mapped.path);
        let Ok(facts) = ElfFacts::read(&file) else {
            return mapped.build_id.is_none().then(|| self.not_elf(&label));
        };
        let same = mapped.build_id.is_none_or(|wanted| facts.build_id.as_deref() == Some(wanted));
        // The kernel's links die with the process, the name may live on.
        same.then(|| self.adopt(&label, file, mapped.name(), facts))
    }

    fn adopt(&mut self, label: &str, file: File, found_at: PathBuf, facts: ElfFacts) -> Identity {
        let key = file.metadata().ok().map(|metadata| FileKey::of(&metadata));
        let known = facts.build_id.as_ref().and_then(|build_id| self.same_contents(build_id, &file));
        let id = match known {
            Some(id) => id,
            None => {
                let module = Module { path: label.to_owned(), build_id: facts.build_id.clone() };
                let Some(id) = self.add(module, facts, found_at, key) else {
                    return Identity::NotCode;
                };
                self.keep_open(id.0 as usize, Arc::new(file));
                id
            }
        };
        if let Some(key) = key {
            self.remember_file(key, id);
        }
        self.known(id)
    }

    /// The module with this build id whose file has the bytes of `file`, too: the same library in two containers.
    fn same_contents(&self, build_id: &[u8], file: &File) -> Option<ModuleId> {
        let claims = self.by_build_id.get(build_id)?.iter().take(MAX_CLAIMS);
        let open = |id: &ModuleId| {
            let entry = &self.entries[id.0 as usize];
            entry
                .open
                .clone()
                .filter(|known| entry.is_unchanged(known))
                .or_else(|| entry.reopen().map(Arc::new))
        };
        claims.copied().find(|id| open(id).is_some_and(|known| have_same_bytes(&known, file)))
    }

    /// A mapped file without ELF headers to read: a name that stands for shared memory means code written at
    /// run time, any other a file.
    fn not_elf(&mut self, label: &str) -> Identity {
        if names_run_time_code(label) {
            return Identity::NotCode;
        }
        self.unread_file(label)
    }

    fn unread_file(&mut self, label: &str) -> Identity {
        if let Some(&id) = self.unread.get(label) {
            return Identity::Unread(id);
        }
        let module = Module { path: label.to_owned(), build_id: None };
        let Some(id) = self.add(module, ElfFacts::default(), PathBuf::new(), None) else {
            return Identity::NotCode;
        };
        self.unread.insert(label.to_owned(), id);
        Identity::Unread(id)
    }

    fn add(
        &mut self,
        module: Module,
        facts: ElfFacts,
        found_at: PathBuf,
        key: Option<FileKey>,
    ) -> Option<ModuleId> {
        if self.entries.len() >= MAX_MODULES {
            self.refused += 1;
            return None;
        }
        let id = ModuleId(self.entries.len() as u32);
        if let Some(build_id) = &facts.build_id {
            self.by_build_id.entry(build_id.clone()).or_default().push(id);
        }
        let facts = Arc::new(facts);
        self.entries.push(Entry { module, facts, found_at, key, open: None, last_used: 0 });
        Some(id)
    }

    fn known(&self, id: ModuleId) -> Identity {
        Identity::Module(id, Arc::clone(&self.entries[id.0 as usize].facts))
    }

    fn remember_file(&mut self, key: FileKey, id: ModuleId) {
        if self.by_file.len() >= MAX_FILE_KEYS {
            self.by_file.clear();
        }
        self.by_file.insert(key, id);
    }

    /// Keeps `file` open, closing the one that was not used for longest when there are too many.
    fn keep_open(&mut self, index: usize, file: Arc<File>) {
        self.clock += 1;
        let entry = &mut self.entries[index];
        entry.last_used = self.clock;
        if entry.open.replace(file).is_none() {
            self.open_files += 1;
        }
        if self.open_files > MAX_OPEN_FILES {
            let oldest = self.entries.iter_mut().filter(|entry| entry.open.is_some());
            if let Some(oldest) = oldest.min_by_key(|entry| entry.last_used) {
                oldest.open = None;
                self.open_files -= 1;
            }
        }
    }
}

impl Entry {
    /// Opens the file by name, if what is there now is still the same file.
    fn reopen(&self) -> Option<File> {
        open_regular(&self.found_at).ok().filter(|file| self.is_unchanged(file))
    }

    /// Whether the file has the contents that its headers were read from: it may have been written to since.
    fn is_unchanged(&self, file: &File) -> bool {
        let key = file.metadata().ok().map(|metadata| FileKey::of(&metadata));
        let same_contents = || match &self.module.build_id {
            Some(build_id) => crate::elf::build_id(file).as_ref() == Some(build_id),
            None => false,
        };
        key.is_some() && (key == self.key || same_contents())
    }
}

/// Whether two files have the same contents; false for long ones, which nobody waits for.
fn have_same_bytes(one: &File, other: &File) -> bool {
    let size = |file: &File| file.metadata().map(|metadata| metadata.len()).ok();
    let Some(size) = size(one).filter(|len| Some(*len) == size(other) && *len <= MAX_COMPARED) else {
        return false;
    };
    let mut parts = [vec![0; PART], vec![0; PART]];
    (0..size).step_by(PART).all(|at| {
        let len = usize::try_from(size - at).map_or(PART, |left| left.min(PART));
        let [mine, theirs] = &mut parts;
        let are_read = one.read_exact_at(&mut mine[..len], at).is_ok()
            && other.read_exact_at(&mut theirs[..len], at).is_ok();
        are_read && mine[..len] == theirs[..len]
    })
}

/// Whether a file without ELF headers is shared memory by its name.
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
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn only_names_of_shared_memory_mean_code_written_at_run_time() {
        let mut modules = Modules::default();
        for label in ["/memfd:jit (deleted)", "/dev/zero (deleted)", "/SYSV00000000 (deleted)", "/dev/shm/x"]
        {
            assert!(matches!(modules.not_elf(label), Identity::NotCode), "{label}");
        }
        assert!(matches!(modules.not_elf("/opt/managed.dll"), Identity::Unread(ModuleId(0))));
        assert!(matches!(modules.not_elf("/opt/managed.dll"), Identity::Unread(ModuleId(0))));
        assert_eq!(modules.take_new()[0].1, Module { path: "/opt/managed.dll".into(), build_id: None });
        assert!(modules.take_new().is_empty());
    }

    /// Of a copy of a library with one byte behind its headers changed, and of an exact copy.
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
            match modules.identify(&mapped) {
                Identity::Module(id, _) => id,
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(identified, [ModuleId(0), ModuleId(1), ModuleId(1)]);
        let modules = modules.take_new();
        assert_eq!(modules[1].1.path, paths[1].to_str().expect("UTF-8"));
        assert_eq!(modules[0].1.build_id, modules[1].1.build_id);
    }

    #[test]
    fn labels_are_text_of_bounded_length() {
        assert_eq!(label_from_path(OsStr::from_bytes(b"/a\xff\nb")), "/a\u{fffd}\nb");
        let long = "/x".repeat(MAX_LABEL);
        assert_eq!(label_from_path(OsStr::new(&long)).len(), MAX_LABEL);
    }

    #[test]
    fn modules_are_bounded_and_refusals_counted() {
        let mut modules = Modules::default();
        for index in 0..MAX_MODULES + 2 {
            modules.unread_file(&format!("/{index}"));
        }
        assert_eq!((modules.entries.len(), modules.refused()), (MAX_MODULES, 2));
        assert!(matches!(modules.unread_file("/0"), Identity::Unread(ModuleId(0))));
    }
}
