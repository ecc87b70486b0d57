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
#define THREAD_PARKED 0xffffffffU

/* glibc's pthread_mutex_t: lock word, count, owner. */
#define MUTEX_OWNER_OFFSET 8

ALWAYS_INLINE void note_owner(struct thread_state *t, u32 owner) {
    owner &= FUTEX_TID_MASK;
    t->lock_owner = owner;
    t->owner_known = owner != 0;
}

/* Reads the owner from user memory, which is possible only while the thread is current. For a page that is
 * not present the owner stays unknown. */
ALWAYS_INLINE void read_owner(struct thread_state *t, u64 address, bool own) {
    u32 owner = 0;

    if (own && !bpf_probe_read_user(&owner, sizeof(owner), (void *)address))
        note_owner(t, owner);
}

/* The user of a futex shows in its operation and value:
 *   glibc mutex        WAIT, 2                      glibc timed mutex   WAIT_BITSET, 2
 *   robust mutex       WAIT, tid|WAITERS            PI mutex            LOCK_PI(2)
 *   condvar, semaphore WAIT_BITSET|REALTIME, 0      rwlock              WAIT_BITSET|REALTIME, not 0
 *   join               WAIT_BITSET|REALTIME, shared (op 265)
 *   Rust: mutex WAIT_BITSET, 2; parked thread -1; rwlock has one of its two top bits set; condvar a counter
 * Observed with glibc 2.36 and Rust 1.95. */
ALWAYS_INLINE u8 futex_reason(struct thread_state *t, u64 address, u64 op, u32 value, bool own) {
    u64 command = op & FUTEX_CMD;
    bool lock = false;

    if (command == FUTEX_LOCK_PI || command == FUTEX_LOCK_PI2) {
        read_owner(t, address, own);
        lock = true;
    } else if (command == FUTEX_WAIT) {
        if (value == MUTEX_CONTENDED) {
            read_owner(t, address + MUTEX_OWNER_OFFSET, own);
            lock = true;
        } else if ((value & FUTEX_WAITERS) && value != THREAD_PARKED) {
            note_owner(t, value);
            lock = true;
        }
    } else if (command == FUTEX_WAIT_BITSET) {
        bool rust_rwlock = (value >> 30) && value != THREAD_PARKED;
        bool glibc_rwlock = (op & FUTEX_CLOCK_REALTIME) && (op & FUTEX_PRIVATE) && value;

        lock = value == MUTEX_CONTENDED || rust_rwlock || glibc_rwlock;
        if (value == MUTEX_CONTENDED)
            read_owner(t, address + MUTEX_OWNER_OFFSET, own);
    }
    if (!lock)
        return REASON_WAIT;
    t->futex_lock = 1;
    t->lock_address = address;
    return REASON_LOCK;
}
