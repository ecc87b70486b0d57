// throttle: a thread computes without a pause, in a control group that may use a fifth of a CPU.
//
// `worker` computes: compute. After 20 ms of each 100 ms the kernel keeps it from running.
//
// Truth, besides truth.h's lines: group.h's.

#include "group.h"

static struct run run = {.scenario = "throttle", .seconds = 5, .seed = 42};
static struct group group = {.controller = "cpu",
                             .v2_file = "cpu.max",
                             .v2_text = "20000 100000",
                             .v1_file = "cpu.cfs_quota_us",
                             .v1_text = "20000"};

SHOWN static void compute(struct actor *self) {
    (void)self;
    while (!run_is_over())
        ;
}

static void print_truth(void) { leave_group(&group); }

int main(int argc, char **argv) {
    take_options(argc, argv, &run, NULL, 0);
    enter_group(&group);
    struct actor actors[] = {{.name = "worker", .act = compute}};
    play(actors, 1, &run, print_truth);
}
