// SPDX-License-Identifier: Apache-2.0
// deadlock: two threads that lock the same two mutexes in opposite order, and stay; or a ring of three.
//
// `left` holds the accounts and wants the orders, `right` the other way round: settle_left or settle_right →
// take_second_lock. With -n 3, `right` wants the prices, which `third` holds, and `third` wants the accounts:
// settle_third. Each takes its second lock only when all have their first.
// lock_mutex stands between the named functions and glibc because a walk by frame pointers loses the direct
// caller of a libc function without a frame.
//
// Truth, besides truth.h's start and end lines (the threads never end, so they have no `thread` lines):
//   {"event":"stuck", "tid", "name", "holds", "wants", "owner", "since_ns"}   printed as soon as all threads
//       sleep in the kernel: addresses of the mutexes, tid of the wanted one's owner, and when the thread
//       asked for it
// Options: -n THREADS, 2 or 3 (default 2).
// The main thread prints and then waits for -d seconds, SIGTERM or, gated, stdin's end.

#include "truth.h"

struct settler {
    pthread_mutex_t *holds, *wants;
    _Atomic uint64_t since_ns;
};

static pthread_mutex_t accounts = PTHREAD_MUTEX_INITIALIZER, orders = PTHREAD_MUTEX_INITIALIZER,
                       prices = PTHREAD_MUTEX_INITIALIZER;
static struct settler settlers[3] = {{.holds = &accounts}, {.holds = &orders}, {.holds = &prices}};
static uint64_t threads = 2;
static pthread_barrier_t all_hold_one;
static struct run run = {.scenario = "deadlock", .seconds = 3600, .seed = 42};

SHOWN static void lock_mutex(pthread_mutex_t *mutex) { pthread_mutex_lock(mutex); }

SHOWN static void take_second_lock(struct settler *settler) {
    atomic_store(&settler->since_ns, now_ns());
    lock_mutex(settler->wants);
}

static void settle(struct settler *settler) {
    lock_mutex(settler->holds);
    pthread_barrier_wait(&all_hold_one);
    take_second_lock(settler);
}

SHOWN static void settle_left(struct runner *self) {
    (void)self;
    settle(&settlers[0]);
}

SHOWN static void settle_right(struct runner *self) {
    (void)self;
    settle(&settlers[1]);
}

SHOWN static void settle_third(struct runner *self) {
    (void)self;
    settle(&settlers[2]);
}

static bool is_asleep(pid_t tid) { return state_of(tid) == 'S'; }

static void wait_until_stuck(const struct runner *runners) {
    for (uint64_t i = 0; i < threads; i++)
        while (atomic_load(&settlers[i].since_ns) == 0 || !is_asleep(runners[i].tid))
            sched_yield();
}

static void print_stuck(const struct runner *runners) {
    for (uint64_t i = 0; i < threads; i++)
        printf(
            "{\"event\":\"stuck\",\"tid\":%d,\"name\":\"%s\",\"holds\":\"%p\",\"wants\":\"%p\",\"owner\":%d,"
            "\"since_ns\":%llu}\n",
            runners[i].tid, runners[i].name, (void *)settlers[i].holds, (void *)settlers[i].wants,
            runners[(i + 1) % threads].tid, (unsigned long long)settlers[i].since_ns);
}

int main(int argc, char **argv) {
    const struct own_option own[] = {{.letter = 'n', .argument = "THREADS", .count = &threads}};
    struct runner runners[] = {{.name = "left", .body = settle_left},
                               {.name = "right", .body = settle_right},
                               {.name = "third", .body = settle_third}};
    take_options(argc, argv, &run, own, 1);
    if (threads != 2 && threads != 3)
        die("-n", EINVAL);
    for (uint64_t i = 0; i < threads; i++)
        settlers[i].wants = settlers[(i + 1) % threads].holds;
    pthread_barrier_init(&all_hold_one, NULL, (unsigned)threads);
    assemble_runners(runners, (int)threads);
    print_start(runners, (int)threads, &run);
    wait_for_go(&run);
    release_runners(runners, (int)threads, &run);
    wait_until_stuck(runners);
    print_stuck(runners);
    print_end();
    if (run.gated)
        wait_for_leave(&run);
    else
        sleep_until(atomic_load(&run_ends_at));
    // Returning ends the stuck threads with the process.
}
