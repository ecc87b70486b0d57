// SPDX-License-Identifier: Apache-2.0
//! The memory of a process's control group, and its limit.
//!
//! Of the group that the process is in when it is met, and those above, the one with the lowest limit counts.
//! Formats: Documentation/admin-guide/cgroup-v2.rst, Documentation/admin-guide/cgroup-v1/memory.rst.

use std::path::{Path, PathBuf};

use wallprof_model::{CounterKind, CounterUnit};
use wallprof_probe::facts::cgroups::{CgroupMount, CgroupVersion, cgroup_mounts};
use wallprof_probe::facts::files::Files;

use super::Reading;
use super::text::TextFile;

/// At most this many groups above a process's own are read.
const MAX_DEPTH: usize = 32;
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
        let (folder, path, version) = nearest(pid, files)?;
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

/// The folder, path and version of the group with the lowest limit; of equal ones the innermost.
fn nearest(pid: u32, files: &impl Files) -> Option<(PathBuf, PathBuf, CgroupVersion)> {
    let text = files.read(Path::new(&format!("/proc/{pid}/cgroup"))).ok()?;
    let mut found: Option<(u64, PathBuf, PathBuf, CgroupVersion)> = None;
    for mount in cgroup_mounts(files) {
        let Some(own) = path_in(&mount, &text) else { continue };
        for path in own.ancestors().take(MAX_DEPTH) {
            let folder = mount.at.join(path.strip_prefix("/").unwrap_or(path));
            let limits = names(&mount.version).1.iter();
            let limit = limits.filter_map(|limit| bytes(&files.read(&folder.join(limit)).ok()?)).min();
            if let Some(limit) = limit.filter(|limit| found.as_ref().is_none_or(|known| *limit < known.0)) {
                found = Some((limit, folder, path.to_owned(), mount.version.clone()));
            }
        }
    }
    found.map(|(_, folder, path, version)| (folder, path, version))
}

/// A process's path in a hierarchy of the memory controller, by `/proc/PID/cgroup` (cgroups(7)). Never a path
/// that leads out of it.
fn path_in(mount: &CgroupMount, text: &str) -> Option<PathBuf> {
    let is_line = |line: &&str| match &mount.version {
        CgroupVersion::V2 => line.starts_with("0::"),
        CgroupVersion::V1(controllers) => {
            controllers.iter().any(|name| name == "memory")
                && line.split(':').nth(1).unwrap_or_default().split(',').any(|name| name == "memory")
        }
    };
    let path = PathBuf::from(text.lines().find(is_line)?.splitn(3, ':').nth(2)?);
    let leads_out = path.components().any(|part| part == std::path::Component::ParentDir);
    (!leads_out).then_some(path)
}

/// `None` for `max`, and for v1's number that means so.
fn bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < NO_LIMIT)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io;

    use super::*;

    struct Machine(BTreeMap<PathBuf, &'static str>);

    impl Files for Machine {
        fn read(&self, path: &Path) -> io::Result<String> {
            let text = self.0.get(path).ok_or(io::ErrorKind::NotFound)?;
            Ok((*text).to_owned())
        }

        fn list(&self, _: &Path) -> io::Result<Vec<String>> {
            Ok(Vec::new())
        }

        fn link(&self, _: &Path) -> io::Result<PathBuf> {
            Err(io::ErrorKind::NotFound.into())
        }

        fn exists(&self, path: &Path) -> bool {
            self.0.contains_key(path)
        }
    }

    fn found(files: &[(&str, &'static str)]) -> Option<(String, String)> {
        let machine = Machine(files.iter().map(|(path, text)| (PathBuf::from(path), *text)).collect());
        let (folder, path, _) = nearest(7, &machine)?;
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
