/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The owners of the kernel's own locks: a mutex names its owner, and a semaphore for readers and writers its
 * writer. */
#pragma once

#include "awaited.h"
#include "bpf_api.h"
#include "thread_state.h"

enum kernel_lock {
    KERNEL_LOCK_NONE = 0, /* none, or one that names no owner */
    KERNEL_MUTEX = 1,
    KERNEL_RWSEM = 2,
};

/* The low bits of an owner are flags: kernel/locking/mutex.c, kernel/locking/rwsem.c. */
#define OWNER_FLAGS 7ULL
#define OWNED_BY_READERS 1

/* By the flags of the tracepoint. Kernels for real-time have other locks behind the same names. */
ALWAYS_INLINE u8 kernel_lock_kind(u32 flags) {
    if (flags & LOCK_IS_MUTEX)
        return bpf_core_field_exists(struct mutex, owner) ? KERNEL_MUTEX : KERNEL_LOCK_NONE;
    if ((flags & (LOCK_READS | LOCK_WRITES)) && !(flags & (LOCK_SPINS | LOCK_IS_RT | LOCK_PER_CPU)))
        return bpf_core_field_exists(struct rw_semaphore, owner) ? KERNEL_RWSEM : KERNEL_LOCK_NONE;
    return KERNEL_LOCK_NONE;
}

ALWAYS_INLINE u64 kernel_lock_owner(u8 kind, u64 lock) {
    u64 owner;

    if (kind == KERNEL_MUTEX)
        return (u64)BPF_CORE_READ((struct mutex *)lock, owner.counter) & ~OWNER_FLAGS;
    owner = (u64)BPF_CORE_READ((struct rw_semaphore *)lock, owner.counter);
    return owner & OWNED_BY_READERS ? 0 : owner & ~OWNER_FLAGS;
}

/* `t` goes to sleep for a lock of the kernel. The owner may let go at any time, and end: its numbers are read
 * as memory. */
GLOBAL int note_kernel_owner(struct thread_state *t) {
    struct task_struct *owner;

    if (!t)
        return 0;
    owner = (struct task_struct *)kernel_lock_owner(t->kernel_lock, t->delay_lock);
    t->kernel_owner.task = (u64)owner;
    t->kernel_owner.tid = owner ? BPF_CORE_READ(owner, pid) : 0;
    t->kernel_owner.tgid = owner ? BPF_CORE_READ(owner, tgid) : 0;
    if (t->kernel_owner.tid)
        start_awaiting(t, awaited_slot(0, t->kernel_owner.tid));
    return 0;
}

/* Kernels from 6.16 on keep the address of the lock for which a task sleeps, with its kind in the low bits:
 * include/linux/hung_task.h. */
#define BLOCKER_KIND 3ULL
#define BLOCKER_MUTEX 0
#define BLOCKER_SEMAPHORE 1 /* names no owner; the others are semaphores for readers and writers */

/* 0: `task` waits for no lock of the kernel, or this kernel does not say. */
ALWAYS_INLINE u64 blocker_of(struct task_struct *task) {
    return bpf_core_field_exists(task->blocker) ? BPF_CORE_READ(task, blocker) : 0;
}

/* The owner of the lock of the kernel for which `task` sleeps, where the start of that wait was not seen. A
 * lock lives while a task waits for it, and its owner while it holds it: what both say before and after the
 * reading is true. */
NOINLINE int find_kernel_owner(struct task_struct *task, struct other_thread *owner) {
    u64 blocker, lock, held_by;
    u8 kind = KERNEL_RWSEM;

    if (!task || !owner)
        return 0;
    blocker = blocker_of(task);
    lock = blocker & ~BLOCKER_KIND;
    if ((blocker & BLOCKER_KIND) == BLOCKER_MUTEX)
        kind = KERNEL_MUTEX;
    if (!lock || (blocker & BLOCKER_KIND) == BLOCKER_SEMAPHORE ||
        !bpf_core_field_exists(((struct mutex *)0)->owner) ||
        !bpf_core_field_exists(((struct rw_semaphore *)0)->owner))
        return 0;
    held_by = kernel_lock_owner(kind, lock);
    owner->tid = held_by ? BPF_CORE_READ((struct task_struct *)held_by, pid) : 0;
    owner->tgid = held_by ? BPF_CORE_READ((struct task_struct *)held_by, tgid) : 0;
    if (!owner->tid)
        return 0;
    bpf_core_read(owner->comm, COMM_LEN, &((struct task_struct *)held_by)->comm);
    return kernel_lock_owner(kind, lock) == held_by && blocker_of(task) == blocker;
}
