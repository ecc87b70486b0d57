// SPDX-License-Identifier: Apache-2.0
/* A thread with a hostile name that waits for a pipe, in functions to which objcopy gives hostile names.
 *
 *   hostile THREAD_NAME
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static const char *name;
static int ends[2];

/* Not static, and called through pointers, so that each has a symbol and a frame. */
__attribute__((noinline)) int hostile_inner(void) {
    char byte;
    ssize_t count = read(ends[0], &byte, 1);
    __asm__ volatile("" ::: "memory");
    return count == 1;
}

__attribute__((noinline)) int hostile_outer(void) {
    int more = hostile_inner();
    __asm__ volatile("" ::: "memory");
    return more;
}

static void *wait_for_bytes(void *unused) {
    (void)unused;
    pthread_setname_np(pthread_self(), name);
    while (hostile_outer())
        ;
    return NULL;
}

int main(int count, char **given) {
    pthread_t thread;
    if (count != 2) {
        fprintf(stderr, "hostile THREAD_NAME\n");
        return 2;
    }
    name = given[1];
    if (pipe(ends) != 0 || pthread_create(&thread, NULL, wait_for_bytes, NULL) != 0) {
        perror("hostile");
        return 1;
    }
    for (int byte = 0; byte < 30; byte++) {
        usleep(20000);
        if (write(ends[1], "x", 1) != 1)
            return 1;
    }
    return 0;
}
