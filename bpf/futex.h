/* What a futex is used for: a lock, whose owner may be known, or another wait. */
#pragma once

#include "thread_state.h"

#define FUTEX_CMD 0x7f
#define FUTEX_WAIT 0
#define FUTEX_LOCK_PI 6
#define FUTEX_WAIT_BITSET 9
#define FUTEX_WAIT_REQUEUE_PI 11
#define FUTEX_LOCK_PI2 13
#define FUTEX_CLOCK_REALTIME 256
#define FUTEX_PRIVATE 128
#define FUTEX_WAITERS 0x80000000U
#define FUTEX_TID_MASK 0x3fffffffU
#define MUTEX_CONTENDED 2
#define MUSL_CONTENDED 0x80000010U /* EBUSY, and the bit of waiters */
#define THREAD_PARKED 0xffffffffU

/* What is known of the owner of a futex that is a lock. */
enum futex_lock {
    FUTEX_NO_LOCK = 0,
    FUTEX_LOCK = 1,       /* nothing: no owner is in memory */
    FUTEX_MUTEX = 2,      /* the owner is beside the word, if that is glibc's mutex */
    FUTEX_OWNER_WORD = 3, /* the owner is the word */
};

/* Whether `lock_owner` is the thread that has the lock. */
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
#define MUTEX_SHARED 128
#define MUTEX_ELISION 0x300
#define MOST_TIDS (1 << 22) /* PID_MAX_LIMIT */

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

/* Whether the owner's number in this futex means a thread of the waiter's own process. A futex that processes
 * share may have the number of a thread in another pid namespace: two containers with a common mutex have a
 * process 1 each. */
ALWAYS_INLINE bool is_number_of_this_process(struct task_struct *task, u64 op) {
    return (op & FUTEX_PRIVATE) || !BPF_CORE_READ(task, thread_pid, level);
}

ALWAYS_INLINE void note_owner(struct thread_state *t, struct task_struct *task, u64 op, u32 owner) {
    owner &= FUTEX_TID_MASK;
    t->lock_owner = owner;
    t->owner_known = !owner                                ? OWNER_UNKNOWN
                     : is_number_of_this_process(task, op) ? OWNER_KNOWN
                                                           : OWNER_IF_IT_WOKE;
}

/* Reads the owner from user memory, which is possible only while the thread is current. For a page that is
 * not present the owner stays unknown. */
ALWAYS_INLINE void read_owner_word(struct thread_state *t, struct task_struct *task, u64 address, u64 op) {
    u32 owner = 0;

    if (!bpf_probe_read_user(&owner, sizeof(owner), (void *)address))
        note_owner(t, task, op, owner);
}

/* As above, from a mutex. False: the word is not that of a held mutex. */
ALWAYS_INLINE bool read_mutex_owner(struct thread_state *t, struct task_struct *task, u64 address, u64 op) {
    struct mutex_rest rest;

    if (bpf_probe_read_user(&rest, sizeof(rest), (void *)(address + MUTEX_REST_OFFSET)))
        return true;
    if (!is_held_mutex(&rest, op))
        return false;
    note_owner(t, task, op, rest.owner);
    return true;
}

/* The user of a futex shows in its operation and value:
 *   glibc mutex        WAIT, 2                      glibc timed mutex   WAIT_BITSET, 2, a timeout
 *   robust mutex       WAIT, tid|WAITERS            PI mutex            LOCK_PI(2)
 *   condvar, semaphore WAIT_BITSET|REALTIME, 0      rwlock              WAIT_BITSET|REALTIME, not 0
 *   join               WAIT_BITSET|REALTIME, shared (op 265)
 *   musl mutex         WAIT, 0x80000010; of the types errorcheck and recursive tid|WAITERS
 *   Rust: mutex WAIT_BITSET, 2, no timeout; parked thread -1; rwlock has one of its two top bits set; condvar
 *   a counter
 *   Go's runtime lock  WAIT, 2
 * glibc registers a robust list for each thread, musl with the first robust mutex that is locked: without a
 * list, 0x80000010 is a mutex of musl, and not held by thread 16.
 * Observed with glibc 2.36 and Rust 1.95; musl by its sources, Go by those of its runtime before 1.24. */
ALWAYS_INLINE u8 futex_reason(struct thread_state *t, struct task_struct *task, struct pt_regs *regs,
                              bool own) {
    u64 address = regs->di;
    u64 op = regs->si;
    u32 value = (u32)regs->dx;
    u64 command = op & FUTEX_CMD;
    u8 lock = FUTEX_NO_LOCK;

    if (command == FUTEX_LOCK_PI || command == FUTEX_LOCK_PI2) {
        lock = FUTEX_OWNER_WORD;
        if (own)
            read_owner_word(t, task, address, op);
    } else if (command == FUTEX_WAIT) {
        if (value == MUTEX_CONTENDED) {
            lock = FUTEX_MUTEX;
        } else if ((value & FUTEX_WAITERS) && value != THREAD_PARKED) {
            bool musl = value == MUSL_CONTENDED && !BPF_CORE_READ(task, robust_list);

            lock = musl ? FUTEX_LOCK : FUTEX_OWNER_WORD;
            if (!musl)
                note_owner(t, task, op, value);
        }
    } else if (command == FUTEX_WAIT_BITSET) {
        bool rust_rwlock = (value >> 30) && value != THREAD_PARKED;
        bool glibc_rwlock = (op & FUTEX_CLOCK_REALTIME) && (op & FUTEX_PRIVATE) && value;

        if (value == MUTEX_CONTENDED)
            lock = regs->r10 ? FUTEX_MUTEX : FUTEX_LOCK;
        else if (rust_rwlock || glibc_rwlock)
            lock = FUTEX_LOCK;
    }
    if (lock == FUTEX_NO_LOCK)
        return REASON_WAIT;
    if (lock == FUTEX_MUTEX && own && !read_mutex_owner(t, task, address, op))
        lock = FUTEX_LOCK;
    t->futex_lock = lock;
    t->lock_address = address;
    return REASON_LOCK;
}
