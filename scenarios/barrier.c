// barrier: a thread that only computes is interrupted because another one asks all threads of the process to
// agree on the content of memory.
//
// `worker`, pinned to one CPU, computes without a pause. `keeper`, pinned to the next one, asks for a memory
// barrier on all CPUs that run a thread of the process, in a loop: ask_for_barrier. Each time the CPU of the
// worker is interrupted. No memory is unmapped or protected.
//
// Truth, besides truth.h's lines:
//   {"event":"barriers", "count"}   how often it was requested; 0 where the kernel has no such barriers
//   {"event":"interrupted", "total_ns", "computed_ns"}   the sum of the gaps in the worker's clock readings
//   that are
//       longer than a reading and shorter than a switch of threads, and the time of all readings without
//       longer gaps
// Options: -c CPU, the worker's (default 0).

#include "truth.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>

#define MIN_GAP_NS 400
#define MAX_GAP_NS (20 * NS_PER_US)

static struct run run = {.scenario = "barrier", .seconds = 10, .seed = 42};
static uint64_t barriers, interrupted_ns, computed_ns;
static int cpu;

static bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

SHOWN static void compute(struct actor *self) {
    (void)self;
    pin_to(cpu);
    for (uint64_t before = now_ns(), now; !run_is_over_at(now = now_ns()); before = now) {
        const uint64_t gap_ns = now - before;
        if (gap_ns > MAX_GAP_NS)
            continue;
        computed_ns += gap_ns;
        if (gap_ns > MIN_GAP_NS)
            interrupted_ns += gap_ns;
    }
}

SHOWN static bool ask_for_barrier(void) { return membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED); }

SHOWN static void ask_again_and_again(struct actor *self) {
    (void)self;
    pin_to((cpu + 1) % (int)sysconf(_SC_NPROCESSORS_ONLN));
    while (!run_is_over() && ask_for_barrier())
        barriers++;
}

static void print_truth(void) {
    printf("{\"event\":\"barriers\",\"count\":%llu}\n", (unsigned long long)barriers);
    printf("{\"event\":\"interrupted\",\"total_ns\":%llu,\"computed_ns\":%llu}\n",
           (unsigned long long)interrupted_ns, (unsigned long long)computed_ns);
}

int main(int argc, char **argv) {
    const struct own_option own = {.letter = 'c', .argument = "CPU", .index = &cpu};
    take_options(argc, argv, &run, &own, 1);
    membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    struct actor actors[] = {{.name = "worker", .act = compute},
                             {.name = "keeper", .act = ask_again_and_again}};
    run_scenario(actors, 2, &run, print_truth);
}
