// SPDX-License-Identifier: Apache-2.0
// A latency loop: computes for 10 µs over and over and prints the actual time of each turn.
//
// usage: loop SECONDS
//
// One line: turns, and P50, P99, P99.9 and the maximum, in ns. Time of a turn beyond 10 µs was taken by the machine and
// by the tool that observes it.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TURN_NS 10000
#define MAX_TURNS 10000000

static uint32_t took[MAX_TURNS];

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static int by_length(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    double seconds = argc == 2 ? atof(argv[1]) : 0;
    if (!(seconds > 0)) {
        fputs("usage: loop SECONDS\n", stderr);
        return 2;
    }
    for (size_t i = 0; i < MAX_TURNS; i++)
        took[i] = 1; // no page of it faults later
    uint64_t end = now_ns() + (uint64_t)(seconds * 1e9), last = now_ns();
    size_t turns = 0;
    while (last < end && turns < MAX_TURNS) {
        uint64_t now;
        do
            now = now_ns();
        while (now - last < TURN_NS);
        took[turns++] = (uint32_t)(now - last);
        last = now;
    }
    qsort(took, turns, sizeof *took, by_length);
    printf("%zu %u %u %u %u\n", turns, took[turns / 2], took[turns * 99 / 100], took[turns * 999 / 1000],
           took[turns - 1]);
    return 0;
}
