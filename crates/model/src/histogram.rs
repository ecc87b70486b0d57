// SPDX-License-Identifier: Apache-2.0
//! Log-linear latency histograms with edges that never change, so that they add up over time,
//! threads and hosts.
//!
//! Sixteen linear buckets an octave: a bucket is at most 1/16 (6.25 %) of its lower edge wide. Values
//! below 16 ns have a bucket each. The kernel side computes the same index
//! (`bpf/include/histogram.h`); a test compares the two.

/// Number of distinct bucket indices: 16 exact ones, then 16 for each octave from 2^4 to 2^63.
pub const BUCKETS: u16 = 16 + 60 * 16;

/// The bucket that holds `ns`.
pub fn bucket_from_ns(ns: u64) -> u16 {
    if ns < 16 {
        return ns as u16;
    }
    let exponent = 63 - ns.leading_zeros() as u16;
    let within = ((ns >> (exponent - 4)) & 15) as u16;
    (exponent - 3) * 16 + within
}

/// The half-open range `[from, to)` in ns of `bucket`; the last one's end saturates.
pub fn range_from_bucket(bucket: u16) -> (u64, u64) {
    if bucket < 16 {
        return (u64::from(bucket), u64::from(bucket) + 1);
    }
    let exponent = u32::from(bucket / 16) + 3;
    let width = 1u64 << (exponent - 4);
    let from = (16 + u64::from(bucket % 16)) * width;
    (from, from.saturating_add(width))
}

/// The intervals of one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// How many intervals.
    pub count: u64,
    /// The length of all intervals together, ns.
    pub total_ns: u64,
    /// The longest interval, ns.
    pub max_ns: u64,
}

impl Cell {
    /// Sums saturate: a damaged recording can hold any numbers.
    pub fn add(&mut self, other: Cell) {
        self.count = self.count.saturating_add(other.count);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

/// A sparse histogram: buckets in order with their cells. Most hold few, and there may be one for each of a
/// million call paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    cells: Vec<(u16, Cell)>,
}

impl Histogram {
    /// Counts one interval of `ns` nanoseconds.
    pub fn record(&mut self, ns: u64) {
        self.add_cell(bucket_from_ns(ns), Cell { count: 1, total_ns: ns, max_ns: ns });
    }

    /// Adds the intervals of one bucket, whose index is as of [`bucket_from_ns`].
    pub fn add_cell(&mut self, bucket: u16, cell: Cell) {
        match self.cells.binary_search_by_key(&bucket, |known| known.0) {
            Ok(index) => self.cells[index].1.add(cell),
            Err(index) => self.cells.insert(index, (bucket, cell)),
        }
    }

    /// Adds all of `other`'s intervals. Sums saturate.
    pub fn merge(&mut self, other: &Histogram) {
        for &(bucket, cell) in &other.cells {
            self.add_cell(bucket, cell);
        }
    }

    /// The buckets that hold intervals, in ascending order; [`range_from_bucket`] has their edges.
    pub fn cells(&self) -> impl Iterator<Item = (u16, Cell)> + '_ {
        self.cells.iter().copied()
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// How many intervals. The sum saturates.
    pub fn count(&self) -> u64 {
        self.cells.iter().fold(0, |sum: u64, (_, cell)| sum.saturating_add(cell.count))
    }

    /// The length of all intervals together, ns. The sum saturates.
    pub fn total_ns(&self) -> u64 {
        self.cells.iter().fold(0, |sum: u64, (_, cell)| sum.saturating_add(cell.total_ns))
    }

    /// The longest interval, ns; 0 for an empty histogram.
    pub fn max_ns(&self) -> u64 {
        self.cells.iter().map(|(_, cell)| cell.max_ns).max().unwrap_or(0)
    }

    /// The value below which `share` (0..=1) of the recordings lie: the mean of the bucket that holds
    /// that rank, so at most 6.25 % away from the exact one. 0 for an empty histogram.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let rank = ((share * self.count() as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (_, cell) in &self.cells {
            seen = cell.count.saturating_add(seen);
            if seen >= rank {
                return cell.total_ns / cell.count.max(1);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_meet_without_gap_or_overlap() {
        let mut expected_from = 0;
        for bucket in 0..BUCKETS {
            let (from, to) = range_from_bucket(bucket);
            assert_eq!(from, expected_from, "bucket {bucket}");
            assert_eq!(bucket_from_ns(from), bucket);
            assert_eq!(bucket_from_ns(to - 1), bucket);
            assert!(from < 16 || (to - from) * 16 <= from);
            expected_from = to;
        }
        assert_eq!(bucket_from_ns(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn damaged_cells_saturate() {
        let mut histogram = Histogram::default();
        let huge = Cell { count: u64::MAX, total_ns: u64::MAX, max_ns: u64::MAX };
        [3, 3, 4].into_iter().for_each(|bucket| histogram.add_cell(bucket, huge));
        assert_eq!((histogram.count(), histogram.total_ns()), (u64::MAX, u64::MAX));
        assert_eq!(histogram.quantile_ns(0.5), 1);
    }

    #[test]
    fn quantiles_are_within_a_bucket() {
        let mut histogram = Histogram::default();
        for ns in 1..=10_000u64 {
            histogram.record(ns * 100);
        }
        assert_eq!(histogram.count(), 10_000);
        assert_eq!(histogram.max_ns(), 1_000_000);
        for (share, exact) in [(0.5, 500_000.0), (0.99, 990_000.0), (0.999, 999_000.0)] {
            let got = histogram.quantile_ns(share) as f64;
            assert!((got - exact).abs() / exact < 0.0625, "{share}: {got} against {exact}");
        }
        assert_eq!(Histogram::default().quantile_ns(0.5), 0);
    }
}
