// SPDX-License-Identifier: Apache-2.0
// stops: another process stops this one for 60 ms of each 100.
//
// `worker` computes: compute. `poller` waits for nothing, in poll with a timeout of 7 ms: poll_nothing. The
// child process `stopper` stops and continues all. With -w freezer it freezes a control group of version 2,
// as container engines do, instead of sending signals; -w none stops nothing.
//
// With -l, three more threads wait for 450 ms each, so that each wait is stopped several times and goes on:
// `sleeper` sleeps: sleep_long; `long-poller` waits in poll: poll_long; `locker` waits in vain for a mutex
// that `watcher` has: lock_long.
//
// Truth, besides truth.h's lines:
//   {"event":"stops", "stopper", "count", "total_ns"}   the stopper's tid, and its stops by its own clock,
//   from the
//       order to stop to the order to continue
//   {"event":"refused", "what"}                          why there is no such control group

#include "group.h"

#include <sys/mman.h>
#include <sys/wait.h>

#define STOPPED_NS (60 * NS_PER_MS)
#define RUNNING_NS (40 * NS_PER_MS)
#define LONG_NS (450 * NS_PER_MS)
#define GROUPS "/sys/fs/cgroup/unified"

enum way { SIGNAL, FREEZER, NONE };

struct stops {
    _Atomic uint64_t count, total_ns;
    _Atomic bool over;
};

static struct run run = {.scenario = "stops", .seconds = 3, .seed = 42};
static const char *way_name = "signal";
static enum way way;
static char folder[256];
static const char *refused;
static struct stops *stops;
static pid_t stopper;
static bool has_long_waits;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static sem_t locked;

SHOWN static void compute(struct runner *self) {
    (void)self;
    while (!run_is_over())
        ;
}

SHOWN static void poll_nothing(struct runner *self) {
    (void)self;
    while (!run_is_over())
        poll(NULL, 0, 7);
}

SHOWN static void sleep_long(struct runner *self) {
    (void)self;
    while (!run_is_over())
        usleep(LONG_NS / NS_PER_US);
}

SHOWN static void poll_long(struct runner *self) {
    (void)self;
    while (!run_is_over())
        poll(NULL, 0, LONG_NS / NS_PER_MS);
}

SHOWN static void lock_long(struct runner *self) {
    (void)self;
    wait_for(&locked);
    while (!run_is_over()) {
        uint64_t end = now_ns() + LONG_NS;
        struct timespec until = {.tv_sec = (time_t)(end / NS_PER_S), .tv_nsec = (long)(end % NS_PER_S)};
        if (pthread_mutex_clocklock(&mutex, CLOCK_MONOTONIC, &until) == 0)
            pthread_mutex_unlock(&mutex); // the run is over
    }
}

static enum way way_from_name(const char *name) {
    if (strcmp(name, "signal") == 0)
        return SIGNAL;
    if (strcmp(name, "freezer") == 0)
        return FREEZER;
    if (strcmp(name, "none") == 0)
        return NONE;
    die(name, EINVAL);
    return NONE;
}

static void order(pid_t pid, bool stop) {
    if (way == FREEZER)
        write_file(folder, "cgroup.freeze", stop ? "1" : "0");
    else
        kill(pid, stop ? SIGSTOP : SIGCONT);
}

static void stop_again_and_again(pid_t pid) {
    while (!stops->over) {
        uint64_t start = now_ns();
        order(pid, true);
        sleep_until(start + STOPPED_NS);
        order(pid, false);
        stops->total_ns += now_ns() - start;
        stops->count++;
        sleep_for(RUNNING_NS);
    }
}

static bool enter_folder(const char *group) {
    char pid[16];
    snprintf(pid, sizeof pid, "%d", getpid());
    return write_file(group, "cgroup.procs", pid);
}

static const char *root_group(void) { return access(GROUPS, W_OK) == 0 ? GROUPS : "/sys/fs/cgroup"; }

static void enter_root_group(void) { enter_folder(root_group()); }

static void enter_own_group(void) {
    snprintf(folder, sizeof folder, "%s/wallprof-stops-%d", root_group(), getpid());
    if (mkdir(folder, 0700) == 0 && enter_folder(folder) && write_file(folder, "cgroup.freeze", "0"))
        return;
    refused = strerror(errno);
    rmdir(folder);
}

SHOWN static void hold_to_the_end(void) {
    pthread_mutex_lock(&mutex);
    sem_post(&locked);
    while (!run_is_over())
        sleep_for(20 * NS_PER_MS);
    pthread_mutex_unlock(&mutex);
}

SHOWN static void run_stopper(struct runner *self) {
    (void)self;
    pid_t parent = getpid();
    if (way == NONE || refused) {
        hold_to_the_end();
        return;
    }
    stopper = fork();
    if (stopper < 0)
        die("fork", errno);
    if (stopper == 0) {
        prctl(PR_SET_NAME, "stopper");
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (way == FREEZER)
            enter_root_group();
        stop_again_and_again(parent);
        _exit(0);
    }
    hold_to_the_end();
    stops->over = true;
    waitpid(stopper, NULL, 0);
}

static void print_truth(void) {
    if (way == FREEZER && !refused) {
        enter_root_group();
        rmdir(folder);
    }
    if (refused)
        printf("{\"event\":\"refused\",\"what\":\"%s\"}\n", refused);
    printf("{\"event\":\"stops\",\"stopper\":%d,\"count\":%llu,\"total_ns\":%llu}\n", stopper,
           (unsigned long long)stops->count, (unsigned long long)stops->total_ns);
}

int main(int argc, char **argv) {
    const struct own_option own[] = {
        {.letter = 'w', .argument = "signal|freezer|none", .text = &way_name},
        {.letter = 'l', .flag = &has_long_waits},
    };
    struct runner runners[] = {
        {.name = "worker", .body = compute},        {.name = "poller", .body = poll_nothing},
        {.name = "watcher", .body = run_stopper},   {.name = "sleeper", .body = sleep_long},
        {.name = "long-poller", .body = poll_long}, {.name = "locker", .body = lock_long},
    };
    take_options(argc, argv, &run, own, 2);
    sem_init(&locked, 0, 0);
    way = way_from_name(way_name);
    stops = mmap(NULL, sizeof *stops, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (stops == MAP_FAILED)
        die("mmap", errno);
    if (way == FREEZER)
        enter_own_group();
    run_scenario(runners, has_long_waits ? 6 : 3, &run, print_truth);
}
