/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What the iterators over all tasks share. */
#pragma once

#include "kernel_lock.h"
#include "reason.h"
#include "stack_scratch.h"
#include "thread_state.h"

/* Scratch memory of the iterators: one reader runs one iterator at a time. */
struct iter_scratch {
    struct thread_record thread;
    struct thread_state guess;
    struct stall_record stall;
    struct look_record look;
    struct stack_scratch stack;
};

/* 0 → the scratch memory. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct iter_scratch);
} iter_scratch SEC(".maps");

ALWAYS_INLINE struct iter_scratch *get_iter_scratch(void) {
    u32 zero = 0;

    return bpf_map_lookup_elem(&iter_scratch, &zero);
}

/* While user space reads what threads have in their memory, no thread of ordinary priority gets its CPU
 * (crates/probe/src/undisturbed.rs). So a read ends after this many threads without a record, too. */
#define QUIET_THREADS 64

/* Threads without a record since a read was ended so. */
u32 quiet_threads;

/* A record that ends a read: user space leaves it out. */
static const volatile u8 no_record[sizeof(struct look_record) > sizeof(struct stall_record)
                                       ? sizeof(struct look_record)
                                       : sizeof(struct stall_record)] = {};

/* Notes a thread without a record. */
ALWAYS_INLINE void end_long_read(struct bpf_iter__task *ctx, u32 bytes) {
    if (++quiet_threads < QUIET_THREADS)
        return;
    quiet_threads = 0;
    bpf_seq_write(ctx->meta->seq, (const void *)no_record, bytes);
}

/* The reason of a thread that sleeps uninterruptibly, or CLASS_NONE. The stack of a thread that is not
 * current is without the functions of the scheduler and of locks. */
ALWAYS_INLINE u8 reason_of_sleeper(struct task_struct *task) {
    struct iter_scratch *scratch = get_iter_scratch();
    struct site_walk walk = {.reason = CLASS_NONE};
    long bytes;

    if (!scratch)
        return CLASS_NONE;
    if (blocker_of(task))
        return REASON_LOCK;
    walk.scratch = &scratch->stack;
    bytes = bpf_get_task_stack(task, scratch->stack.stack.address, SITE_FRAMES * 8, 0);
    if (bytes > 0)
        bpf_loop((u32)bytes / 8, site_step, &walk, 0);
    return walk.reason;
}

/* The activity of a thread without an event since arming, from its state now. */
ALWAYS_INLINE void guess_activity(struct bpf_iter__task *ctx, struct task_struct *task,
                                  struct thread_state *t) {
    u32 state = task->__state;

    t->number_word = 0;
    t->activity = ACTIVITY_BLOCKED;
    if (task->on_cpu)
        t->activity = ACTIVITY_RUNNING;
    else if (state == TASK_RUNNING)
        t->activity = ACTIVITY_PREEMPTED;
    else
        classify(ctx, NULL, t, task, state);
    /* As classify() does for the current task. */
    if (t->activity == ACTIVITY_BLOCKED && (state & TASK_UNINTERRUPTIBLE) &&
        !(state & (TASK_NOLOAD | TASK_STOPPED | TASK_TRACED | TASK_FROZEN)) &&
        !BPF_CORE_READ_BITFIELD(task, in_iowait)) {
        u8 reason = reason_of_sleeper(task);

        if (reason < REASONS)
            t->reason = reason;
    }
}
