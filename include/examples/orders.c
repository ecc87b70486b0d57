// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Handles orders with two stages each, until it is stopped:
 *     cc -O2 -I include include/examples/orders.c -o orders && ./orders &
 *     wallprof record -p $! -d 5 && wallprof tail */
#include <wallprof.h>

#include <stdlib.h>
#include <threads.h>

static volatile unsigned long book[4096];

static void check_risk(void) {
    wallprof_begin("risk check");
    for (int i = 0; i < 20000; i++)
        book[i % 4096] += (unsigned long)i;
    /* One order in two hundred asks another service, and waits for it. */
    if (rand() % 200 == 0)
        thrd_sleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    wallprof_end();
}

static void handle_order(void) {
    wallprof_begin("order");
    check_risk();
    wallprof_begin("match");
    for (int i = 0; i < 10000; i++)
        book[i % 4096] ^= (unsigned long)i;
    wallprof_end();
    wallprof_end();
}

int main(void) {
    for (;;) {
        handle_order();
        thrd_sleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
}
