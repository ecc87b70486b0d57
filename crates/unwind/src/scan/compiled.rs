// SPDX-License-Identifier: Apache-2.0
//! Rules of a function that a compiler made at run time, and of which it says how large its frame is.
//!
//! Such code has one frame, which its entries set up and its returns remove. Code behind a jump has the frame of the
//! branches that lead to it; if none that comes before does, that frame. The compiler also says behind which calls the frame is whole. Code that contradicts it, or is not all
//! written yet, has no rules but there.

use std::collections::BTreeMap;

use super::frame::Frame;
use super::instruction::{Flow, Instructions};
use crate::rule::{Rule, RuleKind};

/// Code with more changes of its frame was not written by a compiler.
const MOST_RULES: usize = 1 << 16;

/// A function that was made at run time.
#[derive(Clone, Copy, Debug)]
pub struct CompiledCode<'c> {
    /// The address of its first byte.
    pub address: u64,
    /// Its instructions.
    pub code: &'c [u8],
    /// From sp in its body to its CFA.
    pub frame_bytes: i32,
    /// Addresses besides the first one at which it is entered, without a frame.
    pub entries: &'c [u64],
    /// The return addresses of calls at which the frame is whole, ascending, each once.
    pub calls: &'c [u64],
}

impl CompiledCode<'_> {
    /// Passes the rules to `row`, with the addresses of their first byte and behind their last one, ascending.
    pub fn rules(&self, mut row: impl FnMut(u64, u64, Rule)) {
        if let Some(rules) = self.followed() {
            rules.into_iter().for_each(|(start, end, rule)| row(start, end, rule));
        } else {
            // fp lies below the return address wherever it is saved.
            let rule =
                Rule { kind: RuleKind::Sp, cfa_offset: self.frame_bytes, ra: -1, fp: -2, ..Rule::default() };
            self.calls.iter().for_each(|&call| row(call - 1, call, rule));
        }
    }

    /// `None`: the code has another frame than the compiler says, or other calls.
    fn followed(&self) -> Option<Vec<(u64, u64, Rule)>> {
        let mut rules: Vec<(u64, u64, Rule)> = Vec::new();
        let is_whole = |frame: &Frame| frame.sp == Some(self.frame_bytes);
        let mut frame = Frame::ENTRY;
        let mut body = Some(frame).filter(is_whole);
        let mut calls = self.calls.iter().peekable();
        // By the addresses of branches' targets further on.
        let mut targets: BTreeMap<u64, Frame> = BTreeMap::new();
        for found in Instructions::new(self.code, self.address) {
            if self.entries.contains(&found.address) {
                frame = Frame::ENTRY;
            }
            let end = found.address + u64::from(found.len);
            if let Some(&call) = calls.peek().filter(|call| ***call <= end) {
                if *call != end || !is_whole(&frame) {
                    return None;
                }
                calls.next();
            }
            let rule = frame.rule_by_sp();
            let is_full = rules.len() == MOST_RULES;
            match rules.last_mut() {
                _ if rule == Rule::UNCOVERED => {}
                Some((_, before, known)) if *before == found.address && *known == rule => *before = end,
                _ if is_full => return None,
                _ => rules.push((found.address, end, rule)),
            }
            frame = frame.after(found.effect);
            // sp may have its place before rbp is saved.
            if is_whole(&frame) && body.is_none_or(|body| !body.has_saved_fp()) {
                body = Some(frame);
            }
            if let Flow::Jump(target) | Flow::Branch(target) = found.flow
                && target >= end
            {
                if targets.len() == MOST_RULES {
                    return None;
                }
                targets.entry(target).or_insert(frame);
            }
            targets = targets.split_off(&end);
            if found.flow.is_last() {
                frame = targets.get(&end).copied().or(body).unwrap_or(Frame::ENTRY);
            }
        }
        calls.next().is_none().then_some(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x1000;

    fn sp(cfa_offset: i32, fp: i16) -> Rule {
        Rule { kind: RuleKind::Sp, cfa_offset, ra: -1, fp, ..Rule::default() }
    }

    fn rules(code: &[u8], frame_bytes: i32, entries: &[u64], calls: &[u64]) -> Vec<(u64, u64, Rule)> {
        let mut rules = Vec::new();
        let compiled = CompiledCode { address: AT, code, frame_bytes, entries, calls };
        compiled.rules(|start, end, rule| rules.push((start - AT, end - AT, rule)));
        rules
    }

    /// What HotSpot's second compiler writes: the check of the stack's end, the frame, a call, the frame's end with
    /// the check for a safepoint, and code behind it that runs in the frame.
    const FUNCTION: [&[u8]; 9] = [
        &[0x89, 0x84, 0x24, 0x00, 0xc0, 0xfe, 0xff], // 0: mov %eax,-0x14000(%rsp)
        &[0x55],                                     // 7: push %rbp
        &[0x48, 0x83, 0xec, 0x20],                   // 8: sub $0x20,%rsp
        &[0xe8, 0, 0, 0, 0],                         // 12: call
        &[0x48, 0x83, 0xc4, 0x20],                   // 17: add $0x20,%rsp
        &[0x5d],                                     // 21: pop %rbp
        &[0x49, 0x3b, 0xa7, 0x40, 0x03, 0, 0, 0x77, 0x08, 0xc3], // 22: cmp 0x340(%r15),%rsp; ja 39; ret
        &[0xe8, 0, 0, 0, 0],                         // 32: call
        &[0xeb, 0xe0],                               // 37: jmp
    ];

    #[test]
    fn frame_is_followed_through_its_start_and_its_end() {
        let found = rules(&FUNCTION.concat(), 48, &[], &[AT + 17, AT + 37]);
        let expected = [
            (0, 8, sp(8, 0)),
            (8, 12, sp(16, -2)),
            (12, 21, sp(48, -2)),
            (21, 22, sp(16, -2)),
            (22, 32, sp(8, 0)),
            (32, 39, sp(48, -2)),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn calls_that_contradict_the_frame_alone_are_covered() {
        let found = rules(&FUNCTION.concat(), 64, &[], &[AT + 17, AT + 37]);
        assert_eq!(found, [(16, 17, sp(64, -2)), (36, 37, sp(64, -2))]);
    }

    #[test]
    fn other_entries_have_no_frame_yet() {
        let code = [FUNCTION.concat(), FUNCTION[1..].concat()].concat();
        let entry = FUNCTION.concat().len() as u64;
        let found = rules(&code, 48, &[AT + entry], &[]);
        assert!(found.contains(&(entry, entry + 1, sp(8, 0))), "{found:?}");
        assert!(found.contains(&(entry + 5, entry + 14, sp(48, -2))), "{found:?}");
    }

    #[test]
    fn frame_is_known_by_sp_also_where_there_is_a_frame_pointer() {
        // push %rbp; mov %rsp,%rbp; sub $0x30,%rsp; call; leave; ret
        let code =
            [&[0x55, 0x48, 0x8b, 0xec, 0x48, 0x83, 0xec, 0x30][..], &[0xe8, 0, 0, 0, 0, 0xc9, 0xc3]].concat();
        let found = rules(&code, 64, &[], &[AT + 13]);
        assert_eq!(found, [(0, 1, sp(8, 0)), (1, 8, sp(16, -2)), (8, 14, sp(64, -2)), (14, 15, sp(8, 0))]);
    }

    #[test]
    fn a_value_in_rbp_is_no_frame_pointer() {
        // As in the body of a method that has a value near its stack in rbp: lea 0x10(%rsp),%rbp
        let lea = [0x48, 0x8d, 0x6c, 0x24, 0x10];
        let code = [FUNCTION[1], FUNCTION[2], &lea, FUNCTION[3], FUNCTION[4], FUNCTION[5], &[0xc3]].concat();
        let found = rules(&code, 48, &[], &[AT + 15]);
        let expected = [
            (0, 1, sp(8, 0)),
            (1, 5, sp(16, -2)),
            (5, 19, sp(48, -2)),
            (19, 20, sp(16, -2)),
            (20, 21, sp(8, 0)),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn frame_is_whole_once_rbp_is_saved() {
        // As of a method that needs no check of the stack's end: sub $0x28,%rsp; mov %rbp,0x20(%rsp)
        let start = [&[0x48, 0x83, 0xec, 0x28][..], &[0x48, 0x89, 0x6c, 0x24, 0x20]].concat();
        // add $0x20,%rsp; pop %rbp; ret; call
        let end = [FUNCTION[4], FUNCTION[5], &[0xc3], FUNCTION[7]].concat();
        let found = rules(&[start, end].concat(), 48, &[], &[AT + 20]);
        let expected = [
            (0, 4, sp(8, 0)),
            (4, 9, sp(48, 0)),
            (9, 13, sp(48, -2)),
            (13, 14, sp(16, -2)),
            (14, 15, sp(8, 0)),
            (15, 20, sp(48, -2)),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn code_behind_a_jump_has_the_frame_of_the_branch_to_it() {
        // As in the wrapper of a native method, which calls with an aligned stack whether it was or not.
        let code = [
            FUNCTION[1],
            FUNCTION[2],
            &[0x56, 0x74, 0x06],       // 5: push %rsi; je 14
            &[0x48, 0x83, 0xec, 0x08], // 8: sub $8,%rsp
            &[0xeb, 0x05],             // 12: jmp 19
            &[0xe8, 0, 0, 0, 0],       // 14: call
            &[0x5e],                   // 19: pop %rsi
            FUNCTION[3],               // 20: call
        ]
        .concat();
        let found = rules(&code, 48, &[], &[AT + 25]);
        let expected = [
            (0, 1, sp(8, 0)),
            (1, 5, sp(16, -2)),
            (5, 6, sp(48, -2)),
            (6, 12, sp(56, -2)),
            (12, 14, sp(64, -2)),
            (14, 20, sp(56, -2)),
            (20, 25, sp(48, -2)),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn code_to_which_a_return_branches_has_no_frame() {
        // The check for a safepoint after the frame's end.
        let code = [FUNCTION.concat(), vec![0xe8, 0, 0, 0, 0]].concat();
        assert_eq!(rules(&code, 48, &[], &[AT + 17, AT + 37]).last(), Some(&(39, 44, sp(8, 0))));
    }

    #[test]
    fn code_that_is_not_written_yet_is_not_followed() {
        let whole = FUNCTION.concat();
        let calls = [AT + 17, AT + 37];
        let alone = [(16, 17, sp(48, -2)), (36, 37, sp(48, -2))];
        for written in 0..12 {
            let mut code = whole.clone();
            code[written..].fill(0);
            assert_eq!(rules(&code, 48, &[], &calls), alone, "{written}");
        }
        assert_eq!(rules(&whole[..30], 48, &[], &calls), alone);
    }
}
