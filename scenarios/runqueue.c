// SPDX-License-Identifier: Apache-2.0
// runqueue: a thread that has been woken waits for its CPU.
//
// `hog` spins without a pause. `server`, pinned to the same CPU, wakes every 10 ms and does next to nothing:
// serve. It runs as a batch job of a lower priority (SCHED_BATCH, nice 5), so that its wakeup does not take
// the CPU from the hog at once: it waits for some milliseconds each time.
//
// Truth, besides truth.h's lines:
//   {"event":"late", "count", "total_ns", "max_ns"}   how much later than asked for `server` came back
// Options: -c CPU, the shared CPU (default 0).

#include "truth.h"

#define PERIOD_NS (10 * NS_PER_MS)

static struct durations late;
static int cpu;
static struct run run = {.scenario = "runqueue", .seconds = 10, .seed = 42};

static void give_way(void) {
    struct sched_param none = {0};
    if (sched_setscheduler(0, SCHED_BATCH, &none) != 0 || setpriority(PRIO_PROCESS, 0, 5) != 0)
        die("cannot become a batch job", errno);
}

SHOWN static void serve(uint64_t due_ns) { add_duration(&late, now_ns() - due_ns); }

SHOWN static void serve_all(struct runner *self) {
    (void)self;
    pin_to(cpu);
    give_way();
    while (!run_is_over()) {
        uint64_t due_ns = now_ns() + PERIOD_NS;
        sleep_until(due_ns);
        serve(due_ns);
    }
}

SHOWN static void spin_on(struct runner *self) {
    (void)self;
    pin_to(cpu);
    while (!run_is_over())
        ;
}

static void print_truth(void) { print_durations("late", &late); }

int main(int argc, char **argv) {
    const struct own_option own = {.letter = 'c', .argument = "CPU", .index = &cpu};
    take_options(argc, argv, &run, &own, 1);
    struct runner runners[] = {{.name = "server", .body = serve_all}, {.name = "hog", .body = spin_on}};
    run_scenario(runners, 2, &run, print_truth);
}
