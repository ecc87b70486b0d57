// SPDX-License-Identifier: Apache-2.0
//! CPU time of everything on this machine.

use std::fs;

use crate::stored;

/// USER_HZ: the unit of /proc/stat, the same on every x86-64 and aarch64 kernel.
const TICK_NS: u64 = 10_000_000;

/// CPU time that may lie between two readings and not be in their difference: the kernel counts it at ticks.
pub const UNSEEN_NS: u64 = 2 * TICK_NS;

/// Time that all CPUs together have spent on anything since boot, steal time included, ns.
pub fn busy_ns() -> u64 {
    stored::number("busy_ns", busy_ns_now)
}

fn busy_ns_now() -> u64 {
    let stat = fs::read_to_string("/proc/stat").expect("/proc/stat is readable");
    let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let fields: Vec<u64> = fields.map(|field| field.parse().expect("a number in /proc/stat")).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user already.
    [0, 1, 2, 5, 6, 7].into_iter().map(|field| fields[field]).sum::<u64>() * TICK_NS
}
