// SPDX-License-Identifier: Apache-2.0
//! Pointers as `.eh_frame` encodes them: LSB 5, "DWARF Extensions", table 10-1.

use crate::bytes::Bytes;
use crate::elf::Elf;

/// The encoding of a pointer: the format in the low four bits, and the base above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Encoding(pub u8);

/// The bases of relative pointers.
pub(crate) struct Bases<'e, 'a> {
    /// The image that has the targets of indirect pointers.
    pub elf: &'e Elf<'a>,
    /// The address of the section's bytes.
    pub section: u64,
    pub text: u64,
    pub data: u64,
    /// The address of the pointer's function.
    pub function: u64,
}

impl Encoding {
    pub(crate) const ABSOLUTE: Encoding = Encoding(0);
    pub(crate) const OMITTED: Encoding = Encoding(0xff);
    const INDIRECT: u8 = 0x80;

    /// Lengths have the format of a pointer, and no base.
    pub(crate) fn of_length(self) -> Encoding {
        Encoding(self.0 & 0x0f)
    }

    #[inline]
    pub(crate) fn read(self, bytes: &mut Bytes, bases: &Bases) -> Option<u64> {
        if self == Encoding::OMITTED {
            return None;
        }
        if self.0 & 0x70 == 0x50 {
            align(bytes, bases.section)?;
        }
        let field = bases.section.wrapping_add(bytes.position() as u64);
        let value = self.value(bytes)?;
        let base = match self.0 & 0x70 {
            0x00 | 0x50 => 0,
            0x10 => field,
            0x20 => bases.text,
            0x30 => bases.data,
            0x40 => bases.function,
            _ => return None,
        };
        let pointer = base.wrapping_add(value);
        if self.0 & Encoding::INDIRECT == 0 { Some(pointer) } else { bases.elf.word_at(pointer) }
    }

    fn value(self, bytes: &mut Bytes) -> Option<u64> {
        Some(match self.0 & 0x0f {
            0x00 | 0x04 | 0x0c => bytes.u64()?,
            0x01 => bytes.uleb()?,
            0x02 => bytes.u16()?.into(),
            0x03 => bytes.u32()?.into(),
            0x09 => bytes.sleb()? as u64,
            0x0a => i64::from(bytes.u16()? as i16) as u64,
            0x0b => i64::from(bytes.u32()? as i32) as u64,
            _ => return None,
        })
    }
}

/// An aligned pointer starts at the next multiple of its size.
fn align(bytes: &mut Bytes, section: u64) -> Option<()> {
    let field = section.wrapping_add(bytes.position() as u64);
    bytes.take(field.wrapping_neg() & 7).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CODE, Image};

    const SECTION: u64 = 0x70_0000;
    const TEXT: u64 = 0x1000;
    const DATA: u64 = 0x2000;
    const FUNCTION: u64 = 0x3000;

    /// Reads at byte 3 of the section, and returns the number of bytes read.
    fn read(encoding: u8, bytes: &[u8]) -> Option<(u64, usize)> {
        let image = Image { code: 0x1122_3344_5566_7788u64.to_le_bytes().to_vec(), ..Image::new(0) }.bytes();
        let (source, meter) = (&image[..], crate::image::Meter::new(&crate::Unlimited));
        let elf = Elf::read(&source, &meter).expect("an ELF file");
        let bases = Bases { elf: &elf, section: SECTION, text: TEXT, data: DATA, function: FUNCTION };
        let section = [&[0xee; 3], bytes].concat();
        let mut at = Bytes::at(&section, 3);
        let pointer = Encoding(encoding).read(&mut at, &bases)?;
        Some((pointer, at.position() - 3))
    }

    #[test]
    fn formats() {
        let eight = [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0xf1];
        let whole = 0xf122_3344_5566_7788;
        assert_eq!(read(0x00, &eight), Some((whole, 8)));
        assert_eq!(read(0x01, &[0x80, 1]), Some((128, 2)));
        assert_eq!(read(0x02, &[0xfe, 0xff]), Some((0xfffe, 2)));
        assert_eq!(read(0x03, &[0xfe, 0xff, 0xff, 0xff]), Some((0xffff_fffe, 4)));
        assert_eq!(read(0x04, &eight), Some((whole, 8)));
        assert_eq!(read(0x09, &[0x7e]), Some((-2i64 as u64, 1)));
        assert_eq!(read(0x0a, &[0xfe, 0xff]), Some((-2i64 as u64, 2)));
        assert_eq!(read(0x0b, &[0xfe, 0xff, 0xff, 0xff]), Some((-2i64 as u64, 4)));
        assert_eq!(read(0x0c, &eight), Some((whole, 8)));
    }

    #[test]
    fn bases_of_relative_pointers() {
        let minus_4 = [0xfc, 0xff, 0xff, 0xff];
        assert_eq!(read(0x1b, &minus_4), Some((SECTION + 3 - 4, 4)));
        assert_eq!(read(0x2b, &minus_4), Some((TEXT - 4, 4)));
        assert_eq!(read(0x3b, &minus_4), Some((DATA - 4, 4)));
        assert_eq!(read(0x4b, &minus_4), Some((FUNCTION - 4, 4)));
        // Aligned: five bytes further.
        let aligned = [&[0xee; 5][..], &CODE.to_le_bytes()].concat();
        assert_eq!(read(0x50, &aligned), Some((CODE, 13)));
        assert_eq!(Encoding(0x1b).of_length(), Encoding(0x0b));
    }

    #[test]
    fn indirect_pointers_are_followed() {
        assert_eq!(read(0x80, &CODE.to_le_bytes()), Some((0x1122_3344_5566_7788, 8)));
        // Partly or wholly outside the image.
        assert_eq!(read(0x80, &(CODE + 0x10_0000).to_le_bytes()), None);
        assert_eq!(read(0x80, &(CODE + 1).to_le_bytes()), None);
        assert_eq!(read(0x80, &u64::MAX.to_le_bytes()), None);
    }

    #[test]
    fn invalid_pointers_are_refused() {
        for encoding in [0xff, 0x05, 0x0d, 0x0e, 0x60, 0x70] {
            assert_eq!(read(encoding, &[1; 16]), None, "{encoding:#x}");
        }
        assert_eq!(read(0x1b, &[1; 3]), None);
        assert_eq!(read(0x50, &[1; 12]), None);
    }
}
