// SPDX-License-Identifier: Apache-2.0
//! Lengths of intervals, for distributions.

use crate::histogram::Cell;
use crate::state::{Metric, StallReason};
use crate::thread::ThreadKey;

/// Intervals of one length to be added to a thread's latency distribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyDelta {
    /// The thread whose intervals these are.
    pub thread: ThreadKey,
    /// Which distribution of the thread.
    pub metric: Metric,
    /// A [`crate::histogram`] bucket.
    pub bucket: u16,
    /// The intervals of this bucket.
    pub cell: Cell,
}

/// Off-CPU intervals of one reason and length, each whole from switch-out to switch-in. For monitors:
/// emitted beside the [`LatencyDelta`]s of the same intervals, which a recording keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffCpuDelta {
    /// The thread that was off the CPU.
    pub thread: ThreadKey,
    /// The reason of a stall of this length.
    pub reason: StallReason,
    /// A [`crate::histogram`] bucket.
    pub bucket: u16,
    /// The intervals of this bucket.
    pub cell: Cell,
}
