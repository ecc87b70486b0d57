// SPDX-License-Identifier: Apache-2.0
// A lock on which threads spin, on one CPU: the holder loses the CPU to those that spin for the lock.
//
// usage: spin shared|apart SECONDS. With shared, three threads take the lock; else they take turns by sleeping.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_flag lock = ATOMIC_FLAG_INIT;
static int shared;
static double ends;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

__attribute__((noinline)) static void spin_for_lock(void)
{
	while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire))
		;
}

__attribute__((noinline)) static void compute(double seconds)
{
	double until = now() + seconds;

	while (now() < until)
		;
}

static void *serve(void *name)
{
	pthread_setname_np(pthread_self(), name);
	while (now() < ends) {
		if (shared)
			spin_for_lock();
		compute(shared ? 0.010 : 0.0005);
		if (shared)
			atomic_flag_clear_explicit(&lock, memory_order_release);
		usleep(shared ? 100 : 20000);
	}
	return NULL;
}

int main(int count, char **arguments)
{
	static char names[3][16];
	pthread_t threads[3];
	cpu_set_t one;

	if (count != 3)
		return 2;
	shared = !strcmp(arguments[1], "shared");
	ends = now() + atof(arguments[2]);
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	if (sched_setaffinity(0, sizeof one, &one))
		return 1;
	for (int i = 0; i < 3; i++) {
		snprintf(names[i], sizeof names[i], "spinner-%d", i);
		pthread_create(&threads[i], NULL, serve, names[i]);
	}
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
