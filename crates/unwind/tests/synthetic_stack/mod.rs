// SPDX-License-Identifier: Apache-2.0
//! Stacks that are generated from a file's own rules: every frame is at some address of the file's code and
//! has the layout of its rule.
//!
//! The address need not follow a call. Entries there may say that a popped register is saved below sp, which
//! unwinders treat differently. So fp counts as lost where a rule does not give its place.

use wallprof_unwind::{Code, CodeSpace, Memory, PAGE_TEXT, Registers, Rule, RuleKind, Table};

/// The address of the stack's lowest word.
const STACK: u64 = 0x7ffd_0000_0000;
/// The distance from there to the start of walks: popped words can still be read.
const POPPED: u64 = 512;
/// The load address of the file: `pc - BIAS` is its virtual address.
pub const BIAS: u64 = 0x7f00_0000_0000;

/// Not a value of fp.
const LOST: u64 = 0;

/// A stack of words, and where a walk through it starts.
pub struct SyntheticStack {
    pub start: Registers,
    pub words: Vec<u64>,
    /// The frames that a walk finds.
    pub frames: Vec<u64>,
}

/// One file mapped at `BIAS`.
pub struct OneFile<'t>(pub &'t Table);

impl CodeSpace for OneFile<'_> {
    fn code_at(&self, pc: u64) -> Code<'_> {
        match pc.checked_sub(BIAS) {
            Some(address) => Code::Table { table: self.0, address },
            None => Code::Jit,
        }
    }
}

/// The stack as memory.
pub struct Words<'s>(pub &'s [u64]);

impl Words<'_> {
    pub fn at(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(STACK).filter(|offset| offset % 8 == 0)?;
        self.0.get(usize::try_from(offset / 8).ok()?).copied()
    }
}

impl Memory for Words<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        self.at(address)
    }
}

impl SyntheticStack {
    /// A stack of `depth` frames, all but the last in code that is `usable`. `random` provides numbers. The
    /// outermost frame is at one of the file's own ends.
    pub fn new(
        table: &Table,
        depth: usize,
        usable: impl Fn(u64) -> bool,
        mut random: impl FnMut() -> u64,
    ) -> SyntheticStack {
        let places = Places { table, len: table.pages().len() as u64 * PAGE_TEXT, usable };
        let sp = STACK + POPPED;
        let mut registers = Registers { sp, fp: sp + 64, ..Registers::default() };
        let mut stack = SyntheticStack { start: registers, words: vec![], frames: vec![] };
        let (mut pc, mut rule) = places.pick(registers, &mut random);
        stack.start.ip = BIAS + pc;
        stack.frames.push(BIAS + pc);
        for frame in 1..depth {
            let cfa = cfa(rule, registers).expect("picked for it");
            // Space for the next frame that is relative to fp.
            let saved_fp = cfa + 64 + random() % 32 * 8;
            registers.fp = LOST;
            if rule.fp != 0 {
                stack.write(cfa.wrapping_add_signed(i64::from(rule.fp) * 8), saved_fp);
                registers.fp = saved_fp;
            }
            registers.sp = cfa;
            let end = frame + 1 == depth;
            (pc, rule) = if end { (places.end(), Rule::END) } else { places.pick(registers, &mut random) };
            stack.write(cfa - 8, BIAS + pc + 1);
            stack.frames.push(BIAS + pc + 1);
        }
        stack
    }

    fn write(&mut self, address: u64, value: u64) {
        let at = ((address - STACK) / 8) as usize;
        if self.words.len() <= at {
            self.words.resize(at + 1, 0);
        }
        self.words[at] = value;
    }
}

fn cfa(rule: Rule, registers: Registers) -> Option<u64> {
    let base = match rule.kind {
        RuleKind::Sp => registers.sp,
        RuleKind::Fp if registers.fp != LOST => registers.fp,
        _ => return None,
    };
    // Frames of more than a page would make stacks long.
    let far = registers.sp + 4096;
    let cfa = base.wrapping_add_signed(rule.cfa_offset.into());
    let saved_above_sp = rule.fp == 0 || cfa.wrapping_add_signed(i64::from(rule.fp) * 8) >= registers.sp;
    (cfa >= registers.sp + 8 && cfa < far && saved_above_sp && rule.flags == 0).then_some(cfa)
}

/// Code addresses that can be frames.
struct Places<'t, F> {
    table: &'t Table,
    len: u64,
    usable: F,
}

impl<F: Fn(u64) -> bool> Places<'_, F> {
    fn pick(&self, registers: Registers, random: &mut impl FnMut() -> u64) -> (u64, Rule) {
        loop {
            let pc = self.table.base() + random() % self.len;
            let rule = self.table.rule_at(pc);
            if cfa(rule, registers).is_some() && (self.usable)(pc) {
                return (pc, rule);
            }
        }
    }

    fn end(&self) -> u64 {
        let first = self.table.base();
        let end = (first..first + self.len).find(|&pc| self.table.rule_at(pc) == Rule::END);
        end.expect("the file has an outermost function")
    }
}
