// SPDX-License-Identifier: Apache-2.0
//! The identity of a thread.

use std::sync::Arc;

use crate::container::{container_from_cgroup, short_container};
use crate::pod::PodContainer;

/// A source's own number for a thread, unique within one recording. Not a tid: tids are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadKey(pub u32);

impl ThreadKey {
    /// In a profile with more threads than are listed: the sum of those that are not. No thread has this key.
    pub const OTHERS: ThreadKey = ThreadKey(u32::MAX);
}

/// The identity of a thread and its names as last seen. Sent again when a name changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadInfo {
    /// The number by which other events refer to the thread.
    pub key: ThreadKey,
    /// The number of the thread in the root pid namespace; of an import, as the profiler wrote it.
    pub tid: u32,
    /// The number of the process (thread group), likewise.
    pub pid: u32,
    /// tid and pid in the innermost pid namespace of the thread; equal to the above outside containers.
    pub ns_tid: u32,
    /// See `ns_tid`.
    pub ns_pid: u32,
    /// Start of the thread in ns since boot (`/proc/PID/stat` field 22, exact). With tid and boot id: the
    /// identity. 0: not known, as of an import.
    pub start_boot_ns: u64,
    /// The name of the thread (comm of proc(5)). It may have any characters.
    pub comm: String,
    /// The name of the process: the thread group leader's comm. Empty if it is not known.
    pub process: String,
    /// The path in the hierarchy of version 2, else the deepest one of version 1, as in `/proc/PID/cgroup`.
    /// `None`: not known.
    pub cgroup: Option<String>,
    /// The pod of the container that the thread is in. `None`: it is in none, or the pod is not known.
    pub pod: Option<Arc<PodContainer>>,
    /// A thread of the kernel.
    pub kernel_thread: bool,
}

impl AsRef<ThreadInfo> for ThreadInfo {
    fn as_ref(&self) -> &ThreadInfo {
        self
    }
}

impl ThreadInfo {
    /// A thread of a program, outside of containers, by the number and the name of its process and its own. Its start
    /// is not known.
    pub fn new(
        key: ThreadKey,
        (pid, process): (u32, impl Into<String>),
        (tid, comm): (u32, impl Into<String>),
    ) -> Self {
        ThreadInfo {
            key,
            tid,
            pid,
            ns_tid: tid,
            ns_pid: pid,
            start_boot_ns: 0,
            comm: comm.into(),
            process: process.into(),
            cgroup: None,
            pod: None,
            kernel_thread: false,
        }
    }

    /// The container that the thread is in: see [`container_from_cgroup`].
    pub fn container(&self) -> Option<String> {
        self.cgroup.as_deref().and_then(container_from_cgroup)
    }

    /// The container in Kubernetes, `NAMESPACE/POD/CONTAINER`, where its pod is known.
    pub fn pod_name(&self) -> Option<String> {
        self.pod.as_ref().map(|pod| pod.to_string())
    }

    /// The container's name for people: `NAMESPACE/POD/CONTAINER` where its pod is known, else as `docker ps` shows it.
    pub fn container_name(&self) -> Option<String> {
        self.pod_name().or_else(|| self.container().map(|id| short_container(&id).to_owned()))
    }
}

/// A thread as another thread's event mentions it: perhaps not itself recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadRef {
    /// `None`: the thread is not recorded.
    pub key: Option<ThreadKey>,
    /// The process (thread group) of the thread.
    pub pid: u32,
    /// The number of the thread.
    pub tid: u32,
    /// The name of the thread at the time; empty if it is not known.
    pub comm: String,
    /// What its process called itself: a title that it had set, or the script that it ran.
    pub title: Option<Arc<str>>,
}
