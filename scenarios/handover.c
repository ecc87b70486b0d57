// SPDX-License-Identifier: Apache-2.0
// handover: condition variables as a lock and as a queue, so often that not every wait can be recorded.
//
//   locker-0 …   take a lock that is a number and a condition variable, use it, and hand it to the next in
//   turn:
//                use_lock → take_lock → wait_for_change. Alone they contend all the time and use it for 20
//                µs. Beside a queue they take it together every 16 ms, and sleep with it for 0.3 ms.
//   worker       many, of one name: they take jobs from a queue, take_jobs → take_job → wait_for_change
//   source       sleeps for half a millisecond, and brings a job for each worker
//
// Truth, besides truth.h's lines:
//   {"event":"waits", "tid", "name", "count", "total_ns", "long"}   a thread's waits for a change by its own
//       clock, and how many of them took at least a quarter of a millisecond
// Options: -k lock|queue|both, what runs (default lock).

#include "truth.h"

#define LOCKERS 4
#define WORKERS 8
#define USE_NS (20 * NS_PER_US)
#define SLOW_USE_NS (300 * NS_PER_US)
#define TICK_NS (16 * NS_PER_MS)
#define LONG_NS (250 * NS_PER_US)
#define BREAK_NS (500 * NS_PER_US)

struct state {
    pthread_mutex_t guard;
    pthread_cond_t changed;
};

struct waits {
    uint64_t count, total_ns, long_ones;
};

static struct state lock = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};
static struct state queue = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};
static uint64_t turn, tickets;
static int jobs;
static bool is_closed;
static struct runner runners[LOCKERS + WORKERS + 1];
static struct waits waits[LOCKERS + WORKERS + 1];
static int runner_count;
static const char *kind = "lock";
static struct run run = {.scenario = "handover", .seconds = 5, .seed = 42};

SHOWN static void wait_for_change(struct state *state, struct runner *self) {
    struct waits *own = &waits[self - runners];
    uint64_t start = now_ns(), waited;
    pthread_cond_wait(&state->changed, &state->guard);
    waited = now_ns() - start;
    own->count++;
    own->total_ns += waited;
    own->long_ones += waited >= LONG_NS;
}

// --- the lock ---

SHOWN static void take_lock(struct runner *self) {
    uint64_t ticket;
    pthread_mutex_lock(&lock.guard);
    ticket = tickets++;
    while (turn != ticket)
        wait_for_change(&lock, self);
    pthread_mutex_unlock(&lock.guard);
}

SHOWN static void release_lock(void) {
    pthread_mutex_lock(&lock.guard);
    turn++;
    pthread_mutex_unlock(&lock.guard);
    pthread_cond_broadcast(&lock.changed);
}

SHOWN static void use_lock(struct runner *self) {
    while (!run_is_over()) {
        take_lock(self);
        spin_until(now_ns() + USE_NS);
        release_lock();
    }
}

SHOWN static void use_lock_slowly(struct runner *self) {
    while (!run_is_over()) {
        uint64_t now = now_ns();
        sleep_until(now - now % TICK_NS + TICK_NS);
        take_lock(self);
        sleep_for(SLOW_USE_NS);
        release_lock();
    }
}

// --- the queue ---

// False when there will be no more jobs.
SHOWN static bool take_job(struct runner *self) {
    bool is_job;
    pthread_mutex_lock(&queue.guard);
    while (jobs == 0 && !is_closed)
        wait_for_change(&queue, self);
    is_job = jobs > 0;
    jobs -= is_job;
    pthread_mutex_unlock(&queue.guard);
    return is_job;
}

SHOWN static void take_jobs(struct runner *self) {
    while (take_job(self))
        ;
}

SHOWN static void bring_jobs(struct runner *self) {
    (void)self;
    while (!is_closed) {
        sleep_for(BREAK_NS);
        pthread_mutex_lock(&queue.guard);
        jobs = WORKERS;
        is_closed = run_is_over();
        pthread_mutex_unlock(&queue.guard);
        pthread_cond_broadcast(&queue.changed);
    }
}

static void print_waits(const struct runner *runner, const struct waits *own) {
    printf(
        "{\"event\":\"waits\",\"tid\":%d,\"name\":\"%s\",\"count\":%llu,\"total_ns\":%llu,\"long\":%llu}\n",
        runner->tid, runner->name, (unsigned long long)own->count, (unsigned long long)own->total_ns,
        (unsigned long long)own->long_ones);
}

static void print_truth(void) {
    for (int i = 0; i < runner_count; i++)
        print_waits(&runners[i], &waits[i]);
}

static void add_runner(const char *name, void (*body)(struct runner *), int index) {
    runners[runner_count++] = (struct runner){.name = name, .body = body, .index = index};
}

int main(int argc, char **argv) {
    static const char *const lockers[LOCKERS] = {"locker-0", "locker-1", "locker-2", "locker-3"};
    const struct own_option own = {.letter = 'k', .argument = "lock|queue|both", .text = &kind};
    bool has_queue, has_lock;
    take_options(argc, argv, &run, &own, 1);
    has_queue = strcmp(kind, "lock") != 0;
    has_lock = strcmp(kind, "queue") != 0;
    for (int i = 0; i < LOCKERS && has_lock; i++)
        add_runner(lockers[i], has_queue ? use_lock_slowly : use_lock, i);
    if (has_queue)
        add_runner("source", bring_jobs, 0);
    for (int i = 0; i < WORKERS && has_queue; i++)
        add_runner("worker", take_jobs, i);
    run_scenario(runners, runner_count, &run, print_truth);
}
