// SPDX-License-Identifier: Apache-2.0
//! An event in the terms of `perf_event_open(2)`.

/// One event, in the terms of `struct perf_event_attr` (see perf_event_open(2)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerfEventSpec {
    /// The text of the user, or the `name=` term.
    pub name: String,
    /// `attr.type`: one of the constants of [`event_type`], or the number of a PMU in sysfs.
    pub event_type: u32,
    pub config: u64,
    pub config1: u64,
    pub config2: u64,
    pub exclude_user: bool,
    pub exclude_kernel: bool,
    /// `attr.precise_ip`: 0 to 3, the limit on how far the sampled address may be off.
    pub precise: u8,
    pub sampling: Sampling,
}

/// How often the event takes a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// At the recording's frequency: the kernel adapts the period, and a sample weighs its period.
    Frequency,
    /// At each occurrence: the counts are exact.
    EveryHit,
}

/// `enum perf_type_id` of `include/uapi/linux/perf_event.h`.
pub mod event_type {
    pub const HARDWARE: u32 = 0;
    pub const SOFTWARE: u32 = 1;
    pub const TRACEPOINT: u32 = 2;
    pub const HW_CACHE: u32 = 3;
    pub const RAW: u32 = 4;
}

impl PerfEventSpec {
    /// Whether the event is a tracepoint: it then fires on every CPU.
    pub fn is_tracepoint(&self) -> bool {
        self.event_type == event_type::TRACEPOINT
    }

    pub(super) fn new(name: &str, event_type: u32, config: u64, sampling: Sampling) -> Self {
        PerfEventSpec {
            name: name.to_string(),
            event_type,
            config,
            config1: 0,
            config2: 0,
            exclude_user: false,
            exclude_kernel: false,
            precise: 0,
            sampling,
        }
    }
}
