/* The system call that a task is in. */
#pragma once

#include "bpf_api.h"

/* The system call that the task is in, or -1: in none (a fault, an interrupt), a kernel thread, or a
 * 32-bit call, which has other numbers. */
ALWAYS_INLINE s32 syscall_of(struct task_struct *task, struct pt_regs *regs) {
    if ((task->flags & PF_KTHREAD) || (task->thread_info.status & TS_COMPAT))
        return -1;
    return (s32)regs->orig_ax;
}
