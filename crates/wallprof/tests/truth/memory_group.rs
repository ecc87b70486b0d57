// SPDX-License-Identifier: Apache-2.0
//! A control group with a memory limit, for the time of one command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Removed when dropped.
pub struct MemoryGroup {
    folder: PathBuf,
}

impl MemoryGroup {
    /// Version 1: below the group of this process. Version 2: below the root, which alone may have processes
    /// and groups with limits. `None` where neither can be made.
    pub fn limited_to(mib: u64) -> Option<Self> {
        let name = format!("wallprof-test-{}", std::process::id());
        own_group_of_version_1()
            .and_then(|parent| Self::make(&parent.join(&name), "memory.limit_in_bytes", mib))
            .or_else(|| Self::make(&root_of_version_2()?.join(&name), "memory.max", mib))
    }

    fn make(folder: &Path, limit: &str, mib: u64) -> Option<Self> {
        fs::create_dir(folder).ok()?;
        let group = MemoryGroup { folder: folder.to_owned() };
        fs::write(folder.join(limit), (mib << 20).to_string()).ok()?;
        Some(group)
    }

    /// Runs a command in the group, to its end.
    pub fn run(&self, command: &Command) -> Output {
        Command::new("sh")
            .args(["-c", r#"echo $$ > "$0" && exec "$@""#])
            .arg(self.folder.join("cgroup.procs"))
            .arg(command.get_program())
            .args(command.get_args())
            .output()
            .expect("sh runs")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

/// From a line like `4:memory:/the/group`.
fn own_group_of_version_1() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.split_once(":memory:"))?.1;
    Some(Path::new("/sys/fs/cgroup/memory").join(own.trim_start_matches('/')))
}

fn root_of_version_2() -> Option<&'static Path> {
    let root = Path::new("/sys/fs/cgroup");
    root.join("cgroup.controllers").exists().then_some(root)
}
