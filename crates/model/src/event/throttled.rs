// SPDX-License-Identifier: Apache-2.0
//! CPU quotas of control groups that were used up.

use crate::time::MonoNs;

/// A control group had used up its CPU quota while this process was in it, or in a group below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throttled {
    /// The recorded process.
    pub pid: u32,
    /// The group's path in its hierarchy.
    pub cgroup: String,
    /// The CPU time that the group may use in each period, ns.
    pub quota_ns: u64,
    /// The length of a period, ns.
    pub period_ns: u64,
    /// The last reading of the group's counts before the quota was used up. Monotonic clock, ns.
    pub from: MonoNs,
    /// The next reading of the group's counts. Monotonic clock, ns.
    pub to: MonoNs,
    /// Periods in which the quota was used up, between the two readings (`nr_throttled`).
    pub count: u64,
    /// How long the group could not run, ns. Each CPU counts by itself, so the sum can exceed the interval.
    pub total_ns: u64,
}
