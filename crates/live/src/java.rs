// SPDX-License-Identifier: Apache-2.0
//! Follows the code that Java's virtual machines make: for each process with one, a thread reads its code cache at
//! intervals, and hands over unwind tables and names. Likewise the trampolines of CPython, which have names elsewhere: a
//! thread reads them when the process has mapped some.
//!
//! A process may delay a read of its memory for as long as it likes. Each has a thread of its own, so that no other
//! process waits for it, nor the end of the recording.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wallprof_hotspot::{CodeCache, CodeSpan, Function, Memory, VARIABLES, Variables};
use wallprof_model::{ModuleId, MonoNs, Owner, SymbolLine};
use wallprof_probe::clock;
use wallprof_symbols::{INTERPRETED_METHOD, ModuleFile, ProcessKey, exported_variable};
use wallprof_unwind::Table;

use crate::follower::lock;
use crate::known::{ChangedCode, KnownProcesses};
use crate::trampolines;

/// The library that holds the virtual machine.
const LIBRARY: &str = "libjvm.so";
/// Threads that may be blocked by as many processes: of all users, and of one.
const MOST_PROCESSES: usize = 64;
const MOST_OF_USER: usize = 8;
/// It is looked this often whether blocks were added or removed. The calls of code that was made since have no callers.
const PAUSE: Duration = Duration::from_millis(20);
/// While nothing is compiled the pauses grow, up to this one.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// A reading is followed by a pause this many times as long as its CPU time: it may take a twentieth of a CPU.
const PAUSE_SHARE: u32 = 20;
/// Until the readings of a process took this much CPU time, the pauses are shorter: what is compiled when a recording
/// begins is what its stacks are of.
const FIRST_CPU: Duration = Duration::from_secs(1);
const FIRST_PAUSE_SHARE: u32 = 2;
/// Whether known blocks were freed, or have other code, is looked at this often while anything changes.
const WHOLE_PAUSE: Duration = Duration::from_millis(300);
/// While nothing changes, this takes a hundredth of a CPU.
const QUIET_SHARE: u32 = 100;
/// A table is placed whole, and what it replaces rests for two seconds: at most this often, and at most so many bytes a
/// second.
const TABLE_EVERY: Duration = Duration::from_millis(50);
const LONGEST_TABLE_PAUSE: Duration = Duration::from_secs(2);
const TABLE_BYTES_A_SECOND: u64 = 4 << 20;
/// A table for which there was no room is tried again after this time.
const RETRY: Duration = Duration::from_secs(2);
/// Frames that get names after one reading.
const MOST_NAMED: usize = 256;
const MOST_NAMED_AT_END: usize = 16 << 10;
/// A place in unknown code is looked up in this many readings.
const MOST_TRIES: u32 = 4;
/// Bytes of the names at one frame: further callers that have it as a part are left out, but for the last one.
const MOST_NAMES: usize = 8 << 10;
/// How often the mappings of an interpreter of Python are read until trampolines are there.
const PYTHON_TRIES: u32 = 5;
/// The name of a frame of the interpreter whose method has none.
const INTERPRETER: &str = "Interpreter";

/// The code of one process at one time.
pub(crate) struct JavaCode {
    pub pid: u32,
    pub exec_id: u32,
    /// `None`: a first reading has found nothing, or the process may not be read.
    pub code: Option<ReadCode>,
}

pub(crate) struct ReadCode {
    pub spans: Vec<CodeSpan>,
    /// Code that is not in the table may be walked by frame pointers.
    pub keeps_fp: bool,
    pub table: Table,
}

/// The threads that read code caches.
pub(crate) struct JavaReaders {
    known: Arc<Mutex<KnownProcesses>>,
    /// By pid.
    readers: HashMap<u32, Reader>,
    results: Receiver<JavaCode>,
    sender: Sender<JavaCode>,
    /// Receives a byte with each result.
    done: PipeReader,
    bell: Arc<PipeWriter>,
    /// Where the variables lie in a library; `None`: it does not export them.
    libraries: HashMap<ModuleId, Option<Variables>>,
    /// Which modules are interpreters of Python.
    interpreters: HashMap<ModuleId, bool>,
    /// Processes that are not read, since the last time they were counted.
    refused: u64,
}

struct Reader {
    exec_id: u32,
    /// Of Python: the mappings that are read. Empty: a virtual machine of Java.
    mappings: Vec<(u64, u64)>,
    owner: Owner,
    is_first: bool,
    /// The table is wanted again, though nothing has changed.
    again: Arc<AtomicBool>,
    state: ReaderState,
}

enum ReaderState {
    /// The thread has read all that there is, and has ended.
    HasRead,
    /// The thread reads at once when it receives something, and ends when the sender is dropped.
    Reads { wake: Sender<()> },
    /// Too many processes are read.
    Waits,
    /// The process may not be read.
    Refused,
}

impl Reader {
    fn is_reading(&self) -> bool {
        matches!(self.state, ReaderState::Reads { .. })
    }
}

impl JavaReaders {
    pub(crate) fn new(known: Arc<Mutex<KnownProcesses>>) -> io::Result<Self> {
        let (sender, results) = channel();
        let (done, bell) = io::pipe()?;
        let (readers, libraries, interpreters) = (HashMap::new(), HashMap::new(), HashMap::new());
        let bell = Arc::new(bell);
        Ok(JavaReaders { known, readers, results, sender, done, bell, libraries, interpreters, refused: 0 })
    }

    /// Starts a thread for a process that has mapped the library, or an interpreter of Python and code that is in no file,
    /// unless it has one. `Err`: to be asked again, since the owner of the library's file has no time left, or a
    /// thread still reads.
    pub(crate) fn follow(&mut self, code: &ChangedCode) -> Result<(), ()> {
        let is_known = |reader: &&Reader| reader.exec_id == code.exec_id;
        let reader = self.readers.get(&code.pid).filter(is_known);
        if reader.is_some_and(|reader| reader.mappings.is_empty()) {
            return Ok(());
        }
        let is_first = reader.is_none();
        if is_first {
            // That of the program before an exec.
            self.forget_process(code.pid);
        }
        // Before Python: an interpreter may have loaded a virtual machine, whose code is in no file, either.
        for range in &code.ranges {
            let Some(module) = range.module else { continue };
            let Some(variables) = self.variables(module)? else { continue };
            self.forget_process(code.pid);
            self.start(code, variables.map(|address| address.wrapping_sub(range.bias)));
            return Ok(());
        }
        let mappings = self.mappings_of_python(code);
        let reader = self.readers.get(&code.pid).filter(is_known);
        if mappings.is_empty() || reader.is_some_and(|reader| reader.mappings == mappings) {
            return Ok(());
        }
        if reader.is_some_and(Reader::is_reading) {
            // What came since is read afterwards.
            return Err(());
        }
        self.forget_process(code.pid);
        self.start_python(code, mappings, is_first);
        Ok(())
    }

    /// The mappings of code that is in no file, where a module is an interpreter of Python.
    fn mappings_of_python(&mut self, code: &ChangedCode) -> Vec<(u64, u64)> {
        let nameless = code.ranges.iter().filter(|range| range.module.is_none());
        let mappings: Vec<_> = nameless.map(|range| (range.start, range.end)).collect();
        let (known, interpreters) = (&self.known, &mut self.interpreters);
        let is_interpreter = |module: ModuleId| {
            *interpreters.entry(module).or_insert_with(|| {
                let known = lock(known);
                known.processes.module(module).is_some_and(|module| trampolines::is_interpreter(&module.path))
            })
        };
        let has_any =
            !mappings.is_empty() && code.ranges.iter().filter_map(|range| range.module).any(is_interpreter);
        if has_any { mappings } else { Vec::new() }
    }

    /// Starts a thread that reads the trampolines in these mappings.
    fn start_python(&mut self, code: &ChangedCode, mappings: Vec<(u64, u64)>, is_first: bool) {
        let state = match self.spawn_python(code, &mappings) {
            Ok(wake) => ReaderState::Reads { wake },
            Err(_) => {
                self.refused += 1;
                ReaderState::Refused
            }
        };
        let is_first = is_first && matches!(state, ReaderState::Reads { .. });
        let (exec_id, owner, again) = (code.exec_id, code.owner, Arc::default());
        self.readers.insert(code.pid, Reader { exec_id, mappings, owner, is_first, again, state });
    }

    /// `Err`: as of [`JavaReaders::memory`].
    fn spawn_python(&self, code: &ChangedCode, mappings: &[(u64, u64)]) -> io::Result<Sender<()>> {
        let memory = self.memory(code)?;
        let (wake, woken) = channel();
        let (results, bell, known) = (self.sender.clone(), Arc::clone(&self.bell), Arc::clone(&self.known));
        let (pid, exec_id, owner, mappings) = (code.pid, code.exec_id, code.owner, mappings.to_owned());
        let run = move || {
            let mut found = None;
            // A mapping is seen before it is filled.
            for _ in 0..PYTHON_TRIES {
                if woken.recv_timeout(PAUSE) == Err(RecvTimeoutError::Disconnected) {
                    // Nobody wants it any more: what the process has now, another thread reads.
                    return;
                }
                if !lock(&known).has_time(owner) {
                    break;
                }
                let before_ns = clock::thread_cpu_ns();
                found = trampolines::read(&memory, &mappings);
                lock(&known).charge(owner, clock::thread_cpu_ns().saturating_sub(before_ns));
                if found.is_some() {
                    break;
                }
            }
            if results.send(JavaCode { pid, exec_id, code: found }).is_ok() {
                // Nobody may read it any more.
                let _ = (&*bell).write(&[0]);
            }
        };
        std::thread::Builder::new().name("wallprof-python".into()).spawn(run)?;
        Ok(wake)
    }

    fn variables(&mut self, module: ModuleId) -> Result<Option<Variables>, ()> {
        if let Some(known) = self.libraries.get(&module) {
            return Ok(*known);
        }
        let is_library = {
            let known = lock(&self.known);
            known.processes.module(module).is_some_and(|module| is_library(&module.path))
        };
        let find = |file: &ModuleFile| {
            let mut variables = Variables::default();
            for (address, name) in variables.iter_mut().zip(VARIABLES) {
                *address = exported_variable(file, name, 8)?;
            }
            Some(variables)
        };
        let found = match is_library {
            true => crate::words::charged(module, &self.known, find)?.flatten(),
            false => None,
        };
        // A library that could not be read may be read later.
        if found.is_some() || !is_library {
            self.libraries.insert(module, found);
        }
        Ok(found)
    }

    fn start(&mut self, code: &ChangedCode, variables: Variables) {
        let again = Arc::new(AtomicBool::new(false));
        let state = match self.spawn(code, variables, &again) {
            Ok(wake) => ReaderState::Reads { wake },
            // It is gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                self.refused += 1;
                let is_full = error.kind() == io::ErrorKind::QuotaExceeded;
                if is_full { ReaderState::Waits } else { ReaderState::Refused }
            }
        };
        let (exec_id, owner) = (code.exec_id, code.owner);
        let is_first = matches!(state, ReaderState::Reads { .. });
        let mappings = Vec::new();
        self.readers.insert(code.pid, Reader { exec_id, mappings, owner, is_first, again, state });
    }

    /// The memory of a process. `Err`: the process may not be read (that takes the rights of a debugger), or too many are.
    fn memory(&self, code: &ChangedCode) -> io::Result<ProcessMemory> {
        let read = self.readers.values().filter(|reader| reader.is_reading());
        let of_user = read.clone().filter(|reader| reader.owner == code.owner);
        let most_of_user = if code.owner == Owner::System { MOST_PROCESSES } else { MOST_OF_USER };
        if read.count() >= MOST_PROCESSES || of_user.count() >= most_of_user {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        Ok(ProcessMemory(File::open(format!("/proc/{}/mem", code.pid))?))
    }

    /// `Err`: as of [`JavaReaders::memory`].
    fn spawn(
        &self,
        code: &ChangedCode,
        variables: Variables,
        again: &Arc<AtomicBool>,
    ) -> io::Result<Sender<()>> {
        let memory = self.memory(code)?;
        let (wake, woken) = channel();
        let thread = ReaderThread {
            pid: code.pid,
            exec_id: code.exec_id,
            owner: code.owner,
            memory,
            unknown: HashMap::new(),
            known: Arc::clone(&self.known),
            again: Arc::clone(again),
            results: self.sender.clone(),
            bell: Arc::clone(&self.bell),
            woken,
        };
        std::thread::Builder::new().name("wallprof-java".into()).spawn(move || thread.run(&variables))?;
        Ok(wake)
    }

    /// Lets all read at once: the recording ends.
    pub(crate) fn wake(&self) {
        for reader in self.readers.values() {
            if let ReaderState::Reads { wake } = &reader.state {
                // It may have ended.
                let _ = wake.send(());
            }
        }
    }

    pub(crate) fn forget_process(&mut self, pid: u32) {
        if !self.readers.remove(&pid).is_some_and(|reader| reader.is_reading()) {
            return;
        }
        // There is room for another one.
        let waits = |_: &u32, reader: &mut Reader| matches!(reader.state, ReaderState::Waits);
        for (pid, _) in self.readers.extract_if(waits) {
            lock(&self.known).look_again(pid);
        }
    }

    pub(crate) fn forget_modules(&mut self, modules: &[ModuleId]) {
        self.libraries.retain(|module, _| !modules.contains(module));
        self.interpreters.retain(|module, _| !modules.contains(module));
    }

    /// Becomes readable with each result.
    pub(crate) fn done(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }

    /// Whether any process has not been read yet.
    pub(crate) fn is_starting(&self) -> bool {
        self.readers.values().any(|reader| reader.is_first)
    }

    /// Whether this process has not been read yet, so that nothing is known of its code.
    pub(crate) fn is_unread(&self, pid: u32, exec_id: u32) -> bool {
        self.readers.get(&pid).is_some_and(|reader| reader.exec_id == exec_id && reader.is_first)
    }

    /// The code that was read since the last call.
    pub(crate) fn take(&mut self) -> Vec<JavaCode> {
        let mut found = Vec::new();
        while let Ok(code) = self.results.try_recv() {
            // Reads the byte of this result, so that the next wait does not return at once.
            let _ = self.done.read(&mut [0]);
            let Some(reader) =
                self.readers.get_mut(&code.pid).filter(|reader| reader.exec_id == code.exec_id)
            else {
                continue;
            };
            reader.is_first = false;
            if !reader.mappings.is_empty() {
                reader.state = ReaderState::HasRead;
            }
            found.push(code);
        }
        found
    }

    /// There was no room for the table of this process.
    pub(crate) fn want_again(&self, pid: u32) {
        if let Some(reader) = self.readers.get(&pid) {
            reader.again.store(true, Ordering::Relaxed);
        }
    }

    /// Processes that are not read, since the last call.
    pub(crate) fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }
}

fn is_library(path: &str) -> bool {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    Path::new(path).file_name().is_some_and(|name| name == LIBRARY)
}

struct ProcessMemory(File);

impl Memory for ProcessMemory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        self.0.read_exact_at(buffer, address).is_ok()
    }
}

struct ReaderThread {
    pid: u32,
    exec_id: u32,
    owner: Owner,
    memory: ProcessMemory,
    /// The places at which nothing was found yet, with the times that was looked for.
    unknown: HashMap<u64, u32>,
    known: Arc<Mutex<KnownProcesses>>,
    again: Arc<AtomicBool>,
    results: Sender<JavaCode>,
    bell: Arc<PipeWriter>,
    woken: Receiver<()>,
}

/// When a reader reads, and what.
struct Plan {
    /// The CPU time of all readings.
    spent: Duration,
    /// The pause after a reading without a change.
    quiet: Duration,
    /// The end and the CPU time of the last whole reading.
    whole: Option<(Instant, Duration)>,
    /// Something has changed since.
    has_changed: bool,
    /// Frames were met in code that is not known.
    has_unknown: bool,
    /// There are changes that were not handed over, or nothing was yet.
    is_due: bool,
    /// Not handed over before this time.
    due_from: Instant,
}

impl Plan {
    fn new(now: Instant) -> Self {
        Plan {
            spent: Duration::ZERO,
            quiet: PAUSE,
            whole: None,
            has_changed: false,
            has_unknown: false,
            is_due: true,
            due_from: now,
        }
    }

    /// Whether known blocks are looked at, too.
    fn is_whole(&self, now: Instant) -> bool {
        let share = if self.has_changed { self.share() } else { QUIET_SHARE };
        let pause = |cpu: Duration| WHOLE_PAUSE.max(cpu.saturating_mul(share));
        self.has_unknown || self.whole.is_none_or(|(end, cpu)| now.duration_since(end) >= pause(cpu))
    }

    fn was_read(&mut self, now: Instant, is_whole: bool, cpu: Duration, has_changed: bool) {
        if is_whole {
            (self.whole, self.has_changed) = (Some((now, cpu)), false);
        }
        self.has_changed |= has_changed;
        self.is_due |= has_changed;
        self.quiet = if has_changed { PAUSE } else { (self.quiet * 5 / 4).min(LONGEST_PAUSE) };
    }

    /// Whether the table is handed over now, of this many bytes.
    fn hands_over(&mut self, now: Instant, bytes: u64) -> bool {
        if !self.is_due || now < self.due_from {
            return false;
        }
        self.is_due = false;
        let pause = Duration::from_millis(bytes.saturating_mul(1_000) / TABLE_BYTES_A_SECOND);
        let pause = pause.clamp(TABLE_EVERY, LONGEST_TABLE_PAUSE);
        self.due_from = now + pause;
        true
    }

    /// There was no room for what was handed over.
    fn again(&mut self, now: Instant) {
        (self.is_due, self.due_from) = (true, now + RETRY);
    }

    /// How many times as long as a reading the pause after it is.
    fn share(&self) -> u32 {
        if self.spent < FIRST_CPU { FIRST_PAUSE_SHARE } else { PAUSE_SHARE }
    }

    /// The pause after a reading that took this much CPU time, with what came of it.
    fn pause(&mut self, cpu: Duration) -> Duration {
        self.spent = self.spent.saturating_add(cpu);
        self.quiet.max(cpu.saturating_mul(self.share()))
    }
}

impl ReaderThread {
    fn run(mut self, variables: &Variables) {
        let (mut cache, mut plan) = (None, Plan::new(Instant::now()));
        // A child that starts another program has the library for a moment, too.
        let mut pause = PAUSE;
        let mut is_hurried = false;
        loop {
            match self.woken.recv_timeout(pause) {
                Ok(()) => is_hurried = true,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if !lock(&self.known).has_time(self.owner) {
                continue;
            }
            let before_ns = clock::thread_cpu_ns();
            let spent = || Duration::from_nanos(clock::thread_cpu_ns().saturating_sub(before_ns));
            let is_whole = plan.is_whole(Instant::now());
            let has_changed = self.read(&mut cache, variables, is_whole);
            plan.was_read(Instant::now(), is_whole, spent(), has_changed);
            if self.again.swap(false, Ordering::Relaxed) {
                plan.again(Instant::now());
            }
            let mut is_wanted = true;
            if plan.hands_over(Instant::now(), cache.as_ref().map_or(0, CodeCache::table_bytes)) {
                is_wanted = self.send(cache.as_ref());
            }
            if let Some(cache) = &mut cache {
                plan.has_unknown = self.name(cache, if is_hurried { MOST_NAMED_AT_END } else { MOST_NAMED });
            }
            let cpu = spent();
            lock(&self.known).charge(self.owner, cpu.as_nanos() as u64);
            if !is_wanted {
                break;
            }
            pause = if is_hurried { PAUSE } else { plan.pause(cpu) };
        }
        lock(&self.known).processes.unread_jit(self.process());
    }

    /// Names frames that have no name. Returns whether some are in code that is not known.
    fn name(&mut self, cache: &mut CodeCache, most: usize) -> bool {
        let process = self.process();
        let wanted = lock(&self.known).processes.ask_jit(process, most);
        let mut named = Vec::with_capacity(wanted.len());
        let mut unknown = HashMap::new();
        for (address, first_seen) in wanted {
            let functions = self.functions(cache, address, first_seen);
            let tries = self.unknown.get(&address).copied().unwrap_or(0) + 1;
            let is_unknown = functions.as_ref().is_some_and(Vec::is_empty);
            // It may have been made since the last reading.
            if is_unknown && tries < MOST_TRIES && cache.may_have_code(address) {
                unknown.insert(address, tries);
            } else {
                named.push((address, functions.unwrap_or_default()));
            }
        }
        self.unknown = unknown;
        if !named.is_empty() {
            lock(&self.known).processes.answer_jit(process, &named);
        }
        !self.unknown.is_empty()
    }

    /// `None`: the code that was there is gone.
    fn functions(&self, cache: &mut CodeCache, address: u64, first_seen: MonoNs) -> Option<Vec<SymbolLine>> {
        let functions = match address & INTERPRETED_METHOD {
            0 => cache.functions_at(&self.memory, address, first_seen.0)?,
            _ => {
                let name = || Function { name: INTERPRETER.into(), offset: None, source: None };
                vec![cache.interpreted(&self.memory, address & !INTERPRETED_METHOD).unwrap_or_else(name)]
            }
        };
        let last = functions.len().saturating_sub(1);
        let mut bytes = 0;
        let line = |(index, Function { name, offset, source })| {
            let (file, line) = source.unzip();
            bytes += name.len() + file.as_ref().map_or(0, String::len);
            let line =
                SymbolLine { symbol: Some(name), offset, file, line: line.flatten(), inlined: index < last };
            (index == last || bytes <= MOST_NAMES).then_some(line)
        };
        Some(functions.into_iter().enumerate().filter_map(line).collect())
    }

    fn process(&self) -> ProcessKey {
        ProcessKey { pid: self.pid, generation: self.exec_id }
    }

    /// Returns whether anybody still wants results.
    fn send(&self, cache: Option<&CodeCache>) -> bool {
        let code = cache.filter(|cache| cache.has_code()).and_then(|cache| {
            let (spans, keeps_fp) = (cache.spans(), cache.keeps_fp());
            Some(ReadCode { spans, keeps_fp, table: cache.table()? })
        });
        let is_sent = self.results.send(JavaCode { pid: self.pid, exec_id: self.exec_id, code }).is_ok();
        is_sent && (&*self.bell).write(&[0]).is_ok()
    }

    /// Whether anything has changed.
    fn read(&self, cache: &mut Option<CodeCache>, variables: &Variables, whole: bool) -> bool {
        let update = |cache: &mut Option<CodeCache>, whole| {
            if cache.is_none() {
                *cache = CodeCache::new(&self.memory, variables);
            }
            let now = clock::mono_now().0;
            cache.as_mut().and_then(|cache| cache.update(&self.memory, whole, now)).unwrap_or(false)
        };
        let had_code = cache.as_ref().is_some_and(CodeCache::has_code);
        let has_changed = update(cache, whole);
        if !had_code && cache.as_ref().is_some_and(CodeCache::has_code) {
            // What was read before the virtual machine started may not have been whole.
            *cache = None;
            return update(cache, true) || has_changed;
        }
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_blocks_are_read_rarely_while_nothing_changes() {
        let start = Instant::now();
        let mut plan = Plan::new(start);
        assert!(plan.is_whole(start));
        let cpu = Duration::from_millis(10);
        plan.was_read(start, true, cpu, true);
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!([299, 300].map(|ms| plan.is_whole(at(ms))), [false, true]);
        plan.was_read(at(300), true, cpu, false);
        assert_eq!([1_299, 1_300].map(|ms| plan.is_whole(at(ms))), [false, true]);
        plan.was_read(at(1_000), false, cpu, true);
        assert!(plan.is_whole(at(1_000)), "code is made again");
    }

    #[test]
    fn first_second_of_cpu_time_has_short_pauses() {
        let mut plan = Plan::new(Instant::now());
        assert_eq!(plan.pause(Duration::from_millis(1)), PAUSE);
        assert_eq!(plan.pause(Duration::from_millis(900)), Duration::from_millis(1_800));
        assert_eq!(plan.pause(Duration::from_millis(100)), Duration::from_millis(2_000));
    }

    #[test]
    fn large_tables_are_handed_over_rarely_and_small_ones_soon() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        for (bytes, pause) in [(100, 50), (1 << 20, 250), (1 << 30, 2_000)] {
            let mut plan = Plan::new(start);
            assert!(plan.hands_over(start, bytes), "at first in any case");
            assert!(!plan.hands_over(at(10_000), bytes), "nothing has changed");
            plan.was_read(start, false, Duration::ZERO, true);
            plan.due_from = start;
            assert!(plan.hands_over(start, bytes));
            plan.was_read(start, false, Duration::ZERO, true);
            assert!(!plan.hands_over(at(pause - 1), bytes) && plan.hands_over(at(pause), bytes));
            plan.again(at(3_000));
            assert!(!plan.hands_over(at(4_999), bytes) && plan.hands_over(at(5_000), bytes));
        }
    }
}
