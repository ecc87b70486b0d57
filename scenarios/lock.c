// SPDX-License-Identifier: Apache-2.0
// lock: a rare slow path waits for a lock that a housekeeping thread holds.
//
// The `engine` thread handles a tick 200 µs after the one before: handle_tick → apply_tick. About one tick in
// 200 is malformed and takes handle_tick → format_error → take_registry_lock, a mutex that the `housekeeper`
// thread holds for 0.5 to 3 ms at a time and leaves free for 0.2 to 0.6 ms: housekeeping →
// sweep_registry → release_registry. It sleeps through one half of its sweeps and spins through the other.
//
// lock_mutex and unlock_mutex stand between the named functions and glibc because a walk by frame
// pointers loses the direct caller of a libc function without a frame.
//
// Truth, besides truth.h's lines:
//   {"event":"slow", "start_ns", "end_ns", "cpu_ns", "waited", "held_by"}   one malformed tick's time at the
//       lock: cpu_ns of it the engine was running, interrupts included; waited says that the lock was taken
//       by someone, held_by is that thread's tid (0 if not known)
//   {"event":"ticks", "count", "slow", "lock", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"}
//       latency of ticks from when they were due to when they were handled; lock is the mutex' address
// Options: -n N, one malformed tick in about N; -k K, the lock is held K times as long; -c, each thread has a
// CPU of its own, where there are two: the thread that releases the lock then never keeps the one that takes
// it from running.

#include "truth.h"

#define TICK_NS (200 * NS_PER_US)
#define MAX_SLOW 65536
#define MAX_TICKS (1 << 20)

struct slow_operation {
    uint64_t start_ns, end_ns, cpu_ns;
    bool waited;
    int held_by;
};

static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static atomic_int registry_owner;
static struct slow_operation slow[MAX_SLOW];
static uint32_t latencies[MAX_TICKS]; // ns; a longer one than 4 s is kept as 4 s
static uint64_t slow_count, tick_count, one_in = 200;
static double hold_factor = 1;
static bool apart;
static struct run run = {.scenario = "lock", .seconds = 10, .seed = 42};

// --- the registry's lock ---

SHOWN static void lock_mutex(pthread_mutex_t *mutex) { pthread_mutex_lock(mutex); }

SHOWN static void unlock_mutex(pthread_mutex_t *mutex) { pthread_mutex_unlock(mutex); }

// Sets the owner of the lock, if the thread had to wait for it.
SHOWN static void take_registry_lock(struct slow_operation *operation) {
    operation->waited = pthread_mutex_trylock(&registry) != 0;
    if (operation->waited) {
        operation->held_by = atomic_load(&registry_owner);
        lock_mutex(&registry);
    }
    atomic_store(&registry_owner, gettid());
}

SHOWN static void release_registry(void) {
    atomic_store(&registry_owner, 0);
    unlock_mutex(&registry);
}

// --- engine ---

static volatile uint64_t book[64];

SHOWN static void apply_tick(uint64_t tick) {
    for (uint64_t i = 0; i < 2000; i++)
        book[(tick + i) % 64] += i;
}

SHOWN static void format_error(uint64_t tick) {
    uint64_t cpu = read_clock(CLOCK_THREAD_CPUTIME_ID);
    struct slow_operation operation = {.start_ns = now_ns()};
    take_registry_lock(&operation);
    operation.end_ns = now_ns();
    operation.cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID) - cpu;
    book[tick % 64]++;
    release_registry();
    if (slow_count < MAX_SLOW)
        slow[slow_count++] = operation;
}

SHOWN static void handle_tick(uint64_t tick, bool malformed) {
    if (malformed)
        format_error(tick);
    else
        apply_tick(tick);
}

static void note_latency(uint64_t ns) {
    if (tick_count < MAX_TICKS)
        latencies[tick_count] = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
    tick_count++;
}

SHOWN static void engine(struct runner *self) {
    uint64_t chance = run.seed + 1;
    (void)self;
    if (apart)
        pin_to_nth(1);
    while (!run_is_over()) {
        uint64_t due = now_ns() + TICK_NS;
        sleep_until(due);
        handle_tick(tick_count, random_between(&chance, 1, one_in) == 1);
        note_latency(now_ns() - due);
    }
}

// --- housekeeper ---

SHOWN static void sweep_registry(uint64_t hold_ns, bool asleep) {
    lock_mutex(&registry);
    atomic_store(&registry_owner, gettid());
    if (asleep)
        sleep_for(hold_ns);
    else
        spin_until(now_ns() + hold_ns);
    release_registry();
}

SHOWN static void housekeeping(struct runner *self) {
    uint64_t chance = run.seed + 2;
    (void)self;
    if (apart)
        pin_to_nth(0);
    while (!run_is_over()) {
        uint64_t swept_ns = random_between(&chance, NS_PER_MS / 2, 3 * NS_PER_MS);
        uint64_t hold_ns = (uint64_t)((double)swept_ns * hold_factor);
        sweep_registry(hold_ns, random_between(&chance, 0, 1) == 0);
        sleep_for(random_between(&chance, 200 * NS_PER_US, 600 * NS_PER_US));
    }
}

// --- truth ---

static int by_length(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

static unsigned quantile(double share) {
    uint64_t kept = tick_count < MAX_TICKS ? tick_count : MAX_TICKS;
    return kept == 0 ? 0 : latencies[(uint64_t)(share * (double)(kept - 1))];
}

static void print_truth(void) {
    for (uint64_t i = 0; i < slow_count; i++)
        printf("{\"event\":\"slow\",\"start_ns\":%llu,\"end_ns\":%llu,\"cpu_ns\":%llu,\"waited\":%s,\"held_"
               "by\":%d}\n",
               (unsigned long long)slow[i].start_ns, (unsigned long long)slow[i].end_ns,
               (unsigned long long)slow[i].cpu_ns, slow[i].waited ? "true" : "false", slow[i].held_by);
    qsort(latencies, tick_count < MAX_TICKS ? tick_count : MAX_TICKS, sizeof latencies[0], by_length);
    printf("{\"event\":\"ticks\",\"count\":%llu,\"slow\":%llu,\"lock\":\"%p\",\"p50_ns\":%u,\"p90_ns\":%u,"
           "\"p99_ns\":%u,\"p999_ns\":%u,\"max_ns\":%u}\n",
           (unsigned long long)tick_count, (unsigned long long)slow_count, (void *)&registry, quantile(0.5),
           quantile(0.9), quantile(0.99), quantile(0.999), quantile(1));
}

int main(int argc, char **argv) {
    const struct own_option own[] = {{.letter = 'n', .argument = "ONE_IN", .count = &one_in},
                                     {.letter = 'k', .argument = "HELD_TIMES", .number = &hold_factor},
                                     {.letter = 'c', .flag = &apart}};
    take_options(argc, argv, &run, own, 3);
    // Touched now, so that keeping the log costs the engine no page faults.
    memset(slow, 1, sizeof slow);
    memset(latencies, 1, sizeof latencies);
    struct runner runners[] = {{.name = "engine", .body = engine},
                               {.name = "housekeeper", .body = housekeeping}};
    run_scenario(runners, 2, &run, print_truth);
}
