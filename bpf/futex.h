/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What a futex is used for: a lock, whose owner may be known, or another wait. */
#pragma once

#include "include/syscalls.h"
#include "syscall.h"
#include "thread_state.h"
#include "wait_place.h"

#define FUTEX_CMD 0x7f
#define FUTEX_WAIT 0
#define FUTEX_WAKE 1
#define FUTEX_LOCK_PI 6
#define FUTEX_WAIT_BITSET 9
#define FUTEX_WAKE_BITSET 10
#define FUTEX_WAIT_REQUEUE_PI 11
#define FUTEX_LOCK_PI2 13
#define FUTEX_CLOCK_REALTIME 256
#define FUTEX_PRIVATE 128
#define FUTEX_WAITERS 0x80000000U
#define FUTEX_TID_MASK 0x3fffffffU
#define MUTEX_CONTENDED 2
#define MUSL_CONTENDED 0x80000010U /* EBUSY, and the bit of waiters */
#define THREAD_PARKED 0xffffffffU
#define MOST_TIDS (1 << 22) /* PID_MAX_LIMIT */

/* What a futex is, by the operation and the value of the wait, before its memory is looked at. */
enum futex_use {
    FUTEX_NO_LOCK = 0,
    FUTEX_LOCK = 1,       /* a lock; no owner is in memory */
    FUTEX_OWNER_WORD = 2, /* a lock; the owner is the word */
    FUTEX_MUTEX = 3,      /* a lock; the owner is beside the word, if that is glibc's mutex */
    FUTEX_SOME_OWNER =
        4, /* a lock; the owner is the word, if that is a robust mutex of glibc or one of musl */
    /* Only memory shows whether these are locks. */
    FUTEX_TIMED = 5,  /* a mutex of glibc, one of its condition variables, or another lock */
    FUTEX_SHAPED = 6, /* glibc's mutex, rwlock or condition variable */
    FUTEX_TWO = 7,    /* a lock, or a condition variable or a thread of musl */
};

/* How far the owner of a futex that is a lock is certain. */
enum owner_known {
    OWNER_UNKNOWN = 0,
    OWNER_KNOWN = 1,
    OWNER_IF_IT_WOKE = 2, /* only if that thread ends the wait */
};

/* glibc's pthread_mutex_t on 64-bit machines, from its second word on. */
#define MUTEX_REST_OFFSET 4

struct mutex_rest {
    u32 count;
    u32 owner;
    u32 nusers; /* the owner, and threads that wait for condition variables with this mutex */
    u32 kind;
    u16 spins;
    u16 elision;
};

#define MUTEX_RECURSIVE 1
#define MUTEX_ADAPTIVE 3
#define MUTEX_TYPE 3
#define MUTEX_ROBUST 16
#define MUTEX_SHARED 128
#define MUTEX_ELISION 0x300

/* musl's pthread_mutex_t. */
struct musl_mutex {
    u32 type;
    u32 lock;
    u32 waiters;
};

#define MUSL_RECURSIVE 1
#define MUSL_ERRORCHECK 2
#define MUSL_OWNED 15 /* recursive, errorcheck, robust or PI: the word has the owner */
#define MUSL_SHARED 128

/* glibc's pthread_rwlock_t since 2.25. Waiters wait at `phase` or `writers_word`, whose bit 1 says that they
 * do, or at `readers`. */
struct rwlock {
    u32 readers;
    u32 writers;
    u32 phase;
    u32 writers_word;
    u32 pad3;
    u32 pad4;
    u32 writer; /* the thread that has it for writing */
    u32 shared;
    u64 elision;
    u64 pad2;
    u32 flags;
};

#define RWLOCK_WRITE_PHASE 1
#define RWLOCK_WRITE_LOCKED 2
#define RWLOCK_READERS_WAIT 4
#define RWLOCK_KINDS 3
#define RWLOCK_TAKEN 3 /* one of its words is 1, and has waiters */

/* glibc's pthread_cond_t since 2.41, before which all waits have the value 0. Waiters wait at one of
 * `signals`, which were the start of a group of waiters when that group was closed. */
struct condition {
    u64 sequence; /* two for each waiter that ever came, and which group is the newer one */
    u64 start;    /* of the older group */
    u32 sizes[2]; /* of the newer one only: less by one for each of its waits that ran out of their timeout */
    u32 size;     /* four for each waiter that the older group began with */
    u32 references; /* eight for each waiter */
    u32 signals[2];
};

/* What is read around a futex: one at a time, since the stack of a program is small. */
union futex_memory {
    struct mutex_rest rest;
    struct musl_mutex musl;
    struct rwlock rwlock;
    struct condition condition;
    u64 thread;
    u32 word;
};

/* musl has this on the stack of a thread that waits for a condition variable, and waits at `barrier`. */
#define MUSL_WAITER_FRAMES 1024
/* Where musl keeps the state of a thread that is joined, after the start of its descriptor, which is a
 * pointer to itself. */
#define MUSL_DETACH_STATE 56

/* Reads memory of the current task, or that of another one where `other` is not NULL: only sleepable programs
 * may give one. */
ALWAYS_INLINE bool read_futex_memory(void *to, u32 bytes, u64 from, struct task_struct *other) {
    if (other)
        return !bpf_copy_from_user_task(to, bytes, (void *)from, other, 0);
    return !bpf_probe_read_user(to, bytes, (void *)from);
}

/* Whether these words belong to a mutex of glibc that is held. Other locks have the same operation and value,
 * and data beside their word: Rust's and Go's mutexes, the arenas of malloc, the streams of stdio. Robust and
 * PI mutexes have other operations or values. */
ALWAYS_INLINE bool is_held_mutex(const struct mutex_rest *rest, u64 op) {
    u32 type = rest->kind & MUTEX_TYPE;
    bool shared = rest->kind & MUTEX_SHARED;

    return rest->owner && rest->owner <= MOST_TIDS && rest->nusers && rest->nusers <= MOST_TIDS &&
           !(rest->kind & ~(MUTEX_TYPE | MUTEX_SHARED | MUTEX_ELISION)) && shared == !(op & FUTEX_PRIVATE) &&
           (type == MUTEX_RECURSIVE) == (rest->count != 0) && (type == MUTEX_ADAPTIVE || !rest->spins) &&
           ((rest->kind & MUTEX_ELISION) || !rest->elision);
}

/* Whether the word, whose value has the form of an owner, is a mutex that keeps its owner there. musl's
 * rwlocks, semaphores and locks of its own have values of the same form. */
ALWAYS_INLINE bool has_owner_word(union futex_memory *memory, u64 address, struct task_struct *other) {
    struct mutex_rest *rest = &memory->rest;
    struct musl_mutex *musl = &memory->musl;

    if (read_futex_memory(rest, sizeof(*rest), address + MUTEX_REST_OFFSET, other) &&
        (rest->kind & MUTEX_ROBUST) &&
        !(rest->kind & ~(MUTEX_TYPE | MUTEX_ROBUST | MUTEX_SHARED | MUTEX_ELISION)))
        return true;
    return read_futex_memory(musl, sizeof(*musl), address - __builtin_offsetof(struct musl_mutex, lock),
                             other) &&
           (musl->type & MUSL_OWNED) && !(musl->type & ~(MUSL_OWNED | MUSL_SHARED)) &&
           (musl->type & MUTEX_TYPE) != (MUSL_RECURSIVE | MUSL_ERRORCHECK) && musl->waiters &&
           musl->waiters <= MOST_TIDS;
}

ALWAYS_INLINE bool is_number_of_waiters(u32 count) { return count + MOST_TIDS <= 2 * MOST_TIDS; }

/* Whether its two groups have numbers of waiters. The newer one has what came after the older one, and less
 * by what left it: a condition variable that is never signalled, only waited for with a timeout, counts down
 * for ever. A signal that changes the groups meanwhile leaves small numbers of either sign. */
ALWAYS_INLINE bool has_groups(const struct condition *c) {
    bool second_is_newer = c->sequence & 1;
    u32 came = (u32)((c->sequence >> 1) - c->start) - (c->size >> 2);

    return is_number_of_waiters(second_is_newer ? c->sizes[0] : c->sizes[1]) &&
           is_number_of_waiters(came + (second_is_newer ? c->sizes[1] : c->sizes[0]));
}

/* Whether the word is one of a condition variable's. */
ALWAYS_INLINE bool is_condition(union futex_memory *memory, u64 address, u32 value,
                                struct task_struct *other) {
    struct condition *c = &memory->condition;
    u64 start = address - ((address & 4) ? sizeof(*c) - 4 : sizeof(*c) - 8);

    return read_futex_memory(c, sizeof(*c), start, other) && c->start < c->sequence >> 1 &&
           (s32)((u32)c->start - value) >= 0 && c->references >= 8 && c->references >> 3 <= MOST_TIDS &&
           has_groups(c);
}

ALWAYS_INLINE bool has_shape_of_rwlock(const struct rwlock *lock, u64 op) {
    return lock->phase <= RWLOCK_TAKEN && lock->writers_word <= RWLOCK_TAKEN && !lock->pad3 && !lock->pad4 &&
           !lock->pad2 && lock->writer <= MOST_TIDS && !lock->shared == !!(op & FUTEX_PRIVATE) &&
           lock->elision <= 0xff && lock->flags <= RWLOCK_KINDS;
}

/* Whether the word is one of a rwlock's, at which a thread waits with this value while the others are so.
 * Both structures are aligned to eight bytes, so that the word's address says which one it is. */
ALWAYS_INLINE bool is_rwlock(union futex_memory *memory, u64 *address, u32 value, u64 op,
                             struct task_struct *other) {
    u32 offset = __builtin_offsetof(struct rwlock, phase), state = RWLOCK_WRITE_LOCKED;
    struct rwlock *lock = &memory->rwlock;

    if (value == RWLOCK_TAKEN) {
        if (*address & 4)
            offset = __builtin_offsetof(struct rwlock, writers_word);
        else
            state = RWLOCK_WRITE_PHASE;
    } else if (value != MUTEX_CONTENDED) {
        if (!(value & RWLOCK_READERS_WAIT))
            return false;
        offset = __builtin_offsetof(struct rwlock, readers);
    }
    if ((offset & 4) != (*address & 4) || !read_futex_memory(lock, sizeof(*lock), *address - offset, other))
        return false;
    if (!(lock->readers & state) || !has_shape_of_rwlock(lock, op))
        return false;
    *address -= offset;
    return true;
}

/* Whether the word belongs to a condition variable or to a thread of musl, at which nobody waits for a lock.
 */
ALWAYS_INLINE bool is_no_lock_of_musl(union futex_memory *memory, u64 address, u64 stack_pointer,
                                      struct task_struct *other) {
    u64 thread = address - MUSL_DETACH_STATE;

    if ((address & 4) && address - stack_pointer < MUSL_WAITER_FRAMES)
        return true;
    return !(address & 7) && read_futex_memory(&memory->thread, sizeof(memory->thread), thread, other) &&
           memory->thread == thread;
}

/* Whether it is a lock whatever its memory says. */
ALWAYS_INLINE bool is_lock_by_value(u8 use) { return use && use < FUTEX_TIMED; }

/* Whether the owner's number in this futex means a thread of the waiter's own process. A futex that processes
 * share may have the number of a thread in another pid namespace: two containers with a common mutex have a
 * process 1 each. */
ALWAYS_INLINE bool is_number_of_this_process(struct task_struct *task, u64 op) {
    return (op & FUTEX_PRIVATE) || !BPF_CORE_READ(task, thread_pid, level);
}

/* Whether the thread has registered a robust list (set_robust_list(2)). */
ALWAYS_INLINE bool has_robust_list(struct task_struct *task) {
    struct task_struct___with_futex *newer = (void *)task;

    if (bpf_core_field_exists(newer->futex))
        return BPF_CORE_READ(newer, futex.robust_list);
    return BPF_CORE_READ(task, robust_list);
}

/* The user of a futex shows in its operation and value:
 *   glibc mutex        WAIT, 2                      glibc timed mutex   WAIT_BITSET, 2, a timeout
 *   robust mutex       WAIT, tid|WAITERS            PI mutex            LOCK_PI(2)
 *   condvar, semaphore WAIT_BITSET|REALTIME, 0      rwlock              WAIT_BITSET|REALTIME, not 0
 *   condvar of 2.41+   the same with a growing number; without REALTIME for a timeout of the monotonic clock
 *   join               WAIT_BITSET|REALTIME, shared (op 265)
 *   musl mutex         WAIT, 0x80000010; of the types errorcheck and recursive tid|WAITERS
 *   musl condvar, join WAIT, 2
 *   musl semaphore     WAIT, -1; since 1.2.4 0x80000000
 *   musl rwlock        WAIT, -1 while it is held for writing, else readers|WAITERS
 *   std::atomic::wait  WAIT, the value that is waited with; so are latches and barriers of libstdc++
 *   Rust: mutex WAIT_BITSET, 2, no timeout; parked thread -1; rwlock has one of its two top bits set; condvar
 *   a counter
 *   Go's runtime lock  WAIT, 2
 * glibc registers a robust list for each thread, musl with the first robust mutex that is locked. Observed
 * with glibc 2.36 and 2.41, musl 1.2.3 and 1.2.5, and Rust 1.95; Go by the sources of its runtime
 * before 1.24. */
ALWAYS_INLINE u8 futex_use(struct task_struct *task, struct pt_regs *regs) {
    u64 op = regs->si;
    u32 value = (u32)regs->dx;
    u64 command = op & FUTEX_CMD;

    if (command == FUTEX_LOCK_PI || command == FUTEX_LOCK_PI2)
        return FUTEX_OWNER_WORD;
    if (command == FUTEX_WAIT) {
        if (value == MUTEX_CONTENDED)
            return has_robust_list(task) ? FUTEX_MUTEX : FUTEX_TWO;
        if (value == MUSL_CONTENDED && !has_robust_list(task))
            return FUTEX_LOCK;
        if ((value & FUTEX_WAITERS) && (value & FUTEX_TID_MASK) && value != THREAD_PARKED)
            return FUTEX_SOME_OWNER;
        return FUTEX_NO_LOCK;
    }
    if (command != FUTEX_WAIT_BITSET || !value)
        return FUTEX_NO_LOCK;
    if (op & FUTEX_CLOCK_REALTIME)
        return FUTEX_SHAPED;
    if (value == MUTEX_CONTENDED)
        return regs->r10 ? FUTEX_TIMED : FUTEX_LOCK;
    return (value >> 30) && value != THREAD_PARKED ? FUTEX_LOCK : FUTEX_NO_LOCK;
}

/* A lock, and the number that its owner has in memory; 0: none. */
struct futex_lock {
    u64 address;
    u32 owner;
};

/* Whether a futex is a lock, by its memory. `other` is as in read_futex_memory(). */
ALWAYS_INLINE bool is_futex_lock(u8 use, struct futex_lock *found, struct pt_regs *regs,
                                 struct task_struct *other) {
    u64 address = regs->di;
    u64 op = regs->si;
    u32 value = (u32)regs->dx;
    union futex_memory memory;

    found->address = address;
    found->owner = 0;
    switch (use) {
    case FUTEX_LOCK:
        return true;
    case FUTEX_SOME_OWNER:
        if (!has_owner_word(&memory, address, other))
            return true;
        /* fall through */
    case FUTEX_OWNER_WORD:
        if (read_futex_memory(&memory.word, sizeof(memory.word), address, other))
            found->owner = memory.word & FUTEX_TID_MASK;
        return true;
    case FUTEX_TWO:
        return !is_no_lock_of_musl(&memory, address, regs->sp, other);
    case FUTEX_MUTEX:
    case FUTEX_TIMED:
    case FUTEX_SHAPED:
        if (value == MUTEX_CONTENDED &&
            read_futex_memory(&memory.rest, sizeof(memory.rest), address + MUTEX_REST_OFFSET, other) &&
            is_held_mutex(&memory.rest, op)) {
            found->owner = memory.rest.owner;
            return true;
        }
        if (use == FUTEX_MUTEX)
            return !is_no_lock_of_musl(&memory, address, regs->sp, other);
        if (is_condition(&memory, address, value, other))
            return false;
        if (!is_rwlock(&memory, &found->address, value, op, other))
            return use == FUTEX_TIMED;
        found->owner = memory.rwlock.writer;
        return true;
    }
    return false;
}

/* Locks without an owner in memory have a word that is 0, 1, or 2 while others wait: Rust's and Go's mutexes,
 * the C library's own. Their waiters wait with the value 2, as others do for any number that is 2 just then:
 * a condition variable of Rust that was signalled twice, a latch, std::atomic::wait(). The word of a lock is
 * never above 2, and no wait for it has another value. One that lets go of it wakes one waiter.
 *
 * Sets the site of a wait whose value alone says that it is for a lock: the thread's call, and the word.
 * Whether it is known to be for none: the thread's last such wait had the word, and another value or was
 * found out; or user space knows the functions of the site. */
GLOBAL int is_number(struct thread_state *t) {
    struct wait_place *place;
    u64 site;

    if (!t)
        return 0;
    site = mix(mix(mix(HASH_STEP, t->key), t->call_from), t->lock_address) ?: 1;
    t->two_site = site;
    if (t->number_word && t->lock_address == t->number_word)
        return 1;
    place = bpf_map_lookup_elem(&places, &site);
    return place && place->verdict == PLACE_NO_LOCK;
}

/* The thread waits for a number, and is asleep: not for a lock, which it seemed to do. */
ALWAYS_INLINE void wait_for_number(struct thread_state *t) {
    t->number_word = t->lock_address;
    t->two_site = 0;
    t->reason = REASON_WAIT;
    t->place = 0;
}

/* The current thread, of the process of `t`, ends its wait with the value of a lock. It is in this system
 * call, and in futex(2) it wakes `count` threads that wait at `address`. The memory of a number may be that
 * of a lock by now: the next wait there has to show again what it is. */
GLOBAL int settle_number(struct thread_state *t, u64 nr, u64 op, u64 address, s32 count) {
    u32 command = op & FUTEX_CMD;
    u32 word = 0;
    bool wakes;

    if (!t || t->activity != ACTIVITY_BLOCKED || !t->futex)
        return 0;
    wakes = nr == NR_FUTEX && (command == FUTEX_WAKE || command == FUTEX_WAKE_BITSET) &&
            address == t->lock_address;
    bpf_probe_read_user(&word, sizeof(word), (void *)t->lock_address);
    if ((wakes && count > 1) || word > MUTEX_CONTENDED) {
        if (t->reason == REASON_LOCK)
            wait_for_number(t);
    } else if (wakes) {
        t->number_word = 0;
    }
    return 0;
}

/* The reason of a wait for a lock at `t->lock_address` without an owner. The lock of a word beside `address`
 * is of a known shape. */
GLOBAL int reason_without_owner(struct thread_state *t, u64 address, u32 value) {
    if (!t || value != MUTEX_CONTENDED || t->lock_address != address || t->futex == FUTEX_SHAPED ||
        t->futex == FUTEX_OWNER_WORD)
        return REASON_LOCK;
    return is_number(t) ? REASON_WAIT : REASON_LOCK;
}

/* The reason of a wait with this value in futex(2), by `t->futex`. */
GLOBAL int reason_by_value(struct thread_state *t, u32 value) {
    if (!t)
        return REASON_WAIT;
    t->two_site = 0;
    return is_lock_by_value(t->futex) ? reason_without_owner(t, t->lock_address, value) : REASON_WAIT;
}

/* The reason of a wait in futex(2), its lock and the lock's owner. The owner stays unknown where the thread
 * is not current, and what only memory shows is no lock then. */
ALWAYS_INLINE u8 futex_reason_by_value(struct thread_state *t, struct task_struct *task,
                                       struct pt_regs *regs) {
    t->futex = futex_use(task, regs);
    t->lock_address = regs->di;
    return reason_by_value(t, regs->dx);
}

/* The same of the current thread, whose memory can be read. Not inlined: the stack of on_switch is full. */
NOINLINE u8 futex_reason(struct thread_state *t, struct task_struct *task, struct pt_regs *regs) {
    struct futex_lock lock;

    t->futex = futex_use(task, regs);
    t->two_site = 0;
    t->lock_address = regs->di;
    if (t->futex == FUTEX_NO_LOCK) {
        t->number_word = t->lock_address;
        return REASON_WAIT;
    }
    if (!is_futex_lock(t->futex, &lock, regs, NULL))
        return REASON_WAIT;
    t->lock_address = lock.address;
    if (lock.owner) {
        t->lock_owner = lock.owner;
        t->owner_known = is_number_of_this_process(task, regs->si) ? OWNER_KNOWN : OWNER_IF_IT_WOKE;
        return REASON_LOCK;
    }
    return reason_without_owner(t, regs->di, regs->dx);
}

/* Whether a thread that is blocked waits for a lock that is a futex. */
ALWAYS_INLINE bool waits_for_futex(struct thread_state *t) { return t->futex && t->reason == REASON_LOCK; }
