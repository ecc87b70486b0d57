// SPDX-License-Identifier: Apache-2.0
// reclaim: a thread that wants memory must free some first.
//
// `writer` writes into a file of 256 MiB through memory, page by page and round after round, in a control
// group that may hold 32 MiB: fill_pages. Each new page takes the place of an older one.
//
// Truth, besides truth.h's lines: group.h's, and
//   {"event":"filled", "pages"}  touches of new pages
//   {"event":"slow_touches", "count", "total_ns", "max_ns"}  those of 100 µs or more
// Options: -f FILE, made if it is missing (default /tmp/wallprof-reclaim).

#include "group.h"

#include <sys/mman.h>

#define PAGE 4096ul
#define SIZE (256ul << 20)
#define SLOW_NS (100 * NS_PER_US)

static struct run run = {.scenario = "reclaim", .seconds = 5, .seed = 42};
static struct group group = {.controller = "memory",
                             .v2_file = "memory.max",
                             .v2_text = "33554432",
                             .v1_file = "memory.limit_in_bytes",
                             .v1_text = "33554432"};
static const char *path = "/tmp/wallprof-reclaim";
static char *map;
static uint64_t filled;
static struct durations slow;

static void prepare_file(void) {
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, SIZE) != 0)
        die(path, errno);
    map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED)
        die(path, errno);
    close(file);
}

SHOWN static void fill_page(volatile char *page) {
    uint64_t start = now_ns();
    page[0]++;
    uint64_t took = now_ns() - start;
    filled++;
    if (took >= SLOW_NS)
        add_duration(&slow, took);
}

SHOWN static void fill_pages(struct runner *self) {
    (void)self;
    for (size_t at = 0; !run_is_over(); at = (at + PAGE) % SIZE)
        fill_page(map + at);
}

static void print_truth(void) {
    munmap(map, SIZE);
    unlink(path);
    leave_group(&group);
    printf("{\"event\":\"filled\",\"pages\":%llu}\n", (unsigned long long)filled);
    print_durations("slow_touches", &slow);
}

int main(int argc, char **argv) {
    const struct own_option own = {.letter = 'f', .argument = "FILE", .text = &path};
    take_options(argc, argv, &run, &own, 1);
    prepare_file();
    enter_group(&group);
    struct runner runners[] = {{.name = "writer", .body = fill_pages}};
    run_scenario(runners, 1, &run, print_truth);
}
