// SPDX-License-Identifier: Apache-2.0
//! Reads texts on all CPUs. One thread divides and merges, the others parse. Reading ahead is bounded.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::num::NonZero;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use super::input::Blocks;
use super::merge::{Merger, Thread};
use super::names::{LocalNames, Named, Names};
use super::piece::{Counts, Parsed, parse_block};

const BLOCK: usize = 2 << 20;
/// Blocks that each parsing thread may be ahead.
const AHEAD: usize = 2;

/// A text to read.
pub(crate) type Text<'a> = Box<dyn Read + Send + 'a>;

/// The content of all texts.
#[derive(Debug)]
pub(super) struct Script {
    pub threads: Vec<Thread>,
    pub functions: Vec<Named>,
    pub counts: Counts,
    pub cpus: u32,
    /// Functions and threads beyond the limits.
    pub refused: u64,
    /// Latencies beyond the limit.
    pub coarse_latencies: u64,
}

impl Script {
    /// The number of calls whose path was beyond the limit.
    pub fn folded(&self) -> u64 {
        self.threads.iter().map(|thread| thread.calls.tree.folded()).sum()
    }
}

/// A block to be parsed.
struct Block {
    number: u64,
    file: usize,
    bytes: Vec<u8>,
}

struct Done {
    number: u64,
    file: usize,
    parsed: Parsed,
    /// The block's memory.
    bytes: Vec<u8>,
}

/// Reads `texts` of one recording. Each may have one CPU, or a part of the time. `progress` gets the number
/// of bytes read. An error has the index of its text.
pub(super) fn read(
    texts: Vec<Text<'_>>,
    progress: &mut dyn FnMut(u64),
) -> Result<Script, (usize, io::Error)> {
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    let names = Names::default();
    let cut = texts.len() > 1;
    let (give, blocks) = channel();
    let blocks = Mutex::new(blocks);
    let (results, done) = channel();
    let merged = std::thread::scope(|scope| {
        for _ in 0..workers {
            let (blocks, names, results) = (&blocks, &names, results.clone());
            scope.spawn(move || parse_all(blocks, names, cut, &results));
        }
        drop(results);
        Reading::new(texts, &names).run(give, &done, workers * AHEAD, progress)
    });
    let merger = merged?;
    let (counts, cpus, refused) = (merger.counts.clone(), merger.cpus(), merger.refused);
    let limit = merger.limit();
    let threads = merger.finish();
    let (functions, refused_functions) = names.into_all();
    let refused = refused + refused_functions;
    Ok(Script { threads, functions, counts, cpus, refused, coarse_latencies: limit.refused_latencies() })
}

fn parse_all(blocks: &Mutex<Receiver<Block>>, names: &Names, cut: bool, results: &Sender<Done>) {
    let mut names = LocalNames::new(names);
    loop {
        let block = blocks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Block { number, file, bytes }) = block else { return };
        let parsed = parse_block(&bytes, &mut names, cut);
        if results.send(Done { number, file, parsed, bytes }).is_err() {
            return;
        }
    }
}

/// The side that divides and merges.
struct Reading<'a> {
    files: Vec<File<'a>>,
    merger: Merger<'a>,
    /// Blocks that were sent to parsing threads.
    given: u64,
    /// Blocks that were merged.
    merged: u64,
    early: BTreeMap<u64, Done>,
    /// Memory of parsed blocks: reading into fresh memory costs page faults.
    used: Vec<Vec<u8>>,
}

struct File<'a> {
    blocks: Blocks<Text<'a>>,
    /// The time of the last merged line. Later lines of the file are expected to be later.
    until: u64,
    /// Blocks of the file that are not merged yet.
    given: usize,
    ended: bool,
}

impl<'a> Reading<'a> {
    fn new(texts: Vec<Text<'a>>, names: &'a Names) -> Self {
        let file = |text| File { blocks: Blocks::new(text, BLOCK), until: 0, given: 0, ended: false };
        Reading {
            files: texts.into_iter().map(file).collect(),
            merger: Merger::new(names),
            given: 0,
            merged: 0,
            early: BTreeMap::new(),
            used: Vec::new(),
        }
    }

    fn run(
        mut self,
        give: Sender<Block>,
        done: &Receiver<Done>,
        most: usize,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Merger<'a>, (usize, io::Error)> {
        loop {
            while self.given - self.merged < most as u64
                && let Some(block) = self.next_block()?
            {
                progress(self.files.iter().map(|file| file.blocks.position).sum());
                // Parsing threads run until the sender is dropped.
                let _ = give.send(block);
            }
            if self.given == self.merged {
                return Ok(self.merger);
            }
            let Ok(result) = done.recv() else { return Ok(self.merger) };
            self.early.insert(result.number, result);
            while let Some(result) = self.early.remove(&self.merged) {
                self.merge(result);
            }
        }
    }

    /// The next block of the file that is furthest behind, so that few items wait for the other files.
    fn next_block(&mut self) -> Result<Option<Block>, (usize, io::Error)> {
        loop {
            let open = self.files.iter_mut().enumerate().filter(|(_, file)| !file.ended);
            let Some((index, file)) = open.min_by_key(|(_, file)| (file.until, file.given)) else {
                return Ok(None);
            };
            let used = self.used.pop().unwrap_or_default();
            match file.blocks.next(used).map_err(|error| (index, error))? {
                Some(bytes) => {
                    file.given += 1;
                    self.given += 1;
                    return Ok(Some(Block { number: self.given - 1, file: index, bytes }));
                }
                None => file.ended = true,
            }
        }
    }

    fn merge(&mut self, result: Done) {
        self.merged += 1;
        self.used.push(result.bytes);
        let file = &mut self.files[result.file];
        file.given -= 1;
        file.until = file.until.max(result.parsed.until.unwrap_or(0));
        self.merger.add(result.parsed, self.frontier());
    }

    /// All items before this time have come.
    fn frontier(&self) -> u64 {
        let open = self.files.iter().filter(|file| !file.ended || file.given > 0);
        match &self.files[..] {
            // The lines of one file are in order.
            [_] => u64::MAX,
            _ => open.map(|file| file.until).min().unwrap_or(u64::MAX),
        }
    }
}
