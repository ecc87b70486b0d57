// SPDX-License-Identifier: Apache-2.0
//! An import's events one by one, before a recording adds samples up.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::Path;

use object::read::elf::{FileHeader, ProgramHeader};
use wallprof_import::{ImportOptions, Outcome, RecordingFacts, Sink, import};
use wallprof_model::event::{SampleDelta, Weighted};
use wallprof_model::{Event, Frame, FrameId, Module, ModuleId, MonoNs, StackEnd, StackId, State, ThreadKey};

/// All events of an import.
#[derive(Default)]
pub struct Collected {
    pub facts: RecordingFacts,
    pub outcome: Outcome,
    pub threads: HashMap<ThreadKey, u32>,
    pub modules: HashMap<ModuleId, Module>,
    pub frames: HashMap<FrameId, Frame>,
    pub stacks: HashMap<StackId, (Vec<FrameId>, StackEnd)>,
    pub samples: Vec<SampleDelta>,
}

impl Sink for Collected {
    type Error = Infallible;

    fn start(&mut self, facts: &RecordingFacts) -> Result<(), Infallible> {
        self.facts = facts.clone();
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<(), Infallible> {
        match event {
            Event::Thread(info) => drop(self.threads.insert(info.key, info.tid)),
            Event::Module { id, module } => drop(self.modules.insert(id, module)),
            Event::Frame { id, frame } => drop(self.frames.insert(id, frame)),
            Event::Stack { id, frames, end } => drop(self.stacks.insert(id, (frames, end))),
            Event::Sample(sample) => self.samples.push(sample),
            _ => {}
        }
        Ok(())
    }

    fn settled(&mut self, _: MonoNs) -> Result<(), Infallible> {
        Ok(())
    }

    fn progress(&mut self, _: u64, _: Option<u64>) {}
}

impl Collected {
    pub fn of(path: &Path) -> Self {
        let mut collected = Collected::default();
        collected.outcome = import(path, &ImportOptions::default(), &mut collected).expect("imports");
        collected
    }

    /// Samples of the clock, in order.
    pub fn clock_samples(&self) -> impl Iterator<Item = &SampleDelta> {
        let is_clock = |what| matches!(what, Weighted::State(State::User | State::Kernel));
        self.samples.iter().filter(move |sample| is_clock(sample.what))
    }

    /// The user stack of a sample and its end, in perf's terms: offsets in files.
    pub fn user_stack(&self, sample: &SampleDelta, files: &mut Files) -> (Vec<(u64, String)>, StackEnd) {
        let Some(id) = sample.user else { return (Vec::new(), StackEnd::Complete) };
        let (frames, end) = &self.stacks[&id];
        let place = |id: &FrameId| {
            let frame = self.frames[id];
            match frame.module.map(|id| &self.modules[&id]) {
                Some(module) => (files.offset(&module.path, frame.address), module.path.clone()),
                None => (frame.address, String::new()),
            }
        };
        (frames.iter().map(place).collect(), *end)
    }
}

/// The segments of files, which convert virtual addresses to offsets.
#[derive(Default)]
pub struct Files {
    segments: HashMap<String, Vec<(u64, u64, u64)>>,
}

impl Files {
    fn offset(&mut self, path: &str, address: u64) -> u64 {
        let segments = self.segments.entry(path.to_owned()).or_insert_with(|| segments(path));
        let inside = segments.iter().find(|(from, len, _)| (*from..from + len).contains(&address));
        inside.map_or(address, |(from, _, offset)| address - from + offset)
    }
}

/// Address, length and offset of each segment.
fn segments(path: &str) -> Vec<(u64, u64, u64)> {
    let Ok(bytes) = std::fs::read(path) else { return Vec::new() };
    let header = object::elf::FileHeader64::<object::Endianness>::parse(&*bytes).expect("an ELF file");
    let endian = header.endian().expect("an order");
    let headers = header.program_headers(endian, &*bytes).expect("program headers");
    let loaded = headers.iter().filter(|header| header.p_type(endian) == object::elf::PT_LOAD);
    loaded.map(|header| (header.p_vaddr(endian), header.p_filesz(endian), header.p_offset(endian))).collect()
}
