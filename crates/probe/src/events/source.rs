// SPDX-License-Identifier: Apache-2.0
//! The sources of events: sysfs for PMUs, tracefs for tracepoints.

use std::path::{Path, PathBuf};

use crate::facts::files::Files;

const DEVICES: &str = "/sys/bus/event_source/devices";

/// The directories where a tracefs is mounted; the second one is an automount.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// PMUs without samples: their events are set up with pointers, describe a trace, or count without
/// interrupting (msr).
const NOT_SAMPLING: [&str; 6] = ["breakpoint", "uprobe", "kprobe", "intel_pt", "intel_bts", "msr"];

/// The files that define the existing events.
#[derive(Clone, Copy)]
pub struct EventSources<'a> {
    pub files: &'a dyn Files,
    /// A mounted tracefs, [`find_tracefs`]'s or a private one; `None`: tracepoints give
    /// [`super::EventError::NeedsTracefs`].
    pub tracefs: Option<&'a Path>,
}

/// The first mounted tracefs, readable or not. `/sys/kernel/tracing` is an empty directory where it is not
/// mounted.
pub fn find_tracefs(files: &dyn Files) -> Option<PathBuf> {
    let mounts = files.read(Path::new("/proc/self/mounts")).unwrap_or_default();
    let mounted = |path: &Path| mounts.lines().any(|line| is_tracefs_at(line, path));
    let places = TRACEFS.iter().map(PathBuf::from);
    places.into_iter().find(|path| files.exists(&path.join("events")) || mounted(path))
}

/// The directory of a PMU in sysfs.
pub(super) fn pmu_directory(pmu: &str) -> PathBuf {
    Path::new(DEVICES).join(pmu)
}

/// The PMUs that may give samples.
pub(super) fn sampling_pmus(files: &dyn Files) -> Vec<String> {
    let pmus = files.list(Path::new(DEVICES)).unwrap_or_default();
    pmus.into_iter().filter(|pmu| can_sample(files, pmu)).collect()
}

/// False for a PMU that counts something that CPUs share (`cpumask`, as uncore PMUs have it) or that takes
/// pointers.
pub(super) fn can_sample(files: &dyn Files, pmu: &str) -> bool {
    !NOT_SAMPLING.contains(&pmu) && !files.exists(&pmu_directory(pmu).join("cpumask"))
}

/// Whether the CPUs count events: `cpu` on x86, `cpu_core` and `cpu_atom` on hybrid x86, `armv8_…` on ARM.
pub fn has_hardware_counters(files: &dyn Files) -> bool {
    let pmus = files.list(Path::new(DEVICES)).unwrap_or_default();
    pmus.iter().any(|pmu| matches!(pmu.as_str(), "cpu" | "cpu_core" | "cpu_atom") || pmu.starts_with("armv"))
}

fn is_tracefs_at(mount_line: &str, path: &Path) -> bool {
    let mut fields = mount_line.split(' ').skip(1);
    fields.next().map(Path::new) == Some(path) && fields.next() == Some("tracefs")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::files::fake::FakeFiles;

    #[test]
    fn tracefs_is_found_where_it_is_mounted() {
        assert_eq!(find_tracefs(&FakeFiles::default()), None);
        let debug = FakeFiles::new(&[("/sys/kernel/debug/tracing/events/enable", "0")]);
        assert_eq!(find_tracefs(&debug), Some("/sys/kernel/debug/tracing".into()));
        let closed =
            FakeFiles::new(&[("/proc/self/mounts", "tracefs /sys/kernel/tracing tracefs rw,nosuid 0 0\n")]);
        assert_eq!(find_tracefs(&closed), Some("/sys/kernel/tracing".into()));
    }

    #[test]
    fn hardware_counters_are_those_of_the_cpus() {
        let virtual_machine = FakeFiles::new(&[("/sys/bus/event_source/devices/msr/type", "9")]);
        assert!(!has_hardware_counters(&virtual_machine));
        for pmu in ["cpu", "cpu_core", "armv8_pmuv3_0"] {
            let path = format!("/sys/bus/event_source/devices/{pmu}/type");
            assert!(has_hardware_counters(&FakeFiles::new(&[(&path, "4")])), "{pmu}");
        }
    }
}
