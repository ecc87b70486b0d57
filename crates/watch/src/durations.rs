// SPDX-License-Identifier: Apache-2.0
//! Histograms of durations as they are exposed, and the exemplars that point from a bucket to a stall.

use std::collections::BTreeMap;

use wallprof_model::histogram::{Cell, bucket_from_ns, range_from_bucket};
use wallprof_model::{EpochNs, TraceIds};

/// The upper edges of exposed buckets are 2^12 ns (4.1 µs) to 2^32 ns (4.3 s). Each is also an edge of the
/// recording's log-linear buckets, of which sixteen lie between two of these.
pub const FIRST_EDGE: u32 = 12;
pub const EDGES: usize = 21;

/// What a bucket points to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shown {
    /// By its id in the flight recording, with the trace that its thread worked for.
    Stall(u64, Option<TraceIds>),
    /// A span of this thread, which ended at the exemplar's time.
    Thread(u32),
}

/// One of the durations of a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exemplar {
    pub of: Shown,
    pub ns: u64,
    pub at: EpochNs,
}

/// Durations in exposed buckets; the last one is beyond the last edge.
#[derive(Clone, Debug, Default)]
pub struct Durations {
    pub counts: [u64; EDGES + 1],
    pub total_ns: u64,
    pub exemplars: BTreeMap<usize, Exemplar>,
}

impl Durations {
    /// Adds a cell of the recording's bucket `bucket`.
    pub fn add(&mut self, bucket: u16, cell: Cell) {
        let (from, _) = range_from_bucket(bucket);
        self.counts[edge_from_ns(from)] += cell.count;
        self.total_ns = self.total_ns.saturating_add(cell.total_ns);
    }

    /// Replaces the exemplar of its bucket.
    pub fn set_exemplar(&mut self, exemplar: Exemplar) {
        self.exemplars.insert(edge_from_ns(exemplar.ns), exemplar);
    }
}

/// The exposed bucket that holds `ns`. Each of the recording's buckets lies in exactly one of them.
fn edge_from_ns(ns: u64) -> usize {
    let (from, _) = range_from_bucket(bucket_from_ns(ns));
    let bits = (u64::BITS - from.leading_zeros()).saturating_sub(FIRST_EDGE) as usize;
    bits.min(EDGES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_recorded_bucket_lies_in_one_exposed_bucket() {
        for bucket in 0..wallprof_model::histogram::BUCKETS {
            let (from, to) = range_from_bucket(bucket);
            assert_eq!(edge_from_ns(from), edge_from_ns(to - 1), "bucket {bucket}");
        }
        assert_eq!((edge_from_ns(0), edge_from_ns(4_095), edge_from_ns(4_096)), (0, 0, 1));
        assert_eq!(
            (edge_from_ns((1 << 32) - 1), edge_from_ns(1 << 32), edge_from_ns(u64::MAX)),
            (20, 21, 21)
        );
    }
}
