/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The timeout that a system call asked for. */
#pragma once

#include "futex.h"
#include "include/syscalls.h"
#include "thread_state.h"

struct timespec64 {
    s64 seconds;
    s64 nanoseconds;
};

#define TIMER_ABSTIME 1
#define CLOCK_REALTIME 0
#define CLOCK_MONOTONIC 1
#define CLOCK_BOOTTIME 7
#define CLOCK_REALTIME_ALARM 8
#define CLOCK_BOOTTIME_ALARM 9
#define CLOCK_TAI 11
#define SLACK_LIMIT_NS 100000000ULL
#define DEFAULT_PRIO 120 /* of nice 0 */

ALWAYS_INLINE bool read_time(u64 address, u64 unit, u64 *ns) {
    struct timespec64 time = {};

    if (!address || bpf_probe_read_user(&time, sizeof(time), (void *)address) || time.seconds < 0)
        return false;
    if (time.seconds > 4000000000LL)
        return false; /* never, in practice */
    *ns = (u64)time.seconds * 1000000000ULL + (u64)time.nanoseconds * unit;
    return true;
}

ALWAYS_INLINE bool milliseconds(u64 argument, u64 *ns) {
    *ns = (u64)(u32)argument * 1000000ULL;
    return (s32)argument > 0;
}

/* By how much the clock is ahead of the machine's in the time namespace of the task; may be negative
 * (time_namespaces(7)). Only CLOCK_MONOTONIC and CLOCK_BOOTTIME have offsets there. */
ALWAYS_INLINE u64 namespace_offset(struct task_struct *task, bool boottime) {
    u64 seconds, ns;
    struct nsproxy *namespaces;
    struct time_namespace *time;

    if (!bpf_core_field_exists(((struct nsproxy *)0)->time_ns))
        return 0;
    namespaces = BPF_CORE_READ(task, nsproxy);
    time = namespaces ? BPF_CORE_READ(namespaces, time_ns) : NULL;
    if (!time)
        return 0;
    seconds = boottime ? BPF_CORE_READ(time, offsets.boottime.tv_sec)
                       : BPF_CORE_READ(time, offsets.monotonic.tv_sec);
    ns = boottime ? BPF_CORE_READ(time, offsets.boottime.tv_nsec)
                  : BPF_CORE_READ(time, offsets.monotonic.tv_nsec);
    return seconds * 1000000000ULL + ns;
}

/* The distance of a clock of the task from the machine's CLOCK_MONOTONIC. False: it does not advance with
 * wall time (the clocks of processes and threads advance with their CPU time), or it is not known here. */
ALWAYS_INLINE bool clock_offset(struct task_struct *task, u32 clock, u64 *offset) {
    switch (clock) {
    case CLOCK_MONOTONIC:
        *offset = namespace_offset(task, false);
        return true;
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_ALARM:
        *offset = epoch_offset;
        return true;
    case CLOCK_BOOTTIME:
    case CLOCK_BOOTTIME_ALARM:
        *offset = bpf_ktime_get_boot_ns() - bpf_ktime_get_ns() + namespace_offset(task, true);
        return true;
    case CLOCK_TAI:
        *offset = bpf_ktime_get_tai_ns() - bpf_ktime_get_ns();
        return true;
    }
    return false;
}

/* A deadline on CLOCK_MONOTONIC as a duration from `start`. */
ALWAYS_INLINE u64 until(u64 deadline, u64 start) {
    return (s64)(deadline - start) > 0 ? deadline - start : 0;
}

/* The kernel reads the timeout of LOCK_PI on CLOCK_REALTIME whatever the flag is (futex(2)). */
ALWAYS_INLINE u64 futex_clock_offset(struct task_struct *task, u64 op) {
    bool realtime = (op & FUTEX_CLOCK_REALTIME) || (op & FUTEX_CMD) == FUTEX_LOCK_PI;

    return realtime ? epoch_offset : namespace_offset(task, false);
}

/* What is left of a timeout that began with the first part of a wait, at the start of a later part. */
ALWAYS_INLINE u64 left_of(u64 ns, struct thread_state *t, u64 start) {
    u64 passed = t->continued && start > t->call_since ? start - t->call_since : 0;

    return ns > passed ? ns - passed : 0;
}

/* The timeout that the current thread had asked for, after a wait that started at `start`: `ns` from
 * `start`. `slack` is how much later the kernel may wake it by its own rules: the timer slack, and for
 * poll-like calls a thousandth of the timeout, five thousandths for a thread with a nice value
 * (fs/select.c select_estimate_accuracy). False: it asked for none. */
ALWAYS_INLINE bool asked_timeout(struct task_struct *task, struct thread_state *t, u64 start, u64 *ns,
                                 u64 *slack) {
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
    bool poll_like = true;
    bool asked = false;
    u64 own_slack = task->timer_slack_ns;
    u64 offset = 0;

    switch (t->syscall) {
    case NR_POLL:
        asked = milliseconds(regs->dx, ns);
        *ns = left_of(*ns, t, start);
        break;
    case NR_EPOLL_WAIT:
    case NR_EPOLL_PWAIT:
        asked = milliseconds(regs->r10, ns);
        break;
    case NR_EPOLL_PWAIT2:
        asked = read_time(regs->r10, 1, ns);
        break;
    case NR_PPOLL:
        asked = read_time(regs->dx, 1, ns);
        break;
    case NR_SELECT:
        asked = read_time(regs->r8, 1000, ns);
        break;
    case NR_PSELECT6:
        asked = read_time(regs->r8, 1, ns);
        break;
    case NR_NANOSLEEP:
        poll_like = false;
        asked = read_time(regs->di, 1, ns);
        *ns = left_of(*ns, t, start);
        break;
    case NR_CLOCK_NANOSLEEP:
        poll_like = false;
        asked = clock_offset(task, (u32)regs->di, &offset) && read_time(regs->dx, 1, ns);
        if (asked)
            *ns = regs->si & TIMER_ABSTIME ? until(*ns - offset, start) : left_of(*ns, t, start);
        break;
    case NR_FUTEX:
        poll_like = false;
        asked = read_time(regs->r10, 1, ns);
        if (asked && (regs->si & FUTEX_CMD) == FUTEX_WAIT)
            *ns = left_of(*ns, t, start);
        else if (asked)
            *ns = until(*ns - futex_clock_offset(task, regs->si), start);
        break;
    }
    *slack = own_slack;
    if (asked && poll_like && own_slack) {
        u64 coarse = *ns / (task->static_prio > DEFAULT_PRIO ? 200 : 1000);

        if (coarse > SLACK_LIMIT_NS)
            coarse = SLACK_LIMIT_NS;
        if (coarse > own_slack)
            *slack = coarse;
    }
    return asked;
}
