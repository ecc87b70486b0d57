// SPDX-License-Identifier: Apache-2.0
//! ELF virtual addresses to offsets in a file, by its loadable segments.

use crate::elf::Segment;

/// The segments of a file, and its size.
pub(super) struct Layout {
    pub segments: Vec<Segment>,
    /// Bytes.
    pub file_size: u64,
}

impl Layout {
    /// The offset of `len` bytes of code at `address`; `None` where the file does not have all of them.
    pub(super) fn code_offset(&self, address: u64, len: u64) -> Option<u64> {
        self.offset(address, len, true)
    }

    /// The offset of `len` bytes of data at `address`.
    pub(super) fn data_offset(&self, address: u64, len: u64) -> Option<u64> {
        self.offset(address, len, false)
    }

    fn offset(&self, address: u64, len: u64, executable: bool) -> Option<u64> {
        let mut segments = self.segments.iter().filter(|segment| segment.executable == executable);
        segments.find_map(|segment| {
            let inside = address.checked_sub(segment.address)?;
            let has_all = inside.checked_add(len)? <= segment.file_size;
            let offset = segment.offset.checked_add(inside).filter(|_| has_all)?;
            (offset.checked_add(len)? <= self.file_size).then_some(offset)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_found_in_the_segment_of_its_kind() {
        let segment =
            |offset, file_size, address, executable| Segment { offset, file_size, address, executable };
        let segments = vec![
            segment(0x1000, 0x100, 0x40_1000, true),
            segment(0x2000, 0x100, 0x40_3000, false),
            segment(0x3000, u64::MAX, 0x50_0000, true),
            segment(u64::MAX, 0x100, 0x60_0000, true),
        ];
        let layout = Layout { segments, file_size: 0x4000 };
        assert_eq!(layout.code_offset(0x40_10ff, 1), Some(0x10ff));
        assert_eq!(layout.code_offset(0x40_10ff, 2), None);
        assert_eq!(layout.data_offset(0x40_3010, 2), Some(0x2010));
        assert_eq!((layout.data_offset(0x40_1000, 1), layout.code_offset(0x40_3010, 1)), (None, None));
        assert_eq!(
            (layout.code_offset(0x50_0fff, 1), layout.code_offset(0x50_1000, 1)),
            (Some(0x3fff), None)
        );
        assert_eq!((layout.code_offset(0x60_0001, 1), layout.code_offset(u64::MAX, u64::MAX)), (None, None));
    }
}
