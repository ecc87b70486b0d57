// SPDX-License-Identifier: Apache-2.0
//! Noise on a guarded CPU, and the allowed threads there.

use crate::thread::ThreadRef;

/// How something got onto a guarded CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IntrusionKind {
    /// A thread of a program ran there.
    Task,
    /// A thread of the kernel ran there.
    KernelThread,
    /// A device's interrupt.
    Irq,
    /// Work that an interrupt left for later.
    Softirq,
    /// The CPU's own timer.
    Timer,
    /// An interrupt from another CPU, as it was handled: its time.
    Vector,
    /// The same as it was sent: who sent it, and what for. Its time is reported with the handling.
    Ipi,
    /// The probes of wallprof itself.
    Probe,
}

impl IntrusionKind {
    /// Each variant once, in the order of their declaration.
    pub const ALL: [IntrusionKind; 8] = [
        IntrusionKind::Task,
        IntrusionKind::KernelThread,
        IntrusionKind::Irq,
        IntrusionKind::Softirq,
        IntrusionKind::Timer,
        IntrusionKind::Vector,
        IntrusionKind::Ipi,
        IntrusionKind::Probe,
    ];

    /// The name in recordings and in JSON, which [`Self::from_name`] reads.
    pub fn name(self) -> &'static str {
        match self {
            IntrusionKind::Task => "task",
            IntrusionKind::KernelThread => "kernel-thread",
            IntrusionKind::Irq => "irq",
            IntrusionKind::Softirq => "softirq",
            IntrusionKind::Timer => "timer",
            IntrusionKind::Vector => "vector",
            IntrusionKind::Ipi => "ipi",
            IntrusionKind::Probe => "probe",
        }
    }

    /// `None`: no name is equal to the text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A thread or an interrupt on a guarded CPU, to be added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntrusionDelta {
    /// The number of the guarded CPU.
    pub cpu: u32,
    /// Whether a thread ran there, or which interrupt it was.
    pub kind: IntrusionKind,
    /// The interrupt's name, or the function that the sender wanted called; empty for threads, `wallprof` for
    /// its own probes.
    pub what: String,
    /// The thread that ran there or sent the interrupt; `None`: a device, an interrupt, an idle CPU.
    pub thread: Option<ThreadRef>,
    /// A thread that may be there.
    pub allowed: bool,
    /// Runs, or interrupts.
    pub count: u64,
    /// All runs or interrupts, ns; 0 for [`IntrusionKind::Ipi`].
    pub total_ns: u64,
    /// The longest run or interrupt, ns; 0 for [`IntrusionKind::Ipi`] and [`IntrusionKind::Probe`].
    pub max_ns: u64,
}
