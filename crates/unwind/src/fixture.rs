// SPDX-License-Identifier: Apache-2.0
//! ELF images and unwind sections written by hand, for tests.

use crate::rule::Rule;
use crate::table::Table;

pub(crate) const X86_64: u16 = 62;
pub(crate) const AARCH64: u16 = 183;
/// The address of the code of images.
pub(crate) const CODE: u64 = 0x40_1000;

const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;

/// A file with one code segment and some sections.
pub(crate) struct Image {
    pub machine: u16,
    /// `e_type`: 2 a program, 3 a library.
    pub kind: u16,
    pub entry: u64,
    pub code: Vec<u8>,
    pub sections: Vec<Section>,
    pub section_headers: bool,
    pub interpreter: bool,
}

pub(crate) struct Section {
    pub name: &'static str,
    pub kind: u32,
    pub flags: u64,
    /// 0: not loaded.
    pub address: u64,
    pub bytes: Vec<u8>,
    pub link: u32,
}

impl Image {
    pub(crate) fn new(code_len: usize) -> Image {
        Image {
            machine: X86_64,
            kind: 2,
            entry: 0,
            code: vec![0x90; code_len],
            sections: vec![],
            section_headers: true,
            interpreter: false,
        }
    }

    pub(crate) fn section(mut self, name: &'static str, address: u64, bytes: &[u8]) -> Image {
        self.sections.push(Section { name, kind: 1, flags: 0, address, bytes: bytes.to_vec(), link: 0 });
        self
    }

    /// An image whose only unwind information is this `.eh_frame`.
    pub(crate) fn with_eh_frame(code_len: usize, eh_frame: &Cfi) -> Image {
        Image::new(code_len).section(".eh_frame", EH_FRAME, &eh_frame.bytes)
    }

    pub(crate) fn table(&self) -> Table {
        Table::from_elf(&self.bytes()).expect("a table")
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let code_offset = HEADER_BYTES + SEGMENT_BYTES * (self.sections.len() + 2);
        let mut segments = vec![segment(PT_LOAD, 5, code_offset, CODE, self.code.len())];
        let mut content = self.code.clone();
        let mut headers = vec![[0; 64]];
        let mut names = vec![0];
        for section in &self.sections {
            let offset = code_offset + content.len();
            content.extend(&section.bytes);
            if section.address != 0 {
                let kind = if section.name == ".eh_frame_hdr" { PT_GNU_EH_FRAME } else { PT_LOAD };
                segments.push(segment(kind, 4, offset, section.address, section.bytes.len()));
            }
            headers.push(section.header(names.len(), offset));
            names.extend(section.name.bytes().chain([0]));
        }
        if self.interpreter {
            segments.push(segment(PT_INTERP, 4, code_offset, CODE, 1));
        }
        let strings = Section { name: "", kind: 3, flags: 0, address: 0, bytes: names, link: 0 };
        headers.push(strings.header(0, code_offset + content.len()));
        content.extend(&strings.bytes);

        let mut image = self.header(segments.len(), code_offset + content.len(), headers.len());
        image.extend(segments.concat());
        image.resize(code_offset, 0);
        image.extend(content);
        image.extend(headers.concat());
        image
    }

    fn header(&self, segments: usize, sections_at: usize, sections: usize) -> Vec<u8> {
        let (sections_at, sections) = if self.section_headers { (sections_at, sections) } else { (0, 0) };
        let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        header.extend([self.kind, self.machine].map(u16::to_le_bytes).concat());
        header.extend(1u32.to_le_bytes());
        header.extend([self.entry, HEADER_BYTES as u64, sections_at as u64].map(u64::to_le_bytes).concat());
        header.extend(0u32.to_le_bytes());
        let names = sections.saturating_sub(1) as u16;
        header.extend([64, 56, segments as u16, 64, sections as u16, names].map(u16::to_le_bytes).concat());
        header
    }
}

/// The address of `.eh_frame`.
pub(crate) const EH_FRAME: u64 = 0x70_0000;

impl Section {
    fn header(&self, name: usize, offset: usize) -> [u8; 64] {
        let mut header = [name as u32, self.kind].map(u32::to_le_bytes).concat();
        header.extend(
            [self.flags, self.address, offset as u64, self.bytes.len() as u64].map(u64::to_le_bytes).concat(),
        );
        header.extend(self.link.to_le_bytes());
        header.resize(64, 0);
        header.try_into().expect("64 bytes")
    }
}

fn segment(kind: u32, flags: u32, offset: usize, address: u64, len: usize) -> Vec<u8> {
    let mut header = [kind, flags].map(u32::to_le_bytes).concat();
    let len = len as u64;
    header.extend([offset as u64, address, address, len, len, 1].map(u64::to_le_bytes).concat());
    header
}

/// An unwind section, written entry by entry.
pub(crate) struct Cfi {
    pub bytes: Vec<u8>,
    debug: bool,
}

impl Cfi {
    pub(crate) fn eh_frame() -> Cfi {
        Cfi { bytes: vec![], debug: false }
    }

    pub(crate) fn debug_frame() -> Cfi {
        Cfi { bytes: vec![], debug: true }
    }

    /// x86_64's usual CIE: CFA = rsp + 8, the return address below it. Returns its position.
    pub(crate) fn usual_cie(&mut self) -> usize {
        self.cie(b"", &[], &[0x0c, 7, 8, 0x90, 1])
    }

    /// Code factor 1, data factor -8, the return address in x86_64's column 16.
    pub(crate) fn cie(&mut self, augmentation: &[u8], data: &[u8], program: &[u8]) -> usize {
        self.cie_of_machine(augmentation, (1, 16), data, program)
    }

    pub(crate) fn cie_of_machine(
        &mut self,
        augmentation: &[u8],
        (code_factor, return_register): (u8, u8),
        data: &[u8],
        program: &[u8],
    ) -> usize {
        let id: u32 = if self.debug { u32::MAX } else { 0 };
        let head = [&[1], augmentation, &[0, code_factor, 0x78, return_register]].concat();
        self.entry(&[&id.to_le_bytes()[..], &head, data, program].concat())
    }

    /// An FDE of the CIE at `cie`, with absolute 8-byte pointers.
    pub(crate) fn fde(&mut self, cie: usize, start: u64, len: u64, program: &[u8]) {
        self.fde_of_bytes(cie, &[&start.to_le_bytes()[..], &len.to_le_bytes(), program].concat());
    }

    pub(crate) fn fde_of_bytes(&mut self, cie: usize, content: &[u8]) {
        let pointer = if self.debug { cie } else { self.bytes.len() + 4 - cie };
        self.entry(&[&(pointer as u32).to_le_bytes()[..], content].concat());
    }

    /// The start of the section.
    pub(crate) fn entry(&mut self, content: &[u8]) -> usize {
        let at = self.bytes.len();
        self.bytes.extend((content.len() as u32).to_le_bytes());
        self.bytes.extend(content);
        at
    }
}

impl Table {
    /// The addresses from `start` to `end` at which the rule changes, and the new rule.
    pub(crate) fn changes(&self, start: u64, end: u64) -> Vec<(u64, Rule)> {
        let mut changes = vec![(start, self.rule_at(start))];
        for address in start + 1..end {
            let rule = self.rule_at(address);
            if changes.last().is_some_and(|(_, before)| *before != rule) {
                changes.push((address, rule));
            }
        }
        changes
    }
}
