// SPDX-License-Identifier: Apache-2.0
// timers: a thread sleeps until just after the time for which very many timers are set.
//
// `sleeper` sets thousands of timers to one time (set_timers), and sleeps until 50 µs after it: doze. They
// all expire in one interrupt, which takes long and delays later timers. A slow machine sets fewer of them in
// the time that there is, and each takes longer. The interrupt lies in the sleep, so it takes no running time
// from the sleeper. With -b `worker` computes meanwhile on the same CPU, at the lowest priority, and the
// interrupt takes its running time.
//
// Truth, besides truth.h's lines:
//   {"event":"behind", "timers", "count"}   timers of one time, on average, and sleeps that ended after them
//   {"event":"late", "count", "total_ns", "max_ns"}   how late `sleeper` woke then
// Options: -c CPU, whose timers they are (default 0); -n TIMERS (default 15,000, or as many files as the
// process may have open); -b, with the worker.

#include "truth.h"

#include <sys/timerfd.h>

// Time to set them all: a timer that is set too late has already expired.
#define AHEAD_NS (60 * NS_PER_MS)
#define BEHIND_NS (50 * NS_PER_US)
// With -b more often, so that the interrupts take a large share of the worker's time.
#define BUSY_AHEAD_NS (14 * NS_PER_MS)
// A look at the clock costs little beside so many timers.
#define LOOK_EVERY 16
// Files that the process needs otherwise.
#define OTHER_FILES 64

static struct run run = {.scenario = "timers", .seconds = 5, .seed = 42};
static struct durations late;
static uint64_t count = 15000;
static uint64_t set_in_all;
static int *timers;
static int cpu;
static bool busy;

static void make_timers(void) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        die("cannot ask for the limit of open files", errno);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (count > files.rlim_max - OTHER_FILES)
        count = files.rlim_max - OTHER_FILES;
    timers = calloc(count, sizeof *timers);
    if (timers == NULL)
        die("no memory", errno);
    for (uint64_t i = 0; i < count; i++)
        if ((timers[i] = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) < 0)
            die("cannot make a timer", errno);
}

// As many as can be set until then, and how many these are.
SHOWN static uint64_t set_timers(uint64_t at_ns, uint64_t until_ns) {
    struct itimerspec at = {
        .it_value = {.tv_sec = (time_t)(at_ns / NS_PER_S), .tv_nsec = (long)(at_ns % NS_PER_S)}};
    uint64_t set = 0;
    for (; set < count && (set % LOOK_EVERY != 0 || now_ns() < until_ns); set++)
        timerfd_settime(timers[set], TFD_TIMER_ABSTIME, &at, NULL);
    return set;
}

SHOWN static void doze(uint64_t until_ns) {
    sleep_until(until_ns);
    add_duration(&late, now_ns() - until_ns);
}

SHOWN static void sleep_behind_timers(struct runner *self) {
    (void)self;
    pin_to(cpu);
    while (!run_is_over()) {
        uint64_t ahead_ns = busy ? BUSY_AHEAD_NS : AHEAD_NS;
        uint64_t at_ns = now_ns() + ahead_ns;
        uint64_t set = set_timers(at_ns, at_ns - ahead_ns / 4);
        if (now_ns() < at_ns) {
            set_in_all += set;
            doze(at_ns + BEHIND_NS);
        }
    }
}

// Sets and sleeps of the other thread come first.
SHOWN static void compute(struct runner *self) {
    (void)self;
    pin_to(cpu);
    setpriority(PRIO_PROCESS, 0, 19);
    while (!run_is_over())
        ;
}

static void print_truth(void) {
    printf("{\"event\":\"behind\",\"timers\":%llu,\"count\":%llu}\n",
           (unsigned long long)(late.count ? set_in_all / late.count : 0), (unsigned long long)late.count);
    print_durations("late", &late);
}

int main(int argc, char **argv) {
    const struct own_option own[] = {{.letter = 'c', .argument = "CPU", .index = &cpu},
                                     {.letter = 'n', .argument = "TIMERS", .count = &count},
                                     {.letter = 'b', .flag = &busy}};
    take_options(argc, argv, &run, own, 3);
    make_timers();
    struct runner runners[] = {{.name = "sleeper", .body = sleep_behind_timers},
                               {.name = "worker", .body = compute}};
    run_scenario(runners, busy ? 2 : 1, &run, print_truth);
}
