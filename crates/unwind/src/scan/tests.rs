// SPDX-License-Identifier: Apache-2.0
//! Compares rules from instructions with those from unwind entries, and with code written by hand.

use super::*;
use crate::fixture::{CODE, Image};
use crate::rule::RuleKind;
use crate::table::Table;

/// The comparison of found rules with those of unwind entries, in bytes of code.
#[derive(Debug, Default)]
struct Comparison {
    compared: u64,
    same: u64,
    found: u64,
}

fn compare(path: &str) -> Option<Comparison> {
    let image = std::fs::read(path).ok()?;
    let (bytes, meter) = (&image[..], crate::image::Meter::new(&crate::Unlimited));
    let elf = Elf::read(&bytes, &meter).expect("an ELF file");
    let table = Table::from_elf(&image).expect("a table");
    let text = elf.section_named(".text").expect("code");
    let len = elf.section_bytes(&text).expect("code").len() as u64;
    let mut comparison = Comparison::default();
    let mut last = text.address;
    Scan::new(&elf).rows(Range { start: text.address, end: text.address + len }, &mut |start, end, rule| {
        assert!(last <= start && start < end, "rows ascend");
        last = end;
        (start..end).for_each(|at| comparison.add(rule, table.rule_at(at)));
    });
    assert!(last <= text.address + len);
    Some(comparison)
}

impl Comparison {
    /// Entries may use another register, and report saved ones a little later.
    fn add(&mut self, found: Rule, expected: Rule) {
        self.found += 1;
        if found.kind == RuleKind::Sp && expected.kind == RuleKind::Sp {
            self.compared += 1;
            self.same += u64::from(found.cfa_offset == expected.cfa_offset);
        }
    }
}

/// The rest is mostly padding after calls that do not return, and parts that follow such calls.
#[test]
fn rules_from_code_agree_with_unwind_entries() {
    for (path, least) in [("/lib/x86_64-linux-gnu/libc.so.6", 98), ("/usr/bin/bash", 98)] {
        let Some(comparison) = compare(path) else {
            let test = "rules_from_code_agree_with_unwind_entries";
            wallprof_testkit::skip(test, &format!("{path} is not there"));
            continue;
        };
        let Comparison { compared, same, found } = comparison;
        eprintln!("{path}: {same} of {compared} bytes, {found} found");
        assert!(compared > 100_000 && same * 100 >= compared * least, "{path}: {comparison:?}");
    }
}

/// The rules of `code`, a program without symbols.
fn rules(code: &[u8]) -> Vec<(u64, Rule)> {
    let image = Image { code: code.to_vec(), ..Image::new(0) };
    let table = Table::from_elf(&image.bytes()).expect("a table");
    let changes = table.changes(CODE, CODE + code.len() as u64);
    changes.into_iter().map(|(address, rule)| (address - CODE, rule)).collect()
}

fn sp(cfa_offset: i32) -> Rule {
    Rule { kind: RuleKind::Sp, cfa_offset, ra: -1, ..Rule::default() }
}

#[test]
fn pushes_and_pops() {
    // push %rbp; push %rbx; sub $8,%rsp; nop; add $8,%rsp; pop %rbx; pop %rbp; ret
    let code = [0x55, 0x53, 0x48, 0x83, 0xec, 8, 0x90, 0x48, 0x83, 0xc4, 8, 0x5b, 0x5d, 0xc3];
    let saved = |cfa_offset, bx| Rule { fp: -2, bx, ..sp(cfa_offset) };
    let expected =
        [(0, sp(8)), (1, saved(16, 0)), (2, saved(24, -3)), (6, saved(32, -3)), (11, saved(24, -3))];
    let end = [(12, saved(16, 0)), (13, sp(8))];
    assert_eq!(rules(&code), [&expected[..], &end].concat());
}

#[test]
fn frame_of_unknown_size_uses_rbp() {
    // push %rbp; mov %rsp,%rbp; sub %rax,%rsp; leave; ret
    let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x29, 0xc4, 0xc9, 0xc3];
    let by_fp = Rule { kind: RuleKind::Fp, fp: -2, ..sp(16) };
    assert_eq!(rules(&code), [(0, sp(8)), (1, Rule { fp: -2, ..sp(16) }), (4, by_fp), (8, sp(8))]);
}

#[test]
fn code_of_interpreters_is_left_to_frame_pointers() {
    // push %rax; jmp *%rcx
    let dispatches = [0x50, 0xff, 0xe1, 0xc3];
    assert_eq!(rules(&dispatches), [(0, Rule::UNCOVERED), (3, sp(8))]);
    // 0: push %rax; jne 0; ret; then ret
    let grows = [0x50, 0x75, 0xfd, 0xc3, 0xc3];
    assert_eq!(rules(&grows), [(0, Rule::UNCOVERED), (4, sp(8))]);
}

#[test]
fn code_after_a_return_belongs_to_its_jump() {
    // push %rbx; je 5; pop %rbx; ret; nop…; 5: pop %rbx; ret
    let code = [0x53, 0x74, 2, 0x5b, 0xc3, 0x5b, 0xc3];
    let pushed = Rule { bx: -2, ..sp(16) };
    assert_eq!(rules(&code), [(0, sp(8)), (1, pushed), (4, sp(8)), (5, pushed), (6, sp(8))]);
}

#[test]
fn unreached_code_has_the_depth_of_its_return() {
    // ret; add $24,%rsp; ret
    let code = [0xc3, 0x48, 0x83, 0xc4, 24, 0xc3];
    assert_eq!(rules(&code), [(0, sp(8)), (1, sp(32)), (5, sp(8))]);
}

#[test]
fn threads_start_and_signals_return_in_code_without_entries() {
    // ret; xor %ebp,%ebp; pop %rdi; call *%r9; mov %eax,%edi; mov $60,%al; syscall; hlt
    let thread = [0xc3, 0x31, 0xed, 0x5f, 0x41, 0xff, 0xd1, 0x89, 0xc7, 0xb0, 60, 0x0f, 0x05, 0xf4];
    assert_eq!(rules(&thread), [(0, sp(8)), (1, Rule::END)]);
    // ret; nop; mov $15,%rax; syscall; ret
    let signal = [0xc3, 0x90, 0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05, 0xc3];
    assert_eq!(rules(&signal), [(0, sp(8)), (1, Rule::SIGNAL), (11, sp(8))]);
}

#[test]
fn invalid_bytes_end_the_code_before_them() {
    // push %rax; (06: none in 64-bit code); ret
    assert_eq!(rules(&[0x50, 0x06, 0xc3]), [(0, sp(8)), (1, sp(16)), (2, sp(8))]);
    // All that exist, whatever they are.
    for byte in 0..=u8::MAX {
        let image = Image { code: vec![byte; 300], ..Image::new(0) };
        if let Ok(table) = Table::from_elf(&image.bytes()) {
            assert_eq!(table.rule_at(CODE + 300), Rule::UNCOVERED);
        }
    }
}
