// SPDX-License-Identifier: Apache-2.0
//! Files of /proc that are read again and again: opened once, since opening costs as much as reading.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Longer files are cut.
const MOST_BYTES: usize = 64 << 10;

/// An open file and its last content.
pub struct TextFile {
    file: File,
    bytes: Vec<u8>,
}

impl TextFile {
    /// `None` where the file does not exist or cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Option<Self> {
        let mut text = TextFile { file: File::open(path).ok()?, bytes: vec![0; 4096] };
        text.read().is_ok().then_some(text)
    }

    /// Its content now. Files of a process fail once it has ended, even when its pid is used again.
    pub fn read(&mut self) -> io::Result<&str> {
        let mut len = 0;
        loop {
            let read = self.file.read_at(&mut self.bytes[len..], len as u64)?;
            len += read;
            // The kernel makes such a file in one piece, as far as the buffer goes: a shorter read is its
            // end.
            if read == 0 || len < self.bytes.len() || len >= MOST_BYTES {
                break;
            }
            self.bytes.resize((len * 4).min(MOST_BYTES), 0);
        }
        let text = &self.bytes[..len];
        Ok(std::str::from_utf8(text)
            .unwrap_or_else(|error| std::str::from_utf8(&text[..error.valid_up_to()]).unwrap_or_default()))
    }
}

/// The number behind `name` in the line that starts with it.
pub fn number_after(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_any_length_are_read_whole_or_cut() {
        let path = std::env::temp_dir().join(format!("wallprof-text-{}", std::process::id()));
        for len in [0, 1, 4095, 4096, 4097, 20_000, MOST_BYTES, MOST_BYTES + 5] {
            std::fs::write(&path, "x".repeat(len)).unwrap();
            assert_eq!(TextFile::open(&path).unwrap().read().unwrap().len(), len.min(MOST_BYTES), "{len}");
        }
        std::fs::write(&path, b"ab\xff").unwrap();
        assert_eq!(TextFile::open(&path).unwrap().read().unwrap(), "ab");
        std::fs::remove_file(&path).unwrap();
        assert!(TextFile::open(&path).is_none());
    }

    #[test]
    fn numbers_by_their_names() {
        let text = "MemFree:   12 kB\nDirty: x\n";
        assert_eq!(number_after(text, "MemFree:"), Some(12));
        assert_eq!(number_after(text, "Dirty:"), None);
        assert_eq!(number_after(text, "Cached:"), None);
    }
}
