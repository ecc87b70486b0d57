// SPDX-License-Identifier: Apache-2.0
//! The walk from a thread's registers to its outermost frame. It is the reference for `bpf/unwind.h`, which
//! takes the same steps, and it unwinds stack dumps. The callers provide stacks and tables.

use wallprof_model::StackEnd;

use crate::rule::{Rule, RuleKind};
use crate::table::Table;

/// User code is in `[LOWEST_CODE, HIGHEST_CODE)`: the first pages are never mapped, and the upper half is the
/// kernel's.
const LOWEST_CODE: u64 = 0x1_0000;
const HIGHEST_CODE: u64 = 1 << 47;

/// In a frame's entry: the rest is what HotSpot's interpreter has as the address of the method that it runs
/// ([`Rule::RA_AT_FP`]), plus 1 in every entry but the first. Untrusted: any word, 0 where it cannot be read.
pub const INTERPRETED_METHOD: u64 = 1 << 62;
/// Where an interpreted frame has its method.
const METHOD_BELOW_FP: u64 = 24;

/// Offsets in bytes from sp in a signal trampoline to the interrupted registers. sp is at the ucontext, whose
/// uc_mcontext starts at 40 (`asm/ucontext.h`, `asm/sigcontext.h`).
mod signal_frame {
    pub const R10: u64 = 56;
    pub const FP: u64 = 120;
    pub const BX: u64 = 128;
    pub const SP: u64 = 160;
    pub const IP: u64 = 168;
}

/// The registers at the start of a walk. Those below `fp` are optional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// The instruction pointer.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer: rbp, x29.
    pub fp: u64,
    /// rbx.
    pub bx: Option<u64>,
    /// r10.
    pub r10: Option<u64>,
    /// The register of [`Rule::RA_IN_REGISTER`]: rdi on x86_64 (in `vfork` alone), x30 on aarch64.
    pub link: Option<u64>,
}

/// A thread's stack, or a copy of a part of it.
pub trait Memory {
    /// The 8 bytes at `address`. `None` if they cannot be read.
    fn word(&mut self, address: u64) -> Option<u64>;
}

/// The kind of code at an address of a process.
#[derive(Clone, Copy, Debug)]
pub enum Code<'a> {
    /// A file with a table. `address` is the ELF virtual address.
    Table {
        /// The table of the file.
        table: &'a Table,
        /// The address in the file.
        address: u64,
    },
    /// A file without a table.
    NoTable,
    /// No file: code made at run time, or no code.
    Jit,
}

/// A process's executable mappings.
pub trait CodeSpace {
    /// The code at `pc`.
    fn code_at(&self, pc: u64) -> Code<'_>;
}

/// Walks from `start` outwards and replaces the contents of `frames` by the frames that it finds, at most
/// `max_frames`.
///
/// The first entry is the ip. Every other entry is one past its instruction, so that `entry - 1` is in the
/// function and the line: a return address as it is, and the ip plus 1 of a frame that a signal interrupted
/// and of the trampoline to which it returns. An interpreted method stands for its frame: [`INTERPRETED_METHOD`].
pub fn walk(
    start: Registers,
    memory: &mut impl Memory,
    code: &impl CodeSpace,
    max_frames: usize,
    frames: &mut Vec<u64>,
) -> StackEnd {
    frames.clear();
    let mut walker = Walker { registers: start, exact: true, memory };
    while frames.len() < max_frames {
        let (entry, rule) = walker.frame(frames.is_empty(), code);
        frames.push(entry);
        if let Err(end) = walker.step(rule) {
            return end;
        }
    }
    StackEnd::Truncated
}

/// One frame of the walk.
struct Walker<'m, M> {
    registers: Registers,
    /// The ip was interrupted. Else it is a return address.
    exact: bool,
    memory: &'m mut M,
}

/// The rule at a frame's code. Without a rule, and where the frame pointer does not serve either, the end of
/// the walk.
type Found = Result<Rule, StackEnd>;

impl<M: Memory> Walker<'_, M> {
    /// The frame's entry and its rule.
    fn frame(&mut self, innermost: bool, code: &impl CodeSpace) -> (u64, Found) {
        let (entry, rule) = self.code_frame(innermost, code);
        match rule {
            Ok(Rule { flags, .. }) if flags & Rule::RA_AT_FP != 0 => {
                let method = self.memory.word(self.registers.fp.wrapping_sub(METHOD_BELOW_FP)).unwrap_or(0);
                ((method | INTERPRETED_METHOD).wrapping_add(u64::from(!innermost)), rule)
            }
            _ => (entry, rule),
        }
    }

    fn code_frame(&self, innermost: bool, code: &impl CodeSpace) -> (u64, Found) {
        let ip = self.registers.ip;
        if innermost {
            return (ip, rule_at(code, ip));
        }
        let entry = if self.exact { ip.wrapping_add(1) } else { ip };
        let rule = rule_at(code, entry.wrapping_sub(1));
        // The return address of a handler is the first instruction of the trampoline, whose entry starts a
        // byte before it.
        let trampoline = rule.is_ok_and(|rule| rule.kind == RuleKind::Signal);
        (entry.wrapping_add(trampoline.into()), rule)
    }

    fn step(&mut self, rule: Found) -> Result<(), StackEnd> {
        match rule {
            Ok(Rule { kind: RuleKind::Uncovered, .. }) => self.step_by_frame_pointer(StackEnd::BadFrame),
            Err(lost) => self.step_by_frame_pointer(lost),
            Ok(Rule { kind: RuleKind::End, .. }) => Err(StackEnd::Complete),
            Ok(Rule { kind: RuleKind::Signal, .. }) => self.step_out_of_signal(),
            Ok(rule) => self.step_by_rule(rule),
        }
    }

    fn step_by_frame_pointer(&mut self, lost: StackEnd) -> Result<(), StackEnd> {
        let at = self.registers.fp;
        if at == 0 {
            return Err(StackEnd::FramePointerEnd);
        }
        if !at.is_multiple_of(8) || at < self.registers.sp {
            return Err(lost);
        }
        let unreadable = if lost == StackEnd::BadFrame { StackEnd::ReadFailed } else { lost };
        let fp = self.memory.word(at).ok_or(unreadable)?;
        let ip = self.memory.word(at.wrapping_add(8)).ok_or(unreadable)?;
        if ip == 0 {
            return Err(StackEnd::FramePointerEnd);
        }
        if !is_code(ip) {
            return Err(lost);
        }
        self.registers = Registers { ip, sp: at.wrapping_add(16), fp, ..Registers::default() };
        self.exact = false;
        Ok(())
    }

    fn step_out_of_signal(&mut self) -> Result<(), StackEnd> {
        let at = self.registers.sp;
        let registers = Registers {
            r10: Some(self.word(at.wrapping_add(signal_frame::R10))?),
            fp: self.word(at.wrapping_add(signal_frame::FP))?,
            bx: Some(self.word(at.wrapping_add(signal_frame::BX))?),
            ip: self.word(at.wrapping_add(signal_frame::IP))?,
            sp: self.word(at.wrapping_add(signal_frame::SP))?,
            link: None,
        };
        if !is_code(registers.ip) {
            return Err(StackEnd::BadFrame);
        }
        self.registers = registers;
        self.exact = true;
        Ok(())
    }

    fn step_by_rule(&mut self, rule: Rule) -> Result<(), StackEnd> {
        let cfa = self.cfa(rule)?;
        let in_register = rule.flags & Rule::RA_IN_REGISTER != 0;
        if rule.flags & Rule::ANY_STACK != 0 {
            self.registers.sp = 0;
        }
        // If the return address was popped or never pushed, sp is that of the caller.
        if cfa < self.registers.sp || (cfa == self.registers.sp && !in_register) {
            return Err(StackEnd::BadFrame);
        }
        let ip = match in_register {
            true => self.registers.link.ok_or(StackEnd::Unsupported)?,
            false => {
                let is_at_fp = rule.flags & Rule::RA_AT_FP != 0;
                self.word(words_from(if is_at_fp { self.registers.fp } else { cfa }, rule.ra))?
            }
        };
        if !is_code(ip) {
            return Err(StackEnd::BadFrame);
        }
        let fp = self.saved(rule.fp, rule.flags & Rule::FP_AT_FP != 0, cfa)?;
        let bx = self.saved(rule.bx, rule.flags & Rule::BX_AT_FP != 0, cfa)?;
        let before = self.registers;
        let (fp, bx) = (fp.unwrap_or(before.fp), bx.or(before.bx));
        self.registers = Registers { ip, sp: cfa, fp, bx, ..Registers::default() };
        self.exact = false;
        Ok(())
    }

    fn cfa(&mut self, rule: Rule) -> Result<u64, StackEnd> {
        let Registers { ip, sp, fp, bx, r10, .. } = self.registers;
        let plus = |base: u64| base.wrapping_add_signed(rule.cfa_offset.into());
        match rule.kind {
            RuleKind::Sp => Ok(plus(sp)),
            RuleKind::Fp => Ok(plus(fp)),
            RuleKind::Bx => bx.map(plus).ok_or(StackEnd::Unsupported),
            RuleKind::R10 => r10.map(plus).ok_or(StackEnd::Unsupported),
            RuleKind::SpDeref => Ok(self.word(plus(sp))?.wrapping_add_signed(rule.addend.into())),
            RuleKind::FpDeref => Ok(self.word(plus(fp))?.wrapping_add_signed(rule.addend.into())),
            RuleKind::Plt => {
                let pushed = (ip & 15) >= i64::from(rule.addend) as u64;
                Ok(plus(sp).wrapping_add(if pushed { 8 } else { 0 }))
            }
            _ => Err(StackEnd::Unsupported),
        }
    }

    /// The word that was saved `words` from the CFA (or from fp). `None` if the register was not saved or was
    /// restored already: a place below sp was popped, and a copy of a stack starts at sp.
    fn saved(&mut self, words: i16, at_fp: bool, cfa: u64) -> Result<Option<u64>, StackEnd> {
        if words == 0 && !at_fp {
            return Ok(None);
        }
        let base = if at_fp { self.registers.fp } else { cfa };
        let at = words_from(base, words);
        if at < self.registers.sp { Ok(None) } else { self.word(at).map(Some) }
    }

    fn word(&mut self, address: u64) -> Result<u64, StackEnd> {
        self.memory.word(address).ok_or(StackEnd::ReadFailed)
    }
}

fn rule_at(code: &impl CodeSpace, pc: u64) -> Found {
    match code.code_at(pc) {
        Code::Table { table, address } => Ok(table.rule_at(address)),
        Code::NoTable => Err(StackEnd::NoTable),
        Code::Jit => Err(StackEnd::Jit),
    }
}

fn is_code(address: u64) -> bool {
    (LOWEST_CODE..HIGHEST_CODE).contains(&address)
}

fn words_from(base: u64, words: i16) -> u64 {
    base.wrapping_add_signed(i64::from(words) * 8)
}

#[cfg(test)]
mod tests;
