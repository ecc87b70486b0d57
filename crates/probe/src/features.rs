//! Which attach points this kernel has: told from its own type information, never from its version.

use libbpf_rs::btf::{Btf, BtfType};

use crate::error::ProbeError;

/// What the kernel's type information says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Runs in the incoming thread's context: stacks only of intervals that need one (6.17+).
    pub sched_exit_tp: bool,
    /// Each vector's own tracepoint tells timer, reschedule and function-call interrupts apart.
    pub irq_vectors: bool,
    /// `task_struct.sched_info`: waiting time by the scheduler's own account.
    pub sched_info: bool,
    pub cgroup_attach_task: bool,
}

/// The type information itself, for single questions.
pub struct KernelTypes(Btf<'static>);

impl KernelTypes {
    pub fn read() -> Result<Self, ProbeError> {
        Btf::from_vmlinux().map(KernelTypes).map_err(|_| ProbeError::NoTypeInformation)
    }

    /// Whether a BTF raw tracepoint of this name exists.
    pub fn has_tracepoint(&self, name: &str) -> bool {
        self.0.type_by_name::<BtfType<'_>>(&format!("btf_trace_{name}")).is_some()
    }

    pub fn has_type(&self, name: &str) -> bool {
        self.0.type_by_name::<BtfType<'_>>(name).is_some()
    }

    pub fn features(&self) -> Features {
        Features {
            sched_exit_tp: self.has_tracepoint("sched_exit_tp"),
            irq_vectors: self.has_tracepoint("local_timer_entry"),
            sched_info: self.has_type("sched_info"),
            cgroup_attach_task: self.has_tracepoint("cgroup_attach_task"),
        }
    }
}
