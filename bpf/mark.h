/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Spans that the program marks itself, with include/wallprof.h: the time that each was not running.
 *
 * A thread has the number of its current span in its memory. It is read where time off the CPU, a page fault
 * or an interrupt is charged, since the thread is current then. When the number has changed, the ledger's
 * growth since the change before belongs to the span that was read then. User space has the length of the
 * span, from the shared memory, and with it the running time. A span without a record was running throughout.
 */
#pragma once

#include "rings.h"
#include "span_states.h"
#include "thread_state.h"

/* Thread → its slot in the memory of its process. Written by user space. Full: marks of further threads have
 * no states. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_MARK_SLOTS);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct mark_slot_key);
    __type(value, struct mark_slot);
} mark_slots SEC(".maps");

/* Of `mark_slots`: user space adds one after each change, so that threads look into the map only then. */
volatile u32 mark_slots_version = 0;

/* Makes the record's type part of the object, from which its Rust view is generated. */
const struct marked_record empty_marked = {.type = RECORD_MARKED};

/* The growth can be negative: a switch-out finds running time that was taken for the end of the wait before.
 */
ALWAYS_INLINE void subtract_states(struct span_states *states, struct ledger *now, struct span_states *base) {
    u32 i;

    for (i = 0; i < SLEEPS; i++)
        states->blocked[i] = now->blocked[i] - base->blocked[i];
    states->on_cpu = now->on_cpu - base->on_cpu;
    states->irq = now->irq - base->irq;
    states->runnable = now->runnable - base->runnable;
    states->preempted = now->preempted - base->preempted;
    states->fault_on_cpu = now->fault_on_cpu - base->fault_on_cpu;
}

/* Emits what the ledger has by now and had not when the span's number was first read. */
ALWAYS_INLINE void emit_marked(struct thread_state *t, u64 now) {
    struct marked_record *record = reserve(sizeof(*record));

    if (!record) {
        if (!t->marks_lost_from)
            t->marks_lost_from = t->marked_from;
        return;
    }
    record->type = RECORD_MARKED;
    record->key = t->key;
    record->id = t->marked;
    record->from = t->marks_lost_from ? t->marks_lost_from : t->marked_from;
    record->at = now;
    record->incomplete = t->marks_lost_from != 0;
    t->marks_lost_from = 0;
    subtract_states(&record->states, &t->ledger, &t->marked_base);
    bpf_ringbuf_submit(record, ring_flags());
}

ALWAYS_INLINE u64 not_running(struct ledger *ledger) {
    u64 ns = ledger->irq + ledger->runnable + ledger->preempted;
    u32 i;

    for (i = 0; i < SLEEPS; i++)
        ns += ledger->blocked[i];
    return ns;
}

/* The thread is in this span from here on. An interrupt in the middle of this leaves it alone. */
GLOBAL int change_mark(struct thread_state *t, u64 id, u64 now) {
    u64 ns;

    if (!t || t->marking)
        return 0;
    t->marking = true;
    ns = not_running(&t->ledger);
    if (t->marked && ns != t->marked_ns)
        emit_marked(t, now);
    t->marked = id;
    t->marked_ns = ns;
    t->marked_from = now;
    keep_states(&t->marked_base, &t->ledger);
    t->marking = false;
    return 0;
}

NOINLINE int find_mark_slot(struct task_struct *task, struct thread_state *t, u64 now) {
    struct mark_slot_key key = {};
    struct mark_slot *found;

    if (!task || !t || t->marking)
        return 0;
    t->marks_seen = mark_slots_version;
    key.tgid = task->tgid;
    key.ns_tid = t->ns_tid;
    found = bpf_map_lookup_elem(&mark_slots, &key);
    if (!found || found->exec_id != (u32)task->self_exec_id) {
        t->mark_slot = 0;
        return 0;
    }
    if (t->mark_slot == found->address)
        return 0;
    t->mark_slot = found->address;
    t->mark_exec_id = found->exec_id;
    /* The states of spans are known from here on. */
    t->marked = MARK_SLOT_FOUND;
    t->marked_ns = ~0ULL;
    t->marked_from = now;
    change_mark(t, 0, now);
    return 0;
}

/* What cannot be read is in no span that is known. */
GLOBAL int read_mark(struct thread_state *t, u64 now) {
    u64 id;

    if (!t)
        return 0;
    if (bpf_probe_read_user(&id, sizeof(id), (void *)t->mark_slot))
        id = MARK_UNREADABLE;
    if (id != t->marked)
        change_mark(t, id, now);
    return 0;
}

/* `task` is current, and the ledger is about to grow by what it was not running for. */
ALWAYS_INLINE void note_mark(struct task_struct *task, struct thread_state *t, u64 now) {
    if (unlikely(t->marks_seen != mark_slots_version))
        find_mark_slot(task, t, now);
    if (unlikely(t->mark_slot) && t->mark_exec_id == (u32)task->self_exec_id)
        read_mark(t, now);
}

/* Whether the thread, which is current, is in a span now. */
ALWAYS_INLINE bool is_marked(struct task_struct *task, struct thread_state *t) {
    u64 id = 0;

    if (likely(!t->mark_slot) || t->mark_exec_id != (u32)task->self_exec_id)
        return false;
    return !bpf_probe_read_user(&id, sizeof(id), (void *)t->mark_slot) && id;
}

/* A wait is over, or a long fault or interrupt: what follows may be running time for long. */
ALWAYS_INLINE void flush_mark(struct thread_state *t, u64 now, u64 least_ns) {
    if (unlikely(t->mark_slot) && t->marked && (s64)(not_running(&t->ledger) - t->marked_ns) >= (s64)least_ns)
        change_mark(t, t->marked, now);
}

/* The thread ends: its memory may be gone. */
ALWAYS_INLINE void end_marks(struct thread_state *t, u64 now) {
    if (unlikely(t->mark_slot))
        change_mark(t, 0, now);
}

/* Another thread may get the number next. */
ALWAYS_INLINE void forget_mark_slot(struct task_struct *task, struct thread_state *t) {
    struct mark_slot_key key = {};

    if (likely(!mark_slots_version) || !t)
        return;
    key.tgid = task->tgid;
    key.ns_tid = t->ns_tid;
    bpf_map_delete_elem(&mark_slots, &key);
}
