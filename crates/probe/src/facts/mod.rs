// SPDX-License-Identifier: Apache-2.0
//! What this machine allows, according to files: no program is loaded and no event opened.
//!
//! Facts only. The callers that show a missing one say what follows from it.

pub mod capabilities;
pub mod cgroups;
pub mod files;
pub mod settings;
pub mod symbols;

use std::path::{Path, PathBuf};

use crate::events::{find_tracefs, has_hardware_counters};
use capabilities::CapabilitySet;
use cgroups::{CgroupMount, cgroup_mounts};
use files::Files;
use settings::{KernelSettings, MemoryLock};
use symbols::KernelSymbols;

/// Inode of the first pid namespace (`PROC_PID_INIT_INO` in `include/linux/proc_ns.h`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The facts that the machine's files contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// As `uname -r` prints it.
    pub kernel: Option<String>,
    pub effective_uid: Option<u32>,
    pub capabilities: CapabilitySet,
    pub settings: KernelSettings,
    pub memory_lock: Option<MemoryLock>,
    /// The kernel describes its own types (`/sys/kernel/btf/vmlinux`): without it nothing can be attached.
    pub btf: bool,
    pub tracefs: Option<Tracefs>,
    pub cgroups: Vec<CgroupMount>,
    pub hardware_counters: bool,
    pub intel_pt: bool,
    pub kernel_symbols: KernelSymbols,
    /// Threads have `schedstat`, against which the ledger can be checked.
    pub schedstat: bool,
    /// False in a container that has its own process numbers; `None` where that is not known.
    pub initial_pid_namespace: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracefs {
    pub at: PathBuf,
    pub readable: bool,
}

impl HostFacts {
    pub fn read(files: &dyn Files) -> Self {
        let text = |path: &str| files.read(Path::new(path)).ok();
        let status = text("/proc/self/status").unwrap_or_default();
        HostFacts {
            kernel: text("/proc/sys/kernel/osrelease").map(|release| release.trim().to_string()),
            effective_uid: effective_uid(&status),
            capabilities: CapabilitySet::effective_from_status(&status),
            settings: KernelSettings::read(files),
            memory_lock: text("/proc/self/limits").and_then(|limits| MemoryLock::from_limits(&limits)),
            btf: files.exists(Path::new("/sys/kernel/btf/vmlinux")),
            tracefs: tracefs(files),
            cgroups: cgroup_mounts(files),
            hardware_counters: has_hardware_counters(files),
            intel_pt: files.exists(Path::new("/sys/bus/event_source/devices/intel_pt")),
            kernel_symbols: KernelSymbols::read(files),
            schedstat: files.exists(Path::new("/proc/self/schedstat")),
            initial_pid_namespace: initial_pid_namespace(files),
        }
    }
}

fn effective_uid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn tracefs(files: &dyn Files) -> Option<Tracefs> {
    let at = find_tracefs(files)?;
    let readable = files.list(&at.join("events")).is_ok();
    Some(Tracefs { at, readable })
}

fn initial_pid_namespace(files: &dyn Files) -> Option<bool> {
    let link = files.link(Path::new("/proc/self/ns/pid")).ok()?;
    Some(link == Path::new(INITIAL_PID_NAMESPACE))
}

#[cfg(test)]
mod tests {
    use super::files::HostFiles;
    use super::files::fake::FakeFiles;
    use super::*;

    #[test]
    fn facts_of_a_machine_without_files_are_absent() {
        assert_eq!(HostFacts::read(&FakeFiles::default()), HostFacts::default());
    }

    #[test]
    fn facts_of_an_unprivileged_container() {
        let files = FakeFiles::new(&[
            ("/proc/sys/kernel/osrelease", "6.1.0-28-amd64\n"),
            (
                "/proc/self/status",
                "Name:\twallprof\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n",
            ),
            ("/proc/self/ns/pid", "pid:[4026532000]"),
            ("/proc/self/mounts", "tracefs /sys/kernel/tracing tracefs rw 0 0\n"),
            ("/sys/kernel/btf/vmlinux", ""),
        ])
        .forbid("/sys/kernel/tracing");
        let facts = HostFacts::read(&files);
        assert_eq!(facts.kernel.as_deref(), Some("6.1.0-28-amd64"));
        assert_eq!(facts.effective_uid, Some(1000));
        assert_eq!(facts.initial_pid_namespace, Some(false));
        assert_eq!(facts.tracefs, Some(Tracefs { at: "/sys/kernel/tracing".into(), readable: false }));
        assert!(facts.btf && !facts.capabilities.missing_to_record().is_empty());
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_user() {
        let facts = HostFacts::read(&HostFiles);
        assert!(facts.kernel.is_some() && facts.effective_uid.is_some());
        assert!(facts.memory_lock.is_some() && facts.initial_pid_namespace.is_some());
    }
}
