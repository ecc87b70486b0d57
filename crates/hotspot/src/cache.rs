// SPDX-License-Identifier: Apache-2.0
//! The code cache: heaps of blocks, each of which holds one piece of code.
//!
//! A heap is divided into segments. A map has a byte for each: 0 where a block starts, 0xff where there is none.

use std::collections::BTreeMap;

use wallprof_unwind::{CompiledCode, PAGE_TEXT, Rule, RuleKind, Table, rules_of_code};

use crate::layout::{Field, Layout, Variables, calls, growable_array, option};
use crate::memory::{Memory, bytes, text, word};
use crate::methods::{self, Compiled, Function};

/// JDK 9 and later have three: https://openjdk.org/jeps/197
const MOST_HEAPS: u64 = 4;
/// Of one heap: half a GiB of code. The default is 240 MB for all.
const MOST_SEGMENTS: u64 = 4 << 20;
/// `-XX:ReservedCodeCacheSize` is at most 2 GiB.
const MOST_CACHE: u64 = 2 << 30;
const MOST_BLOBS: usize = 1 << 17;
/// Compiled methods are limited to some hundred KiB each.
const MOST_CODE: u64 = 8 << 20;
const MOST_CALLS: u64 = 1 << 16;
/// Of all blobs: 40 MB. A method has some twenty.
const MOST_RULES: usize = 1 << 20;
/// Of all blobs. They overlap only where somebody wants to take time.
const MOST_CODE_OF_ALL: u64 = 256 << 20;
/// A frame's largest size in words.
const MOST_FRAME: u64 = 1 << 16;
/// More of a blob's head than is read of any version.
const MOST_HEAD: u64 = 4_096;
/// A block's own head has 16 bytes.
const MOST_BLOCK_HEAD: u64 = 256;
const MOST_BLOB_NAME: usize = 128;
/// Of a page of a table with one rule: 129 and 256 words.
const PAGE_BYTES: u64 = 1_540;
/// With it compiled methods set up a frame pointer.
const KEEPS_FP: &str = "PreserveFramePointer";

/// Memory for code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeSpan {
    /// The address of its first byte.
    pub start: u64,
    /// The address behind what is in use, whose code is in the table.
    pub end: u64,
    /// The address behind what may be used later.
    pub reserved_end: u64,
}

/// A virtual machine's code, as it was read last.
#[derive(Debug)]
pub struct CodeCache {
    layout: Layout,
    known: Known,
    /// As they were read last.
    heaps: Vec<Heap>,
    /// By address.
    blobs: BTreeMap<u64, Blob>,
    /// Some blobs were met in the last reading: their code may not have been written whole.
    has_fresh: bool,
    /// A blob was found to have changed since.
    is_outdated: bool,
    /// `None`: not read yet.
    keeps_fp: Option<bool>,
    /// When blocks without known code were looked at last, by the caller's clock.
    looked: u64,
    /// When all were.
    whole: u64,
}

/// Memory for blocks.
#[derive(Debug, PartialEq, Eq)]
struct Heap {
    span: CodeSpan,
    segment_bytes: u64,
    /// A byte for each segment.
    map: Vec<u8>,
}

impl Heap {
    /// The addresses of its blocks.
    fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        let starts = self.map.iter().enumerate().filter(|(_, to_start)| **to_start == 0);
        starts.map(|(at, _)| self.span.start + at as u64 * self.segment_bytes)
    }
}

/// The fields that every version must have.
#[derive(Clone, Copy, Debug)]
struct Known {
    heaps: Field,
    memory: Field,
    segments: Field,
    segment_size: Field,
    low: Field,
    high: Field,
    high_boundary: Field,
    block_bytes: u64,
    is_used: Field,
    name: Field,
    frame_size: Field,
    maps: Field,
    code: Field,
    code_end: Field,
    /// The code's ends are distances from the blob, not addresses.
    is_relative: bool,
    method: Field,
    osr_entry: Field,
    entry_bci: Field,
    compile_id: Field,
    head_bytes: u64,
}

impl Known {
    fn of(layout: &Layout) -> Option<Known> {
        let field = |of, name| layout.field(of, name);
        let is_relative = field("CodeBlob", "_code_begin").is_none();
        let [code, code_end] = match is_relative {
            false => ["_code_begin", "_code_end"],
            true => ["_code_offset", "_data_offset"],
        };
        let method = field("CompiledMethod", "_method").or_else(|| field("nmethod", "_method"))?;
        let mut known = Known {
            heaps: field("CodeCache", "_heaps")?,
            memory: field("CodeHeap", "_memory")?,
            segments: field("CodeHeap", "_segmap")?,
            segment_size: field("CodeHeap", "_log2_segment_size")?,
            low: field("VirtualSpace", "_low")?,
            high: field("VirtualSpace", "_high")?,
            high_boundary: field("VirtualSpace", "_high_boundary")?,
            block_bytes: layout.size("HeapBlock").filter(|&bytes| bytes <= MOST_BLOCK_HEAD)?,
            is_used: field("HeapBlock::Header", "_used")?,
            name: field("CodeBlob", "_name")?,
            frame_size: field("CodeBlob", "_frame_size")?,
            maps: field("CodeBlob", "_oop_maps")?,
            code: field("CodeBlob", code)?,
            code_end: field("CodeBlob", code_end)?,
            is_relative,
            method,
            osr_entry: field("nmethod", "_osr_entry_point")?,
            entry_bci: field("nmethod", "_entry_bci")?,
            compile_id: field("nmethod", "_compile_id")?,
            head_bytes: 0,
        };
        field("ImmutableOopMapSet", "_count")?;
        let of_blob = [known.name, known.frame_size, known.maps, known.code, known.code_end];
        let of_method = [known.method, known.osr_entry, known.entry_bci, known.compile_id];
        known.head_bytes = of_blob.into_iter().chain(of_method).map(Field::end).max()?;
        (known.head_bytes <= MOST_HEAD).then_some(known)
    }
}

/// One piece of code.
#[derive(Debug)]
struct Blob {
    head: Head,
    /// `None`: it is a method.
    name: Option<Box<str>>,
    rules: Vec<(u64, u64, Rule)>,
    /// It was met in the last reading.
    is_fresh: bool,
    /// Until then something else was there.
    since: u64,
}

/// What tells one blob from another at the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    name: u64,
    frame_bytes: i32,
    maps: u64,
    code: u64,
    code_end: u64,
    // Of a compiled method; elsewhere whatever is there.
    method: u64,
    osr_entry: Option<u64>,
    compile_id: u64,
}

/// What has been read of all blobs, within limits.
struct Totals {
    rules: usize,
    code: u64,
}

impl Head {
    /// Of a piece of the virtual machine: what lies where methods have these fields is its code, which may change.
    fn of_machine(self) -> Head {
        Head { method: 0, osr_entry: None, compile_id: 0, ..self }
    }
}

impl Blob {
    fn is_of(&self, head: Head) -> bool {
        self.head == if self.name.is_some() { head.of_machine() } else { head }
    }
}

impl CodeCache {
    /// `None`: the virtual machine does not describe what is needed; JDK 17 to 25 do.
    pub fn new(memory: &dyn Memory, variables: &Variables) -> Option<CodeCache> {
        let layout = Layout::read(memory, variables)?;
        let (known, heaps, blobs) = (Known::of(&layout)?, Vec::new(), BTreeMap::new());
        let (has_fresh, is_outdated, keeps_fp, looked, whole) = (false, false, None, 0, 0);
        Some(CodeCache { known, layout, heaps, blobs, has_fresh, is_outdated, keeps_fp, looked, whole })
    }

    /// Reads what has changed; `whole`: not only where blocks were added or removed, but also whether known ones were
    /// freed, or have other code. `now`: nanoseconds on any clock. Returns whether anything has changed; `None`: nothing
    /// can be read any more.
    pub fn update(&mut self, memory: &dyn Memory, whole: bool, now: u64) -> Option<bool> {
        // One that is changed meanwhile is read later.
        let Some(heaps) = self.read_heaps(memory)? else { return Some(false) };
        let has_other_blocks = heaps != self.heaps;
        self.heaps = heaps;
        if self.keeps_fp.is_none() && !self.heaps.is_empty() {
            self.keeps_fp = Some(option(memory, &self.layout, KEEPS_FP).unwrap_or(false));
        }
        if !has_other_blocks && !whole && !self.has_fresh {
            return Some(false);
        }
        let known = self.known.block_bytes;
        let blocks = |heap: &Heap| {
            let end = heap.span.end;
            heap.blocks().map(move |block| (block.saturating_add(known), end)).collect::<Vec<_>>()
        };
        let mut found: Vec<(u64, u64)> = self.heaps.iter().flat_map(blocks).take(MOST_BLOBS).collect();
        found.sort_unstable();
        found.dedup_by_key(|(at, _)| *at);
        let before = self.blobs.len();
        self.blobs.retain(|at, _| found.binary_search_by_key(at, |(at, _)| *at).is_ok());
        let mut has_changed = std::mem::take(&mut self.is_outdated) || self.blobs.len() != before;
        let mut totals = self.totals();
        self.has_fresh = false;
        for (at, end) in found {
            let known = self.blobs.get(&at);
            if known.is_some_and(|known| !known.is_fresh) && !whole {
                continue;
            }
            let head = self.head(memory, at, end);
            if known.is_some_and(|known| !known.is_fresh && head.is_some_and(|head| known.is_of(head))) {
                continue;
            }
            if let Some(known) = known {
                totals.rules -= known.rules.len();
                totals.code -= known.head.code_end - known.head.code;
            }
            let since = match known {
                Some(known) if head.is_some_and(|head| known.is_of(head)) => known.since,
                Some(known) => known.since.max(self.whole),
                None => self.looked,
            };
            let mut blob = head.and_then(|head| self.blob(memory, head, since, &mut totals));
            // Once more, until it stays the same: the head and the calls are written before the code.
            let is_same = match (known, &blob) {
                (Some(known), Some(blob)) => {
                    (known.head, &known.rules, &known.name) == (blob.head, &blob.rules, &blob.name)
                }
                (known, blob) => known.is_none() && blob.is_none(),
            };
            if let Some(blob) = &mut blob {
                blob.is_fresh = !is_same;
            }
            has_changed |= !is_same;
            self.has_fresh |= blob.as_ref().is_some_and(|blob| blob.is_fresh);
            match blob {
                Some(blob) => self.blobs.insert(at, blob),
                None => self.blobs.remove(&at),
            };
        }
        self.looked = now;
        self.whole = if whole { now } else { self.whole };
        Some(has_changed)
    }

    /// The memory that may have code, ascending.
    pub fn spans(&self) -> Vec<CodeSpan> {
        self.heaps.iter().map(|heap| heap.span).collect()
    }

    /// Whether the virtual machine has started: it has memory for code.
    pub fn has_code(&self) -> bool {
        !self.heaps.is_empty()
    }

    /// Whether this place is in memory for code: its code may have been made since the last reading.
    pub fn may_have_code(&self, place: u64) -> bool {
        self.spans().iter().any(|span| (span.start..span.reserved_end).contains(&place))
    }

    /// About the bytes of the table: a word for each rule and each block, and the list of blocks of each page.
    pub fn table_bytes(&self) -> u64 {
        let rules: usize = self.blobs.values().map(|blob| blob.rules.len()).sum();
        let code: u64 = self.heaps.iter().map(|heap| heap.span.end - heap.span.start).sum();
        rules as u64 * 4 + code / PAGE_TEXT * PAGE_BYTES
    }

    /// Whether code that is not known yet has frame pointers. Else the walker's way by them would leave out callers,
    /// or find false ones.
    pub fn keeps_fp(&self) -> bool {
        self.keeps_fp.unwrap_or(false)
    }

    /// The rules of all code in [`CodeCache::spans`]. `None`: these overlap, or are too far from each other.
    pub fn table(&self) -> Option<Table> {
        let between = if self.keeps_fp() { Rule::UNCOVERED } else { Rule::UNSUPPORTED };
        let mut rules = Vec::new();
        for CodeSpan { start: mut from, end: last, .. } in self.spans() {
            let known = self.blobs.range(from..last).flat_map(|(_, blob)| &blob.rules);
            for &(start, end, rule) in known {
                // Blobs that were read in the middle of a change may overlap: the next whole reading mends that.
                if start < from {
                    continue;
                }
                rules.extend(Some((from, start, between)).filter(|_| from < start));
                rules.push((start, end, rule));
                from = end;
            }
            rules.extend(Some((from, last, between)).filter(|_| from < last));
        }
        Table::from_rules(rules)
    }

    /// The functions at this place in the code at a time on the clock of [`CodeCache::update`], innermost first. Empty:
    /// nothing is known there yet. `None`: what was there then is gone.
    pub fn functions_at(&mut self, memory: &dyn Memory, place: u64, time: u64) -> Option<Vec<Function>> {
        self.look_again(memory, place);
        let Some((&at, Blob { head, name, since, .. })) = self.blobs.range(..=place).next_back() else {
            return Some(Vec::new());
        };
        if !(head.code..head.code_end).contains(&place) {
            return Some(Vec::new());
        }
        if time < *since {
            return None;
        }
        if let Some(name) = name {
            return Some(vec![Function::of_machine(name, Some(place - head.code))]);
        }
        let compiled = Compiled { at, code: head.code, method: head.method };
        Some(compiled.functions(memory, &self.layout, place).unwrap_or_default())
    }

    /// An interpreted method by its address.
    pub fn interpreted(&self, memory: &dyn Memory, method: u64) -> Option<Function> {
        methods::interpreted(memory, &self.layout, method)
    }

    /// Whether another method has its code there by now is not told by what was read last.
    fn look_again(&mut self, memory: &dyn Memory, place: u64) {
        let heap = self.heaps.iter().find(|heap| (heap.span.start..heap.span.end).contains(&place));
        let (Some(heap), Some((&at, blob))) = (heap, self.blobs.range(..=place).next_back()) else { return };
        let head = self.head(memory, at, heap.span.end);
        if head.is_some_and(|head| blob.is_of(head)) {
            return;
        }
        self.is_outdated = true;
        let mut totals = self.totals();
        let since = blob.since.max(self.whole);
        match head.and_then(|head| self.blob(memory, head, since, &mut totals)) {
            Some(blob) => self.blobs.insert(at, blob),
            None => self.blobs.remove(&at),
        };
        self.has_fresh = true;
    }

    fn totals(&self) -> Totals {
        let blobs = self.blobs.values();
        Totals {
            rules: blobs.clone().map(|blob| blob.rules.len()).sum(),
            code: blobs.map(|blob| blob.head.code_end - blob.head.code).sum(),
        }
    }

    /// `Some(None)`: one was read in the middle of a change.
    fn read_heaps(&self, memory: &dyn Memory) -> Option<Option<Vec<Heap>>> {
        let mut array = [0; 8];
        if !memory.read(self.known.heaps.at, &mut array) {
            return None;
        }
        // 0: the virtual machine has not started yet.
        let array = Some(u64::from_le_bytes(array)).filter(|&array| array != 0);
        let Some((data, len)) = array.and_then(|array| growable_array(memory, &self.layout, array)) else {
            return Some(Some(Vec::new()));
        };
        let heap = |index| self.heap(memory, word(memory, data.wrapping_add(index * 8))?);
        let heaps: Option<Vec<Heap>> = (0..len.min(MOST_HEAPS)).map(heap).collect();
        Some(heaps.map(|mut heaps| {
            heaps.sort_unstable_by_key(|heap| heap.span.start);
            heaps
        }))
    }

    fn heap(&self, memory: &dyn Memory, heap: u64) -> Option<Heap> {
        let known = self.known;
        let space = heap.checked_add(known.memory.at)?;
        let (start, end) = (known.low.read(memory, space)?, known.high.read(memory, space)?);
        let reserved_end = known.high_boundary.read(memory, space)?;
        let segments = known.low.read(memory, heap.checked_add(known.segments.at)?)?;
        let bits = known.segment_size.read(memory, heap).filter(|bits| (4..=20).contains(bits))?;
        let segment_bytes = 1u64 << bits;
        // Code behind the part of the map that is read has no rules.
        let count = (end.checked_sub(start)? / segment_bytes).min(MOST_SEGMENTS);
        let map = bytes(memory, segments, count, MOST_SEGMENTS)?;
        let is_true = start < end && end <= reserved_end && reserved_end - start <= MOST_CACHE;
        is_true.then_some(Heap { span: CodeSpan { start, end, reserved_end }, segment_bytes, map })
    }

    /// The head of the blob at this address, in a heap up to `end`. `None`: the block has no code.
    fn head(&self, memory: &dyn Memory, at: u64, end: u64) -> Option<Head> {
        let known = self.known;
        let len = known.block_bytes + known.head_bytes;
        let whole = bytes(memory, at.checked_sub(known.block_bytes)?, len, 2 * MOST_HEAD)?;
        let (block, head) = whole.split_at(usize::try_from(known.block_bytes).ok()?);
        if known.is_used.of(block)? == 0 {
            return None;
        }
        let base = if known.is_relative { at } else { 0 };
        let address = |field: Field| Some(field.of(head)?.wrapping_add(base));
        let (code, code_end) = (address(known.code)?, address(known.code_end)?);
        if code <= at || code_end <= code || code_end > end || code_end - code > MOST_CODE {
            return None;
        }
        let words = known.frame_size.of(head)?;
        let is_osr = known.entry_bci.of(head)?.cast_signed() >= 0;
        Some(Head {
            name: known.name.of(head)?,
            frame_bytes: if words <= MOST_FRAME { words as i32 * 8 } else { 0 },
            maps: known.maps.of(head)?,
            code,
            code_end,
            method: known.method.of(head)?,
            osr_entry: known.osr_entry.of(head).filter(|_| is_osr),
            compile_id: known.compile_id.of(head)?,
        })
    }

    /// `None`: it cannot be read, or all blobs together are too large.
    fn blob(&self, memory: &dyn Memory, head: Head, since: u64, totals: &mut Totals) -> Option<Blob> {
        totals.code += head.code_end - head.code;
        if totals.rules > MOST_RULES || totals.code > MOST_CODE_OF_ALL {
            return None;
        }
        let name = text::<MOST_BLOB_NAME>(memory, head.name)?;
        let is_method = matches!(&*name, "nmethod" | "native nmethod");
        let is_stub = name.starts_with("StubRoutines") || name.starts_with("Stub Generator");
        let of_all = |rule| vec![(head.code, head.code_end, rule)];
        let rules = match &*name {
            "Interpreter" => of_all(INTERPRETED),
            "vtable chunks" => of_all(Rule::RETURN_ADDRESS_ON_TOP),
            // There a virtual thread's frames end, and its carrier's begin.
            _ if is_stub && name.contains("continuation") => Vec::new(),
            _ if is_stub => stub_rules(head.code, &code_of(memory, head)?),
            _ if head.frame_bytes < 8 => Vec::new(),
            _ => self.rules_of(memory, head, is_method)?,
        };
        totals.rules += rules.len();
        let (name, head) = if is_method { (None, head) } else { (Some(name.into()), head.of_machine()) };
        Some(Blob { head, name, rules, is_fresh: true, since })
    }

    fn rules_of(&self, memory: &dyn Memory, head: Head, is_method: bool) -> Option<Vec<(u64, u64, Rule)>> {
        let calls = calls(memory, &self.layout, head.maps, MOST_CALLS)?.into_iter();
        let calls = calls.map(|offset| head.code.wrapping_add(offset));
        let calls: Vec<u64> = calls.filter(|call| (head.code + 1..=head.code_end).contains(call)).collect();
        let mut rules = Vec::new();
        // A piece of the virtual machine without a call may have any frame.
        if is_method || !calls.is_empty() {
            let code = code_of(memory, head)?;
            let osr_entry = head.osr_entry.filter(|_| is_method);
            let compiled = CompiledCode {
                address: head.code,
                code: &code,
                frame_bytes: head.frame_bytes,
                entries: osr_entry.as_slice(),
                calls: &calls,
            };
            compiled.rules(|start, end, rule| rules.push((start, end, rule)));
        }
        Some(rules)
    }
}

fn code_of(memory: &dyn Memory, head: Head) -> Option<Vec<u8>> {
    bytes(memory, head.code, head.code_end - head.code, MOST_CODE)
}

/// The virtual machine's own routines set up a frame pointer where they call methods. Many have none, or not yet.
fn stub_rules(address: u64, code: &[u8]) -> Vec<(u64, u64, Rule)> {
    let (mut rules, mut at) = (Vec::new(), address);
    rules_of_code(address, code, |start, end, rule| {
        rules.extend(Some((at, start, BY_FRAME_POINTER)).filter(|_| at < start));
        rules.push((start, end, rule));
        at = end;
    });
    let end = address + code.len() as u64;
    rules.extend(Some((at, end, BY_FRAME_POINTER)).filter(|_| at < end));
    rules
}

/// The frame of an interpreted method: fp is at the caller's fp, below the return address. A compiled caller's sp is
/// in the word below, since its arguments were moved (`src/hotspot/cpu/x86/frame_x86.hpp`).
const INTERPRETED: Rule = Rule {
    kind: RuleKind::FpDeref,
    flags: Rule::FP_AT_FP | Rule::RA_AT_FP,
    addend: 0,
    cfa_offset: -8,
    ra: 1,
    fp: 0,
    bx: 0,
};

/// Of the virtual machine's own routines where they cannot be followed.
const BY_FRAME_POINTER: Rule =
    Rule { kind: RuleKind::Fp, flags: 0, addend: 0, cfa_offset: 16, ra: -1, fp: -2, bx: 0 };
