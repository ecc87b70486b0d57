//! Texts in blocks of whole lines.

use std::io::{self, Read};

/// A line is at most as long; what follows is another line. Symbols of templates may be long.
const LONGEST_LINE: usize = 1 << 20;

/// Cuts a text into blocks.
pub(super) struct Blocks<R> {
    text: R,
    size: usize,
    /// The begin of a line whose end is not read yet.
    rest: Vec<u8>,
    ended: bool,
    /// Bytes that were read.
    pub position: u64,
}

impl<R: Read> Blocks<R> {
    /// Blocks of about `size` bytes, which must be more than the longest line.
    pub(super) fn new(text: R, size: usize) -> Self {
        Blocks { text, size: size.max(LONGEST_LINE), rest: Vec::new(), ended: false, position: 0 }
    }

    /// The next block; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.ended {
            return Ok(None);
        }
        let mut block = std::mem::take(&mut self.rest);
        let known = block.len();
        block.reserve_exact(self.size);
        self.text.by_ref().take((self.size - known) as u64).read_to_end(&mut block)?;
        let read = block.len() - known;
        self.position += read as u64;
        if block.len() < self.size {
            self.ended = true;
        } else if let Some(last) = memchr::memrchr(b'\n', &block) {
            self.rest = block.split_off(last + 1);
        }
        Ok(Some(block).filter(|block| !block.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(text: &[u8]) -> Vec<Vec<u8>> {
        let mut blocks = Blocks::new(text, 0);
        std::iter::from_fn(|| blocks.next().unwrap()).collect()
    }

    #[test]
    fn blocks_end_with_lines_and_hold_everything() {
        let line = "x".repeat(999) + "\n";
        let text = line.repeat(2_500) + "end";
        let blocks = blocks(text.as_bytes());
        assert!(blocks.len() > 2);
        assert!(blocks[..blocks.len() - 1].iter().all(|block| block.ends_with(b"\n")));
        assert_eq!(blocks.concat(), text.as_bytes());
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let text = vec![b'x'; LONGEST_LINE * 2 + 5];
        assert_eq!(blocks(&text).iter().map(Vec::len).collect::<Vec<_>>(), [LONGEST_LINE, LONGEST_LINE, 5]);
        assert!(blocks(b"").is_empty());
    }
}
