// SPDX-License-Identifier: Apache-2.0
// Two threads take a spin lock. One of them asks for the lock again and again, and measures how long that takes.
//
// usage: yields yield|sleep held|free SECONDS. Between two questions the thread calls sched_yield, or sleeps for 50 us. With held, the
// other thread sleeps for 10 of 30 ms while it has the lock. At its end the program prints the part of the time in which the
// thread waited, by its own clock.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static atomic_flag spin = ATOMIC_FLAG_INIT;
static double until;
static int sleeps, held;
static volatile long orders;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

__attribute__((noinline)) static void take_spin_lock(void)
{
	while (atomic_flag_test_and_set(&spin))
		usleep(50);
	orders++;
}

__attribute__((noinline)) static void take_spin(void)
{
	while (atomic_flag_test_and_set(&spin))
		sched_yield();
	orders++;
}

static void *sweep(void *unused)
{
	(void)unused;
	prctl(PR_SET_NAME, "sweeper");
	while (now() < until) {
		take_spin();
		if (held)
			usleep(10000);
		atomic_flag_clear(&spin);
		usleep(20000);
	}
	return NULL;
}

static void *serve(void *unused)
{
	double first = now(), waited = 0;

	(void)unused;
	prctl(PR_SET_NAME, "engine");
	while (now() < until) {
		double start = now();

		if (sleeps)
			take_spin_lock();
		else
			take_spin();
		waited += now() - start;
		atomic_flag_clear(&spin);
		usleep(1000);
	}
	printf("waited %.0f of %.0f ms, %.1f %%\n", waited * 1e3, (now() - first) * 1e3, waited / (now() - first) * 100);
	return NULL;
}

int main(int count, char **arguments)
{
	pthread_t threads[2];

	sleeps = count > 1 && !strcmp(arguments[1], "sleep");
	held = count > 2 && !strcmp(arguments[2], "held");
	until = now() + (count > 3 ? atof(arguments[3]) : 3);
	pthread_create(&threads[0], NULL, sweep, NULL);
	pthread_create(&threads[1], NULL, serve, NULL);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	return 0;
}
