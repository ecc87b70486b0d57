//! Names of code that is in no file: what compilers that run inside a process write down about it.
//!
//! Two forms exist. A **perf map**, `/tmp/perf-PID.map`, is text with one function a line, found by the process's
//! own pid in the process's own `/tmp`. A **jitdump**, `jit-PID.dump`, is binary with times; the process maps it
//! executable, which is how its path becomes known. Both grow while the process runs and may be gone with it:
//! what leads to them is held open from the first frame on, and they are read each time frames wait for names.
//!
//! A frame that has found its name keeps it: the function that is at its address now is nearer to it in time than
//! what a compiler puts there later.

mod dump;
mod home;
mod perf_map;
mod wanted;

use std::collections::HashMap;
use std::fs::File;

use wallprof_model::{FrameId, MonoNs, SymbolLine};

use crate::live_file::{FileKey, MappedFile, open_regular};
use crate::process::ProcessKey;
use home::Home;
use wanted::Wanted;

/// Each keeps up to two descriptors open, of the 1,024 that most processes may have.
const MAX_PROCESSES: usize = 128;
/// A process that writes more dumps than this does it on purpose.
const MAX_DUMPS: usize = 4;

/// Whether all of a source was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Whole,
    /// It is larger than is read of one.
    Cut,
}

/// Frames that wait for their names, by process, and the sources of those names.
#[derive(Default)]
pub(crate) struct JitCode {
    processes: HashMap<ProcessKey, JitProcess>,
    /// Names of processes that are gone, not told yet.
    last_words: Vec<(FrameId, SymbolLine)>,
    lost: u64,
}

#[derive(Default)]
struct JitProcess {
    waiting: Vec<Waiting>,
    home: Option<Home>,
    map: Option<Source>,
    dumps: Vec<Source>,
    /// What was read last and gave nothing to the frames that still wait.
    exhausted: bool,
    counted_as_cut: bool,
}

/// A frame without a name.
#[derive(Clone, Copy)]
struct Waiting {
    id: FrameId,
    address: u64,
    met: MonoNs,
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
        let opened = mapped.places().into_iter().find_map(|(place, path)| {
            let file = open_regular(&path).ok()?;
            mapped.may_be(place, &file.metadata().ok()?).then_some(file)
        });
        if let Some(file) = opened {
            known.add_dump(file);
        }
    }

    /// Remembers a frame, met at `met`, until its name can be read.
    pub(crate) fn push(&mut self, process: ProcessKey, id: FrameId, address: u64, met: MonoNs) {
        let Some(known) = self.process(process) else { return };
        if known.home.is_none() {
            known.home = Home::of(process.pid);
        }
        if known.home.is_none() && known.dumps.is_empty() {
            // Gone before it could be looked at.
            self.processes.remove(&process);
            return;
        }
        known.waiting.push(Waiting { id, address, met });
        known.exhausted = false;
    }

    /// The names that are there by now.
    pub(crate) fn names(&mut self) -> Vec<(FrameId, SymbolLine)> {
        let JitCode { processes, last_words, lost } = self;
        let mut names = std::mem::take(last_words);
        names.extend(processes.values_mut().flat_map(|process| process.names(lost)));
        names
    }

    /// The process runs another program now. Whatever frames of the one before have no name get none: its map may
    /// have been written over.
    pub(crate) fn forget(&mut self, process: ProcessKey) {
        self.processes.remove(&process);
    }

    /// The process is gone, with all its images: a last look, then nothing of it is held.
    pub(crate) fn retire(&mut self, pid: u32) {
        let JitCode { processes, last_words, lost } = self;
        let gone = processes.extract_if(|key, _| key.pid == pid);
        last_words.extend(gone.flat_map(|(_, mut process)| process.names(lost)));
    }

    /// Maps and dumps that were too large to be read whole, and processes too many to follow.
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

    /// Names of waiting frames; the others wait on.
    fn names(&mut self, lost: &mut u64) -> Vec<(FrameId, SymbolLine)> {
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
        self.waiting.retain(|frame| match wanted.take(frame.address, frame.met) {
            Some(line) => {
                named.push((frame.id, line));
                false
            }
            None => true,
        });
        named
    }

    /// What the sources say about the waiting frames, and whether some of it was out of reach.
    fn read(&self) -> (Wanted, bool) {
        let mut wanted = Wanted::new(self.waiting.iter().map(|frame| (frame.address, frame.met)));
        let mut readings = Vec::new();
        // A dump knows times, so that its names come last and win.
        if let Some(map) = &self.map {
            readings.push(perf_map::read(&map.file, &mut wanted));
        }
        for dump in &self.dumps {
            readings.push(dump::read(&dump.file, &mut wanted));
        }
        // A file that cannot be read any further has said what it could.
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
