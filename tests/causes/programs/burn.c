// SPDX-License-Identifier: Apache-2.0
// A thread "pricing" that computes for 5 ms out of 10, so many seconds.
//
// usage: burn SECONDS
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

__attribute__((noinline)) static void compute_price(void)
{
	double until = now() + 0.005;

	while (now() < until)
		;
}

int main(int count, char **arguments)
{
	if (count != 2)
		return 2;
	double ends = now() + atof(arguments[1]);

	pthread_setname_np(pthread_self(), "pricing");
	while (now() < ends) {
		compute_price();
		usleep(5000);
	}
	return 0;
}
