// SPDX-License-Identifier: Apache-2.0
//! CPU quotas of control groups: how long they throttled the groups of recorded processes.
//!
//! The kernel counts, per group, how often and how long it was throttled (`cpu.stat`). That is read once a
//! second for groups with a quota. The quotas of all groups above count as well. Formats:
//! Documentation/admin-guide/cgroup-v2.rst, Documentation/scheduler/sched-bwc.rst.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use wallprof_model::event::Throttled;
use wallprof_model::{Event, MonoNs};
use wallprof_probe::facts::cgroups::{CgroupMount, CgroupVersion, cgroup_mounts};
use wallprof_probe::facts::files::Files;

/// Processes whose groups are known. Beyond this, processes that have ended are forgotten.
const MAX_PROCESSES: usize = 4096;
/// Groups with a quota.
const MAX_GROUPS: usize = 256;
/// The longest interval between two looks at a process's groups, in looks.
const LONGEST_PAUSE: u32 = 32;
/// At most this many groups above a process's own are read.
const MAX_DEPTH: usize = 32;

/// A group with a quota, and its throttling as of the last look.
struct Group {
    version: CgroupVersion,
    /// Its path in the hierarchy, as users know it.
    name: String,
    processes: BTreeSet<u32>,
    last: Throttling,
}

/// How often and how long a group was throttled so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Throttling {
    count: u64,
    total_ns: u64,
}

/// The CPU time that a group may use in each period, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quota {
    quota_ns: u64,
    period_ns: u64,
}

pub struct Quotas<F> {
    files: F,
    mounts: Vec<CgroupMount>,
    /// By directory.
    groups: BTreeMap<PathBuf, Group>,
    /// With the number of the look before which each was added.
    processes: BTreeMap<u32, u32>,
    looks: u32,
    looked_at: MonoNs,
}

impl<F: Files> Quotas<F> {
    /// `now` is the time of the first look.
    pub fn new(files: F, now: MonoNs) -> Self {
        let mounts = cgroup_mounts(&files);
        let mounts = mounts.into_iter().filter(limits_cpu).collect();
        Quotas {
            files,
            mounts,
            groups: BTreeMap::new(),
            processes: BTreeMap::new(),
            looks: 0,
            looked_at: now,
        }
    }

    /// Adds a recorded process. Its groups are those that it is in now. They are looked up again, more and
    /// more rarely.
    pub fn meet(&mut self, pid: u32) {
        if self.processes.contains_key(&pid) {
            return;
        }
        if self.processes.len() >= MAX_PROCESSES {
            self.forget_gone();
        }
        if self.processes.len() < MAX_PROCESSES {
            self.processes.insert(pid, self.looks);
            self.find_groups(pid);
        }
    }

    fn find_groups(&mut self, pid: u32) {
        let Ok(text) = self.files.read(Path::new(&format!("/proc/{pid}/cgroup"))) else { return };
        for at in 0..self.mounts.len() {
            let mount = self.mounts[at].clone();
            if let Some(path) = path_in(&mount, &text) {
                self.add_groups(&mount, &path, pid);
            }
        }
    }

    /// Emits the throttling since the last look.
    pub fn flush(&mut self, now: MonoNs, emit: &mut dyn FnMut(Event)) {
        self.emit_groups(now, emit);
        self.looks += 1;
        let looks = self.looks;
        let is_due =
            |met: u32| (looks - met).is_power_of_two() || (looks - met).is_multiple_of(LONGEST_PAUSE);
        let due: Vec<u32> =
            self.processes.iter().filter(|(_, met)| is_due(**met)).map(|(&pid, _)| pid).collect();
        due.into_iter().for_each(|pid| self.find_groups(pid));
    }

    fn emit_groups(&mut self, now: MonoNs, emit: &mut dyn FnMut(Event)) {
        let from = std::mem::replace(&mut self.looked_at, now);
        for (folder, group) in &mut self.groups {
            let Some(seen) = throttling(&self.files, folder, &group.version) else { continue };
            let before = std::mem::replace(&mut group.last, seen);
            let total_ns = seen.total_ns.saturating_sub(before.total_ns);
            let Some(quota) = quota(&self.files, folder, &group.version).filter(|_| total_ns > 0) else {
                continue;
            };
            for &pid in &group.processes {
                emit(Event::Throttled(Throttled {
                    pid,
                    cgroup: group.name.clone(),
                    quota_ns: quota.quota_ns,
                    period_ns: quota.period_ns,
                    from,
                    to: now,
                    count: seen.count.saturating_sub(before.count),
                    total_ns,
                }));
            }
        }
    }

    /// Adds the group at `path` of a hierarchy and the groups above it that have a quota.
    fn add_groups(&mut self, mount: &CgroupMount, path: &Path, pid: u32) {
        for path in path.ancestors().take(MAX_DEPTH) {
            let folder = mount.at.join(path.strip_prefix("/").unwrap_or(path));
            if let Some(group) = self.groups.get_mut(&folder) {
                group.processes.insert(pid);
            } else if self.groups.len() < MAX_GROUPS
                && quota(&self.files, &folder, &mount.version).is_some()
                && let Some(last) = throttling(&self.files, &folder, &mount.version)
            {
                let name = path.to_string_lossy().into_owned();
                let (version, processes) = (mount.version.clone(), BTreeSet::from([pid]));
                self.groups.insert(folder, Group { version, name, processes, last });
            }
        }
    }

    fn forget_gone(&mut self) {
        let files = &self.files;
        self.processes.retain(|pid, _| files.exists(Path::new(&format!("/proc/{pid}"))));
        let alive = &self.processes;
        for group in self.groups.values_mut() {
            group.processes.retain(|pid| alive.contains_key(pid));
        }
        self.groups.retain(|_, group| !group.processes.is_empty());
    }
}

fn limits_cpu(mount: &CgroupMount) -> bool {
    match &mount.version {
        CgroupVersion::V2 => true,
        CgroupVersion::V1(controllers) => controllers.iter().any(|name| name == "cpu"),
    }
}

/// A process's path in a hierarchy, by `/proc/PID/cgroup` (cgroups(7)). Never a path that leads out of it.
fn path_in(mount: &CgroupMount, text: &str) -> Option<PathBuf> {
    let of_mount = |line: &&str| {
        let controllers = line.split(':').nth(1).unwrap_or_default();
        match &mount.version {
            CgroupVersion::V2 => line.starts_with("0::"),
            CgroupVersion::V1(_) => controllers.split(',').any(|name| name == "cpu"),
        }
    };
    let path = PathBuf::from(text.lines().find(of_mount)?.splitn(3, ':').nth(2)?);
    let leads_out = path.components().any(|part| part == std::path::Component::ParentDir);
    (!leads_out).then_some(path)
}

/// `None`: without a quota.
fn quota(files: &impl Files, folder: &Path, version: &CgroupVersion) -> Option<Quota> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let (quota_us, period_us) = match version {
        CgroupVersion::V2 => {
            let text = files.read(&folder.join("cpu.max")).ok()?;
            let (quota, period) = text.trim().split_once(' ')?;
            (number(quota)?, number(period)?)
        }
        CgroupVersion::V1(_) => {
            let read = |name: &str| number(&files.read(&folder.join(name)).ok()?);
            (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
        }
    };
    Some(Quota { quota_ns: quota_us.saturating_mul(1_000), period_ns: period_us.saturating_mul(1_000) })
}

fn throttling(files: &impl Files, folder: &Path, version: &CgroupVersion) -> Option<Throttling> {
    let text = files.read(&folder.join("cpu.stat")).ok()?;
    let field = |wanted: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(wanted)?.strip_prefix(' '));
        value?.trim().parse::<u64>().ok()
    };
    let total_ns = match version {
        CgroupVersion::V2 => field("throttled_usec")?.saturating_mul(1_000),
        CgroupVersion::V1(_) => field("throttled_time")?,
    };
    Some(Throttling { count: field("nr_throttled")?, total_ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::io;
    use std::rc::Rc;

    /// Files that a test changes between two looks.
    #[derive(Clone, Default)]
    struct Machine(Rc<RefCell<BTreeMap<PathBuf, String>>>);

    impl Machine {
        fn put(&self, path: &str, text: &str) -> &Self {
            self.0.borrow_mut().insert(path.into(), text.into());
            self
        }
    }

    impl Files for Machine {
        fn read(&self, path: &Path) -> io::Result<String> {
            self.0.borrow().get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
        }
        fn list(&self, _: &Path) -> io::Result<Vec<String>> {
            Ok(Vec::new())
        }
        fn link(&self, _: &Path) -> io::Result<PathBuf> {
            Err(io::ErrorKind::NotFound.into())
        }
        fn exists(&self, path: &Path) -> bool {
            self.0.borrow().contains_key(path)
        }
    }

    const START: MonoNs = MonoNs(5);

    fn throttled(quotas: &mut Quotas<Machine>, now: u64) -> Vec<Throttled> {
        let mut events = Vec::new();
        quotas.flush(MonoNs(now), &mut |event| match event {
            Event::Throttled(throttled) => events.push(throttled),
            event => panic!("{event:?}"),
        });
        events
    }

    fn v2() -> Machine {
        let machine = Machine::default();
        machine
            .put("/proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
            .put("/proc/7/cgroup", "0::/shop/api\n")
            .put("/proc/8/cgroup", "0::/other\n")
            .put("/sys/fs/cgroup/shop/cpu.max", "20000 100000\n")
            .put("/sys/fs/cgroup/shop/cpu.stat", "usage_usec 5\nnr_throttled 3\nthrottled_usec 100\n")
            .put("/sys/fs/cgroup/shop/api/cpu.max", "max 100000\n")
            .put("/sys/fs/cgroup/shop/api/cpu.stat", "nr_throttled 0\nthrottled_usec 0\n")
            .put("/sys/fs/cgroup/other/cpu.max", "max 100000\n");
        machine
    }

    #[test]
    fn throttling_is_emitted_for_the_group_with_the_quota() {
        let machine = v2();
        let mut quotas = Quotas::new(machine.clone(), START);
        [7, 8, 9].into_iter().for_each(|pid| quotas.meet(pid));
        assert_eq!(throttled(&mut quotas, 10), [], "nothing since the first look");
        let stat = "nr_throttled 5\nthrottled_usec 150100\n";
        machine.put("/sys/fs/cgroup/shop/cpu.stat", stat);
        let expected = Throttled {
            pid: 7,
            cgroup: "/shop".into(),
            quota_ns: 20_000_000,
            period_ns: 100_000_000,
            from: MonoNs(10),
            to: MonoNs(20),
            count: 2,
            total_ns: 150_000_000,
        };
        assert_eq!(throttled(&mut quotas, 20), [expected]);
        assert_eq!(throttled(&mut quotas, 30), []);
    }

    #[test]
    fn files_of_cgroup_v1_are_read() {
        let machine = Machine::default();
        machine
            .put(
                "/proc/self/mounts",
                "cgroup /c/cpu cgroup rw,cpu,cpuacct 0 0\ncgroup /c/mem cgroup rw,memory 0 0\n",
            )
            .put("/proc/7/cgroup", "5:memory:/deep/er\n1:cpu,cpuacct:/slow\n0::/\n")
            .put("/c/cpu/slow/cpu.cfs_quota_us", "20000\n")
            .put("/c/cpu/slow/cpu.cfs_period_us", "100000\n")
            .put("/c/cpu/cpu.cfs_quota_us", "-1\n")
            .put("/c/cpu/slow/cpu.stat", "nr_periods 9\nnr_throttled 0\nthrottled_time 0\n");
        let mut quotas = Quotas::new(machine.clone(), START);
        quotas.meet(7);
        machine.put("/c/cpu/slow/cpu.stat", "nr_periods 9\nnr_throttled 2\nthrottled_time 77\n");
        let events = throttled(&mut quotas, 20);
        assert_eq!((events.len(), events[0].total_ns, events[0].cgroup.as_str()), (1, 77, "/slow"));
        assert_eq!((events[0].from, events[0].to), (START, MonoNs(20)), "not since the machine was started");
    }

    #[test]
    fn process_that_moves_to_another_group_is_found_again() {
        let machine = v2();
        let mut quotas = Quotas::new(machine.clone(), START);
        quotas.meet(8);
        assert!(quotas.groups.is_empty());
        machine.put("/proc/8/cgroup", "0::/shop/api\n");
        assert_eq!(throttled(&mut quotas, 10), []);
        machine.put("/sys/fs/cgroup/shop/cpu.stat", "nr_throttled 4\nthrottled_usec 200\n");
        assert_eq!(throttled(&mut quotas, 20).len(), 1);
    }

    #[test]
    fn damaged_files_have_no_quota() {
        let machine = v2();
        machine.put("/proc/7/cgroup", "0::/../../etc\n").put("/proc/8/cgroup", "0:\nx\n");
        let mut quotas = Quotas::new(machine.clone(), START);
        [7, 8].into_iter().for_each(|pid| quotas.meet(pid));
        assert!(quotas.groups.is_empty());
        for text in ["", "20000", "x y", "max", "-1 5"] {
            machine.put("/q/cpu.max", text);
            assert_eq!(quota(&machine, Path::new("/q"), &CgroupVersion::V2), None, "{text:?}");
        }
    }

    #[test]
    fn ended_processes_are_forgotten_at_the_limit() {
        let machine = v2();
        let mut quotas = Quotas::new(machine.clone(), START);
        quotas.meet(7);
        (100..100 + MAX_PROCESSES as u32).for_each(|pid| quotas.meet(pid));
        assert!(quotas.processes.len() <= MAX_PROCESSES);
        assert!(quotas.groups.is_empty(), "process 7 has no directory here: it has ended");
    }
}
