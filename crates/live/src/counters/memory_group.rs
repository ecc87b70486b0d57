// SPDX-License-Identifier: Apache-2.0
//! The memory of a process's control group, and its limit.
//!
//! Of the group that the process is in when it is met, and those above, the one with the lowest limit counts.
//! Formats: Documentation/admin-guide/cgroup-v2.rst, Documentation/admin-guide/cgroup-v1/memory.rst.

use wallprof_model::{CounterKind, CounterUnit};
use wallprof_probe::facts::cgroups::CgroupVersion;
use wallprof_probe::facts::files::Files;

use super::Reading;
use super::groups::{Group, groups_of};
use super::text::TextFile;

/// cgroup v1 rounds the largest number down to pages for "no limit".
const NO_LIMIT: u64 = 1 << 62;

/// A group with a limit. Its open files stay its own.
pub struct MemoryGroup {
    used: TextFile,
    limits: Vec<TextFile>,
    /// `cgroup.memory /shop/api`
    used_name: String,
    limit_name: String,
}

/// The files of a hierarchy's version: the memory in use, and its limits.
fn names(version: &CgroupVersion) -> (&'static str, &'static [&'static str]) {
    match version {
        CgroupVersion::V2 => ("memory.current", &["memory.max", "memory.high"]),
        CgroupVersion::V1(_) => ("memory.usage_in_bytes", &["memory.limit_in_bytes"]),
    }
}

impl MemoryGroup {
    /// `None`: no group has a limit.
    pub fn of_process(pid: u32, files: &impl Files) -> Option<Self> {
        let Group { folder, path, version } = nearest(pid, files)?;
        let (used, limits) = names(&version);
        let path = path.to_string_lossy();
        Some(MemoryGroup {
            used: TextFile::open(folder.join(used))?,
            limits: limits.iter().filter_map(|limit| TextFile::open(folder.join(limit))).collect(),
            used_name: format!("cgroup.memory {path}"),
            limit_name: format!("cgroup.memory.limit {path}"),
        })
    }

    pub fn pass(&mut self, take: &mut dyn FnMut(Reading<'_>)) {
        let (kind, unit) = (CounterKind::Level, CounterUnit::Bytes);
        let used = self.used.read().ok().and_then(bytes);
        let limit = self.limits.iter_mut().filter_map(|limit| bytes(limit.read().ok()?)).min();
        for (name, value) in [(&self.used_name, used), (&self.limit_name, limit)] {
            if let Some(value) = value {
                take(Reading { name, kind, unit, value });
            }
        }
    }
}

/// The group with the lowest limit; of equal ones the innermost.
fn nearest(pid: u32, files: &impl Files) -> Option<Group> {
    let limit = |group: &Group| {
        let limits = names(&group.version).1.iter();
        limits.filter_map(|limit| bytes(&files.read(&group.folder.join(limit)).ok()?)).min()
    };
    let groups = groups_of(pid, "memory", files).into_iter();
    let limited = groups.filter_map(|group| Some((limit(&group)?, group)));
    limited.min_by_key(|(limit, _)| *limit).map(|(_, group)| group)
}

/// `None` for `max`, and for v1's number that means so.
fn bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < NO_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::super::groups::fake::Machine;
    use super::*;

    fn found(files: &[(&str, &'static str)]) -> Option<(String, String)> {
        let Group { folder, path, .. } = nearest(7, &Machine::new(files))?;
        Some((folder.to_string_lossy().into_owned(), path.to_string_lossy().into_owned()))
    }

    fn named(folder: &str, path: &str) -> Option<(String, String)> {
        Some((folder.to_owned(), path.to_owned()))
    }

    const V2: (&str, &str) = ("/proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
    const V1: (&str, &str) = ("/proc/self/mounts", "cgroup /cg/memory cgroup rw,memory 0 0\n");

    #[test]
    fn lowest_limit_up_to_the_root_counts() {
        let own = ("/proc/7/cgroup", "0::/shop/api\n");
        let (outer, inner) = ("/sys/fs/cgroup/shop/memory.max", "/sys/fs/cgroup/shop/api/memory.max");
        let api = named("/sys/fs/cgroup/shop/api", "/shop/api");
        let shop = named("/sys/fs/cgroup/shop", "/shop");
        assert_eq!(found(&[V2, own, (outer, "max\n"), (inner, "4096\n")]), api);
        assert_eq!(found(&[V2, own, (outer, "4096\n"), (inner, "8192\n")]), shop);
        assert_eq!(found(&[V2, own, (outer, "4096\n"), (inner, "4096\n")]), api);
        let high = ("/sys/fs/cgroup/shop/api/memory.high", "2048\n");
        assert_eq!(found(&[V2, own, (outer, "4096\n"), (inner, "max\n"), high]), api);
        assert_eq!(found(&[V2, own, (outer, "max\n"), (inner, "max\n")]), None);
    }

    #[test]
    fn group_of_the_memory_controller_counts() {
        let own = ("/proc/7/cgroup", "5:cpu:/fast\n4:memory:/shop\n0::/\n");
        let limit = "/cg/memory/shop/memory.limit_in_bytes";
        assert_eq!(found(&[V1, own, (limit, "25165824\n")]), named("/cg/memory/shop", "/shop"));
        assert_eq!(found(&[V1, own, (limit, "9223372036854771712\n")]), None);
        assert_eq!(found(&[V1, ("/proc/7/cgroup", "4:memory:/../shop\n"), (limit, "4096\n")]), None);
        assert_eq!(found(&[V1]), None);
    }
}
