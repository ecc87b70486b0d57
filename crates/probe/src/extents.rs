// SPDX-License-Identifier: Apache-2.0
//! Allocation of the arena's words: first fit over free extents. Freed extents rest before they are allocated
//! again.
//!
//! Handles positions only; the arena handles their content.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::bpf::constants as c;

/// All positions are multiples of this many words, which is the size of a mapping in a list.
const ALIGN: u32 = 8;
const CHUNK: u32 = c::CHUNK_WORDS as u32;
/// A walk that started before something was deleted from the maps is over after this time.
const REST: Duration = Duration::from_secs(2);

/// The free words of all chunks.
#[derive(Default)]
pub(crate) struct Extents {
    chunks: u32,
    /// Position → length, in words; adjacent extents are merged.
    free: BTreeMap<u32, u32>,
    resting: VecDeque<(Instant, u32, u32)>,
    taken_words: u64,
}

impl Extents {
    /// A position for `words` words that do not cross a chunk's end. `None`: add a chunk, unless `words` is
    /// too long for one.
    pub(crate) fn take(&mut self, words: u32, now: Instant) -> Option<u32> {
        self.wake(now);
        let len = rounded(words);
        let (&position, &free) = self.free.iter().find(|(_, free)| **free >= len)?;
        self.free.remove(&position);
        if free > len {
            self.free.insert(position + len, free - len);
        }
        self.taken_words += u64::from(len);
        Some(position)
    }

    /// Frees an extent that `take` returned. It is not allocated again before walks under way are over.
    pub(crate) fn give_back(&mut self, position: u32, words: u32, now: Instant) {
        let len = rounded(words);
        self.taken_words -= u64::from(len);
        self.resting.push_back((now, position, len));
    }

    /// Adds a chunk, and returns its number. The arena's first words stay unused: position 0 means "none".
    pub(crate) fn add_chunk(&mut self) -> u32 {
        let chunk = self.chunks;
        self.chunks += 1;
        let unused = if chunk == 0 { ALIGN } else { 0 };
        self.free.insert((chunk << c::CHUNK_BITS) + unused, CHUNK - unused);
        chunk
    }

    /// Bytes that are allocated.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.taken_words * 4
    }

    /// The longest extent that fits into any chunk.
    pub(crate) fn longest() -> u32 {
        CHUNK - ALIGN
    }

    fn wake(&mut self, now: Instant) {
        while let Some(&(since, position, len)) = self.resting.front()
            && now.duration_since(since) >= REST
        {
            self.resting.pop_front();
            self.insert_free(position, len);
        }
    }

    fn insert_free(&mut self, mut position: u32, mut len: u32) {
        let same_chunk = |a: u32, b: u32| a >> c::CHUNK_BITS == b >> c::CHUNK_BITS;
        if let Some((&before, &before_len)) = self.free.range(..position).next_back()
            && before + before_len == position
            && same_chunk(before, position)
        {
            self.free.remove(&before);
            (position, len) = (before, before_len + len);
        }
        let end = position + len;
        if same_chunk(position, end)
            && let Some(after_len) = self.free.remove(&end)
        {
            len += after_len;
        }
        self.free.insert(position, len);
    }
}

fn rounded(words: u32) -> u32 {
    words.max(1).next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_chunk() -> Extents {
        let mut extents = Extents::default();
        assert_eq!(extents.take(1, Instant::now()), None);
        extents.add_chunk();
        extents
    }

    #[test]
    fn position_zero_is_never_given_out() {
        let mut extents = one_chunk();
        assert_eq!(extents.take(3, Instant::now()), Some(8));
        assert_eq!(extents.take(9, Instant::now()), Some(16));
        assert_eq!(extents.take(1, Instant::now()), Some(32));
        assert_eq!(extents.taken_bytes(), (8 + 16 + 8) * 4);
    }

    #[test]
    fn nothing_crosses_a_chunks_end() {
        let mut extents = one_chunk();
        let now = Instant::now();
        assert!(extents.take(Extents::longest() - 8, now).is_some());
        assert_eq!(extents.take(16, now), None);
        extents.add_chunk();
        assert_eq!(extents.take(16, now), Some(CHUNK));
        assert_eq!(extents.take(8, now), Some(CHUNK - 8), "the rest of the first chunk is used too");
    }

    #[test]
    fn freed_extents_rest_and_are_merged() {
        let mut extents = one_chunk();
        let now = Instant::now();
        let places: Vec<u32> = (0..3).filter_map(|_| extents.take(100, now)).collect();
        let rest = extents.take(Extents::longest() - 312, now).expect("the rest");
        for index in [0, 2, 1] {
            extents.give_back(places[index], 100, now);
        }
        assert_eq!(extents.take(300, now), None, "still resting");
        let later = now + REST;
        assert_eq!(extents.take(312, later), Some(places[0]), "three neighbours became one");
        extents.give_back(rest, Extents::longest() - 312, later);
        assert_eq!(extents.taken_bytes(), 312 * 4);
    }
}
