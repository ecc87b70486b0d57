// SPDX-License-Identifier: Apache-2.0
//! Tests whether waits last longer on one side than on the other, by the waits themselves.
//!
//! The time that a rare wait takes in a second depends on how many there happen to be: its windows scatter,
//! and ten of them prove little. How long the waits last is known from every one of them. The mean lengths
//! of both sides are compared by Welch's t-test, and two things make their variance larger. Waits that
//! resemble the one before (one holder kept several waiting) say less than independent ones, as windows do
//! (see [`super::correlated`]). And a length that all waits of one period share is no evidence by itself:
//! the variance is at least the one that half seconds show (a ratio estimator whose clusters are the half
//! seconds; Cochran, Sampling Techniques, 9A), which then is known no better than from that many. Half
//! seconds scatter by the waits in them too, so that a drift of all waits shows as a correlation that is
//! small and fades slowly: it is taken to halve from each to the next.
//!
//! Of drawn pairs of 9 s with 13 or 60 waits a second, equal but for a drift of 30 % that all waits share,
//! this many had p < 0.01: without drift 0.4 to 0.7 %; drifting for 0.3 s 1.2 to 1.4 %; for 1 s 2.4 to 4 %;
//! for 3 s 11 to 16 %, where windows of a whole second had 8 to 11 %. So slow a drift cannot be
//! distinguished from a difference in so short a recording.

use wallprof_model::MonoNs;

use super::correlated::{correlation, degrees, inflation, products};
use super::evidence::LEAST_WINDOWS;
use super::waits::Waits;
use super::welch::{Variance, Welch};
use super::windows::Windows;

/// Means of fewer waits are not near enough to normal.
const LEAST_WAITS: usize = 20;

/// Of an amount, what its waits must make up to speak for it.
const LEAST_SHARE: f64 = 0.8;

/// Empty windows that are kept between two waits.
const MOST_EMPTY: u64 = 64;

/// Half a second.
const WINDOW_NS: u64 = 500_000_000;

/// Waits that speak for an amount of a side.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lengths {
    mean: f64,
    /// The difference of each wait from the mean, in order.
    residuals: Vec<f64>,
    /// The same summed up by half second, from the first wait's to the last one's.
    by_window: Vec<f64>,
    /// How many of those the recording holds.
    windows: f64,
}

impl Lengths {
    /// `None`: too few, or a small part of the `amount_ns` that was measured.
    pub fn of(waits: &Waits, amount_ns: u64, windows: &Windows) -> Option<Self> {
        let (count, total_ns) = (waits.count(), waits.total_ns() as f64);
        let windows = windows.total_ns() / WINDOW_NS as f64;
        if count < LEAST_WAITS || total_ns < LEAST_SHARE * amount_ns as f64 || windows < LEAST_WINDOWS {
            return None;
        }
        let mean = total_ns / count as f64;
        Some(Lengths {
            mean,
            residuals: waits.iter().map(|(_, ns)| ns as f64 - mean).collect(),
            by_window: by_window(waits, mean),
            windows,
        })
    }

    fn of_waits(&self, correlation: f64) -> Variance {
        let count = self.residuals.len() as f64;
        let of = products(&self.residuals, 0) / (count * (count - 1.0)) * inflation(correlation);
        Variance { of, degrees: degrees(count, correlation) }
    }

    fn of_windows(&self, correlation: f64) -> Variance {
        let count = self.residuals.len() as f64;
        let sum = products(&self.by_window, 0) * self.windows / (self.windows - 1.0);
        Variance {
            of: sum / count.powi(2) * inflation(correlation).max(1.0 + 4.0 * correlation),
            degrees: degrees(self.windows, correlation),
        }
    }
}

/// By the recording's own clock: a step of the wall clock moves nothing. A damaged file's waits may lie
/// anywhere: what is far apart is taken for neighbours.
fn by_window(waits: &Waits, mean: f64) -> Vec<f64> {
    let mut sums: Vec<f64> = Vec::new();
    let mut last = None;
    for (MonoNs(start), ns) in waits.iter() {
        let window = start / WINDOW_NS;
        let passed = last.map_or(1, |last| window - last);
        sums.resize(sums.len() + passed.min(MOST_EMPTY) as usize, 0.0);
        if let Some(sum) = sums.last_mut() {
            *sum += ns as f64 - mean;
        }
        last = Some(window);
    }
    sums
}

/// How much longer a wait lasts in B, in ns.
pub(crate) fn longer_ns(a: &Lengths, b: &Lengths) -> f64 {
    b.mean - a.mean
}

/// The probability of so different mean lengths between equal sides.
pub(crate) fn p_of_lengths(a: &Lengths, b: &Lengths) -> f64 {
    let waits = correlation(&a.residuals, &b.residuals);
    let windows = correlation(&a.by_window, &b.by_window);
    let by_waits = Welch::new(a.of_waits(waits), b.of_waits(waits));
    let by_windows = Welch::new(a.of_windows(windows), b.of_windows(windows));
    let larger = if by_windows.variance() > by_waits.variance() { by_windows } else { by_waits };
    larger.p(longer_ns(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::chance::Chance;
    use std::collections::BTreeMap;
    use wallprof_model::EpochSecond;
    use wallprof_model::profile::RecordingInfo;

    const MS: f64 = 1e6;

    fn windows(seconds: u32) -> Windows {
        let lived: BTreeMap<_, _> = (0..seconds).map(|at| (EpochSecond(at), 1_000_000_000)).collect();
        Windows::new(&RecordingInfo::default(), &lived)
    }

    /// `count` waits, evenly spread, of the given lengths.
    fn lengths(seconds: u32, count: u64, mut ms: impl FnMut(u64) -> f64) -> Lengths {
        let mut waits = Waits::default();
        let apart = u64::from(seconds) * 1_000_000_000 / count;
        (0..count).for_each(|at| waits.add(MonoNs(at * apart), (ms(at) * MS) as u64));
        Lengths::of(&waits, waits.total_ns(), &windows(seconds)).expect("enough")
    }

    #[test]
    fn few_waits_and_small_parts_say_nothing() {
        let mut waits = Waits::default();
        (0..LEAST_WAITS as u64).for_each(|at| waits.add(MonoNs(at), 80));
        let of = |amount_ns| Lengths::of(&waits, amount_ns, &windows(9));
        assert!(of(1_600).is_some() && of(2_000).is_some() && of(2_001).is_none());
        assert!(Lengths::of(&waits, 1_600, &windows(1)).is_none(), "too short");
        let mut fewer = Waits::default();
        (1..LEAST_WAITS as u64).for_each(|at| fewer.add(MonoNs(at), 80));
        assert!(Lengths::of(&fewer, 1_520, &windows(9)).is_none());
    }

    /// Worked by hand: means 2 and 3, variances 20/19 of 1 each, no resemblance between neighbours or half
    /// seconds.
    #[test]
    fn welchs_test_on_single_waits() {
        let alternating =
            |middle: f64| move |at: u64| if at.is_multiple_of(2) { middle - 1.0 } else { middle + 1.0 };
        let (a, b) = (lengths(10, 40, alternating(2.0)), lengths(10, 40, alternating(3.0)));
        assert_eq!(longer_ns(&a, &b), MS);
        let variance = Variance { of: MS.powi(2) / 39.0, degrees: 39.0 };
        let expected = Welch::new(variance, variance).p(MS);
        assert!((p_of_lengths(&a, &b) / expected - 1.0).abs() < 1e-9);
    }

    /// All waits of one half second last longer: that is one observation, not twenty.
    #[test]
    fn common_length_of_waits_in_one_period_counts_once() {
        let bursts = |at: u64| if at / 20 == 3 { 9.0 } else { 1.0 + (at % 2) as f64 };
        let (a, b) = (lengths(9, 360, |at| 1.0 + (at % 2) as f64), lengths(9, 360, bursts));
        assert!(longer_ns(&a, &b) > 0.4 * MS);
        assert!(p_of_lengths(&a, &b) > 0.2, "{}", p_of_lengths(&a, &b));
    }

    #[test]
    fn damaged_times_need_no_more_memory_than_waits() {
        let mut waits = Waits::default();
        [0, 1 << 40, u64::MAX].into_iter().for_each(|start| waits.add(MonoNs(start), 5));
        assert!(by_window(&waits, 5.0).len() <= 1 + 2 * MOST_EMPTY as usize);
    }

    fn drawn(seed: u64, mean_ms: f64) -> Lengths {
        let mut chance = Chance(seed);
        lengths(9, 200, |_| chance.exponential(mean_ms))
    }

    /// Largest count that a probability of 0.01 exceeds with less than one in a thousand: 10 and 3.1
    /// deviations.
    #[test]
    fn equal_waits_rarely_seem_to_differ() {
        let is_small = |pair: &u64| p_of_lengths(&drawn(2 * pair, 1.0), &drawn(2 * pair + 1, 1.0)) < 0.01;
        let small = (0..1_000).filter(is_small).count();
        assert!(small <= 20, "{small} of 1000");
    }

    /// 60 waits a second that share a drift of 30 %, of which a second later e^-1 is left.
    fn drifting(seed: u64) -> Lengths {
        let mut chance = Chance(seed);
        let kept = (-1.0f64 / 60.0).exp();
        let mut drift = chance.normal();
        lengths(9, 540, |_| {
            drift = kept * drift + (1.0 - kept * kept).sqrt() * chance.normal();
            chance.exponential(1.0) * (0.3 * drift).exp()
        })
    }

    /// 4 % of 400 and 3.1 deviations; were the waits taken for independent, it would be 150.
    #[test]
    fn equal_waits_that_drift_together_do_not_often_seem_to_differ() {
        let is_small = |pair: &u64| p_of_lengths(&drifting(2 * pair), &drifting(2 * pair + 1)) < 0.01;
        let small = (0..400).filter(is_small).count();
        assert!(small <= 28, "{small} of 400");
    }

    #[test]
    fn many_waits_twice_as_long_are_certain() {
        let unsure = |pair: &u64| p_of_lengths(&drawn(2 * pair, 1.0), &drawn(2 * pair + 1, 2.0)) > 0.001;
        let unsure = (0..200).filter(unsure).count();
        assert!(unsure <= 20, "{unsure} of 200");
    }
}
