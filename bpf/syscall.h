/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The system call that a task is in. */
#pragma once

#include "bpf_api.h"

/* Whether a thread never runs in user mode: a kernel thread, or a worker of the kernel that belongs to a
 * process (io_uring, vhost). The registers of such a worker are zero, but for the system call that created
 * it. */
ALWAYS_INLINE bool is_kernel_only(struct task_struct *task) {
    return task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER);
}

/* The system call that the task is in, or -1: in none (a fault, an interrupt), no user thread, or a
 * 32-bit call, which has other numbers. */
ALWAYS_INLINE s32 syscall_of(struct task_struct *task, struct pt_regs *regs) {
    if (is_kernel_only(task) || (task->thread_info.status & TS_COMPAT))
        return -1;
    return (s32)regs->orig_ax;
}
