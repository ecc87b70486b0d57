// SPDX-License-Identifier: Apache-2.0
//! A private tracefs where none is mounted: a detached mount that no other process sees, and that ends with
//! its descriptor.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

/// A detached mount of tracefs (fsopen(2), 5.2+).
pub struct PrivateTracefs {
    root: OwnedFd,
}

const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;

impl PrivateTracefs {
    pub fn mount() -> io::Result<Self> {
        // SAFETY: the name is a NUL-terminated string.
        let context = owned(unsafe { libc::syscall(libc::SYS_fsopen, c"tracefs".as_ptr(), FSOPEN_CLOEXEC) })?;
        // SAFETY: this command takes no key and no value.
        let created = unsafe {
            libc::syscall(
                libc::SYS_fsconfig,
                context.as_raw_fd(),
                FSCONFIG_CMD_CREATE,
                std::ptr::null::<u8>(),
                std::ptr::null::<u8>(),
                0,
            )
        };
        if created < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: plain integers.
        let root =
            owned(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0) })?;
        Ok(PrivateTracefs { root })
    }

    /// The mount's root, valid while this lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.root.as_raw_fd()))
    }
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor from the kernel that has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_the_scheduler_s_events() {
        match PrivateTracefs::mount() {
            Ok(tracefs) => assert!(tracefs.path().join("events/sched/sched_switch/id").exists()),
            Err(error) => assert!(
                matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENODEV | libc::ENOSYS)),
                "{error}"
            ),
        }
    }
}
