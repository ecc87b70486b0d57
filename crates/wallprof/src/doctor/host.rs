// SPDX-License-Identifier: Apache-2.0
//! Checks of the machine's files: each fact with the effect of its absence and the smallest change that
//! helps.

use wallprof_probe::facts::HostFacts;
use wallprof_probe::facts::capabilities::{Capability, setcap_commands};
use wallprof_probe::facts::cgroups::CgroupVersion;
use wallprof_probe::facts::settings::Lockdown;
use wallprof_probe::facts::symbols::KernelSymbols;

use super::check::Check;

/// All checks that load no BPF program, the decisive ones first.
pub fn checks(facts: &HostFacts) -> Vec<Check> {
    let always = [permissions(facts), type_information(facts), lockdown(facts)];
    let helpers = [
        other_processes(facts),
        kernel_symbols(facts),
        paranoid(facts),
        tracepoints(facts),
        hardware_events(facts),
        intel_pt(facts),
        cgroups(facts),
        jit(facts),
        memory_lock(facts),
        schedstat(facts),
        pid_namespace(facts),
    ];
    always.into_iter().chain(helpers).flatten().collect()
}

fn permissions(facts: &HostFacts) -> Option<Check> {
    let missing = facts.capabilities.missing_to_record();
    let user = facts.effective_uid.map_or("unknown user".into(), |uid| format!("uid {uid}"));
    if missing.is_empty() {
        return Some(Check::fine("permissions", format!("{user} may load programs and open events")));
    }
    let missing: Vec<_> = missing.iter().map(|capability| capability.name()).collect();
    Some(Check::blocks(
        "permissions",
        format!("{user} lacks {}", missing.join(" and ")),
        format!("nothing can be recorded: run with sudo, or once: {}", setcap_command()),
    ))
}

fn type_information(facts: &HostFacts) -> Option<Check> {
    Some(match facts.btf {
        true => Check::fine("type information", "/sys/kernel/btf/vmlinux is there"),
        false => Check::blocks(
            "type information",
            "/sys/kernel/btf/vmlinux is missing",
            "nothing can be recorded: run a kernel built with CONFIG_DEBUG_INFO_BTF, as distributions ship them; in a \
             container mount the host's /sys",
        ),
    })
}

fn lockdown(facts: &HostFacts) -> Option<Check> {
    match facts.settings.lockdown? {
        Lockdown::None => Some(Check::fine("lockdown", "off")),
        Lockdown::Integrity => {
            Some(Check::fine("lockdown", "integrity: wallprof needs nothing that it forbids"))
        }
        Lockdown::Confidentiality => Some(Check::blocks(
            "lockdown",
            "confidentiality: the kernel lets no program read its memory",
            "nothing can be recorded: boot with lockdown=integrity",
        )),
    }
}

fn other_processes(facts: &HostFacts) -> Option<Check> {
    let missing: Vec<_> = [Capability::SysPtrace, Capability::DacReadSearch, Capability::CheckpointRestore]
        .into_iter()
        .filter(|capability| !facts.capabilities.allows(*capability))
        .map(Capability::name)
        .collect();
    if missing.is_empty() {
        return Some(Check::fine("other processes", "their mappings and files can be read"));
    }
    Some(Check::less(
        "other processes",
        format!("{} missing", missing.join(", ")),
        format!(
            "user functions of other users' processes, and of binaries deleted or replaced while running, have no \
             names: run with sudo, or once: {}",
            setcap_command()
        ),
    ))
}

fn kernel_symbols(facts: &HostFacts) -> Option<Check> {
    Some(match facts.kernel_symbols {
        KernelSymbols::Readable => Check::fine("kernel symbols", "/proc/kallsyms shows addresses"),
        KernelSymbols::Hidden => Check::less(
            "kernel symbols",
            format!("/proc/kallsyms hides addresses{}", kptr_restrict(facts)),
            "kernel functions have no names, and blocked time that only they explain counts as other: give \
             cap_syslog, or as root `sysctl kernel.kptr_restrict=0`",
        ),
        KernelSymbols::Absent => Check::less(
            "kernel symbols",
            "/proc/kallsyms is missing",
            "kernel functions have no names: run a kernel built with CONFIG_KALLSYMS",
        ),
    })
}

fn kptr_restrict(facts: &HostFacts) -> String {
    facts.settings.kptr_restrict.map_or(String::new(), |value| format!(" (kernel.kptr_restrict is {value})"))
}

/// CAP_PERFMON overrides the setting.
fn paranoid(facts: &HostFacts) -> Option<Check> {
    let value = facts.settings.perf_event_paranoid?;
    Some(match facts.capabilities.allows(Capability::Perfmon) {
        true => {
            Check::fine("perf events", format!("allowed (kernel.perf_event_paranoid {value} does not apply)"))
        }
        false => Check::less(
            "perf events",
            format!("kernel.perf_event_paranoid is {value}"),
            "cap_perfmon overrides it: nothing needs to be changed here",
        ),
    })
}

fn tracepoints(facts: &HostFacts) -> Option<Check> {
    Some(match &facts.tracefs {
        Some(tracefs) if tracefs.readable => {
            Check::fine("tracepoint events", format!("tracefs is readable at {}", tracefs.at.display()))
        }
        Some(tracefs) => Check::less(
            "tracepoint events",
            format!("{} is not readable", tracefs.at.display()),
            "`-e group:name` is refused; the ledger needs no tracefs: run with sudo, or give cap_dac_read_search",
        ),
        None if facts.capabilities.has(Capability::SysAdmin) => Check::fine(
            "tracepoint events",
            "tracefs is not mounted: wallprof mounts its own for `-e group:name`",
        ),
        None => Check::less(
            "tracepoint events",
            "tracefs is not mounted",
            "`-e group:name` is refused; the ledger needs no tracefs: as root \
             `mount -t tracefs tracefs /sys/kernel/tracing`",
        ),
    })
}

fn hardware_events(facts: &HostFacts) -> Option<Check> {
    Some(match facts.hardware_counters {
        true => Check::fine("hardware events", "the CPUs have counters"),
        false => Check::less(
            "hardware events",
            "the CPUs show no counters (a virtual machine without a PMU?)",
            "`-e cycles`, `-e cache-misses` and the like are refused; the ledger runs on cpu-clock all the same: on a \
             virtual machine of your own, pass the PMU through (qemu: -cpu host,pmu=on)",
        ),
    })
}

fn intel_pt(facts: &HostFacts) -> Option<Check> {
    Some(match facts.intel_pt {
        true => Check::fine("Intel PT", "there: `record --intel-pt` traces every call"),
        false => Check::less(
            "Intel PT",
            "not there (an AMD processor, or a virtual machine that hides it?)",
            "`record --intel-pt` is refused; traces of other machines can be imported, and nothing else depends on it",
        ),
    })
}

fn cgroups(facts: &HostFacts) -> Option<Check> {
    let v2 = facts.cgroups.iter().filter(|mount| mount.version == CgroupVersion::V2).count();
    let v1 = facts.cgroups.len() - v2;
    let first = facts.cgroups.first().map(|mount| mount.at.display().to_string());
    Some(match (first, v1) {
        (None, _) => Check::less(
            "cgroups",
            "no hierarchy is mounted",
            "`--cgroup` is refused: mount one, `mount -t cgroup2 none /sys/fs/cgroup`",
        ),
        (Some(at), 0) => Check::fine("cgroups", format!("v2 at {at}")),
        (Some(at), v1) if v2 > 0 => Check::fine("cgroups", format!("v2 at {at} and {v1} of v1")),
        (Some(at), v1) => Check::fine("cgroups", format!("{v1} of v1, the first at {at}")),
    })
}

fn jit(facts: &HostFacts) -> Option<Check> {
    (facts.settings.bpf_jit_enable == Some(0)).then(|| {
        Check::less(
            "BPF compiler",
            "off (net.core.bpf_jit_enable is 0)",
            "the probes are interpreted and cost several times as much: as root `sysctl net.core.bpf_jit_enable=1`",
        )
    })
}

/// Since 5.11, kernels charge BPF memory to the cgroup; perf buffers count against the limit beyond
/// kernel.perf_event_mlock_kb without CAP_IPC_LOCK.
fn memory_lock(facts: &HostFacts) -> Option<Check> {
    let limit = facts.memory_lock?;
    Some(Check::fine(
        "locked memory",
        match limit.soft_bytes {
            None => "unlimited".to_string(),
            Some(bytes) => format!("limit of {} KiB; maps are charged to the cgroup instead", bytes / 1024),
        },
    ))
}

fn schedstat(facts: &HostFacts) -> Option<Check> {
    Some(match facts.schedstat {
        true => Check::fine("schedstat", "the ledger can be checked against /proc/PID/schedstat"),
        false => Check::less(
            "schedstat",
            "/proc/PID/schedstat is missing",
            "the scheduler's own account of running and waiting cannot be compared: a kernel with CONFIG_SCHED_INFO has it",
        ),
    })
}

fn pid_namespace(facts: &HostFacts) -> Option<Check> {
    (facts.initial_pid_namespace == Some(false)).then(|| {
        Check::less(
            "process numbers",
            "this is a container with process numbers of its own",
            "probes see the host's numbers: run on the host, or with the host's (docker run --pid=host)",
        )
    })
}

/// By trying: a security policy may refuse in spite of the capability.
pub fn priority(granted: bool) -> Check {
    match granted {
        true => {
            Check::fine("priority", "real-time, for the microseconds in which others may wait for wallprof")
        }
        false => Check::less(
            "priority",
            "the kernel grants this process no real-time priority (no cap_sys_nice, or no cpu.rt_runtime_us)",
            format!(
                "where all CPUs are busy, threads that map memory may wait for milliseconds while wallprof reads their \
                 process's: run with sudo, give cap_sys_nice (systemd: with RestrictRealtime=no), or once: {}",
                setcap_command()
            ),
        ),
    }
}

fn setcap_command() -> String {
    format!("`{}`", setcap_commands())
}

#[cfg(test)]
mod tests {
    use wallprof_probe::facts::capabilities::CapabilitySet;

    use super::super::check::Grade;
    use super::*;

    fn root() -> HostFacts {
        HostFacts {
            effective_uid: Some(0),
            capabilities: CapabilitySet::effective_from_status("CapEff:\t000001ffffffffff\n"),
            btf: true,
            kernel_symbols: KernelSymbols::Readable,
            schedstat: true,
            ..HostFacts::default()
        }
    }

    fn blocking(facts: &HostFacts) -> Vec<&'static str> {
        let checks = checks(facts).into_iter();
        checks.filter(|check| check.grade == Grade::Blocks).map(|check| check.subject).collect()
    }

    #[test]
    fn root_on_a_common_kernel_is_not_blocked() {
        assert!(blocking(&root()).is_empty());
    }

    #[test]
    fn blocking_checks_are_marked() {
        assert_eq!(blocking(&HostFacts::default()), ["permissions", "type information"]);
        let mut locked = root();
        locked.settings.lockdown = Some(Lockdown::Confidentiality);
        assert_eq!(blocking(&locked), ["lockdown"]);
        let user = HostFacts { capabilities: CapabilitySet::default(), ..root() };
        let permissions = checks(&user).remove(0);
        assert!(permissions.finding.contains("cap_bpf and cap_perfmon"), "{permissions:?}");
        assert!(permissions.advice.contains("sudo setcap cap_bpf,"), "{permissions:?}");
    }

    #[test]
    fn each_missing_feature_has_advice() {
        let mut locked = HostFacts { initial_pid_namespace: Some(false), ..HostFacts::default() };
        locked.settings.bpf_jit_enable = Some(0);
        for facts in [root(), locked] {
            for check in checks(&facts).into_iter().chain([priority(true), priority(false)]) {
                assert_eq!(check.grade == Grade::Fine, check.advice.is_empty(), "{check:?}");
            }
        }
    }

    #[test]
    fn facts_that_do_not_apply_have_no_line() {
        let subjects: Vec<_> = checks(&root()).into_iter().map(|check| check.subject).collect();
        for subject in ["lockdown", "BPF compiler", "process numbers", "locked memory"] {
            assert!(!subjects.contains(&subject), "{subject}");
        }
    }
}
