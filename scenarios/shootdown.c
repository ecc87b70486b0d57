// SPDX-License-Identifier: Apache-2.0
// shootdown: a thread that only computes is interrupted by changes of another thread to their memory.
//
// `worker`, pinned to one CPU, computes without a pause. `mapper`, pinned to the next one, protects and
// unprotects a page in a loop: protect_page. Each time the CPU of the worker must forget the page, and is
// interrupted to do so.
//
// Truth, besides truth.h's lines:
//   {"event":"protected", "count"}   how often the page lost a permission
// Options: -c CPU, the worker's (default 0).

#include "truth.h"

#include <sys/mman.h>

static uint64_t protected_count;
static int cpu;
static volatile char *page;
static struct run run = {.scenario = "shootdown", .seconds = 10, .seed = 42};

SHOWN static void compute(struct runner *self) {
    (void)self;
    pin_to(cpu);
    while (!run_is_over())
        ;
}

SHOWN static void protect_page(int protection) {
    if (mprotect((void *)page, 4096, protection) != 0)
        die("cannot protect a page", errno);
}

SHOWN static void protect_again_and_again(struct runner *self) {
    (void)self;
    pin_to((cpu + 1) % (int)sysconf(_SC_NPROCESSORS_ONLN));
    while (!run_is_over()) {
        protect_page(PROT_READ | PROT_WRITE);
        page[0]++;
        protect_page(PROT_READ);
        protected_count++;
    }
}

static void print_truth(void) {
    printf("{\"event\":\"protected\",\"count\":%llu}\n", (unsigned long long)protected_count);
}

int main(int argc, char **argv) {
    const struct own_option own = {.letter = 'c', .argument = "CPU", .index = &cpu};
    take_options(argc, argv, &run, &own, 1);
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        die("cannot map a page", errno);
    struct runner runners[] = {{.name = "worker", .body = compute},
                               {.name = "mapper", .body = protect_again_and_again}};
    run_scenario(runners, 2, &run, print_truth);
}
