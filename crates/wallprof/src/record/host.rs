// SPDX-License-Identifier: Apache-2.0
//! Facts about this machine for the recording, and cgroups as the BPF programs identify them.

use std::fs;
use std::os::unix::fs::MetadataExt;

use wallprof_model::profile::RecordingInfo;
use wallprof_probe::facts::cgroups::{Cgroup, CgroupVersion};
use wallprof_probe::facts::files::Files;
use wallprof_probe::{CgroupTarget, cpus};
use wallprof_recording::RecordingStart;

use crate::failure::Failure;

/// The facts that are equal for all recordings on this machine.
pub fn recording_start() -> RecordingStart {
    let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_string()).unwrap_or_default();
    RecordingStart {
        source: RecordingInfo::LIVE.into(),
        kernel: read("/proc/sys/kernel/osrelease"),
        arch: std::env::consts::ARCH.into(),
        cpus: cpus::online().len() as u32,
        hostname: read("/proc/sys/kernel/hostname"),
        machine_id: read("/etc/machine-id"),
        boot_id: read("/proc/sys/kernel/random/boot_id"),
        ..RecordingStart::default()
    }
}

/// The cgroup as the BPF programs identify it.
pub fn cgroup_target(cgroup: &Cgroup, files: &dyn Files) -> Result<CgroupTarget, Failure> {
    let unreadable = |error: &dyn std::fmt::Display| {
        Failure::failed(format!(
            "the cgroup {} cannot be read ({error}): choose one that exists, as root",
            cgroup.directory.display()
        ))
    };
    let id = fs::metadata(&cgroup.directory).map_err(|error| unreadable(&error))?.ino();
    let hierarchy = match &cgroup.version {
        CgroupVersion::V2 => 0,
        CgroupVersion::V1(controllers) => {
            let text = files.read("/proc/self/cgroup".as_ref()).map_err(|error| unreadable(&error))?;
            hierarchy_from_text(&text, controllers)
                .ok_or_else(|| unreadable(&"its hierarchy is not in /proc/self/cgroup"))?
        }
    };
    Ok(CgroupTarget { id, hierarchy })
}

/// Lines are `number:controllers:path`.
fn hierarchy_from_text(text: &str, controllers: &[String]) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, names) = (fields.next()?, fields.next()?);
        let ours =
            !names.is_empty() && names.split(',').all(|name| controllers.iter().any(|known| known == name));
        ours.then(|| number.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchy_is_found_by_its_controllers() {
        let text = "5:cpu,cpuacct:/a\n3:name=systemd:/\n1:memory:/b\n0::/\n";
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect::<Vec<_>>();
        assert_eq!(hierarchy_from_text(text, &named(&["rw", "cpu", "cpuacct"])), Some(5));
        assert_eq!(hierarchy_from_text(text, &named(&["memory"])), Some(1));
        assert_eq!(hierarchy_from_text(text, &named(&["pids"])), None);
    }
}
