// SPDX-License-Identifier: Apache-2.0
//! Files of other users, read by `pread`: a mapping would raise SIGBUS here when its file is cut short.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::image::Image;

/// Small reads are served from one buffer of this size.
const WINDOW: u64 = 16 << 10;

/// A file of which parts are read. Its owner can write to it or cut it short meanwhile: a read then returns
/// old bytes, new bytes, or fails.
pub struct FileImage<'f> {
    file: &'f File,
    size: u64,
    window: RefCell<Window>,
}

/// The bytes at `start`.
#[derive(Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl<'f> FileImage<'f> {
    /// Fails for empty files, too.
    pub fn open(file: &'f File) -> io::Result<Self> {
        let size = file.metadata()?.len();
        if size == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(FileImage { file, size, window: RefCell::default() })
    }
}

impl Image for FileImage<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    fn bytes(&self, offset: u64, len: u64) -> Option<Cow<'_, [u8]>> {
        let inside = offset.checked_add(len)? <= self.size;
        let mut bytes = vec![0; usize::try_from(len).ok().filter(|_| inside)?];
        self.file.read_exact_at(&mut bytes, offset).ok()?;
        Some(Cow::Owned(bytes))
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> bool {
        if buffer.len() as u64 > WINDOW {
            return self.file.read_exact_at(buffer, offset).is_ok();
        }
        let mut window = self.window.borrow_mut();
        if !window.holds(offset, buffer.len()) && !window.fill(self.file, offset) {
            return false;
        }
        match window.bytes_at(offset, buffer.len()) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => return false,
        }
        true
    }
}

impl Window {
    fn holds(&self, offset: u64, len: usize) -> bool {
        self.bytes_at(offset, len).is_some()
    }

    fn bytes_at(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(start..start.checked_add(len)?)
    }

    /// Reads from `offset` to the file's end. False where nothing follows it.
    fn fill(&mut self, file: &File, offset: u64) -> bool {
        self.start = offset;
        self.bytes.resize(WINDOW as usize, 0);
        let mut len = 0;
        while len < self.bytes.len() {
            match file.read_at(&mut self.bytes[len..], offset.saturating_add(len as u64)) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.bytes.truncate(len);
        len > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Table, TableError, Unlimited};

    const LIBRARY: &str = "/lib64/ld-linux-x86-64.so.2";

    fn library() -> File {
        File::open(LIBRARY).expect("glibc's linker")
    }

    #[test]
    fn a_file_is_its_bytes() {
        let file = library();
        let all = std::fs::read(LIBRARY).expect("glibc's linker");
        let image = FileImage::open(&file).expect("an image");
        assert_eq!(image.size(), all.len() as u64);
        let mut small = [0; 7];
        for at in (0..all.len() - 70_000).step_by(5_003) {
            assert_eq!(image.bytes(at as u64, 70_000).as_deref(), Some(&all[at..at + 70_000]));
            assert!(image.read(at as u64, &mut small));
            assert_eq!(small, all[at..at + 7]);
        }
        let size = image.size();
        assert!(image.read(size - 7, &mut small) && small == all[all.len() - 7..]);
        assert!(!image.read(size - 6, &mut small));
        assert!(image.bytes(size - 6, 7).is_none() && image.bytes(u64::MAX, 7).is_none());
        let empty = File::open("/proc/self/status").expect("a file of length 0");
        assert!(FileImage::open(&empty).is_err());
    }

    #[test]
    fn table_of_a_file_is_the_table_of_its_bytes() {
        let file = library();
        let read =
            Table::from_image(&FileImage::open(&file).expect("an image"), &Unlimited).expect("a table");
        let all = std::fs::read(LIBRARY).expect("glibc's linker");
        let table = Table::from_elf(&all).expect("a table");
        assert!(read.pages().eq(table.pages()) && read.rules() == table.rules());
    }

    /// A mapping of such a file raises SIGBUS at the first byte behind its new end.
    #[test]
    fn file_cut_short_while_it_is_read_is_an_error() {
        let path = std::env::temp_dir().join(format!("wallprof-cut-{}", std::process::id()));
        std::fs::copy(LIBRARY, &path).expect("a copy");
        let file = File::options().read(true).write(true).open(&path).expect("the copy");
        std::fs::remove_file(&path).expect("removed");
        let image = FileImage::open(&file).expect("an image");
        file.set_len(4096).expect("cut short");
        let error = Table::from_image(&image, &Unlimited).err();
        assert!(matches!(error, Some(TableError::Truncated(_))), "{error:?}");
        assert!(!image.read(8192, &mut [0; 8]));
    }
}
