// SPDX-License-Identifier: Apache-2.0
/* 400 threads that sleep, and hold one of 8 mutexes now and then, for as many seconds as the argument says.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 400, LOCKS = 8 };

static pthread_mutex_t locks[LOCKS];

static void nap(long ns) {
    struct timespec time = {.tv_sec = 0, .tv_nsec = ns};
    nanosleep(&time, NULL);
}

static void *worker(void *number) {
    unsigned seed = (unsigned)(uintptr_t)number;
    char name[16];
    snprintf(name, sizeof name, "worker-%u", seed);
    pthread_setname_np(pthread_self(), name);
    for (;;) {
        nap(5000000 + rand_r(&seed) % 300000000);
        pthread_mutex_t *lock = &locks[rand_r(&seed) % LOCKS];
        pthread_mutex_lock(lock);
        int turns = 20000 + rand_r(&seed) % 60000;
        for (volatile int turn = 0; turn < turns; turn++)
            ;
        if (rand_r(&seed) % 40 == 0)
            nap(2000000);
        pthread_mutex_unlock(lock);
    }
    return NULL;
}

int main(int argc, char **argv) {
    for (int at = 0; at < LOCKS; at++)
        pthread_mutex_init(&locks[at], NULL);
    for (uintptr_t number = 0; number < THREADS; number++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, (void *)number) != 0)
            return 1;
    }
    sleep(argc > 1 ? (unsigned)atoi(argv[1]) : 60);
    return 0;
}
