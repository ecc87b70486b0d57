/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Threads that hold a lock for which another thread waits. They are sampled one by one, and their own waits
 * are not folded: a finding about the lock says what its holder did. */
#pragma once

#include "rings.h"
#include "samples.h"
#include "stack_hash.h"
#include "thread_state.h"

/* Slot of a thread → waits for locks that it holds. Threads that share a slot are taken for awaited, too.
 * User space clears it before arming. */
volatile s32 awaited[AWAITED_SLOTS] = {};

/* How many more waits of such threads may be emitted below the threshold of stalls. User space sets it each
 * second. Concurrent decrements can make it negative. */
volatile s64 holder_waits_left = 0;

/* The first fields of every record. It also makes the type part of the object, from which its Rust view is
 * generated. */
const struct holder_sample_record empty_holder_sample = {.type = RECORD_HOLDER_SAMPLE};

/* A thread by its number in its process's pid namespace, as a futex has it; or, with tgid 0, by the kernel's
 * own number. */
ALWAYS_INLINE u32 awaited_slot(u32 tgid, u32 tid) {
    u32 slot = mix(HASH_STEP, ((u64)tgid << 32) | tid) >> 32;

    barrier_var(slot); /* the mask is the last step, so that 6.1 knows the bounds */
    return slot & (AWAITED_SLOTS - 1);
}

ALWAYS_INLINE void add_awaited(u32 slot, s32 change) {
    __sync_fetch_and_add(&awaited[slot & (AWAITED_SLOTS - 1)], change);
}

ALWAYS_INLINE void stop_awaiting(struct thread_state *t) {
    /* The slots were cleared since a wait of an earlier recording began. */
    if (t->since >= armed_at)
        add_awaited(t->awaits - 1, -1);
    t->awaits = 0;
}

/* `t` goes to sleep for a lock of the thread with this slot. */
ALWAYS_INLINE void start_awaiting(struct thread_state *t, u32 slot) {
    /* Its last switch-in was not seen. */
    if (unlikely(t->awaits))
        stop_awaiting(t);
    t->awaits = (u16)slot + 1;
    add_awaited(slot, 1);
}

ALWAYS_INLINE bool is_awaited(struct task_struct *task, struct thread_state *t) {
    return awaited[awaited_slot(task->tgid, t->ns_tid)] > 0 || awaited[awaited_slot(0, task->pid)] > 0;
}

/* Whether a wait of the thread is emitted although it is too short to be a stall by itself. */
NOINLINE int holder_wait_is_emitted(struct task_struct *task, struct thread_state *t) {
    if (!task || !t || !is_awaited(task, t) || holder_waits_left <= 0)
        return 0;
    return __sync_fetch_and_sub(&holder_waits_left, 1) > 0;
}

/* One sample of the thread, with the stacks of `sample`, if others wait for it. */
ALWAYS_INLINE void emit_holder_sample(struct task_struct *task, struct thread_state *t, u64 now,
                                      const struct sample_key *sample) {
    struct holder_sample_record *record;

    if (likely(!is_awaited(task, t)) || !sample->user_stack)
        return;
    record = reserve(sizeof(*record));
    if (!record)
        return;
    *record = empty_holder_sample;
    record->key = t->key;
    record->now = now;
    record->user_stack = sample->user_stack;
    bpf_ringbuf_submit(record, ring_flags());
}
