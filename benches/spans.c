// SPDX-License-Identifier: Apache-2.0
// A load for benches/spans.sh.
//
// usage: spans marks SECONDS [PER_SECOND]
//        spans poll SECONDS
//
// marks marks spans one after the other, with PER_SECOND at that rate. It prints the spans that were marked
// while a recorder had switched marks on, all spans, and the nanoseconds of one span: of those that were
// marked, or of all where none was.
//
// poll has a thread that serves requests of another one in `serve`, around a poll in which it sleeps each
// time. It prints the number of requests.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../include/wallprof.h"

#define ROUND 1000

static int requests[2], answers[2];

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void mark_spans(uint64_t length_ns, double per_second) {
    uint64_t marked = 0, all = 0, marked_ns = 0, spent_ns = 0;
    uint64_t start_ns = now_ns(), until_ns = start_ns + length_ns;

    for (uint64_t now = start_ns; now < until_ns;) {
        uint64_t from_ns = now, before = marked;

        for (int i = 0; i < ROUND; i++) {
            wallprof_begin("order");
            marked += wallprof_own_slot && wallprof_own_slot->depth > 0;
            wallprof_end();
        }
        now = now_ns();
        spent_ns += now - from_ns;
        if (marked > before)
            marked_ns += now - from_ns;
        all += ROUND;
        while (per_second > 0 && now < until_ns && (double)(now - start_ns) * per_second < (double)all * 1e9)
            now = now_ns();
    }
    printf("%llu %llu %.2f\n", (unsigned long long)marked, (unsigned long long)all,
           marked ? (double)marked_ns / (double)marked : (double)spent_ns / (double)all);
}

__attribute__((noinline)) static void *serve(void *nothing) {
    struct pollfd request = {.fd = requests[0], .events = POLLIN};
    char byte;

    while (poll(&request, 1, -1) == 1 && read(requests[0], &byte, 1) == 1)
        if (write(answers[1], &byte, 1) != 1)
            break;
    return nothing;
}

static void ask(uint64_t length_ns) {
    uint64_t until_ns = now_ns() + length_ns, asked = 0;
    pthread_t server;
    char byte = 0;

    if (pipe(requests) != 0 || pipe(answers) != 0 || pthread_create(&server, NULL, serve, NULL) != 0)
        exit(1);
    while (now_ns() < until_ns && write(requests[1], &byte, 1) == 1 && read(answers[0], &byte, 1) == 1)
        asked++;
    close(requests[1]);
    pthread_join(server, NULL);
    printf("%llu\n", (unsigned long long)asked);
}

int main(int argc, char **argv) {
    double seconds = argc > 2 ? atof(argv[2]) : 0;
    bool is_poll = argc > 1 && !strcmp(argv[1], "poll");

    if (seconds <= 0 || !(is_poll || !strcmp(argv[1], "marks"))) {
        fprintf(stderr, "usage: spans marks SECONDS [PER_SECOND] | spans poll SECONDS\n");
        return 2;
    }
    if (is_poll)
        ask((uint64_t)(seconds * 1e9));
    else
        mark_spans((uint64_t)(seconds * 1e9), argc > 3 ? atof(argv[3]) : 0);
    return 0;
}
