// SPDX-License-Identifier: Apache-2.0
//! Numbers drawn from a seed, for tests: every run sees the same ones.

/// SplitMix64.
pub(crate) struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Evenly in 0..1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.share()).ln()
    }

    /// Of mean 0 and deviation 1: a sum of twelve, which is near enough.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }

    pub fn poisson(&mut self, mean: f64) -> u64 {
        let (mut count, mut at) = (0, self.exponential(1.0));
        while at < mean {
            count += 1;
            at += self.exponential(1.0);
        }
        count
    }
}
