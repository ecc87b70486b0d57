/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What threads do late in their busy periods: once a period has lasted longer than nineteen of twenty before
 * it. These are the samples and waits that tell slow periods from the others. */
#pragma once

#include "interval.h"
#include "span.h"

ALWAYS_INLINE bool is_late(struct thread_state *t, u64 at) {
    return t->busy_from && t->late_ns && at > t->busy_from && at - t->busy_from > t->late_ns;
}

ALWAYS_INLINE void emit_late(struct thread_state *t, u64 at, u32 what, u64 ns, u64 runnable, u64 user_stack,
                             u64 kernel_stack, u32 within) {
    struct late_record *record = reserve_example(sizeof(*record));

    if (!record) {
        lose(LOSS_LATE);
        return;
    }
    record->type = RECORD_LATE;
    record->key = t->key;
    record->at = at;
    record->ns = ns;
    record->runnable_ns = runnable;
    record->user_stack = user_stack;
    record->kernel_stack = kernel_stack;
    record->what = what;
    record->within = within;
    bpf_ringbuf_submit(record, ring_flags());
}

/* A wait inside of a busy period ends late in it, and a record of it is still to be had in this second. */
ALWAYS_INLINE bool is_late_wait(struct thread_state *t, struct interval *interval) {
    if (!is_late(t, interval->end) || interval->start < t->busy_from)
        return false;
    start_busy_second(t);
    return t->late_waits < MAX_LATE_WAITS;
}

/* Its stacks have been taken. */
GLOBAL int emit_late_wait(struct thread_state *t, struct interval *interval) {
    u64 off;

    if (!t || !interval || t->reason >= REASONS)
        return 0;
    t->late_waits++;
    off = off_cpu_ns(interval);
    if (interval->preempted)
        emit_late(t, interval->end, SAMPLE_PREEMPTED, off, 0, interval->user_stack, interval->kernel_stack,
                  LATE_IN_BUSY);
    else
        emit_late(t, interval->end, SAMPLE_BLOCKED + t->reason, off - interval->runnable, interval->runnable,
                  interval->user_stack, interval->kernel_stack, LATE_IN_BUSY);
    return 0;
}
