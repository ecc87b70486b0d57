// SPDX-License-Identifier: Apache-2.0
//! Interrupts, and the calls on other CPUs that cause some of them.

use crate::thread::{ThreadKey, ThreadRef};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum InterruptKind {
    Irq,
    Softirq,
    Vector,
}

impl InterruptKind {
    pub fn name(self) -> &'static str {
        match self {
            InterruptKind::Irq => "irq",
            InterruptKind::Softirq => "softirq",
            InterruptKind::Vector => "vector",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [InterruptKind::Irq, InterruptKind::Softirq, InterruptKind::Vector]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}

/// Interrupt time on one CPU, to be added up by cause and victim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterruptDelta {
    pub cpu: u32,
    pub kind: InterruptKind,
    /// `local_timer`, `net_rx`, `virtio0-input.0` …
    pub name: String,
    /// The thread that was current; `None` for the idle task and for threads that are not recorded.
    pub victim: Option<ThreadKey>,
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
}

/// Functions that a thread had called on other CPUs, which interrupts them; to be added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrossCallDelta {
    pub caller: ThreadRef,
    /// The caller's system call; `None`: it was in none.
    pub syscall: Option<String>,
    /// The kernel's function; `None` without kernel symbols.
    pub function: Option<String>,
    pub count: u64,
}
