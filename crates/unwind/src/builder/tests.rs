// SPDX-License-Identifier: Apache-2.0
//! Tables of files written by hand: usual files, and hostile ones.

use super::*;
use crate::error::Part;
use crate::fixture::{AARCH64, CODE, Cfi, EH_FRAME, Image};
use std::io::Write;

const SP_8: Rule = sp(8);

const fn sp(cfa_offset: i32) -> Rule {
    Rule { kind: RuleKind::Sp, cfa_offset, ra: -1, flags: 0, addend: 0, fp: 0, bx: 0 }
}

/// One function at `CODE` with the usual CIE.
fn one_function(len: u64, program: &[u8]) -> Table {
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.usual_cie();
    cfi.fde(cie, CODE, len, program);
    Image::with_eh_frame(len as usize, &cfi).table()
}

fn rules_of(table: &Table, len: u64) -> Vec<(u64, Rule)> {
    table.changes(CODE, CODE + len).into_iter().map(|(address, rule)| (address - CODE, rule)).collect()
}

/// As much as a build may hold.
struct AtMost(u64);

impl Budget for AtMost {
    fn allows(&self, held: u64) -> bool {
        held <= self.0
    }
}

/// One row of a function as large as a sparse file claims to be fills a page for each 64 KiB of it.
#[test]
fn pages_of_one_long_row_are_charged() {
    const LEN: u64 = 32 << 20;
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.usual_cie();
    cfi.fde(cie, CODE, LEN, &[]);
    let image = Image::with_eh_frame(LEN as usize, &cfi).bytes();
    let pages = LEN / PAGE_TEXT * PAGE_BYTES;
    let built = |held| Table::from_image(&&image[..], &AtMost(held)).map(|table| table.pages().len() as u64);
    assert_eq!(built(pages / 2), Err(TableError::OverBudget));
    assert_eq!(built(pages + (1 << 20)), Ok(LEN / PAGE_TEXT + 1), "twin: within the budget");
}

#[test]
fn a_function_with_a_frame_pointer() {
    // push %rbp; mov %rsp,%rbp; … pop %rbp; ret; and the other way out.
    let program = [
        0x41, 0x0e, 16, 0x86, 2, // 1: rsp + 16, rbp saved at CFA - 16
        0x43, 0x0d, 6, // 4: by rbp
        0x0a, 0x02, 100, 0x0c, 7, 8, 0xc6, // 104: popped
        0x03, 1, 0, 0x0b, // 105: as it was remembered
    ];
    let table = one_function(300, &program);
    let by_fp = Rule { kind: RuleKind::Fp, cfa_offset: 16, fp: -2, ..sp(16) };
    let expected = [(0, SP_8), (1, Rule { fp: -2, ..sp(16) }), (4, by_fp), (104, SP_8), (105, by_fp)];
    assert_eq!(rules_of(&table, 300), expected);
    assert_eq!(table.rule_at(CODE - 1), Rule::UNCOVERED);
    assert_eq!(table.rule_at(CODE + 300), Rule::UNCOVERED);
    assert_eq!(table.rule_at(0), Rule::UNCOVERED);
    assert_eq!(table.rule_at(u64::MAX), Rule::UNCOVERED);
    let coverage = table.coverage();
    assert_eq!((coverage.entries, coverage.file_rows, coverage.rows), (1, 5, 6));
    assert_eq!(coverage.code(RuleKind::Fp), 100 + 195);
    assert_eq!(table.base(), 0x40_0000);
}

#[test]
fn every_instruction_that_moves_on_or_defines() {
    let set_loc = [&[0x01][..], &(CODE + 60).to_le_bytes()].concat();
    let program = [
        &[0x02, 10, 0x0e, 24][..],           // advance_loc1, def_cfa_offset
        &[0x03, 10, 0, 0x13, 0x7c],          // advance_loc2, def_cfa_offset_sf -4 * -8
        &[0x04, 10, 0, 0, 0, 0x12, 6, 0x7d], // advance_loc4, def_cfa_sf rbp + 24
        &[0x4a, 0x05, 3, 5, 0x11, 6, 3],     // offset_extended rbx, offset_extended_sf rbp
        &[0x4a, 0x06, 3, 0x08, 6, 0x2e, 16], // restore_extended rbx, same_value rbp, GNU_args_size
        &set_loc,
        &[0x2f, 3, 2, 0x09, 6, 6, 0x14, 7, 0], // GNU_negative_offset_extended, register rbp = rbp, val_offset rsp
        &[0x4a, 0x07, 16],                     // undefined return address
    ]
    .concat();
    let table = one_function(80, &program);
    let fp_24 = Rule { kind: RuleKind::Fp, cfa_offset: 24, ..SP_8 };
    let expected = [
        (0, SP_8),
        (10, sp(24)),
        (20, sp(32)),
        (30, fp_24),
        (40, Rule { bx: -5, fp: -3, ..fp_24 }),
        (50, fp_24),
        (60, Rule { bx: 2, ..fp_24 }),
        (70, Rule::END),
    ];
    assert_eq!(rules_of(&table, 80), expected);
}

#[test]
fn popped_registers_are_unchanged() {
    // rbx and rbp pushed, then both popped; their entries stay.
    let table = one_function(32, &[0x0e, 24, 0x86, 2, 0x83, 3, 0x41, 0x0e, 16, 0x41, 0x0e, 8]);
    let both = Rule { fp: -2, bx: -3, ..sp(24) };
    assert_eq!(rules_of(&table, 32), [(0, both), (1, Rule { bx: 0, cfa_offset: 16, ..both }), (2, SP_8)]);
}

#[test]
fn rows_that_differ_in_other_registers_are_one() {
    let table = one_function(32, &[0x41, 0x8c, 3, 0x41, 0x8d, 4, 0x41, 0x0e, 16]);
    assert_eq!(rules_of(&table, 32), [(0, SP_8), (3, sp(16))]);
    assert_eq!(table.coverage().file_rows, 4);
}

#[test]
fn a_realigned_stack() {
    // As gcc writes it: r10 holds the CFA, is pushed, and is below rbp from then on. rbx is saved relative to
    // rbp.
    let program = [
        0x45, 0x0c, 10, 0, // CFA = r10
        0x49, 0x10, 6, 2, 0x76, 0, // rbp saved at rbp + 0
        0x45, 0x0f, 3, 0x76, 0x78, 0x06, // CFA = *(rbp - 8)
        0x41, 0x10, 3, 2, 0x76, 0x70, // rbx saved at rbp - 16
    ];
    let table = one_function(64, &program);
    let by_r10 = Rule { kind: RuleKind::R10, cfa_offset: 0, ..SP_8 };
    let saved = Rule { flags: Rule::FP_AT_FP, ..by_r10 };
    let loaded = Rule { kind: RuleKind::FpDeref, cfa_offset: -8, ..saved };
    let both = Rule { flags: Rule::FP_AT_FP | Rule::BX_AT_FP, bx: -2, ..loaded };
    assert_eq!(rules_of(&table, 64), [(0, SP_8), (5, by_r10), (14, saved), (19, loaded), (20, both)]);
}

#[test]
fn places_from_the_cfas_register_are_made_relative_to_the_cfa() {
    let table = one_function(8, &[0x0e, 32, 0x10, 3, 2, 0x77, 8, 0x10, 6, 2, 0x77, 16]);
    assert_eq!(rules_of(&table, 8), [(0, Rule { bx: -3, fp: -2, ..sp(32) })]);
}

#[test]
fn the_linkers_and_openssls_expressions() {
    let plt = [0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
    let openssl = [0x50, 0x0f, 5, 0x77, 0x28, 0x06, 0x23, 8];
    let by_bx = [0x50, 0x0c, 3, 16];
    let table = one_function(64, &[&plt[..], &openssl, &by_bx].concat());
    let expected = [
        (0, Rule { kind: RuleKind::Plt, addend: 11, ..SP_8 }),
        (16, Rule { kind: RuleKind::SpDeref, cfa_offset: 40, addend: 8, ..SP_8 }),
        (32, Rule { kind: RuleKind::Bx, cfa_offset: 16, ..SP_8 }),
    ];
    assert_eq!(rules_of(&table, 64), expected);
}

#[test]
fn signal_frames_are_the_kernels_only_by_their_shape() {
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.cie(b"zS", &[0], &[0x0c, 7, 8, 0x90, 1]);
    let context = [0, 0x0f, 4, 0x77, 0xa0, 1, 0x06, 0x10, 16, 3, 0x77, 0xa8, 1];
    let range = |start: u64| [CODE + start, 16].map(u64::to_le_bytes).concat();
    cfi.fde_of_bytes(cie, &[&range(0)[..], &context].concat());
    cfi.fde_of_bytes(cie, &[&range(16)[..], &[0]].concat());
    let table = Image::with_eh_frame(32, &cfi).table();
    assert_eq!(rules_of(&table, 32), [(0, Rule::SIGNAL), (16, SP_8)]);
}

#[test]
fn aarch64_by_role() {
    // stp x29, x30, [sp, -32]!; mov x29, sp; ldp; ret
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.cie_of_machine(b"", (4, 30), &[], &[0x0c, 31, 0]);
    cfi.fde(
        cie,
        CODE,
        24,
        &[0x2d, 0x41, 0x0e, 32, 0x9d, 4, 0x9e, 3, 0x41, 0x0d, 29, 0x42, 0x0c, 31, 0, 0xdd, 0xde],
    );
    let table = Image { machine: AARCH64, ..Image::with_eh_frame(24, &cfi) }.table();
    let leaf = Rule { kind: RuleKind::Sp, flags: Rule::RA_IN_REGISTER, ..Rule::default() };
    let saved = Rule { kind: RuleKind::Sp, cfa_offset: 32, ra: -3, fp: -4, ..Rule::default() };
    let expected = [(0, leaf), (4, saved), (8, Rule { kind: RuleKind::Fp, ..saved }), (16, leaf)];
    assert_eq!(rules_of(&table, 24), expected);
}

#[test]
fn inexpressible_rows_are_counted_by_reason() {
    for (reason, program) in [
        (Unencodable::CfaRegister, &[0x0c, 11, 8][..]),
        (Unencodable::CfaRegister, &[0x0f, 3, 0x70, 8, 0x06]),
        (Unencodable::CfaExpression, &[0x0f, 1, 0x30]),
        (Unencodable::CfaOffset, &[0x0e, 0x80, 0x80, 0x80, 0x80, 0x08]),
        (Unencodable::CfaOffset, &[0x0f, 7, 0x77, 0, 0x06, 0x23, 0x80, 0x80, 0x02]),
        (Unencodable::ReturnAddress, &[0x08, 16]),
        (Unencodable::ReturnAddress, &[0x09, 16, 2]),
        (Unencodable::ReturnAddress, &[0x05, 16, 0x81, 0x80, 0x02]),
        (Unencodable::FramePointer, &[0x07, 6]),
        (Unencodable::FramePointer, &[0x14, 6, 2]),
        (Unencodable::FramePointer, &[0x86, 0]),
        (Unencodable::FramePointer, &[0x10, 6, 3, 0x76, 8, 0x06]),
        (Unencodable::Bx, &[0x09, 3, 2]),
        (Unencodable::Bx, &[0x16, 3, 1, 0x30]),
        (Unencodable::Bx, &[0x10, 3, 2, 0x76, 4]),
        (Unencodable::StackPointer, &[0x14, 7, 1]),
        (Unencodable::StackPointer, &[0x87, 2]),
    ] {
        let table = one_function(40, &[&[0x45], program].concat());
        assert_eq!(rules_of(&table, 40), [(0, SP_8), (5, Rule::UNSUPPORTED)], "{program:x?}");
        let share = table.coverage().unencodable(reason);
        assert_eq!((share.rows, share.code), (1, 35), "{program:x?}");
        assert_eq!(table.coverage().unencodable_share(), 35.0 / 40.0);
    }
}

#[test]
fn bad_instruction_makes_later_rows_unsupported() {
    let set_loc_back = [&[0x01][..], &(CODE + 1).to_le_bytes()].concat();
    let remembered_without_end = [0x0a; 40];
    for program in [
        &[0x3f][..],
        &[0x0b],
        &[0x0f, 100],
        &[0x0e],
        &[0x0f, 1, 0x30, 0x0e, 8],
        &[0x2d],
        &[0x07],
        &set_loc_back,
        &remembered_without_end,
    ] {
        let table = one_function(40, &[&[0x45, 0x0e, 16, 0x45], program].concat());
        assert_eq!(rules_of(&table, 40), [(0, SP_8), (5, sp(16)), (10, Rule::UNSUPPORTED)], "{program:x?}");
        assert_eq!(table.coverage().unencodable(Unencodable::Instruction).code, 30);
    }
}

#[test]
fn rows_end_where_their_function_does() {
    let table = one_function(8, &[0x44, 0x0e, 16, 0x04, 0xff, 0xff, 0xff, 0xff, 0x0e, 24]);
    assert_eq!(rules_of(&table, 8), [(0, SP_8), (4, sp(16))]);
    assert_eq!(table.rule_at(CODE + 8), Rule::UNCOVERED);
}

#[test]
fn of_overlapping_entries_the_later_one_wins() {
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.usual_cie();
    // Not in order. The second of two at the same address is dropped.
    for (start, len, size) in [(100, 10, 16), (0, 200, 24), (100, 80, 32), (190, 20, 40)] {
        cfi.fde(cie, CODE + start, len, &[0x0e, size]);
    }
    let table = Image::with_eh_frame(256, &cfi).table();
    let expected =
        [(0, sp(24)), (100, sp(16)), (110, Rule::UNCOVERED), (190, sp(40)), (210, Rule::UNCOVERED)];
    assert_eq!(rules_of(&table, 256), expected);
    assert_eq!((table.coverage().entries, table.coverage().overlapping), (3, 2));
}

#[test]
fn entries_of_no_code_are_left_out() {
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.usual_cie();
    for start in [0, CODE - 4, CODE, CODE + 32, u64::MAX - 3] {
        cfi.fde(cie, start, 8, &[]);
    }
    cfi.fde(cie, CODE + 8, 0, &[]);
    cfi.fde(cie, CODE + 16, u64::MAX, &[]);
    let table = Image::with_eh_frame(32, &cfi).table();
    assert_eq!(rules_of(&table, 32), [(0, SP_8), (8, Rule::UNCOVERED), (16, SP_8)]);
    assert_eq!((table.coverage().entries, table.coverage().outside), (2, 4));
}

#[test]
fn the_entry_point_has_no_caller() {
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.usual_cie();
    cfi.fde(cie, CODE + 0x400, 16, &[]);
    let covered = Image { entry: CODE + 0x404, ..Image::with_eh_frame(0x800, &cfi) };
    assert_eq!(covered.table().rule_at(CODE + 0x400), Rule::END);
    // In assembly without an entry: up to the next entry, or a short way.
    let before = Image { entry: CODE + 0x3f0, ..Image::with_eh_frame(0x800, &cfi) };
    assert_eq!(rules_of(&before.table(), 0x800)[1..3], [(0x3f0, Rule::END), (0x400, SP_8)]);
    let far = Image { entry: CODE + 0x100, ..Image::with_eh_frame(0x800, &cfi) };
    assert_eq!(rules_of(&far.table(), 0x800)[1..3], [(0x100, Rule::END), (0x200, Rule::UNCOVERED)]);
}

#[test]
fn entry_point_of_a_library_is_ignored() {
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.usual_cie();
    cfi.fde(cie, CODE, 16, &[]);
    let library = |entry| {
        let image = Image::with_eh_frame(64, &cfi).section(".text", CODE, &[]);
        Image { entry, kind: 3, ..image }
    };
    assert_eq!(library(CODE).table().rule_at(CODE), SP_8);
    assert_eq!(library(CODE + 32).table().rule_at(CODE + 32), Rule::END);
    let program = Image { interpreter: true, ..library(CODE) };
    assert_eq!(program.table().rule_at(CODE), Rule::END);
}

#[test]
fn debug_frame_serves_without_eh_frame() {
    let mut cfi = Cfi::debug_frame();
    let cie = cfi.usual_cie();
    cfi.fde(cie, CODE, 16, &[0x44, 0x0e, 16]);
    let rules = [(0, SP_8), (4, sp(16))];
    let plain = Image::new(16).section(".debug_frame", 0, &cfi.bytes);
    assert_eq!(rules_of(&plain.table(), 16), rules);

    let len = cfi.bytes.len() as u64;
    let zlib = zlib(&cfi.bytes);
    let header = [&1u32.to_le_bytes()[..], &[0; 4], &len.to_le_bytes(), &[0; 8]].concat();
    let mut compressed = Image::new(16).section(".debug_frame", 0, &[&header[..], &zlib].concat());
    compressed.sections[0].flags = 1 << 11;
    assert_eq!(rules_of(&compressed.table(), 16), rules);
    compressed.sections[0].bytes[0] = 2;
    assert_eq!(Table::from_elf(&compressed.bytes()).err(), Some(TableError::Compression(2)));

    let old = [&b"ZLIB"[..], &len.to_be_bytes(), &zlib].concat();
    assert_eq!(rules_of(&Image::new(16).section(".zdebug_frame", 0, &old).table(), 16), rules);
    // A wrong length, in either direction, is damage.
    for lie in [0, len - 1, len + 1, u64::MAX] {
        let old = [&b"ZLIB"[..], &lie.to_be_bytes(), &zlib].concat();
        let image = Image::new(16).section(".zdebug_frame", 0, &old);
        assert_eq!(Table::from_elf(&image.bytes()).err(), Some(TableError::BadCompression));
    }
    // With `.eh_frame` it is not read.
    let both = plain.section(".eh_frame", EH_FRAME, &[0; 4]);
    assert_eq!(both.table().rule_at(CODE), Rule::UNCOVERED);
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).expect("in memory");
    encoder.finish().expect("in memory")
}

#[test]
fn without_section_headers_by_the_program_header() {
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.usual_cie();
    cfi.fde(cie, CODE, 16, &[]);
    // The terminator ends the section. Other data follow.
    cfi.bytes.extend([0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f]);
    let header_at = EH_FRAME - 0x1000;
    let relative = (EH_FRAME - (header_at + 4)) as u32;
    let header = [&[1, 0x1b, 0x03, 0x3b][..], &relative.to_le_bytes()].concat();
    let mut image = Image::with_eh_frame(32, &cfi).section(".eh_frame_hdr", header_at, &header);
    image.section_headers = false;
    let table = image.table();
    assert_eq!(rules_of(&table, 32), [(0, SP_8), (16, Rule::UNCOVERED)]);
    assert_eq!(table.coverage().damaged, 0);
    image.sections[1].bytes[0] = 2;
    assert_eq!(Table::from_elf(&image.bytes()).err(), Some(TableError::NoUnwindInformation));
}

#[test]
fn files_without_a_table_have_a_reason() {
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.usual_cie();
    cfi.fde(cie, CODE, 16, &[]);
    let whole = Image::with_eh_frame(16, &cfi).bytes();
    let error = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut image = whole.clone();
        change(&mut image);
        Table::from_elf(&image).expect_err("no table")
    };
    assert_eq!(error(&|image| image[0] = 0), TableError::NotElf);
    assert_eq!(error(&|image| image.truncate(3)), TableError::NotElf);
    assert_eq!(error(&|image| image.truncate(5)), TableError::Truncated(Part::Header));
    assert_eq!(error(&|image| image.truncate(63)), TableError::Truncated(Part::Header));
    assert_eq!(error(&|image| image[4] = 1), TableError::ForeignFormat);
    assert_eq!(error(&|image| image[5] = 2), TableError::ForeignFormat);
    assert_eq!(error(&|image| image[18] = 40), TableError::ForeignMachine(40));
    assert_eq!(error(&|image| image[56] = 0xff), TableError::Truncated(Part::Segments));
    assert_eq!(error(&|image| image[54] = 0), TableError::Truncated(Part::Segments));
    assert_eq!(error(&|image| image.truncate(200)), TableError::Truncated(Part::Sections));
    assert_eq!(error(&|image| image[46] = 1), TableError::Truncated(Part::Sections));
    let none = Image::new(16).bytes();
    assert_eq!(Table::from_elf(&none).err(), Some(TableError::NoUnwindInformation));
}

#[test]
fn an_image_cut_anywhere_is_an_error_or_a_table() {
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.cie(b"zPLR", &[7, 0x9b, 0, 0, 0, 0, 0, 0], &[0x0c, 7, 8, 0x90, 1]);
    cfi.fde(cie, CODE, 16, &[0, 0x44, 0x0e, 16]);
    let whole = Image::with_eh_frame(16, &cfi).bytes();
    for len in 0..whole.len() {
        let table = Table::from_elf(&whole[..len]);
        assert!(table.is_err() || len == whole.len(), "section headers come last, cut at {len}");
    }
    // The same without section headers, which the test cannot use then.
    let header = [&[1, 0x1b, 0x03, 0x3b][..], &0xffcu32.to_le_bytes()].concat();
    let image = Image::with_eh_frame(16, &cfi).section(".eh_frame_hdr", EH_FRAME - 0x1000, &header);
    let whole = Image { section_headers: false, ..image }.bytes();
    let tables = (0..=whole.len()).filter_map(|len| Table::from_elf(&whole[..len]).ok());
    let covered: Vec<u64> = tables.map(|table| table.coverage().entries).collect();
    assert_eq!((covered.first(), covered.last()), (Some(&0), Some(&1)));
}

#[test]
fn damaged_entries_are_counted_and_the_others_kept() {
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.usual_cie();
    cfi.fde(cie, CODE, 8, &[]);
    // An entry whose CIE is itself, another FDE, or before the section.
    let itself = cfi.bytes.len();
    cfi.entry(&[&4u32.to_le_bytes()[..], &[0; 16]].concat());
    cfi.fde(itself, CODE + 8, 8, &[]);
    cfi.entry(&[&0x7fff_ffffu32.to_le_bytes()[..], &[0; 16]].concat());
    // Too short for its fields. With an unknown augmentation, version, and encoding.
    cfi.fde_of_bytes(cie, &[0; 12]);
    for (augmentation, data) in
        [(&b"x"[..], &[][..]), (b"zR", &[1, 0x7f]), (b"zR", &[1, 0xff]), (b"zR", &[0])]
    {
        let cie = cfi.cie(augmentation, data, &[]);
        cfi.fde(cie, CODE + 8, 8, &[0]);
    }
    let at = cfi.usual_cie();
    cfi.bytes[at + 8] = 9;
    cfi.fde(at, CODE + 8, 8, &[]);
    cfi.fde(cie, CODE + 16, 8, &[]);
    // Nothing can be read after a length that leads out of the section.
    cfi.bytes.extend([0xff, 0xff, 0xff, 0x7f]);
    cfi.fde(cie, CODE + 24, 8, &[]);
    let table = Image::with_eh_frame(32, &cfi).table();
    let expected = [(0, SP_8), (8, Rule::UNCOVERED), (16, SP_8), (24, Rule::UNCOVERED)];
    assert_eq!(rules_of(&table, 32), expected);
    assert_eq!((table.coverage().entries, table.coverage().damaged), (2, 10));
}

#[test]
fn lengths_of_64_bits() {
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.usual_cie();
    let at = cfi.bytes.len();
    let content =
        [&(at as u32 + 12 - cie as u32).to_le_bytes()[..], &[CODE, 16].map(u64::to_le_bytes).concat()]
            .concat();
    cfi.bytes.extend([0xff; 4]);
    cfi.bytes.extend((content.len() as u64).to_le_bytes());
    cfi.bytes.extend(content);
    assert_eq!(rules_of(&Image::with_eh_frame(16, &cfi).table(), 16), [(0, SP_8)]);
    cfi.bytes[at + 4..at + 12].fill(0xff);
    assert_eq!(Image::with_eh_frame(16, &cfi).table().coverage().damaged, 1);
}

#[test]
fn terminators_between_entries_are_skipped_a_few_at_a_time() {
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.usual_cie();
    cfi.fde(cie, CODE, 8, &[]);
    cfi.bytes.extend([0; 8]);
    cfi.fde(cie, CODE + 8, 8, &[]);
    assert_eq!(Image::with_eh_frame(16, &cfi).table().coverage().entries, 2);
}

#[test]
fn four_gigabytes_of_zeros() {
    // Never touched, so that it takes no memory.
    let mut image = vec![0u8; 4 << 30];
    let mut head = Image::with_eh_frame(0, &Cfi::eh_frame());
    head.sections[0].address = 0;
    let head = head.bytes();
    let sections_at = u64::from_le_bytes(head[40..48].try_into().expect("8 bytes")) as usize;
    image[..head.len()].copy_from_slice(&head);
    // The first section reaches to the end of the file.
    let (size_at, offset) = (sections_at + 64 + 32, head.len() as u64);
    image[size_at - 8..size_at].copy_from_slice(&offset.to_le_bytes());
    image[size_at..size_at + 8].copy_from_slice(&((4u64 << 30) - offset).to_le_bytes());
    // So does the code.
    image[64 + 32..64 + 40].copy_from_slice(&(4u64 << 30).to_le_bytes());
    let table = Table::from_elf(&image).expect("nothing is wrong with zeros");
    assert_eq!((table.coverage().entries, table.pages().len()), (0, 0));
}

#[test]
fn common_entries_that_overlap_are_run_within_a_budget() {
    // One CIE inside the other. Each is a long program over the same bytes.
    let nested = 2000usize;
    let mut cfi = Cfi::eh_frame();
    let head = [0u8, 0, 0, 0, 1, 0, 1, 0x78, 16];
    let total = nested * 13 + 60_000;
    for number in 0..nested {
        let left = (total - number * 13 - 4) as u32;
        cfi.bytes.extend(left.to_le_bytes());
        cfi.bytes.extend(head);
    }
    cfi.bytes.resize(total, 0);
    for number in 0..nested {
        cfi.fde(number * 13, CODE + number as u64 * 8, 8, &[0x0c, 7, 8, 0x90, 1]);
    }
    let coverage = Image::with_eh_frame(nested * 8, &cfi).table().coverage().clone();
    let budget = coverage.unencodable(Unencodable::Budget).rows;
    // Headers and lengths are no instructions, so some programs were damaged. Most were not run.
    assert!(budget > nested as u64 * 9 / 10, "{budget} were not run");
}

#[test]
fn code_beyond_the_reach_of_calls_is_damage() {
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.usual_cie();
    cfi.fde(cie, CODE, 16, &[]);
    let mut image = Image::with_eh_frame(16, &cfi).bytes();
    // Make `.eh_frame`'s segment executable, far away.
    image[64 + 56 + 4] = 5;
    image[64 + 56 + 16..64 + 56 + 24].copy_from_slice(&(1u64 << 40).to_le_bytes());
    assert!(matches!(Table::from_elf(&image), Err(TableError::TooWide(span)) if span > 1 << 39));
}

#[test]
fn no_code_lies_at_the_end_of_the_address_space() {
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.usual_cie();
    cfi.fde(cie, u64::MAX - 15, 15, &[]);
    let mut image = Image::with_eh_frame(16, &cfi).bytes();
    image[64 + 16..64 + 24].copy_from_slice(&(u64::MAX - 15).to_le_bytes());
    let table = Table::from_elf(&image).expect("nothing to cover");
    assert_eq!((table.pages().len(), table.rule_at(u64::MAX - 15)), (0, Rule::UNCOVERED));
}

#[test]
fn a_page_in_which_every_byte_has_its_row() {
    let mut program = Vec::new();
    for offset in 0..0x2_0000u32 {
        program.extend([0x0e, if offset % 2 == 0 { 16 } else { 24 }, 0x41]);
    }
    let mut cfi = Cfi::eh_frame();
    let cie = cfi.usual_cie();
    cfi.fde(cie, CODE, 0x2_0000, &program);
    let table = Image::with_eh_frame(0x2_0000, &cfi).table();
    // The last two bytes of the one page that is full.
    assert_eq!(table.coverage().crowded, 2);
    for address in CODE..CODE + 0x2_0000 {
        let expected = match address {
            0x41_fffe | 0x41_ffff => Rule::UNSUPPORTED,
            _ if address % 2 == 0 => sp(16),
            _ => sp(24),
        };
        assert_eq!(table.rule_at(address), expected, "{address:#x}");
    }
}
