//! An ELF file's image without its debug information, which may be gigabytes that nobody asks for: what is not
//! read stays zero, and takes no memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::format::bytes::{Bytes, until_nul};

/// Larger files are no programs.
const MAX_FILE: u64 = 8 << 30;
/// What is read of a file at most.
const MAX_READ: u64 = 1 << 30;
const HEADER: u64 = 64;
const SECTION_HEADER: usize = 64;
const SECTION_WITHOUT_BYTES: u32 = 8;

/// A stretch of the file.
#[derive(Clone, Copy)]
struct Part {
    name: u32,
    kind: u32,
    offset: u64,
    size: u64,
}

/// The image of the 64-bit ELF file.
pub(crate) fn read_image(file: &File) -> io::Result<Vec<u8>> {
    let len = file.metadata()?.len();
    let too_large = || io::Error::from(io::ErrorKind::FileTooLarge);
    if len > MAX_FILE {
        return Err(too_large());
    }
    let mut image = vec![0; usize::try_from(len).map_err(|_| too_large())?];
    fill(file, &mut image, 0, len.min(HEADER))?;
    let header = Bytes::new(&image);
    let (segments, sections) = tables(header).unwrap_or_default();
    let mut wanted = vec![segments, sections];
    wanted.extend(wanted_parts(file, &mut image, sections)?);
    let mut left = MAX_READ;
    for (offset, size) in wanted {
        let size = size.min(len.saturating_sub(offset));
        left = left.checked_sub(size).ok_or_else(too_large)?;
        fill(file, &mut image, offset, size)?;
    }
    Ok(image)
}

/// Offset and size of the tables of segments and of sections.
fn tables(mut header: Bytes<'_>) -> Option<((u64, u64), (u64, u64))> {
    header.skip(32)?;
    let (segments, sections) = (header.u64()?, header.u64()?);
    header.skip(6)?;
    let mut size = || Some(u64::from(header.u16()?) * u64::from(header.u16()?));
    Some(((segments, size()?), (sections, size()?)))
}

/// All sections but those of debug information; the whole file where there are none.
fn wanted_parts(file: &File, image: &mut [u8], sections: (u64, u64)) -> io::Result<Vec<(u64, u64)>> {
    let len = image.len() as u64;
    fill(file, image, sections.0, sections.1.min(len.saturating_sub(sections.0)))?;
    let names_at = u16::from_le_bytes([*image.get(62).unwrap_or(&0), *image.get(63).unwrap_or(&0)]);
    let parts = parts(image, sections);
    let Some(names) = parts.get(usize::from(names_at)).copied() else { return Ok(vec![(0, len)]) };
    fill(file, image, names.offset, names.size.min(len.saturating_sub(names.offset)))?;
    let text = |part: &Part| {
        let at = usize::try_from(names.offset.checked_add(part.name.into())?).ok()?;
        image.get(at..).map(until_nul)
    };
    let is_wanted = |part: &&Part| {
        let debug = text(part).is_some_and(|name| {
            (name.starts_with(b".debug_") || name.starts_with(b".zdebug_")) && !name.ends_with(b"debug_frame")
        });
        part.kind != SECTION_WITHOUT_BYTES && !debug
    };
    Ok(parts.iter().filter(is_wanted).map(|part| (part.offset, part.size)).collect())
}

fn parts(image: &[u8], (offset, size): (u64, u64)) -> Vec<Part> {
    let table = usize::try_from(offset).ok().zip(usize::try_from(size).ok());
    let table = table.and_then(|(offset, size)| image.get(offset..offset.checked_add(size)?));
    table.unwrap_or_default().chunks_exact(SECTION_HEADER).filter_map(part).collect()
}

fn part(header: &[u8]) -> Option<Part> {
    let mut bytes = Bytes::new(header);
    let (name, kind) = (bytes.u32()?, bytes.u32()?);
    // Flags and address.
    bytes.skip(16)?;
    Some(Part { name, kind, offset: bytes.u64()?, size: bytes.u64()? })
}

/// Reads a stretch that the caller has clipped to the file.
fn fill(file: &File, image: &mut [u8], offset: u64, size: u64) -> io::Result<()> {
    let range = usize::try_from(offset).ok().zip(usize::try_from(size).ok());
    let range = range.and_then(|(offset, size)| image.get_mut(offset..offset.checked_add(size)?));
    match range {
        Some(range) => file.read_exact_at(range, offset),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn an_image_has_all_that_tables_are_made_of() {
        let path = std::env::current_exe().expect("a running program");
        let whole = std::fs::read(&path).expect("readable");
        let image = read_image(&File::open(&path).expect("opens")).expect("an image");
        assert_eq!(image.len(), whole.len());
        assert!(image != whole, "debug information is left out");
        let table = |image: &[u8]| wallprof_unwind::Table::from_elf(image).expect("a table").rules().to_vec();
        assert_eq!(table(&image), table(&whole));
    }

    #[test]
    fn damaged_headers_are_no_panic() {
        let path = std::env::current_exe().expect("a running program");
        let mut start = vec![0; 64];
        File::open(&path).expect("opens").read_exact_at(&mut start, 0).expect("a header");
        for at in 0..64 {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut bytes = start.clone();
                bytes[at] = byte;
                bytes.extend([byte; 200]);
                let mut file = tempfile::tempfile().expect("a scratch file");
                file.write_all(&bytes).expect("written");
                assert!(read_image(&file).is_ok_and(|image| image.len() == 264));
            }
        }
        assert_eq!(read_image(&tempfile::tempfile().expect("a scratch file")).expect("empty"), []);
    }
}
