//! Delays: time that the kernel spends on a thread's behalf.

use crate::thread::ThreadKey;
use crate::time::MonoNs;

/// What the kernel does on a thread's behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkKind {
    /// Frees memory, because there was none or a cgroup's limit was reached.
    Reclaim,
    /// Moves memory together, for a large piece.
    Compaction,
    /// Waits for the lock of the process's memory map.
    MmapLock,
    /// Waits for another lock of the kernel's own.
    KernelLock,
}

impl WorkKind {
    pub const ALL: [WorkKind; 4] =
        [WorkKind::Reclaim, WorkKind::Compaction, WorkKind::MmapLock, WorkKind::KernelLock];

    pub fn name(self) -> &'static str {
        match self {
            WorkKind::Reclaim => "reclaim",
            WorkKind::Compaction => "compaction",
            WorkKind::MmapLock => "mmap_lock",
            WorkKind::KernelLock => "kernel_lock",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// One such delay, at least as long as a stall. It is a part of the thread's running time, of a stall, or of
/// both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelWork {
    pub thread: ThreadKey,
    pub kind: WorkKind,
    pub start: MonoNs,
    pub end: MonoNs,
}
