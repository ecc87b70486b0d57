// SPDX-License-Identifier: Apache-2.0
// holders: threads wait for a lock, and its holder does something else each time.
//
// `housekeeper` sweeps the registry under its lock for some milliseconds, and leaves it alone for 1 ms:
// housekeeping → sweep_registry. `engine` takes the lock all the time: handle_tick → take_registry_lock. What
// the housekeeper does in the lock:
//
//   compute    it spins for 4 ms, on another CPU than the engine's: on the same one the engine would not get
//   so
//              far as to ask for the lock
//   sleep      it sleeps for 10 ms
//   disk       it writes 256 KiB of a file and syncs it, four times
//   fault      it reads 64 pages of a file through memory, and they are not there
//   preempted  it spins for 6 ms on the first CPU, on which two `batch` threads spin, too
//   inversion  as preempted, with a nice value of 10, and `engine` has one of -5
//
// Two kinds have other threads:
//
//   convoy     16 `worker` threads take one lock in turn, each for 100 µs at a time: work → update_book
//   chain      `front` waits for `second`, which waits for `third`, which waits for `fourth`, which spins
//              for 5 ms in hold_prices. Each holds the lock that the one before wants: take_accounts,
//              take_orders, take_prices
//
// lock_mutex and unlock_mutex stand between the named functions and glibc because a walk by frame pointers
// loses the direct caller of a libc function without a frame.
//
// Truth, besides truth.h's lines:
//   {"event":"held", "count", "total_ns", "max_ns"}    holdings of the lock; of the chain, the time in which
//       `fourth` held its lock and `front` waited
//   {"event":"blocked", "count", "total_ns", "max_ns"}  holdings in which the holder waited for the disk or
//   for
//       pages for 1 ms or more, 200 µs or more at a time
//   {"event":"waited", "count", "total_ns", "max_ns"}  times in which `engine`, `front` or the workers got
//       the lock after 100 µs or later
// Options: -w KIND (default sleep); -f FILE, made if it is missing (default
// /tmp/wallprof-holders); -x PERCENT, of the time for which a lock is held, but for disk and fault.

#include "truth.h"

#include <sys/mman.h>

#define PAGE 4096ul
#define PAGES 2048ul
#define FAULTS 64ul
#define ENTRY (64 * PAGE)
#define WORKERS 16
#define NOTED_NS (100 * NS_PER_US)
#define LONG_STEP_NS (200 * NS_PER_US)

static struct run run = {.scenario = "holders", .seconds = 5, .seed = 42};
static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static struct durations held, blocked, waited;
static uint64_t hold_percent = 100;
static pthread_mutex_t durations_lock = PTHREAD_MUTEX_INITIALIZER;
static const char *path = "/tmp/wallprof-holders";
static int file = -1;
static char *map;
static volatile uint64_t book;

SHOWN static void lock_mutex(pthread_mutex_t *mutex) { pthread_mutex_lock(mutex); }

SHOWN static void unlock_mutex(pthread_mutex_t *mutex) { pthread_mutex_unlock(mutex); }

static void note_wait(uint64_t ns) {
    if (ns < NOTED_NS)
        return;
    pthread_mutex_lock(&durations_lock);
    add_duration(&waited, ns);
    pthread_mutex_unlock(&durations_lock);
}

// --- what the housekeeper does in the lock ---

// What a holder takes, with -x.
static uint64_t part(uint64_t ns) { return ns * hold_percent / 100; }

static void spin_for(uint64_t ns) { spin_until(now_ns() + ns); }

static void open_file(void) {
    static char page[PAGE];
    memset(page, 1, sizeof page);
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        die(path, errno);
    for (size_t i = 0; i < PAGES; i++)
        if (pwrite(file, page, PAGE, (off_t)(i * PAGE)) != (ssize_t)PAGE)
            die(path, errno);
    if (fsync(file) != 0)
        die(path, errno);
    map = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_PRIVATE, file, 0);
    if (map == MAP_FAILED || madvise(map, PAGES * PAGE, MADV_RANDOM) != 0)
        die(path, errno);
}

SHOWN static void compute(void) { spin_for(part(4 * NS_PER_MS)); }

// The time in which a holder waited for the disk or for pages, in steps that are long enough to be recorded
// one by one. A step that ends in a longer wait for a CPU counts as the latter.
struct slow {
    uint64_t cpu_ns, late_ns, steps_ns;
};

static struct slow start_slow(void) {
    return (struct slow){.cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID), .late_ns = queued_ns()};
}

static void note_step(struct slow *slow, uint64_t start_ns) {
    uint64_t ns = now_ns() - start_ns;
    if (ns >= LONG_STEP_NS)
        slow->steps_ns += ns;
}

static void end_slow(const struct slow *slow) {
    uint64_t cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID) - slow->cpu_ns;
    uint64_t other_ns = cpu_ns + 2 * (queued_ns() - slow->late_ns);
    if (slow->steps_ns >= other_ns + NS_PER_MS)
        add_duration(&blocked, slow->steps_ns - other_ns);
}

SHOWN static void sleep_a_while(void) { sleep_for(part(10 * NS_PER_MS)); }

SHOWN static void write_journal(void) {
    static char entry[ENTRY];
    struct slow slow = start_slow();
    memset(entry, (int)book++, sizeof entry);
    for (int i = 0; i < 4; i++) {
        uint64_t start_ns = now_ns();
        if (pwrite(file, entry, sizeof entry, 0) != sizeof entry || fdatasync(file) != 0)
            die(path, errno);
        note_step(&slow, start_ns);
    }
    end_slow(&slow);
}

SHOWN static void read_index(void) {
    struct slow slow = start_slow();
    for (size_t i = 0; i < FAULTS; i++) {
        uint64_t start_ns = now_ns();
        book += (uint64_t)((volatile char *)map)[i * (PAGES / FAULTS) * PAGE];
        note_step(&slow, start_ns);
    }
    end_slow(&slow);
}

SHOWN static void compute_for_long(void) { spin_for(part(6 * NS_PER_MS)); }

static void nothing(void) {}

// Pages that are mapped stay.
static void take_out_of_memory(void) {
    madvise(map, PAGES * PAGE, MADV_DONTNEED);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
}

enum { COMPUTE, SLEEP, DISK, FAULT, PREEMPTED, INVERSION, CONVOY, CHAIN };
static const char *const names[] = {"compute",   "sleep",     "disk",   "fault",
                                    "preempted", "inversion", "convoy", "chain"};
#define KINDS (int)(sizeof names / sizeof names[0])

static const struct {
    void (*before)(void), (*in_lock)(void);
} kinds[KINDS] = {{nothing, compute},          {nothing, sleep_a_while},
                  {nothing, write_journal},    {take_out_of_memory, read_index},
                  {nothing, compute_for_long}, {nothing, compute_for_long},
                  {nothing, nothing},          {nothing, nothing}};
static int kind;

// A thread has a nice value of its own on Linux.
static void be_nice(int nice_value) {
    if (setpriority(PRIO_PROCESS, (id_t)gettid(), nice_value) != 0)
        die("cannot set a nice value", errno);
}

SHOWN static void sweep_registry(void) {
    lock_mutex(&registry);
    uint64_t start_ns = now_ns();
    kinds[kind].in_lock();
    uint64_t held_ns = now_ns() - start_ns;
    unlock_mutex(&registry);
    add_duration(&held, held_ns);
}

SHOWN static void housekeeping(struct runner *self) {
    (void)self;
    if (kind == COMPUTE)
        pin_to_nth(0);
    if (kind == PREEMPTED || kind == INVERSION)
        pin_to(0);
    if (kind == INVERSION)
        be_nice(10);
    while (!run_is_over()) {
        kinds[kind].before();
        sweep_registry();
        sleep_for(NS_PER_MS);
    }
}

static void batch(struct runner *self) {
    (void)self;
    pin_to(0);
    while (!run_is_over())
        spin_for(NS_PER_MS);
}

SHOWN static void take_registry_lock(void) { lock_mutex(&registry); }

SHOWN static void handle_tick(void) {
    uint64_t start_ns = now_ns();
    take_registry_lock();
    uint64_t took_ns = now_ns() - start_ns;
    unlock_mutex(&registry);
    note_wait(took_ns);
}

static void engine(struct runner *self) {
    (void)self;
    if (kind == COMPUTE)
        pin_to_nth(1);
    if (kind == INVERSION)
        be_nice(-5);
    while (!run_is_over()) {
        handle_tick();
        sleep_for(200 * NS_PER_US);
    }
}

// --- convoy ---

// A mutex with priority inheritance is handed to the first waiter. A thread that releases another one takes
// it again before a waiter is awake.
static void make_fair_lock(void) {
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_setprotocol(&how, PTHREAD_PRIO_INHERIT);
    if (pthread_mutex_init(&registry, &how) != 0)
        die("cannot make a mutex", errno);
}

SHOWN static void update_book(void) {
    spin_for(part(100 * NS_PER_US));
    unlock_mutex(&registry);
}

SHOWN static void work(struct runner *self) {
    (void)self;
    while (!run_is_over()) {
        uint64_t start_ns = now_ns();
        take_registry_lock();
        note_wait(now_ns() - start_ns);
        update_book();
    }
}

// --- chain ---

static pthread_mutex_t accounts = PTHREAD_MUTEX_INITIALIZER, orders = PTHREAD_MUTEX_INITIALIZER,
                       prices = PTHREAD_MUTEX_INITIALIZER;
static sem_t turns[4];
static atomic_bool is_last;
static _Atomic uint64_t asked_ns;

SHOWN static void take_accounts(void) { lock_mutex(&accounts); }
SHOWN static void take_orders(void) { lock_mutex(&orders); }
SHOWN static void take_prices(void) { lock_mutex(&prices); }

// Waits for the thread behind to have its own lock. A round is over when `front` has all.
static void front(struct runner *self) {
    (void)self;
    do {
        wait_for(&turns[0]);
        uint64_t start_ns = now_ns();
        atomic_store(&asked_ns, start_ns);
        take_accounts();
        note_wait(now_ns() - start_ns);
        unlock_mutex(&accounts);
        sem_post(&turns[3]);
    } while (!atomic_load(&is_last));
}

static void second(struct runner *self) {
    (void)self;
    do {
        wait_for(&turns[1]);
        lock_mutex(&accounts);
        sem_post(&turns[0]);
        take_orders();
        unlock_mutex(&orders);
        unlock_mutex(&accounts);
    } while (!atomic_load(&is_last));
}

static void third(struct runner *self) {
    (void)self;
    do {
        wait_for(&turns[2]);
        lock_mutex(&orders);
        sem_post(&turns[1]);
        take_prices();
        unlock_mutex(&prices);
        unlock_mutex(&orders);
    } while (!atomic_load(&is_last));
}

SHOWN static void hold_prices(void) {
    lock_mutex(&prices);
    sem_post(&turns[2]);
    while (atomic_load(&asked_ns) == 0)
        sched_yield();
    spin_for(part(5 * NS_PER_MS));
    uint64_t held_ns = now_ns() - atomic_load(&asked_ns);
    atomic_store(&is_last, run_is_over());
    unlock_mutex(&prices);
    add_duration(&held, held_ns);
}

static void fourth(struct runner *self) {
    (void)self;
    do {
        atomic_store(&asked_ns, 0);
        hold_prices();
        wait_for(&turns[3]);
    } while (!atomic_load(&is_last));
}

static void print_truth(void) {
    print_durations("held", &held);
    print_durations("blocked", &blocked);
    print_durations("waited", &waited);
}

int main(int argc, char **argv) {
    const char *name = names[SLEEP];
    const struct own_option own[] = {{.letter = 'w', .argument = "KIND", .text = &name},
                                     {.letter = 'f', .argument = "FILE", .text = &path},
                                     {.letter = 'x', .argument = "PERCENT", .count = &hold_percent}};
    struct runner runners[WORKERS] = {{.name = "housekeeper", .body = housekeeping},
                                      {.name = "engine", .body = engine},
                                      {.name = "batch", .body = batch},
                                      {.name = "batch", .body = batch, .index = 1}};
    take_options(argc, argv, &run, own, 3);
    for (kind = 0; kind < KINDS && strcmp(name, names[kind]) != 0;)
        kind++;
    if (kind == KINDS)
        die("-w", EINVAL);
    int count = kind == PREEMPTED || kind == INVERSION ? 4 : 2;
    if (kind == DISK || kind == FAULT)
        open_file();
    if (kind == CONVOY) {
        make_fair_lock();
        count = WORKERS;
        for (int i = 0; i < WORKERS; i++)
            runners[i] = (struct runner){.name = "worker", .body = work, .index = i};
    }
    if (kind == CHAIN) {
        static const struct runner chain[] = {{.name = "front", .body = front},
                                              {.name = "second", .body = second},
                                              {.name = "third", .body = third},
                                              {.name = "fourth", .body = fourth}};
        count = 4;
        memcpy(runners, chain, sizeof chain);
        for (int i = 0; i < 4; i++)
            sem_init(&turns[i], 0, 0);
    }
    run_scenario(runners, count, &run, print_truth);
}
