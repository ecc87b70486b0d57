// SPDX-License-Identifier: Apache-2.0
//! The capabilities of a process (capabilities(7)), and the use that wallprof has for each.

use std::fmt;

/// The capabilities that wallprof uses, by number in `include/uapi/linux/capability.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Capability {
    DacReadSearch = 2,
    SysPtrace = 19,
    SysAdmin = 21,
    SysNice = 23,
    SysResource = 24,
    Syslog = 34,
    Perfmon = 38,
    Bpf = 39,
    CheckpointRestore = 40,
}

impl Capability {
    pub const ALL: [Capability; 9] = [
        Capability::Bpf,
        Capability::Perfmon,
        Capability::SysPtrace,
        Capability::Syslog,
        Capability::DacReadSearch,
        Capability::CheckpointRestore,
        Capability::SysNice,
        Capability::SysResource,
        Capability::SysAdmin,
    ];

    /// `cap_perfmon` …: as setcap(8) takes it.
    pub fn name(self) -> &'static str {
        match self {
            Capability::DacReadSearch => "cap_dac_read_search",
            Capability::SysPtrace => "cap_sys_ptrace",
            Capability::SysAdmin => "cap_sys_admin",
            Capability::SysNice => "cap_sys_nice",
            Capability::SysResource => "cap_sys_resource",
            Capability::Syslog => "cap_syslog",
            Capability::Perfmon => "cap_perfmon",
            Capability::Bpf => "cap_bpf",
            Capability::CheckpointRestore => "cap_checkpoint_restore",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of capabilities, as `/proc/PID/status` prints it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapabilitySet(u64);

impl CapabilitySet {
    /// The effective set in the text of `/proc/PID/status`; empty when the text has none.
    pub fn effective_from_status(status: &str) -> Self {
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        CapabilitySet(line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0))
    }

    pub fn has(self, capability: Capability) -> bool {
        self.0 & 1 << capability as u8 != 0
    }

    /// Like [`Self::has`], but CAP_SYS_ADMIN stands for two more capabilities. They were split from it in 5.8
    /// and 5.9, and it still grants them (`bpf_capable()`, `perfmon_capable()`,
    /// `checkpoint_restore_ns_capable()` in `include/linux/capability.h`).
    pub fn allows(self, capability: Capability) -> bool {
        let split_off = matches!(
            capability,
            Capability::Bpf | Capability::Perfmon | Capability::CheckpointRestore | Capability::Syslog
        );
        self.has(capability) || split_off && self.has(Capability::SysAdmin)
    }

    /// The missing capabilities without which programs cannot be loaded and events cannot be opened.
    pub fn missing_to_record(self) -> Vec<Capability> {
        [Capability::Bpf, Capability::Perfmon].into_iter().filter(|needed| !self.allows(*needed)).collect()
    }
}

/// The commands that give the binary all capabilities that wallprof uses except CAP_SYS_ADMIN, and allow only
/// a group to run it. With these capabilities it shows the group all programs on the machine. chgrp(1)
/// removes capabilities, so it comes first.
pub fn setcap_commands() -> String {
    format!(
        "sudo groupadd -f wallprof; w=$(which wallprof); sudo chgrp wallprof $w && sudo chmod 0750 $w && \
         sudo setcap {} $w",
        setcap_argument()
    )
}

fn setcap_argument() -> String {
    let names = [
        Capability::Bpf,
        Capability::Perfmon,
        Capability::SysPtrace,
        Capability::Syslog,
        Capability::DacReadSearch,
        Capability::CheckpointRestore,
        Capability::SysNice,
    ];
    format!("{}+ep", names.map(Capability::name).join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT_WITHOUT_RESOURCE: &str = "Name:\tsh\nCapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\n";

    fn set(of: &[Capability]) -> CapabilitySet {
        CapabilitySet(of.iter().fold(0, |bits, capability| bits | 1 << *capability as u8))
    }

    #[test]
    fn the_effective_set_is_read() {
        let root = CapabilitySet::effective_from_status(ROOT_WITHOUT_RESOURCE);
        assert!(!root.has(Capability::SysResource));
        assert!(Capability::ALL.iter().all(|one| *one == Capability::SysResource || root.has(*one)));
        for text in ["", "CapEff:\n", "CapEff:\tzz\n", "CapEff:\t1ffffffffffffffffff\n"] {
            assert_eq!(CapabilitySet::effective_from_status(text), CapabilitySet::default(), "{text:?}");
        }
    }

    #[test]
    fn capabilities_missing_to_record_are_listed() {
        assert_eq!(set(&[]).missing_to_record(), [Capability::Bpf, Capability::Perfmon]);
        assert_eq!(set(&[Capability::Bpf]).missing_to_record(), [Capability::Perfmon]);
        assert_eq!(set(&[Capability::SysAdmin]).missing_to_record(), []);
        assert!(!set(&[Capability::SysAdmin]).allows(Capability::SysPtrace));
    }

    #[test]
    fn setcap_gives_the_needed_capabilities() {
        assert!(setcap_argument().starts_with("cap_bpf,cap_perfmon,cap_sys_ptrace,"));
        assert!(!setcap_argument().contains("sys_admin"));
    }
}
