// SPDX-License-Identifier: Apache-2.0
// Two threads of OpenMP that compute one step after the other.
//
// usage: solver uneven|even SECONDS. With uneven, one of them loads its input in each step, and the other one
// waits.
#include <omp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS = 2, ROWS = 400000, LOAD_NS = 20000000 };

static volatile double sums[THREADS][64];
static volatile bool over;

__attribute__((noinline)) static void compute_rows(int thread) {
    double sum = 1;
    for (int row = 0; row < ROWS; row++)
        sum = sum * 1.0000001 + 0.1;
    sums[thread][0] = sum;
}

__attribute__((noinline)) static void load_input(void) {
    nanosleep(&(struct timespec){.tv_nsec = LOAD_NS}, NULL);
}

__attribute__((noinline)) static void solve(bool uneven, time_t end) {
#pragma omp parallel num_threads(THREADS)
    while (!over) {
        int thread = omp_get_thread_num();
        compute_rows(thread);
        if (uneven && thread == 1)
            load_input();
#pragma omp barrier
        if (thread == 0 && time(NULL) >= end)
            over = true;
#pragma omp barrier
    }
}

int main(int arguments, char **argument) {
    if (arguments != 3)
        return 2;
    solve(strcmp(argument[1], "uneven") == 0, time(NULL) + atoi(argument[2]));
}
