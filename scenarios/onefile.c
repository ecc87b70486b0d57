// SPDX-License-Identifier: Apache-2.0
// onefile: a thread that writes a line into a file waits for one that writes much into the same file.
//
// `bulk` writes 32 MiB into a file in memory, again and again: write_bulk. Meanwhile the kernel holds the
// lock of the file. `notes`, on the same CPU, writes a line of a few bytes into it every 5 ms: write_line.
// One CPU for both, because a waiter would watch a holder that runs on another one without going to sleep.
//
// Truth, besides truth.h's lines:
//   {"event":"waits", "count", "total_ns", "max_ns"}   write_line that took 1 ms or more, by its own clock
// Options: -c CPU, the shared CPU (default 0).

#include "truth.h"

#include <sys/mman.h>

#define BULK (32ul << 20)
#define LONG_NS NS_PER_MS

static struct run run = {.scenario = "onefile", .seconds = 5, .seed = 42};
static struct durations waits;
static char *bulk;
static int file, cpu;

static void write_all(const char *bytes, size_t length) {
    if (pwrite(file, bytes, length, 0) != (ssize_t)length)
        die("cannot write to a file in memory", errno);
}

SHOWN static void write_bulk(void) { write_all(bulk, BULK); }

SHOWN static void write_much(struct runner *self) {
    (void)self;
    pin_to(cpu);
    while (!run_is_over()) {
        write_bulk();
        sleep_for(NS_PER_MS);
    }
}

SHOWN static void write_line(void) {
    uint64_t start = now_ns();
    write_all("a line\n", 7);
    uint64_t took = now_ns() - start;
    if (took >= LONG_NS)
        add_duration(&waits, took);
}

SHOWN static void write_lines(struct runner *self) {
    (void)self;
    pin_to(cpu);
    while (!run_is_over()) {
        write_line();
        sleep_for(5 * NS_PER_MS);
    }
}

static void prepare(void) {
    file = memfd_create("wallprof-onefile", MFD_CLOEXEC);
    bulk = malloc(BULK);
    if (file < 0 || bulk == NULL)
        die("cannot make a file in memory", errno);
    memset(bulk, 1, BULK);
    write_bulk();
}

static void print_truth(void) { print_durations("waits", &waits); }

int main(int argc, char **argv) {
    const struct own_option own = {.letter = 'c', .argument = "CPU", .index = &cpu};
    take_options(argc, argv, &run, &own, 1);
    prepare();
    struct runner runners[] = {{.name = "bulk", .body = write_much}, {.name = "notes", .body = write_lines}};
    run_scenario(runners, 2, &run, print_truth);
}
