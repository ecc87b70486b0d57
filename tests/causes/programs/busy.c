// SPDX-License-Identifier: Apache-2.0
// Threads that compute on one CPU, each for WORK ms and then asleep for REST ms (0: without a pause).
//
// usage: busy NAME THREADS CPU WORK REST SECONDS
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MOST_THREADS = 16 };

static double work_s, ends;
static useconds_t rest_us;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

__attribute__((noinline)) static void compute(void)
{
	double until = now() + work_s;

	while (now() < until)
		;
}

static void *work(void *name)
{
	pthread_setname_np(pthread_self(), name);
	while (now() < ends) {
		compute();
		if (rest_us > 0)
			usleep(rest_us);
	}
	return NULL;
}

int main(int count, char **arguments)
{
	pthread_t threads[MOST_THREADS];
	cpu_set_t cpus;

	if (count != 7)
		return 2;
	int started = atoi(arguments[2]);
	if (started < 1 || started > MOST_THREADS)
		return 2;
	CPU_ZERO(&cpus);
	CPU_SET(atoi(arguments[3]), &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus) != 0)
		return 1;
	work_s = atof(arguments[4]) / 1e3;
	rest_us = atoi(arguments[5]) * 1000;
	ends = now() + atof(arguments[6]);
	for (int i = 0; i < started; i++)
		pthread_create(&threads[i], NULL, work, arguments[1]);
	for (int i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
