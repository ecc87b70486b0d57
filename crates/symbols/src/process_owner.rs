//! Which user a process belongs to, as far as quotas go.

use wallprof_model::Owner;

/// The user who started the program: a program with the set-user-id bit is charged to its caller. The owner of
/// `/proc/PID` does not serve, because a process that is not dumpable shows root there, and each may choose that.
pub(crate) fn owner_of_process(pid: u32) -> Owner {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    let uid = status.ok().and_then(|status| real_uid_from_status(&status));
    uid.map_or(Owner::UNKNOWN, Owner::from_uid)
}

/// The first of the four ids of proc_pid_status(5): real, effective, saved, file system.
fn real_uid_from_status(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_user_is_charged() {
        let status = "Name:\tUid: 5\nUmask:\t0022\nUid:\t1000\t0\t0\t0\nGid:\t0\t0\t0\t0\n";
        assert_eq!(real_uid_from_status(status), Some(1000));
        assert_eq!(real_uid_from_status("Name:\tx\n"), None);
    }

    #[test]
    fn processes_have_owners_and_those_that_are_gone_share_one() {
        assert_eq!(owner_of_process(1), Owner::System);
        assert_eq!(owner_of_process(u32::MAX), Owner::UNKNOWN);
    }
}
