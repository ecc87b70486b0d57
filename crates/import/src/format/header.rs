// SPDX-License-Identifier: Apache-2.0
//! The start of a perf.data file or stream, and the tables that a file's header points to.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::attr::Attr;
use super::bytes::Bytes;

/// Bytes of a stream's header.
pub(crate) const STREAM_HEADER: usize = 16;
/// Bytes of a file's header.
pub(crate) const FILE_HEADER: usize = 104;
pub(crate) const MAGIC: &[u8; 8] = b"PERFILE2";
const SWAPPED: &[u8; 8] = b"2ELIFREP";
const FIRST_MAGIC: &[u8; 8] = b"PERFFILE";
/// More events than perf opens.
const MAX_ATTRS: u64 = 1 << 16;
/// Each event has a number on each CPU.
const MAX_IDS: u64 = 1 << 20;
/// An attr is 136 bytes today.
const MAX_ATTR_SIZE: u64 = 4096;
/// The limit of a feature that is read into memory. The table of build ids is the largest.
const MAX_FEATURE: u64 = 16 << 20;

/// Why an input is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// It does not start as perf.data does.
    NotPerfData,
    /// Written on a machine of the other byte order.
    ByteSwapped,
    /// Written by a perf from before 2010.
    FirstFormat,
    /// A finished file comes through a pipe: its tables cannot be reached.
    FileInPipe,
    Truncated,
    /// A table that is larger than perf writes one.
    Oversized,
}

/// The two kinds of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Stream,
}

pub(crate) fn kind_from_bytes(start: &[u8; STREAM_HEADER]) -> Result<Kind, HeaderError> {
    let mut bytes = Bytes::new(start);
    let magic = bytes.take(8).ok_or(HeaderError::Truncated)?;
    if magic == SWAPPED {
        return Err(HeaderError::ByteSwapped);
    }
    if magic == FIRST_MAGIC {
        return Err(HeaderError::FirstFormat);
    }
    if magic != MAGIC {
        return Err(HeaderError::NotPerfData);
    }
    match bytes.u64() {
        Some(size) if size == STREAM_HEADER as u64 => Ok(Kind::Stream),
        _ => Ok(Kind::File),
    }
}

/// Part of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Section {
    pub offset: u64,
    pub size: u64,
}

/// One event with the numbers it has on each CPU and thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventIds {
    pub attr: Attr,
    pub ids: Vec<u64>,
}

/// A file's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    attr_size: u64,
    attrs: Section,
    pub data: Section,
    features: [u64; 4],
}

impl FileHeader {
    pub(crate) fn read(file: &File) -> Result<Self, HeaderError> {
        let mut bytes = [0; FILE_HEADER];
        file.read_exact_at(&mut bytes, 0).map_err(|_| HeaderError::Truncated)?;
        Self::from_bytes(Bytes::new(&bytes)).ok_or(HeaderError::Truncated)
    }

    fn from_bytes(mut bytes: Bytes<'_>) -> Option<Self> {
        // magic, size of the header
        bytes.skip(16)?;
        let attr_size = bytes.u64()?;
        let (attrs, data, _event_types) = (section(&mut bytes)?, section(&mut bytes)?, section(&mut bytes)?);
        let features = [bytes.u64()?, bytes.u64()?, bytes.u64()?, bytes.u64()?];
        Some(FileHeader { attr_size, attrs, data, features })
    }

    /// Whether perf wrote the length of the data when it finished. Otherwise the data runs to the end of the
    /// file.
    pub(crate) fn is_finished(&self) -> bool {
        self.data.size != 0
    }

    pub(crate) fn events(&self, file: &File) -> Result<Vec<EventIds>, HeaderError> {
        let count = self.attrs.size.checked_div(self.attr_size).unwrap_or(0);
        if count > MAX_ATTRS || self.attr_size > MAX_ATTR_SIZE {
            return Err(HeaderError::Oversized);
        }
        let mut ids_left = MAX_IDS;
        (0..count).map(|index| self.event(file, index, &mut ids_left)).collect()
    }

    /// An entry is an attr and the section with its numbers.
    fn event(&self, file: &File, index: u64, ids_left: &mut u64) -> Result<EventIds, HeaderError> {
        let offset = self.attrs.offset.checked_add(index * self.attr_size).ok_or(HeaderError::Truncated)?;
        let entry = read_at(file, Section { offset, size: self.attr_size }).ok_or(HeaderError::Truncated)?;
        let (attr, ids) =
            entry.split_at_checked(entry.len().wrapping_sub(16)).ok_or(HeaderError::Truncated)?;
        let ids = section(&mut Bytes::new(ids)).ok_or(HeaderError::Truncated)?;
        *ids_left = ids_left.checked_sub(ids.size / 8).ok_or(HeaderError::Oversized)?;
        let ids = read_at(file, ids).ok_or(HeaderError::Truncated)?;
        let ids = Bytes::new(&ids).u64s(ids.len() as u64 / 8).into_iter().flatten().collect();
        Ok(EventIds { attr: Attr::from_bytes(attr), ids })
    }

    /// The section of each feature, by its number. Unreadable ones are left out.
    pub(crate) fn features(&self, file: &File) -> Vec<(u32, Section)> {
        if !self.is_finished() {
            return Vec::new();
        }
        let set = (0..256u32).filter(|bit| self.features[*bit as usize / 64] & 1 << (bit % 64) != 0);
        let table = self.data.offset.checked_add(self.data.size);
        let at = |index: usize| {
            let offset = table?.checked_add(16 * index as u64)?;
            section(&mut Bytes::new(&read_at(file, Section { offset, size: 16 })?))
        };
        set.enumerate().filter_map(|(index, feature)| Some((feature, at(index)?))).collect()
    }
}

/// The bytes of a section; `None` if they are not all there, or exceed the limit of features.
pub(crate) fn read_at(file: &File, section: Section) -> Option<Vec<u8>> {
    let end = section.offset.checked_add(section.size)?;
    if section.size > MAX_FEATURE || end > file.metadata().ok()?.len() {
        return None;
    }
    let mut bytes = vec![0; section.size as usize];
    file.read_exact_at(&mut bytes, section.offset).ok()?;
    Some(bytes)
}

/// Reads a section of a file from its start to its end.
pub(crate) struct SectionReader<'a> {
    pub file: &'a File,
    pub section: Section,
}

impl io::Read for SectionReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(usize::try_from(self.section.size).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..len], self.section.offset)?;
        self.section.offset += count as u64;
        self.section.size -= count as u64;
        Ok(count)
    }
}

fn section(bytes: &mut Bytes<'_>) -> Option<Section> {
    Some(Section { offset: bytes.u64()?, size: bytes.u64()? })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use wallprof_intel_pt::generator::record::{attr, words};

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("a scratch file");
        file.write_all(bytes).expect("written");
        file
    }

    /// A header for one attr of 64 bytes with two numbers, data of 8 bytes and features 3 and 70.
    fn sound() -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(words(&[104, 80, 104, 80, 200, 8, 0, 0, 1 << 3, 1 << 6, 0, 0]));
        bytes.extend(attr(64, &[(8, 5)]));
        bytes.extend(words(&[184, 16, 7, 8, 0, 240, 1, 241, 2]));
        bytes.extend(b"abc");
        bytes
    }

    #[test]
    fn tables_are_where_the_header_says() {
        let file = file(&sound());
        let header = FileHeader::read(&file).expect("a header");
        let events = header.events(&file).expect("events");
        assert_eq!((events.len(), events[0].attr.config, &events[0].ids[..]), (1, 5, &[7, 8][..]));
        let features = header.features(&file);
        assert_eq!(features, [(3, Section { offset: 240, size: 1 }), (70, Section { offset: 241, size: 2 })]);
        let mut text = String::new();
        SectionReader { file: &file, section: features[1].1 }.read_to_string(&mut text).expect("text");
        assert_eq!((text.as_str(), read_at(&file, features[0].1)), ("bc", Some(b"a".to_vec())));
    }

    #[test]
    fn magics_are_distinguished() {
        let kind = |magic: &[u8; 8], size: u64| {
            let mut start = [0; STREAM_HEADER];
            start[..8].copy_from_slice(magic);
            start[8..].copy_from_slice(&size.to_le_bytes());
            kind_from_bytes(&start)
        };
        assert_eq!((kind(MAGIC, 16), kind(MAGIC, 104)), (Ok(Kind::Stream), Ok(Kind::File)));
        assert_eq!(kind(SWAPPED, 16), Err(HeaderError::ByteSwapped));
        assert_eq!(kind(FIRST_MAGIC, 104), Err(HeaderError::FirstFormat));
        assert_eq!(kind(b"SQLite f", 0), Err(HeaderError::NotPerfData));
    }

    #[test]
    fn damaged_tables_are_errors() {
        let whole = sound();
        for len in 0..184 + 16 {
            let file = file(&whole[..len]);
            let events = FileHeader::read(&file).and_then(|header| header.events(&file));
            assert_eq!(events, Err(HeaderError::Truncated), "{len}");
        }
        for at in [16, 32, 176] {
            let mut bytes = whole.clone();
            bytes[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            let file = file(&bytes);
            let header = FileHeader::read(&file).expect("a header");
            let events = header.events(&file);
            // An attr size beyond the table leaves no attr in it.
            assert!(events.is_err() || events == Ok(vec![]), "{at}: {events:?}");
        }
    }
}
