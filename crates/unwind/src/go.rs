// SPDX-License-Identifier: Apache-2.0
//! Reads Go's function table, `.gopclntab`: the distance that each instruction of a function has moved the
//! stack pointer.
//!
//! Layouts: `runtime/symtab.go`, `runtime/runtime2.go` (`_func`) and `internal/abi/symtab.go` of Go 1.16 to
//! 1.26. Values and addresses are delta-encoded pairs, `cmd/link`'s pcsp tables. Each pair moves forward, so
//! reading a table takes no more steps than its code has bytes.

use std::borrow::Cow;

use crate::bytes::Bytes;
use crate::coverage::Unencodable;
use crate::elf::{Elf, Machine, Range};
use crate::rule::{Rule, RuleKind};

use switches::{Switch, SwitchedRule};

mod switches;

const MAGIC_1_16: u32 = 0xffff_fffa;
const MAGIC_1_18: u32 = 0xffff_fff0;
const MAGIC_1_20: u32 = 0xffff_fff1;

/// The offset of `text` in `runtime.moduledata`, since Go 1.16.
const MODULEDATA_TEXT: u64 = 176;
/// `FuncFlagSPWrite`: the function sets the stack pointer to a value that no table has.
const FLAG_SP_WRITE: u8 = 2;

/// Threads and goroutines start in these functions, which have no caller, and in those whose names start with
/// `_rt0_`.
const OUTERMOST: [&[u8]; 3] = [b"runtime.goexit", b"runtime.mstart", b"runtime.rt0_go"];
/// The kernel enters this when a signal handler returns.
const TRAMPOLINE: &[u8] = b"runtime.sigreturn";
/// These functions change stacks half-way. Unless [`Switch`] knows the place, only the frame pointer finds
/// their caller. Go 1.17 and later flag them.
const STACK_SWITCHES: [&[u8]; 5] =
    [b"runtime.systemstack", b"runtime.mcall", b"runtime.morestack", b"runtime.asmcgocall", b"runtime.gogo"];

/// Changes the stack only in the thread that it has created, which continues in `runtime.mstart`.
const THREAD_MAKER: &[u8] = b"runtime.clone\0";

pub(crate) struct GoTable<'e, 'a> {
    elf: &'e Elf<'a>,
    layout: Layout,
    /// The base of function entries. 0: they are addresses.
    text: u64,
    /// The size of the smallest instruction.
    quantum: u64,
    functions: usize,
    bytes: Cow<'a, [u8]>,
    /// The offsets of names, pcsp tables, and the index of functions with their records.
    names: usize,
    pctab: usize,
    index: usize,
}

/// The differences between versions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    Go1_16,
    Go1_18,
    Go1_20,
}

/// One function's record.
struct Function<'a> {
    name: &'a [u8],
    pcsp: u32,
    flags: u8,
}

impl<'e, 'a> GoTable<'e, 'a> {
    pub(crate) fn find(elf: &'e Elf<'a>) -> Option<Self> {
        let by_name =
            [".gopclntab", ".data.rel.ro.gopclntab"].iter().find_map(|name| elf.section_named(name));
        match by_name {
            Some(section) => Self::read(elf, section.address, elf.section_bytes(&section)?),
            None => {
                elf.section_named(".go.buildinfo")?;
                let address = elf.symbol("runtime.pclntab").or_else(|| search(elf))?;
                Self::read(elf, address, elf.bytes_from(address)?)
            }
        }
    }

    fn read(elf: &'e Elf<'a>, address: u64, bytes: Cow<'a, [u8]>) -> Option<Self> {
        let mut header = Bytes::new(&bytes);
        let layout = match header.u32()? {
            MAGIC_1_16 => Layout::Go1_16,
            MAGIC_1_18 => Layout::Go1_18,
            MAGIC_1_20 => Layout::Go1_20,
            _ => return None,
        };
        let (_padding, quantum, pointer) = (header.u16()?, header.u8()?, header.u8()?);
        let (functions, _files) = (header.u64()?, header.u64()?);
        if pointer != 8 || quantum == 0 {
            return None;
        }
        let text = match layout {
            Layout::Go1_16 => 0,
            _ => text_start(elf, address, header.u64()?),
        };
        let [names, _units, _files, pctab, index] = read_parts(&mut header, bytes.len())?;
        let functions = usize::try_from(functions).ok()?;
        // The index ends with the end address of the last function.
        functions
            .checked_add(1)?
            .checked_mul(layout.index_bytes())
            .filter(|&len| len <= bytes.len() - index)?;
        Some(GoTable { elf, layout, text, quantum: quantum.into(), functions, names, pctab, index, bytes })
    }

    /// Emits to `row` the rules of all functions within `gap`, ascending.
    pub(crate) fn rows(&self, gap: Range, row: &mut impl FnMut(u64, u64, Result<Rule, Unencodable>)) {
        let mut from = gap.start;
        for number in self.first_from(gap.start)..self.functions {
            let (Some(start), Some(end)) = (self.start(number), self.start(number + 1)) else { return };
            if start >= gap.end || !self.elf.meter.step(1) {
                return;
            }
            let part = Range { start: start.max(from), end: end.min(gap.end) };
            if part.start < part.end {
                from = part.end;
                self.function_rows(number, part, row);
            }
        }
    }

    pub(crate) fn functions(&self) -> u64 {
        self.functions as u64
    }

    /// The first function that ends after `address`.
    fn first_from(&self, address: u64) -> usize {
        let (mut low, mut high) = (0, self.functions);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.entry(middle + 1).is_some_and(|end| end <= address) {
                low = middle + 1
            } else {
                high = middle
            }
        }
        low
    }

    /// The start of the code of a function's rules. A return to the signal trampoline goes to its first
    /// instruction, so the byte before it belongs to the trampoline, too.
    fn start(&self, number: usize) -> Option<u64> {
        let is_trampoline = self.function(number).is_some_and(|function| function.is_trampoline());
        self.entry(number)?.checked_sub(is_trampoline.into())
    }

    fn entry(&self, number: usize) -> Option<u64> {
        let mut bytes = Bytes::at(&self.bytes[self.index..], number * self.layout.index_bytes());
        match self.layout {
            Layout::Go1_16 => bytes.u64(),
            _ => self.text.checked_add(bytes.u32()?.into()),
        }
    }

    fn function(&self, number: usize) -> Option<Function<'_>> {
        let half = self.layout.index_bytes() / 2;
        let mut place = Bytes::at(&self.bytes[self.index..], number * 2 * half + half);
        let at = match self.layout {
            Layout::Go1_16 => usize::try_from(place.u64()?).ok()?,
            _ => place.u32()? as usize,
        };
        // After the entry: name, args, deferreturn, pcsp, pcfile, pcln, npcdata, cuOffset, 4 bytes each.
        let fields = at.checked_add(half)?;
        let name = Bytes::at(&self.bytes[self.index..], fields).u32()?;
        let pcsp = Bytes::at(&self.bytes[self.index..], fields.checked_add(12)?).u32()?;
        let flags_at = if self.layout == Layout::Go1_20 { 37 } else { 33 };
        let flags = Bytes::at(&self.bytes[self.index..], fields.checked_add(flags_at)?).u8()?;
        Some(Function { name: self.bytes[self.names..].get(name as usize..)?, pcsp, flags })
    }

    fn function_rows(
        &self,
        number: usize,
        part: Range,
        row: &mut impl FnMut(u64, u64, Result<Rule, Unencodable>),
    ) {
        let Some((function, entry)) = self.function(number).zip(self.entry(number)) else { return };
        if function.is_trampoline() {
            row(part.start, part.end, Ok(Rule::SIGNAL));
        } else if function.is_outermost() {
            row(part.start, part.end, Ok(Rule::END));
        } else if let Some(switched) = self.switch_of(&function, entry) {
            self.deltas(&function, entry, part, &mut |start, end, rule| match rule {
                Ok(rule) => {
                    for (part, rule) in switched.parts(Range { start, end }, rule) {
                        if part.start < part.end {
                            row(part.start, part.end, Ok(rule));
                        }
                    }
                }
                Err(kind) => row(start, end, Err(kind)),
            });
        } else if !function.switches_stacks() {
            self.deltas(&function, entry, part, row);
        }
    }

    fn switch_of(&self, function: &Function, entry: u64) -> Option<SwitchedRule> {
        match self.elf.machine {
            Machine::X86_64 => Switch::of(function.name)?.find(self.elf, entry),
            Machine::Aarch64 => None,
        }
    }

    /// The rows of one pcsp table: pairs of increments of value and address.
    fn deltas(
        &self,
        function: &Function,
        entry: u64,
        part: Range,
        row: &mut impl FnMut(u64, u64, Result<Rule, Unencodable>),
    ) {
        let mut bytes = Bytes::at(&self.bytes[self.pctab..], function.pcsp as usize);
        let mut frame = Frame { machine: self.elf.machine, saved_from: None };
        let (mut value, mut start) = (-1i64, entry);
        if function.pcsp == 0 {
            return;
        }
        while start < part.end && self.elf.meter.step(1) {
            let Some((grown, advanced)) = bytes.uleb().zip(bytes.uleb()) else { return };
            let step = advanced.saturating_mul(self.quantum);
            if grown == 0 && start != entry || step == 0 {
                return;
            }
            value = value.wrapping_add(unzigzag(grown));
            let end = start.saturating_add(step);
            frame.look_for_saved_fp(self.elf, start, value);
            // The code may be before the part.
            if end > part.start {
                frame.rows(value, Range { start: start.max(part.start), end: end.min(part.end) }, row);
            }
            start = end;
        }
    }
}

/// A frame of Go code. On x86_64 the return address is above it, and the caller's fp, if saved, at its top.
/// On aarch64 the return address is at its bottom, and the caller's fp below that.
struct Frame {
    machine: Machine,
    /// The address from which the caller's fp is saved in the frame. `None`: not yet.
    saved_from: Option<u64>,
}

impl Frame {
    /// Assembly may open a frame without saving fp. Only its code shows this. `start` is the start of the
    /// frame of `size`.
    fn look_for_saved_fp(&mut self, elf: &Elf, start: u64, size: i64) {
        if size <= 0 || self.saved_from.is_some() {
            return;
        }
        self.saved_from = match self.machine {
            Machine::Aarch64 => Some(start),
            Machine::X86_64 => saved_fp_from(elf, start, size),
        };
    }

    fn rows(&self, size: i64, range: Range, row: &mut impl FnMut(u64, u64, Result<Rule, Unencodable>)) {
        let split = self.saved_from.filter(|_| size > 0).unwrap_or(u64::MAX).clamp(range.start, range.end);
        for (start, end, saved) in [(range.start, split, false), (split, range.end, true)] {
            if start < end {
                row(start, end, self.rule(size, saved).ok_or(Unencodable::CfaOffset));
            }
        }
    }

    fn rule(&self, size: i64, fp_saved: bool) -> Option<Rule> {
        let size = i32::try_from(size).ok().filter(|&size| size >= 0)?;
        let rule = Rule { kind: RuleKind::Sp, ..Rule::default() };
        match self.machine {
            Machine::X86_64 => {
                let fp = if fp_saved { -2 } else { 0 };
                Some(Rule { cfa_offset: size.checked_add(8)?, ra: -1, fp, ..rule })
            }
            Machine::Aarch64 if size == 0 => Some(Rule { flags: Rule::RA_IN_REGISTER, ..rule }),
            Machine::Aarch64 => {
                let ra = i16::try_from(-(size / 8)).ok().filter(|_| size % 8 == 0)?;
                let fp = if fp_saved { ra.checked_sub(1)? } else { 0 };
                Some(Rule { cfa_offset: size, ra, fp, ..rule })
            }
        }
    }
}

/// Since Go 1.21 a frame starts with `push %rbp`. Before, the instruction after the one that made the frame
/// stored rbp at its top.
fn saved_fp_from(elf: &Elf, start: u64, size: i64) -> Option<u64> {
    const PUSH_RBP: u8 = 0x55;
    let mut buffer = [0; 9];
    let before = elf.read_at(start.checked_sub(1)?, &mut buffer)?;
    match before {
        [PUSH_RBP, ..] if size == 8 => Some(start),
        [_, 0x48, 0x89, 0x6c, 0x24, ..] => start.checked_add(5),
        [_, 0x48, 0x89, 0xac, 0x24, ..] => start.checked_add(8),
        _ => None,
    }
}

impl Layout {
    /// The size of one entry of the index: the start of a function, and the place of its record.
    fn index_bytes(self) -> usize {
        if self == Layout::Go1_16 { 16 } else { 8 }
    }
}

impl Function<'_> {
    fn is_outermost(&self) -> bool {
        self.name.starts_with(b"_rt0_")
            || OUTERMOST
                .iter()
                .any(|name| self.name.strip_prefix(*name).is_some_and(|rest| rest.first() == Some(&0)))
    }

    fn is_trampoline(&self) -> bool {
        self.name.starts_with(TRAMPOLINE)
    }

    fn switches_stacks(&self) -> bool {
        let is_known_to = STACK_SWITCHES.iter().any(|name| self.name.starts_with(name));
        (self.flags & FLAG_SP_WRITE != 0 || is_known_to) && !self.name.starts_with(THREAD_MAKER)
    }
}

/// The five parts whose offsets are in sequence in the header.
fn read_parts(header: &mut Bytes, len: usize) -> Option<[usize; 5]> {
    let mut parts = [0; 5];
    for part in &mut parts {
        *part = usize::try_from(header.u64()?).ok().filter(|&at| at <= len)?;
    }
    Some(parts)
}

/// Since Go 1.26 the header does not have it, and in position-independent files it is in a relocation.
fn text_start(elf: &Elf, pclntab: u64, in_header: u64) -> u64 {
    if in_header != 0 {
        return in_header;
    }
    let module = elf.section_named(".go.module").map(|section| section.address);
    let module = module.or_else(|| elf.symbol("runtime.firstmoduledata"));
    module
        .filter(|&module| elf.relocated_word(module) == Some(pclntab))
        .and_then(|module| elf.relocated_word(module.checked_add(MODULEDATA_TEXT)?))
        .or_else(|| elf.symbol("runtime.text"))
        .or_else(|| elf.section_named(".text").map(|text| text.address))
        .unwrap_or(0)
}

/// In a stripped file that a C linker linked, the table is an unnamed part of `.data.rel.ro`.
fn search(elf: &Elf) -> Option<u64> {
    let section = elf.section_named(".data.rel.ro")?;
    let is_header = |word: &[u8; 8]| {
        let magic = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        matches!(magic, MAGIC_1_16 | MAGIC_1_18 | MAGIC_1_20)
            && word[4..6] == [0, 0]
            && matches!(word[6], 1 | 4)
            && word[7] == 8
    };
    let at = elf.find_entry(&section, |at, word| is_header(word).then_some(at))?;
    section.address.checked_add(at as u64 * 8)
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests;
