// SPDX-License-Identifier: Apache-2.0
//! Interrupts, and the calls on other CPUs that cause some of them.

use crate::thread::{ThreadKey, ThreadRef};

/// How the kernel came to run an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum InterruptKind {
    /// An interrupt of a device, by its handler.
    Irq,
    /// Work that an interrupt left for later, such as `net_rx`.
    Softirq,
    /// An interrupt with a vector of its own, such as `local_timer`.
    Vector,
}

impl InterruptKind {
    /// The name in recordings and in JSON, which [`Self::from_name`] reads.
    pub fn name(self) -> &'static str {
        match self {
            InterruptKind::Irq => "irq",
            InterruptKind::Softirq => "softirq",
            InterruptKind::Vector => "vector",
        }
    }

    /// `None`: no name is equal to the text.
    pub fn from_name(name: &str) -> Option<Self> {
        [InterruptKind::Irq, InterruptKind::Softirq, InterruptKind::Vector]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}

/// Interrupt time on one CPU, to be added up by cause and victim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterruptDelta {
    /// The number of the interrupted CPU.
    pub cpu: u32,
    /// With `name` the cause, by which interrupts are added up.
    pub kind: InterruptKind,
    /// `local_timer`, `net_rx`, `virtio0-input.0` …
    pub name: String,
    /// The thread that was current; `None` for the idle task and for threads that are not recorded.
    pub victim: Option<ThreadKey>,
    /// How many interrupts.
    pub count: u64,
    /// The time of all these interrupts, ns.
    pub total_ns: u64,
    /// The longest of these interrupts, ns.
    pub max_ns: u64,
}

/// Functions that a thread had called on other CPUs, which interrupts them; to be added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrossCallDelta {
    /// The thread that had the functions called.
    pub caller: ThreadRef,
    /// The caller's system call; `None`: it was in none.
    pub syscall: Option<String>,
    /// The kernel's function; `None` without kernel symbols.
    pub function: Option<String>,
    /// How many calls: a call on three CPUs counts three times.
    pub count: u64,
}
