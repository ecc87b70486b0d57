// SPDX-License-Identifier: Apache-2.0
//! Names of code that is in no file, from what JIT compilers write about it.
//!
//! Two forms exist. A **perf map**, `/tmp/perf-PID.map`, is text with one function a line, found by the
//! process's own pid in the process's own `/tmp`. A **jitdump**, `jit-PID.dump`, is binary with times; the
//! process maps it executable, which is how its path becomes known. Both grow while the process runs and may
//! be gone with it. So their folder or file stays open from the first frame on, and they are read each time
//! that frames have no names.
//!
//! A frame that has a name keeps it, because the compiler may write another function to its address later.

mod dump;
mod home;
mod perf_map;
mod wanted;

use std::collections::{HashMap, HashSet};
use std::fs::File;

use wallprof_model::{FrameId, MonoNs, SymbolLine};

use crate::live_file::{FileKey, MappedFile};
use crate::process::ProcessKey;
use home::Home;
use wanted::Wanted;

/// Each keeps up to two descriptors open; most processes may have 1,024.
const MAX_PROCESSES: usize = 128;
/// A process that writes more dumps than this does it on purpose.
const MAX_DUMPS: usize = 4;

/// Whether all of a source was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Whole,
    /// It is larger than the limit.
    Cut,
}

/// Frames without a name, by process, and the sources of names.
#[derive(Default)]
pub(crate) struct JitCode {
    processes: HashMap<ProcessKey, JitProcess>,
    /// Processes whose code somebody reads, and names.
    read: HashSet<ProcessKey>,
    /// Names that were found, or of processes that are gone, not returned yet.
    ready: Vec<(FrameId, Vec<SymbolLine>)>,
    lost: u64,
}

#[derive(Default)]
struct JitProcess {
    waiting: Vec<PendingFrame>,
    home: Option<Home>,
    map: Option<Source>,
    dumps: Vec<Source>,
    /// The state of the sources when they were last read and had no name for the remaining frames.
    exhausted: bool,
    counted_as_cut: bool,
}

/// A frame without a name.
#[derive(Clone, Copy)]
struct PendingFrame {
    id: FrameId,
    address: u64,
    first_seen: MonoNs,
    /// Who reads the process's code was asked for its name.
    is_asked: bool,
}

/// A file of names, and its state when it was last read.
struct Source {
    file: File,
    seen: Option<FileKey>,
}

impl JitCode {
    /// The process has mapped this file executable: a jitdump says so by its name.
    pub(crate) fn mapped(&mut self, process: ProcessKey, mapped: &MappedFile<'_>) {
        if !dump::is_dump_path(mapped.path) {
            return;
        }
        let Some(known) = self.process(process) else { return };
        let opened = MappedFile::PLACES.into_iter().find_map(|place| mapped.find(place)?.open().ok());
        if let Some(file) = opened {
            known.add_dump(file);
        }
    }

    /// Adds a frame, first seen at `first_seen`, whose name is to be read.
    pub(crate) fn push(&mut self, process: ProcessKey, id: FrameId, address: u64, first_seen: MonoNs) {
        let Some(known) = self.process(process) else { return };
        if known.home.is_none() {
            known.home = Home::of(process.pid);
        }
        if known.home.is_none() && known.dumps.is_empty() {
            // Gone before it could be read.
            self.processes.remove(&process);
            return;
        }
        known.waiting.push(PendingFrame { id, address, first_seen, is_asked: false });
        known.exhausted = false;
    }

    /// The addresses of some frames without a name for which it was not asked yet, each once, and when they were first
    /// seen.
    pub(crate) fn ask(&mut self, process: ProcessKey, most: usize) -> Vec<(u64, MonoNs)> {
        self.read.insert(process);
        let Some(known) = self.processes.get(&process) else { return Vec::new() };
        let waiting = known.waiting.iter().filter(|frame| !frame.is_asked);
        let mut addresses: Vec<_> =
            waiting.take(most).map(|frame| (frame.address, frame.first_seen)).collect();
        addresses.sort_unstable();
        addresses.dedup_by_key(|(address, _)| *address);
        addresses
    }

    /// What was found for the addresses, ascending, that were asked: the functions at each, innermost first; empty: none.
    pub(crate) fn answer(&mut self, process: ProcessKey, answers: &[(u64, Vec<SymbolLine>)]) {
        let JitCode { processes, ready, .. } = self;
        let Some(known) = processes.get_mut(&process) else { return };
        known.waiting.retain_mut(|frame| {
            let Ok(at) = answers.binary_search_by_key(&frame.address, |(address, _)| *address) else {
                return true;
            };
            frame.is_asked = true;
            let lines = &answers[at].1;
            if !lines.is_empty() {
                ready.push((frame.id, lines.clone()));
            }
            lines.is_empty()
        });
    }

    /// Nobody reads the code of the process any more.
    pub(crate) fn unread(&mut self, process: ProcessKey) {
        self.read.remove(&process);
    }

    /// Whether somebody who reads the code of a process has not answered yet.
    pub(crate) fn awaits_answers(&self) -> bool {
        let has_unasked = |process| {
            self.processes.get(process).is_some_and(|known| known.waiting.iter().any(|frame| !frame.is_asked))
        };
        self.read.iter().any(has_unasked)
    }

    /// The names that are known by now.
    pub(crate) fn names(&mut self) -> Vec<(FrameId, Vec<SymbolLine>)> {
        let JitCode { processes, ready, lost, .. } = self;
        let mut names = std::mem::take(ready);
        names.extend(processes.values_mut().flat_map(|process| process.names(lost)));
        names
    }

    /// The process runs another program now. Frames of the earlier one that have no name get none, because
    /// its map may have been overwritten.
    pub(crate) fn forget(&mut self, process: ProcessKey) {
        self.processes.remove(&process);
        self.read.remove(&process);
    }

    /// The process is gone, with all its images. Its sources are read a last time and closed.
    pub(crate) fn retire(&mut self, pid: u32) {
        let JitCode { processes, ready, lost, read } = self;
        read.retain(|process| process.pid != pid);
        let gone = processes.extract_if(|key, _| key.pid == pid);
        ready.extend(gone.flat_map(|(_, mut process)| process.names(lost)));
    }

    /// How many maps and dumps were too large to be read whole, and how many processes were over the limit.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    fn process(&mut self, process: ProcessKey) -> Option<&mut JitProcess> {
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&process) {
            self.lost += 1;
            return None;
        }
        Some(self.processes.entry(process).or_default())
    }
}

impl JitProcess {
    fn add_dump(&mut self, file: File) {
        let is_known = |file: &File, known: &Source| {
            let (Ok(new), Ok(old)) = (file.metadata(), known.file.metadata()) else { return false };
            FileKey::of(&new).is_same_file(&FileKey::of(&old))
        };
        if self.dumps.len() < MAX_DUMPS && !self.dumps.iter().any(|known| is_known(&file, known)) {
            self.dumps.push(Source { file, seen: None });
        }
    }

    /// The names of pending frames. Frames without a name stay pending.
    fn names(&mut self, lost: &mut u64) -> Vec<(FrameId, Vec<SymbolLine>)> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        if self.map.is_none() {
            let file = self.home.as_ref().and_then(Home::open_map);
            self.map = file.map(|file| Source { file, seen: None });
        }
        let sources = self.dumps.iter_mut().chain(&mut self.map);
        let has_grown = sources.map(Source::has_changed).fold(false, |any, changed| any | changed);
        if self.exhausted && !has_grown {
            return Vec::new();
        }
        self.exhausted = true;
        let (mut wanted, cut) = self.read();
        if cut && !std::mem::replace(&mut self.counted_as_cut, true) {
            *lost += 1;
        }
        let mut named = Vec::new();
        self.waiting.retain(|frame| match wanted.take(frame.address, frame.first_seen) {
            Some(line) => {
                named.push((frame.id, vec![line]));
                false
            }
            None => true,
        });
        named
    }

    /// The names that the sources have for pending frames, and whether a source could not be read whole.
    fn read(&self) -> (Wanted, bool) {
        let mut wanted = Wanted::new(self.waiting.iter().map(|frame| (frame.address, frame.first_seen)));
        let mut readings = Vec::new();
        // A map may be old. A dump has times, so that its names come last and win.
        if let Some(map) = &self.map {
            readings.push(perf_map::read(&map.file, &mut wanted));
        }
        for dump in &self.dumps {
            readings.push(dump::read(&dump.file, &mut wanted));
        }
        // Of a file that cannot be read any further the names so far count.
        (wanted, readings.into_iter().flatten().any(|reading| reading == Reading::Cut))
    }
}

impl Source {
    fn has_changed(&mut self) -> bool {
        let now = self.file.metadata().ok().map(|metadata| FileKey::of(&metadata));
        let changed = now != self.seen;
        self.seen = now;
        changed
    }
}
