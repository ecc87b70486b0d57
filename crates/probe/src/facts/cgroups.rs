// SPDX-License-Identifier: Apache-2.0
//! The mount points of the cgroup hierarchies, and the directory that a cgroup's path refers to.

use std::path::{Path, PathBuf};

use super::files::Files;

/// One mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupMount {
    pub at: PathBuf,
    pub version: CgroupVersion,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    V2,
    /// The controllers of the hierarchy, or `name=…` of one without any.
    V1(Vec<String>),
}

/// A cgroup as its directory in a mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    pub directory: PathBuf,
    pub version: CgroupVersion,
}

/// Mount options that are not a v1 controller.
const OPTIONS: [&str; 14] = [
    "rw",
    "ro",
    "nosuid",
    "nodev",
    "noexec",
    "relatime",
    "noatime",
    "strictatime",
    "xattr",
    "clone_children",
    "nsdelegate",
    "noprefix",
    "none",
    "favordynmods",
];

/// The mounted hierarchies, v2 first.
pub fn cgroup_mounts(files: &dyn Files) -> Vec<CgroupMount> {
    let text = files.read(Path::new("/proc/self/mounts")).unwrap_or_default();
    let mut mounts: Vec<_> = text.lines().filter_map(mount_from_line).collect();
    mounts.sort_by_key(|mount| mount.version != CgroupVersion::V2);
    mounts
}

/// The directory of `path`: a directory of a mounted hierarchy, or a path inside one as `/proc/PID/cgroup`
/// prints it. v2 is preferred where both have it.
pub fn find_cgroup(path: &Path, files: &dyn Files) -> Option<Cgroup> {
    let mounts = cgroup_mounts(files);
    let plain = !path.components().any(|part| part == std::path::Component::ParentDir);
    let is_cgroup = |directory: &Path| plain && files.exists(&directory.join("cgroup.procs"));
    // The longest mount point wins: a v2 hierarchy may be mounted below a v1 one.
    let holding = mounts.iter().filter(|mount| path.starts_with(&mount.at));
    if let Some(mount) = holding.max_by_key(|mount| mount.at.as_os_str().len()) {
        let cgroup = Cgroup { directory: path.to_path_buf(), version: mount.version.clone() };
        return is_cgroup(path).then_some(cgroup);
    }
    let inside = path.strip_prefix("/").unwrap_or(path);
    mounts.into_iter().find_map(|mount| {
        let directory = mount.at.join(inside);
        is_cgroup(&directory).then_some(Cgroup { directory, version: mount.version })
    })
}

fn mount_from_line(line: &str) -> Option<CgroupMount> {
    let mut fields = line.split(' ').skip(1);
    let (at, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
    let version = match kind {
        "cgroup2" => CgroupVersion::V2,
        "cgroup" => CgroupVersion::V1(controllers(options)),
        _ => return None,
    };
    Some(CgroupMount { at: PathBuf::from(unescape(at)), version })
}

fn controllers(options: &str) -> Vec<String> {
    let is_option = |option: &str| {
        OPTIONS.contains(&option) || option.starts_with("release_agent=") || option.contains("seclabel")
    };
    options.split(',').filter(|option| !is_option(option)).map(String::from).collect()
}

/// Blanks in mount points are written `\040` (fstab(5)).
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::super::files::fake::FakeFiles;
    use super::*;

    const HYBRID: &str = "tmpfs /sys/fs/cgroup tmpfs rw,relatime,mode=755 0 0\n\
        cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu,cpuacct 0 0\n\
        cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";

    fn hybrid() -> FakeFiles {
        FakeFiles::new(&[
            ("/proc/self/mounts", HYBRID),
            ("/sys/fs/cgroup/cpu/service/cgroup.procs", ""),
            ("/sys/fs/cgroup/cpu/both/cgroup.procs", ""),
            ("/sys/fs/cgroup/unified/both/cgroup.procs", ""),
        ])
    }

    fn directory(path: &str) -> Option<String> {
        find_cgroup(Path::new(path), &hybrid()).map(|cgroup| cgroup.directory.to_string_lossy().into_owned())
    }

    #[test]
    fn mounts_of_a_hybrid_system() {
        let mounts = cgroup_mounts(&hybrid());
        assert_eq!(mounts.len(), 3);
        assert_eq!(mounts[0].version, CgroupVersion::V2);
        assert_eq!(mounts[1].version, CgroupVersion::V1(vec!["cpu".into(), "cpuacct".into()]));
        assert_eq!(mounts[2].version, CgroupVersion::V1(vec!["name=systemd".into()]));
    }

    #[test]
    fn a_cgroup_is_found_by_its_directory_and_by_its_own_path() {
        let v1 = "/sys/fs/cgroup/cpu/service";
        assert_eq!(directory(v1).as_deref(), Some(v1));
        assert_eq!(directory("/service").as_deref(), Some(v1));
        assert_eq!(directory("service").as_deref(), Some(v1));
        assert_eq!(directory("/both").as_deref(), Some("/sys/fs/cgroup/unified/both"));
    }

    #[test]
    fn other_directories_are_not_cgroups() {
        for path in
            ["/nothing", "/sys/fs/cgroup/cpu/nothing", "/proc/self", "", "/sys/fs/cgroup", "both/../both"]
        {
            assert_eq!(directory(path), None, "{path}");
        }
    }

    #[test]
    fn mount_points_with_blanks() {
        let mount = mount_from_line(r"cgroup2 /my\040groups cgroup2 rw 0 0").unwrap();
        assert_eq!(mount.at, Path::new("/my groups"));
        assert_eq!(mount_from_line("cgroup2"), None);
    }
}
