// SPDX-License-Identifier: Apache-2.0
// crowd: more busy threads than there are CPUs.
//
// `busy-0`, `busy-1` … compute without a pause, on any CPU: compute. There are three for each CPU, so that
// each has a CPU for a third of the time.
//
// Truth: only truth.h's lines.
// Options: -n N, threads (2 to 64; default three for each CPU).

#include "truth.h"

#define MAX_THREADS 64
#define THREADS_PER_CPU 3

static struct runner runners[MAX_THREADS];
static char names[MAX_THREADS][16];
static struct run run = {.scenario = "crowd", .seconds = 10, .seed = 42};

SHOWN static void compute(struct runner *self) {
    (void)self;
    while (!run_is_over())
        ;
}

static uint64_t threads_for_this_machine(void) {
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    long threads = THREADS_PER_CPU * (cpus > 0 ? cpus : 1);
    return threads < MAX_THREADS ? (uint64_t)threads : MAX_THREADS;
}

static void print_truth(void) {}

int main(int argc, char **argv) {
    uint64_t count = threads_for_this_machine();
    const struct own_option own = {.letter = 'n', .argument = "N", .count = &count};
    take_options(argc, argv, &run, &own, 1);
    if (count < 2 || count > MAX_THREADS) {
        fprintf(stderr, "crowd: -n takes 2 to %d\n", MAX_THREADS);
        return 2;
    }
    for (uint64_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "busy-%u", (unsigned)i);
        runners[i] = (struct runner){.name = names[i], .body = compute};
    }
    run_scenario(runners, (int)count, &run, print_truth);
}
