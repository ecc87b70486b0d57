/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A thread joins the recording: the only place where a thread's state is created. */
#pragma once

#include "losses.h"
#include "thread_state.h"

u32 next_thread_key = 0;

/* A task's number in its own pid namespace: the last of its numbers. Its address is computed from the
 * kernel's own size of an entry, since the length of an array's elements is not relocated. */
ALWAYS_INLINE u32 innermost_number(struct pid *pid) {
    u32 level = BPF_CORE_READ(pid, level);
    u64 numbers = (u64)pid + bpf_core_field_offset(struct pid, numbers);
    struct upid *last = (struct upid *)(numbers + level * bpf_core_type_size(struct upid));

    return BPF_CORE_READ(last, nr);
}

/* Deletes nothing: the state is freed with the task. NULL where memory is short, which is counted. */
ALWAYS_INLINE struct thread_state *create_state(struct task_struct *task) {
    struct thread_state *t = bpf_task_storage_get(&threads, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

    if (!t) {
        lose(LOSS_THREADS_FULL);
        return NULL;
    }
    if (t->key)
        return t;
    t->key = __sync_fetch_and_add(&next_thread_key, 1) + 1;
    t->ns_tid = innermost_number(BPF_CORE_READ(task, thread_pid));
    t->ns_tgid = innermost_number(BPF_CORE_READ(task, group_leader, thread_pid));
    t->syscall = -1;
    t->exec_seen = task->se.sum_exec_runtime;
    t->delay_seen = task->sched_info.run_delay;
    if (!limit_cpus)
        t->on_mask = 1;
    return t;
}

/* The thread is recorded from now on. Its next event, or the snapshot, finds out what it is doing. */
ALWAYS_INLINE void join(struct task_struct *task, u32 matches) {
    struct thread_state *t = state_of(task);

    if (!t) {
        t = create_state(task);
        if (!t)
            return;
        t->observed_from = bpf_ktime_get_ns();
    }
    /* Another CPU can add a target to the same thread at the same time. */
    __sync_fetch_and_or(&t->matches, matches);
}
