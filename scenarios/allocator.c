// SPDX-License-Identifier: Apache-2.0
// allocator: a rare path allocates while a housekeeping thread has the allocator's lock.
//
// All threads share one arena. `engine` handles a tick every 200 µs; one in twenty allocates: format_error →
// malloc, of a size that no cache of the thread's own serves. `housekeeper` fills and empties a cache and
// then gives the memory back: trim_cache → malloc_trim, which holds the arena's lock for milliseconds.
//
// Truth, besides truth.h's lines:
//   {"event":"slow", "count", "total_ns", "max_ns"}   allocations of `engine` that took 300 µs or longer
//   {"event":"trims", "count", "total_ns", "max_ns"}  how often and how long the cache was trimmed

#include "truth.h"

#include <malloc.h>

#define TICK_NS (200 * NS_PER_US)
#define SLOW_NS (300 * NS_PER_US)
#define TICKS_AN_ERROR 20
#define ENTRIES 2000
#define ENTRY_BYTES (16 << 10)
#define TEXT_BYTES 4000

static struct durations slow, trims;
static void *entries[ENTRIES], *between[ENTRIES];
static struct run run = {.scenario = "allocator", .seconds = 10, .seed = 42};

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes);
    if (memory == NULL)
        die("cannot allocate", errno);
    return memory;
}

// --- engine ---

SHOWN static void format_error(void) {
    uint64_t start_ns = now_ns();
    char *text = allocate(TEXT_BYTES);
    uint64_t took_ns = now_ns() - start_ns;
    text[0] = '\0';
    free(text);
    if (took_ns >= SLOW_NS)
        add_duration(&slow, took_ns);
}

SHOWN static void engine(struct runner *self) {
    (void)self;
    for (uint64_t tick = 0; !run_is_over(); tick++) {
        if (tick % TICKS_AN_ERROR == 0)
            format_error();
        sleep_for(TICK_NS);
    }
}

// --- housekeeper ---

// Small pieces that stay keep the freed ones from growing together: each is given back by itself.
SHOWN static void fill_cache(void) {
    for (int i = 0; i < ENTRIES; i++) {
        entries[i] = allocate(ENTRY_BYTES);
        memset(entries[i], 1, ENTRY_BYTES);
        if (between[i] == NULL)
            between[i] = allocate(64);
    }
    for (int i = 0; i < ENTRIES; i++)
        free(entries[i]);
}

SHOWN static void trim_cache(void) {
    uint64_t start_ns = now_ns();
    malloc_trim(0);
    add_duration(&trims, now_ns() - start_ns);
}

SHOWN static void housekeeping(struct runner *self) {
    (void)self;
    while (!run_is_over()) {
        fill_cache();
        trim_cache();
        sleep_for(NS_PER_MS);
    }
}

static void print_truth(void) {
    print_durations("slow", &slow);
    print_durations("trims", &trims);
}

int main(int argc, char **argv) {
    take_options(argc, argv, &run, NULL, 0);
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    struct runner runners[] = {{.name = "engine", .body = engine},
                               {.name = "housekeeper", .body = housekeeping}};
    run_scenario(runners, 2, &run, print_truth);
}
