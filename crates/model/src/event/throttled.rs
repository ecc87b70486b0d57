// SPDX-License-Identifier: Apache-2.0
//! CPU quotas of control groups that were used up.

use crate::time::MonoNs;

/// A control group had used up its CPU quota while this process was in it, or in a group below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throttled {
    pub pid: u32,
    /// The group's path in its hierarchy.
    pub cgroup: String,
    /// The CPU time it may use in each period.
    pub quota_ns: u64,
    pub period_ns: u64,
    /// It happened between these two looks.
    pub from: MonoNs,
    pub to: MonoNs,
    /// How often, and for how long over all CPUs.
    pub count: u64,
    pub total_ns: u64,
}
