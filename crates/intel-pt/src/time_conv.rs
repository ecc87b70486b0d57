// SPDX-License-Identifier: Apache-2.0
//! Converts ticks of the time-stamp counter to perf's nanoseconds, by the numbers of a TIME_CONV record
//! (`perf_event_mmap_page` in linux/perf_event.h).

/// `ns = zero + (ticks · mult >> shift)`, in wrapping arithmetic: `zero` is often a wrapped negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeConv {
    /// The number of bits by which the product is shifted down.
    pub shift: u16,
    /// The factor.
    pub mult: u64,
    /// The time of tick 0.
    pub zero: u64,
}

impl TimeConv {
    /// Ticks that are nanoseconds already.
    pub const NANOSECONDS: TimeConv = TimeConv { shift: 0, mult: 1, zero: 0 };

    /// The time in ns at `ticks`.
    pub fn ns_from_ticks(&self, ticks: u64) -> u64 {
        self.zero.wrapping_add(self.delta_ns(ticks))
    }

    /// The length in ns of an interval of `ticks`.
    #[inline]
    pub fn delta_ns(&self, ticks: u64) -> u64 {
        if self.shift > 127 {
            return 0;
        }
        ((u128::from(ticks) * u128::from(self.mult)) >> self.shift) as u64
    }

    /// The first tick at or after `ns`. Saturates if the formula has no inverse.
    pub fn ticks_from_ns(&self, ns: u64) -> u64 {
        if self.mult == 0 || self.shift > 64 {
            return u64::MAX;
        }
        let scaled = u128::from(ns.wrapping_sub(self.zero)) << self.shift.min(63);
        u64::try_from(scaled.div_ceil(u128::from(self.mult))).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_AND_A_HALF_GHZ: TimeConv = TimeConv { shift: 31, mult: 858_993_459, zero: 0 };

    #[test]
    fn ticks_become_nanoseconds() {
        assert_eq!(TWO_AND_A_HALF_GHZ.ns_from_ticks(1_000_001_500), 400_000_599);
    }

    #[test]
    fn negative_zero_wraps() {
        let conversion = TimeConv { zero: 0u64.wrapping_sub(100), ..TimeConv::NANOSECONDS };
        assert_eq!(conversion.ns_from_ticks(150), 50);
        assert_eq!(conversion.ticks_from_ns(50), 150);
    }

    #[test]
    fn months_of_ticks_do_not_overflow() {
        assert_eq!(TWO_AND_A_HALF_GHZ.ns_from_ticks(1 << 55), 858_993_459 << 24);
    }

    #[test]
    fn inverse_is_the_first_tick_of_a_nanosecond() {
        for ns in [0, 1, 399_999_999, 86_400_000_000_000] {
            let ticks = TWO_AND_A_HALF_GHZ.ticks_from_ns(ns);
            assert!(TWO_AND_A_HALF_GHZ.ns_from_ticks(ticks) >= ns);
            assert!(ticks == 0 || TWO_AND_A_HALF_GHZ.ns_from_ticks(ticks - 1) < ns);
        }
    }

    #[test]
    fn absurd_numbers_do_not_panic() {
        for shift in [0, 63, 64, 65, 127, 128, u16::MAX] {
            for mult in [0, 1, u64::MAX] {
                let conversion = TimeConv { shift, mult, zero: u64::MAX };
                conversion.ns_from_ticks(u64::MAX);
                conversion.ticks_from_ns(u64::MAX);
            }
        }
    }
}
