// SPDX-License-Identifier: Apache-2.0
//! The limits of call paths over all threads, and of distinct latencies of their calls. Programs that call at
//! random would have any number of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Some 60 MiB.
const MOST_PATHS: usize = 3 << 17;
/// Buckets of all histograms beyond the first of each: some 40 MiB.
const MOST_LATENCIES: usize = 1 << 20;

/// Limits that several threads share. Beyond the paths, a quarter more is reserved for functions by
/// themselves.
#[derive(Clone, Debug)]
pub struct PathLimit(Arc<Left>);

#[derive(Debug)]
struct Left {
    paths: AtomicUsize,
    functions: AtomicUsize,
    latencies: AtomicUsize,
    refused_latencies: AtomicU64,
}

impl Default for PathLimit {
    fn default() -> Self {
        PathLimit::for_paths(MOST_PATHS)
    }
}

impl PathLimit {
    /// A limit of `paths` call paths.
    pub fn for_paths(paths: usize) -> Self {
        PathLimit(Arc::new(Left {
            paths: AtomicUsize::new(paths),
            functions: AtomicUsize::new(paths / 4),
            latencies: AtomicUsize::new(MOST_LATENCIES),
            refused_latencies: AtomicU64::new(0),
        }))
    }

    /// Reserves one path. Returns whether the limit allowed it.
    pub(super) fn take_path(&self) -> bool {
        take(&self.0.paths)
    }

    pub(super) fn take_function(&self) -> bool {
        take(&self.0.functions)
    }

    /// Reserves one distinct latency. Returns whether the limit allowed it.
    pub(super) fn take_latency(&self) -> bool {
        let taken = take(&self.0.latencies);
        self.0.refused_latencies.fetch_add(u64::from(!taken), Ordering::Relaxed);
        taken
    }

    /// The number of latencies beyond the limit. Each counts with others that are at most twice or half as
    /// long.
    pub fn refused_latencies(&self) -> u64 {
        self.0.refused_latencies.load(Ordering::Relaxed)
    }
}

fn take(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_the_limit() {
        let one = PathLimit::for_paths(8);
        let other = one.clone();
        let taken = (0..20).filter(|turn| if turn % 2 == 0 { one.take_path() } else { other.take_path() });
        assert_eq!(taken.count(), 8);
        assert_eq!((0..20).filter(|_| other.take_function()).count(), 2);
    }
}
