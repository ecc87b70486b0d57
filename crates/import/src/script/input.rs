// SPDX-License-Identifier: Apache-2.0
//! Divides a text into blocks of whole lines.

use std::io::{self, Read};

use crate::format::records::read_up_to;

/// Longer lines are divided. Symbols of templates may be long.
const LONGEST_LINE: usize = 1 << 20;

/// Divides a text into blocks.
pub(super) struct Blocks<R> {
    text: R,
    size: usize,
    /// The start of a line whose end is not read yet.
    rest: Vec<u8>,
    ended: bool,
    /// Bytes that were read.
    pub position: u64,
}

impl<R: Read> Blocks<R> {
    /// Blocks of about `size` bytes, at least the longest line.
    pub(super) fn new(text: R, size: usize) -> Self {
        Blocks { text, size: size.max(LONGEST_LINE), rest: Vec::new(), ended: false, position: 0 }
    }

    /// The next block, in the memory of a used block or in new memory. `None` at the end.
    pub(super) fn next(&mut self, mut block: Vec<u8>) -> io::Result<Option<Vec<u8>>> {
        if self.ended {
            return Ok(None);
        }
        let known = self.rest.len();
        block.resize(self.size, 0);
        block[..known].copy_from_slice(&self.rest);
        self.rest.clear();
        let read = read_up_to(&mut self.text, &mut block[known..])?;
        self.position += read as u64;
        block.truncate(known + read);
        if block.len() < self.size {
            self.ended = true;
        } else if let Some(last) = memchr::memrchr(b'\n', &block) {
            self.rest.extend_from_slice(&block[last + 1..]);
            block.truncate(last + 1);
        }
        Ok(Some(block).filter(|block| !block.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(text: &[u8]) -> Vec<Vec<u8>> {
        let mut blocks = Blocks::new(text, 0);
        let mut used = vec![b'?'; 7];
        std::iter::from_fn(|| {
            let block = blocks.next(std::mem::take(&mut used)).unwrap()?;
            used = block.clone();
            Some(block)
        })
        .collect()
    }

    #[test]
    fn blocks_end_at_line_ends_and_hold_the_whole_text() {
        let line = "x".repeat(999) + "\n";
        let text = line.repeat(2_500) + "end";
        let blocks = blocks(text.as_bytes());
        assert!(blocks.len() > 2);
        assert!(blocks[..blocks.len() - 1].iter().all(|block| block.ends_with(b"\n")));
        assert_eq!(blocks.concat(), text.as_bytes());
    }

    #[test]
    fn line_without_end_is_divided() {
        let text = vec![b'x'; LONGEST_LINE * 2 + 5];
        assert_eq!(blocks(&text).iter().map(Vec::len).collect::<Vec<_>>(), [LONGEST_LINE, LONGEST_LINE, 5]);
        assert!(blocks(b"").is_empty());
    }
}
