// SPDX-License-Identifier: Apache-2.0
//! Delays: time that the kernel spends on a thread's behalf.

use crate::thread::ThreadKey;
use crate::time::MonoNs;

/// What the kernel does on a thread's behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DelayKind {
    /// Frees memory, because there was none or a cgroup's limit was reached.
    Reclaim,
    /// Moves memory together, for a large piece.
    Compaction,
    /// Waits for the lock of the process's memory map.
    MmapLock,
    /// Waits for another lock of the kernel's own.
    KernelLock,
}

impl DelayKind {
    /// Each variant once, in the order of their declaration.
    pub const ALL: [DelayKind; 4] =
        [DelayKind::Reclaim, DelayKind::Compaction, DelayKind::MmapLock, DelayKind::KernelLock];

    /// The name in recordings and in JSON, which [`Self::from_name`] reads.
    pub fn name(self) -> &'static str {
        match self {
            DelayKind::Reclaim => "reclaim",
            DelayKind::Compaction => "compaction",
            DelayKind::MmapLock => "mmap_lock",
            DelayKind::KernelLock => "kernel_lock",
        }
    }

    /// `None`: no name is equal to the text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// One such delay, at least as long as a stall. It is a part of the thread's running time, of a stall, or of
/// both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelDelay {
    /// The delayed thread.
    pub thread: ThreadKey,
    /// What the kernel did meanwhile.
    pub kind: DelayKind,
    /// Monotonic clock, ns.
    pub start: MonoNs,
    /// Monotonic clock, ns.
    pub end: MonoNs,
}
