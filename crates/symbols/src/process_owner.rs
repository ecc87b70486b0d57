// SPDX-License-Identifier: Apache-2.0
//! The user to whom a process is charged.

use wallprof_model::Owner;

/// The real user of a process: a program with the set-user-id bit is charged to its caller. The owner of
/// `/proc/PID` cannot be used: it is root for a process that is not dumpable, and any process can become that
/// (prctl(2)).
pub(crate) fn owner_of_process(pid: u32) -> Owner {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    let uid = status.ok().and_then(|status| real_uid_from_status(&status));
    uid.map_or(Owner::UNKNOWN, Owner::from_uid)
}

/// `Uid:` of proc_pid_status(5) has four ids: real, effective, saved set and file system. Returns the first.
fn real_uid_from_status(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_user_id_is_read() {
        let status = "Name:\tUid: 5\nUmask:\t0022\nUid:\t1000\t0\t0\t0\nGid:\t0\t0\t0\t0\n";
        assert_eq!(real_uid_from_status(status), Some(1000));
        assert_eq!(real_uid_from_status("Name:\tx\n"), None);
    }

    #[test]
    fn processes_that_have_ended_share_one_owner() {
        assert_eq!(owner_of_process(1), Owner::System);
        assert_eq!(owner_of_process(u32::MAX), Owner::UNKNOWN);
    }
}
