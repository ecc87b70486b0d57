// SPDX-License-Identifier: Apache-2.0
//! The attach points of this kernel, from its type information and never from its version.

use std::collections::HashSet;
use std::fs;

use crate::error::ProbeError;

/// The features that the kernel's type information shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Runs in the incoming thread's context, so that only intervals that need a stack take one (6.17+).
    pub sched_exit_tp: bool,
    /// Each vector has its own tracepoint, which separates timer, reschedule and function-call interrupts.
    pub irq_vectors: bool,
    /// `task_struct.sched_info`: the scheduler's own sum of waiting time.
    pub sched_info: bool,
    pub cgroup_attach_task: bool,
    /// The start of a page fault has its access.
    pub page_faults: bool,
    /// The senders of interrupts to other CPUs are known (6.5+).
    pub ipi_senders: bool,
    /// And the functions that they call there.
    pub ipi_functions: bool,
    /// Threads that free memory themselves are seen.
    pub reclaim: bool,
    pub compaction: bool,
    /// Waits for the kernel's own locks have the lock's address.
    pub lock_contention: bool,
}

/// The names in the kernel's type information that are queried here. libbpf parses all of it once more to
/// load the programs. For single queries a search of its strings is enough, and takes a tenth of the time.
pub struct KernelTypes {
    names: HashSet<String>,
}

const TYPES: &str = "/sys/kernel/btf/vmlinux";
/// Each BTF raw tracepoint has a typedef of this name and its own.
const TRACEPOINT: &[u8] = b"btf_trace_";
/// A member of `struct sched_info` where it is not empty.
const WAITING_SINCE: &str = "last_queued";

impl KernelTypes {
    pub fn read() -> Result<Self, ProbeError> {
        fs::read(TYPES).map(|bytes| Self::from_bytes(&bytes)).map_err(|_| ProbeError::NoTypeInformation)
    }

    #[cfg(test)]
    pub(crate) fn with_tracepoints(names: &[&str]) -> Self {
        KernelTypes { names: names.iter().map(|name| format!("btf_trace_{name}")).collect() }
    }

    /// Names are NUL-terminated strings at the end of the file (Documentation/bpf/btf.rst).
    fn from_bytes(bytes: &[u8]) -> Self {
        let strings = string_section(bytes).unwrap_or(bytes);
        let wanted = |name: &&[u8]| name.starts_with(TRACEPOINT) || *name == WAITING_SINCE.as_bytes();
        let names = strings.split(|&byte| byte == 0).filter(wanted);
        KernelTypes { names: names.filter_map(|name| String::from_utf8(name.to_vec()).ok()).collect() }
    }

    /// Whether a BTF raw tracepoint of this name exists.
    pub fn has_tracepoint(&self, name: &str) -> bool {
        self.names.contains(&format!("btf_trace_{name}"))
    }

    pub fn features(&self) -> Features {
        Features {
            sched_exit_tp: self.has_tracepoint("sched_exit_tp"),
            irq_vectors: self.has_tracepoint("local_timer_entry"),
            sched_info: self.names.contains(WAITING_SINCE),
            cgroup_attach_task: self.has_tracepoint("cgroup_attach_task"),
            ipi_senders: self.has_tracepoint("ipi_send_cpu") && self.has_tracepoint("ipi_send_cpumask"),
            ipi_functions: self.has_tracepoint("csd_queue_cpu"),
            reclaim: self.has_tracepoint("mm_vmscan_direct_reclaim_begin"),
            compaction: self.has_tracepoint("mm_compaction_begin"),
            lock_contention: self.has_tracepoint("contention_begin"),
            page_faults: self.has_tracepoint("page_fault_user") && self.has_tracepoint("page_fault_kernel"),
        }
    }
}

/// The string section by the header: `hdr_len` at 4, `str_off` at 16, `str_len` at 20.
fn string_section(bytes: &[u8]) -> Option<&[u8]> {
    let field = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
    let from = field(4)?.checked_add(field(16)?)?;
    bytes.get(from..from.checked_add(field(20)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(strings: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        for field in [24u32, 0, 4, 4, strings.len() as u32] {
            bytes.extend(field.to_ne_bytes());
        }
        bytes.extend(b"btf_trace_in_a_type_section"[..4].iter());
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn tracepoints_are_found_by_their_whole_name() {
        let kernel =
            KernelTypes::from_bytes(&types(b"\0btf_trace_sched_exit_tp\0last_queued\0x_btf_trace_other\0"));
        assert!(kernel.has_tracepoint("sched_exit_tp"));
        assert!(!kernel.has_tracepoint("sched_exit"));
        assert!(!kernel.has_tracepoint("other"));
        assert!(kernel.features().sched_info);
        assert!(!KernelTypes::from_bytes(&types(b"\0")).features().sched_exit_tp);
    }

    #[test]
    fn damaged_headers_have_no_section() {
        let whole = types(b"\0btf_trace_a\0");
        for len in 0..whole.len() {
            assert!(string_section(&whole[..len]).is_none() || len >= 24);
        }
    }
}
