// SPDX-License-Identifier: Apache-2.0
// barrier: a thread that only computes is interrupted because another one asks all threads of the process to
// agree on the content of memory.
//
// `worker`, pinned to one CPU, computes without a pause. `keeper`, pinned to the next one, asks for a memory
// barrier on all CPUs that run a thread of the process, in a loop: ask_for_barrier. Each time the CPU of the
// worker is interrupted. No memory is unmapped or protected.
//
// Truth, besides truth.h's lines:
//   {"event":"barriers", "count"}   how often it was requested; 0 where the kernel has no such barriers
// Options: -c CPU, the worker's (default 0).

#include "truth.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>

static struct run run = {.scenario = "barrier", .seconds = 10, .seed = 42};
static uint64_t barriers;
static int cpu;

static bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

SHOWN static void compute(struct runner *self) {
    (void)self;
    pin_to(cpu);
    while (!run_is_over())
        ;
}

SHOWN static bool ask_for_barrier(void) { return membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED); }

SHOWN static void ask_again_and_again(struct runner *self) {
    (void)self;
    pin_to((cpu + 1) % (int)sysconf(_SC_NPROCESSORS_ONLN));
    while (!run_is_over() && ask_for_barrier())
        barriers++;
}

static void print_truth(void) {
    printf("{\"event\":\"barriers\",\"count\":%llu}\n", (unsigned long long)barriers);
}

int main(int argc, char **argv) {
    const struct own_option own = {.letter = 'c', .argument = "CPU", .index = &cpu};
    take_options(argc, argv, &run, &own, 1);
    membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    struct runner runners[] = {{.name = "worker", .body = compute},
                               {.name = "keeper", .body = ask_again_and_again}};
    run_scenario(runners, 2, &run, print_truth);
}
