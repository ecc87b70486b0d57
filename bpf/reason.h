/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Why a thread goes to sleep: from its system call and the decisive arguments, in_iowait, the task state
 * and, for uninterruptible sleeps, the kernel functions that it sleeps in.
 *
 * User space has the table of system calls (crates/probe/src/reasons.rs). Cases that depend on arguments
 * are decided here. */
#pragma once

#include "futex.h"
#include "include/syscalls.h"
#include "open_file.h"
#include "sites.h"
#include "syscall.h"

#define F_SETLKW 7
#define F_OFD_SETLKW 38

/* What a read or write on a regular file waits for. Files of the kernel itself are on no disk: a reader of
 * /proc/kmsg or trace_pipe waits for the next line, a writer for what it asked the kernel to do. */
ALWAYS_INLINE u8 regular_file_reason(struct inode *inode, bool uninterruptible) {
    switch (BPF_CORE_READ(inode, i_sb, s_magic)) {
    case ANON_INODE_FS_MAGIC: /* eventfd, timerfd, inotify, which 6.16+ reports as regular files */
        return REASON_WAIT;
    case PROC_SUPER_MAGIC:
    case SYSFS_MAGIC:
    case DEBUGFS_MAGIC:
    case TRACEFS_MAGIC:
    case SECURITYFS_MAGIC:
    case CGROUP_SUPER_MAGIC:
    case CGROUP2_SUPER_MAGIC:
        return uninterruptible ? REASON_OTHER : REASON_WAIT;
    case FUSE_SUPER_MAGIC: /* a process serves it */
        return REASON_OTHER;
    }
    return REASON_DISK;
}

/* What a read or write on this file waits for. */
ALWAYS_INLINE u8 file_reason(struct file *file, bool uninterruptible) {
    struct inode *inode;
    u32 kind;

    if (!file)
        return REASON_OTHER;
    inode = BPF_CORE_READ(file, f_inode);
    kind = BPF_CORE_READ(inode, i_mode) & S_IFMT;
    switch (kind) {
    case S_IFIFO:
        return REASON_PIPE;
    case S_IFSOCK: {
        struct socket *socket = BPF_CORE_READ(file, private_data);

        return BPF_CORE_READ(socket, sk, __sk_common.skc_family) == AF_UNIX ? REASON_IPC : REASON_NETWORK;
    }
    case S_IFCHR:
        return REASON_POLL; /* a terminal or a device without input */
    default:
        return regular_file_reason(inode, uninterruptible);
    }
}

/* Whether a process serves the file of this descriptor (FUSE). Its pages are waited for like a disk's. */
ALWAYS_INLINE bool is_served(struct task_struct *task, u64 fd) {
    struct file *file = file_of(task, fd);

    return file && BPF_CORE_READ(file, f_inode, i_sb, s_magic) == FUSE_SUPER_MAGIC;
}

/* Whether a thread that sleeps in this state was stopped: by a signal, by a tracer, or by a freezer. Threads
 * that the freezer of cgroup v2 has stopped are in an ordinary sleep (kernel/signal.c do_freezer_trap()). A
 * caller of vfork(2) is marked as frozen, too, and sleeps uninterruptibly. */
ALWAYS_INLINE bool is_stopped(struct task_struct *task, u32 state) {
    if (state & (TASK_STOPPED | TASK_TRACED | TASK_FROZEN))
        return true;
    return (state & TASK_INTERRUPTIBLE) && BPF_CORE_READ_BITFIELD(task, frozen);
}

/* Whether a thread has left its system call for good: it dumps core, waits for another one that does, or
 * ends. Its registers still have the number of the call that it was in. */
ALWAYS_INLINE bool has_left(struct task_struct *task, s32 nr) {
    return (task->flags & (PF_DUMPCORE | PF_POSTCOREDUMP)) && nr != NR_EXIT && nr != NR_EXIT_GROUP;
}

/* The system call whose wait this is. A wait that a stop interrupted goes on as restart_syscall, which a
 * thread makes at the same place as the call before, and with its arguments (kernel/signal.c,
 * ERESTART_RESTARTBLOCK). */
ALWAYS_INLINE s32 call_that_waits(struct thread_state *t, struct pt_regs *regs, s32 nr) {
    u64 from = regs->ip ^ (regs->sp << 16);

    t->continued = nr == NR_RESTART_SYSCALL && t->syscall >= 0 && t->call_from == from;
    t->call_from = from;
    return t->continued ? t->syscall : nr;
}

/* Whether the functions that a thread sleeps in say more than its system call. */
ALWAYS_INLINE bool needs_site(u8 class, bool uninterruptible) {
    return uninterruptible || class == CLASS_DISK_IF_D || class == CLASS_MEMORY_IF_D ||
           class == CLASS_CHILD_IF_D;
}

/* Sets reason, syscall and lock of a thread that sleeps in state `prev_state`. `cpu` is NULL where another
 * thread is current: its memory and kernel stack are then not read. */
ALWAYS_INLINE void classify(void *ctx, struct cpu_state *cpu, struct thread_state *t,
                            struct task_struct *prev, u32 prev_state) {
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(prev);
    s32 nr = syscall_of(prev, regs);
    u8 class = CLASS_NONE;
    bool uninterruptible = (prev_state & TASK_UNINTERRUPTIBLE) && !(prev_state & TASK_NOLOAD);
    bool left = has_left(prev, nr);

    nr = left ? -1 : call_that_waits(t, regs, nr);
    t->syscall = nr;
    t->futex = FUTEX_NO_LOCK;
    t->owner_known = OWNER_UNKNOWN;
    if (is_stopped(prev, prev_state)) {
        t->reason = REASON_STOPPED;
        return;
    }
    if (!t->continued)
        t->call_since = t->since;
    if (nr >= 0 && nr < MAX_SYSCALLS)
        class = syscall_class[nr];
    if (likely(class < REASONS && !uninterruptible)) {
        t->reason = class;
        return;
    }
    if (class == CLASS_FUTEX && !uninterruptible) {
        t->reason = cpu ? futex_reason(t, prev, regs) : futex_reason_by_value(t, prev, regs);
        return;
    }
    if (class == CLASS_COMPLETION) {
        t->reason = REASON_POLL;
        return;
    }
    if (BPF_CORE_READ_BITFIELD(prev, in_iowait)) {
        t->reason = class == CLASS_FILE && is_served(prev, regs->di) ? REASON_OTHER : REASON_DISK;
        return;
    }
    if (needs_site(class, uninterruptible)) {
        u8 site = cpu ? site_reason(ctx, cpu) : CLASS_NONE;

        if (site < REASONS) {
            t->reason = site;
            return;
        }
    }
    if (left) {
        t->reason = REASON_OTHER;
        return;
    }
    if (uninterruptible) {
        switch (class) {
        case CLASS_CHILD_IF_D:
            t->reason = REASON_CHILD;
            return;
        case CLASS_DISK_IF_D:
            t->reason = REASON_DISK;
            return;
        case CLASS_MEMORY_IF_D:
            t->reason = REASON_MEMORY;
            return;
        }
        if (class == CLASS_NONE && nr < 0 && !is_kernel_only(prev)) {
            t->reason = REASON_MEMORY; /* a page fault */
            return;
        }
    }
    if (class == CLASS_FILE)
        t->reason =
            file_reason(cpu ? (struct file *)own_file(regs->di) : file_of(prev, regs->di), uninterruptible);
    else if (class == CLASS_FCNTL)
        t->reason = regs->si == F_SETLKW || regs->si == F_OFD_SETLKW ? REASON_LOCK : REASON_OTHER;
    else if (class < REASONS)
        t->reason = class;
    else if (is_kernel_only(prev))
        t->reason = uninterruptible ? REASON_OTHER : REASON_WAIT; /* parked kernel workers */
    else
        t->reason = nr < 0 ? REASON_MEMORY : REASON_OTHER; /* outside system calls: userfaultfd */
}
