// SPDX-License-Identifier: Apache-2.0
//! Small ELF files with large sizes in their headers: headers, sections and unwind entries from a grammar, in
//! a file with holes. A table is built within its budget, or the build ends with an error.
//!
//! The image returns zeros for holes, as a sparse file does. A section of gigabytes therefore takes no space.
#![no_main]

use std::borrow::Cow;
use std::cell::Cell;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use wallprof_unwind::{Budget, Image, Table, TableError, binders_from_image};

/// The memory that a build may hold, in bytes.
const LIMIT: u64 = 1 << 20;
/// A table is charged in steps of this size. A vector that grows holds the same size once more.
const GRAIN: u64 = 64 << 10;
/// Tables are searched in parts of this size, which are not charged one by one.
const SMALL: u64 = 128 << 10;
/// The number of checks after which the budget is used.
const PATIENCE: u32 = 200;

const CODE: u64 = 0x40_1000;
const UNWIND: u64 = 0x70_0000;
const WILD: [u64; 9] = [0, 1, 0x7f, 0x1000, 1 << 20, 1 << 31, 1 << 36, u64::MAX / 2, u64::MAX];

/// A small budget that counts its checks.
#[derive(Default)]
struct Small {
    agreed: Cell<u64>,
    asked: Cell<u32>,
    refused: Cell<bool>,
}

impl Budget for Small {
    fn allows(&self, held: u64) -> bool {
        assert!(!self.refused.get(), "checked again after a refusal");
        self.asked.set(self.asked.get() + 1);
        let allows = held <= LIMIT && self.asked.get() < PATIENCE;
        self.agreed.set(self.agreed.get().max(if allows { held } else { 0 }));
        self.refused.set(!allows);
        allows
    }
}

/// A file with holes.
struct Sparse<'b> {
    size: u64,
    parts: Vec<(u64, Vec<u8>)>,
    budget: &'b Small,
}

impl Image for Sparse<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    fn bytes(&self, offset: u64, len: u64) -> Option<Cow<'_, [u8]>> {
        assert!(len <= self.budget.agreed.get() + SMALL, "{len} bytes are read before they are charged");
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        self.read(offset, &mut bytes).then_some(Cow::Owned(bytes))
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let Some(end) = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.size) else {
            return false;
        };
        buffer.fill(0);
        for (at, part) in &self.parts {
            let (from, to) = (offset.max(*at), end.min(at + part.len() as u64));
            if from < to {
                let part = &part[(from - at) as usize..(to - at) as usize];
                buffer[(from - offset) as usize..][..part.len()].copy_from_slice(part);
            }
        }
        true
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Unstructured::new(bytes);
    let budget = Small::default();
    let Ok(image) = image(&mut input, &budget) else { return };
    match Table::from_image(&image, &budget) {
        Ok(table) => assert_bounded(&table),
        Err(error) => assert_eq!(budget.refused.get(), error == TableError::OverBudget, "{error}"),
    }
    let binders = Small::default();
    let image = Sparse { budget: &binders, ..image };
    assert!(binders_from_image(&image, &binders).len() as u64 * 16 <= LIMIT + GRAIN);
});

/// Asserts that a table is no larger than the budget.
fn assert_bounded(table: &Table) {
    let words: u64 = table.pages().flatten().map(|page| page.len() as u64).sum();
    let bytes = words * 4 + table.pages().len() as u64 * 4 + size_of_val(table.rules()) as u64;
    assert!(bytes <= 2 * (LIMIT + GRAIN), "a table of {bytes} bytes");
    for address in (CODE..CODE + 0x1000).step_by(97) {
        table.rule_at(address);
    }
}

fn image<'b>(input: &mut Unstructured<'_>, budget: &'b Small) -> Result<Sparse<'b>> {
    let code_bytes = *input.choose(&[16, 0x1000, 1 << 20, 1 << 30, 5 << 30])?;
    let name = *input.choose(&[
        ".eh_frame",
        ".debug_frame",
        ".zdebug_frame",
        ".gopclntab",
        ".eh_frame_hdr",
        ".symtab",
    ])?;
    let unwind = unwind_section(input)?;
    let unwind_at = 0x2000;
    let claimed = if input.ratio(1, 4)? { wild(input)? } else { unwind.len() as u64 };
    let names = [b"\0" as &[u8], name.as_bytes(), b"\0.shstrtab\0"].concat();
    let names_at = unwind_at + unwind.len() as u64;
    let headers_at = names_at + names.len() as u64;
    let flags = if input.ratio(1, 10)? { 0x800 } else { 2 };
    let sections = [
        vec![0; 64],
        section((1, 1, flags), UNWIND, (unwind_at, claimed)),
        section((name.len() as u32 + 2, 3, 0), 0, (names_at, names.len() as u64)),
    ];
    let mut headers = sections.concat();
    let segments =
        [segment(5, (0x1000, CODE, code_bytes)), segment(4, (unwind_at, UNWIND, claimed))].concat();
    let mut start = header(input, headers_at)?;
    start.extend(segments);
    damage(input, &mut start)?;
    damage(input, &mut headers)?;
    let code = input.bytes(input.len().min(64))?.to_vec();
    let size = *input.choose(&[headers_at + headers.len() as u64, 1 << 20, 1 << 34, u64::MAX])?;
    let parts =
        vec![(0, start), (0x1000, code), (unwind_at, unwind), (names_at, names), (headers_at, headers)];
    Ok(Sparse { size, parts, budget })
}

fn wild(input: &mut Unstructured<'_>) -> Result<u64> {
    Ok(*input.choose(&WILD)?)
}

/// Changes a few bytes of valid headers.
fn damage(input: &mut Unstructured<'_>, bytes: &mut [u8]) -> Result<()> {
    for _ in 0..input.int_in_range(0..=2)? {
        let at = input.choose_index(bytes.len() / 8)? * 8;
        let value = wild(input)?;
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    Ok(())
}

fn header(input: &mut Unstructured<'_>, sections_at: u64) -> Result<Vec<u8>> {
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let machine = *input.choose(&[62u16, 62, 62, 183])?;
    header.extend([2u16, machine].map(u16::to_le_bytes).concat());
    header.extend(1u32.to_le_bytes());
    header.extend([CODE, 64, sections_at].map(u64::to_le_bytes).concat());
    header.extend(0u32.to_le_bytes());
    let sections = if input.ratio(1, 8)? { u16::MAX } else { 3 };
    header.extend([64, 56, 2, 64, sections, 2].map(u16::to_le_bytes).concat());
    Ok(header)
}

fn segment(flags: u32, (offset, address, bytes): (u64, u64, u64)) -> Vec<u8> {
    let mut segment = [1, flags].map(u32::to_le_bytes).concat();
    segment.extend([offset, address, address, bytes, bytes, 0x1000].map(u64::to_le_bytes).concat());
    segment
}

fn section((name, kind, flags): (u32, u32, u64), address: u64, (offset, bytes): (u64, u64)) -> Vec<u8> {
    let mut section = [name, kind].map(u32::to_le_bytes).concat();
    section.extend([flags, address, offset, bytes].map(u64::to_le_bytes).concat());
    section.extend([0u32; 2].map(u32::to_le_bytes).concat());
    section.extend([1u64, 0].map(u64::to_le_bytes).concat());
    section
}

/// CIEs and FDEs with instructions that are often valid, or any bytes.
fn unwind_section(input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    if input.ratio(1, 6)? {
        return Ok(input.bytes(input.len().min(512) / 2)?.to_vec());
    }
    let mut section = Vec::new();
    let mut cie_at = 0;
    for number in 0..input.int_in_range(1..=24)? {
        if number == 0 || input.ratio(1, 6)? {
            cie_at = section.len();
            let instructions = instructions(input)?;
            // Version 1, augmentation "zR", code and data alignment, return address register, and pointers of
            // four bytes relative to their own address.
            let data = [&[1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b][..], &instructions].concat();
            entry(&mut section, 0, &data);
        } else {
            let at = section.len() + 8;
            let start = CODE + input.int_in_range(0..=0xfff)?;
            let length = *input.choose(&[1u32, 16, 0x100, 0x10_0000, u32::MAX])?;
            let from_here = (start as i64 - (UNWIND + at as u64) as i64) as i32;
            let head = [from_here.to_le_bytes(), length.to_le_bytes()].concat();
            let data = [&head[..], &[0], &instructions(input)?].concat();
            let back = (at - 4 - cie_at) as u32;
            entry(&mut section, back, &data);
        }
    }
    // The number of repetitions of the same entries: a small input makes a large file.
    let times = *input.choose(&[1, 1, 1, 16, 400])?;
    let once = section.clone();
    for _ in 1..times {
        section.extend(&once);
    }
    Ok(section)
}

fn entry(section: &mut Vec<u8>, id: u32, data: &[u8]) {
    let length = (4 + data.len()).next_multiple_of(4);
    section.extend((length as u32).to_le_bytes());
    section.extend(id.to_le_bytes());
    section.extend(data);
    // DW_CFA_nop.
    section.resize(section.len() + length - 4 - data.len(), 0);
}

fn instructions(input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for _ in 0..input.int_in_range(0..=12)? {
        let small: u8 = input.int_in_range(0..=63)?;
        match input.choose_index(12)? {
            0 => bytes.extend([0x40 | small]),
            1 => bytes.extend([0x80 | small % 17, small]),
            2 => bytes.extend([0x0c, small % 17, small]),
            3 => bytes.extend([0x0e, small]),
            4 => bytes.extend([0x0a]),
            5 => bytes.extend([0x0b]),
            6 => bytes.extend([0x02, small]),
            7 => bytes.extend([0x04, small, 0, small, 0]),
            // DW_CFA_def_cfa_expression, with one of rsp plus an offset.
            8 => bytes.extend([0x0f, 2, 0x77, small]),
            9 => bytes.extend([0x0f, input.arbitrary()?, input.arbitrary()?]),
            10 => bytes.extend([0xc0 | small]),
            _ => bytes.push(input.arbitrary()?),
        }
    }
    Ok(bytes)
}
