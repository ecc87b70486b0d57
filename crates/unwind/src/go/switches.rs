// SPDX-License-Identifier: Apache-2.0
//! Functions of Go's runtime that change stacks half-way, on x86_64: the way from the new stack to the old
//! one.
//!
//! `runtime/asm_amd64.s` of Go 1.21 and later. Earlier runtimes leave no frame, and their functions stay
//! uncovered.

use crate::elf::{Elf, Range};
use crate::rule::{Rule, RuleKind};

/// Limit on the bytes of instructions that are searched for a pattern. These functions are short.
const MAX_CODE: usize = 512;

/// push %rbp; mov %rsp,%rbp
const OPENS_FRAME: &[u8] = &[0x55, 0x48, 0x89, 0xe5];
/// mov $0,%rbp
const CLEARS_FP: &[u8] = &[0x48, 0xc7, 0xc5, 0, 0, 0, 0];

/// A change of stacks within a function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Switch {
    /// The function leaves the new stack before it returns. Its frame pointer stays on the old one.
    Linked,
    /// The scheduler starts on the new stack and never returns from it. The goroutine may continue elsewhere
    /// meanwhile.
    Cut,
}

const SWITCHES: [(&[u8], Switch); 8] = [
    (b"runtime.systemstack", Switch::Linked),
    (b"runtime.asmcgocall", Switch::Linked),
    (b"runtime.cgocallback", Switch::Linked),
    // These functions call the vDSO on the scheduler's stack.
    (b"runtime.nanotime1", Switch::Linked),
    (b"runtime.walltime", Switch::Linked),
    (b"time.now", Switch::Linked),
    (b"runtime.mcall", Switch::Cut),
    (b"runtime.morestack", Switch::Cut),
];

/// The address from which a function's rule differs from that of its stack pointer.
pub(super) struct SwitchedRule {
    from: u64,
    switch: Switch,
}

impl Switch {
    /// `name` is followed by a NUL.
    pub(super) fn of(name: &[u8]) -> Option<Switch> {
        let is = |known: &[u8]| {
            name.strip_prefix(known)
                .is_some_and(|rest| rest.starts_with(b"\0") || rest.starts_with(b".abi0\0"))
        };
        SWITCHES.iter().find(|(known, _)| is(known)).map(|&(_, switch)| switch)
    }

    /// The place of the change in the function at `entry`. `None` if its code is unknown.
    pub(super) fn find(self, elf: &Elf, entry: u64) -> Option<SwitchedRule> {
        let mut buffer = [0; MAX_CODE];
        let code = elf.read_at(entry, &mut buffer)?;
        let at = |pattern: &[u8]| code.windows(pattern.len()).position(|bytes| bytes == pattern);
        let from = match self {
            Switch::Linked => at(OPENS_FRAME)? + OPENS_FRAME.len(),
            Switch::Cut => at(CLEARS_FP)?,
        };
        Some(SwitchedRule { from: entry.checked_add(from as u64)?, switch: self })
    }
}

impl SwitchedRule {
    /// The parts of a row with their rules. `rule` is the rule by the stack pointer.
    pub(super) fn parts(&self, row: Range, rule: Rule) -> [(Range, Rule); 2] {
        let split = self.from.clamp(row.start, row.end);
        let switched = match self.switch {
            Switch::Cut => Rule::END,
            // Before the frame is made and after it is removed, the return address is at sp.
            Switch::Linked if rule.fp == 0 => rule,
            Switch::Linked => LINKED,
        };
        [(Range { start: row.start, end: split }, rule), (Range { start: split, end: row.end }, switched)]
    }
}

const LINKED: Rule =
    Rule { kind: RuleKind::Fp, flags: Rule::ANY_STACK, addend: 0, cfa_offset: 16, ra: -1, fp: -2, bx: 0 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole() {
        assert!(Switch::of(b"runtime.systemstack\0") == Some(Switch::Linked));
        assert!(Switch::of(b"runtime.morestack.abi0\0x") == Some(Switch::Cut));
        for other in
            [&b"runtime.systemstack_switch\0"[..], b"runtime.morestack_noctxt\0", b"runtime.mcall", b""]
        {
            assert!(Switch::of(other).is_none());
        }
    }
}
