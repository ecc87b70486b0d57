/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The trace that a thread works for, where its process publishes that as OpenTelemetry's OTEP 4947 says: a
 * thread-local variable leads to a record with the ids of the trace and of the span.
 *
 * A thread changes its own record alone, so what is read while the thread is off its CPU, or runs this, is
 * what the thread wrote last. */
#pragma once

#include "process_words.h"
#include "syscall.h"

/* The beginning of a record. */
struct trace_record {
    struct trace_ids ids;
    u8 valid; /* 1: the thread is not in the middle of a change */
    u8 flags;
};

#define TRACE_RECORD_BYTES 26 /* without the padding */

/* What glibc has for the block of a module that the thread has not used yet. */
#define DTV_UNALLOCATED (~0ULL)
/* Behind a thread's pointer to itself: its vector of blocks. glibc's has its length two words before, and the
 * generation of modules that it is of in its first word; musl's has its length there. */
#define DTV_AT 8

/* Of `other`, which sleepable programs alone may read; without it, of the current task. */
ALWAYS_INLINE bool read_memory(void *to, u32 bytes, u64 from, struct task_struct *other) {
    if (other)
        return !bpf_copy_from_user_task(to, bytes, (const void *)from, other, 0);
    return !bpf_probe_read_user(to, bytes, (const void *)from);
}

/* The variable of a module that was loaded later than the program: in a block of its own. 0: the thread has
 * none. `index_at`: the address of the module's number and of the offset in its block. In a descriptor of
 * glibc the generation in which the module was loaded is behind them: a vector of an earlier one may still
 * have the block of another module, which had the number before. */
ALWAYS_INLINE u64 in_block(const struct process_words *words, u64 thread, u64 index_at,
                           struct task_struct *other) {
    u64 index[3] = {}, head[3], dtv, block;
    bool glibc = words->dtv_entry == GLIBC_DTV_ENTRY;
    u32 bytes = glibc && words->trace == TRACE_DESCRIPTOR ? 24 : 16;

    if (!read_memory(index, bytes, index_at, other) ||
        !read_memory(&dtv, sizeof(dtv), thread + DTV_AT, other))
        return 0;
    if (!read_memory(head, sizeof(head), dtv - (words->dtv_entry & GLIBC_DTV_ENTRY), other) ||
        index[0] > head[0] || (glibc && index[2] > head[2]))
        return 0;
    if (!read_memory(&block, sizeof(block), dtv + index[0] * words->dtv_entry, other) || !block ||
        block == DTV_UNALLOCATED)
        return 0;
    return block + index[1];
}

/* The address of the thread's variable; 0: it has none. `thread`: its thread pointer. */
ALWAYS_INLINE u64 trace_variable(const struct process_words *words, u64 thread, struct task_struct *other) {
    u64 at = words->trace_at, distance = at;
    u8 access = words->trace;

    if (access != TRACE_INDEX_AT) {
        if (access != TRACE_OFFSET &&
            !read_memory(&distance, sizeof(distance), access == TRACE_DESCRIPTOR ? at + 8 : at, other))
            return 0;
        if ((s64)distance < 0)
            return thread + distance;
        /* A descriptor has a pointer where the block is at no fixed distance. */
        if (access != TRACE_DESCRIPTOR)
            return 0;
        at = distance;
    }
    return in_block(words, thread, at, other);
}

/* False: the thread works for no trace, or is in the middle of a change. */
ALWAYS_INLINE bool read_trace(const struct process_words *words, u64 thread, struct trace_ids *ids,
                              struct task_struct *other) {
    struct trace_record record = {};
    u64 variable = trace_variable(words, thread, other), at;

    if (!variable || !read_memory(&at, sizeof(at), variable, other) || !at ||
        !read_memory(&record, TRACE_RECORD_BYTES, at, other) || record.valid != 1)
        return false;
    *ids = record.ids;
    return (ids->trace_id[0] | ids->trace_id[1]) && ids->span_id;
}

GLOBAL int read_own_trace(struct thread_state *t, u64 thread) {
    if (!t)
        return 0;
    t->trace_known = read_trace(&t->words, thread, &t->trace, NULL);
    return 0;
}

/* `task` is current. A worker of the kernel has the thread pointer of the thread that created it. */
ALWAYS_INLINE void note_trace(struct task_struct *task, struct thread_state *t) {
    t->trace_known = false;
    if (unlikely(t->words.trace) && t->words.exec_id == (u32)task->self_exec_id && !is_kernel_only(task))
        read_own_trace(t, BPF_CORE_READ(task, thread.fsbase));
}
