// SPDX-License-Identifier: Apache-2.0
//! Errors that prevent measuring.

use std::fmt;
use std::io;
use std::path::Path;

use crate::facts::capabilities::{Capability, CapabilitySet};
use crate::facts::files::{Files, HostFiles};
use crate::facts::settings::{KernelSettings, Lockdown};
use crate::messages;

#[derive(Debug)]
pub enum ProbeError {
    /// No `/sys/kernel/btf/vmlinux`.
    NoTypeInformation,
    /// The kernel refused, and is older than those that are promised; `release` is as `uname -r` prints it.
    OldKernel {
        release: String,
    },
    /// The kernel's lockdown keeps programs from reading its memory.
    LockedDown,
    /// The kernel refused; `what` is the operation.
    NotPermitted {
        what: String,
        capability: &'static str,
    },
    /// The kernel refused although this process has the capabilities.
    Denied {
        what: String,
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
                matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV))
            }
            ProbeError::NoSuchCpu { .. } | ProbeError::Reading { .. } | ProbeError::NoMemory { .. } => false,
            _ => true,
        }
    }

    pub(crate) fn reading(what: &'static str, error: io::Error) -> Self {
        ProbeError::Reading { what, error }
    }

    pub(crate) fn not_attached(program: &libbpf_rs::ProgramMut<'_>, error: &libbpf_rs::Error) -> Self {
        unsuitable_kernel(&HostFiles).unwrap_or_else(|| ProbeError::NotAttached {
            program: program.name().to_string_lossy().into_owned(),
            reason: error.to_string(),
        })
    }

    /// A failure to open perf events, which is mostly a missing capability.
    pub(crate) fn from_perf(what: &'static str, error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => Self::refused(what.into(), "CAP_PERFMON", &HostFiles),
            _ => ProbeError::Reading { what, error: io::Error::from(error.kind()) },
        }
    }

    pub(crate) fn event_not_opened(event: &str, cpu: u32, error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => {
                Self::refused(format!("open the event {event} on CPU {cpu}"), "CAP_PERFMON", &HostFiles)
            }
            _ => ProbeError::EventNotOpened { event: event.into(), cpu, error },
        }
    }

    /// A system call that the kernel did not permit: for want of capabilities, or by a policy that does not ask for
    /// them.
    fn refused(what: String, capability: &'static str, files: &dyn Files) -> Self {
        if is_locked_down(files) {
            return ProbeError::LockedDown;
        }
        let status = files.read(Path::new("/proc/self/status")).unwrap_or_default();
        let held = CapabilitySet::effective_from_status(&status);
        match [Capability::Bpf, Capability::Perfmon].iter().all(|needed| held.allows(*needed)) {
            true => ProbeError::Denied { what },
            false => ProbeError::NotPermitted { what, capability },
        }
    }

    /// `log`: all of libbpf's messages.
    pub(crate) fn from_load(error: &libbpf_rs::Error, log: &str) -> Self {
        match error.kind() {
            libbpf_rs::ErrorKind::PermissionDenied if log.is_empty() || is_denial(log) => {
                Self::refused("load BPF programs".into(), "CAP_BPF and CAP_PERFMON", &HostFiles)
            }
            libbpf_rs::ErrorKind::OutOfMemory => ProbeError::NoMemory { what: "BPF maps" },
            _ if reads_are_forbidden(log) => ProbeError::LockedDown,
            _ => unsuitable_kernel(&HostFiles).unwrap_or_else(|| {
                let reason =
                    if log.is_empty() { format!("{error}") } else { messages::shown(log).to_owned() };
                ProbeError::NotLoaded { reason }
            }),
        }
    }
}

/// The oldest kernel that is promised to take the programs: major and minor version.
const OLDEST_KERNEL: (u32, u32) = (6, 1);

/// Why the kernel of this machine cannot take the programs. Asked after a failure only: an older kernel may have what
/// they need.
fn unsuitable_kernel(files: &dyn Files) -> Option<ProbeError> {
    if is_locked_down(files) {
        return Some(ProbeError::LockedDown);
    }
    let release = files.read(Path::new("/proc/sys/kernel/osrelease")).ok()?.trim().to_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let version = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (version < OLDEST_KERNEL).then_some(ProbeError::OldKernel { release })
}

/// False where that is not known, because securityfs is not mounted, as in a container.
fn is_locked_down(files: &dyn Files) -> bool {
    KernelSettings::read(files).lockdown == Some(Lockdown::Confidentiality)
}

/// Whether the verifier says that there is no helper that reads the kernel's memory. There is one on every kernel that
/// can load the programs, but for lockdown (`bpf_tracing_func_proto` in `kernel/trace/bpf_trace.c`). libbpf replaces
/// `bpf_probe_read_kernel` by `bpf_probe_read` where the kernel seems to have none.
fn reads_are_forbidden(log: &str) -> bool {
    const REFUSALS: [&str; 3] = ["unknown func", "cannot use helper", "is not allowed"];
    let refused = |line: &str| REFUSALS.iter().any(|refusal| line.contains(refusal));
    log.lines().any(|line| line.contains("bpf_probe_read") && refused(line))
}

/// Whether libbpf says that a system call was not permitted. The verifier refuses a program with EACCES, and so does
/// SELinux the first program and each map.
fn is_denial(log: &str) -> bool {
    let is_denied = |line: &str| {
        let is_policys = line.contains("probe_loading") || line.contains("failed to create");
        is_policys && (line.contains("-EACCES") || line.contains("Permission denied"))
    };
    log.contains("-EPERM") || log.contains("Operation not permitted") || log.lines().any(is_denied)
}

/// The end of a sentence.
const POLICY: &str = "has the capabilities, so a security policy denies it: in a container choose a seccomp profile \
     that allows bpf and perf_event_open, and allow what `journalctl -k` says SELinux, AppArmor or lockdown denied";

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeError::NoTypeInformation => write!(
                f,
                "this kernel does not describe its types (/sys/kernel/btf/vmlinux is missing): use a \
                 kernel built with CONFIG_DEBUG_INFO_BTF, as distributions ship them"
            ),
            ProbeError::OldKernel { release } => write!(
                f,
                "this kernel, {release}, is too old for wallprof's programs: use Linux {}.{} or newer",
                OLDEST_KERNEL.0, OLDEST_KERNEL.1
            ),
            ProbeError::LockedDown => write!(
                f,
                "this kernel is locked down (confidentiality), so no program may read its memory: boot with \
                 lockdown=integrity"
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
            "load BPF programs".into(),
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
        assert!(!is_denial(
            "prog 'on_switch': failed to load: -EACCES\nfailed to load object 'wallprof_bpf'"
        ));
    }

    /// As libbpf 1.7 says it of SELinux, whose refusals are EACCES.
    #[test]
    fn refusal_before_the_verifier_is_a_denial() {
        assert!(is_denial(
            "Error in bpf_object__probe_loading(): -EACCES. Couldn't load trivial BPF program. Make sure your kernel \
             supports BPF (CONFIG_BPF_SYSCALL=y) and/or that RLIMIT_MEMLOCK is set to big enough value."
        ));
        assert!(is_denial("map 'threads': failed to create: -EACCES"));
    }

    #[test]
    fn kernel_that_cannot_take_the_programs_is_named() {
        let of =
            |files: &[(&str, &str)]| unsuitable_kernel(&FakeFiles::new(files)).map(|error| error.to_string());
        let release = |release| of(&[("/proc/sys/kernel/osrelease", release)]);
        let old = release("5.10.0-32-amd64\n").expect("too old");
        assert!(old.contains("5.10.0-32-amd64") && old.contains("Linux 6.1 or newer"), "{old}");
        assert!(release("4.18.0-553.el8_10.x86_64\n").is_some());
        assert!(release("6.0.19\n").is_some());
        for fine in ["6.1.0-28-amd64\n", "6.18.44\n", "7.0-rc1\n", "10.0\n", "odd\n"] {
            assert_eq!(release(fine), None, "{fine}");
        }
        let locked =
            |mode| of(&[("/sys/kernel/security/lockdown", mode), ("/proc/sys/kernel/osrelease", "6.1.0\n")]);
        let confidential = locked("none integrity [confidentiality]\n").expect("locked down");
        assert!(confidential.contains("boot with lockdown=integrity"), "{confidential}");
        assert_eq!(locked("none [integrity] confidentiality\n"), None);
    }

    #[test]
    fn lockdown_is_the_reason_of_a_refusal_and_of_a_missing_helper() {
        let files = FakeFiles::new(&[
            ("/sys/kernel/security/lockdown", "none integrity [confidentiality]\n"),
            ("/proc/self/status", "CapEff:\t000000c000000000\n"),
        ]);
        assert!(matches!(ProbeError::refused("read".into(), "CAP_BPF", &files), ProbeError::LockedDown));
        assert!(reads_are_forbidden("116: (85) call bpf_probe_read#4\nunknown func bpf_probe_read#4"), "6.1");
        assert!(reads_are_forbidden("program of this type cannot use helper bpf_probe_read_kernel_str#115"));
        let newest = "Reason:\n  The helper bpf_probe_read#4 is not allowed: this program type does not allow the helper.";
        assert!(reads_are_forbidden(newest), "7.3");
        assert!(!reads_are_forbidden("12: (85) call bpf_probe_read_kernel#113\nunknown func bpf_loop#181"));
    }
}
