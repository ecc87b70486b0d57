// SPDX-License-Identifier: Apache-2.0
//! Function tables written by hand, in each of Go's layouts.

use super::*;
use crate::fixture::{AARCH64, CODE, Cfi, EH_FRAME, Image};
use crate::table::Table;
use crate::{Budget, STEPS, TableError};

const PCLNTAB: u64 = 0x60_0000;
const ASM: u8 = 4;

/// A function of an invented program.
struct Made {
    name: &'static str,
    code: &'static [u8],
    /// Pairs of increments of frame and address. The frame starts at -1.
    pcsp: &'static [(i8, u8)],
    flags: u8,
}

const fn made(name: &'static str, code: &'static [u8], pcsp: &'static [(i8, u8)]) -> Made {
    Made { name, code, pcsp, flags: 0 }
}

/// Functions of 32 bytes each.
const SIZE: u64 = 32;

/// push %rbp at 4, 40 more bytes from 8, removed from 20.
const FRAMED: Made =
    made("main.framed", &[0x90, 0x90, 0x90, 0x90, 0x55], &[(1, 5), (8, 3), (40, 12), (-48, 12)]);
/// sub $48,%rsp; mov %rbp,40(%rsp), as Go before 1.21.
const OLD: Made =
    made("main.old", &[0x48, 0x83, 0xec, 0x30, 0x48, 0x89, 0x6c, 0x24, 0x28], &[(1, 4), (48, 28)]);
/// pushf, in assembly.
const PUSHES: Made = made("main.pushes", &[0x9c], &[(1, 1), (8, 31)]);

fn program(layout: Layout, functions: &[Made]) -> Image {
    let code = functions.iter().flat_map(|function| {
        let mut code = function.code.to_vec();
        code.resize(SIZE as usize, 0x90);
        code
    });
    let image = Image { code: code.collect(), ..Image::new(0) };
    image.section(".gopclntab", PCLNTAB, &pclntab(layout, CODE, functions))
}

fn pclntab(layout: Layout, text: u64, functions: &[Made]) -> Vec<u8> {
    let (magic, header_len) = match layout {
        Layout::Go1_16 => (MAGIC_1_16, 64),
        Layout::Go1_18 => (MAGIC_1_18, 72),
        Layout::Go1_20 => (MAGIC_1_20, 72),
    };
    let (mut names, mut pctab) = (vec![0], vec![0]);
    let half = layout.index_bytes() / 2;
    let mut records_at = (functions.len() + 1) * 2 * half;
    let (mut index, mut records) = (vec![], vec![]);
    for (number, function) in functions.iter().enumerate() {
        let entry = if layout == Layout::Go1_16 { text } else { 0 } + number as u64 * SIZE;
        index.extend(&entry.to_le_bytes()[..half]);
        index.extend(&(records_at as u64).to_le_bytes()[..half]);
        let record = record(layout, entry, function, names.len() as u32, pctab.len() as u32);
        records_at += record.len();
        records.extend(record);
        names.extend(function.name.bytes().chain([0]));
        for &(value, advanced) in function.pcsp {
            pctab.extend([(value << 1 ^ value >> 7) as u8, advanced]);
        }
        pctab.push(0);
    }
    let end = if layout == Layout::Go1_16 { text } else { 0 } + functions.len() as u64 * SIZE;
    index.extend(&end.to_le_bytes()[..half]);
    index.resize(index.len() + half, 0);
    index.extend(records);

    let mut bytes = [&magic.to_le_bytes()[..], &[0, 0, 1, 8]].concat();
    bytes.extend([functions.len() as u64, 0].map(u64::to_le_bytes).concat());
    if layout != Layout::Go1_16 {
        bytes.extend(text.to_le_bytes());
    }
    let pctab_at = header_len + names.len() as u64;
    let index_at = pctab_at + pctab.len() as u64;
    bytes.extend([header_len, header_len, header_len, pctab_at, index_at].map(u64::to_le_bytes).concat());
    [bytes, names, pctab, index].concat()
}

fn record(layout: Layout, entry: u64, function: &Made, name: u32, pcsp: u32) -> Vec<u8> {
    let mut record = entry.to_le_bytes()[..layout.index_bytes() / 2].to_vec();
    record.extend([name, 0, 0, pcsp, 0, 0, 0, 0].map(u32::to_le_bytes).concat());
    if layout == Layout::Go1_20 {
        record.extend([0; 4]);
    }
    record.extend([0, function.flags, 0, 0]);
    record
}

fn rules_of(table: &Table, number: u64) -> Vec<(u64, Rule)> {
    let start = CODE + number * SIZE;
    table.changes(start, start + SIZE).into_iter().map(|(address, rule)| (address - start, rule)).collect()
}

fn frame(cfa_offset: i32, fp: i16) -> Rule {
    Rule { kind: RuleKind::Sp, cfa_offset, ra: -1, fp, ..Rule::default() }
}

#[test]
fn frames_in_each_layout() {
    for layout in [Layout::Go1_16, Layout::Go1_18, Layout::Go1_20] {
        let table = program(layout, &[FRAMED, OLD, PUSHES]).table();
        let framed = [(0, frame(8, 0)), (5, frame(16, -2)), (8, frame(56, -2)), (20, frame(8, 0))];
        assert_eq!(rules_of(&table, 0), framed);
        // Saved once the store is done.
        assert_eq!(rules_of(&table, 1), [(0, frame(8, 0)), (4, frame(56, 0)), (9, frame(56, -2))]);
        assert_eq!(rules_of(&table, 2), [(0, frame(8, 0)), (1, frame(16, 0))]);
        assert_eq!(table.rule_at(CODE + 3 * SIZE), Rule::UNCOVERED);
        assert_eq!(table.coverage().entries, 3);
    }
}

#[test]
fn functions_with_special_names() {
    let names = [
        "runtime.goexit",
        "runtime.goexit1",
        "runtime.mstart",
        "runtime.mstart1",
        "runtime.rt0_go",
        "_rt0_amd64_linux",
        "runtime.systemstack",
        "runtime.mcall",
        "runtime.morestack_noctxt",
        "runtime.asmcgocall",
        "runtime.gogo",
        "main.main",
    ];
    let functions: Vec<Made> = names.into_iter().map(|name| made(name, &[], &[(1, 32)])).collect();
    let table = program(Layout::Go1_16, &functions).table();
    let kinds: Vec<RuleKind> =
        (0..names.len() as u64).map(|number| rules_of(&table, number)[0].1.kind).collect();
    use RuleKind::{End, Sp, Uncovered};
    assert_eq!(
        kinds,
        [End, Sp, End, Sp, End, End, Uncovered, Uncovered, Uncovered, Uncovered, Uncovered, Sp]
    );
}

#[test]
fn functions_that_write_sp_are_left_to_frame_pointers() {
    let functions = [Made { flags: FLAG_SP_WRITE | ASM, ..PUSHES }, Made { flags: ASM, ..PUSHES }];
    for layout in [Layout::Go1_18, Layout::Go1_20] {
        let table = program(layout, &functions).table();
        assert_eq!(rules_of(&table, 0), [(0, Rule::UNCOVERED)]);
        assert_eq!(rules_of(&table, 1).len(), 2);
    }
}

/// push %rbp; mov %rsp,%rbp; …; pop %rbp; ret, with another stack in between, as systemstack.
const LINKED: Made =
    made("runtime.systemstack", &[0x55, 0x48, 0x89, 0xe5, 0x90], &[(1, 1), (8, 29), (-8, 1), (8, 1)]);
/// mov $0,%rbp at 8, as morestack. The rest is another stack.
const CUT: Made = made(
    "runtime.morestack",
    &[0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x48, 0xc7, 0xc5, 0, 0, 0, 0],
    &[(1, 32)],
);

#[test]
fn other_stack_is_left_by_frame_pointer_or_not() {
    let linked = Rule { kind: RuleKind::Fp, flags: Rule::ANY_STACK, cfa_offset: 16, fp: -2, ..frame(0, 0) };
    for layout in [Layout::Go1_16, Layout::Go1_18, Layout::Go1_20] {
        let flagged = |made: Made| Made { flags: FLAG_SP_WRITE | ASM, ..made };
        let unknown = made("runtime.mcall", &[0x55, 0x48, 0x89, 0xe5], &[(1, 1), (8, 31)]);
        let table = program(layout, &[flagged(LINKED), flagged(CUT), flagged(unknown)]).table();
        let expected = [(0, frame(8, 0)), (1, frame(16, -2)), (4, linked), (30, frame(8, 0)), (31, linked)];
        assert_eq!(rules_of(&table, 0), expected);
        assert_eq!(rules_of(&table, 1), [(0, frame(8, 0)), (8, Rule::END)]);
        assert_eq!(rules_of(&table, 2), [(0, Rule::UNCOVERED)]);
    }
}

#[test]
fn signal_trampoline_starts_a_byte_early() {
    let functions = [FRAMED, made("runtime.sigreturn__sigaction", &[], &[(1, 32)]), FRAMED];
    let table = program(Layout::Go1_20, &functions).table();
    assert_eq!(rules_of(&table, 0).last(), Some(&(31, Rule::SIGNAL)));
    assert_eq!(rules_of(&table, 1), [(0, Rule::SIGNAL)]);
    assert_eq!(rules_of(&table, 2)[0], (0, frame(8, 0)));
}

#[test]
fn aarch64_keeps_the_return_address_at_the_frames_bottom() {
    let functions = [made("main.main", &[], &[(1, 8), (48, 16), (-48, 8)])];
    let table = Image { machine: AARCH64, ..program(Layout::Go1_20, &functions) }.table();
    let leaf = Rule { kind: RuleKind::Sp, flags: Rule::RA_IN_REGISTER, ..Rule::default() };
    let framed = Rule { kind: RuleKind::Sp, cfa_offset: 48, ra: -6, fp: -7, ..Rule::default() };
    assert_eq!(rules_of(&table, 0), [(0, leaf), (8, framed), (24, leaf)]);
}

#[test]
fn unwind_entries_win_over_the_function_table() {
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.usual_cie();
    cfi.fde(cie, CODE + SIZE - 2, 8, &[0x0e, 80]);
    let image = program(Layout::Go1_20, &[PUSHES, PUSHES]).section(".eh_frame", EH_FRAME, &cfi.bytes);
    let table = image.table();
    assert_eq!(rules_of(&table, 0), [(0, frame(8, 0)), (1, frame(16, 0)), (30, frame(80, 0))]);
    assert_eq!(rules_of(&table, 1), [(0, frame(80, 0)), (6, frame(16, 0))]);
    assert_eq!(table.coverage().entries, 3);
}

#[test]
fn the_table_is_found_under_each_of_its_names_and_without_one() {
    let functions = [PUSHES];
    let expected = [(0, frame(8, 0)), (1, frame(16, 0))];
    for name in [".data.rel.ro.gopclntab", ".data.rel.ro"] {
        let mut image = program(Layout::Go1_20, &functions);
        image.sections[0].name = name;
        let image = image.section(".go.buildinfo", 0, &[]);
        assert_eq!(rules_of(&image.table(), 0), expected, "{name}");
    }
    // By its symbol, in an ordinary section.
    let mut image = program(Layout::Go1_20, &functions);
    image.sections[0].name = ".rodata";
    let symbol = [&1u32.to_le_bytes()[..], &[0; 4], &PCLNTAB.to_le_bytes(), &[0; 8]].concat();
    let mut image = image
        .section(".go.buildinfo", 0, &[])
        .section(".strtab", 0, b"\0runtime.pclntab\0")
        .section(".symtab", 0, &symbol);
    image.sections[3].kind = 2;
    image.sections[3].link = 3;
    assert_eq!(rules_of(&image.table(), 0), expected);
}

#[test]
fn a_header_without_the_start_of_text_leads_to_the_module_data() {
    let shifted = SIZE;
    let functions = [PUSHES];
    let image = |module: &[u8]| {
        let mut image = Image::new(3 * SIZE as usize);
        image.code[shifted as usize] = 0x9c;
        let image = image.section(".gopclntab", PCLNTAB, &pclntab(Layout::Go1_20, 0, &functions));
        image.section(".go.module", 0x80_0000, module).section(".text", CODE, &[])
    };
    let mut module = vec![0; 184];
    module[..8].copy_from_slice(&PCLNTAB.to_le_bytes());
    module[176..].copy_from_slice(&(CODE + shifted).to_le_bytes());
    assert_eq!(image(&module).table().rule_at(CODE + shifted + 1), frame(16, 0));
    // The same in a position-independent file.
    let relocations: Vec<u8> = [(0x80_0000, PCLNTAB), (0x80_0000 + 176, CODE + shifted)]
        .iter()
        .flat_map(|&(place, value)| [place, 8, value].map(u64::to_le_bytes).concat())
        .collect();
    let mut relocated = image(&[0; 184]).section(".rela", 0, &relocations);
    relocated.sections[3].kind = 4;
    assert_eq!(relocated.table().rule_at(CODE + shifted + 1), frame(16, 0));
    // Of another module or of none: from the section's start.
    assert_eq!(image(&[0; 184]).table().rule_at(CODE + 1), frame(16, 0));
}

#[test]
fn damaged_tables_end() {
    // Steps that do not advance, lead past the function, or are damaged.
    let expected = [(0, frame(8, 0)), (1, Rule::UNCOVERED)];
    let standing = made("main.a", &[], &[(1, 1), (8, 0)]);
    let ended = made("main.b", &[], &[(1, 1)]);
    let table = program(Layout::Go1_20, &[standing, ended]).table();
    assert_eq!((rules_of(&table, 0), rules_of(&table, 1)), (expected.to_vec(), expected.to_vec()));
    let below = made("main.c", &[], &[(1, 4), (-8, 28)]);
    let table = program(Layout::Go1_20, &[below]).table();
    assert_eq!(rules_of(&table, 0), [(0, frame(8, 0)), (4, Rule::UNSUPPORTED)]);
    assert_eq!(table.coverage().unencodable(Unencodable::CfaOffset).code, 28);
}

#[test]
fn wrong_byte_in_the_table_does_not_panic() {
    for layout in [Layout::Go1_16, Layout::Go1_18, Layout::Go1_20] {
        let image = program(layout, &[FRAMED, OLD, PUSHES]);
        for at in 0..image.sections[0].bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut image = program(layout, &[FRAMED, OLD, PUSHES]);
                image.sections[0].bytes[at] = value;
                // It must end, and cover no more than the code.
                if let Ok(table) = Table::from_elf(&image.bytes()) {
                    assert_eq!(table.rule_at(CODE + 3 * SIZE), Rule::UNCOVERED);
                }
            }
            let mut cut = program(layout, &[FRAMED, OLD, PUSHES]);
            cut.sections[0].bytes.truncate(at);
            if let Ok(table) = Table::from_elf(&cut.bytes()) {
                assert_eq!(table.rule_at(CODE + 3 * SIZE), Rule::UNCOVERED);
            }
        }
    }
}

/// A frame that grows or shrinks with every byte of code: one row for each byte.
const ROWS: [(i8, u8); SIZE as usize] = {
    let mut pairs = [(8, 1); SIZE as usize];
    let mut at = 1;
    while at < pairs.len() {
        pairs[at].0 = -8;
        at += 2;
    }
    pairs[0].0 = 9;
    pairs
};

struct AtMost {
    held: u64,
    questions: std::cell::Cell<u64>,
}

impl Budget for AtMost {
    fn allows(&self, held: u64) -> bool {
        self.questions.set(self.questions.get() + 1);
        held <= self.held
    }
}

#[test]
fn rows_of_a_function_table_are_charged() {
    let budget = |held| AtMost { held, questions: 0.into() };
    let flood = |functions| {
        let functions: Vec<Made> = (0..functions).map(|_| made("main.rows", &[], &ROWS)).collect();
        program(Layout::Go1_20, &functions).bytes()
    };
    let (small, large) = (flood(1_000), flood(20_000));
    let held = 2 * small.len() as u64 + (1 << 20);
    let table = Table::from_image(&&small[..], &budget(held)).expect("within the budget");
    assert_eq!(table.coverage().rows, 1_000 * SIZE + 1, "each row, and the end");
    let asked = budget(u64::MAX);
    assert!(Table::from_image(&&large[..], &asked).is_ok());
    assert!(asked.questions.get() >= 20_000 * SIZE / STEPS, "work is charged as it is done");
    // Its sections fit. Its rows do not.
    let tight = budget(large.len() as u64 + (1 << 20));
    assert_eq!(Table::from_image(&&large[..], &tight).err(), Some(TableError::OverBudget));
}
