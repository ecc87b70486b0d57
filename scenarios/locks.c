// SPDX-License-Identifier: Apache-2.0
// locks: four threads contend for a lock that is made of something else than a mutex.
//
// Each `server` handles requests, one after the other: serve → handle_request → do_work → take → take_… It
// holds the lock for 0.2 to 2 ms, most of which it sleeps as for a device. Outside of the lock it works
// for 50 to 200 µs and waits for its next request for 0.2 to 2 ms.
//
//   condvar     a flag under a mutex, and a condition variable that says that it changed
//   semaphore   a POSIX semaphore of the value 1
//   pipe        a pipe with one byte in it: the thread that read it has the lock
//   eventfd     an eventfd that counts to 1
//   slices      as condvar, but it is waited for 5 ms at a time, again and again; held for 2 to 12 ms
//
// Truth, besides truth.h's lines: those of waits.h, about the acquisitions of the lock, and
//   {"event":"breaks", "count"}   times that a wait in slices went on for a lock that another thread had
//       taken first, or not within 100 µs after the end of a slice
// Options: -w KIND, what the lock is made of (default condvar).

#include "waits.h"

#include <sys/eventfd.h>

#define SERVERS 4
#define SLICE_NS (5 * NS_PER_MS)
#define AT_ONCE_NS (100 * NS_PER_US)

static const struct work think = {200 * NS_PER_US, 2 * NS_PER_MS};
static const struct work outside = {50 * NS_PER_US, 200 * NS_PER_US};
static const struct work brief = {200 * NS_PER_US, 2 * NS_PER_MS};
static const struct work lengthy = {2 * NS_PER_MS, 12 * NS_PER_MS};

static struct run run = {.scenario = "locks", .seconds = 5, .seed = 42};
static struct runner runners[SERVERS];
static struct durations waits[SERVERS];

// --- what the lock is made of ---

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t released;
static bool is_held;
static uint64_t breaks;
static sem_t semaphore;
static int token_pipe[2], token_event;

SHOWN static void take_by_condvar(void) {
    pthread_mutex_lock(&guard);
    while (is_held)
        pthread_cond_wait(&released, &guard);
    is_held = true;
    pthread_mutex_unlock(&guard);
}

SHOWN static void release_by_condvar(void) {
    pthread_mutex_lock(&guard);
    is_held = false;
    pthread_mutex_unlock(&guard);
    pthread_cond_signal(&released);
}

SHOWN static void take_by_semaphore(void) {
    while (sem_wait(&semaphore) != 0)
        ;
}

SHOWN static void release_by_semaphore(void) { sem_post(&semaphore); }

SHOWN static void take_by_pipe(void) {
    char token;
    if (read(token_pipe[0], &token, 1) != 1)
        die("cannot read from a pipe", errno);
}

SHOWN static void release_by_pipe(void) {
    if (write(token_pipe[1], "t", 1) != 1)
        die("cannot write to a pipe", errno);
}

SHOWN static void take_by_eventfd(void) {
    uint64_t token;
    if (read(token_event, &token, sizeof token) != sizeof token)
        die("cannot read from an eventfd", errno);
}

SHOWN static void release_by_eventfd(void) {
    const uint64_t token = 1;
    if (write(token_event, &token, sizeof token) != sizeof token)
        die("cannot write to an eventfd", errno);
}

// One slice of a wait, until the time that it returns. A wait breaks where its thread was woken for a lock
// that another one took first, and where the slice before, which was to end at `before_ns`, is too long ago.
SHOWN static uint64_t await_release(uint64_t before_ns) {
    uint64_t start_ns = now_ns(), until_ns = start_ns + SLICE_NS;
    struct timespec until = {(time_t)(until_ns / NS_PER_S), (long)(until_ns % NS_PER_S)};
    bool is_woken = pthread_cond_timedwait(&released, &guard, &until) == 0;
    bool is_late = before_ns != 0 && start_ns > before_ns + AT_ONCE_NS;
    breaks += is_late || (is_woken && is_held);
    return until_ns;
}

SHOWN static void take_by_slices(void) {
    uint64_t before_ns = 0;
    pthread_mutex_lock(&guard);
    while (is_held)
        before_ns = await_release(before_ns);
    is_held = true;
    pthread_mutex_unlock(&guard);
}

static const char *const names[] = {"condvar", "semaphore", "pipe", "eventfd", "slices"};
#define KINDS (int)(sizeof names / sizeof names[0])

static const struct {
    void (*take)(void), (*release)(void);
    const struct work *held;
} kinds[] = {{take_by_condvar, release_by_condvar, &brief},
             {take_by_semaphore, release_by_semaphore, &brief},
             {take_by_pipe, release_by_pipe, &brief},
             {take_by_eventfd, release_by_eventfd, &brief},
             {take_by_slices, release_by_condvar, &lengthy}};

static int kind;

static void make_lock(void) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&released, &monotonic);
    sem_init(&semaphore, 0, 1);
    token_event = eventfd(1, EFD_SEMAPHORE);
    if (token_event < 0 || pipe(token_pipe) != 0)
        die("cannot make an eventfd or a pipe", errno);
    release_by_pipe();
}

// --- the servers ---

SHOWN static void take(struct runner *self) {
    uint64_t start_ns = now_ns();
    kinds[kind].take();
    add_duration(&waits[self->index], now_ns() - start_ns);
}

SHOWN static void release(void) { kinds[kind].release(); }

SHOWN static void do_work(struct runner *self, uint64_t *chance) {
    take(self);
    do_some(kinds[kind].held, chance);
    release();
    do_some(&outside, chance);
}

SHOWN static void handle_request(struct runner *self, uint64_t *chance) { do_work(self, chance); }

SHOWN static void await_request(uint64_t *chance) {
    sleep_for(random_between(chance, think.low_ns, think.high_ns));
}

SHOWN static void serve(struct runner *self) {
    uint64_t chance = chance_of(&run, self);
    while (!run_is_over()) {
        await_request(&chance);
        handle_request(self, &chance);
    }
}

static void print_truth(void) {
    print_waits(runners, waits, SERVERS);
    printf("{\"event\":\"breaks\",\"count\":%llu}\n", (unsigned long long)breaks);
}

int main(int argc, char **argv) {
    const char *name = names[0];
    const struct own_option own = {.letter = 'w', .argument = "KIND", .text = &name};
    take_options(argc, argv, &run, &own, 1);
    kind = kind_named(name, names, KINDS);
    make_lock();
    for (int i = 0; i < SERVERS; i++)
        runners[i] = (struct runner){.name = "server", .body = serve, .index = i};
    run_scenario(runners, SERVERS, &run, print_truth);
}
