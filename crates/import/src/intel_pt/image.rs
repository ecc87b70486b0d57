// SPDX-License-Identifier: Apache-2.0
//! The code of one file, read chunk by chunk on demand, and its functions.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use wallprof_symbols::{FunctionTable, ModuleFile, ResolverOptions};

/// Bytes that are read at once. Programs run a small part of their code.
const CHUNK: u64 = 16 << 10;
/// Larger files are not programs.
const MAX_FILE: u64 = 8 << 30;

/// Part of a file; `None` where it cannot be read.
type Chunk = OnceLock<Option<Box<[u8]>>>;

/// A file's bytes.
#[derive(Debug, Default)]
pub(crate) struct Bytes {
    file: Option<Arc<File>>,
    len: u64,
    chunks: Vec<Chunk>,
}

impl Bytes {
    pub(crate) fn of(file: Option<Arc<File>>) -> Self {
        let len = file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |found| found.len());
        let len = if len > MAX_FILE { 0 } else { len };
        let mut chunks = Vec::new();
        chunks.resize_with(len.div_ceil(CHUNK) as usize, Chunk::new);
        Bytes { file, len, chunks }
    }

    /// Up to `limit` bytes at `offset`. More may follow.
    pub(crate) fn at(&self, offset: u64, limit: u64) -> Option<&[u8]> {
        let index = offset / CHUNK;
        let chunk = self.chunks.get(usize::try_from(index).ok()?)?;
        let bytes = chunk.get_or_init(|| self.read(index * CHUNK)).as_deref()?;
        let bytes = bytes.get((offset % CHUNK) as usize..)?;
        Some(&bytes[..bytes.len().min(usize::try_from(limit).unwrap_or(usize::MAX))])
    }

    fn read(&self, offset: u64) -> Option<Box<[u8]>> {
        let mut bytes = vec![0; CHUNK.min(self.len.checked_sub(offset)?) as usize];
        self.file.as_ref()?.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes.into())
    }
}

/// A file's bytes and functions.
#[derive(Debug, Default)]
pub(crate) struct Image {
    pub bytes: Bytes,
    pub functions: FunctionTable,
    /// The id of its function number 0.
    pub first_id: u32,
}

impl Image {
    /// `take_ids` reserves the given number of ids.
    pub(crate) fn new(
        module: Option<ModuleFile>,
        options: &ResolverOptions,
        take_ids: impl FnOnce(u32) -> Option<u32>,
    ) -> Self {
        let Some(module) = module else { return Image::default() };
        let functions = FunctionTable::read(&module, options);
        let count = u32::try_from(functions.len()).unwrap_or(u32::MAX);
        match take_ids(count) {
            Some(first_id) => Image { bytes: Bytes::of(module.file), functions, first_id },
            None => Image { bytes: Bytes::of(module.file), ..Image::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_file() {
        let mut file = tempfile::tempfile().expect("a scratch file");
        let content: Vec<u8> = (0..CHUNK as u32 + 100).map(|at| (at % 251) as u8).collect();
        std::io::Write::write_all(&mut file, &content).expect("written");
        let bytes = Bytes::of(Some(Arc::new(file)));
        for (offset, limit, len) in
            [(0, u64::MAX, CHUNK), (5, 10, 10), (CHUNK - 3, 100, 3), (CHUNK + 90, 100, 10)]
        {
            let at = offset as usize;
            assert_eq!(bytes.at(offset, limit), Some(&content[at..at + len as usize]), "{offset}");
        }
        assert_eq!(bytes.at(CHUNK * 2, 1), None);
        assert_eq!(bytes.at(u64::MAX, 1), None);
        assert_eq!(Bytes::of(None).at(0, 1), None);
    }

    #[test]
    fn without_ids_there_are_no_functions() {
        let file = Arc::new(File::open("/proc/self/exe").expect("this program"));
        let module = wallprof_model::Module { path: "/x".into(), build_id: None };
        let file = ModuleFile { module, file: Some(file) };
        let image = Image::new(Some(file), &ResolverOptions::default(), |_| None);
        assert!(image.functions.is_empty() && image.bytes.at(0, 4) == Some(b"\x7fELF"));
    }
}
