// SPDX-License-Identifier: Apache-2.0
//! `struct perf_event_attr`: an event, and the fields of its samples.
//!
//! The structure has grown with the kernel. Fields beyond the known ones are ignored; fields that a shorter
//! one lacks are zero. See `perf_event_open(2)` and `include/uapi/linux/perf_event.h`.

use super::bytes::Bytes;

/// The size in the first kernel that had it.
pub(crate) const FIRST_SIZE: u32 = 64;
/// The size up to which fields are read here.
const KNOWN_SIZE: usize = 112;

/// Bits of [`Attr::sample_type`].
pub(crate) mod sample {
    pub const IP: u64 = 1;
    pub const TID: u64 = 1 << 1;
    pub const TIME: u64 = 1 << 2;
    pub const ADDR: u64 = 1 << 3;
    pub const READ: u64 = 1 << 4;
    pub const CALLCHAIN: u64 = 1 << 5;
    pub const ID: u64 = 1 << 6;
    pub const CPU: u64 = 1 << 7;
    pub const PERIOD: u64 = 1 << 8;
    pub const STREAM_ID: u64 = 1 << 9;
    pub const RAW: u64 = 1 << 10;
    pub const BRANCH_STACK: u64 = 1 << 11;
    pub const REGS_USER: u64 = 1 << 12;
    pub const STACK_USER: u64 = 1 << 13;
    pub const IDENTIFIER: u64 = 1 << 16;
}

/// Bits of [`Attr::read_format`].
pub(crate) mod read {
    pub const TOTAL_TIME_ENABLED: u64 = 1;
    pub const TOTAL_TIME_RUNNING: u64 = 1 << 1;
    pub const ID: u64 = 1 << 2;
    pub const GROUP: u64 = 1 << 3;
    pub const LOST: u64 = 1 << 4;
}

const FLAG_FREQ: u64 = 1 << 10;
const FLAG_SAMPLE_ID_ALL: u64 = 1 << 18;
const FLAG_CONTEXT_SWITCH: u64 = 1 << 26;
const FLAG_BUILD_ID: u64 = 1 << 34;
const FLAG_USE_CLOCKID: u64 = 1 << 25;

/// Values of [`Attr::kind`] (`PERF_TYPE_*`).
pub(crate) const TYPE_HARDWARE: u32 = 0;
pub(crate) const TYPE_SOFTWARE: u32 = 1;
pub(crate) const TYPE_TRACEPOINT: u32 = 2;

/// One event as it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attr {
    pub kind: u32,
    pub config: u64,
    /// Events between two samples, or samples a second if [`Attr::is_frequency`].
    pub period_or_frequency: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub branch_sample_type: u64,
    pub regs_user: u64,
    pub stack_user: u32,
    pub clockid: i32,
    /// The largest number of frames of a callchain; 0: the kernel's default.
    pub max_stack: u16,
    flags: u64,
}

impl Attr {
    /// Reads an attr of any length.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let mut known = [0; KNOWN_SIZE];
        let len = bytes.len().min(KNOWN_SIZE);
        known[..len].copy_from_slice(&bytes[..len]);
        Self::from_known(&known).unwrap_or_default()
    }

    fn from_known(known: &[u8; KNOWN_SIZE]) -> Option<Self> {
        let mut bytes = Bytes::new(known);
        let kind = bytes.u32()?;
        let _size = bytes.u32()?;
        let (config, period_or_frequency) = (bytes.u64()?, bytes.u64()?);
        let (sample_type, read_format, flags) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
        // wakeup_events, bp_type, config1, config2
        bytes.skip(24)?;
        let (branch_sample_type, regs_user) = (bytes.u64()?, bytes.u64()?);
        let stack_user = bytes.u32()?;
        let clockid = bytes.u32()?.cast_signed();
        // sample_regs_intr, aux_watermark
        bytes.skip(12)?;
        let max_stack = bytes.u16()?;
        Some(Attr {
            kind,
            config,
            period_or_frequency,
            sample_type,
            read_format,
            branch_sample_type,
            regs_user,
            stack_user,
            clockid,
            max_stack,
            flags,
        })
    }

    pub(crate) fn has(&self, sample_bit: u64) -> bool {
        self.sample_type & sample_bit != 0
    }

    pub(crate) fn is_frequency(&self) -> bool {
        self.flags & FLAG_FREQ != 0
    }

    /// Whether records other than samples carry time, CPU and thread, too.
    pub(crate) fn has_sample_ids(&self) -> bool {
        self.flags & FLAG_SAMPLE_ID_ALL != 0
    }

    /// Whether switches are recorded as records of their own.
    pub(crate) fn has_switches(&self) -> bool {
        self.flags & FLAG_CONTEXT_SWITCH != 0
    }

    /// Whether mappings carry build ids.
    pub(crate) fn has_build_ids(&self) -> bool {
        self.flags & FLAG_BUILD_ID != 0
    }

    /// Whether branches are recorded as a stack of calls: `perf record --call-graph lbr`.
    pub(crate) fn has_call_stacks(&self) -> bool {
        const CALL_STACK: u64 = 1 << 11;
        self.has(sample::BRANCH_STACK) && self.branch_sample_type & CALL_STACK != 0
    }

    /// The clock of its times, unless it is perf's own.
    pub(crate) fn clock(&self) -> Option<i32> {
        (self.flags & FLAG_USE_CLOCKID != 0).then_some(self.clockid)
    }

    /// The name that perf gives to generic events.
    pub(crate) fn generic_name(&self) -> Option<&'static str> {
        const HARDWARE: [&str; 10] = [
            "cycles",
            "instructions",
            "cache-references",
            "cache-misses",
            "branches",
            "branch-misses",
            "bus-cycles",
            "stalled-cycles-frontend",
            "stalled-cycles-backend",
            "ref-cycles",
        ];
        const SOFTWARE: [&str; 12] = [
            "cpu-clock",
            "task-clock",
            "page-faults",
            "context-switches",
            "cpu-migrations",
            "minor-faults",
            "major-faults",
            "alignment-faults",
            "emulation-faults",
            "dummy",
            "bpf-output",
            "cgroup-switches",
        ];
        match self.kind {
            TYPE_HARDWARE => HARDWARE.get(usize::try_from(self.generic_config()).ok()?),
            TYPE_SOFTWARE => SOFTWARE.get(usize::try_from(self.config).ok()?),
            _ => None,
        }
        .copied()
    }

    /// The config without the PMU's number, which hybrid CPUs have in its upper half.
    pub(crate) fn generic_config(&self) -> u64 {
        if self.kind == TYPE_HARDWARE { self.config & 0xffff_ffff } else { self.config }
    }
}

#[cfg(test)]
mod tests {
    use wallprof_intel_pt::generator::record;

    use super::*;

    #[test]
    fn attrs_of_any_length_are_read() {
        let long =
            record::attr(400, &[(8, 7), (24, sample::IP), (40, FLAG_FREQ), (80, 0xff), (392, u64::MAX)]);
        let attr = Attr::from_bytes(&long);
        assert_eq!((attr.config, attr.regs_user, attr.is_frequency()), (7, 0xff, true));
        let short = Attr::from_bytes(&long[..FIRST_SIZE as usize]);
        assert_eq!(short, Attr { regs_user: 0, ..attr });
        assert_eq!(Attr::from_bytes(&[]), Attr::default());
    }

    #[test]
    fn later_fields_are_at_the_kernels_offsets() {
        let attr = Attr::from_bytes(&record::attr(
            136,
            &[(72, 5), (88, 8192), (92, 1), (40, FLAG_USE_CLOCKID), (108, 127)],
        ));
        assert_eq!((attr.branch_sample_type, attr.stack_user, attr.max_stack), (5, 8192, 127));
        assert_eq!(attr.clock(), Some(1));
    }

    #[test]
    fn generic_events_have_names() {
        let named = |kind, config| Attr { kind, config, ..Attr::default() }.generic_name();
        assert_eq!(named(TYPE_SOFTWARE, 0), Some("cpu-clock"));
        assert_eq!(named(TYPE_HARDWARE, 4 << 32), Some("cycles"));
        assert_eq!((named(TYPE_SOFTWARE, 99), named(TYPE_TRACEPOINT, 0)), (None, None));
    }
}
