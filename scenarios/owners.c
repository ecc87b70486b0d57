// SPDX-License-Identifier: Apache-2.0
// owners: threads wait for locks whose memory says who holds them, or seems to, and for what is no lock.
//
// `keeper` holds eight kinds of mutex and two rwlocks. Their owner is in their memory; a rwlock that is held
// for reading has none, nor have those of musl. A `waiter` waits for each.
//
// For each of three locks that are made of a futex alone another `waiter` waits. Nothing says who holds
// these: the word 8 bytes further, where a mutex of glibc has its owner, is data. It is the number of a
// thread of this process: `bystander`, which holds nothing. lock_it stands between the named functions and
// glibc because a walk by frame pointers loses the direct caller of a libc function without a frame.
//
// Two `waiter`s wait at a word that counts, and is 2 when they come. It has gone on to 5 since, as if others
// had been woken.
//
// Other `waiter`s wait for a signal to a condition variable that had `rounds` pairs of signals before, and
// before each pair `timeouts` waits that ran out of their timeout; for a semaphore, for the end of
// `bystander`, and at a barrier. From glibc 2.41 on the word of a condition variable grows with the signals,
// through the values of locks. Waits that run out of their timeout count down beside the word.
//
// Built with musl too (owners-musl).
//
// Truth, besides truth.h's start and end lines (the threads never end, so they have no `thread` lines):
//   {"event":"stuck", "tid", "kind", "wants", "owner"}   printed as soon as all waiters sleep in the kernel:
//       address of the lock, 0 where it is no lock, and the tid of its owner, 0 where no memory says it
// The main thread prints and then waits for -d seconds, SIGTERM or, gated, stdin's end.

#include "truth.h"

#include <linux/futex.h>
#include <semaphore.h>
#include <sys/syscall.h>

#ifdef __GLIBC__
#define MUSL false
#define ADAPTIVE PTHREAD_MUTEX_ADAPTIVE_NP
#else
#define MUSL true
#define ADAPTIVE PTHREAD_MUTEX_NORMAL
#endif

// A lock of its own making, and what its program keeps beside it.
struct foreign {
    _Atomic uint32_t word;
    uint32_t unused;
    uint32_t served; // the number of a thread
    uint32_t requests;
    uint64_t total[4];
};

enum how {
    LOCK,
    TIMED_LOCK,
    // Locks without memory beside their word.
    WAIT,
    WAIT_BITSET,
    TIMED_WAIT_BITSET,
    // rwlocks.
    READ,
    WRITE,
    WRITE_READ, // held for reading
    // No locks.
    CONDITION,
    MONOTONIC_CONDITION,
    TIMED_CONDITION,
    SEMAPHORE,
    JOIN,
    BARRIER,
    COUNT,
    COUNT_BITSET
};

struct kind {
    const char *name;
    int type, robust, protocol, shared;
    enum how how;
    int rounds; // of signals
    int timeouts;
};

static const struct kind kinds[] = {
    {.name = "normal", .type = PTHREAD_MUTEX_NORMAL},
    {.name = "recursive", .type = PTHREAD_MUTEX_RECURSIVE},
    {.name = "errorcheck", .type = PTHREAD_MUTEX_ERRORCHECK},
    {.name = "adaptive", .type = ADAPTIVE},
    {.name = "shared", .type = PTHREAD_MUTEX_NORMAL, .shared = 1},
    {.name = "robust", .type = PTHREAD_MUTEX_NORMAL, .robust = 1},
    {.name = "inheriting", .type = PTHREAD_MUTEX_NORMAL, .protocol = 1},
    {.name = "timed", .type = PTHREAD_MUTEX_NORMAL, .how = TIMED_LOCK},
    {.name = "foreign", .how = WAIT},
    {.name = "foreign-bitset", .how = WAIT_BITSET},
    {.name = "foreign-timed", .how = TIMED_WAIT_BITSET},
    {.name = "read", .how = READ},
    {.name = "write", .how = WRITE},
    {.name = "write-read", .how = WRITE_READ},
    {.name = "condition", .how = CONDITION},
    {.name = "condition-2", .how = CONDITION, .rounds = 1},
    {.name = "condition-4", .how = CONDITION, .rounds = 2},
    {.name = "condition-many", .how = CONDITION, .rounds = 500},
    {.name = "monotonic-2", .how = MONOTONIC_CONDITION, .rounds = 1},
    {.name = "monotonic-4", .how = MONOTONIC_CONDITION, .rounds = 2},
    {.name = "timed-0", .how = TIMED_CONDITION},
    {.name = "timed-2", .how = TIMED_CONDITION, .rounds = 1},
    {.name = "timed-4", .how = TIMED_CONDITION, .rounds = 2},
    {.name = "timeouts", .how = CONDITION, .timeouts = 3},
    // What follows it in memory is zero: with the value 6 it looks like a rwlock.
    {.name = "timeouts-6", .how = CONDITION, .rounds = 4, .timeouts = 1},
    {.name = "semaphore", .how = SEMAPHORE},
    {.name = "join", .how = JOIN},
    {.name = "barrier", .how = BARRIER},
    {.name = "count", .how = COUNT},
    {.name = "count-bitset", .how = COUNT_BITSET},
};
#define KINDS (int)(sizeof kinds / sizeof kinds[0])

static pthread_mutex_t mutexes[KINDS];
static struct foreign foreign[KINDS];
static pthread_rwlock_t rwlocks[KINDS];
static pthread_cond_t conditions[KINDS];
static sem_t semaphore;
static pthread_barrier_t barrier;
static pthread_t standing;
static atomic_int ready; // of keeper and bystander
static struct run run = {.scenario = "owners", .seconds = 3600, .seed = 42};

static bool is_count(int kind) { return kinds[kind].how >= COUNT; }
static bool is_foreign(int kind) { return kinds[kind].how >= WAIT && kinds[kind].how < READ; }
static bool is_rwlock(int kind) { return kinds[kind].how >= READ && kinds[kind].how < CONDITION; }
static bool is_lock(int kind) { return kinds[kind].how < CONDITION; }

// A rwlock of musl that is held for writing has the word of a semaphore.
static bool looks_like_lock(int kind) {
    return is_lock(kind) && !(MUSL && is_rwlock(kind) && kinds[kind].how != WRITE_READ);
}

static void make_mutex(int kind) {
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_settype(&how, kinds[kind].type);
    if (kinds[kind].robust)
        pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
    if (kinds[kind].protocol)
        pthread_mutexattr_setprotocol(&how, PTHREAD_PRIO_INHERIT);
    if (kinds[kind].shared)
        pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    int error = pthread_mutex_init(&mutexes[kind], &how);
    if (error != 0)
        die("cannot make a mutex", error);
}

SHOWN static void lock_it(int kind) {
    struct timespec late = {.tv_sec = (time_t)(read_clock(CLOCK_REALTIME) / NS_PER_S) + 3600};
    if (kinds[kind].how == TIMED_LOCK)
        pthread_mutex_timedlock(&mutexes[kind], &late);
    else
        pthread_mutex_lock(&mutexes[kind]);
}

SHOWN static void take_rwlock(int kind) {
    if (kinds[kind].how == READ)
        pthread_rwlock_rdlock(&rwlocks[kind]);
    else
        pthread_rwlock_wrlock(&rwlocks[kind]);
}

SHOWN static void hold_rwlock(int kind) {
    if (kinds[kind].how == WRITE_READ)
        pthread_rwlock_rdlock(&rwlocks[kind]);
    else
        pthread_rwlock_wrlock(&rwlocks[kind]);
}

static void make_condition(int kind) {
    pthread_condattr_t how;
    pthread_condattr_init(&how);
    if (kinds[kind].how == MONOTONIC_CONDITION || kinds[kind].how == TIMED_CONDITION)
        pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    pthread_cond_init(&conditions[kind], &how);
}

SHOWN static void wait_for_signal(int kind) {
    struct timespec late = {.tv_sec = (time_t)(now_ns() / NS_PER_S) + 3600};
    if (kinds[kind].how == TIMED_CONDITION)
        pthread_cond_timedwait(&conditions[kind], &mutexes[kind], &late);
    else
        pthread_cond_wait(&conditions[kind], &mutexes[kind]);
}

// Waits that nobody ends: their timeouts are over.
static void run_out_of_timeouts(int kind) {
    struct timespec now = {.tv_sec = (time_t)(read_clock(CLOCK_REALTIME) / NS_PER_S)};
    pthread_mutex_lock(&mutexes[kind]);
    for (int i = 0; i < kinds[kind].timeouts; i++)
        pthread_cond_timedwait(&conditions[kind], &mutexes[kind], &now);
    pthread_mutex_unlock(&mutexes[kind]);
}

// Two threads for each condition variable, so that its groups of waiters have two.
static atomic_int signalled[KINDS];

static void *take_signals(void *argument) {
    int kind = (int)(intptr_t)argument;
    for (int i = 0; i < kinds[kind].rounds; i++) {
        pthread_mutex_lock(&mutexes[kind]);
        atomic_fetch_add(&signalled[kind], 1);
        pthread_cond_wait(&conditions[kind], &mutexes[kind]);
        pthread_mutex_unlock(&mutexes[kind]);
    }
    return NULL;
}

static void signal_in_pairs(int kind) {
    pthread_t pair[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&pair[i], NULL, take_signals, (void *)(intptr_t)kind);
    for (int i = 1; i <= kinds[kind].rounds; i++) {
        while (atomic_load(&signalled[kind]) < 2 * i)
            sched_yield();
        run_out_of_timeouts(kind);
        pthread_mutex_lock(&mutexes[kind]);
        pthread_cond_broadcast(&conditions[kind]);
        pthread_mutex_unlock(&mutexes[kind]);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(pair[i], NULL);
}

// Waits until the word is no longer 2, which it stays, or until it is woken.
SHOWN static void wait_for_word(int kind) {
    struct timespec late = {.tv_sec = (time_t)(now_ns() / NS_PER_S) + 3600};
    bool is_plain = kinds[kind].how == WAIT || kinds[kind].how == COUNT;
    int op = FUTEX_PRIVATE_FLAG | (is_plain ? FUTEX_WAIT : FUTEX_WAIT_BITSET);
    while (atomic_load(&foreign[kind].word) == 2)
        syscall(SYS_futex, &foreign[kind].word, op, 2, kinds[kind].how == TIMED_WAIT_BITSET ? &late : NULL,
                NULL, FUTEX_BITSET_MATCH_ANY);
}

static void keep(struct runner *self) {
    (void)self;
    for (int kind = 0; kind < KINDS; kind++)
        if (is_rwlock(kind))
            hold_rwlock(kind);
        else if (!is_foreign(kind) && is_lock(kind))
            lock_it(kind);
    atomic_fetch_add(&ready, 1);
    for (;;)
        pause();
}

static void stand_by(struct runner *self) {
    standing = pthread_self();
    for (int kind = 0; kind < KINDS; kind++)
        foreign[kind] = (struct foreign){.word = 2, .served = (uint32_t)self->tid, .total = {1}};
    atomic_fetch_add(&ready, 1);
    for (;;)
        pause();
}

static void wait_until_ready(void) {
    while (atomic_load(&ready) < 2)
        sched_yield();
}

SHOWN static void take_order(struct runner *self) {
    int kind = self->index;
    wait_until_ready();
    if (is_foreign(kind) || is_count(kind)) {
        wait_for_word(kind);
    } else if (is_rwlock(kind)) {
        take_rwlock(kind);
    } else if (is_lock(kind)) {
        lock_it(kind);
    } else if (kinds[kind].how == SEMAPHORE) {
        sem_wait(&semaphore);
    } else if (kinds[kind].how == JOIN) {
        pthread_join(standing, NULL);
    } else if (kinds[kind].how == BARRIER) {
        pthread_barrier_wait(&barrier);
    } else {
        run_out_of_timeouts(kind);
        pthread_mutex_lock(&mutexes[kind]);
        for (;;)
            wait_for_signal(kind);
    }
}

// musl keeps no owner in a mutex of the ordinary kind, nor in a rwlock.
static bool has_owner(int kind) {
    if (is_foreign(kind) || !looks_like_lock(kind) || kinds[kind].how == WRITE_READ)
        return false;
    bool is_kept = kinds[kind].type == PTHREAD_MUTEX_RECURSIVE ||
                   kinds[kind].type == PTHREAD_MUTEX_ERRORCHECK || kinds[kind].robust || kinds[kind].protocol;
    return !MUSL || is_kept;
}

// The address by which the lock is known: in musl a mutex begins with its type.
static unsigned long lock_of(int kind) {
    if (!looks_like_lock(kind))
        return 0;
    if (is_foreign(kind))
        return (unsigned long)&foreign[kind];
    if (is_rwlock(kind))
        return (unsigned long)&rwlocks[kind];
    return (unsigned long)&mutexes[kind] + (MUSL ? 4 : 0);
}

static bool is_asleep(pid_t tid) { return state_of(tid) == 'S'; }

static void print_stuck(const struct runner *waiter, pid_t keeper) {
    int kind = waiter->index;
    while (!is_asleep(waiter->tid))
        sched_yield();
    if (is_count(kind))
        atomic_store(&foreign[kind].word, 5);
    printf("{\"event\":\"stuck\",\"tid\":%d,\"kind\":\"%s\",\"wants\":\"%#lx\",\"owner\":%d}\n", waiter->tid,
           kinds[kind].name, lock_of(kind), has_owner(kind) ? keeper : 0);
}

int main(int argc, char **argv) {
    struct runner runners[KINDS + 2] = {{.name = "keeper", .body = keep},
                                        {.name = "bystander", .body = stand_by}};
    take_options(argc, argv, &run, NULL, 0);
    sem_init(&semaphore, 0, 0);
    pthread_barrier_init(&barrier, NULL, 2);
    for (int kind = 0; kind < KINDS; kind++) {
        make_mutex(kind);
        pthread_rwlock_init(&rwlocks[kind], NULL);
        make_condition(kind);
        signal_in_pairs(kind);
        runners[kind + 2] = (struct runner){.name = "waiter", .body = take_order, .index = kind};
    }
    assemble_runners(runners, KINDS + 2);
    print_start(runners, KINDS + 2, &run);
    wait_for_go(&run);
    release_runners(runners, KINDS + 2, &run);
    wait_until_ready();
    for (int kind = 0; kind < KINDS; kind++)
        print_stuck(&runners[kind + 2], runners[0].tid);
    print_end();
    if (run.gated)
        wait_for_leave(&run);
    else
        sleep_until(atomic_load(&run_ends_at));
    // Returning ends the stuck threads with the process.
}
