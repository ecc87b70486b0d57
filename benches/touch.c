// SPDX-License-Identifier: Apache-2.0
// Touches new anonymous pages and prints the time of a minor fault, in ns.
//
// usage: touch [ROUNDS]
//
// Every round maps REGION bytes without huge pages, writes to each page and unmaps; the middle round is
// printed.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE 4096
#define REGION (4096 * PAGE)

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static double round_ns(void) {
    char *region = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region == MAP_FAILED || madvise(region, REGION, MADV_NOHUGEPAGE) != 0) {
        perror("touch: cannot map memory");
        exit(1);
    }
    uint64_t start_ns = now_ns();
    for (size_t at = 0; at < REGION; at += PAGE)
        ((volatile char *)region)[at] = 1;
    uint64_t took_ns = now_ns() - start_ns;
    munmap(region, REGION);
    return (double)took_ns / (REGION / PAGE);
}

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 51;
    if (rounds < 1) {
        fputs("usage: touch [ROUNDS]\n", stderr);
        return 2;
    }
    double *took = calloc(rounds, sizeof *took);
    for (int round = 0; round < rounds; round++)
        took[round] = round_ns();
    qsort(took, rounds, sizeof *took, by_value);
    printf("%.1f\n", took[rounds / 2]);
    free(took);
    return 0;
}
