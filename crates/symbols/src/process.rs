// SPDX-License-Identifier: Apache-2.0
//! Processes and their executable memory over time: turns addresses into frames that are valid in every
//! process and after the processes have ended.
//!
//! Input is `/proc/PID/maps` for processes that run already, and one call for each later event. Addresses
//! must be normalised early and cheaply, because processes end.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wallprof_model::{Frame, FrameId, FrameKind, Module, ModuleId, MonoNs, Owner, SymbolLine};

use crate::address_space::{AddressSpace, Mapping, NotKept, Target};
use crate::jit::JitCode;
use crate::live_file::{FileKey, MappedFile};
use crate::mapping_quota::MappingQuota;
use crate::maps::{MapsLine, executable_maps};
use crate::module::{AwaitedFile, Identity, MappedBy, ModuleFile, Modules, label_from_path};
use crate::process_owner::owner_of_process;
use crate::reader::ReaderCommand;
use crate::vdso;

/// Images of one process that are kept: stacks of earlier images may arrive late.
const MAX_IMAGES: usize = 4;
/// Below lies no user code: `vm.mmap_min_addr`.
const LOWEST_ADDRESS: u64 = 0x1_0000;
/// Above lies the kernel, on every 64-bit architecture.
const HIGHEST_ADDRESS: u64 = 1 << 56;
/// The owner of a process is read again each time that it has this many mappings more: a process can become
/// another user's without an exec.
const OWNER_EVERY: usize = 1 << 12;
/// Mappings of one served file that wait for its headers. At most 256 such files wait.
const MAX_AWAITED: usize = 64;
/// The pause after a scan of `/proc/PID/maps` that explained nothing doubles, from the first value to the
/// second.
const SHORT_PAUSE: Duration = Duration::from_millis(500);
const LONG_PAUSE: Duration = Duration::from_secs(512);

/// One program image of one process: the generation grows with each `exec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessKey {
    /// In the pid namespace of this process.
    pub pid: u32,
    /// 0 for the first program that was seen.
    pub generation: u32,
}

/// A new mapping, from perf's mmap2 records or another source.
#[derive(Clone, Copy, Debug)]
pub struct MmapEvent<'a> {
    /// The process that made the mapping.
    pub pid: u32,
    /// The first address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Bytes into the file.
    pub file_offset: u64,
    /// As the kernel writes it: `/usr/lib/libc.so.6`, `[vdso]`, `//anon`, or empty.
    pub path: &'a OsStr,
    /// Of the mapped file, where the event has it.
    pub build_id: Option<&'a [u8]>,
    /// Of the mapped file, where the event has it.
    pub inode: Option<u64>,
    /// Whether the mapping has execute permission.
    pub executable: bool,
}

/// Executable memory `[start, end)`. Of a file: an address in it plus `bias`, wrapping, is an ELF virtual
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeRange {
    /// The first address.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
    /// `None`: code made at run time.
    pub module: Option<ModuleId>,
    /// 0 for code made at run time.
    pub bias: u64,
}

/// `/proc/PID/maps` could not be read.
#[derive(Debug)]
pub struct ScanError {
    pid: u32,
    cause: io::Error,
}

impl ScanError {
    /// The process does not exist (any more).
    pub fn is_gone(&self) -> bool {
        self.cause.kind() == io::ErrorKind::NotFound || self.cause.raw_os_error() == Some(ESRCH)
    }
}

/// The error of reading a file of `/proc/PID` when the process is a zombie.
const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();

impl fmt::Display for ScanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.pid;
        if self.is_gone() {
            return write!(f, "process {pid} has no memory map any more; give a process that is running");
        }
        write!(
            f,
            "cannot read the memory map of process {pid} ({}); run as its user, as root or with CAP_SYS_PTRACE",
            self.cause
        )
    }
}

impl std::error::Error for ScanError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

/// Counts of dropped facts, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NormaliseLosses {
    /// Mappings beyond what one process can have.
    pub mappings: u64,
    /// Mappings beyond what the processes of one user can have.
    pub mappings_over_quota: u64,
    /// Mappings of files beyond the number of modules kept.
    pub modules: u64,
    /// Files that another program serves, whose headers could not be read.
    pub served_files: u64,
    /// Lists of run-time code's names that were too large, or of too many processes.
    pub jit_names: u64,
}

/// One program image.
struct Image {
    generation: u32,
    /// Shared with parent and children of a fork until one of them changes its mappings.
    memory: Arc<AddressSpace>,
    scans: ScanSchedule,
}

impl Image {
    fn new(generation: u32, memory: Arc<AddressSpace>) -> Self {
        Image { generation, memory, scans: ScanSchedule::default() }
    }
}

/// When to scan a process again for mappings that no event has reported.
#[derive(Default)]
struct ScanSchedule {
    last: Option<Instant>,
    pause: Duration,
}

impl ScanSchedule {
    /// Whether an unknown address is to cause a scan now.
    fn is_due(&mut self, now: Instant) -> bool {
        let due = self.last.is_none_or(|last| now.saturating_duration_since(last) >= self.pause);
        if due {
            self.last = Some(now);
        }
        due
    }

    /// Records whether the last scan explained the address. A compiler makes new mappings that scans find; a
    /// wrong return address stays unknown.
    fn learn(&mut self, explained: bool) {
        let longer = (self.pause * 2).clamp(SHORT_PAUSE, LONG_PAUSE);
        self.pause = if explained { SHORT_PAUSE } else { longer };
    }
}

#[derive(Default)]
struct Process {
    /// Oldest first; never empty once the process is in the table.
    images: Vec<Image>,
    exited: bool,
}

impl Process {
    /// Adds an image, and removes the oldest one when there are too many.
    fn push(&mut self, generation: u32) -> &mut Image {
        if self.images.len() == MAX_IMAGES {
            self.images.remove(0);
        }
        let at = self.images.len();
        self.images.push(Image::new(generation, Arc::default()));
        &mut self.images[at]
    }
}

/// A mapping of a file that is not known yet.
struct AwaitedMapping {
    process: ProcessKey,
    start: u64,
    end: u64,
    file_offset: u64,
    /// The module to which it is assigned meanwhile.
    unread: ModuleId,
    file: AwaitedFile,
}

/// All processes seen and not retired.
#[derive(Default)]
pub struct Processes {
    table: HashMap<u32, Process>,
    modules: Modules,
    jit: JitCode,
    /// Mappings of served files whose headers are being read.
    awaiting: HashMap<FileKey, Vec<AwaitedMapping>>,
    quota: MappingQuota,
    lost_mappings: u64,
    mappings_over_quota: u64,
}

impl Processes {
    /// Reads the mappings a living process has now.
    pub fn scan(&mut self, process: ProcessKey) -> Result<(), ScanError> {
        let lines = executable_maps(process.pid).map_err(|cause| ScanError { pid: process.pid, cause })?;
        self.charge(process);
        self.modules.start_batch();
        let mut mappings = Vec::with_capacity(lines.len());
        // A process may have mapped parts of one file a thousand times.
        let mut last: Option<(&MapsLine, Identity)> = None;
        for line in &lines {
            let mapped = mapped_from_line(process, line);
            let identity = match last {
                Some((before, identity)) if before.has_same_file(line) => identity,
                _ => self.identity(process, &mapped),
            };
            let target = self.target(process, &mapped, &identity, line.file_offset);
            mappings.push(Mapping { start: line.start, end: line.end, target });
            last = Some((line, identity));
        }
        self.modules.end_batch();
        // Known mappings stay unless new ones cover them: a process that is ending has an empty map.
        let memory = Arc::make_mut(&mut self.image(process).memory);
        let outcomes: Vec<_> = mappings.into_iter().map(|mapping| memory.map(mapping)).collect();
        outcomes.into_iter().for_each(|outcome| self.count(outcome));
        Ok(())
    }

    /// Adds a mapping. One that is not executable removes the executable ones that it covers.
    pub fn mmap(&mut self, event: &MmapEvent<'_>) {
        let process = self.newest(event.pid);
        self.charge(process);
        let end = event.start.saturating_add(event.len);
        let mapping = event.executable.then(|| {
            let mapped = MappedFile {
                pid: event.pid,
                start: event.start,
                end,
                path: event.path,
                build_id: event.build_id,
                inode: event.inode,
            };
            let identity = self.identity(process, &mapped);
            let target = self.target(process, &mapped, &identity, event.file_offset);
            Mapping { start: event.start, end, target }
        });
        let memory = Arc::make_mut(&mut self.image(process).memory);
        match mapping {
            Some(mapping) => {
                let outcome = memory.map(mapping);
                self.count(outcome);
            }
            None => memory.unmap(event.start, end),
        }
    }

    /// Replaces the program that reads files which other programs serve.
    pub fn set_reader(&mut self, command: ReaderCommand) {
        self.modules.set_reader(command);
    }

    /// Whether files are being read that other programs serve.
    pub fn awaits_served_files(&self) -> bool {
        self.modules.awaits_served()
    }

    /// Assigns the mappings of files that other programs serve, as far as these were read since the last
    /// call. Returns the processes whose mappings have changed.
    pub fn take_served_files(&mut self) -> Vec<u32> {
        let Processes { table, modules, awaiting, .. } = self;
        let mut mappings: HashMap<FileKey, Vec<AwaitedMapping>> = HashMap::new();
        let mut take = |key| {
            let awaited = awaiting.remove(&key)?;
            let file = awaited.first()?.file.clone();
            mappings.insert(key, awaited);
            Some(file)
        };
        let known = modules.take_served(&mut take, &|| mapped_modules(table));
        let mut changed = Vec::new();
        for (key, identity) in known {
            for awaited in mappings.remove(&key).unwrap_or_default() {
                let target = target_of(&identity, awaited.start, awaited.end, awaited.file_offset);
                if self.assign(&awaited, target) {
                    changed.push(awaited.process.pid);
                }
            }
        }
        changed
    }

    /// False if something else is mapped there by now.
    fn assign(&mut self, awaited: &AwaitedMapping, target: Target) -> bool {
        let images = self.table.get_mut(&awaited.process.pid).map(|known| &mut known.images);
        let mut images = images.into_iter().flatten();
        let Some(image) = images.find(|image| image.generation == awaited.process.generation) else {
            return false;
        };
        let frame = image.memory.frame(awaited.start);
        let is_still = frame.is_some_and(|frame| frame.module == Some(awaited.unread));
        if is_still {
            let mapping = Mapping { start: awaited.start, end: awaited.end, target };
            let outcome = Arc::make_mut(&mut image.memory).map(mapping);
            self.count(outcome);
        }
        is_still
    }

    /// Something unknown was mapped over `[start, end)`: nothing is known there any more. True if something
    /// was.
    pub fn unmap(&mut self, pid: u32, start: u64, end: u64) -> bool {
        let process = self.newest(pid);
        let memory = &mut self.image(process).memory;
        let overlaps = memory.overlaps(start, end);
        if overlaps {
            Arc::make_mut(memory).unmap(start, end);
        }
        overlaps
    }

    /// `child` starts with the memory that the process `parent` has now.
    pub fn fork(&mut self, parent: u32, child: ProcessKey) {
        if parent == child.pid {
            return;
        }
        let memory = self.table.get(&parent).and_then(|process| process.images.last());
        let memory = memory.map(|image| Arc::clone(&image.memory)).unwrap_or_default();
        let image = Image::new(child.generation, memory);
        self.table.insert(child.pid, Process { images: vec![image], exited: false });
    }

    /// The process starts a new program in empty memory. Earlier images are kept for stacks that arrive late.
    pub fn exec(&mut self, process: ProcessKey) {
        self.jit.forget(self.newest(process.pid));
        let known = self.table.entry(process.pid).or_default();
        if known.exited {
            *known = Process::default();
        }
        known.images.retain(|image| image.generation != process.generation);
        known.push(process.generation);
        // Its user has to be known before its first mapping.
        self.charge(process);
    }

    /// The process has ended: it is not read from `/proc` any more, and its mappings are kept.
    pub fn exit(&mut self, pid: u32) {
        if let Some(process) = self.table.get_mut(&pid) {
            process.exited = true;
        }
    }

    /// Removes a process whose stacks have all arrived. The names of its run-time code are read a last time,
    /// for
    /// [`Processes::jit_names`].
    pub fn retire(&mut self, pid: u32) {
        self.table.remove(&pid);
        self.jit.retire(pid);
    }

    /// Adds a frame of run-time code, first seen at `first_seen`, whose name is to be found.
    pub fn push_jit(&mut self, process: ProcessKey, id: FrameId, frame: Frame, first_seen: MonoNs) {
        if frame.kind == FrameKind::Jit {
            self.jit.push(process, id, frame.address, first_seen);
        }
    }

    /// The addresses of at most `most` frames of run-time code without a name, each once, ascending, with the times at
    /// which they were first seen, for who reads the code of the process: to be answered, once each. Who begins to read
    /// counts as asked, until [`Processes::unread_jit`].
    pub fn ask_jit(&mut self, process: ProcessKey, most: usize) -> Vec<(u64, MonoNs)> {
        if self.knows(process) { self.jit.ask(process, most) } else { Vec::new() }
    }

    /// What was found for the addresses of [`Processes::ask_jit`]: the functions at each, innermost first; empty: none.
    pub fn answer_jit(&mut self, process: ProcessKey, answers: &[(u64, Vec<SymbolLine>)]) {
        self.jit.answer(process, answers);
    }

    /// Nobody reads the code of the process any more.
    pub fn unread_jit(&mut self, process: ProcessKey) {
        self.jit.unread(process);
    }

    /// Whether names were asked for that have not been answered yet, or are to be asked for.
    pub fn awaits_jit(&self) -> bool {
        self.jit.awaits_answers()
    }

    /// The names of run-time code that are known by now, each returned once. To be called at intervals,
    /// because the files that they come from grow.
    pub fn jit_names(&mut self) -> Vec<(FrameId, Vec<SymbolLine>)> {
        self.jit.names()
    }

    /// The newest image of the process is of this generation: it was counted otherwise. What was known of this
    /// generation is forgotten.
    pub fn correct_generation(&mut self, process: ProcessKey) {
        let Some(known) = self.table.get_mut(&process.pid) else { return };
        let Some(mut newest) = known.images.pop() else { return };
        newest.generation = process.generation;
        known.images.retain(|image| image.generation != process.generation);
        known.images.push(newest);
    }

    /// The generation of the newest image of a process.
    pub fn newest_generation(&self, pid: u32) -> Option<u32> {
        self.table.get(&pid).and_then(|known| known.images.last()).map(|image| image.generation)
    }

    /// Whether this image of the process is known, with or without mappings.
    pub fn knows(&self, process: ProcessKey) -> bool {
        let images = self.table.get(&process.pid).map_or(&[][..], |known| &known.images);
        images.iter().any(|image| image.generation == process.generation)
    }

    /// The executable mappings of the process's newest image, ascending.
    pub fn code(&self, pid: u32) -> Vec<CodeRange> {
        let Some(image) = self.table.get(&pid).and_then(|process| process.images.last()) else {
            return Vec::new();
        };
        let ranges = image.memory.mappings().iter().map(|mapping| match mapping.target {
            Target::Module { id, bias } => {
                CodeRange { start: mapping.start, end: mapping.end, module: Some(id), bias }
            }
            Target::Jit => CodeRange { start: mapping.start, end: mapping.end, module: None, bias: 0 },
        });
        ranges.collect()
    }

    /// How many processes are known.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether no process is known.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Appends the frames of a user stack, leaf first.
    ///
    /// `addresses[0]` is where the thread was; the others are return addresses, and their frames stand for
    /// the call: the address of its last byte. (A call that never returns can be the last instruction of
    /// its function, and the address after it belongs to another one.) An address that is in no known
    /// mapping becomes a native frame without a module. Returns whether mappings were found that no event had
    /// reported.
    pub fn normalise_user(
        &mut self,
        process: ProcessKey,
        addresses: &[u64],
        frames: &mut Vec<Frame>,
    ) -> bool {
        self.know(process);
        let mut found = false;
        let mut memory = self.memory(process);
        for (depth, &address) in addresses.iter().enumerate() {
            let address = call_site(depth, address);
            let mut frame = memory.frame(address);
            if frame.is_none() && self.scan_again(process, address) {
                memory = self.memory(process);
                frame = memory.frame(address);
                self.image(process).scans.learn(frame.is_some());
                found |= frame.is_some();
            }
            frames.push(frame.unwrap_or(Frame { kind: FrameKind::Native, module: None, address }));
        }
        found
    }

    /// As [`Processes::normalise_user`], with the mappings that are known already.
    pub fn normalise_known(&self, process: ProcessKey, addresses: &[u64], frames: &mut Vec<Frame>) {
        let memory = self.memory(process);
        frames.extend(addresses.iter().enumerate().map(|(depth, &address)| {
            let address = call_site(depth, address);
            memory.frame(address).unwrap_or(Frame { kind: FrameKind::Native, module: None, address })
        }));
    }

    /// All modules that are known, by number.
    pub fn modules(&self) -> Vec<(ModuleId, Module)> {
        self.modules.all()
    }

    /// The module that a frame refers to; each module that a process has mapped is known.
    pub fn module(&self, id: ModuleId) -> Option<&Module> {
        self.modules.module(id)
    }

    /// Bytes of a module's file.
    pub fn module_size(&self, id: ModuleId) -> Option<u64> {
        self.modules.size(id)
    }

    /// Modules that are gone since the last call, because other files needed their places. No process has
    /// them mapped, and their numbers are not used again.
    pub fn take_evicted_modules(&mut self) -> Vec<ModuleId> {
        self.modules.take_evicted()
    }

    /// A frame of this module waits for its name: the module's file can be found until
    /// [`Processes::set_unnamed_modules`] says otherwise.
    pub fn want_names(&mut self, id: ModuleId) {
        self.modules.want(id);
    }

    /// The modules with frames that wait for names: no others do.
    pub fn set_unnamed_modules(&mut self, modules: HashSet<ModuleId>) {
        self.modules.set_wanted(modules);
    }

    /// The user to whom the modules and mappings of a process are charged.
    pub fn owner(&self, pid: u32) -> Owner {
        let image = self.table.get(&pid).and_then(|process| process.images.last());
        image.map_or(Owner::System, |image| image.memory.owner())
    }

    /// The same for an image that need not be known yet: its user is read now.
    pub fn read_owner(&mut self, process: ProcessKey) -> Owner {
        self.charge(process);
        self.image(process).memory.owner()
    }

    /// A module with its file, ready for [`crate::Resolver::resolve`] on any thread.
    pub fn module_file(&mut self, id: ModuleId) -> Option<ModuleFile> {
        self.modules.file(id)
    }

    /// The module at `path` in wallprof's own view, mapped or not.
    pub fn module_at(&mut self, path: &Path) -> Option<ModuleId> {
        let pid = std::process::id();
        let file = MappedFile { pid, start: 0, end: 0, path: path.as_os_str(), build_id: None, inode: None };
        let (table, owner) = (&self.table, Owner::System);
        match self.modules.identify(&file, &MappedBy { owner, all: &|| mapped_modules(table) }) {
            Identity::Module(id, _) => Some(id),
            _ => None,
        }
    }

    /// The number to add (wrapping) to an offset in a module's file to get the ELF virtual address of the
    /// code there; `None` when segments differ.
    pub fn code_delta(&self, id: ModuleId) -> Option<u64> {
        self.modules.code_delta(id)
    }

    /// Whether a module is the vDSO of processes with the word size of this process.
    pub fn is_vdso(&self, id: ModuleId) -> bool {
        self.modules.is_vdso(id)
    }

    /// Counts of dropped facts so far, by reason.
    pub fn losses(&self) -> NormaliseLosses {
        NormaliseLosses {
            mappings: self.lost_mappings,
            mappings_over_quota: self.mappings_over_quota,
            modules: self.modules.refused(),
            served_files: self.modules.unreadable(),
            jit_names: self.jit.lost(),
        }
    }

    /// Scans a process or image once that no event has announced.
    fn know(&mut self, process: ProcessKey) {
        let newest = self.table.get(&process.pid).and_then(|known| known.images.last());
        let exited = self.table.get(&process.pid).is_some_and(|known| known.exited);
        if newest.is_none_or(|image| image.generation < process.generation && !exited) {
            // With any result: only an unknown address causes another scan.
            let _ = self.image(process);
            let _ = self.scan(process);
        }
    }

    fn memory(&self, process: ProcessKey) -> Arc<AddressSpace> {
        let images = self.table.get(&process.pid).map_or(&[][..], |known| &known.images);
        let image = images.iter().rev().find(|image| image.generation == process.generation);
        image.map(|image| Arc::clone(&image.memory)).unwrap_or_default()
    }

    /// Scans for memory that `mprotect` made executable, for which there is no event. A wrong return address
    /// scans the same. True when the process was scanned.
    fn scan_again(&mut self, process: ProcessKey, address: u64) -> bool {
        if !(LOWEST_ADDRESS..HIGHEST_ADDRESS).contains(&address) {
            return false;
        }
        let Some(known) = self.table.get_mut(&process.pid).filter(|known| !known.exited) else {
            return false;
        };
        let newest = known.images.last_mut().filter(|image| image.generation == process.generation);
        newest.is_some_and(|image| image.scans.is_due(Instant::now())) && self.scan(process).is_ok()
    }

    fn image(&mut self, process: ProcessKey) -> &mut Image {
        let known = self.table.entry(process.pid).or_default();
        match known.images.iter().position(|image| image.generation == process.generation) {
            Some(at) => &mut known.images[at],
            None => known.push(process.generation),
        }
    }

    fn newest(&self, pid: u32) -> ProcessKey {
        let image = self.table.get(&pid).and_then(|known| known.images.last());
        ProcessKey { pid, generation: image.map_or(0, |image| image.generation) }
    }

    /// Before something is mapped: the process's memory is charged to its user. Memory that it still shares
    /// with its parent becomes its own with this.
    fn charge(&mut self, process: ProcessKey) {
        let memory = &self.image(process).memory;
        let len = memory.mappings().len();
        let is_due = len.is_multiple_of(OWNER_EVERY) || Arc::strong_count(memory) > 1;
        if is_due {
            let owner = match owner_of_process(process.pid) {
                // It has ended: the user of its program before.
                Owner::UNKNOWN => self.former_owner(process),
                owner => owner,
            };
            let account = self.quota.account(owner);
            Arc::make_mut(&mut self.image(process).memory).charge_to(account);
        }
    }

    /// The owner of the last image with mappings.
    fn former_owner(&self, process: ProcessKey) -> Owner {
        let images = self.table.get(&process.pid).map_or(&[][..], |known| &known.images);
        let with_mappings = images.iter().rev().find(|image| !image.memory.mappings().is_empty());
        with_mappings.map_or(Owner::UNKNOWN, |image| image.memory.owner())
    }

    fn count(&mut self, outcome: Result<(), NotKept>) {
        match outcome {
            Ok(()) => {}
            Err(NotKept::TooMany) => self.lost_mappings += 1,
            Err(NotKept::OverQuota) => self.mappings_over_quota += 1,
        }
    }

    fn identity(&mut self, process: ProcessKey, mapped: &MappedFile<'_>) -> Identity {
        self.jit.mapped(process, mapped);
        let owner = self.image(process).memory.owner();
        let table = &self.table;
        let mapped_by = MappedBy { owner, all: &|| mapped_modules(table) };
        match mapped.path.to_str() {
            Some(vdso::LABEL) => self.modules.vdso(mapped.start, &mapped_by),
            _ if is_file_path(mapped.path) => self.modules.identify(mapped, &mapped_by),
            _ => Identity::NotCode,
        }
    }

    fn target(
        &mut self,
        process: ProcessKey,
        mapped: &MappedFile<'_>,
        identity: &Identity,
        file_offset: u64,
    ) -> Target {
        if let Identity::Awaited(unread, key) = *identity {
            self.await_file(process, mapped, file_offset, unread, key);
        }
        target_of(identity, mapped.start, mapped.end, file_offset)
    }

    fn await_file(
        &mut self,
        process: ProcessKey,
        mapped: &MappedFile<'_>,
        file_offset: u64,
        unread: ModuleId,
        key: FileKey,
    ) {
        let owner = self.image(process).memory.owner();
        let awaited = self.awaiting.entry(key).or_default();
        if awaited.len() >= MAX_AWAITED {
            self.lost_mappings += 1;
            return;
        }
        let file = AwaitedFile { label: label_from_path(mapped.path), name: mapped.name(), owner };
        let (start, end) = (mapped.start, mapped.end);
        awaited.push(AwaitedMapping { process, start, end, file_offset, unread, file });
    }
}

fn mapped_from_line(process: ProcessKey, line: &MapsLine) -> MappedFile<'_> {
    MappedFile {
        pid: process.pid,
        start: line.start,
        end: line.end,
        path: &line.path,
        build_id: None,
        inode: Some(line.inode),
    }
}

fn target_of(identity: &Identity, start: u64, end: u64, file_offset: u64) -> Target {
    match identity {
        Identity::Module(id, facts) => match facts.bias(start, end.saturating_sub(start), file_offset) {
            Some(bias) => Target::Module { id: *id, bias },
            None => Target::Jit,
        },
        Identity::Unread(id) | Identity::Awaited(id, _) => {
            Target::Module { id: *id, bias: file_offset.wrapping_sub(start) }
        }
        Identity::NotCode => Target::Jit,
    }
}

/// The modules that processes have mapped, in all images that are kept.
fn mapped_modules(table: &HashMap<u32, Process>) -> HashSet<ModuleId> {
    let spaces = table.values().flat_map(|process| &process.images).map(|image| &image.memory);
    let mut looked_at = HashSet::new();
    let distinct = spaces.filter(|memory| looked_at.insert(Arc::as_ptr(memory)));
    let targets = distinct.flat_map(|memory| memory.mappings()).map(|mapping| mapping.target);
    let modules = targets.filter_map(|target| match target {
        Target::Module { id, .. } => Some(id),
        Target::Jit => None,
    });
    modules.collect()
}

/// The frames of a kernel stack, leaf first; see [`Processes::normalise_user`] for return addresses.
pub fn normalise_kernel(addresses: &[u64], frames: &mut Vec<Frame>) {
    frames.extend(addresses.iter().enumerate().map(|(depth, &address)| Frame {
        kind: FrameKind::Kernel,
        module: None,
        address: call_site(depth, address),
    }));
}

fn call_site(depth: usize, address: u64) -> u64 {
    if depth == 0 { address } else { address.saturating_sub(1) }
}

/// Whether a label names a file: anonymous memory has none, `//anon`, or one in brackets.
pub(crate) fn is_file_path(label: &OsStr) -> bool {
    let label = label.as_encoded_bytes();
    label.starts_with(b"/") && !label.starts_with(b"//")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_that_explain_nothing_become_rare() {
        let mut scans = ScanSchedule::default();
        let start = Instant::now();
        let mut at = Vec::new();
        for second in 0..60 {
            if scans.is_due(start + Duration::from_secs(second)) {
                at.push(second);
                scans.learn(second == 32);
            }
        }
        assert_eq!(at, [0, 1, 2, 4, 8, 16, 32, 33, 34, 36, 40, 48]);
    }

    #[test]
    fn only_paths_are_files() {
        for label in ["", "//anon", "[heap]", "[vsyscall]", "[anon: jit]", "anon_inode:[perf_event]"] {
            assert!(!is_file_path(OsStr::new(label)), "{label}");
        }
        assert!(is_file_path(OsStr::new("/memfd:x (deleted)")));
    }

    #[test]
    fn return_addresses_become_call_sites() {
        let mut frames = Vec::new();
        normalise_kernel(&[10, 20, 0], &mut frames);
        let addresses: Vec<u64> = frames.iter().map(|frame| frame.address).collect();
        assert_eq!(addresses, [10, 19, 0]);
        assert!(frames.iter().all(|frame| frame.kind == FrameKind::Kernel && frame.module.is_none()));
    }
}
