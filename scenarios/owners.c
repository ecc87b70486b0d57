// owners: threads wait for locks whose memory says who holds them, or seems to.
//
// `keeper` holds eight kinds of mutex of glibc. Their owner is in the mutex. A `waiter` waits for each.
// For each of three locks that are made of a futex alone another `waiter` waits. Nothing says who holds
// these: the word 8 bytes further, where a mutex of glibc has its owner, is data. It is the number of a
// thread of this process: `bystander`, which holds nothing. lock_it stands between the named functions and
// glibc because a walk by frame pointers loses the direct caller of a libc function without a frame.
//
// The last `waiter` waits as for a mutex of musl, whose word is EBUSY with the bit of waiters, and it has no
// robust list, as threads of musl have none.
//
// Truth, besides truth.h's start and end lines (the threads never end, so they have no `thread` lines):
//   {"event":"stuck", "tid", "kind", "wants", "owner"}   printed as soon as all waiters sleep in the kernel:
//       address of the lock, and the tid of its owner, 0 where no memory says it
// The main thread prints and then waits for -d seconds, SIGTERM or, gated, stdin's end.

#include "truth.h"

#include <linux/futex.h>
#include <sys/syscall.h>

// A lock of its own making, and what its program keeps beside it.
struct foreign {
    _Atomic uint32_t word;
    uint32_t unused;
    uint32_t served; // the number of a thread
    uint32_t requests;
    uint64_t total[4];
};

enum how { LOCK, TIMED_LOCK, WAIT, WAIT_BITSET, TIMED_WAIT_BITSET, WAIT_AS_MUSL };

struct kind {
    const char *name;
    int type, robust, protocol, shared;
    enum how how;
};

static const struct kind kinds[] = {
    {"normal", PTHREAD_MUTEX_NORMAL, 0, 0, 0, LOCK},
    {"recursive", PTHREAD_MUTEX_RECURSIVE, 0, 0, 0, LOCK},
    {"errorcheck", PTHREAD_MUTEX_ERRORCHECK, 0, 0, 0, LOCK},
    {"adaptive", PTHREAD_MUTEX_ADAPTIVE_NP, 0, 0, 0, LOCK},
    {"shared", PTHREAD_MUTEX_NORMAL, 0, 0, 1, LOCK},
    {"robust", PTHREAD_MUTEX_NORMAL, 1, 0, 0, LOCK},
    {"inheriting", PTHREAD_MUTEX_NORMAL, 0, 1, 0, LOCK},
    {"timed", PTHREAD_MUTEX_NORMAL, 0, 0, 0, TIMED_LOCK},
    {"foreign", 0, 0, 0, 0, WAIT},
    {"foreign-bitset", 0, 0, 0, 0, WAIT_BITSET},
    {"foreign-timed", 0, 0, 0, 0, TIMED_WAIT_BITSET},
    {"musl", 0, 0, 0, 0, WAIT_AS_MUSL},
};
#define KINDS (int)(sizeof kinds / sizeof kinds[0])

static pthread_mutex_t mutexes[KINDS];
static struct foreign foreign[KINDS];
static atomic_int ready; // of keeper and bystander
static struct run run = {.scenario = "owners", .seconds = 3600, .seed = 42};

static bool is_foreign(int kind) { return kinds[kind].how >= WAIT; }

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

// musl's pthread_mutex_lock of a mutex that is not of type errorcheck or recursive.
SHOWN static void wait_as_musl(int kind) {
    syscall(SYS_set_robust_list, NULL, 3 * sizeof(void *));
    foreign[kind].word = EBUSY | 0x80000000;
    for (;;)
        syscall(SYS_futex, &foreign[kind].word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, EBUSY | 0x80000000, NULL);
}

// Waits until the word is no longer 2, which it stays.
SHOWN static void wait_for_word(int kind) {
    struct timespec late = {.tv_sec = (time_t)(now_ns() / NS_PER_S) + 3600};
    int op = FUTEX_PRIVATE_FLAG | (kinds[kind].how == WAIT ? FUTEX_WAIT : FUTEX_WAIT_BITSET);
    while (atomic_load(&foreign[kind].word) == 2)
        syscall(SYS_futex, &foreign[kind].word, op, 2, kinds[kind].how == TIMED_WAIT_BITSET ? &late : NULL,
                NULL, FUTEX_BITSET_MATCH_ANY);
}

static void keep(struct actor *self) {
    (void)self;
    for (int kind = 0; kind < KINDS; kind++)
        if (!is_foreign(kind))
            lock_it(kind);
    atomic_fetch_add(&ready, 1);
    for (;;)
        pause();
}

static void stand_by(struct actor *self) {
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

SHOWN static void take_order(struct actor *self) {
    wait_until_ready();
    if (kinds[self->index].how == WAIT_AS_MUSL)
        wait_as_musl(self->index);
    else if (is_foreign(self->index))
        wait_for_word(self->index);
    else
        lock_it(self->index);
}

static bool is_asleep(pid_t tid) { return state_of(tid) == 'S'; }

static void print_stuck(const struct actor *waiter, pid_t keeper) {
    int kind = waiter->index;
    void *lock = is_foreign(kind) ? (void *)&foreign[kind] : (void *)&mutexes[kind];
    while (!is_asleep(waiter->tid))
        sched_yield();
    printf("{\"event\":\"stuck\",\"tid\":%d,\"kind\":\"%s\",\"wants\":\"%p\",\"owner\":%d}\n", waiter->tid,
           kinds[kind].name, lock, is_foreign(kind) ? 0 : keeper);
}

int main(int argc, char **argv) {
    struct actor actors[KINDS + 2] = {{.name = "keeper", .act = keep},
                                      {.name = "bystander", .act = stand_by}};
    take_options(argc, argv, &run, NULL, 0);
    for (int kind = 0; kind < KINDS; kind++) {
        make_mutex(kind);
        actors[kind + 2] = (struct actor){.name = "waiter", .act = take_order, .index = kind};
    }
    assemble_actors(actors, KINDS + 2);
    print_start(actors, KINDS + 2, &run);
    wait_for_go(&run);
    release_actors(actors, KINDS + 2, &run);
    wait_until_ready();
    for (int kind = 0; kind < KINDS; kind++)
        print_stuck(&actors[kind + 2], actors[0].tid);
    print_end();
    if (run.gated)
        wait_for_leave(&run);
    else
        sleep_until(atomic_load(&run_ends_at));
    // Returning ends the stuck threads with the process.
}
