// SPDX-License-Identifier: Apache-2.0
//! Reads the entries of `.eh_frame` and `.debug_frame`: the code that each describes, and the place of its
//! program.
//!
//! It reads CIEs and FDEs and limits damaged ones. [`crate::program`] runs the programs. It makes one pass
//! over the section, whatever its entries claim, and memory is proportional to the section.

use std::collections::HashMap;

use crate::bytes::Bytes;
use crate::elf::{Elf, Machine};
use crate::image::Meter;
use crate::pointer::{Bases, Encoding};

/// Limit on the letters of an augmentation.
const MAX_AUGMENTATION: usize = 16;
/// Limit on adjacent terminators. Linkers leave one between the entries of two inputs.
const MAX_TERMINATORS: u32 = 16;

/// The memory of one CIE at most: itself, its offset, and its first row.
const CIE_BYTES: u64 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    EhFrame,
    DebugFrame,
}

/// The bytes of an unwind section, and the bases of its pointers.
pub(crate) struct Section<'e, 'a> {
    pub form: Form,
    pub bytes: &'e [u8],
    pub bases: Bases<'e, 'a>,
    /// Whether a header gives the section's length. Else the first terminator ends it.
    pub length_known: bool,
}

/// `[start, end)` in the section's bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub start: usize,
    pub end: usize,
}

/// A CIE: the common part of the entries of one compilation unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cie {
    pub code_factor: u64,
    pub data_factor: i64,
    pub return_register: u64,
    pub encoding: Encoding,
    pub signal: bool,
    augmented: bool,
    pub program: Program,
}

/// An FDE: one function or a part of one, `[start, end)` of virtual addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fde {
    pub start: u64,
    pub end: u64,
    pub cie: u32,
    pub program: Program,
}

#[derive(Default)]
pub(crate) struct Entries {
    pub cies: Vec<Cie>,
    /// In the order of the section.
    pub fdes: Vec<Fde>,
    /// Entries that could not be read.
    pub damaged: u64,
}

impl Entries {
    pub(crate) fn read(section: &Section, meter: &Meter) -> Entries {
        let mut reader =
            Reader { section, meter, entries: Entries::default(), known: HashMap::new(), last: None };
        reader.read_all();
        reader.entries
    }
}

/// The outline of an entry, CIE or FDE.
struct Outline {
    /// The position of the id, or of the CIE's offset.
    id_at: usize,
    id: u64,
    /// The bytes after the id.
    at: usize,
    end: usize,
}

struct Reader<'s, 'e, 'a> {
    section: &'s Section<'e, 'a>,
    meter: &'s Meter<'s>,
    entries: Entries,
    /// CIEs by their offset. `None`: damaged.
    known: HashMap<usize, Option<u32>>,
    /// The CIE of the last FDE. Most FDEs share it with their neighbour.
    last: Option<(usize, u32)>,
}

impl Reader<'_, '_, '_> {
    fn read_all(&mut self) {
        let mut at = 0;
        let mut terminators = 0;
        while at + 4 <= self.section.bytes.len() {
            if self.section.bytes[at..at + 4] == [0; 4] {
                terminators += 1;
                if !self.section.length_known || terminators > MAX_TERMINATORS {
                    return;
                }
                at += 4;
                continue;
            }
            terminators = 0;
            let Some(outline) = self.outline(at) else {
                self.entries.damaged += 1;
                return;
            };
            at = outline.end;
            if !self.meter.step(1) || !self.meter.hold(size_of::<Fde>() as u64) {
                return;
            }
            if !self.is_cie(&outline) && self.read_fde(&outline).is_none() {
                self.entries.damaged += 1;
            }
        }
    }

    #[inline]
    fn outline(&self, at: usize) -> Option<Outline> {
        let mut bytes = Bytes::at(self.section.bytes, at);
        let short = bytes.u32()?;
        let len = if short == u32::MAX { bytes.u64()? } else { short.into() };
        let id_at = bytes.position();
        let end = id_at.checked_add(usize::try_from(len).ok()?)?;
        if end > self.section.bytes.len() {
            return None;
        }
        let wide = short == u32::MAX && self.section.form == Form::DebugFrame;
        let id = if wide { bytes.u64()? } else { bytes.u32()?.into() };
        (bytes.position() <= end).then_some(Outline { id_at, id, at: bytes.position(), end })
    }

    fn is_cie(&self, outline: &Outline) -> bool {
        match self.section.form {
            Form::EhFrame => outline.id == 0,
            Form::DebugFrame if outline.at - outline.id_at == 8 => outline.id == u64::MAX,
            Form::DebugFrame => outline.id == u64::from(u32::MAX),
        }
    }

    /// Empty functions are read and dropped.
    fn read_fde(&mut self, outline: &Outline) -> Option<()> {
        let cie_at = match self.section.form {
            Form::EhFrame => outline.id_at.checked_sub(usize::try_from(outline.id).ok()?)?,
            Form::DebugFrame => usize::try_from(outline.id).ok()?,
        };
        let number = self.cie_number(cie_at)?;
        let cie = self.entries.cies[number as usize];
        let mut bytes = Bytes::at(&self.section.bytes[..outline.end], outline.at);
        let start = cie.encoding.read(&mut bytes, &self.section.bases)?;
        let len = cie.encoding.of_length().read(&mut bytes, &self.section.bases)?;
        if cie.augmented {
            let len = bytes.uleb()?;
            bytes.take(len)?;
        }
        if len > 0 {
            let program = Program { start: bytes.position(), end: outline.end };
            self.entries.fdes.push(Fde { start, end: start.saturating_add(len), cie: number, program });
        }
        Some(())
    }

    #[inline]
    fn cie_number(&mut self, at: usize) -> Option<u32> {
        if let Some((last, number)) = self.last
            && last == at
        {
            return Some(number);
        }
        let number = match self.known.get(&at) {
            Some(&known) => known,
            None if !self.meter.hold(CIE_BYTES) => return None,
            None => {
                let number = self.read_cie(at);
                self.known.insert(at, number);
                number
            }
        }?;
        self.last = Some((at, number));
        Some(number)
    }

    fn read_cie(&mut self, at: usize) -> Option<u32> {
        let outline = self.outline(at)?;
        if !self.is_cie(&outline) {
            return None;
        }
        let cie = self.cie_fields(&outline)?;
        self.entries.cies.push(cie);
        u32::try_from(self.entries.cies.len() - 1).ok()
    }

    fn cie_fields(&self, outline: &Outline) -> Option<Cie> {
        let mut bytes = Bytes::at(&self.section.bytes[..outline.end], outline.at);
        let version = bytes.u8()?;
        let name_end = outline.end.min(bytes.position() + MAX_AUGMENTATION + 1);
        let mut name = Bytes::at(&self.section.bytes[..name_end], bytes.position());
        let augmentation = name.text()?;
        bytes.take(augmentation.len() as u64 + 1)?;
        match (version, self.section.form) {
            (1 | 3, _) => {}
            (4, Form::DebugFrame) if bytes.u8()? == 8 && bytes.u8()? == 0 => {}
            _ => return None,
        }
        if augmentation == b"eh" {
            bytes.u64()?;
        }
        let (code_factor, data_factor) = (bytes.uleb()?, bytes.sleb()?);
        let return_register = if version == 1 { bytes.u8()?.into() } else { bytes.uleb()? };
        let mut cie = Cie {
            code_factor,
            data_factor,
            return_register,
            encoding: Encoding::ABSOLUTE,
            signal: false,
            augmented: augmentation.first() == Some(&b'z'),
            program: Program { start: 0, end: outline.end },
        };
        match augmentation {
            [] | b"eh" => {}
            [b'z', letters @ ..] => self.augment(&mut cie, letters, &mut bytes)?,
            _ => return None,
        }
        cie.program.start = bytes.position();
        Some(cie)
    }

    /// The meaning of the letters up to the first unknown one. The length of their data is known.
    fn augment(&self, cie: &mut Cie, letters: &[u8], bytes: &mut Bytes) -> Option<()> {
        let len = bytes.uleb()?;
        let start = bytes.position();
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        bytes.take(len)?;
        let mut data = Bytes::at(&self.section.bytes[..end], start);
        for letter in letters {
            match letter {
                b'R' => cie.encoding = Encoding(data.u8()?),
                b'L' => _ = data.u8()?,
                b'P' => self.skip_personality(&mut data)?,
                b'S' => cie.signal = true,
                // aarch64: the key that signs return addresses, and memory tagging of the stack. Both have no
                // data.
                b'B' | b'G' => {}
                _ => break,
            }
        }
        Some(())
    }

    /// The pointer to the personality routine. Only its length matters, so it is not followed.
    fn skip_personality(&self, data: &mut Bytes) -> Option<()> {
        let encoding = data.u8()?;
        Encoding(encoding & 0x7f).read(data, &self.section.bases).map(|_| ())
    }
}

impl Machine {
    /// The DWARF number of the frame pointer.
    pub(crate) fn fp(self) -> u64 {
        match self {
            Machine::X86_64 => 6,
            Machine::Aarch64 => 29,
        }
    }

    pub(crate) fn sp(self) -> u64 {
        match self {
            Machine::X86_64 => 7,
            Machine::Aarch64 => 31,
        }
    }

    /// rbx. aarch64's code needs no register of this kind.
    pub(crate) fn bx(self) -> Option<u64> {
        (self == Machine::X86_64).then_some(3)
    }

    /// rdi, x30.
    pub(crate) fn link(self) -> u64 {
        match self {
            Machine::X86_64 => 5,
            Machine::Aarch64 => 30,
        }
    }

    pub(crate) fn r10(self) -> Option<u64> {
        (self == Machine::X86_64).then_some(10)
    }
}

/// The bases of relative pointers in `section` at `address`.
pub(crate) fn bases<'e, 'a>(elf: &'e Elf<'a>, address: u64) -> Bases<'e, 'a> {
    let address_of = |name| elf.section_named(name).map_or(0, |section| section.address);
    Bases { elf, section: address, text: address_of(".text"), data: address_of(".got"), function: 0 }
}
