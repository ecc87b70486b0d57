// SPDX-License-Identifier: Apache-2.0
//! The known facts of a function's frame before an instruction.

use super::instruction::{Effect, Saved};
use crate::rule::{Rule, RuleKind};

/// Amounts are in bytes, slots in words of 8 bytes from the CFA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// CFA - sp. `None`: unknown.
    pub sp: Option<i32>,
    /// CFA - rbp, if rbp is the frame pointer.
    base: Option<i32>,
    /// The slots in which the caller's registers are saved. 0: in the registers.
    fp: i16,
    bx: i16,
}

impl Frame {
    /// At a function's first instruction.
    pub(super) const ENTRY: Frame = Frame { sp: Some(8), base: None, fp: 0, bx: 0 };

    /// A frame without known facts.
    pub(super) fn of_sp(sp: i32) -> Frame {
        Frame { sp: Some(sp), ..Frame::ENTRY }
    }

    pub(super) fn rule(&self) -> Rule {
        // An offset from rbp is more reliable than one from counted pushes.
        let (kind, cfa_offset) = match (self.base, self.sp) {
            (Some(base), _) => (RuleKind::Fp, base),
            (None, Some(sp)) => (RuleKind::Sp, sp),
            (None, None) => return Rule::UNCOVERED,
        };
        Rule { kind, cfa_offset, ra: -1, fp: self.fp, bx: self.bx, ..Rule::default() }
    }

    /// The rule by sp, which `CompiledCode` knows at each instruction. rbp may be any value there.
    pub(super) fn rule_by_sp(&self) -> Rule {
        Frame { base: self.base.filter(|_| self.sp.is_none()), ..*self }.rule()
    }

    /// Whether rbp is saved where every compiler saves it first: below the return address.
    pub(super) fn has_saved_fp(&self) -> bool {
        self.fp == -2
    }

    pub(super) fn after(mut self, effect: Effect) -> Frame {
        match effect {
            Effect::None => {}
            Effect::Push(register) => {
                self.grow(8);
                self.save(register, 0);
            }
            Effect::Pop(register) => {
                self.load(register, 0);
                self.grow(-8);
            }
            Effect::Grow(amount) => self.grow(amount),
            Effect::LoseSp => self.sp = None,
            Effect::FrameFromSp(offset) => self.base = self.sp.and_then(|sp| sp.checked_sub(offset)),
            Effect::SpFromFrame(offset) => self.sp = self.base.and_then(|base| base.checked_sub(offset)),
            Effect::Leave => {
                self.sp = self.base;
                self.load(Saved::Fp, 0);
                self.grow(-8);
            }
            Effect::WriteFp => self.base = None,
            Effect::Store(register, offset) => self.save(register, offset),
            Effect::Load(register, offset) => self.load(register, offset),
        }
        // The return address cannot be below sp.
        self.sp = self.sp.filter(|&sp| sp >= 8);
        self
    }

    fn grow(&mut self, amount: i32) {
        self.sp = self.sp.and_then(|sp| sp.checked_add(amount));
    }

    /// The slot at sp + `offset`.
    fn slot(&self, offset: i32) -> Option<i16> {
        let words = self.sp?.checked_sub(offset)?.checked_div(8)?;
        i16::try_from(-words).ok().filter(|&slot| slot < -1)
    }

    /// A register has its caller's value until it is saved.
    fn save(&mut self, register: Saved, offset: i32) {
        let slot = self.slot(offset).unwrap_or(0);
        match register {
            Saved::Fp if self.fp == 0 && self.base.is_none() => self.fp = slot,
            Saved::Bx if self.bx == 0 => self.bx = slot,
            _ => {}
        }
    }

    fn load(&mut self, register: Saved, offset: i32) {
        let slot = self.slot(offset);
        match register {
            Saved::Fp => {
                self.base = None;
                if slot == Some(self.fp) {
                    self.fp = 0;
                }
            }
            Saved::Bx if slot == Some(self.bx) => self.bx = 0,
            _ => {}
        }
    }
}
