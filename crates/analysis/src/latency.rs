// SPDX-License-Identifier: Apache-2.0
//! A latency distribution as counts, percentiles and buckets.

use wallprof_model::Histogram;
use wallprof_model::histogram::range_from_bucket;

/// Percentiles are within 6.25 % of the exact ones; counts, totals and the maximum are exact. All in ns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    pub count: u64,
    pub total_ns: u64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
    /// Non-empty buckets, shortest first.
    pub histogram: Vec<Bucket>,
}

/// Intervals of `from_ns` up to, not including, `to_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    pub from_ns: u64,
    pub to_ns: u64,
    pub count: u64,
    pub total_ns: u64,
}

impl Latency {
    pub fn of(histogram: &Histogram) -> Self {
        Latency {
            count: histogram.count(),
            total_ns: histogram.total_ns(),
            p50_ns: histogram.quantile_ns(0.5),
            p90_ns: histogram.quantile_ns(0.9),
            p99_ns: histogram.quantile_ns(0.99),
            p999_ns: histogram.quantile_ns(0.999),
            max_ns: histogram.max_ns(),
            histogram: histogram.cells().map(bucket).collect(),
        }
    }
}

fn bucket((index, cell): (u16, wallprof_model::histogram::Cell)) -> Bucket {
    let (from_ns, to_ns) = range_from_bucket(index);
    Bucket { from_ns, to_ns, count: cell.count, total_ns: cell.total_ns }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_distribution_is_all_zero() {
        assert_eq!(Latency::of(&Histogram::default()), Latency::default());
    }

    #[test]
    fn one_slow_interval_shows_at_the_top_only() {
        let mut histogram = Histogram::default();
        (0..998).for_each(|_| histogram.record(18_000));
        (0..2).for_each(|_| histogram.record(890_000));
        let latency = Latency::of(&histogram);
        assert_eq!((latency.p50_ns, latency.p99_ns), (18_000, 18_000));
        assert_eq!((latency.p999_ns, latency.max_ns), (890_000, 890_000));
        assert_eq!(latency.histogram.len(), 2);
    }

    proptest! {
        #[test]
        fn percentiles_are_close_and_in_order(mut values in proptest::collection::vec(0..10_000_000_000u64, 1..300)) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|&ns| histogram.record(ns));
            values.sort_unstable();
            let latency = Latency::of(&histogram);
            let exact = |permille: usize| values[(values.len() * permille).div_ceil(1000).max(1) - 1] as f64;
            for (got, permille) in [(latency.p50_ns, 500), (latency.p90_ns, 900), (latency.p99_ns, 990), (latency.p999_ns, 999)] {
                prop_assert!((got as f64 - exact(permille)).abs() <= exact(permille) * 0.0625 + 1.0);
            }
            prop_assert!(latency.p50_ns <= latency.p90_ns && latency.p90_ns <= latency.p99_ns);
            prop_assert!(latency.p99_ns <= latency.p999_ns && latency.p999_ns <= latency.max_ns);
            prop_assert_eq!(latency.max_ns, *values.last().unwrap());
            prop_assert_eq!(latency.histogram.iter().map(|bucket| bucket.count).sum::<u64>(), latency.count);
            prop_assert_eq!(latency.histogram.iter().map(|bucket| bucket.total_ns).sum::<u64>(), latency.total_ns);
            prop_assert!(latency.histogram.iter().all(|bucket| bucket.from_ns * bucket.count <= bucket.total_ns
                && bucket.total_ns < bucket.to_ns * bucket.count));
        }
    }
}
