// mapper: a thread that maps a page now and then waits for one that maps much.
//
// `hoarder` maps 64 MiB with all their pages in a loop, and gives them back: fill_memory. While the kernel
// fills them or takes them back, it holds the lock of the process's memory map. `worker` maps a page and
// unmaps it every 2 ms: map_page.
//
// Truth, besides truth.h's lines:
//   {"event":"waits", "count", "total_ns", "max_ns"}   map_page that took 1 ms or more, by its own clock

#include "truth.h"

#include <sys/mman.h>

#define HOARD (64ul << 20)
#define LONG_NS NS_PER_MS

static struct run run = {.scenario = "mapper", .seconds = 5, .seed = 42};
static struct durations waits;

SHOWN static void fill_memory(void) {
    void *pages = mmap(NULL, HOARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        die("cannot map", errno);
    // Small pages, so that it takes a while.
    madvise(pages, HOARD, MADV_NOHUGEPAGE);
    madvise(pages, HOARD, MADV_POPULATE_WRITE);
    munmap(pages, HOARD);
}

SHOWN static void hoard(struct actor *self) {
    (void)self;
    while (!run_is_over())
        fill_memory();
}

SHOWN static void map_page(void) {
    uint64_t start = now_ns();
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        die("cannot map", errno);
    munmap(page, 4096);
    uint64_t took = now_ns() - start;
    if (took >= LONG_NS)
        add_duration(&waits, took);
}

SHOWN static void map_now_and_then(struct actor *self) {
    (void)self;
    while (!run_is_over()) {
        map_page();
        sleep_for(2 * NS_PER_MS);
    }
}

static void print_truth(void) { print_durations("waits", &waits); }

int main(int argc, char **argv) {
    take_options(argc, argv, &run, NULL, 0);
    struct actor actors[] = {{.name = "hoarder", .act = hoard}, {.name = "worker", .act = map_now_and_then}};
    run_scenario(actors, 2, &run, print_truth);
}
