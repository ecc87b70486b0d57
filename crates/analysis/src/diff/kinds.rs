// SPDX-License-Identifier: Apache-2.0
//! Kinds of spans that both sides have: the percentiles of their durations, and which of these differ.
//!
//! Spans that follow each other are alike: one slow disk makes a thousand of them slow. So each side is cut into
//! parts of consecutive seconds, and the percentiles of the parts are compared by Welch's t-test, as logarithms.

use std::collections::BTreeMap;

use wallprof_model::histogram::Cell;
use wallprof_model::{Histogram, SpanSource};

use super::news::FALSE_NEWS;
use super::welch::{Variance, Welch};

/// The percentiles that are compared.
pub const SHARES: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

/// Parts of a side.
const PARTS: usize = 10;
/// A side of fewer parts has no noise to measure.
const LEAST_PARTS: usize = 5;
/// Spans of a part beyond a percentile, without which the part does not have it.
const LEAST_BEYOND: f64 = 5.0;
/// A percentile is known to 6.25 %: a smaller difference than this is none.
const LEAST_CHANGE: f64 = 0.1;
/// A difference that leads to no action.
const LEAST_NS: u64 = 1_000;

/// Spans of one kind in the threads of one process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    pub process: String,
    pub source: SpanSource,
    pub kind: String,
}

/// The kinds of one side, by second.
#[derive(Debug, Default)]
pub struct Kinds(BTreeMap<Kind, BTreeMap<u64, Histogram>>);

impl Kinds {
    /// Adds the spans of one length that were recorded in a second.
    pub fn add(&mut self, kind: Kind, second: u64, bucket: u16, cell: Cell) {
        self.0.entry(kind).or_default().entry(second).or_default().add_cell(bucket, cell);
    }
}

/// A kind on both sides.
#[derive(Clone, Debug)]
pub struct KindChange {
    pub kind: Kind,
    pub a_count: u64,
    pub b_count: u64,
    /// In the order of `SHARES`.
    pub percentiles: [PercentileChange; 4],
}

impl KindChange {
    pub fn is_news(&self) -> bool {
        self.percentiles.iter().any(|percentile| percentile.is_news)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PercentileChange {
    pub share: f64,
    pub a_ns: u64,
    pub b_ns: u64,
    /// The probability of such a difference between equals, before the correction for many; `None`: a side has too
    /// few spans or seconds to tell.
    pub p: Option<f64>,
    pub is_news: bool,
}

impl PercentileChange {
    /// 0.5: half as long again; -0.5: half as long.
    pub fn relative(&self) -> f64 {
        self.b_ns as f64 / self.a_ns.max(1) as f64 - 1.0
    }

    fn is_large(&self) -> bool {
        let (least, most) = (self.a_ns.min(self.b_ns), self.a_ns.max(self.b_ns));
        most - least >= LEAST_NS && most as f64 >= least as f64 * (1.0 + LEAST_CHANGE)
    }
}

/// The kinds that both sides have, in the order of their names.
pub fn compare_kinds(a: &Kinds, b: &Kinds) -> Vec<KindChange> {
    let both = a.0.iter().filter_map(|(kind, a)| Some((kind, a, b.0.get(kind)?)));
    let mut changes: Vec<KindChange> = both.map(|(kind, a, b)| compare(kind, a, b)).collect();
    let asked =
        changes.iter().flat_map(|change| &change.percentiles).filter(|found| found.p.is_some()).count();
    let most_p = FALSE_NEWS / asked.max(1) as f64;
    for found in changes.iter_mut().flat_map(|change| &mut change.percentiles) {
        found.is_news = found.p.is_some_and(|p| p < most_p) && found.is_large();
    }
    changes
}

fn compare(kind: &Kind, a: &BTreeMap<u64, Histogram>, b: &BTreeMap<u64, Histogram>) -> KindChange {
    let (all_a, all_b) = (merged(a.values()), merged(b.values()));
    let (parts_a, parts_b) = (parts(a), parts(b));
    let percentiles = SHARES.map(|share| PercentileChange {
        share,
        a_ns: all_a.quantile_ns(share),
        b_ns: all_b.quantile_ns(share),
        p: p(&parts_a, &parts_b, share),
        is_news: false,
    });
    KindChange { kind: kind.clone(), a_count: all_a.count(), b_count: all_b.count(), percentiles }
}

fn merged<'h>(histograms: impl IntoIterator<Item = &'h Histogram>) -> Histogram {
    let mut sum = Histogram::default();
    histograms.into_iter().for_each(|histogram| sum.merge(histogram));
    sum
}

/// Consecutive seconds together, as equal in number as can be.
fn parts(seconds: &BTreeMap<u64, Histogram>) -> Vec<Histogram> {
    let histograms: Vec<&Histogram> = seconds.values().collect();
    let parts = PARTS.min(histograms.len());
    let bound = |part: usize| part * histograms.len() / parts;
    (0..parts).map(|part| merged(histograms[bound(part)..bound(part + 1)].iter().copied())).collect()
}

fn p(a: &[Histogram], b: &[Histogram], share: f64) -> Option<f64> {
    let (mean_a, a) = mean_and_variance(a, share)?;
    let (mean_b, b) = mean_and_variance(b, share)?;
    Some(Welch::new(a, b).p(mean_b - mean_a))
}

/// Of the logarithms of the parts' percentiles, and the variance of that mean.
fn mean_and_variance(parts: &[Histogram], share: f64) -> Option<(f64, Variance)> {
    let has_it = |part: &&Histogram| part.count() as f64 * (1.0 - share) >= LEAST_BEYOND;
    let known = parts.iter().filter(has_it);
    let logarithms: Vec<f64> = known.map(|part| (part.quantile_ns(share).max(1) as f64).ln()).collect();
    if logarithms.len() < LEAST_PARTS {
        return None;
    }
    let count = logarithms.len() as f64;
    let mean = logarithms.iter().sum::<f64>() / count;
    let squares: f64 = logarithms.iter().map(|value| (value - mean).powi(2)).sum();
    // A part's percentile is a mean of a bucket, which hides smaller differences than its width.
    let hidden = LEAST_CHANGE.powi(2) / 12.0;
    let variance = squares / (count - 1.0) + hidden;
    Some((mean, Variance { of: variance / count, degrees: count - 1.0 }))
}

#[cfg(test)]
mod tests {
    use wallprof_model::histogram::bucket_from_ns;

    use super::*;

    fn kind(name: &str) -> Kind {
        Kind { process: "shop".into(), source: SpanSource::Code, kind: name.into() }
    }

    /// Durations that vary by a factor of two within each second, and `drift` from second to second.
    fn side(seed: u64, seconds: u64, each: u64, drift: f64, slow: impl Fn(u64) -> f64) -> Kinds {
        let mut state = seed;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / (1u64 << 31) as f64
        };
        let mut kinds = Kinds::default();
        for second in 0..seconds {
            let level = 1.0 + drift * random();
            for index in 0..each {
                let ns = (100_000.0 * (1.0 + random()) * level * slow(index)) as u64;
                let cell = Cell { count: 1, total_ns: ns, max_ns: ns };
                kinds.add(kind("request"), second, bucket_from_ns(ns), cell);
            }
        }
        kinds
    }

    fn news(a: &Kinds, b: &Kinds) -> Vec<f64> {
        let changes = compare_kinds(a, b);
        assert_eq!(changes.len(), 1);
        changes[0].percentiles.iter().filter(|found| found.is_news).map(|found| found.share).collect()
    }

    #[test]
    fn slower_tail_is_news_and_the_middle_is_not() {
        let a = side(1, 20, 3_000, 0.05, |_| 1.0);
        let b = side(2, 20, 3_000, 0.05, |index| if index % 50 == 0 { 8.0 } else { 1.0 });
        assert_eq!(news(&a, &b), [0.99, 0.999]);
        let all = side(3, 20, 3_000, 0.05, |_| 1.5);
        assert_eq!(news(&a, &all), SHARES);
        let found = compare_kinds(&a, &all)[0].percentiles[0];
        assert!((found.relative() - 0.5).abs() < 0.1, "{found:?}");
    }

    #[test]
    fn equal_sides_have_no_news_whatever_they_do_from_second_to_second() {
        let mut found = 0;
        for trial in 0..100 {
            let drift = [0.0, 0.1, 1.0, 5.0][trial as usize % 4];
            let (a, b) =
                (side(trial * 2 + 1, 12, 300, drift, |_| 1.0), side(trial * 2 + 2, 12, 300, drift, |_| 1.0));
            found += usize::from(!news(&a, &b).is_empty());
        }
        assert!(found <= 1, "{found} of 100");
    }

    #[test]
    fn too_few_spans_or_seconds_are_not_judged() {
        let p = |a: &Kinds, b: &Kinds| compare_kinds(a, b)[0].percentiles.map(|found| found.p.is_some());
        let enough = side(1, 20, 2_000, 0.0, |_| 1.0);
        assert_eq!(p(&enough, &enough), [true, true, true, false], "four of a part are beyond the last");
        assert_eq!(p(&enough, &side(2, 4, 2_000, 0.0, |_| 9.0)), [false; 4]);
        assert_eq!(p(&enough, &side(2, 20, 20, 0.0, |_| 9.0)), [true, false, false, false]);
        assert!(compare_kinds(&enough, &Kinds::default()).is_empty());
    }
}
