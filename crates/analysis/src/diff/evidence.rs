// SPDX-License-Identifier: Apache-2.0
//! One amount on two sides: its rates, their difference, and its noise by the one-second windows.
//!
//! A rate is a ratio of sums, time spent over time observed, and its variance is that of a ratio estimator
//! (Cochran, Sampling Techniques, 6.9): short windows weigh less by themselves. Two things make it larger:
//! windows that resemble their neighbours (see `super::correlated`), and samples: a time known from them
//! is never more certain than as many independent samples are. The difference is judged by Welch's t-test.
//!
//! An amount whose waits are known one by one is asked a second time, by how long they last (see
//! `super::lengths`): either may show that it differs, so the smaller p counts, doubled (Bonferroni).

use super::correlated::{correlation, degrees, inflation, products};
use super::lengths::{Lengths, longer_ns, p_of_lengths};
use super::series::Series;
use super::waits::Waits;
use super::welch::{Variance, Welch};
use super::windows::Windows;

/// Fewer windows than this on a side say nothing about its noise.
pub const LEAST_WINDOWS: f64 = 3.0;

/// Probability that the true difference lies within an [`Uncertainty`]'s bounds.
pub const CONFIDENCE: f64 = 0.95;

const SECOND_NS: f64 = 1e9;

/// One side of a state or a stack: its time, and its single waits where they are known.
#[derive(Clone, Copy)]
pub(crate) struct Amount<'s> {
    pub series: &'s Series,
    pub waits: Option<&'s Waits>,
    pub windows: &'s Windows,
}

/// One side: a rate in ns per second of wall time, and the residual of each window.
#[derive(Clone, Debug, PartialEq)]
struct Rate {
    ns: f64,
    /// Effective number.
    windows: f64,
    wall: f64,
    residuals: Vec<f64>,
    /// Variance of the sum that sampling makes, in ns².
    sampling_variance: f64,
}

/// The change from one side to the other, in ns per second of wall time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    pub a_ns: f64,
    pub b_ns: f64,
    /// `None`: one side is too short to know its noise, or the amount too small to be tested.
    pub uncertainty: Option<Uncertainty>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Uncertainty {
    /// The true difference lies within this of the measured one, with probability [`CONFIDENCE`].
    pub margin_ns: f64,
    /// The probability of so large a difference, or of so different waits, between equal sides; before any
    /// correction for how many states and stacks are looked at.
    pub p: f64,
}

impl Change {
    pub fn difference_ns(&self) -> f64 {
        self.b_ns - self.a_ns
    }

    /// There in B only.
    pub fn appeared(&self) -> bool {
        self.a_ns == 0.0 && self.b_ns > 0.0
    }

    /// There in A only.
    pub fn went(&self) -> bool {
        self.b_ns == 0.0 && self.a_ns > 0.0
    }
}

/// The rate alone, which every amount has.
pub(crate) fn rate_ns(series: &Series, windows: &Windows) -> f64 {
    let wall = windows.total_ns();
    if wall == 0.0 { 0.0 } else { series.total_ns() as f64 / wall * SECOND_NS }
}

/// Compares without a test.
pub(crate) fn unjudged(a: Amount<'_>, b: Amount<'_>) -> Change {
    Change { a_ns: rate_ns(a.series, a.windows), b_ns: rate_ns(b.series, b.windows), uncertainty: None }
}

pub(crate) fn judged(a: Amount<'_>, b: Amount<'_>) -> Change {
    let (rate_a, rate_b) = (Rate::of(a), Rate::of(b));
    let mut change = Change { a_ns: rate_a.ns, b_ns: rate_b.ns, uncertainty: uncertainty(&rate_a, &rate_b) };
    if let (Some(found), Some(p)) = (&mut change.uncertainty, lengths_p(&a, &b, rate_b.ns - rate_a.ns)) {
        found.p = (2.0 * found.p.min(p)).min(1.0);
    }
    change
}

fn uncertainty(a: &Rate, b: &Rate) -> Option<Uncertainty> {
    if a.windows < LEAST_WINDOWS || b.windows < LEAST_WINDOWS {
        return None;
    }
    let correlation = correlation(&a.residuals, &b.residuals);
    let welch = Welch::new(a.variance(correlation), b.variance(correlation));
    Some(Uncertainty { margin_ns: welch.margin(CONFIDENCE), p: welch.p(b.ns - a.ns) })
}

/// The p of a difference by the lengths of waits; `None` where they do not decide. Longer waits do not
/// explain that waits take less time: fewer waits do, and the windows show that.
fn lengths_p(a: &Amount<'_>, b: &Amount<'_>, difference_ns: f64) -> Option<f64> {
    let lengths = |side: &Amount<'_>| Lengths::of(side.waits?, side.series.total_ns(), side.windows);
    let (a, b) = (lengths(a)?, lengths(b)?);
    let explains = longer_ns(&a, &b) * difference_ns > 0.0;
    Some(if explains { p_of_lengths(&a, &b) } else { 1.0 })
}

impl Rate {
    fn of(Amount { series, windows, .. }: Amount<'_>) -> Self {
        let ns = rate_ns(series, windows);
        Rate {
            ns,
            windows: windows.effective(),
            wall: windows.total_ns(),
            residuals: residuals(series, windows, ns / SECOND_NS),
            sampling_variance: series.sampling_variance(),
        }
    }

    fn variance(&self, correlation: f64) -> Variance {
        let between_windows =
            products(&self.residuals, 0) * self.windows / (self.windows - 1.0) * inflation(correlation);
        Variance {
            of: between_windows.max(self.sampling_variance) / self.wall.powi(2) * SECOND_NS.powi(2),
            degrees: degrees(self.windows, correlation),
        }
    }
}

/// The time of each window beyond its share.
fn residuals(series: &Series, windows: &Windows, share: f64) -> Vec<f64> {
    let mut entries = series.entries().iter().peekable();
    let mut taken = |second| {
        while entries.next_if(|(at, _)| *at < second).is_some() {}
        entries.next_if(|(at, _)| *at == second).map_or(0, |(_, ns)| *ns)
    };
    windows.walls().iter().map(|&(second, wall)| taken(second) as f64 - share * wall as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::student::{critical_t, two_sided_p};
    use std::collections::BTreeMap;
    use wallprof_model::EpochSecond;
    use wallprof_model::profile::RecordingInfo;

    fn side(ms: &[u64]) -> (Series, Windows) {
        let mut series = Series::default();
        let mut lived = BTreeMap::new();
        for (second, ms) in ms.iter().enumerate() {
            series.add(EpochSecond(second as u32), ms * 1_000_000);
            lived.insert(EpochSecond(second as u32), 1_000_000_000);
        }
        (series, Windows::new(&RecordingInfo::default(), &lived))
    }

    fn amount<'s>(series: &'s Series, windows: &'s Windows) -> Amount<'s> {
        Amount { series, waits: None, windows }
    }

    fn change(a: &[u64], b: &[u64]) -> Change {
        let (a, b) = (side(a), side(b));
        judged(amount(&a.0, &a.1), amount(&b.0, &b.1))
    }

    /// Worked by hand: means 20 and 31 ms, variances of the means 1/2 and 5/3.
    #[test]
    fn welchs_test() {
        let change = change(&[18, 21, 19, 22, 20], &[34, 28, 32, 30]);
        assert_eq!((change.a_ns, change.b_ns, change.difference_ns()), (20e6, 31e6, 11e6));
        let found = change.uncertainty.unwrap();
        let variance = 0.5 + 5.0f64 / 3.0;
        let degrees = variance.powi(2) / (0.25 / 4.0 + 25.0 / 27.0);
        assert!((found.p - two_sided_p(11.0 / variance.sqrt(), degrees)).abs() < 1e-12, "{found:?}");
        assert!((found.margin_ns / 1e6 - critical_t(0.05, degrees) * variance.sqrt()).abs() < 1e-9);
    }

    #[test]
    fn few_windows_say_nothing_about_noise() {
        assert_eq!(change(&[5, 5], &[9, 9, 9]).uncertainty, None);
        assert_eq!(change(&[], &[9, 9, 9]).a_ns, 0.0);
        assert!(change(&[5, 5, 5], &[9, 9, 9]).uncertainty.is_some());
    }

    #[test]
    fn constants_are_certain() {
        assert_eq!(change(&[5; 4], &[5; 9]).uncertainty.unwrap().p, 1.0);
        assert_eq!(change(&[5; 4], &[6; 9]).uncertainty.unwrap().p, 0.0);
    }

    #[test]
    fn one_burst_in_one_second_proves_nothing() {
        let mut burst = [0; 10];
        burst[4] = 300;
        let change = change(&[0; 10], &burst);
        assert!(change.appeared() && change.uncertainty.unwrap().p > 0.2);
    }

    #[test]
    fn windows_that_drift_prove_less_than_independent_ones() {
        let drifting = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32];
        let jumping = [10, 32, 12, 30, 14, 28, 16, 26, 18, 24, 20, 22];
        let p = |a: &[u64]| change(a, &[26; 12]).uncertainty.unwrap().p;
        assert!(p(&drifting) > 2.0 * p(&jumping));
    }

    #[test]
    fn samples_are_no_more_certain_than_their_number() {
        let (_, windows) = side(&[0; 10]);
        let sampled = |per_second: u64| {
            let mut series = Series::default();
            for second in 0..10 {
                series.add_samples(EpochSecond(second), per_second * 10_000_000, per_second);
            }
            series
        };
        let p = |a, b| {
            judged(amount(&sampled(a), &windows), amount(&sampled(b), &windows)).uncertainty.unwrap().p
        };
        assert!(p(1, 2) > 0.01, "10 against 20 samples, without any noise between windows");
        assert!(p(10, 20) < 1e-4);
    }
}
