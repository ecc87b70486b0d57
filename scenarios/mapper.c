// SPDX-License-Identifier: Apache-2.0
// mapper: a thread that maps a page now and then waits for one that maps much.
//
// `hoarder` maps 64 MiB with all their pages in a loop, and gives them back: fill_memory. While the kernel
// fills them or takes them back, it holds the lock of the process's memory map. `worker` maps a page and
// unmaps it every 2 ms: map_page.
//
// With -p, `hoarder` has 256 MiB with all their pages, and makes them read-only and writable in turn:
// protect_memory. The kernel holds that lock all the while, as their writer. `worker` writes to a page that
// was mapped before, for the first time: touch_page. Its page faults wait.
//
// Truth, besides truth.h's lines:
//   {"event":"waits", "count", "total_ns", "max_ns"}   map_page or touch_page that took 1 ms or more, by its
//                                                      own clock

#include "truth.h"

#include <sys/mman.h>

#define HOARD (64ul << 20)
#define PROTECTED (256ul << 20)
#define PAGE 4096ul
#define TOUCHED_AT_MOST 10000ul
#define LONG_NS NS_PER_MS

static struct run run = {.scenario = "mapper", .seconds = 5, .seed = 42};
static struct durations waits;
static bool protects;
static char *untouched;

static char *map(size_t size, int protection) {
    void *pages = mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        die("cannot map", errno);
    return pages;
}

SHOWN static void fill_memory(void) {
    char *pages = map(HOARD, PROT_READ | PROT_WRITE);
    // Small pages, so that it takes a while.
    madvise(pages, HOARD, MADV_NOHUGEPAGE);
    madvise(pages, HOARD, MADV_POPULATE_WRITE);
    munmap(pages, HOARD);
}

SHOWN static void protect_memory(char *pages) {
    if (mprotect(pages, PROTECTED, PROT_READ) || mprotect(pages, PROTECTED, PROT_READ | PROT_WRITE))
        die("cannot protect", errno);
}

SHOWN static void hoard(struct runner *self) {
    (void)self;
    char *pages = NULL;
    if (protects) {
        pages = map(PROTECTED, PROT_READ | PROT_WRITE);
        madvise(pages, PROTECTED, MADV_NOHUGEPAGE);
        madvise(pages, PROTECTED, MADV_POPULATE_WRITE);
    }
    while (!run_is_over()) {
        if (protects)
            protect_memory(pages);
        else
            fill_memory();
    }
}

SHOWN static void map_page(void) { munmap(map(PAGE, PROT_READ | PROT_WRITE), PAGE); }

SHOWN static void touch_page(size_t number) { untouched[number * 2 * PAGE] = 1; }

// A page between any two keeps them in mappings of their own: the first fault in a mapping takes the lock.
static void map_untouched(void) {
    untouched = map(TOUCHED_AT_MOST * 2 * PAGE, PROT_NONE);
    for (size_t number = 0; number < TOUCHED_AT_MOST; number++)
        if (mprotect(untouched + number * 2 * PAGE, PAGE, PROT_READ | PROT_WRITE))
            die("cannot protect", errno);
}

SHOWN static void map_now_and_then(struct runner *self) {
    (void)self;
    for (size_t number = 0; !run_is_over() && number < TOUCHED_AT_MOST; number++) {
        uint64_t start = now_ns();
        if (protects)
            touch_page(number);
        else
            map_page();
        uint64_t took = now_ns() - start;
        if (took >= LONG_NS)
            add_duration(&waits, took);
        sleep_for(2 * NS_PER_MS);
    }
}

static void print_truth(void) { print_durations("waits", &waits); }

int main(int argc, char **argv) {
    struct own_option own[] = {{.letter = 'p', .flag = &protects}};
    take_options(argc, argv, &run, own, 1);
    if (protects)
        map_untouched();
    struct runner runners[] = {{.name = "hoarder", .body = hoard},
                               {.name = "worker", .body = map_now_and_then}};
    run_scenario(runners, 2, &run, print_truth);
}
