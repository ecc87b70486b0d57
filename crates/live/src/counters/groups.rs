// SPDX-License-Identifier: Apache-2.0
//! The control groups that count for a process: its own and those above.
//!
//! Formats: cgroups(7), Documentation/admin-guide/cgroup-v2.rst, Documentation/admin-guide/cgroup-v1.

use std::path::{Component, Path, PathBuf};

use wallprof_probe::facts::cgroups::{CgroupMount, CgroupVersion, cgroup_mounts};
use wallprof_probe::facts::files::Files;

/// At most this many groups of a hierarchy are read.
const MAX_DEPTH: usize = 32;

/// A group of a controller.
pub struct Group {
    pub folder: PathBuf,
    /// As `/proc/PID/cgroup` writes it: `/shop/api`.
    pub path: PathBuf,
    pub version: CgroupVersion,
}

/// The groups that a process is in, and those above, in each hierarchy that may have the controller; the
/// innermost first.
pub fn groups_of(pid: u32, controller: &str, files: &impl Files) -> Vec<Group> {
    let text = files.read(Path::new(&format!("/proc/{pid}/cgroup"))).unwrap_or_default();
    let mut groups = Vec::new();
    for mount in cgroup_mounts(files) {
        let Some(own) = path_in(&mount, controller, &text) else { continue };
        groups.extend(own.ancestors().take(MAX_DEPTH).map(|path| Group {
            folder: mount.at.join(path.strip_prefix("/").unwrap_or(path)),
            path: path.to_owned(),
            version: mount.version.clone(),
        }));
    }
    groups
}

/// A process's path in a hierarchy. Never a path that leads out of it.
fn path_in(mount: &CgroupMount, controller: &str, text: &str) -> Option<PathBuf> {
    let is_line = |line: &&str| match &mount.version {
        CgroupVersion::V2 => line.starts_with("0::"),
        CgroupVersion::V1(controllers) => {
            controllers.iter().any(|name| name == controller)
                && line.split(':').nth(1).unwrap_or_default().split(',').any(|name| name == controller)
        }
    };
    let path = PathBuf::from(text.lines().find(is_line)?.splitn(3, ':').nth(2)?);
    let leads_out = path.components().any(|part| part == Component::ParentDir);
    (!leads_out).then_some(path)
}

#[cfg(test)]
pub mod fake {
    use std::collections::BTreeMap;
    use std::io;

    use super::*;

    /// Files with their texts.
    pub struct Machine(BTreeMap<PathBuf, &'static str>);

    impl Machine {
        pub fn new(files: &[(&str, &'static str)]) -> Self {
            Machine(files.iter().map(|(path, text)| (PathBuf::from(path), *text)).collect())
        }
    }

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
}
