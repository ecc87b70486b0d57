// SPDX-License-Identifier: Apache-2.0
//! Processes of a recording: turns addresses into frames without reading any process of this machine.
//!
//! Events come in the order of time, so that only the newest image of each process is kept. Files are
//! searched where perf keeps them and where the user says; one with another build id counts as missing.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wallprof_model::{Frame, FrameKind, MissingFile, Module, ModuleId};

use crate::address_space::{AddressSpace, Mapping, Target};
use crate::debug_file::{build_id_path, relative};
use crate::elf::ElfFacts;
use crate::live_file::{open_regular, path_from_label};
use crate::module::{ModuleFile, label_from_path, names_run_time_code};
use crate::process::{MmapEvent, is_file_path};
use crate::vdso;

/// More than a machine runs at a time: `pid_max` is 2^22 at most, 2^15 by default.
const MAX_PROCESSES: usize = 1 << 17;
/// The same limit as for live processes.
const MAX_MODULES: usize = 1 << 14;

/// Where the files of recorded processes are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSearch {
    /// The root of the recorded machine's files; `None`: this machine's.
    pub root: Option<PathBuf>,
    /// perf's copies of files by build id: `~/.debug`.
    pub build_id_cache: Option<PathBuf>,
    /// The recording was made on this machine, with the kernel that runs now: its vDSO is this one.
    pub same_kernel: bool,
}

/// How many recorded files were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCounts {
    /// Files with the recorded build id or inode.
    pub found: u64,
    /// There is no file at their place.
    pub missing: u64,
    /// The file at their place has another build id, or is another file.
    pub different: u64,
}

/// Where a module's file is.
enum Place {
    At(PathBuf),
    /// The vDSO, which has no file.
    Held(Arc<File>),
    Nowhere,
}

struct Entry {
    module: Module,
    facts: Option<Arc<ElfFacts>>,
    place: Place,
    /// Build id and place of the code of a file that was not found.
    missing: Option<MissingFile>,
}

/// Identity of a recorded file.
#[derive(Clone, PartialEq, Eq, Hash)]
struct FileName {
    path: Vec<u8>,
    build_id: Option<Vec<u8>>,
    inode: Option<u64>,
}

/// The processes of a recording, as of the last event.
pub struct StoredProcesses {
    search: FileSearch,
    table: HashMap<u32, Arc<AddressSpace>>,
    entries: Vec<Entry>,
    by_name: HashMap<FileName, ModuleId>,
    announced: usize,
    counts: FileCounts,
    lost_mappings: u64,
}

impl StoredProcesses {
    /// No process is known yet.
    pub fn new(search: FileSearch) -> Self {
        StoredProcesses {
            search,
            table: HashMap::new(),
            entries: Vec::new(),
            by_name: HashMap::new(),
            announced: 0,
            counts: FileCounts::default(),
            lost_mappings: 0,
        }
    }

    /// Adds a mapping. One that is not executable removes the executable ones that it covers.
    pub fn mmap(&mut self, event: &MmapEvent<'_>) {
        let end = event.start.saturating_add(event.len);
        let mapping =
            event.executable.then(|| Mapping { start: event.start, end, target: self.target(event) });
        let Some(memory) = self.memory_of(event.pid) else {
            self.lost_mappings += 1;
            return;
        };
        let memory = Arc::make_mut(memory);
        match mapping {
            Some(mapping) if memory.map(mapping).is_err() => self.lost_mappings += 1,
            Some(_) => {}
            None => memory.unmap(event.start, end),
        }
    }

    /// `child` starts with the memory that the process `parent` has now.
    pub fn fork(&mut self, parent: u32, child: u32) {
        if parent == child {
            return;
        }
        let memory = self.table.get(&parent).map(Arc::clone).unwrap_or_default();
        if let Some(place) = self.memory_of(child) {
            *place = memory;
        }
    }

    /// The process starts a new program, or is a new process: its memory is empty.
    pub fn clear(&mut self, pid: u32) {
        self.table.remove(&pid);
    }

    /// The frame of an address where the thread was, not of a return address. One that is in no known mapping
    /// is a native frame without a module.
    pub fn frame(&self, pid: u32, address: u64) -> Frame {
        let known = self.table.get(&pid).and_then(|memory| memory.frame(address));
        known.unwrap_or(Frame { kind: FrameKind::Native, module: None, address })
    }

    /// The module of a mapping, and the number to add (wrapping) to its addresses to get ELF virtual
    /// addresses. `None` for memory without a file.
    pub fn locate(&mut self, event: &MmapEvent<'_>) -> Option<(ModuleId, u64)> {
        match self.target(event) {
            Target::Module { id, bias } => Some((id, bias)),
            Target::Jit => None,
        }
    }

    /// Modules that have appeared since the last call, to be announced before frames that refer to them.
    pub fn take_new_modules(&mut self) -> Vec<(ModuleId, Module)> {
        let from = std::mem::replace(&mut self.announced, self.entries.len());
        let new = self.entries.iter().enumerate().skip(from);
        new.map(|(index, entry)| (ModuleId(index as u32), entry.module.clone())).collect()
    }

    /// A module with its file, if that was found and is still the same.
    pub fn module_file(&self, id: ModuleId) -> Option<ModuleFile> {
        let entry = self.entries.get(id.0 as usize)?;
        let file = match &entry.place {
            Place::Held(file) => Some(Arc::clone(file)),
            Place::At(path) => open_regular(path).ok().map(Arc::new),
            Place::Nowhere => None,
        };
        let same = file.filter(|file| ElfFacts::read(file.as_ref()).ok().as_ref() == entry.facts.as_deref());
        Some(ModuleFile { module: entry.module.clone(), file: same })
    }

    /// Build id and place of the code of a module's file that was not found; `None` without a build id.
    pub fn missing_file(&self, id: ModuleId) -> Option<&MissingFile> {
        self.entries.get(id.0 as usize)?.missing.as_ref()
    }

    /// How many modules [`StoredProcesses::take_new_modules`] has returned: their numbers are smaller.
    pub fn announced(&self) -> usize {
        self.announced
    }

    /// How many modules there are: their numbers are smaller.
    pub fn modules(&self) -> usize {
        self.entries.len()
    }

    /// How many of the recorded files were found so far.
    pub fn counts(&self) -> FileCounts {
        self.counts
    }

    /// Mappings beyond what one process, or one machine, can have.
    pub fn lost_mappings(&self) -> u64 {
        self.lost_mappings
    }

    fn memory_of(&mut self, pid: u32) -> Option<&mut Arc<AddressSpace>> {
        if self.table.len() >= MAX_PROCESSES && !self.table.contains_key(&pid) {
            return None;
        }
        Some(self.table.entry(pid).or_default())
    }

    fn target(&mut self, event: &MmapEvent<'_>) -> Target {
        let is_vdso = event.path == OsStr::new(vdso::LABEL);
        if !is_vdso && !is_file_path(event.path) {
            return Target::Jit;
        }
        let Some(id) = self.module(event, is_vdso) else { return Target::Jit };
        match &self.entries[id.0 as usize].facts {
            Some(facts) => match facts.bias(event.start, event.len, event.file_offset) {
                Some(bias) => Target::Module { id, bias },
                None => Target::Jit,
            },
            // Addresses in a file that was not found are file offsets.
            None => Target::Module { id, bias: event.file_offset.wrapping_sub(event.start) },
        }
    }

    /// `None`: run-time code, or one module too many.
    fn module(&mut self, event: &MmapEvent<'_>, is_vdso: bool) -> Option<ModuleId> {
        let name = FileName {
            path: event.path.as_bytes().to_vec(),
            build_id: event.build_id.map(<[u8]>::to_vec),
            inode: event.inode,
        };
        if let Some(id) = self.by_name.get(&name) {
            if let Some(missing) = &mut self.entries[id.0 as usize].missing {
                missing.code_offset = missing.code_offset.min(event.file_offset);
            }
            return Some(*id);
        }
        let label = label_from_path(event.path);
        let found = if is_vdso { self.find_vdso(event.build_id) } else { self.find(event) };
        if found.is_err() && names_run_time_code(&label) {
            return None;
        }
        if self.entries.len() >= MAX_MODULES {
            self.lost_mappings += 1;
            return None;
        }
        let count = match &found {
            Ok(_) => &mut self.counts.found,
            Err(NotFound::Missing) => &mut self.counts.missing,
            Err(NotFound::Different) => &mut self.counts.different,
        };
        *count += 1;
        let id = ModuleId(self.entries.len() as u32);
        self.entries.push(match found {
            Ok((facts, place)) => {
                let module = Module { path: label, build_id: facts.build_id.clone() };
                Entry { module, facts: Some(Arc::new(facts)), place, missing: None }
            }
            // The module has no build id, so that its file offsets are never taken for virtual addresses.
            Err(_) => Entry {
                module: Module { path: label, build_id: None },
                facts: None,
                place: Place::Nowhere,
                missing: name
                    .build_id
                    .clone()
                    .filter(|_| !is_vdso)
                    .map(|build_id| MissingFile { build_id, code_offset: event.file_offset }),
            },
        });
        self.by_name.insert(name, id);
        Some(id)
    }

    fn find(&self, event: &MmapEvent<'_>) -> Result<(ElfFacts, Place), NotFound> {
        let mut candidates = self.cached(event.build_id, "elf");
        candidates.extend(self.place_of(&PathBuf::from(path_from_label(event.path))));
        let mut outcome = NotFound::Missing;
        for candidate in candidates {
            let Ok(file) = open_regular(&candidate) else { continue };
            let facts = ElfFacts::read(&file).ok().filter(|facts| self.is_recorded(event, facts, &file));
            match facts {
                Some(facts) => return Ok((facts, Place::At(candidate))),
                None => outcome = NotFound::Different,
            }
        }
        Err(outcome)
    }

    /// By its name. Files in /proc and /sys are not those of the recording.
    fn place_of(&self, path: &Path) -> Option<PathBuf> {
        match &self.search.root {
            Some(root) => Some(root.join(relative(path))),
            None if path.starts_with("/proc") || path.starts_with("/sys") => None,
            None => Some(path.to_path_buf()),
        }
    }

    /// A build id decides; without one, the inode does where the file was not put there by the user.
    fn is_recorded(&self, event: &MmapEvent<'_>, facts: &ElfFacts, file: &File) -> bool {
        let same_inode = |inode| file.metadata().is_ok_and(|found| found.ino() == inode);
        match (event.build_id, event.inode) {
            (Some(build_id), _) => facts.build_id.as_deref() == Some(build_id),
            (None, _) if self.search.root.is_some() => true,
            (None, Some(inode)) => same_inode(inode),
            (None, None) => self.search.same_kernel,
        }
    }

    fn find_vdso(&self, build_id: Option<&[u8]>) -> Result<(ElfFacts, Place), NotFound> {
        for path in self.cached(build_id, "vdso") {
            if let Some(facts) = open_regular(&path).ok().and_then(|file| ElfFacts::read(&file).ok())
                && facts.build_id.as_deref() == build_id
            {
                return Ok((facts, Place::At(path)));
            }
        }
        let own = vdso::image().ok_or(NotFound::Missing)?;
        let facts = ElfFacts::read(&own).map_err(|_| NotFound::Missing)?;
        let same = match build_id {
            Some(build_id) => facts.build_id.as_deref() == Some(build_id),
            None => self.search.same_kernel,
        };
        if same { Ok((facts, Place::Held(Arc::new(own)))) } else { Err(NotFound::Missing) }
    }

    /// Where perf keeps a copy: `.build-id/ab/cdef…/elf`, or `…/vdso`.
    fn cached(&self, build_id: Option<&[u8]>, name: &str) -> Vec<PathBuf> {
        let path = || {
            let folder =
                self.search.build_id_cache.as_ref()?.join(".build-id").join(build_id_path(build_id?)?);
            Some(folder.join(name))
        };
        path().into_iter().collect()
    }
}

/// Why a module has no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotFound {
    Missing,
    Different,
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn own_program() -> PathBuf {
        std::env::current_exe().expect("a running program")
    }

    /// The code of the test program itself, as if mapped at this address.
    const START: u64 = 0x5555_0000_0000;

    fn event<'a>(path: &'a OsStr, build_id: Option<&'a [u8]>, inode: Option<u64>) -> MmapEvent<'a> {
        MmapEvent {
            pid: 7,
            start: START,
            len: 0x1000,
            file_offset: 0,
            path,
            build_id,
            inode,
            executable: true,
        }
    }

    fn known(search: FileSearch, event: &MmapEvent<'_>) -> (StoredProcesses, Frame) {
        let mut processes = StoredProcesses::new(search);
        processes.mmap(event);
        let frame = processes.frame(event.pid, START + 0x10);
        (processes, frame)
    }

    fn counts(found: u64, missing: u64, different: u64) -> FileCounts {
        FileCounts { found, missing, different }
    }

    #[test]
    fn a_build_id_proves_a_file_and_refuses_another() {
        let path = own_program();
        let build_id = crate::build_id_of_path(&path).expect("linkers write build ids");
        let segments = ElfFacts::read(&File::open(&path).expect("opens")).expect("an ELF file").segments;
        let code = segments.iter().find(|segment| segment.executable).expect("code");
        let mapped = MmapEvent {
            file_offset: code.offset & !0xfff,
            ..event(path.as_os_str(), Some(&build_id), Some(1))
        };
        let (processes, frame) = known(FileSearch::default(), &mapped);
        assert_eq!((processes.counts(), frame.module), (counts(1, 0, 0), Some(ModuleId(0))));
        let file = processes.module_file(ModuleId(0)).expect("a module");
        assert_eq!((file.file.is_some(), file.module.build_id), (true, Some(build_id)));
        let (mut processes, frame) =
            known(FileSearch::default(), &event(path.as_os_str(), Some(&[1; 20]), None));
        assert_eq!((processes.counts(), frame.address), (counts(0, 0, 1), 0x10), "a file offset");
        let module = Module { path: path.to_str().expect("text").to_owned(), build_id: None };
        assert_eq!(processes.take_new_modules(), [(ModuleId(0), module)]);
        assert!(processes.module_file(ModuleId(0)).is_some_and(|file| file.file.is_none()));
    }

    #[test]
    fn build_id_of_a_missing_file_and_the_start_of_its_code_are_known() {
        let gone = OsStr::new("/nowhere/program");
        let hot = MmapEvent { file_offset: 0x5000, ..event(gone, Some(&[7; 20]), None) };
        let (mut processes, _) = known(FileSearch::default(), &hot);
        processes.mmap(&MmapEvent { start: START + 0x1000, file_offset: 0x1000, ..hot });
        let missing = MissingFile { build_id: vec![7; 20], code_offset: 0x1000 };
        assert_eq!(processes.missing_file(ModuleId(0)), Some(&missing));
        let module = Module { path: "/nowhere/program".into(), build_id: None };
        assert_eq!(processes.take_new_modules(), [(ModuleId(0), module)]);
        let path = own_program();
        let build_id = crate::build_id_of_path(&path).expect("linkers write build ids");
        for event in [event(gone, None, Some(1)), event(path.as_os_str(), Some(&build_id), None)] {
            let (processes, _) = known(FileSearch::default(), &event);
            assert_eq!(processes.missing_file(ModuleId(0)), None);
        }
    }

    #[test]
    fn without_a_build_id_the_inode_decides() {
        let path = own_program();
        let inode = path.metadata().expect("metadata").ino();
        for (inode, found) in [(Some(inode), 1), (Some(inode + 1), 0), (None, 0)] {
            let (processes, _) = known(FileSearch::default(), &event(path.as_os_str(), None, inode));
            assert_eq!(processes.counts(), counts(found, 0, 1 - found), "{inode:?}");
        }
        let search = FileSearch { same_kernel: true, ..FileSearch::default() };
        assert_eq!(known(search, &event(path.as_os_str(), None, None)).0.counts(), counts(1, 0, 0));
    }

    #[test]
    fn files_are_found_below_a_root_and_in_perfs_cache() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = own_program();
        let build_id = crate::build_id_of_path(&path).expect("linkers write build ids");
        std::fs::create_dir(folder.path().join("bin")).expect("a folder");
        symlink(&path, folder.path().join("bin/x")).expect("a link");
        let search = FileSearch { root: Some(folder.path().into()), ..FileSearch::default() };
        let recorded = event(OsStr::new("/../bin/x (deleted)"), None, Some(1));
        assert_eq!(known(search.clone(), &recorded).0.counts(), counts(1, 0, 0));
        let gone = event(OsStr::new("/bin/y"), Some(&build_id), None);
        assert_eq!(known(search, &gone).0.counts(), counts(0, 1, 0));
        let copy = folder.path().join(".build-id").join(build_id_path(&build_id).expect("a path"));
        std::fs::create_dir_all(&copy).expect("folders");
        symlink(&path, copy.join("elf")).expect("a link");
        let search = FileSearch { build_id_cache: Some(folder.path().into()), ..FileSearch::default() };
        assert_eq!(known(search, &gone).0.counts(), counts(1, 0, 0));
    }

    #[test]
    fn memory_is_inherited_by_forks_and_cleared_by_exec() {
        let path = own_program();
        let (mut processes, _) = known(FileSearch::default(), &event(path.as_os_str(), Some(&[1]), None));
        let module = |processes: &StoredProcesses, pid| processes.frame(pid, START + 1).module;
        processes.fork(7, 8);
        processes.clear(7);
        assert_eq!((module(&processes, 7), module(&processes, 8)), (None, Some(ModuleId(0))));
        let anonymous = MmapEvent { pid: 8, ..event(OsStr::new("//anon"), None, None) };
        processes.mmap(&anonymous);
        assert_eq!(processes.frame(8, START + 1).kind, FrameKind::Jit);
    }

    #[test]
    fn files_in_proc_and_sys_are_not_read() {
        for path in ["/proc/self/exe", "/sys/kernel/notes", "/dev/zero", "/proc/self/mem"] {
            let search = FileSearch { same_kernel: true, ..FileSearch::default() };
            assert_eq!(known(search, &event(OsStr::new(path), None, None)).0.counts().found, 0, "{path}");
        }
    }

    #[test]
    fn processes_are_bounded() {
        let mut processes = StoredProcesses::new(FileSearch::default());
        for pid in 0..MAX_PROCESSES as u32 + 5 {
            processes.mmap(&MmapEvent { pid, ..event(OsStr::new(""), None, None) });
        }
        assert_eq!((processes.table.len(), processes.lost_mappings()), (MAX_PROCESSES, 5));
    }
}
