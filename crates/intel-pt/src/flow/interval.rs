// SPDX-License-Identifier: Apache-2.0
//! Times of events between two packets.

/// The time between the last two packets that moved the decoder, and the consumed part of the last one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub start: u64,
    pub end: u64,
    pub results: u64,
    pub used: u64,
}

impl Interval {
    /// The time of the code between the last consumed result and the next one: half-way.
    #[inline(always)]
    pub(super) fn between_results(&self) -> u64 {
        self.at(2 * self.used + 1)
    }

    /// The time of the last consumed result.
    #[inline(always)]
    pub(super) fn at_result(&self) -> u64 {
        self.at(2 * self.used)
    }

    #[inline(always)]
    pub(super) fn at_packet(&self) -> u64 {
        if self.results == 0 { self.end } else { self.at(2 * self.used + 1) }
    }

    /// The time after `halves` of all the halves of results.
    #[inline(always)]
    fn at(&self, halves: u64) -> u64 {
        let all = 2 * self.results.max(1);
        let length = self.end - self.start;
        if length < 1 << 32 {
            self.start
                + ((length * halves * RECIPROCALS[self.results.max(1) as usize & 63]) >> 24).min(length)
        } else {
            self.start + (u128::from(length) * u128::from(halves.min(all)) / u128::from(all)) as u64
        }
    }
}

/// 2^24 by twice the index, rounded up.
const RECIPROCALS: [u64; 64] = reciprocals();

const fn reciprocals() -> [u64; 64] {
    let mut table = [1 << 23; 64];
    let mut index = 1;
    while index < 64 {
        table[index] = (1u64 << 24).div_ceil(2 * index as u64);
        index += 1;
    }
    table
}
