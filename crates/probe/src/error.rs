// SPDX-License-Identifier: Apache-2.0
//! Errors that prevent measuring.

use std::fmt;
use std::io;
use std::path::Path;

use crate::facts::capabilities::{Capability, CapabilitySet};
use crate::facts::files::{Files, HostFiles};

#[derive(Debug)]
pub enum ProbeError {
    /// No `/sys/kernel/btf/vmlinux`.
    NoTypeInformation,
    /// The kernel refused; `what` is the operation.
    NotPermitted {
        what: &'static str,
        capability: &'static str,
    },
    /// The kernel refused although this process has the capabilities.
    Denied {
        what: &'static str,
    },
    /// The kernel rejects the programs: the first lines of its reason.
    NotLoaded {
        reason: String,
    },
    NotAttached {
        program: String,
        reason: String,
    },
    EventNotOpened {
        event: String,
        cpu: u32,
        error: io::Error,
    },
    /// A place that `--span` names.
    SpanNotProbed {
        option: String,
        offset: u64,
        reason: String,
    },
    NoMemory {
        what: &'static str,
    },
    NoSuchCpu {
        cpu: u32,
    },
    Reading {
        what: &'static str,
        error: io::Error,
    },
}

impl ProbeError {
    /// Whether the kernel or missing permissions prevent the recording, rather than a wrong request.
    pub fn is_refusal(&self) -> bool {
        match self {
            ProbeError::EventNotOpened { error, .. } => {
                matches!(
                    error.raw_os_error(),
                    Some(libc::EACCES | libc::EPERM | libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV)
                )
            }
            ProbeError::NoSuchCpu { .. } | ProbeError::Reading { .. } | ProbeError::NoMemory { .. } => false,
            _ => true,
        }
    }

    pub(crate) fn reading(what: &'static str, error: io::Error) -> Self {
        ProbeError::Reading { what, error }
    }

    pub(crate) fn not_attached(program: &libbpf_rs::ProgramMut<'_>, error: &libbpf_rs::Error) -> Self {
        ProbeError::NotAttached {
            program: program.name().to_string_lossy().into_owned(),
            reason: error.to_string(),
        }
    }

    /// A failure to open perf events, which is mostly a missing capability.
    pub(crate) fn from_perf(what: &'static str, error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => Self::refused(what, "CAP_PERFMON", &HostFiles),
            _ => ProbeError::Reading { what, error: io::Error::from(error.kind()) },
        }
    }

    /// A system call that the kernel did not permit: for want of capabilities, or by a policy that does not ask for
    /// them.
    fn refused(what: &'static str, capability: &'static str, files: &dyn Files) -> Self {
        let status = files.read(Path::new("/proc/self/status")).unwrap_or_default();
        let held = CapabilitySet::effective_from_status(&status);
        match [Capability::Bpf, Capability::Perfmon].iter().all(|needed| held.allows(*needed)) {
            true => ProbeError::Denied { what },
            false => ProbeError::NotPermitted { what, capability },
        }
    }

    pub(crate) fn from_load(error: &libbpf_rs::Error, log: &str) -> Self {
        match error.kind() {
            libbpf_rs::ErrorKind::PermissionDenied if log.is_empty() || is_denial(log) => {
                Self::refused("load BPF programs", "CAP_BPF and CAP_PERFMON", &HostFiles)
            }
            libbpf_rs::ErrorKind::OutOfMemory => ProbeError::NoMemory { what: "BPF maps" },
            _ => {
                let reason = if log.is_empty() { format!("{error}") } else { log.to_string() };
                ProbeError::NotLoaded { reason }
            }
        }
    }
}

/// Whether libbpf says that a system call was not permitted. The verifier refuses a program with EACCES instead.
fn is_denial(log: &str) -> bool {
    log.contains("-EPERM") || log.contains("Operation not permitted")
}

/// The end of a sentence.
const POLICY: &str = "has the capabilities, so a security policy denies it: in a container choose a seccomp profile \
     that allows bpf and perf_event_open, and with SELinux or AppArmor allow what `journalctl -k` says they denied";

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeError::NoTypeInformation => write!(
                f,
                "this kernel does not describe its types (/sys/kernel/btf/vmlinux is missing): use a \
                 kernel built with CONFIG_DEBUG_INFO_BTF, as distributions ship them"
            ),
            ProbeError::NotPermitted { what, capability } => write!(
                f,
                "not permitted to {what}: {capability} is needed, run with sudo or see `wallprof doctor`"
            ),
            ProbeError::Denied { what } => write!(f, "not permitted to {what}: this process {POLICY}"),
            ProbeError::NotLoaded { reason } => {
                write!(
                    f,
                    "this kernel refuses wallprof's programs ({reason}): report it with the output of `wallprof doctor`"
                )
            }
            ProbeError::NotAttached { program, reason } => {
                write!(f, "the probe {program} could not be attached ({reason}): run `wallprof doctor`")
            }
            ProbeError::EventNotOpened { event, cpu, error } => {
                let advice = match error.raw_os_error() {
                    Some(libc::EACCES | libc::EPERM) => "CAP_PERFMON is needed, run with sudo",
                    Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
                        "this machine does not offer it, `wallprof doctor` lists what it offers"
                    }
                    _ => "run `wallprof doctor`",
                };
                write!(f, "the event {event} could not be opened on CPU {cpu} ({error}): {advice}")
            }
            ProbeError::SpanNotProbed { option, offset, reason } => write!(
                f,
                "--span {option}: the kernel sets no probe at byte {offset:#x} of the file ({reason}): choose another \
                 place"
            ),
            ProbeError::NoMemory { what } => write!(
                f,
                "the kernel has no memory for {what}: free some, or raise the limit of wallprof's cgroup"
            ),
            ProbeError::NoSuchCpu { cpu } => {
                write!(f, "CPU {cpu} is not online: choose from /sys/devices/system/cpu/online")
            }
            ProbeError::Reading { what, error } => {
                write!(f, "{what} could not be read ({error}): record again")
            }
        }
    }
}

impl std::error::Error for ProbeError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::files::fake::FakeFiles;

    fn refused(effective: &str) -> String {
        let status = format!("CapEff:\t{effective}\n");
        ProbeError::refused(
            "load BPF programs",
            "CAP_BPF",
            &FakeFiles::new(&[("/proc/self/status", &status)]),
        )
        .to_string()
    }

    #[test]
    fn refusal_of_a_process_with_the_capabilities_is_a_policy() {
        assert!(refused("000000c000000000").contains("a security policy denies it"));
        assert!(refused("0000000000200000").contains("a security policy denies it"), "CAP_SYS_ADMIN");
        for lacking in ["0000008000000000", "0000004000000000", "0000000000000000"] {
            assert!(refused(lacking).contains("CAP_BPF is needed, run with sudo"), "{lacking}");
        }
    }

    #[test]
    fn verifiers_refusal_is_no_denial() {
        assert!(is_denial(
            "Failed to bump RLIMIT_MEMLOCK (err = -EPERM), you might need to do it explicitly!"
        ));
        assert!(is_denial("prog 'on_switch': BPF program load failed: Operation not permitted"));
        assert!(!is_denial("prog 'on_switch': BPF program load failed: -EACCES"));
    }
}
