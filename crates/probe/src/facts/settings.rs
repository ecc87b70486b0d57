// SPDX-License-Identifier: Apache-2.0
//! The kernel's own settings: sysctls, lockdown, limits. A setting whose file does not exist is `None`: this
//! kernel does not have it.

use std::path::Path;

use super::files::Files;

/// Sysctls that decide what can be measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelSettings {
    /// `kernel.perf_event_paranoid`: -1 to 2 (Debian: 3), the level of what is refused without CAP_PERFMON.
    pub perf_event_paranoid: Option<i64>,
    /// `kernel.kptr_restrict`: 0 shows addresses with CAP_SYSLOG or kernel.perf_event_paranoid ≤ 1, 1 with
    /// CAP_SYSLOG, 2 never.
    pub kptr_restrict: Option<i64>,
    /// `kernel.perf_event_max_sample_rate`, Hz.
    pub max_sample_rate_hz: Option<i64>,
    /// `net.core.bpf_jit_enable`: 0 means that programs are interpreted.
    pub bpf_jit_enable: Option<i64>,
    pub lockdown: Option<Lockdown>,
}

/// `/sys/kernel/security/lockdown` (kernel_lockdown(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lockdown {
    None,
    /// Keeps kprobes and the like from changing the kernel; BPF may still read.
    Integrity,
    /// Keeps BPF from reading kernel memory: no tracing at all.
    Confidentiality,
}

/// RLIMIT_MEMLOCK in bytes; `None` is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLock {
    pub soft_bytes: Option<u64>,
    pub hard_bytes: Option<u64>,
}

impl KernelSettings {
    pub fn read(files: &dyn Files) -> Self {
        let number = |path: &str| files.read(&Path::new("/proc/sys").join(path)).ok()?.trim().parse().ok();
        KernelSettings {
            perf_event_paranoid: number("kernel/perf_event_paranoid"),
            kptr_restrict: number("kernel/kptr_restrict"),
            max_sample_rate_hz: number("kernel/perf_event_max_sample_rate"),
            bpf_jit_enable: number("net/core/bpf_jit_enable"),
            lockdown: files
                .read(Path::new("/sys/kernel/security/lockdown"))
                .ok()
                .and_then(|text| lockdown_from_text(&text)),
        }
    }
}

impl MemoryLock {
    /// From the text of `/proc/PID/limits`.
    pub fn from_limits(limits: &str) -> Option<Self> {
        let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
        let mut fields = line.split_whitespace().map(|field| match field {
            "unlimited" => Some(None),
            bytes => bytes.parse().ok().map(Some),
        });
        Some(MemoryLock { soft_bytes: fields.next()??, hard_bytes: fields.next()?? })
    }
}

/// `none [integrity] confidentiality`: the one in brackets is active.
fn lockdown_from_text(text: &str) -> Option<Lockdown> {
    let (_, rest) = text.split_once('[')?;
    match rest.split_once(']')?.0 {
        "none" => Some(Lockdown::None),
        "integrity" => Some(Lockdown::Integrity),
        "confidentiality" => Some(Lockdown::Confidentiality),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::fake::FakeFiles;
    use super::*;

    #[test]
    fn settings_are_read_and_missing_ones_are_none() {
        let files = FakeFiles::new(&[
            ("/proc/sys/kernel/perf_event_paranoid", "-1\n"),
            ("/proc/sys/kernel/kptr_restrict", "what\n"),
            ("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n"),
        ]);
        let settings = KernelSettings::read(&files);
        assert_eq!(settings.perf_event_paranoid, Some(-1));
        assert_eq!(settings.kptr_restrict, None);
        assert_eq!(settings.lockdown, Some(Lockdown::Integrity));
        assert_eq!(KernelSettings::read(&FakeFiles::default()), KernelSettings::default());
    }

    #[test]
    fn lockdown_texts() {
        assert_eq!(lockdown_from_text("[none] integrity confidentiality"), Some(Lockdown::None));
        assert_eq!(lockdown_from_text("none integrity [confidentiality]"), Some(Lockdown::Confidentiality));
        for text in ["", "[", "][", "none", "[new]"] {
            assert_eq!(lockdown_from_text(text), None, "{text:?}");
        }
    }

    #[test]
    fn memory_lock_limits() {
        let line = |values| format!("Limit  Soft  Hard\nMax locked memory         {values}    bytes\n");
        let read =
            |values| MemoryLock::from_limits(&line(values)).map(|limit| (limit.soft_bytes, limit.hard_bytes));
        assert_eq!(read("8388608   unlimited"), Some((Some(8_388_608), None)));
        assert_eq!(read("unlimited unlimited"), Some((None, None)));
        assert_eq!(read("8388608"), None);
        assert_eq!(MemoryLock::from_limits(""), None);
    }
}
