//! Pointers as `.eh_frame` encodes them: LSB 5, "DWARF Extensions", table 10-1.

use crate::bytes::Bytes;
use crate::elf::Elf;

/// How a pointer is written: its format in the low four bits, what it is relative to above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Encoding(pub u8);

/// What relative pointers count from.
pub(crate) struct Bases<'e, 'a> {
    /// Where indirect pointers point to.
    pub elf: &'e Elf<'a>,
    /// The address of the bytes that are read.
    pub section: u64,
    pub text: u64,
    pub data: u64,
    /// Of the function the pointer is about.
    pub function: u64,
}

impl Encoding {
    pub(crate) const ABSOLUTE: Encoding = Encoding(0);
    pub(crate) const OMITTED: Encoding = Encoding(0xff);
    const INDIRECT: u8 = 0x80;

    /// A length is written in the format of a pointer and relative to nothing.
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

/// An aligned pointer begins at the next multiple of its size.
fn align(bytes: &mut Bytes, section: u64) -> Option<()> {
    let field = section.wrapping_add(bytes.position() as u64);
    bytes.take(field.wrapping_neg() & 7).map(|_| ())
}
