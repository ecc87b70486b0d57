// SPDX-License-Identifier: Apache-2.0
//! What a sleep in a system call, or in a kernel function, waits for: the one table of reasons.
//!
//! The kernel side applies it (`bpf/reason.h`), and reads arguments where the class requires that.

use wallprof_model::Reason;

use crate::bpf::constants as c;

/// A system call's class: a [`Reason`], or one of the kernel side's classes that need a closer look.
enum Class {
    Is(Reason),
    Futex,
    File,
    Fcntl,
    ChildIfUninterruptible,
    DiskIfUninterruptible,
    MemoryIfUninterruptible,
    Completion,
}

impl Class {
    fn code(&self) -> u8 {
        let code = match self {
            Class::Is(reason) => return reason.code(),
            Class::Futex => c::CLASS_FUTEX,
            Class::File => c::CLASS_FILE,
            Class::Fcntl => c::CLASS_FCNTL,
            Class::ChildIfUninterruptible => c::CLASS_CHILD_IF_D,
            Class::DiskIfUninterruptible => c::CLASS_DISK_IF_D,
            Class::MemoryIfUninterruptible => c::CLASS_MEMORY_IF_D,
            Class::Completion => c::CLASS_COMPLETION,
        };
        code as u8
    }
}

use Class::{
    ChildIfUninterruptible, Completion, DiskIfUninterruptible, Fcntl, File, Futex, Is,
    MemoryIfUninterruptible,
};

/// Number, name and class of the x86_64 system calls that sleep (arch/x86/entry/syscalls/syscall_64.tbl).
/// Sleeps in others have the reason of the kernel function, or `other`.
const SYSCALLS: &[(u16, &str, Class)] = &[
    (0, "read", File),
    (1, "write", File),
    (2, "open", DiskIfUninterruptible),
    (7, "poll", Is(Reason::Poll)),
    (9, "mmap", MemoryIfUninterruptible),
    (10, "mprotect", MemoryIfUninterruptible),
    (11, "munmap", MemoryIfUninterruptible),
    (12, "brk", MemoryIfUninterruptible),
    (16, "ioctl", Is(Reason::Other)),
    (17, "pread64", File),
    (18, "pwrite64", File),
    (19, "readv", File),
    (20, "writev", File),
    (23, "select", Is(Reason::Poll)),
    (25, "mremap", MemoryIfUninterruptible),
    (26, "msync", DiskIfUninterruptible),
    (28, "madvise", MemoryIfUninterruptible),
    (34, "pause", Is(Reason::Wait)),
    (35, "nanosleep", Is(Reason::Sleep)),
    (40, "sendfile", File),
    (42, "connect", File),
    (43, "accept", File),
    (44, "sendto", File),
    (45, "recvfrom", File),
    (46, "sendmsg", File),
    (47, "recvmsg", File),
    (56, "clone", ChildIfUninterruptible),
    (58, "vfork", ChildIfUninterruptible),
    (61, "wait4", Is(Reason::Child)),
    (65, "semop", Is(Reason::Ipc)),
    (69, "msgsnd", Is(Reason::Ipc)),
    (70, "msgrcv", Is(Reason::Ipc)),
    (72, "fcntl", Fcntl),
    (73, "flock", Is(Reason::Lock)),
    (74, "fsync", DiskIfUninterruptible),
    (75, "fdatasync", DiskIfUninterruptible),
    (76, "truncate", DiskIfUninterruptible),
    (77, "ftruncate", DiskIfUninterruptible),
    (78, "getdents", DiskIfUninterruptible),
    (82, "rename", DiskIfUninterruptible),
    (83, "mkdir", DiskIfUninterruptible),
    (84, "rmdir", DiskIfUninterruptible),
    (87, "unlink", DiskIfUninterruptible),
    (128, "rt_sigtimedwait", Is(Reason::Wait)),
    (130, "rt_sigsuspend", Is(Reason::Wait)),
    (149, "mlock", MemoryIfUninterruptible),
    (151, "mlockall", MemoryIfUninterruptible),
    (162, "sync", DiskIfUninterruptible),
    (202, "futex", Futex),
    (208, "io_getevents", Is(Reason::Disk)),
    (217, "getdents64", DiskIfUninterruptible),
    (219, "restart_syscall", Is(Reason::Sleep)),
    (220, "semtimedop", Is(Reason::Ipc)),
    (230, "clock_nanosleep", Is(Reason::Sleep)),
    (232, "epoll_wait", Is(Reason::Poll)),
    (242, "mq_timedsend", Is(Reason::Ipc)),
    (243, "mq_timedreceive", Is(Reason::Ipc)),
    (247, "waitid", Is(Reason::Child)),
    (257, "openat", DiskIfUninterruptible),
    (262, "newfstatat", DiskIfUninterruptible),
    (263, "unlinkat", DiskIfUninterruptible),
    (264, "renameat", DiskIfUninterruptible),
    (270, "pselect6", Is(Reason::Poll)),
    (271, "ppoll", Is(Reason::Poll)),
    (275, "splice", File),
    (277, "sync_file_range", DiskIfUninterruptible),
    (281, "epoll_pwait", Is(Reason::Poll)),
    (285, "fallocate", DiskIfUninterruptible),
    (288, "accept4", File),
    (295, "preadv", File),
    (296, "pwritev", File),
    (299, "recvmmsg", File),
    (306, "syncfs", DiskIfUninterruptible),
    (307, "sendmmsg", File),
    (316, "renameat2", DiskIfUninterruptible),
    (325, "mlock2", MemoryIfUninterruptible),
    (327, "preadv2", File),
    (328, "pwritev2", File),
    (333, "io_pgetevents", Is(Reason::Disk)),
    (426, "io_uring_enter", Completion),
    (435, "clone3", ChildIfUninterruptible),
    (441, "epoll_pwait2", Is(Reason::Poll)),
    (449, "futex_waitv", Is(Reason::Wait)),
    (455, "futex_wait", Is(Reason::Wait)),
];

/// Names of further system calls that a stall can be in.
const OTHER_SYSCALLS: &[(u16, &str)] = &[
    (3, "close"),
    (4, "stat"),
    (6, "lstat"),
    (13, "rt_sigaction"),
    (14, "rt_sigprocmask"),
    (15, "rt_sigreturn"),
    (21, "access"),
    (24, "sched_yield"),
    (39, "getpid"),
    (57, "fork"),
    (59, "execve"),
    (60, "exit"),
    (62, "kill"),
    (80, "chdir"),
    (89, "readlink"),
    (137, "statfs"),
    (157, "prctl"),
    (165, "mount"),
    (186, "gettid"),
    (200, "tkill"),
    (203, "sched_setaffinity"),
    (228, "clock_gettime"),
    (231, "exit_group"),
    (233, "epoll_ctl"),
    (234, "tgkill"),
    (269, "faccessat"),
    (298, "perf_event_open"),
    (318, "getrandom"),
    (319, "memfd_create"),
    (321, "bpf"),
    (322, "execveat"),
    (324, "membarrier"),
    (332, "statx"),
    (439, "faccessat2"),
];

/// Kernel functions whose sleepers wait for something that the system call does not show: uninterruptible ones,
/// and all in calls that wait for a disk, for memory or for a child if they are uninterruptible.
/// Names end in `*` where a suffix may follow. The innermost one counts, so a lock inside a fault is a lock.
pub const KERNEL_SITES: [(&str, Reason); 43] = [
    ("__mutex_lock*", Reason::Lock),
    ("mutex_lock*", Reason::Lock),
    ("rwsem_down_*", Reason::Lock),
    ("__down*", Reason::Lock),
    ("down_read*", Reason::Lock),
    ("down_write*", Reason::Lock),
    ("percpu_rwsem_wait", Reason::Lock),
    ("__percpu_down_read", Reason::Lock),
    ("rt_mutex_slowlock*", Reason::Lock),
    ("jbd2_log_wait_commit", Reason::Disk),
    ("wait_transaction_locked", Reason::Disk),
    ("folio_wait_bit_common", Reason::Disk),
    ("folio_wait_writeback", Reason::Disk),
    ("bit_wait_io", Reason::Disk),
    ("wb_wait_for_completion", Reason::Disk),
    ("balance_dirty_pages*", Reason::Disk),
    ("submit_bio_wait", Reason::Disk),
    ("blk_mq_get_tag", Reason::Disk),
    ("throttle_direct_reclaim", Reason::Memory),
    ("reclaim_throttle", Reason::Memory),
    ("shrink_node", Reason::Memory),
    ("try_to_free_pages", Reason::Memory),
    ("handle_userfault", Reason::Memory),
    ("wait_for_vfork_done", Reason::Child),
    ("kernel_clone", Reason::Child),
    // The one that waits for readers sleeps in this function itself.
    ("percpu_down_write", Reason::Lock),
    // A FIFO is opened.
    ("wait_for_partner", Reason::Pipe),
    // Another process decides about the call, or serves it.
    ("fanotify_handle_event", Reason::Other),
    ("fanotify_get_response", Reason::Other),
    ("seccomp_do_user_notification", Reason::Other),
    ("__seccomp_filter", Reason::Other),
    ("request_wait_answer", Reason::Other),
    ("__fuse_request_send", Reason::Other),
    ("__fuse_simple_request", Reason::Other),
    ("fuse_simple_request", Reason::Other),
    ("autofs_wait", Reason::Other),
    // RCU grace periods. Until 6.9 synchronize_rcu() slept in __wait_rcu_gp(), which is inlined at times.
    ("__wait_rcu_gp", Reason::Other),
    ("synchronize_rcu*", Reason::Other),
    ("synchronize_srcu*", Reason::Other),
    ("__synchronize_srcu", Reason::Other),
    ("rcu_barrier*", Reason::Other),
    ("rcu_sync_enter", Reason::Other),
    ("exp_funnel_lock", Reason::Other),
];

/// The functions that leave a task's stack for the interrupt stack to run softirqs on the task's behalf.
/// Compilers may inline the first into the second.
pub const TASK_SOFTIRQS: &[&str] = &["do_softirq*", "__local_bh_enable_ip"];

/// The functions that write the saved user registers for a signal's handler, and for its return
/// (arch/x86/kernel/signal.c). Compilers may inline some into others.
pub const REGISTER_WRITERS: &[&str] = &[
    "arch_do_signal_or_restart",
    "handle_signal*",
    "setup_rt_frame*",
    "x64_setup_rt_frame",
    "restore_sigcontext*",
    "__do_sys_rt_sigreturn",
    "__x64_sys_rt_sigreturn",
];

/// The class of every system call number, for the kernel side.
pub fn syscall_classes() -> [u8; c::MAX_SYSCALLS as usize] {
    let mut classes = [c::CLASS_NONE as u8; c::MAX_SYSCALLS as usize];
    for (number, _, class) in SYSCALLS {
        classes[usize::from(*number)] = class.code();
    }
    classes
}

/// The name of a system call, or its number where the tables have none.
pub fn syscall_name(number: i32) -> Option<String> {
    let named = listed_syscall_name(number).map(str::to_owned);
    named.or_else(|| Some(format!("syscall_{}", u16::try_from(number).ok()?)))
}

/// The name of a system call that the tables have.
pub fn listed_syscall_name(number: i32) -> Option<&'static str> {
    let number = u16::try_from(number).ok()?;
    let classed = SYSCALLS.binary_search_by_key(&number, |(at, ..)| *at).map(|at| SYSCALLS[at].1);
    let other = || OTHER_SYSCALLS.binary_search_by_key(&number, |(at, _)| *at).map(|at| OTHER_SYSCALLS[at].1);
    classed.or_else(|_| other()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_and_disjoint() {
        assert!(SYSCALLS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(OTHER_SYSCALLS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(OTHER_SYSCALLS.iter().all(|(number, _)| SYSCALLS.iter().all(|(at, ..)| at != number)));
        assert!(KERNEL_SITES.len() <= c::MAX_SITES as usize);
    }

    /// Functions of 6.1 to 6.18.
    #[test]
    fn grace_periods_and_other_programs_are_no_disk() {
        let reason = |function: &str| {
            let is_it = |pattern: &str| match pattern.strip_suffix('*') {
                Some(beginning) => function.starts_with(beginning),
                None => function == pattern,
            };
            KERNEL_SITES.iter().find(|(pattern, _)| is_it(pattern)).map(|(_, reason)| *reason)
        };
        for function in [
            "__wait_rcu_gp",
            "synchronize_rcu",
            "synchronize_rcu_normal.part.0",
            "synchronize_rcu_expedited",
            "__synchronize_srcu",
            "rcu_barrier",
            "rcu_sync_enter",
            "fanotify_handle_event",
            "seccomp_do_user_notification",
            "request_wait_answer",
        ] {
            assert_eq!(reason(function), Some(Reason::Other), "{function}");
        }
        assert_eq!(reason("percpu_down_write"), Some(Reason::Lock));
        assert_eq!(reason("vfs_write"), None);
    }

    #[test]
    fn numbers_of_the_kernel_side_are_those_of_the_table() {
        let header = include_str!("../../../bpf/include/syscalls.h");
        let numbers = header.lines().filter_map(|line| line.strip_prefix("#define NR_")?.split_once(' '));
        let numbers: Vec<(String, i32)> =
            numbers.map(|(name, number)| (name.to_lowercase(), number.parse().expect("a number"))).collect();
        assert!(numbers.len() > 20, "{numbers:?}");
        for (name, number) in numbers {
            assert_eq!(syscall_name(number), Some(name));
        }
    }

    #[test]
    fn names_and_classes() {
        assert_eq!(syscall_name(202).as_deref(), Some("futex"));
        assert_eq!(syscall_name(24).as_deref(), Some("sched_yield"));
        assert_eq!(syscall_name(400).as_deref(), Some("syscall_400"));
        assert_eq!(syscall_name(-1), None);
        let classes = syscall_classes();
        assert_eq!(u64::from(classes[202]), c::CLASS_FUTEX);
        assert_eq!(classes[35], Reason::Sleep.code());
        assert_eq!(u64::from(classes[500]), c::CLASS_NONE);
    }
}
