// SPDX-License-Identifier: Apache-2.0
//! Walks over stacks that are drawn word by word.

use super::*;
use crate::coverage::Coverage;
use crate::pages::PageEncoder;
use std::collections::BTreeMap;

/// The start of functions of 0x100 bytes each, by their position in the list of rules.
const CODE: u64 = 0x40_0000;
const STACK: u64 = 0x7ffd_0000_0000;
/// Code of a file without a table.
const TABLELESS: u64 = 0x50_0000;
/// Code that is in no file.
const JIT: u64 = 0x60_0000;

struct Drawn {
    table: Table,
    words: BTreeMap<u64, u64>,
    registers: Registers,
}

impl Memory for BTreeMap<u64, u64> {
    fn word(&mut self, address: u64) -> Option<u64> {
        self.get(&address).copied()
    }
}

impl CodeSpace for Table {
    fn code_at(&self, pc: u64) -> Code<'_> {
        match pc {
            ..TABLELESS => Code::Table { table: self, address: pc },
            TABLELESS..JIT => Code::NoTable,
            _ => Code::Jit,
        }
    }
}

/// The address `offset` bytes into the function of rule `number`.
fn at(number: usize, offset: u64) -> u64 {
    CODE + number as u64 * 0x100 + offset
}

const fn rule(kind: RuleKind, cfa_offset: i32) -> Rule {
    Rule { kind, cfa_offset, ra: -1, flags: 0, addend: 0, fp: 0, bx: 0 }
}

/// Starts in the middle of function 0. `words` are written from the start of the stack.
fn drawn(rules: &[Rule], words: &[u64]) -> Drawn {
    let mut encoder = PageEncoder::new(CODE);
    for number in 0..rules.len() {
        encoder.cover(at(number, 0), at(number, 0x100), number as u32);
    }
    let table = Table::new(CODE, encoder.finish(), rules.to_vec(), Coverage::default());
    let words = words.iter().enumerate().map(|(index, &word)| (STACK + index as u64 * 8, word)).collect();
    let registers = Registers { ip: at(0, 0x80), sp: STACK, ..Registers::default() };
    Drawn { table, words, registers }
}

impl Drawn {
    fn starting(mut self, change: impl FnOnce(&mut Registers)) -> Drawn {
        change(&mut self.registers);
        self
    }

    fn walk_to(mut self, max_frames: usize) -> (StackEnd, Vec<u64>) {
        let mut frames = vec![1, 2, 3];
        let end = walk(self.registers, &mut self.words, &self.table, max_frames, &mut frames);
        (end, frames)
    }

    fn walk(self) -> (StackEnd, Vec<u64>) {
        self.walk_to(128)
    }

    fn end(self) -> StackEnd {
        self.walk().0
    }
}

const SP: Rule = rule(RuleKind::Sp, 16);

#[test]
fn return_addresses_belong_to_the_instruction_before_them() {
    // Function 0 was called by the last instruction of function 1, which never gets its return.
    let walk = drawn(&[SP, SP, Rule::END], &[0, at(2, 0), 0, at(3, 0)]).walk();
    assert_eq!(walk, (StackEnd::Complete, vec![at(0, 0x80), at(2, 0), at(3, 0)]));
}

#[test]
fn the_interrupted_instruction_is_looked_up_itself() {
    let walk = drawn(&[SP, Rule::END], &[]).starting(|registers| registers.ip = at(1, 0)).walk();
    assert_eq!(walk, (StackEnd::Complete, vec![at(1, 0)]));
}

#[test]
fn saved_registers_are_restored_before_they_are_needed() {
    let saves = Rule { fp: -2, bx: -3, ..rule(RuleKind::Sp, 32) };
    let by_fp = rule(RuleKind::Fp, 16);
    let by_bx = rule(RuleKind::Bx, 8);
    // 0 saves both. 1 uses the saved fp, 2 the saved bx.
    let words = [0, STACK + 72, STACK + 40, at(1, 9), 0, 0, at(2, 9), 0, 0, at(3, 9)];
    let drawn = drawn(&[saves, by_fp, by_bx, Rule::END], &words);
    assert_eq!(drawn.walk(), (StackEnd::Complete, vec![at(0, 0x80), at(1, 9), at(2, 9), at(3, 9)]));
}

#[test]
fn frame_relative_to_fp_restores_by_fp() {
    // A realigned stack: CFA = *(fp - 8), fp saved at fp + 0, bx at fp - 16.
    let flags = Rule::FP_AT_FP | Rule::BX_AT_FP;
    let realigned = Rule { flags, bx: -2, ..rule(RuleKind::FpDeref, -8) };
    let by_fp = rule(RuleKind::Fp, 16);
    let by_bx = rule(RuleKind::Bx, 0);
    let words = [0, STACK + 96, STACK + 48, STACK + 64, 0, at(1, 9), 0, at(1, 9), 0, at(2, 9), 0, at(3, 9)];
    let drawn =
        drawn(&[realigned, by_fp, by_bx, Rule::END], &words).starting(|registers| registers.fp = STACK + 24);
    assert_eq!(drawn.walk(), (StackEnd::Complete, vec![at(0, 0x80), at(1, 9), at(2, 9), at(3, 9)]));
}

#[test]
fn a_frame_whose_return_address_is_not_below_the_callers_stack() {
    // An interpreted method of HotSpot: its caller's sp is in the word below fp.
    let flags = Rule::FP_AT_FP | Rule::RA_AT_FP;
    let interpreted = Rule { flags, ra: 1, ..rule(RuleKind::FpDeref, -8) };
    let words = [0, STACK + 56, STACK + 80, at(1, 9), 7, 7, 7, 0, at(2, 9), 0, 0, at(3, 9)];
    let by_fp = rule(RuleKind::Fp, 16);
    let drawn = drawn(&[interpreted, rule(RuleKind::Sp, 16), by_fp, Rule::END], &words)
        .starting(|registers| registers.fp = STACK + 16);
    assert_eq!(drawn.walk(), (StackEnd::Complete, vec![INTERPRETED_METHOD, at(1, 9), at(2, 9), at(3, 9)]));
}

#[test]
fn an_interpreted_method_stands_for_its_frame() {
    let flags = Rule::FP_AT_FP | Rule::RA_AT_FP;
    let interpreted = Rule { flags, ra: 1, ..rule(RuleKind::FpDeref, -8) };
    let method = 0x7f12_3456_7890;
    let words = |caller| [0, 0, at(1, 9), method, 0, STACK + 72, STACK + 80, caller, 0, 0];
    let walk = |rules: &[Rule], caller| {
        drawn(rules, &words(caller)).starting(|registers| registers.fp = STACK + 48).walk().1
    };
    let found = walk(&[interpreted, Rule::END], at(1, 9));
    assert_eq!(found, [method | INTERPRETED_METHOD, at(1, 9)]);
    let found = walk(&[rule(RuleKind::Sp, 24), interpreted, Rule::END], at(2, 9));
    assert_eq!(found, [at(0, 0x80), (method | INTERPRETED_METHOD) + 1, at(2, 9)]);
}

#[test]
fn a_caller_on_a_lower_stack() {
    let linked = Rule { flags: Rule::ANY_STACK, fp: -2, ..rule(RuleKind::Fp, 16) };
    let by_fp = rule(RuleKind::Fp, 16);
    let words = [STACK + 24, at(2, 9), 0, 0, at(3, 9), 0, at(1, 9)];
    let walk = |first| {
        let below = drawn(&[SP, first, by_fp, Rule::END], &words);
        below.starting(|registers| (registers.sp, registers.fp) = (STACK + 40, STACK)).walk()
    };
    let found = vec![at(0, 0x80), at(1, 9), at(2, 9), at(3, 9)];
    assert_eq!(walk(linked), (StackEnd::Complete, found.clone()));
    let refused = (StackEnd::BadFrame, found[..2].to_vec());
    assert_eq!(walk(Rule { flags: 0, ..linked }), refused);
}

#[test]
fn the_cfa_by_each_kind() {
    let r10 = rule(RuleKind::R10, 0);
    let deref = Rule { addend: 8, ..rule(RuleKind::SpDeref, 8) };
    let found = (StackEnd::Complete, vec![at(0, 0x80), at(1, 9)]);
    let words = [0, STACK + 16, at(1, 9)];
    let by_r10 = drawn(&[r10, Rule::END], &words).starting(|registers| registers.r10 = Some(STACK + 24));
    assert_eq!(by_r10.walk(), found);
    assert_eq!(drawn(&[deref, Rule::END], &words).walk(), found);
    // An entry of a PLT, before and after its push.
    let plt = Rule { addend: 11, ..rule(RuleKind::Plt, 8) };
    let before = drawn(&[plt, Rule::END], &[at(1, 9)]).starting(|registers| registers.ip = at(0, 0x8a));
    assert_eq!(before.walk(), (StackEnd::Complete, vec![at(0, 0x8a), at(1, 9)]));
    let after = drawn(&[plt, Rule::END], &[7, at(1, 9)]).starting(|registers| registers.ip = at(0, 0x8b));
    assert_eq!(after.walk(), (StackEnd::Complete, vec![at(0, 0x8b), at(1, 9)]));
}

#[test]
fn unknown_registers_end_a_walk() {
    let by_bx = rule(RuleKind::Bx, 16);
    let by_r10 = rule(RuleKind::R10, 16);
    assert_eq!(drawn(&[by_bx], &[]).end(), StackEnd::Unsupported);
    assert_eq!(drawn(&[by_r10], &[]).end(), StackEnd::Unsupported);
    // r10 is known in the interrupted frame only, and bx until a step by frame pointer.
    let known = |registers: &mut Registers| (registers.bx, registers.r10) = (Some(STACK), Some(STACK));
    assert_eq!(drawn(&[SP, by_r10], &[0, at(1, 9)]).starting(known).end(), StackEnd::Unsupported);
    let drawn_bx = drawn(&[SP, by_bx, Rule::END], &[0, at(1, 9), 0, at(2, 9)]);
    let known = |registers: &mut Registers| registers.bx = Some(STACK + 16);
    assert_eq!(drawn_bx.starting(known).end(), StackEnd::Complete);
    let by_frame_pointer = drawn(&[Rule::UNCOVERED, by_bx], &[0, at(1, 9)]);
    let known = |registers: &mut Registers| (registers.fp, registers.bx) = (STACK, Some(STACK + 16));
    assert_eq!(by_frame_pointer.starting(known).end(), StackEnd::Unsupported);
    assert_eq!(drawn(&[Rule::UNSUPPORTED], &[]).end(), StackEnd::Unsupported);
    let in_register = Rule { flags: Rule::RA_IN_REGISTER, ..SP };
    assert_eq!(drawn(&[in_register], &[0, at(0, 9)]).end(), StackEnd::Unsupported);
}

#[test]
fn a_return_address_in_its_register() {
    // As in vfork after its pop: sp is already that of the caller. Only the first frame has the register.
    let leaf = Rule { flags: Rule::RA_IN_REGISTER, ra: 0, ..rule(RuleKind::Sp, 0) };
    let linked = |registers: &mut Registers| registers.link = Some(at(1, 9));
    let walk = drawn(&[leaf, Rule::END], &[]).starting(linked).walk();
    assert_eq!(walk, (StackEnd::Complete, vec![at(0, 0x80), at(1, 9)]));
    assert_eq!(drawn(&[leaf, leaf], &[]).starting(linked).end(), StackEnd::Unsupported);
    let below = Rule { cfa_offset: -8, ..leaf };
    assert_eq!(drawn(&[below], &[]).starting(linked).end(), StackEnd::BadFrame);
    let nowhere = |registers: &mut Registers| registers.link = Some(0);
    assert_eq!(drawn(&[leaf], &[]).starting(nowhere).end(), StackEnd::BadFrame);
}

#[test]
fn through_a_signal_handler() {
    // Handler 0 returns to trampoline 1, whose entry starts a byte before it. The interrupted function 2 was
    // on another stack, at its first byte, and uses r10. 3 uses bx.
    let other = STACK - 0x1000;
    let trampoline = at(1, 1);
    let mut drawn = drawn(
        &[SP, Rule::SIGNAL, rule(RuleKind::R10, 0), rule(RuleKind::Bx, 0), Rule::END],
        &[0, trampoline],
    );
    let context = STACK + 16;
    let registers = [(56, other + 8), (120, 5), (128, other + 16), (160, other), (168, at(2, 0))];
    drawn.words.extend(registers.map(|(offset, value)| (context + offset, value)));
    drawn.words.extend([(other, at(3, 9)), (other + 8, at(4, 9))]);
    let frames = vec![at(0, 0x80), trampoline + 1, at(2, 1), at(3, 9), at(4, 9)];
    assert_eq!(drawn.walk(), (StackEnd::Complete, frames));
}

#[test]
fn inside_the_trampoline() {
    let mut drawn = drawn(&[Rule::SIGNAL, Rule::END], &[]);
    let registers = [(56, 0), (120, 0), (128, 0), (160, STACK + 8), (168, at(1, 5))];
    drawn.words.extend(registers.map(|(offset, value)| (STACK + offset, value)));
    assert_eq!(drawn.walk(), (StackEnd::Complete, vec![at(0, 0x80), at(1, 6)]));
}

#[test]
fn a_damaged_signal_frame() {
    let mut unreadable = drawn(&[Rule::SIGNAL], &[]);
    assert_eq!(drawn(&[Rule::SIGNAL], &[]).end(), StackEnd::ReadFailed);
    unreadable.words.extend([56, 120, 128, 160, 168].map(|offset| (STACK + offset, 0)));
    assert_eq!(unreadable.end(), StackEnd::BadFrame);
}

#[test]
fn frame_pointers_serve_uncovered_code() {
    let chain = [STACK + 32, at(1, 9), 0, 0, STACK + 48, TABLELESS + 9, STACK + 64, JIT + 9, 0, at(2, 9)];
    let drawn = drawn(&[Rule::UNCOVERED, Rule::UNCOVERED, Rule::UNCOVERED], &chain);
    let frames = vec![at(0, 0x80), at(1, 9), TABLELESS + 9, JIT + 9, at(2, 9)];
    assert_eq!(drawn.starting(|registers| registers.fp = STACK).walk(), (StackEnd::FramePointerEnd, frames));
}

#[test]
fn ends_of_a_chain_of_frame_pointers() {
    for (ip, lost, unreadable) in [
        (at(0, 0x80), StackEnd::BadFrame, StackEnd::ReadFailed),
        (TABLELESS, StackEnd::NoTable, StackEnd::NoTable),
        (JIT, StackEnd::Jit, StackEnd::Jit),
    ] {
        let end = |fp: u64, words: &[u64]| {
            let from = |registers: &mut Registers| (registers.ip, registers.fp) = (ip, fp);
            drawn(&[Rule::UNCOVERED], words).starting(from).end()
        };
        assert_eq!(end(0, &[]), StackEnd::FramePointerEnd);
        assert_eq!(end(STACK + 4, &[0, 0, 0]), lost);
        assert_eq!(end(STACK - 8, &[]), lost);
        assert_eq!(end(STACK, &[]), unreadable);
        assert_eq!(end(STACK, &[0]), unreadable);
        assert_eq!(end(STACK, &[0, 0]), StackEnd::FramePointerEnd);
        for ip in [1, 0xffff, 1 << 47, u64::MAX] {
            assert_eq!(end(STACK, &[0, ip]), lost);
        }
        assert_eq!(end(u64::MAX - 7, &[]), unreadable);
    }
}

#[test]
fn frames_ascend_and_return_to_code() {
    for offset in [0, -8, i32::MIN] {
        assert_eq!(drawn(&[rule(RuleKind::Sp, offset)], &[at(0, 9); 8]).end(), StackEnd::BadFrame);
    }
    assert_eq!(drawn(&[SP], &[0]).end(), StackEnd::ReadFailed);
    for ip in [0, 0xffff, 1 << 47, u64::MAX] {
        assert_eq!(drawn(&[SP], &[0, ip]).walk(), (StackEnd::BadFrame, vec![at(0, 0x80)]));
    }
    let saved_nowhere = Rule { fp: 5, ..SP };
    assert_eq!(drawn(&[saved_nowhere], &[0, at(0, 9)]).walk(), (StackEnd::ReadFailed, vec![at(0, 0x80)]));
    // At the ends of the address space nothing overflows.
    let at_the_end = |registers: &mut Registers| (registers.sp, registers.fp) = (u64::MAX - 7, u64::MAX);
    for kind in RuleKind::ALL {
        drawn(&[rule(kind, i32::MAX)], &[]).starting(at_the_end).walk();
    }
}

#[test]
fn registers_that_were_popped_have_their_value_back() {
    // Both were saved right below sp, and the entry still says so. The next frame needs fp.
    let popped = Rule { fp: -3, bx: -4, ..SP };
    let rules = [popped, rule(RuleKind::Fp, 16), Rule::END];
    let mut drawn =
        drawn(&rules, &[0, at(1, 9), 0, at(2, 9)]).starting(|registers| registers.fp = STACK + 16);
    drawn.words.insert(STACK - 8, 1);
    assert_eq!(drawn.walk(), (StackEnd::Complete, vec![at(0, 0x80), at(1, 9), at(2, 9)]));
}

#[test]
fn number_of_frames_is_limited() {
    let words = [0, at(0, 9), 0, at(0, 9), 0, at(1, 9)];
    let walk = |max_frames| drawn(&[SP, Rule::END], &words).walk_to(max_frames);
    assert_eq!(walk(0), (StackEnd::Truncated, vec![]));
    assert_eq!(walk(3), (StackEnd::Truncated, vec![at(0, 0x80), at(0, 9), at(0, 9)]));
    assert_eq!(walk(4), (StackEnd::Complete, vec![at(0, 0x80), at(0, 9), at(0, 9), at(1, 9)]));
}
