// SPDX-License-Identifier: Apache-2.0
//! Runs of code: each goes from one address to the next place at which a packet is needed, and follows direct
//! calls and jumps on the way. A run is decoded once and then looked up. The run after a branch or a return
//! is cached as a link.
//!
//! The cache holds knowledge of the code, none of the trace. One cache serves one decoding thread.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::code::{Code, FunctionId};
use crate::instruction::{Far, Flow, Instruction, Reading, decode};
use crate::packet::CodeSize;

/// A run in its cache. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunId(u32);

impl RunId {
    /// No run.
    pub const NONE: RunId = RunId(0);
    /// Stands for all code beyond the cache's limit. It never has code.
    const OVER_LIMIT: RunId = RunId(1);
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Branch,
    IndirectJump,
    IndirectCall,
    Return,
    Far(Far),
    /// The run reached its limit. The next one continues it.
    Continue,
    /// No code is known there.
    Missing,
}

/// The part of a run that the inner loop reads. It is small, so that the processor's cache holds many.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The runs after it: not taken, taken. `NONE` until the first request.
    next: [RunId; 2],
    first_step: u32,
    pub step_count: u8,
    pub blocks: u8,
    pub exit: Exit,
    /// Its branch, if taken, goes to another function.
    pub leaves: bool,
}

/// The rest of a run: addresses.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    pub start: u64,
    pub reading: Reading,
    /// The function around `start`, and whether that is its entry.
    pub function: FunctionId,
    pub at_entry: bool,
    /// The instruction that ends the run, and the next one in memory.
    pub source: u64,
    pub after: u64,
    target: u64,
    /// The function around `source`.
    pub source_function: FunctionId,
    pub call: CallSite,
    /// The last target of an indirect exit.
    last_target: (u64, RunId),
}

/// A direct call, or a jump to another function, inside a run.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub from: u64,
    pub to: u64,
    pub function: FunctionId,
    pub at_entry: bool,
    pub kind: StepKind,
}

#[derive(Clone, Copy, Debug)]
pub enum StepKind {
    Call { return_to: u64, call: CallSite },
    Jump,
}

/// A call instruction. The run after it is cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSite(u32);

const MAX_STEPS: u8 = 64;
const MAX_BLOCKS: u8 = 128;
const MAX_INSTRUCTIONS: usize = 4096;
/// A gigabyte of runs would be about 8 million. Real programs execute well under one million.
const MAX_RUNS: usize = 4 << 20;

/// Runs by their start.
#[derive(Debug)]
pub struct RunCache {
    runs: Vec<Run>,
    sites: Vec<Site>,
    steps: Vec<Step>,
    returns: Vec<RunId>,
    by_start: HashMap<Start, RunId, BuildHasherDefault<StartHasher>>,
    max_runs: usize,
}

impl Default for RunCache {
    fn default() -> RunCache {
        RunCache::new()
    }
}

impl RunCache {
    /// An empty cache.
    pub fn new() -> RunCache {
        RunCache::with_limit(MAX_RUNS)
    }

    fn with_limit(max_runs: usize) -> RunCache {
        let mut cache = RunCache {
            runs: Vec::new(),
            sites: Vec::new(),
            steps: Vec::new(),
            returns: Vec::new(),
            by_start: HashMap::default(),
            max_runs,
        };
        cache.clear();
        cache
    }

    /// Drops all runs. Earlier ids become invalid.
    pub fn clear(&mut self) {
        let reading = Reading { space: Default::default(), size: CodeSize::Bits64 };
        self.by_start.clear();
        self.steps.clear();
        self.runs.clear();
        self.sites.clear();
        self.returns.clear();
        self.returns.push(RunId::NONE);
        for _ in [RunId::NONE, RunId::OVER_LIMIT] {
            self.runs.push(Run::ending(Exit::Missing));
            self.sites.push(Site::starting(0, reading));
        }
    }

    /// Whether the limit is reached. New code needs a `clear` first.
    pub fn is_full(&self) -> bool {
        self.runs.len() >= self.max_runs
    }

    #[inline(always)]
    pub(crate) fn run(&self, id: RunId) -> &Run {
        &self.runs[id.0 as usize]
    }

    #[inline(always)]
    pub(crate) fn site(&self, id: RunId) -> &Site {
        &self.sites[id.0 as usize]
    }

    #[inline(always)]
    pub(crate) fn steps(&self, run: &Run) -> &[Step] {
        let first = run.first_step as usize;
        &self.steps[first..first + usize::from(run.step_count)]
    }

    /// Whether there is code at the start of the run.
    pub fn has_code(&self, id: RunId) -> bool {
        let run = self.run(id);
        run.exit != Exit::Missing || self.site(id).source != self.site(id).start
    }

    /// The run that starts at `address`.
    pub fn at(&mut self, code: &impl Code, reading: Reading, address: u64) -> RunId {
        let reading = Reading { space: reading.space.of_address(address), ..reading };
        let start = Start::new(reading, address);
        if let Some(&id) = self.by_start.get(&start) {
            return id;
        }
        if self.is_full() {
            return RunId::OVER_LIMIT;
        }
        let id = self.build(code, reading, address);
        self.by_start.insert(start, id);
        id
    }

    /// The run after the exit of `id`: behind its branch, by `taken`, or the continuation of a long run (not
    /// taken).
    #[inline(always)]
    pub fn next(&mut self, code: &impl Code, id: RunId, taken: bool) -> RunId {
        let next = self.runs[id.0 as usize].next[usize::from(taken)];
        if next == RunId::NONE { self.link(code, id, taken) } else { next }
    }

    #[cold]
    #[inline(never)]
    fn link(&mut self, code: &impl Code, id: RunId, taken: bool) -> RunId {
        let site = *self.site(id);
        let address = if taken { site.target } else { site.after };
        let next = self.at(code, site.reading, address);
        if next != RunId::OVER_LIMIT {
            self.runs[id.0 as usize].next[usize::from(taken)] = next;
        }
        next
    }

    /// The run at `target`, to which the indirect exit of `id` went.
    #[inline]
    pub fn target(&mut self, code: &impl Code, id: RunId, reading: Reading, target: u64) -> RunId {
        let (last, run) = self.site(id).last_target;
        let wanted = Reading { space: reading.space.of_address(target), ..reading };
        if last == target && run != RunId::NONE && self.site(run).reading == wanted {
            return run;
        }
        let run = self.at(code, reading, target);
        self.sites[id.0 as usize].last_target = (target, run);
        run
    }

    /// The run after a call at `call` that returned to `address`.
    #[inline(always)]
    pub fn after_call(&mut self, code: &impl Code, call: CallSite, reading: Reading, address: u64) -> RunId {
        let known = self.returns[call.0 as usize];
        if known != RunId::NONE {
            return known;
        }
        let run = self.at(code, reading, address);
        if call.0 != 0 && run != RunId::OVER_LIMIT {
            self.returns[call.0 as usize] = run;
        }
        run
    }

    fn new_call_site(&mut self) -> CallSite {
        self.returns.push(RunId::NONE);
        CallSite((self.returns.len() - 1) as u32)
    }

    fn build(&mut self, code: &impl Code, reading: Reading, start: u64) -> RunId {
        let mut run = Run { first_step: self.steps.len() as u32, ..Run::ending(Exit::Missing) };
        let mut site = Site::starting(start, reading);
        (site.function, site.at_entry) = place(code, reading, start);
        let mut address = start;
        for _ in 0..MAX_INSTRUCTIONS {
            site.source = address;
            site.after = address;
            let Some(instruction) = decode(code, reading, address) else {
                return self.add(run, site);
            };
            address = match self.pass(code, &mut run, &mut site, address, instruction) {
                Some(next) => next,
                None => return self.add(run, site),
            };
            if run.step_count == MAX_STEPS || run.blocks == MAX_BLOCKS {
                break;
            }
        }
        run.exit = Exit::Continue;
        site.source = address;
        site.after = address;
        self.add(run, site)
    }

    /// Adds one instruction to the run. Returns the address of the next one; `None` if it ended the run.
    fn pass(
        &mut self,
        code: &impl Code,
        run: &mut Run,
        site: &mut Site,
        address: u64,
        instruction: Instruction,
    ) -> Option<u64> {
        site.after = instruction.next;
        run.exit = match instruction.flow {
            Flow::Next => return Some(instruction.next),
            Flow::Call(to) => {
                let call = self.new_call_site();
                self.step(code, run, site, address, to, StepKind::Call { return_to: instruction.next, call });
                return Some(to);
            }
            Flow::Jump(to) => {
                if place(code, site.reading, to).0 != place(code, site.reading, address).0 {
                    self.step(code, run, site, address, to, StepKind::Jump);
                }
                run.blocks += 1;
                return Some(to);
            }
            Flow::Branch(to) => {
                site.target = to;
                run.leaves = place(code, site.reading, to).0 != place(code, site.reading, address).0;
                Exit::Branch
            }
            Flow::IndirectJump => Exit::IndirectJump,
            Flow::IndirectCall => {
                site.call = self.new_call_site();
                Exit::IndirectCall
            }
            Flow::Return => Exit::Return,
            Flow::Far(far) => Exit::Far(far),
        };
        site.source_function = place(code, site.reading, address).0;
        None
    }

    fn step(&mut self, code: &impl Code, run: &mut Run, site: &Site, from: u64, to: u64, kind: StepKind) {
        let (function, at_entry) = place(code, site.reading, to);
        self.steps.push(Step { from, to, function, at_entry, kind });
        run.step_count += 1;
        run.blocks += u8::from(matches!(kind, StepKind::Call { .. }));
    }

    fn add(&mut self, run: Run, site: Site) -> RunId {
        self.runs.push(run);
        self.sites.push(site);
        RunId((self.runs.len() - 1) as u32)
    }
}

impl Run {
    fn ending(exit: Exit) -> Run {
        Run { next: [RunId::NONE; 2], first_step: 0, step_count: 0, blocks: 1, exit, leaves: false }
    }
}

impl Site {
    /// The target of the branch that ends the run.
    pub fn target(&self) -> u64 {
        self.target
    }

    fn starting(start: u64, reading: Reading) -> Site {
        Site {
            start,
            reading,
            function: FunctionId::UNKNOWN,
            at_entry: false,
            source: start,
            after: start,
            target: start,
            source_function: FunctionId::UNKNOWN,
            call: CallSite(0),
            last_target: (0, RunId::NONE),
        }
    }
}

/// The function around `address`, and whether `address` is its entry.
pub fn place(code: &impl Code, reading: Reading, address: u64) -> (FunctionId, bool) {
    match code.function(reading.space.of_address(address), address) {
        Some(function) => (function.id, function.entry == address),
        None => (FunctionId::UNKNOWN, false),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Start {
    address: u64,
    reading: u64,
}

impl Start {
    fn new(reading: Reading, address: u64) -> Start {
        Start { address, reading: u64::from(reading.space.0) << 2 | reading.size as u64 }
    }
}

impl std::hash::Hash for Start {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.address ^ self.reading.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

/// Folds the halves of a product, which is good enough for addresses and takes a few cycles.
#[derive(Debug, Default)]
struct StartHasher(u64);

impl Hasher for StartHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0xa076_1d64_78bd_642f;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::{Function, SpaceId};

    /// Code at 0x1000; a function every 0x10 bytes.
    struct Bytes(Vec<u8>);

    impl Code for Bytes {
        fn bytes(&self, _: SpaceId, address: u64) -> Option<&[u8]> {
            let offset = usize::try_from(address.checked_sub(0x1000)?).ok()?;
            self.0.get(offset..).filter(|bytes| !bytes.is_empty())
        }

        fn function(&self, _: SpaceId, address: u64) -> Option<Function> {
            Some(Function { id: FunctionId((address >> 4) as u32), entry: address & !15 })
        }
    }

    const READING: Reading = Reading { space: SpaceId(1), size: CodeSize::Bits64 };

    #[test]
    fn run_follows_direct_calls_and_jumps_to_the_next_decision() {
        // nop; call 0x1010; at 0x1010: jmp 0x1020; at 0x1020: je 0x1000
        let mut bytes = vec![0x90, 0xe8, 0x0a, 0, 0, 0];
        bytes.resize(0x10, 0x90);
        bytes.extend([0xeb, 0x0e]);
        bytes.resize(0x20, 0x90);
        bytes.extend([0x74, 0xde, 0xc3]);
        let code = Bytes(bytes);
        let mut cache = RunCache::new();
        let id = cache.at(&code, READING, 0x1000);
        let run = *cache.run(id);
        assert_eq!((run.exit, run.step_count, run.blocks, run.leaves), (Exit::Branch, 2, 3, true));
        let steps: Vec<(u64, u64)> = cache.steps(&run).iter().map(|step| (step.from, step.to)).collect();
        assert_eq!(steps, [(0x1001, 0x1010), (0x1010, 0x1020)]);
        assert_eq!((cache.site(id).source, cache.site(id).after), (0x1020, 0x1022));
        assert_eq!(cache.next(&code, id, true), id, "back to the start");
        let after = cache.next(&code, id, false);
        assert_eq!((cache.site(after).start, cache.run(after).exit), (0x1022, Exit::Return));
    }

    #[test]
    fn run_after_a_call_is_cached() {
        let mut bytes = vec![0xe8, 0x0b, 0, 0, 0, 0xc3];
        bytes.resize(0x10, 0x90);
        bytes.push(0xc3);
        let code = Bytes(bytes);
        let mut cache = RunCache::new();
        let id = cache.at(&code, READING, 0x1000);
        let StepKind::Call { return_to, call } = cache.steps(cache.run(id))[0].kind else { panic!("a call") };
        let after = cache.after_call(&code, call, READING, return_to);
        assert_eq!(cache.site(after).start, 0x1005);
        assert_eq!(cache.after_call(&code, call, READING, return_to), after);
    }

    #[test]
    fn spaces_and_code_sizes_do_not_mix() {
        let code = Bytes(vec![0x90; 16]);
        let mut cache = RunCache::new();
        let id = cache.at(&code, READING, 0x1000);
        let other_space = Reading { space: SpaceId(2), ..READING };
        let other_size = Reading { size: CodeSize::Bits32, ..READING };
        assert_ne!(cache.at(&code, other_space, 0x1000), id);
        assert_ne!(cache.at(&code, other_size, 0x1000), id);
        let source = cache.at(&code, READING, 0x1004);
        assert_eq!(cache.target(&code, source, READING, 0x1000), id);
        assert_ne!(
            cache.target(&code, source, other_space, 0x1000),
            id,
            "the last target was in another space"
        );
    }

    #[test]
    fn long_and_endless_code_is_divided() {
        let code = Bytes(vec![0x90; 3 * MAX_INSTRUCTIONS]);
        let mut cache = RunCache::new();
        let id = cache.at(&code, READING, 0x1000);
        assert_eq!(cache.run(id).exit, Exit::Continue);
        let next = cache.next(&code, id, false);
        assert_eq!(cache.site(next).start, 0x1000 + MAX_INSTRUCTIONS as u64);
        // A function that calls itself, and a jump to itself.
        for bytes in [[0xe8, 0xfb, 0xff, 0xff, 0xff], [0xeb, 0xfe, 0x90, 0x90, 0x90]] {
            let code = Bytes(bytes.to_vec());
            let mut cache = RunCache::new();
            let id = cache.at(&code, READING, 0x1000);
            assert_eq!(cache.run(id).exit, Exit::Continue);
            assert_eq!(cache.next(&code, id, false), id);
        }
    }

    #[test]
    fn missing_code_differs_from_code_that_ends() {
        let code = Bytes(vec![0x90; 4]);
        let mut cache = RunCache::new();
        let (there, nowhere) = (cache.at(&code, READING, 0x1000), cache.at(&code, READING, 0x5000));
        assert!(cache.has_code(there) && !cache.has_code(nowhere));
        assert_eq!((cache.run(there).exit, cache.site(there).source), (Exit::Missing, 0x1004));
    }

    #[test]
    fn full_cache_has_no_new_code_until_it_is_cleared() {
        let code = Bytes(vec![0x90; 64]);
        let mut cache = RunCache::with_limit(10);
        let first = cache.at(&code, READING, 0x1000);
        let ids: Vec<RunId> = (1..20).map(|offset| cache.at(&code, READING, 0x1000 + offset)).collect();
        assert!(cache.is_full() && cache.has_code(first));
        assert!(!cache.has_code(ids[15]));
        cache.clear();
        let again = cache.at(&code, READING, 0x100f);
        assert!(!cache.is_full() && cache.has_code(again));
    }
}
