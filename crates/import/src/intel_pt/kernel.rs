// SPDX-License-Identifier: Apache-2.0
//! The code of the recorded kernel: `kcore` as perf copies it, an ELF core file, and its symbols.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use wallprof_intel_pt::{Function, FunctionId};
use wallprof_symbols::KernelSymbols;

use crate::format::bytes::Bytes;

/// The size of a page of code.
const CHUNK: u64 = 4 << 10;
/// Pages of a kernel and its modules that are kept.
const MAX_CHUNKS: usize = 64 << 10;
/// The limit of segments of a core file. perf writes one for the kernel, and one for each range of modules.
const MAX_SEGMENTS: u16 = 4096;
const ELF_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const PT_LOAD: u32 = 1;
/// The first id of kernel functions.
pub(crate) const FIRST_ID: u32 = FunctionId::FIRST_OF_KERNEL.0;

/// File bytes `[offset, offset + size)` are at `address`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    address: u64,
    size: u64,
    offset: u64,
}

/// Code of the kernel after the first read; `None` if reading failed.
type Page = OnceLock<Option<Box<[u8]>>>;

/// The recorded kernel. Without a core file its code is not known, without symbols its functions are not.
#[derive(Default)]
pub(crate) struct Kernel {
    core: Option<File>,
    segments: Vec<Segment>,
    /// The pages of each segment.
    pages: Vec<Vec<Page>>,
    symbols: Option<Arc<KernelSymbols>>,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    ids: HashMap<u64, u32>,
    all: Vec<u64>,
}

impl Kernel {
    pub(crate) fn new(core: Option<PathBuf>, symbols: Option<Arc<KernelSymbols>>) -> Self {
        let core = core.and_then(|path| File::open(path).ok());
        let segments = core.as_ref().and_then(read_segments).unwrap_or_default();
        let mut kernel = Kernel { core, symbols, ..Kernel::default() };
        let mut left = MAX_CHUNKS;
        for segment in segments {
            let pages = usize::try_from(segment.size.div_ceil(CHUNK)).unwrap_or(usize::MAX);
            // Some cores hold the direct map of all memory. It is not code, and exceeds the limit.
            if pages <= left {
                left -= pages;
                kernel.segments.push(segment);
                kernel.pages.push(std::iter::repeat_with(Page::new).take(pages).collect());
            }
        }
        kernel
    }

    pub(crate) fn bytes(&self, address: u64) -> Option<&[u8]> {
        let inside =
            |segment: &Segment| address.checked_sub(segment.address).is_some_and(|at| at < segment.size);
        let index = self.segments.iter().position(inside)?;
        let segment = &self.segments[index];
        let at = address - segment.address;
        let page = self.pages[index].get((at / CHUNK) as usize)?;
        let bytes = page.get_or_init(|| self.read(segment, at / CHUNK * CHUNK)).as_deref()?;
        bytes.get((at % CHUNK) as usize..)
    }

    pub(crate) fn function(&self, address: u64) -> Option<Function> {
        let symbol = self.symbols.as_ref()?.symbol(address)?;
        let entry = address - symbol.offset;
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let next = entries.all.len() as u32;
        let number = *entries.ids.entry(entry).or_insert(next);
        if number == next {
            entries.all.push(entry);
        }
        Some(Function { id: FunctionId(FIRST_ID | number), entry })
    }

    /// The entry of a function that `function` has returned.
    pub(crate) fn entry(&self, id: FunctionId) -> Option<u64> {
        let number = id.0.checked_sub(FIRST_ID)?;
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).all.get(number as usize).copied()
    }

    fn read(&self, segment: &Segment, at: u64) -> Option<Box<[u8]>> {
        let mut bytes = vec![0; CHUNK.min(segment.size - at) as usize];
        self.core.as_ref()?.read_exact_at(&mut bytes, segment.offset.checked_add(at)?).ok()?;
        Some(bytes.into())
    }
}

/// The loadable segments of a 64-bit ELF file.
fn read_segments(file: &File) -> Option<Vec<Segment>> {
    let mut header = [0; ELF_HEADER];
    file.read_exact_at(&mut header, 0).ok()?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let table_at = Bytes::new(&header[32..]).u64()?;
    let mut counts = Bytes::new(&header[54..]);
    let (size, count) = (counts.u16()?, counts.u16()?);
    if usize::from(size) != PROGRAM_HEADER || count > MAX_SEGMENTS {
        return None;
    }
    let mut table = vec![0; PROGRAM_HEADER * usize::from(count)];
    file.read_exact_at(&mut table, table_at).ok()?;
    Some(table.chunks_exact(PROGRAM_HEADER).filter_map(segment).collect())
}

fn segment(header: &[u8]) -> Option<Segment> {
    let mut bytes = Bytes::new(header);
    let kind = bytes.u32()?;
    bytes.skip(4)?;
    let (offset, address) = (bytes.u64()?, bytes.u64()?);
    bytes.skip(8)?;
    let size = bytes.u64()?;
    (kind == PT_LOAD && address.checked_add(size).is_some()).then_some(Segment { address, size, offset })
}

/// The folder in which `perf record --kcore` writes the kernel beside the recording.
pub(crate) fn kernel_folder(recording: &Path) -> Option<PathBuf> {
    recording.parent().map(|folder| folder.join("kcore_dir")).filter(|folder| folder.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(segments: &[(u32, u64, &[u8])]) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01".to_vec();
        bytes.resize(ELF_HEADER, 0);
        bytes[32] = ELF_HEADER as u8;
        bytes[54] = PROGRAM_HEADER as u8;
        bytes[56] = segments.len() as u8;
        let mut offset = (ELF_HEADER + PROGRAM_HEADER * segments.len()) as u64;
        for (kind, address, content) in segments {
            let mut header = kind.to_le_bytes().to_vec();
            header.resize(8, 0);
            for word in [offset, *address, 0, content.len() as u64, 0, 0] {
                header.extend(word.to_le_bytes());
            }
            offset += content.len() as u64;
            bytes.extend(header);
        }
        segments.iter().for_each(|(_, _, content)| bytes.extend(*content));
        bytes
    }

    fn kernel(bytes: &[u8]) -> Kernel {
        let file = tempfile::NamedTempFile::new().expect("a scratch file");
        std::fs::write(file.path(), bytes).expect("written");
        let text = "ffffffff81000000 T _text\nffffffff81000010 T do_it\nffffffff81000100 T _etext\n";
        let symbols = KernelSymbols::from_reader(text.as_bytes()).expect("symbols");
        Kernel::new(Some(file.path().to_owned()), Some(Arc::new(symbols)))
    }

    #[test]
    fn code_is_at_the_addresses_of_the_segments() {
        let code: Vec<u8> = (0..5000).map(|at| at as u8).collect();
        let kernel = kernel(&core(&[
            (4, 0, b"notes"),
            (1, 0xffff_ffff_8100_0000, &code),
            (1, 0xffff_ffff_c000_0000, b"m"),
        ]));
        assert_eq!(kernel.bytes(0xffff_ffff_8100_0001).map(|bytes| bytes[0]), Some(1));
        assert_eq!(kernel.bytes(0xffff_ffff_8100_1380).map(<[u8]>::len), Some(5000 - 0x1380));
        assert_eq!(kernel.bytes(0xffff_ffff_8100_1388), None);
        assert_eq!(kernel.bytes(0xffff_ffff_c000_0000), Some(&b"m"[..]));
        assert_eq!(kernel.bytes(0), None);
    }

    #[test]
    fn functions_are_numbered_in_the_order_of_requests() {
        let kernel = kernel(&core(&[]));
        let first = kernel.function(0xffff_ffff_8100_0014).expect("a function");
        let again = kernel.function(0xffff_ffff_8100_0010).expect("a function");
        let other = kernel.function(0xffff_ffff_8100_0004).expect("a function");
        assert_eq!((first, first.entry), (again, 0xffff_ffff_8100_0010));
        assert_ne!(first.id, other.id);
        assert_eq!(kernel.entry(other.id), Some(0xffff_ffff_8100_0000));
        assert_eq!(kernel.entry(FunctionId(7)), None);
    }

    #[test]
    fn damaged_cores_have_no_code() {
        let whole = core(&[(1, 0xffff_ffff_8100_0000, b"code")]);
        for len in 0..whole.len() {
            let kernel = kernel(&whole[..len]);
            assert_eq!(kernel.bytes(0xffff_ffff_8100_0000), None, "{len}");
        }
        let mut endless = whole.clone();
        endless[ELF_HEADER + 32..ELF_HEADER + 40].fill(0xff);
        assert!(kernel(&endless).segments.is_empty());
    }
}
