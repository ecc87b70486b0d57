/* SPDX-License-Identifier: Apache-2.0 */
// Runners that write down how long each of their waits took by their own clock, and that work in between.
//
// Truth: {"event":"waits", "tid", "name", "count", "total_ns", "max_ns"}
//       One runner's waits. For a lock: every acquisition, from before it was asked for until it was held.
//        {"event":"waited", "count", "total_ns", "max_ns"}
//       The waits of all runners together.
#pragma once

#include "truth.h"

// Work of a random length: it sleeps as for a device, and computes for the last tenth. So a few such threads
// leave the CPUs idle most of the time, and those that are woken together do not compute together.
struct work {
    uint64_t low_ns, high_ns;
};

SHOWN static void compute(uint64_t ns) { spin_until(now_ns() + ns); }

SHOWN static void use_device(uint64_t ns) { sleep_for(ns); }

SHOWN static void do_some(const struct work *work, uint64_t *chance) {
    uint64_t ns = random_between(chance, work->low_ns, work->high_ns);
    use_device(ns - ns / 10);
    compute(ns / 10);
}

// Another sequence for each runner.
static inline uint64_t chance_of(const struct run *run, const struct runner *self) {
    return run->seed + 1 + (uint64_t)self->index;
}

static inline void print_waits(const struct runner *runners, const struct durations *waits, int count) {
    struct durations all = {0};
    for (int i = 0; i < count; i++) {
        printf("{\"event\":\"waits\",\"tid\":%d,\"name\":\"%s\",\"count\":%llu,\"total_ns\":%llu,\"max_ns\":%"
               "llu}\n",
               runners[i].tid, runners[i].name, (unsigned long long)waits[i].count,
               (unsigned long long)waits[i].total_ns, (unsigned long long)waits[i].max_ns);
        all.count += waits[i].count;
        all.total_ns += waits[i].total_ns;
        if (waits[i].max_ns > all.max_ns)
            all.max_ns = waits[i].max_ns;
    }
    print_durations("waited", &all);
}

// A kind of scenario, by its name on the command line, or the end of the program.
static inline int kind_named(const char *name, const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    fprintf(stderr, "scenario: '%s' is none of", name);
    for (int i = 0; i < count; i++)
        fprintf(stderr, " %s", names[i]);
    fprintf(stderr, "\n");
    exit(2);
}
