// SPDX-License-Identifier: Apache-2.0
//! The place of a process's perf map: `perf-PID.map` in its own `/tmp`, by its own pid.
//!
//! The folder is opened while the process lives and stays open, because many compilers write the map when the
//! process ends. The process is not trusted: no link is followed, nothing but a regular file of its own user
//! is read, and a map left by an earlier process of the same pid is not taken for its own.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, openat, openat2, statat};

use crate::living_thread::living_thread;

/// Clock ticks of `/proc/PID/stat` a second, on every architecture wallprof knows.
const USER_HZ: u64 = 100;
/// Boot time and start time are both rounded down.
const SLACK_SECONDS: u64 = 2;

/// The folder in which a process's map is or will be.
pub(super) struct Home {
    tmp: OwnedFd,
    /// The pid as the process sees it.
    own_pid: u32,
    user: u32,
    /// Seconds since the epoch.
    started: u64,
}

impl Home {
    /// `None` for a process that is gone, or may not be looked at.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, format!("/proc/{}/root", living_thread(pid)), folder, Mode::empty()).ok()?;
        // A link at /tmp leads where it does for the process, and never out of its root.
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let tmp = openat2(root, "tmp", folder, Mode::empty(), inside).ok()?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let (own_pid, user) = (own_pid_from_status(&status).unwrap_or(pid), user_from_status(&status)?);
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let booted = booted_from_stat(&std::fs::read_to_string("/proc/stat").ok()?)?;
        let started = booted.saturating_add(start_ticks_from_stat(&stat)? / USER_HZ);
        Some(Home { tmp, own_pid, user, started })
    }

    /// The map, once it is there.
    pub(super) fn open_map(&self) -> Option<File> {
        let name = format!("perf-{}.map", self.own_pid);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        // Checked before it is opened: opening a device can have side effects.
        let found = statat(&self.tmp, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return None;
        }
        let file = File::from(openat(&self.tmp, &name, flags, Mode::empty()).ok()?);
        let metadata = file.metadata().ok()?;
        let is_own = metadata.is_file() && [0, self.user].contains(&metadata.uid());
        let modified = u64::try_from(metadata.mtime()).unwrap_or(0);
        let is_recent = modified.saturating_add(SLACK_SECONDS) >= self.started;
        (is_own && is_recent).then_some(file)
    }
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

/// The last of the pids that a process has in its nested namespaces is its own.
fn own_pid_from_status(status: &str) -> Option<u32> {
    field(status, "NSpid:")?.split_whitespace().last()?.parse().ok()
}

/// Files are created with the effective one: the second of four.
fn user_from_status(status: &str) -> Option<u32> {
    field(status, "Uid:")?.split_whitespace().nth(1)?.parse().ok()
}

fn booted_from_stat(stat: &str) -> Option<u64> {
    field(stat, "btime ")?.trim().parse().ok()
}

/// Field 22 of `/proc/PID/stat`, counted behind the name, which may contain anything.
fn start_ticks_from_stat(stat: &[u8]) -> Option<u64> {
    let after_name = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(&stat[after_name + 1..]).ok()?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::process::Command;

    const OWN_PID: u32 = 77;

    fn home_at(folder: &Path, user: u32, started: u64) -> Home {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let tmp = openat(CWD, folder, flags, Mode::empty()).expect("opened");
        Home { tmp, own_pid: OWN_PID, user, started }
    }

    fn own_user() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn a_regular_file_of_the_same_user_is_a_map() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let home = home_at(folder.path(), own_user(), 0);
        assert!(home.open_map().is_none(), "not there yet");
        std::fs::write(folder.path().join("perf-77.map"), "").expect("written");
        assert!(home.open_map().is_some());
        let far_future = home_at(folder.path(), own_user(), u64::MAX);
        assert!(far_future.open_map().is_none(), "older than the process");
    }

    #[test]
    fn a_file_of_another_user_is_not_read() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = folder.path().join("perf-77.map");
        std::fs::write(&path, "").expect("written");
        if own_user() != 0 {
            assert!(home_at(folder.path(), own_user() + 1, 0).open_map().is_none());
            return;
        }
        std::os::unix::fs::chown(&path, Some(4242), None).expect("root may give files away");
        assert!(home_at(folder.path(), 4243, 0).open_map().is_none());
        assert!(home_at(folder.path(), 4242, 0).open_map().is_some());
    }

    #[test]
    fn links_and_fifos_are_not_opened() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = folder.path().join("perf-77.map");
        let home = home_at(folder.path(), own_user(), 0);
        symlink("/etc/passwd", &path).expect("linked");
        assert!(home.open_map().is_none());
        std::fs::remove_file(&path).expect("removed");
        assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        assert!(home.open_map().is_none());
    }

    #[test]
    fn a_process_is_read_from_proc() {
        let home = Home::of(std::process::id()).expect("the own process");
        assert_eq!((home.own_pid, home.user), (std::process::id(), own_user()));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        assert!(home.started <= now.as_secs() + SLACK_SECONDS);
        assert!(Home::of(u32::MAX).is_none());
    }

    #[test]
    fn names_with_spaces_and_nested_namespaces_are_parsed() {
        let stat = b"7 (a) b (1 2 3)) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20\n";
        assert_eq!(start_ticks_from_stat(stat), Some(4711));
        assert_eq!(start_ticks_from_stat(b"7 (a S 1"), None);
        let status = "Name:\tx\nUid:\t0\t1000\t0\t0\nNSpid:\t4242\t17\t1\n";
        assert_eq!((own_pid_from_status(status), user_from_status(status)), (Some(1), Some(1000)));
        assert_eq!(booted_from_stat("cpu 1\nbtime 1700000000\n"), Some(1_700_000_000));
    }
}
