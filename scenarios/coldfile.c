// SPDX-License-Identifier: Apache-2.0
// coldfile: a thread reads a file through memory, and its pages are not there.
//
// `reader` maps a file of 8 MiB and touches every eighth page of it, a round at a time: touch_page. Before
// each round the file's pages are taken out of memory, as if something else had needed it.
//
// Truth, besides truth.h's lines:
//   {"event":"touched", "pages"}  touches in all
//   {"event":"slow_touches", "count", "total_ns", "max_ns"}  those of 100 µs or more, by the reader's clock
// Options: -f FILE, made if it is missing (default /tmp/wallprof-coldfile).

#include "truth.h"

#include <fcntl.h>
#include <sys/mman.h>

#define PAGE 4096ul
#define PAGES 2048ul
#define STEP 8ul
#define SLOW_NS (100 * NS_PER_US)

static struct run run = {.scenario = "coldfile", .seconds = 5, .seed = 42};
static const char *path = "/tmp/wallprof-coldfile";
static int file;
static char *map;
static uint64_t touched;
static struct durations slow;

static void prepare_file(void) {
    static char page[PAGE];
    memset(page, 1, sizeof page);
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        die(path, errno);
    for (size_t i = 0; i < PAGES; i++)
        if (pwrite(file, page, PAGE, (off_t)(i * PAGE)) != (ssize_t)PAGE)
            die(path, errno);
    if (fsync(file) != 0)
        die(path, errno);
    map = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_PRIVATE, file, 0);
    if (map == MAP_FAILED || madvise(map, PAGES * PAGE, MADV_RANDOM) != 0)
        die(path, errno);
}

// Pages that are mapped stay.
static void take_out_of_memory(void) {
    madvise(map, PAGES * PAGE, MADV_DONTNEED);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
}

SHOWN static void touch_page(volatile char *address) {
    uint64_t start = now_ns();
    (void)*address;
    uint64_t took = now_ns() - start;
    touched++;
    if (took >= SLOW_NS)
        add_duration(&slow, took);
}

SHOWN static void read_cold(struct runner *self) {
    (void)self;
    while (!run_is_over()) {
        take_out_of_memory();
        for (size_t i = 0; i < PAGES && !run_is_over(); i += STEP)
            touch_page(map + i * PAGE + 5);
    }
}

static void print_truth(void) {
    printf("{\"event\":\"touched\",\"pages\":%llu}\n", (unsigned long long)touched);
    print_durations("slow_touches", &slow);
}

int main(int argc, char **argv) {
    const struct own_option own = {.letter = 'f', .argument = "FILE", .text = &path};
    take_options(argc, argv, &run, &own, 1);
    prepare_file();
    struct runner runners[] = {{.name = "reader", .body = read_cold}};
    run_scenario(runners, 1, &run, print_truth);
    unlink(path);
}
