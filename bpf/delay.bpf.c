// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Time that the kernel spends on a thread's behalf: freeing memory, compacting memory, waiting for the
 * kernel's own locks. Each interval of at least `stall_ns` is emitted; user space finds the stall that
 * contains it.
 *
 * Waits for locks by spinning are left out: they are running time already. */
#include "kernel_lock.h"
#include "rings.h"
#include "thread_state.h"

/* The first fields of every record. It also makes the type part of the object, from which its Rust view is
 * generated. */
const struct delay_record empty_delay = {.type = RECORD_DELAY};

ALWAYS_INLINE void start_delay(u32 kind, u64 lock, u8 kernel_lock) {
    struct thread_state *t = state_of(bpf_get_current_task_btf());
    u64 now;

    if (!t || kind >= DELAYS)
        return;
    now = bpf_ktime_get_ns();
    if (!armed(now))
        return;
    if (lock)
        t->kernel_lock = kernel_lock;
    /* A mutex reports contention while it spins and again before it sleeps. */
    if (lock && t->delay_since[kind] >= armed_at && t->delay_lock == lock)
        return;
    t->delay_since[kind] = now;
    if (lock)
        t->delay_lock = lock;
}

ALWAYS_INLINE bool is_mmap_lock(struct task_struct *task, u64 lock) {
    u64 memory = (u64)BPF_CORE_READ(task, mm);

    return memory && lock == memory + bpf_core_field_offset(struct mm_struct, mmap_lock);
}

NOINLINE int end_delay(u32 kind) {
    struct task_struct *task = bpf_get_current_task_btf();
    struct thread_state *t = state_of(task);
    struct delay_record *record;
    u64 now, since;

    if (!t || kind >= DELAYS || !t->delay_since[kind])
        return 0;
    since = t->delay_since[kind];
    t->delay_since[kind] = 0;
    if (kind == DELAY_LOCK)
        t->kernel_lock = KERNEL_LOCK_NONE;
    now = bpf_ktime_get_ns();
    if (!armed(now) || since < armed_at || now - since < stall_ns)
        return 0;
    record = reserve(sizeof(*record));
    if (!record)
        return 0;
    *record = empty_delay;
    record->key = t->key;
    record->start = since;
    record->end = now;
    record->kind = kind;
    record->mmap_lock = kind == DELAY_LOCK && is_mmap_lock(task, t->delay_lock);
    bpf_ringbuf_submit(record, ring_flags());
    return 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int BPF_PROG(on_direct_reclaim_begin) {
    start_delay(DELAY_RECLAIM, 0, KERNEL_LOCK_NONE);
    return 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int BPF_PROG(on_direct_reclaim_end) { return end_delay(DELAY_RECLAIM); }

/* A cgroup has reached its limit. */
SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int BPF_PROG(on_group_reclaim_begin) {
    start_delay(DELAY_RECLAIM, 0, KERNEL_LOCK_NONE);
    return 0;
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int BPF_PROG(on_group_reclaim_end) { return end_delay(DELAY_RECLAIM); }

SEC("tp_btf/mm_compaction_begin")
int BPF_PROG(on_compaction_begin) {
    start_delay(DELAY_COMPACTION, 0, KERNEL_LOCK_NONE);
    return 0;
}

SEC("tp_btf/mm_compaction_end")
int BPF_PROG(on_compaction_end) { return end_delay(DELAY_COMPACTION); }

SEC("tp_btf/contention_begin")
int BPF_PROG(on_contention_begin, void *lock, unsigned int flags) {
    if (!(flags & LOCK_SPINS) || (flags & LOCK_IS_MUTEX))
        start_delay(DELAY_LOCK, (u64)lock, kernel_lock_kind(flags));
    return 0;
}

/* On its way into and out of a sleep a thread takes spinlocks, also in interrupts. Where these were
 * contended, their end is reported too, and is not the end of this wait (seen in one of nine of them under
 * load). */
SEC("tp_btf/contention_end")
int BPF_PROG(on_contention_end, void *lock) {
    struct thread_state *t = state_of(bpf_get_current_task_btf());

    return t && t->delay_lock == (u64)lock ? end_delay(DELAY_LOCK) : 0;
}
