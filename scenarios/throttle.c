// SPDX-License-Identifier: Apache-2.0
// throttle: threads compute without a pause, in a control group that may use a fifth of a CPU.
//
// `worker` computes: compute. After 20 ms of each 100 ms the kernel keeps all of them from running.
//
// Truth, besides truth.h's lines: group.h's.
// Option -n N: workers (default 1).

#include "group.h"

#define MAX_WORKERS 64

static int workers = 1;
static struct run run = {.scenario = "throttle", .seconds = 5, .seed = 42};
static struct group group = {.controller = "cpu",
                             .v2_file = "cpu.max",
                             .v2_text = "20000 100000",
                             .v1_file = "cpu.cfs_quota_us",
                             .v1_text = "20000"};

SHOWN static void compute(struct runner *self) {
    (void)self;
    while (!run_is_over())
        ;
}

static void print_truth(void) { leave_group(&group); }

int main(int argc, char **argv) {
    const struct own_option own = {.letter = 'n', .argument = "WORKERS", .index = &workers};
    struct runner runners[MAX_WORKERS];
    take_options(argc, argv, &run, &own, 1);
    if (workers < 1 || workers > MAX_WORKERS)
        die("cannot start so many workers", EINVAL);
    enter_group(&group);
    for (int i = 0; i < workers; i++)
        runners[i] = (struct runner){.name = "worker", .body = compute};
    run_scenario(runners, workers, &run, print_truth);
}
